"""What a tenant sees of its deliveries: the log, and the wish to send one again."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from models import breaker
from models.database import Row, Statement, Transaction


@dataclass(frozen=True, slots=True)
class LoggedAttempt:
    """One attempt; times in ms since the epoch, `response` the first KB of the answer."""

    attempt: int
    at: int
    status: int | None
    latency_ms: float | None
    error: str | None
    response: bytes | None


@dataclass(frozen=True, slots=True)
class Delivery:
    """One row of `deliveries`; `due_at` is when the next attempt is made, None if there is none."""

    id: str
    event_id: str
    event_type: str
    subject: str
    endpoint_id: str | None
    url: str
    state: str
    attempt: int
    due_at: int | None
    last_status: int | None
    last_error: str | None
    created_at: int
    finished_at: int | None
    attempts: tuple[LoggedAttempt, ...] = ()


# What waits for its endpoint's breaker is tried when that half-opens, or later.
_DUE_AT = ("coalesce(due_at, CASE WHEN state = 'pending' THEN (SELECT nullif(e.open_until, 0) "
           "FROM webhook_endpoints e WHERE e.id = endpoint_id) END)")
_FIELDS = (f"id, event_id, event_type, subject, endpoint_id, url, state, attempt, {_DUE_AT}, last_status, "
           "last_error, created_at, finished_at")
_GET = Statement(f"SELECT {_FIELDS} FROM deliveries WHERE id = :id AND tenant = :tenant")
_ATTEMPTS = Statement("SELECT delivery_id, attempt, at, status, latency_ms, error, response "
                      "FROM delivery_attempts WHERE delivery_id {in ids} ORDER BY delivery_id, attempt")
_AGAIN = Statement(
    "UPDATE deliveries SET state = 'pending', due_at = {now}, finished_at = NULL "
    "WHERE id = :id AND tenant = :tenant AND (endpoint_id IS NULL OR EXISTS ("
    "SELECT 1 FROM webhook_endpoints e WHERE e.id = deliveries.endpoint_id AND e.state = 'enabled'))")
_ENDPOINT = Statement("SELECT endpoint_id FROM deliveries WHERE id = :id AND tenant = :tenant")
_LISTINGS: dict[str, Statement] = {}


def _with_attempts(tx: Transaction, rows: Sequence[Row]) -> list[Delivery]:
    attempts: dict[str, list[LoggedAttempt]] = {}
    for row in tx.all(_ATTEMPTS, ids=[row[0] for row in rows]):
        attempts.setdefault(row[0], []).append(LoggedAttempt(*row[1:]))
    return [replace(Delivery(*row), attempts=tuple(attempts.get(row[0], ()))) for row in rows]


def get(tx: Transaction, tenant: str, delivery_id: str) -> Delivery | None:
    row = tx.one(_GET, id=delivery_id, tenant=tenant)
    return None if row is None else _with_attempts(tx, [row])[0]


def listing(tx: Transaction, tenant: str, *, job: str | None = None, endpoint: str | None = None,
            state: str | None = None, limit: int = 20, after: str | None = None) -> list[Delivery]:
    """Newest first, with their attempts; at most `limit` deliveries older than `after`."""
    where = "tenant = :tenant"
    values: dict[str, Any] = {"tenant": tenant, "limit": limit}
    for column, value in (("subject", job), ("endpoint_id", endpoint), ("state", state)):
        if value is not None:
            where += f" AND {column} = :{column}"
            values[column] = value
    if after is not None:
        where += " AND id < :after"
        values["after"] = after
    found = _LISTINGS.setdefault(where, Statement(
        f"SELECT {_FIELDS} FROM deliveries WHERE {where} ORDER BY id DESC LIMIT :limit"))
    return _with_attempts(tx, tx.all(found, **values))


def redeliver(tx: Transaction, tenant: str, delivery_id: str) -> bool:
    """Send it now, whatever became of it; failing, what is left of its schedule applies.

    An open breaker lets it through, as its next try.
    False: its endpoint is gone or disabled, or there is no such delivery.
    """
    if tx.run(_AGAIN, id=delivery_id, tenant=tenant) != 1:
        return False
    (endpoint_id,) = tx.one(_ENDPOINT, id=delivery_id, tenant=tenant) or (None,)
    if endpoint_id is not None:
        breaker.try_now(tx, endpoint_id)
    return True
