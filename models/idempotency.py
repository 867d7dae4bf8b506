"""Idempotency keys: who comes first, and what the others get. The row is stored with what it answers for."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from models.database import SQLITE, Statement, Transaction

KEEP_MS = 86_400_000  # 24 h


class Name(NamedTuple):
    """A key is a tenant's own, and for one path."""

    tenant: str
    path: str
    key: str


@dataclass(frozen=True, slots=True)
class Stored:
    """A key with the answer that every repetition of its request gets."""

    name: Name
    fingerprint: str  # hex SHA-256 of what makes two requests the same
    status: int
    body: bytes
    headers: Mapping[str, str]


# A key older than its retention counts as new, whether housekeeping has been here or not.
_TAKE_OVER = (
    "ON CONFLICT (tenant, path, key) DO UPDATE SET fingerprint = excluded.fingerprint, "
    "status = excluded.status, body = excluded.body, headers = excluded.headers, "
    "created_at = excluded.created_at "
    f"WHERE idempotency_keys.created_at < excluded.created_at - {KEEP_MS} RETURNING tenant, path, key")
_COLUMNS = "tenant, path, key, fingerprint, status, body, headers, created_at"
_ENTER = Statement(
    f"""INSERT INTO idempotency_keys ({_COLUMNS}) SELECT *, {{now}} FROM unnest(
        :tenants::text[], :paths::text[], :keys::text[], :fingerprints::text[], :statuses::int[],
        :bodies::bytea[], :headers::text[]) {_TAKE_OVER}""",
    sqlite=f"""INSERT INTO idempotency_keys ({_COLUMNS})
        SELECT value->>0, value->>1, value->>2, value->>3, value->>4, CAST(value->>5 AS BLOB),
        value->>6, {{now}} FROM json_each(:rows) WHERE TRUE {_TAKE_OVER}""")
_GET = Statement("SELECT fingerprint, status, body, headers FROM idempotency_keys "
                 "WHERE tenant = :tenant AND path = :path AND key = :key")
_FILL = Statement("UPDATE idempotency_keys SET status = :status, body = :body, headers = :headers "
                  "WHERE tenant = :tenant AND path = :path AND key = :key")


def enter(tx: Transaction, stored: Sequence[Stored]) -> set[Name]:
    """Store these (of different names) unless a name is taken; the names that are new.

    In the order of their names: two processes that insert the same ones in different orders would deadlock.
    """
    rows = sorted(stored, key=lambda item: item.name)
    if tx.dialect == SQLITE:
        found = tx.all(_ENTER, rows=json.dumps([
            (*item.name, item.fingerprint, item.status, item.body.decode(), json.dumps(dict(item.headers)))
            for item in rows]))
    else:
        found = tx.all(
            _ENTER, tenants=[item.name.tenant for item in rows], paths=[item.name.path for item in rows],
            keys=[item.name.key for item in rows], fingerprints=[item.fingerprint for item in rows],
            statuses=[item.status for item in rows], bodies=[item.body for item in rows],
            headers=[json.dumps(dict(item.headers)) for item in rows])
    return {Name(*row) for row in found}


def get(tx: Transaction, name: Name) -> Stored | None:
    row = tx.one(_GET, **name._asdict())
    return None if row is None else Stored(name, row[0], row[1], bytes(row[2]), json.loads(row[3]))


def fill(tx: Transaction, name: Name, *, status: int, body: bytes, headers: Mapping[str, str]) -> None:
    """Write the answer of a request that had to enter its key first."""
    tx.run(_FILL, **name._asdict(), status=status, body=body, headers=json.dumps(dict(headers)))


_FORGET = Statement(
    "DELETE FROM idempotency_keys WHERE ctid = ANY(ARRAY(SELECT ctid FROM idempotency_keys "
    f"WHERE created_at < {{now}} - {KEEP_MS} LIMIT :limit))",
    sqlite="DELETE FROM idempotency_keys WHERE (tenant, path, key) IN (SELECT tenant, path, key "
    f"FROM idempotency_keys WHERE created_at < {{now}} - {KEEP_MS} LIMIT :limit)")


def forget(tx: Transaction, limit: int) -> int:
    """Delete at most `limit` keys that are past their retention; how many."""
    return tx.run(_FORGET, limit=limit)
