"""What the database, the blob store and the API hold at the end of a run, as records for its history."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from models import blobs
from tests.chaos.harness.stage import Stage

_TABLES = {
    "jobs": ("id", "state", "waiting", "attempt", "crashes", "crashes_alone", "incarnation", "created_at", "started_at",
             "finished_at", "deadline_at", "error_code", "error_message", "metadata", "webhook", "ticketed_until",
             "suspect", "begun"),
    "results": ("job_id", "attempt", "body", "blob", "created_at"),
    "events": ("id", "type", "subject", "created_at", "fanned_at"),
    "deliveries": ("id", "event_id", "event_type", "subject", "endpoint_id", "url", "state", "attempt", "last_error"),
    "incarnations": ("id", "kind", "pid", "started_at", "ended_at", "end_reason"),
    "idempotency_keys": ("key", "path", "status"),
    "webhook_endpoints": ("id", "state", "reason"),
}
_JSON = ("body", "metadata", "webhook")


def rows(stage: Stage) -> Iterator[tuple[str, dict[str, Any]]]:
    """(table, row) of all that the checker looks at. Raises Unavailable."""
    store = blobs.Blobs(Path(stage.data) / "blobs")
    for table, columns in _TABLES.items():
        for found in stage.rows(f"SELECT {', '.join(columns)} FROM {table}"):
            row = dict(zip(columns, found, strict=True))
            for name in _JSON:
                if row.get(name) is not None:
                    row[name] = json.loads(bytes(row[name]))
            if table == "results":
                row["body"] = _output(row, store)
            yield table, row


def _output(row: dict[str, Any], store: blobs.Blobs) -> Any:
    body = row["body"]
    if body is None and row["blob"] is not None:
        body = json.loads(store.read(row["blob"]))
    return None if body is None else body["outputs"][0]["data"]
