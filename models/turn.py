"""Whose turn it is: the feeder's pick of waiting jobs, by priority, then tenant, then deadline and age.

Each tenant that waits in a priority is a *slot*. Slots are found by a loose scan (a seek each, whatever waits
in them), and each is read from its own end of the index: one tenant's million jobs hide nobody else's first.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from models import feed
from models.contract import Entry
from models.database import SQLITE, Row, Statement, Transaction
from models.feed import Waiting

MAX_TENANTS = 32  # looked at in one pick of one priority; those whose turn is the nearest
LEAST_ROWS = 16  # of each of them


class Slot(NamedTuple):
    """Some jobs of this tenant wait in this priority."""

    priority: int
    tenant: str


class Order(Protocol):
    """In which order tenants of one priority come."""

    def first(self, tenants: Iterable[str], count: int) -> Sequence[str]:
        """The `count` whose turn is the nearest."""

    def merge(self, queues: Mapping[str, Sequence[Waiting]]) -> list[Waiting]:
        """One queue of these, each of which keeps its own order."""


class ByAge:
    """As if all were one tenant."""

    def first(self, tenants: Iterable[str], count: int) -> Sequence[str]:
        return sorted(tenants)[:count]

    def merge(self, queues: Mapping[str, Sequence[Waiting]]) -> list[Waiting]:
        return sorted((job for queue in queues.values() for job in queue), key=_age)


def _age(job: Waiting) -> tuple[bool, int, str]:
    return job.entry.deadline_at is None, job.entry.deadline_at or 0, job.entry.id


class Picked(list[Waiting]):
    """Jobs in their order. `more`: others may wait besides these."""

    more = False


# A loose index scan: each step seeks the next tenant of the priority, else the next priority. They travel as
# one text, since a scalar subquery gives one value; a priority is one digit. Jobs with a ticket count too.
# By the pair for PostgreSQL, which no other index serves; SQLite would walk over all that equal the pair.
_HEAD = ("(SELECT CAST(j.priority AS TEXT) || j.tenant FROM jobs j WHERE j.hardware = :hardware "
         "AND j.waiting AND j.deadline_at IS {null} AND j.id > :after AND {step} "
         "ORDER BY j.priority, j.tenant LIMIT 1)")
_PRIORITY, _TENANT = "CAST(substr(s.slot, 1, 1) AS INTEGER)", "substr(s.slot, 2)"
_PAIR = (f"(j.priority, j.tenant) > ({_PRIORITY}, {_TENANT})",)
_ONE_BY_ONE = (f"j.priority = {_PRIORITY} AND j.tenant > {_TENANT}", f"j.priority > {_PRIORITY}")


def _chains(steps: Sequence[str]) -> str:
    chains = []
    for name, null in (("aged", "NULL"), ("urgent", "NOT NULL")):
        heads = ", ".join(_HEAD.format(null=null, step=step) for step in steps)
        step = f"COALESCE({heads})" if len(steps) > 1 else heads
        chains.append(f"{name}(slot) AS (SELECT CAST('0' AS TEXT) UNION ALL SELECT {step} FROM {name} s "
                      "WHERE s.slot IS NOT NULL)")
    return (f"WITH RECURSIVE {', '.join(chains)} SELECT slot FROM aged WHERE slot <> '0' "
            "UNION SELECT slot FROM urgent WHERE slot <> '0'")


_SLOTS = Statement(_chains(_PAIR), sqlite=_chains(_ONE_BY_ONE))


def slots(tx: Transaction, hardware: str, *, after: str = "") -> list[Slot]:
    """Who waits in which priority of a class, of the ids above `after`, in the order of priorities."""
    return sorted(Slot(int(row[0][0]), row[0][1:]) for row in tx.all(_SLOTS, hardware=hardware, after=after))


# Between two known slots lie the others: where none waits, that is one seek, however many entries of jobs
# that waited before the index still holds for the known ones under a snapshot.
_BETWEEN = ("SELECT 1 FROM jobs j WHERE j.hardware = :hardware AND j.waiting AND j.deadline_at IS {null} "
            "AND (j.priority, j.tenant) > (g.p, g.t) AND (j.priority, j.tenant) < (g.q, g.u) LIMIT 1")
# (In the database's order, which depends on its locale: in another each known one would be a newcomer.)
_NEWCOMER = Statement(
    "SELECT 1 FROM (SELECT p, t, lead(p) OVER o AS q, lead(t) OVER o AS u "
    "FROM unnest(:ps::int[], :ts::text[]) AS s(p, t) WINDOW o AS (ORDER BY p, t)) AS g "
    f"WHERE EXISTS ({_BETWEEN.format(null='NULL')}) OR EXISTS ({_BETWEEN.format(null='NOT NULL')}) LIMIT 1")


def newcomer(tx: Transaction, hardware: str, known: Sequence[Slot]) -> bool:
    """Whether a tenant waits in a priority that isn't among these slots."""
    if tx.dialect == SQLITE:  # keeps no entries of what is gone
        return not set(slots(tx, hardware)) <= set(known)
    between = [Slot(-1, ""), *known, Slot(10, "")]
    return tx.one(_NEWCOMER, hardware=hardware, ps=[slot.priority for slot in between],
                  ts=[slot.tenant for slot in between]) is not None


_FIELDS = "id, work, priority, deadline_at, tenant, network, suspect"
_PICKABLE = "hardware = :hardware AND waiting AND (ticketed_until IS NULL OR ticketed_until <= {now})"
_PADDING = Slot(-1, "")


def _arms(priority: str, tenant: str, after: str) -> str:
    # Each arm is one walk along its index, begun only when those before it gave too few.
    # A range of one tenant, as PostgreSQL would drop an equal one from the ORDER BY and could then walk all
    # tenants in the order of another index. The pair with a cursor is one seek on both databases.
    # (It takes FOR UPDATE inside the arms of a union only through a subquery.)
    head = f"SELECT {_FIELDS} FROM jobs WHERE {_PICKABLE} AND priority = {priority} AND tenant <= {tenant}"
    tail = "LIMIT :each {for_update} {skip_locked}"
    urgent = (f"{head} AND deadline_at IS NOT NULL AND (tenant, deadline_at) > ({tenant}, {{now}}) "
              f"ORDER BY tenant, deadline_at, id {tail}")
    aged = f"{head} AND deadline_at IS NULL AND (tenant, id) > ({tenant}, {after}) ORDER BY tenant, id {tail}"
    return f"SELECT * FROM ({urgent}) AS urgent UNION ALL SELECT * FROM ({aged}) AS aged"


def _each(count: int) -> str:
    return " UNION ALL ".join(_arms(f":p{n}", f":t{n}", f":a{n}") for n in range(count))


# SQLite has no LATERAL; PostgreSQL would plan each of many arms anew. Its nested loop keeps the slots' order.
_PICKS = {count: Statement(f"SELECT * FROM ({_each(count)}) AS picked LIMIT :limit")
          for count in (1, 2, 4, 8, 16, MAX_TENANTS)}
_PICK = Statement(
    f"SELECT picked.* FROM unnest(:priorities::int[], :tenants::text[], :afters::text[]) AS s(p, t, a) "
    f"CROSS JOIN LATERAL ({_arms('s.p', 's.t', 's.a')}) AS picked LIMIT :limit")


def pick(tx: Transaction, hardware: str, *, limit: int, known: Sequence[Slot] | None = None,
         after: Mapping[Slot, str] = MappingProxyType({}), order: Order | None = None) -> Picked:
    """Jobs without a ticket, locked: by priority (0 first), by the tenants' order, then by deadline or age.

    `known`: the slots, if they were found before. `after`: low-water cursors, per slot an id below which
    nothing waits without a ticket, so that dead entries of the index aren't walked again.
    """
    order = order or ByAge()
    found = slots(tx, hardware) if known is None else known
    picked = Picked()
    if len({slot.tenant for slot in found}) <= 1:
        picked += _rows(tx, hardware, found, after, each=limit, limit=limit)
        picked.more = len(picked) >= limit
    else:
        for priority in sorted({slot.priority for slot in found}):
            if len(picked) >= limit:
                picked.more = True
                break
            among = [slot for slot in found if slot.priority == priority]
            wanted = limit - len(picked)
            jobs, more = _of_priority(tx, hardware, among, after, wanted=wanted, order=order)
            picked += jobs
            picked.more |= more
    suspects = [job.entry.id for job in picked if job.suspect]
    if suspects:
        whose = feed.companies(tx, suspects)
        picked[:] = [replace(job, company=whose.get(job.entry.id)) for job in picked]
    return picked


def _of_priority(tx: Transaction, hardware: str, among: Sequence[Slot], after: Mapping[Slot, str], *,
                 wanted: int, order: Order) -> tuple[list[Waiting], bool]:
    """Jobs of one priority's slots, up to `wanted`; whether others may wait besides these."""
    chosen = order.first([slot.tenant for slot in among], MAX_TENANTS)
    # Any of two may be owed all of it; of many, each its part twice, and the rest in the next pick.
    each = min(wanted, max(LEAST_ROWS, 2 * wanted // len(chosen)))
    queues: dict[str, list[Waiting]] = {}
    for job in _rows(tx, hardware, [Slot(among[0].priority, tenant) for tenant in chosen], after, each=each,
                     limit=2 * each * len(chosen)):
        queues.setdefault(job.entry.tenant, []).append(job)
    merged = order.merge(queues)
    cut = len(chosen) < len(among) or any(len(queue) >= each for queue in queues.values())
    return merged[:wanted], cut or len(merged) > wanted


def _rows(tx: Transaction, hardware: str, among: Sequence[Slot], after: Mapping[Slot, str], *, each: int,
          limit: int) -> list[Waiting]:
    """Of each of these slots in turn up to `each` jobs with a deadline and as many without."""
    if not among:
        return []
    if tx.dialect != SQLITE:
        return [_waiting(row) for row in tx.all(
            _PICK, hardware=hardware, each=each, limit=limit, priorities=[slot.priority for slot in among],
            tenants=[slot.tenant for slot in among], afters=[after.get(slot, "") for slot in among])]
    count = next(count for count in _PICKS if count >= len(among))
    values: dict[str, Any] = {}
    for n in range(count):
        slot = among[n] if n < len(among) else _PADDING
        values |= {f"p{n}": slot.priority, f"t{n}": slot.tenant, f"a{n}": after.get(slot, "")}
    rows = tx.all(_PICKS[count], hardware=hardware, each=each, limit=limit, **values)
    return [_waiting(row) for row in rows]


def _waiting(row: Row) -> Waiting:
    return Waiting(Entry(*row[:5]), str(row[5]), bool(row[6]))


RECENT_ROWS, RECENT_MS = 4096, 10_000
_LATEST = ("SELECT tenant, hardware, run_ms, batch_size, finished_at, id FROM jobs {below} ORDER BY id DESC "
           f"LIMIT {RECENT_ROWS}")
_USED = Statement(
    "SELECT tenant, sum(run_ms / batch_size) FROM ("
    f"SELECT * FROM ({_LATEST.format(below='')}) AS newest "
    f"UNION SELECT * FROM ({_LATEST.format(below='WHERE id < :before')}) AS older) AS recent "
    f"WHERE hardware = :hardware AND batch_size > 0 AND finished_at > {{now}} - {RECENT_MS} GROUP BY tenant")


def used_s(tx: Transaction, hardware: str, before: str) -> dict[str, float]:
    """Tenant to the seconds of compute that its jobs took lately on this class, as far as a short look tells.

    `before`: the oldest job that waits; what ended lately mostly was accepted shortly before it.
    """
    return {row[0]: float(row[1]) / 1000 for row in tx.all(_USED, hardware=hardware, before=before)}
