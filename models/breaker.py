"""An endpoint's breaker: after some failures in a row its deliveries wait, and one at a time tries.

    closed ──failures in a row, 429 or 503──► open ──pause over──► half-open ──the try fails──► open, longer
       ▲                                                               │
       └────────────────────────── any 2xx, its owner ─────────────────┘

What waits is pending without `due_at` and spends no attempt. A closed breaker whose deliveries still wait
keeps a past `open_until`, without failures, until the last of them is due: a crash in between loses none.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from models.database import Statement, Transaction
from models.settings import Settings

JITTER = 0.2
LONGEST = 32  # a pause is at most this many times the first
MAX_THROTTLE_S = 3_600.0  # of a receiver's own Retry-After, for what else waits for it
LEAST_FAILURES = 5  # fewer don't disable an endpoint, however long they took
RELEASED = 1_000  # deliveries made due in one transaction: it must not hold up others
EXAMINED = 64


@dataclass(frozen=True, slots=True)
class Rules:
    """After how many failures in a row it opens, for how long at first, and when an endpoint is given up."""

    failures: int
    pause_s: float
    give_up_s: float

    @classmethod
    def of(cls, settings: Settings) -> "Rules":
        return cls(settings.webhook_breaker_failures, settings.webhook_breaker_s, settings.webhook_give_up_s)


@dataclass(frozen=True, slots=True)
class Breaker:
    """Of one endpoint; times in ms, database clock. `failures` and `trips` are in a row."""

    failures: int = 0
    failing_since: int | None = None
    trips: int = 0
    open_until: int | None = None

    @property
    def closed(self) -> bool:
        return self.open_until is None or self.failures == 0

    @property
    def paused_until(self) -> int | None:
        """When the next try is made; None: nothing is held back."""
        return None if self.closed else self.open_until


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one attempt. `probe`: it was let through an open breaker. `throttle_s`: the receiver's own wish."""

    ok: bool
    probe: bool = False
    throttle_s: float | None = None


def after(breaker: Breaker, outcome: Outcome, now: int, rules: Rules, *, jitter: float = 1.0) -> Breaker:
    """The breaker after one more attempt. `jitter`: a factor, so that many don't try at the same moment."""
    if outcome.ok:
        # A past time where something may wait: it is made due by `wake`, a part at a time.
        return Breaker(open_until=None if breaker.open_until is None else 0)
    counted = replace(breaker, failures=breaker.failures + 1, failing_since=breaker.failing_since or now)
    if outcome.throttle_s is not None:
        wished = now + int(min(outcome.throttle_s, MAX_THROTTLE_S) * 1000)
        counted = replace(counted, open_until=max(wished, 0 if breaker.closed else breaker.open_until or 0))
        if not outcome.probe or wished > now:
            return counted
    if outcome.probe or (breaker.closed and counted.failures >= rules.failures):
        pause_ms = rules.pause_s * 1000 * min(2.0 ** min(breaker.trips, 30), LONGEST) * jitter
        return replace(counted, trips=breaker.trips + 1, open_until=now + int(pause_ms))
    return counted


def given_up(breaker: Breaker, now: int, rules: Rules) -> bool:
    """Whether there has been nothing but failure for too long."""
    return (breaker.failing_since is not None and breaker.failures >= LEAST_FAILURES
            and now - breaker.failing_since >= rules.give_up_s * 1000)


_FIELDS = "failures, failing_since, trips, open_until"
_LOCK = Statement(f"SELECT id, {_FIELDS} FROM webhook_endpoints WHERE id {{in ids}} ORDER BY id "
                  "{for_update}")
_STORE = Statement("UPDATE webhook_endpoints SET failures = :failures, failing_since = :failing_since, "
                   "trips = :trips, open_until = :open_until WHERE id = :id")
# The common case, success after success, finds no row and writes nothing.
_CLOSE = Statement(
    "UPDATE webhook_endpoints SET failures = 0, failing_since = NULL, trips = 0, "
    "open_until = CASE WHEN open_until IS NULL THEN NULL ELSE 0 END "
    "WHERE id = :id AND (failures > 0 OR open_until > 0)")
_TRY = Statement("UPDATE webhook_endpoints SET open_until = {now} + :lease_ms WHERE id {in ids}")
_TRY_NOW = Statement("UPDATE webhook_endpoints SET open_until = {now} WHERE id = :id AND open_until > {now}")
_CLOCK = Statement("SELECT {now}")
_ENDED = "FROM webhook_endpoints e WHERE e.open_until <= {now}"
_OF_IT = "SELECT 1 FROM deliveries d WHERE d.endpoint_id = e.id AND d.state = 'pending'"
# Over, and something is to be done about it: closed ones are cleared, half-open ones lack one that tries.
_STALE = (f"{_ENDED} AND (e.failures = 0 OR (EXISTS ({_OF_IT} AND d.due_at IS NULL) "
          f"AND NOT EXISTS ({_OF_IT} AND d.due_at <= {{now}})))")
_ANY_STALE = Statement(f"SELECT 1 {_STALE} LIMIT 1")
_STALE_ONES = Statement(f"SELECT e.id {_STALE} ORDER BY e.id LIMIT {EXAMINED}")
_WAITING = "SELECT id FROM deliveries WHERE endpoint_id = :id AND state = 'pending' AND due_at IS NULL"
_MAKE_DUE = Statement(f"UPDATE deliveries SET due_at = {{now}} WHERE due_at IS NULL AND state = 'pending' "
                      f"AND id IN ({_WAITING} ORDER BY id LIMIT :limit)")
_FORGET = Statement("UPDATE webhook_endpoints SET open_until = NULL WHERE id = :id AND failures = 0")


def _locked(tx: Transaction, endpoint_ids: Sequence[str]) -> dict[str, Breaker]:
    return {row[0]: Breaker(*row[1:]) for row in tx.all(_LOCK, ids=sorted(endpoint_ids))}


def note(tx: Transaction, outcomes: Mapping[str, Sequence[Outcome]], rules: Rules) -> dict[str, Breaker]:
    """Count attempts, in their order, by endpoint; the breakers of endpoints that are to be given up."""
    failing = [name for name, of_it in outcomes.items() if not all(item.ok for item in of_it)]
    for name in sorted(set(outcomes) - set(failing)):
        tx.run(_CLOSE, id=name)
    if not failing:
        return {}
    now = int(tx.all(_CLOCK)[0][0])
    hopeless = {}
    for name, breaker in _locked(tx, failing).items():
        changed = breaker
        for outcome in outcomes[name]:
            changed = after(changed, outcome, now, rules,
                            jitter=random.uniform(1 - JITTER, 1 + JITTER))  # noqa: S311 (jitter)
        tx.run(_STORE, id=name, failures=changed.failures, failing_since=changed.failing_since,
               trips=changed.trips, open_until=changed.open_until)
        if given_up(changed, now, rules):
            hopeless[name] = changed
    return hopeless


@dataclass(frozen=True, slots=True)
class Verdict:
    """On deliveries of endpoints with a breaker: `let` are sent, with their receivers; `held` must wait.

    `tries`: those of `let` that went through an open breaker. `cramped`: endpoints that had no room for their
    next one, which stays due.
    """

    let: dict[str, str]
    tries: set[str]
    held: set[str]
    cramped: set[str]


def judge(tx: Transaction, wanted: Mapping[str, Sequence[str]], *, admits: Callable[[str], bool],
          lease_s: float) -> Verdict:
    """Decide on deliveries by endpoint, the next due first; `admits` as in `delivery.claim`.

    A try holds the place until it ends or `lease_s` seconds have gone by.
    """
    now = int(tx.all(_CLOCK)[0][0])
    verdict = Verdict({}, set(), set(), set())
    trying = []
    found = _locked(tx, list(wanted))
    for name, delivery_ids in wanted.items():
        breaker = found.get(name, Breaker())
        half_open = not breaker.closed and (breaker.open_until or 0) <= now
        may_go = list(delivery_ids) if breaker.closed else list(delivery_ids[:1]) if half_open else []
        verdict.held.update(delivery_ids[len(may_go):])
        for delivery_id in may_go:
            if not admits(name):
                verdict.cramped.add(name)
                break
            verdict.let[delivery_id] = name
            if half_open:
                verdict.tries.add(delivery_id)
                trying.append(name)
    if trying:
        tx.run(_TRY, ids=trying, lease_ms=int(lease_s * 1000))
    return verdict


def any_stale(tx: Transaction) -> bool:
    """Whether `wake` would find anything: asked first, since it writes."""
    return tx.one(_ANY_STALE) is not None


def wake(tx: Transaction) -> int:
    """Make due what waits for breakers that are closed by now, and one for each that is half-open; how many.

    At most some of either: call it again while `any_stale`.
    """
    woken = 0
    for name, breaker in _locked(tx, [row[0] for row in tx.all(_STALE_ONES)]).items():
        if breaker.failures > 0:
            woken += tx.run(_MAKE_DUE, id=name, limit=1)
            continue
        made = tx.run(_MAKE_DUE, id=name, limit=RELEASED)
        if made < RELEASED:
            tx.run(_FORGET, id=name)
        woken += made
    return woken


def close(tx: Transaction, endpoint_id: str) -> None:
    """Its owner says that it works: forget the failures."""
    tx.run(_CLOSE, id=endpoint_id)


def try_now(tx: Transaction, endpoint_id: str) -> None:
    """Let the next delivery through, however long the pause still is."""
    tx.run(_TRY_NOW, id=endpoint_id)
