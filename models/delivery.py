"""Deliveries: one event on its way to one URL, with the log of its attempts.

    pending ──2xx──► delivered        pending ──endpoint gone──► dropped
      │  └──last attempt, 410──► failed        any ──redeliver──► pending

The exact bytes of an event are made once, when it is fanned out, and kept; only timestamp and signature
differ from one attempt to the next. A delivery whose subject is an endpoint is that endpoint's test, and is
tried once.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from models import breaker, endpoint, ids, rendering, tenant
from models.database import SQLITE, Statement, Transaction
from models.event import deliveries, delivery_attempts, events

PENDING, DELIVERED, FAILED, DROPPED = "pending", "delivered", "failed", "dropped"
STATES = (PENDING, DELIVERED, FAILED, DROPPED)
GONE = 410  # the receiver's way to say "never again"
EXAMINED = 128  # due deliveries looked at in one step, to find some whose receivers have room
PAGES = 16  # steps; each leaves out the receivers that had none


@dataclass(frozen=True, slots=True)
class Event:
    """An event that no delivery was made for yet. `created_at` in ms, database clock."""

    id: str
    tenant: str
    type: str
    subject: str
    created_at: int


@dataclass(frozen=True, slots=True)
class Addressee:
    """Where one event goes. `endpoint_id` None: the job's own webhook."""

    url: str
    origin: str
    endpoint_id: str | None = None


def body_of(event: Event, data: bytes) -> bytes:
    """The exact bytes that are sent, valid as a Standard Webhook and as an OpenAI event. `data`: JSON."""
    head = {"id": event.id, "object": "event", "type": event.type, "created_at": event.created_at // 1000,
            "timestamp": rendering.rfc3339(event.created_at)}
    return json.dumps(head)[:-1].encode() + b', "data": ' + data + b"}"


_UNFANNED = Statement("SELECT id, tenant, type, subject, created_at FROM events WHERE fanned_at IS NULL "
                      "ORDER BY id LIMIT :limit")
_FANNED = Statement(
    "UPDATE events SET fanned_at = {now}, body = d.body "
    "FROM unnest(:ids::text[], :bodies::bytea[]) AS d(id, body) "
    "WHERE events.id = d.id AND fanned_at IS NULL RETURNING events.id",
    sqlite="UPDATE events SET fanned_at = {now}, body = :body WHERE id = :id AND fanned_at IS NULL")
_CLOCK = Statement("SELECT {now}")


def unfanned(tx: Transaction, limit: int) -> list[Event]:
    return [Event(*row) for row in tx.all(_UNFANNED, limit=limit)]


def fan_out(tx: Transaction, made: Sequence[tuple[Event, bytes, Sequence[Addressee]]], *,
            first_delay_s: float) -> int:
    """Store the bytes of these events and one delivery for each of their addressees; how many deliveries.

    An event that somebody else fanned out meanwhile is left alone.
    """
    if tx.dialect == SQLITE:
        mine = {event.id for event, body, _ in made if tx.run(_FANNED, id=event.id, body=body) == 1}
    else:
        rows = tx.all(_FANNED, ids=[event.id for event, _, _ in made], bodies=[body for _, body, _ in made])
        mine = {row[0] for row in rows}
    now = int(tx.all(_CLOCK)[0][0])
    rows_to_add = [_row(event, addressee, now, now + int(first_delay_s * 1000))
                   for event, _, addressees in made if event.id in mine for addressee in addressees]
    for owner in sorted({event.tenant for event, _, addressees in made
                         if any(addressee.endpoint_id is None for addressee in addressees)}):
        tenant.ensure(tx, owner)
    tx.insert(deliveries, rows_to_add)
    return len(rows_to_add)


def _row(event: Event, addressee: Addressee, now: int, due_at: int) -> dict[str, object]:
    return {"id": ids.new(ids.DELIVERY), "tenant": event.tenant,
            "event_id": event.id, "event_type": event.type, "subject": event.subject,
            "endpoint_id": addressee.endpoint_id, "url": addressee.url, "origin": addressee.origin,
            "state": PENDING, "attempt": 0, "due_at": due_at, "created_at": now}


def add_test(tx: Transaction, event: Event, body: bytes, addressee: Addressee) -> str:
    """An event that never happened and its one delivery, due now; the delivery's id."""
    now = int(tx.all(_CLOCK)[0][0])
    tx.insert(events, [{"id": event.id, "tenant": event.tenant, "type": event.type, "subject": event.subject,
                        "created_at": now, "fanned_at": now, "body": body}])
    row = _row(event, addressee, now, now)
    tx.insert(deliveries, [row])
    return str(row["id"])


@dataclass(frozen=True, slots=True)
class Due:
    """A delivery that this sender holds now. `attempt`: how many were made before."""

    id: str
    event_id: str
    endpoint_id: str | None
    url: str
    origin: str
    attempt: int
    last: bool  # a test: it is not tried again
    body: bytes
    secrets: tuple[str, ...]
    receiver: str = ""  # what counts as one when sends are limited
    probe: bool = False  # let through an open breaker, to see
    claimed_at: int = 0  # ms, database clock


@dataclass(frozen=True, slots=True)
class Taken:
    """What a claim found. `held`: how many were made to wait, or dropped; then there may be more to find."""

    due: list[Due] = field(default_factory=list)
    held: int = 0


# An endpoint, or for the webhooks that jobs name: whoever is behind one host, as one tenant uses it.
_RECEIVER = "coalesce(endpoint_id, tenant || ' ' || origin)"
# A claim is over when its time is up or when its sender is known to be dead.
_FREE = ("(claimed_until IS NULL OR claimed_until < {now} OR EXISTS (SELECT 1 FROM incarnations i "
         "WHERE i.id = deliveries.claimed_by AND i.ended_at IS NOT NULL))")
_DUE = (f"FROM deliveries WHERE state = 'pending' AND due_at <= {{now}} AND {_FREE} "
        f"AND NOT ({_RECEIVER} {{in busy}})")
_ANY_DUE = Statement(f"SELECT 1 {_DUE} LIMIT 1")
_PICK = Statement(
    f"SELECT id, {_RECEIVER}, endpoint_id, subject, (SELECT e.open_until FROM webhook_endpoints e "
    f"WHERE e.id = endpoint_id) {_DUE} ORDER BY due_at LIMIT :limit {{for_update}} {{skip_locked}}")
_CLAIM = Statement("UPDATE deliveries SET claimed_by = :sender, claimed_until = {now} + :lease_ms "
                   "WHERE id {in ids}")
_HOLD = Statement("UPDATE deliveries SET due_at = NULL, claimed_by = NULL, claimed_until = NULL "
                  "WHERE id {in ids} AND state = 'pending'")
_HELD = Statement(
    "SELECT d.id, d.event_id, d.endpoint_id, d.url, d.origin, d.attempt, d.subject = d.endpoint_id, v.body, "
    "e.state, e.secrets, t.webhook_secret, {now} FROM deliveries d JOIN events v ON v.id = d.event_id "
    "LEFT JOIN webhook_endpoints e ON e.id = d.endpoint_id LEFT JOIN tenants t ON t.id = d.tenant "
    "WHERE d.id {in ids}")
_DROP = Statement(
    "UPDATE deliveries SET state = 'dropped', finished_at = {now}, due_at = NULL, claimed_by = NULL, "
    "claimed_until = NULL WHERE id {in ids} AND state = 'pending'")


def any_due(tx: Transaction, busy: Sequence[str]) -> bool:
    """Whether a claim may find anything: asked first, since claiming takes SQLite's only write lock."""
    return tx.one(_ANY_DUE, busy=busy) is not None


def claim(tx: Transaction, *, sender: str, limit: int, busy: Sequence[str], admits: Callable[[str], bool],
          lease_s: float) -> Taken:
    """Take up to `limit` due deliveries, the longest due first, where `admits` lets its receiver have more.

    `busy`: receivers that get none. What is due to an endpoint whose breaker is open is held back, but for
    one where the pause is over. The claim ends after `lease_s` seconds, or with the sender's incarnation.
    """
    taken: dict[str, str] = {}
    held: set[str] = set()
    tries: set[str] = set()
    passed = list(busy)
    for _ in range(PAGES):
        found = tx.all(_PICK, busy=passed, limit=EXAMINED)
        broken: dict[str, list[str]] = {}
        for delivery_id, receiver, endpoint_id, subject, open_until in found:
            if open_until is not None and subject != endpoint_id:  # a test is sent whatever the breaker says
                broken.setdefault(endpoint_id, []).append(delivery_id)
            elif len(taken) < limit and admits(receiver):
                taken[delivery_id] = receiver
            else:
                passed.append(receiver)
        if broken:
            verdict = breaker.judge(tx, broken, admits=admits, lease_s=lease_s)
            taken.update(verdict.let)
            tries |= verdict.tries
            held |= verdict.held
            passed += verdict.cramped
        if taken or held or len(found) < EXAMINED:
            break
    if held:
        tx.run(_HOLD, ids=sorted(held))
    if not taken:
        return Taken(held=len(held))
    tx.run(_CLAIM, ids=list(taken), sender=sender, lease_ms=int(lease_s * 1000))
    due, orphans = [], []
    for (id_, event_id, endpoint_id, url, origin, attempt, test, body, state, secrets, own, now) in tx.all(
            _HELD, ids=list(taken)):
        if endpoint_id is None:
            signers = [own]
        elif state == endpoint.ENABLED or (test and state is not None):
            signers = endpoint.live_secrets(secrets, now)
        else:  # its endpoint went while it was being fanned out
            orphans.append(id_)
            continue
        due.append(Due(id_, event_id, endpoint_id, url, origin, attempt, bool(test), body, tuple(signers),
                       receiver=taken[id_], probe=id_ in tries, claimed_at=now))
    if orphans:
        tx.run(_DROP, ids=orphans)
    return Taken(due, len(held) + len(orphans))


@dataclass(frozen=True, slots=True)
class Attempt:
    """How one attempt went. `next_delay_s` None: there is no other. `error` None: the receiver said 2xx.

    `throttle_s`: for how long it asked to be left alone. `blame`: whether a failure is the receiver's.
    """

    due: Due
    status: int | None
    error: str | None
    latency_ms: float
    response: bytes
    next_delay_s: float | None
    throttle_s: float | None = None
    blame: bool = True


_RECORD = Statement(
    "UPDATE deliveries SET state = :state, attempt = attempt + 1, claimed_by = NULL, claimed_until = NULL, "
    "due_at = {now} + CAST(:delay_ms AS BIGINT), last_status = :status, last_error = :error, "
    "finished_at = CASE WHEN CAST(:delay_ms AS BIGINT) IS NULL THEN {now} END "
    "WHERE id = :id AND state = 'pending' AND claimed_by = :sender AND attempt = :attempt")


def record(tx: Transaction, attempts: Sequence[Attempt], *, sender: str, rules: breaker.Rules) -> None:
    """Write down attempts of deliveries that this sender still holds, and when the next ones are due.

    Their endpoints' breakers follow; endpoints that answered 410, or failed for too long, are disabled.
    """
    now = int(tx.all(_CLOCK)[0][0])
    logged = []
    outcomes: dict[str, list[breaker.Outcome]] = {}
    for item in sorted(attempts, key=lambda item: item.due.id):
        delay_ms = None if item.error is None or item.next_delay_s is None else int(item.next_delay_s * 1000)
        state = DELIVERED if item.error is None else FAILED if delay_ms is None else PENDING
        if tx.run(_RECORD, id=item.due.id, sender=sender, attempt=item.due.attempt, state=state,
                  delay_ms=delay_ms, status=item.status, error=item.error) == 1:
            logged.append({
                "delivery_id": item.due.id, "attempt": item.due.attempt + 1, "at": now, "status": item.status,
                "latency_ms": item.latency_ms, "error": item.error, "response": item.response})
            # A test that fails says nothing that its owner isn't told; one that succeeds shows it works.
            told = item.error is None or (item.blame and not item.due.last)
            if item.due.endpoint_id is not None and told:
                outcomes.setdefault(item.due.endpoint_id, []).append(
                    breaker.Outcome(item.error is None, item.due.probe, item.throttle_s))
    tx.insert(delivery_attempts, logged)
    given_up = breaker.note(tx, outcomes, rules)
    for endpoint_id, seen in sorted(given_up.items()):
        since = rendering.rfc3339(seen.failing_since or now)
        endpoint.disable(tx, endpoint_id, f"nothing but failures since {since}, {seen.failures} in a row")
    for endpoint_id in sorted({item.due.endpoint_id for item in attempts
                               if item.status == GONE and item.due.endpoint_id is not None}):
        endpoint.disable(tx, endpoint_id, "the receiver answered 410 Gone")


_GIVE_BACK = Statement("UPDATE deliveries SET claimed_by = NULL, claimed_until = NULL "
                       "WHERE id {in ids} AND claimed_by = :sender AND state = 'pending'")


def give_back(tx: Transaction, delivery_ids: Sequence[str], *, sender: str) -> int:
    """Let others send what this sender claimed and did not get to."""
    return tx.run(_GIVE_BACK, ids=delivery_ids, sender=sender)
