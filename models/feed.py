"""Which waiting jobs have a ticket: marks and lanes. Who gets the next one is in `models/turn.py`.

A lane is open while no job without a ticket waits in it: only then may the API publish by itself. The API
closes it with the first row it leaves behind, only the feeder opens it again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from models.contract import Entry
from models.database import Statement, Transaction
from models.job import TICKET_S
from models.schema import Flag, Text, Time, metadata

# One row a class and lane. `depth`, `work`, `oldest_at` and `in_flight` are rolled up by housekeeping.
lanes = sa.Table(
    "lanes", metadata,
    sa.Column("hardware", Text, primary_key=True),
    sa.Column("lane", Text, primary_key=True),
    sa.Column("open", Flag, nullable=False),
    sa.Column("depth", sa.Integer, nullable=False),
    sa.Column("in_flight", sa.Integer, nullable=False),
    sa.Column("wait_s", sa.Float),  # estimated wait of a job that arrives now
    sa.Column("oldest_at", Time),
    sa.Column("updated_at", Time, nullable=False),
)

# What was last known of a network on a class, so that estimates outlive the workers.
rates = sa.Table(
    "rates", metadata,
    sa.Column("network", Text, primary_key=True),
    sa.Column("hardware", Text, primary_key=True),
    sa.Column("overhead_s", sa.Float, nullable=False),  # a of l(w) = a + c w
    sa.Column("per_work_s", sa.Float, nullable=False),  # c
    sa.Column("batch_work", sa.Float, nullable=False),  # learned limit of one batch
    sa.Column("batch_items", sa.Integer, nullable=False),
    sa.Column("updated_at", Time, nullable=False),
)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A waiting job as the feeder sees it. A suspect runs by itself, or in the `company` it may come back in.

    `company`: see `companies`.
    """

    entry: Entry
    network: str
    suspect: bool
    company: tuple[str, int] | None = None


_OPEN = Statement("SELECT open FROM lanes WHERE hardware = :hardware AND lane = :lane {for_share}")
_ADD_LANE = Statement("INSERT INTO lanes (hardware, lane, open, depth, in_flight, updated_at) "
                      "VALUES (:hardware, :lane, TRUE, 0, 0, {now}) ON CONFLICT DO NOTHING")
_CLOSE = Statement("UPDATE lanes SET open = FALSE WHERE hardware = :hardware AND lane = :lane AND open")
_LOCK_LANE = Statement("SELECT open FROM lanes WHERE hardware = :hardware AND lane = :lane {for_update}")
_REOPEN = Statement("UPDATE lanes SET open = TRUE WHERE hardware = :hardware AND lane = :lane")
_LEFT = Statement(
    "SELECT 1 FROM jobs WHERE hardware = :hardware AND waiting AND deadline_at IS NULL AND id > :after "
    "AND (ticketed_until IS NULL OR ticketed_until <= {now}) "
    "UNION ALL SELECT 1 FROM jobs WHERE hardware = :hardware AND waiting AND deadline_at IS NOT NULL "
    "AND deadline_at > {now} AND id > :after AND (ticketed_until IS NULL OR ticketed_until <= {now}) LIMIT 1")


def is_open(tx: Transaction, hardware: str, lane: str, *, to_close: bool = False) -> bool:
    """Whether the API may publish; the row is held until commit, so that nobody reopens the lane meanwhile.

    `to_close`: the caller means to close an open lane, so the row is locked for that at once: two who hold it
    shared and then both want to write would deadlock.
    """
    row = tx.one(_LOCK_LANE if to_close else _OPEN, hardware=hardware, lane=lane)
    if row is None:
        tx.run(_ADD_LANE, hardware=hardware, lane=lane)
        return True
    return bool(row[0])


def close(tx: Transaction, hardware: str, lane: str) -> None:
    tx.run(_CLOSE, hardware=hardware, lane=lane)


def left(tx: Transaction, hardware: str, *, after: str = "") -> bool:
    """Whether a job without a ticket waits for this class, of those with an id above `after`.

    Under a snapshot held elsewhere the index keeps an entry for each job that waited since: those below
    `after` are passed over without a look at their rows.
    """
    return tx.one(_LEFT, hardware=hardware, after=after) is not None


def reopen(tx: Transaction, hardware: str, lane: str, *, after: str = "") -> bool:
    """Open the lane if nothing without a ticket waits in it above `after`; whether it is open now."""
    row = tx.one(_LOCK_LANE, hardware=hardware, lane=lane)
    if row is None or row[0]:
        return True
    if left(tx, hardware, after=after):
        return False
    tx.run(_REOPEN, hardware=hardware, lane=lane)
    return True


_COMPANIES = Statement(
    "SELECT j.id, i.id, i.suspects FROM jobs j JOIN incarnations i ON i.id = j.incarnation "
    "WHERE j.id {in ids} AND j.suspect AND j.crashes = 0 AND i.suspects IS NOT NULL")
_MARK = Statement("UPDATE jobs SET ticketed_until = {now} + :ms WHERE id {in ids} AND waiting")
TICKETED = (
    "SELECT id FROM jobs WHERE hardware = :hardware AND waiting AND deadline_at IS NULL "
    "AND ticketed_until IS NOT NULL UNION ALL SELECT id FROM jobs WHERE hardware = :hardware AND waiting "
    "AND deadline_at IS NOT NULL AND ticketed_until IS NOT NULL")
_CLEAR = Statement(  # ARRAY(…): see claim.give_back
    "UPDATE jobs SET ticketed_until = NULL WHERE id = ANY(ARRAY(SELECT id FROM jobs "
    f"WHERE id = ANY(ARRAY({TICKETED})) AND waiting ORDER BY id FOR UPDATE))",
    sqlite=f"UPDATE jobs SET ticketed_until = NULL WHERE id IN ({TICKETED})")
_MARKED = Statement(
    "SELECT network, count(*), sum(work), min(ticketed_until) FROM (SELECT network, work, ticketed_until "
    "FROM jobs WHERE hardware = :hardware AND waiting AND deadline_at IS NULL AND ticketed_until > {now} "
    "UNION ALL SELECT network, work, ticketed_until FROM jobs WHERE hardware = :hardware AND waiting "
    "AND deadline_at IS NOT NULL AND ticketed_until > {now}) AS marked GROUP BY network")
_OVERDUE = Statement(
    "SELECT 1 FROM jobs WHERE hardware = :hardware AND waiting AND deadline_at IS NULL "
    "AND ticketed_until > {now} AND ticketed_until <= {now} + :ms UNION ALL SELECT 1 FROM jobs "
    "WHERE hardware = :hardware AND waiting AND deadline_at IS NOT NULL AND deadline_at > {now} "
    "AND ticketed_until > {now} AND ticketed_until <= {now} + :ms LIMIT 1")

_UNDER_WAY = Statement(
    "SELECT 1 FROM jobs WHERE hardware = :hardware AND waiting AND deadline_at IS NULL "
    "AND ticketed_until > {now} + :ms UNION ALL SELECT 1 FROM jobs WHERE hardware = :hardware AND waiting "
    "AND deadline_at IS NOT NULL AND deadline_at > {now} AND ticketed_until > {now} + :ms LIMIT 1")


def companies(tx: Transaction, suspects: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Of these suspects, those that may come back in company: job to (whose, how many at most).

    Where nobody saw the holder die, mostly no input is to blame: what it ran comes back in eighths, then in
    eighths of those that were lost again, down to one. Who was there when a process died runs by itself.
    """
    return {row[0]: (row[1], max(1, row[2] // 8)) for row in tx.all(_COMPANIES, ids=suspects)}


def mark(tx: Transaction, ids: Sequence[str]) -> None:
    """These jobs are about to get a ticket: commit, then publish."""
    tx.run(_MARK, ids=ids, ms=int(TICKET_S * 1000))


def clear_marks(tx: Transaction, hardware: str) -> int:
    """Forget which jobs of a class have a ticket: repeats at most one window."""
    return tx.run(_CLEAR, hardware=hardware)


def overdue(tx: Transaction, hardware: str, age_s: float) -> bool:
    """Whether a job still waits whose ticket is believed to be under way since longer than `age_s`."""
    return tx.one(_OVERDUE, hardware=hardware, ms=int((TICKET_S - age_s) * 1000)) is not None


def under_way(tx: Transaction, hardware: str, age_s: float) -> bool:
    """Whether a job waits that was marked within `age_s`: its ticket may not have reached the broker yet."""
    return tx.one(_UNDER_WAY, hardware=hardware, ms=int((TICKET_S - age_s) * 1000)) is not None


def marked(tx: Transaction, hardware: str) -> dict[str, tuple[int, float, int]]:
    """The window: network to (jobs, work, earliest end of a mark) of those believed to have a ticket."""
    return {row[0]: (row[1], row[2], row[3]) for row in tx.all(_MARKED, hardware=hardware)}


# Two arms, since each of the partial indexes serves only its own condition.
_TALLY_WAITING = Statement(
    "SELECT hardware, network, count(*), sum(work), min(created_at) FROM ("
    "SELECT hardware, network, work, created_at FROM jobs WHERE waiting AND deadline_at IS NULL UNION ALL "
    "SELECT hardware, network, work, created_at FROM jobs WHERE waiting AND deadline_at IS NOT NULL) AS w "
    "GROUP BY hardware, network")
_TALLY_RUNNING = Statement(
    "SELECT hardware, network, count(*), sum(work) FROM jobs WHERE state = 'running' AND NOT waiting "
    "GROUP BY hardware, network")
_ROLL_UP = Statement(
    "UPDATE lanes SET depth = :depth, in_flight = :in_flight, wait_s = :wait_s, oldest_at = :oldest_at, "
    "updated_at = {now} WHERE hardware = :hardware AND lane = :lane")


@dataclass(frozen=True, slots=True)
class Tally:
    """Jobs of one network in one class. `oldest_at`: when the oldest was accepted, of those that wait."""

    hardware: str
    network: str
    count: int
    work: float
    oldest_at: int | None = None


def waiting(tx: Transaction) -> list[Tally]:
    """Everything that waits. Walks the whole backlog: about 1 us a job on SQLite."""
    return [Tally(*row) for row in tx.all(_TALLY_WAITING)]


def running(tx: Transaction) -> list[Tally]:
    return [Tally(*row) for row in tx.all(_TALLY_RUNNING)]


def roll_up(tx: Transaction, hardware: str, lane: str, *, depth: int, in_flight: int, wait_s: float | None,
            oldest_at: int | None) -> None:
    """Write down what housekeeping counted, for those who may not count for themselves."""
    tx.run(_ROLL_UP, hardware=hardware, lane=lane, depth=depth, in_flight=in_flight, wait_s=wait_s,
           oldest_at=oldest_at)


_STATES = Statement("SELECT hardware, lane, open FROM lanes")


def states(tx: Transaction) -> list[tuple[str, str, bool]]:
    """Every lane that has been used: class, lane, and whether it is open."""
    return [(row[0], row[1], bool(row[2])) for row in tx.all(_STATES)]
