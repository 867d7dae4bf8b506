"""Webhook endpoints: where a tenant wants its events sent, and the secrets that sign them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from models import breaker, ids, signing
from models.breaker import Breaker
from models.database import Row, Statement, Transaction
from models.event import webhook_endpoints

ENABLED, DISABLED = "enabled", "disabled"
MAX_ENDPOINTS = 64  # a tenant: each event is sent to every one that asked for its type
OLD_SECRET_S = 24 * 3_600
MAX_OVERLAP_S = 7 * 86_400
MAX_SECRETS = 5  # live at once: each adds a signature to the header of every attempt


@dataclass(frozen=True, slots=True)
class Secret:
    """A signing secret; `expires_at` None: the current one."""

    secret: str
    expires_at: int | None = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One row of `webhook_endpoints`. `event_types` empty: all of them, later ones too."""

    id: str
    tenant: str
    name: str
    url: str
    event_types: tuple[str, ...]
    secrets: tuple[Secret, ...]
    state: str
    reason: str | None
    created_at: int
    updated_at: int
    breaker: Breaker = field(default_factory=Breaker)

    def live(self, now: int) -> tuple[Secret, ...]:
        """The secrets that sign at `now` (ms, database clock), the current one first."""
        return tuple(item for item in self.secrets if item.expires_at is None or item.expires_at > now)

    def wants(self, event_type: str) -> bool:
        return not self.event_types or event_type in self.event_types


def live_secrets(text: str, now: int) -> list[str]:
    """The secrets that sign at `now` (ms, database clock), out of the column's JSON."""
    return [item["secret"] for item in json.loads(text)
            if item["expires_at"] is None or item["expires_at"] > now]


_FIELDS = ("id, tenant, name, url, event_types, secrets, state, reason, created_at, updated_at, "
           "failures, failing_since, trips, open_until")
_SELECT = f"SELECT {_FIELDS} FROM webhook_endpoints WHERE"
_GET = Statement(f"{_SELECT} id = :id AND tenant = :tenant")
_LOCK = Statement(f"{_SELECT} id = :id AND tenant = :tenant {{for_update}}")
_FIRST = Statement(f"{_SELECT} tenant = :tenant ORDER BY id DESC LIMIT :limit")
_NEXT = Statement(f"{_SELECT} tenant = :tenant AND id < :after ORDER BY id DESC LIMIT :limit")
_LISTENING = Statement(f"{_SELECT} tenant {{in tenants}} AND state = 'enabled' ORDER BY id")
_COUNT = Statement("SELECT count(*) FROM webhook_endpoints WHERE tenant = :tenant")
_CLOCK = Statement("SELECT {now}")
_UPDATE = Statement(
    "UPDATE webhook_endpoints SET name = :name, url = :url, event_types = :event_types, secrets = :secrets, "
    "state = :state, reason = :reason, updated_at = {now} WHERE id = :id AND tenant = :tenant")
_DISABLE = Statement("UPDATE webhook_endpoints SET state = 'disabled', reason = :reason, updated_at = {now} "
                     "WHERE id = :id AND state = 'enabled'")
_REMOVE = Statement("DELETE FROM webhook_endpoints WHERE id = :id AND tenant = :tenant")
_DROP = Statement(
    "UPDATE deliveries SET state = 'dropped', finished_at = {now}, due_at = NULL, claimed_by = NULL, "
    "claimed_until = NULL WHERE endpoint_id = :id AND state = 'pending'")
_MOVE = Statement("UPDATE deliveries SET url = :url, origin = :origin "
                  "WHERE endpoint_id = :id AND state = 'pending'")


def _from_row(row: Row) -> Endpoint:
    id_, tenant, name, url, event_types, secrets, state, reason, created_at, updated_at, *counts = row
    return Endpoint(id_, tenant, name, url, tuple(json.loads(event_types)),
                    tuple(Secret(item["secret"], item["expires_at"]) for item in json.loads(secrets)),
                    state, reason, created_at, updated_at, Breaker(*counts))


def _secrets_json(secrets: Sequence[Secret]) -> str:
    return json.dumps([{"secret": item.secret, "expires_at": item.expires_at} for item in secrets])


def clock(tx: Transaction) -> int:
    """The database's, in ms since the epoch."""
    return int(tx.all(_CLOCK)[0][0])


def get(tx: Transaction, tenant: str, endpoint_id: str, *, lock: bool = False) -> Endpoint | None:
    """`lock`: in a write transaction that is going to change it."""
    row = tx.one(_LOCK if lock else _GET, id=endpoint_id, tenant=tenant)
    return None if row is None else _from_row(row)


def listing(tx: Transaction, tenant: str, *, limit: int, after: str | None = None) -> list[Endpoint]:
    """Newest first; at most `limit` endpoints older than `after`."""
    if after is None:
        return [_from_row(row) for row in tx.all(_FIRST, tenant=tenant, limit=limit)]
    return [_from_row(row) for row in tx.all(_NEXT, tenant=tenant, limit=limit, after=after)]


def listening(tx: Transaction, tenants: Sequence[str]) -> dict[str, list[Endpoint]]:
    """The enabled endpoints of each of these tenants."""
    found: dict[str, list[Endpoint]] = {}
    for row in tx.all(_LISTENING, tenants=tenants):
        found.setdefault(row[1], []).append(_from_row(row))
    return found


def count(tx: Transaction, tenant: str) -> int:
    return int(tx.all(_COUNT, tenant=tenant)[0][0])


def add(tx: Transaction, *, tenant: str, name: str, url: str, event_types: Sequence[str]) -> Endpoint:
    """A new endpoint, enabled, with a secret of its own."""
    now = clock(tx)
    secrets = (Secret(signing.new_secret()),)
    made = Endpoint(
        ids.new(ids.ENDPOINT), tenant, name, url, tuple(event_types), secrets, ENABLED, None, now, now)
    tx.insert(webhook_endpoints, [{
        "id": made.id, "tenant": tenant, "name": name, "url": url, "event_types": json.dumps(event_types),
        "secrets": _secrets_json(secrets), "state": ENABLED, "created_at": now, "updated_at": now}])
    return made


def update(tx: Transaction, endpoint: Endpoint, *, origin: str) -> None:
    """Store a changed endpoint.

    What is still to be sent goes to its new URL (of that `origin`), or is dropped if it is disabled now.
    Its breaker isn't changed.
    """
    tx.run(_UPDATE, id=endpoint.id, tenant=endpoint.tenant, name=endpoint.name, url=endpoint.url,
           event_types=json.dumps(endpoint.event_types), secrets=_secrets_json(endpoint.secrets),
           state=endpoint.state, reason=endpoint.reason)
    if endpoint.state == DISABLED:
        tx.run(_DROP, id=endpoint.id)
    else:
        tx.run(_MOVE, id=endpoint.id, url=endpoint.url, origin=origin)


def rotated(tx: Transaction, endpoint: Endpoint, *, overlap_s: float) -> tuple[Secret, ...]:
    """Its secrets with a new one in front; the old ones go on signing for `overlap_s` seconds, not longer.

    More than MAX_SECRETS is for the caller to refuse.
    """
    now = clock(tx)
    end = now + int(overlap_s * 1000)
    kept = [Secret(item.secret, min(item.expires_at or end, end)) for item in endpoint.live(now)
            if overlap_s > 0]
    return (Secret(signing.new_secret()), *kept)


def revive(tx: Transaction, endpoint_id: str) -> None:
    """Its owner says that it works: failures are forgotten, and what waits is sent."""
    breaker.close(tx, endpoint_id)


def disable(tx: Transaction, endpoint_id: str, reason: str) -> None:
    """Stop sending to it, and drop what is pending. The reason is shown to its owner."""
    tx.run(_DISABLE, id=endpoint_id, reason=reason)
    tx.run(_DROP, id=endpoint_id)


def remove(tx: Transaction, tenant: str, endpoint_id: str) -> bool:
    """Forget an endpoint; what is pending is dropped, the log of its deliveries stays."""
    if tx.run(_REMOVE, id=endpoint_id, tenant=tenant) != 1:
        return False
    tx.run(_DROP, id=endpoint_id)
    return True
