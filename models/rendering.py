"""A job as clients see it, over HTTP and in webhooks. Outputs and metadata are JSON already: spliced in."""

import functools
from datetime import UTC, datetime
from typing import Any

import msgspec

from models.job import Job

# Worth another try as it is: the fault lay with the machine, not with the input.
RETRYABLE = frozenset({"crashes_exhausted", "out_of_memory", "engine_unavailable", "provider_failed"})
_NULL = msgspec.Raw(b"null")
_REMOVED = {"code": "result_expired", "message": "the result was removed at the end of its retention",
            "retryable": False}


@functools.lru_cache(4096)  # the jobs of one commit share their times
def rfc3339(ms: int) -> str:
    """A time in ms since the epoch as UTC with milliseconds."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{ms % 1000:03d}Z"


def time_of(ms: int | None) -> str | None:
    return None if ms is None else rfc3339(ms)


def job_object(job: Job, output: bytes | None = None, *,
               estimated_start_s: float | None = None) -> dict[str, Any]:
    """The job, ready to be encoded by msgspec. `output`: its JSON, where it ended well and is wanted."""
    url = "/v1/jobs/" + job.id
    started = job.started_at is not None
    return {
        "id": job.id, "object": "job", "model": job.network, "state": job.state,
        "output": _NULL if output is None else msgspec.Raw(output), "error": _error(job),
        "attempt": job.attempt, "crashes": job.crashes, "priority": job.priority,
        "hardware": job.hardware if started else None, "variant": job.variant, "cache": None,
        "estimated_start_s": estimated_start_s,
        "created_at": rfc3339(job.created_at), "started_at": time_of(job.started_at),
        "finished_at": time_of(job.finished_at), "deadline_at": time_of(job.deadline_at),
        "timings": {
            "queued_ms": job.started_at - job.created_at if job.started_at is not None else None,
            "run_ms": job.run_ms, "batch_size": job.batch_size,
        },
        "metadata": _NULL if job.metadata is None else msgspec.Raw(job.metadata),
        "urls": {"self": url, "cancel": url + "/cancel"},
    }


def job_json(job: Job, output: bytes | None = None, *, estimated_start_s: float | None = None) -> bytes:
    """`job_object` as UTF-8 JSON."""
    return msgspec.json.encode(job_object(job, output, estimated_start_s=estimated_start_s))


def _error(job: Job) -> dict[str, Any] | None:
    if job.error_code is not None:
        return {"code": job.error_code, "message": job.error_message or "",
                "retryable": job.error_code in RETRYABLE}
    return _REMOVED if job.result_removed else None
