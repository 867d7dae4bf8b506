"""Which waiting jobs get a ticket next: marks, lanes, and the feeder's pick.

A lane is open while no job without a ticket waits in it: only then may the API publish by itself. The API closes it
with the first row it leaves behind, only the feeder opens it again.
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
    """A waiting job as the feeder sees it."""

    entry: Entry
    network: str
    suspect: bool


_OPEN = Statement("SELECT open FROM lanes WHERE hardware = :hardware AND lane = :lane {for_share}")
_ADD_LANE = Statement("INSERT INTO lanes (hardware, lane, open, depth, in_flight, updated_at) "
                      "VALUES (:hardware, :lane, TRUE, 0, 0, {now}) ON CONFLICT DO NOTHING")
_CLOSE = Statement("UPDATE lanes SET open = FALSE WHERE hardware = :hardware AND lane = :lane AND open")
_LOCK_LANE = Statement("SELECT open FROM lanes WHERE hardware = :hardware AND lane = :lane {for_update}")
_REOPEN = Statement("UPDATE lanes SET open = TRUE WHERE hardware = :hardware AND lane = :lane")
_LEFT = Statement(
    "SELECT 1 FROM jobs WHERE hardware = :hardware AND waiting AND deadline_at IS NULL "
    "AND (ticketed_until IS NULL OR ticketed_until <= {now}) "
    "UNION ALL SELECT 1 FROM jobs WHERE hardware = :hardware AND waiting AND deadline_at IS NOT NULL "
    "AND (ticketed_until IS NULL OR ticketed_until <= {now}) LIMIT 1")


def is_open(tx: Transaction, hardware: str, lane: str, *, to_close: bool = False) -> bool:
    """Whether the API may publish; the lane's row is held until commit, so that it can't be reopened meanwhile.

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


def reopen(tx: Transaction, hardware: str, lane: str) -> bool:
    """Open the lane if nothing without a ticket waits in it; whether it is open now."""
    row = tx.one(_LOCK_LANE, hardware=hardware, lane=lane)
    if row is None or row[0]:
        return True
    if tx.one(_LEFT, hardware=hardware) is not None:
        return False
    tx.run(_REOPEN, hardware=hardware, lane=lane)
    return True


_PICK_FIELDS = "id, work, priority, deadline_at, tenant, network, suspect"
_PICKABLE = "hardware = :hardware AND waiting AND (ticketed_until IS NULL OR ticketed_until <= {now})"
_PICK_DEADLINE = Statement(
    f"SELECT {_PICK_FIELDS} FROM jobs WHERE {_PICKABLE} AND deadline_at IS NOT NULL AND deadline_at > {{now}} "
    "AND priority = :priority ORDER BY deadline_at, id LIMIT :limit {for_update} {skip_locked}")
_PICK = Statement(
    f"SELECT {_PICK_FIELDS} FROM jobs WHERE {_PICKABLE} AND deadline_at IS NULL "
    "AND priority = :priority AND id > :after ORDER BY id LIMIT :limit {for_update} {skip_locked}")
_MARK = Statement("UPDATE jobs SET ticketed_until = {now} + :ms WHERE id {in ids} AND waiting")
_CLEAR = Statement("UPDATE jobs SET ticketed_until = NULL WHERE hardware = :hardware AND waiting "
                   "AND ticketed_until IS NOT NULL")
_MARKED = Statement("SELECT network, count(*), sum(work), min(ticketed_until) FROM jobs WHERE hardware = :hardware "
                    "AND waiting AND ticketed_until > {now} GROUP BY network")


def _row(row: tuple[object, ...]) -> Waiting:
    return Waiting(Entry(*row[:5]), str(row[5]), bool(row[6]))  # type: ignore[arg-type]


def pick(tx: Transaction, hardware: str, priority: int, *, limit: int, after: str = "") -> list[Waiting]:
    """Jobs of one priority without a ticket: those with a deadline first, the earliest first; then by age.

    `after`: a low-water cursor, an id below which nothing of this priority waits without a ticket, so that the
    index's dead entries aren't walked again.
    """
    rows = tx.all(_PICK_DEADLINE, hardware=hardware, priority=priority, limit=limit)
    if len(rows) < limit:
        rows += tx.all(_PICK, hardware=hardware, priority=priority, limit=limit - len(rows), after=after)
    return [_row(row) for row in rows]


def mark(tx: Transaction, ids: Sequence[str]) -> None:
    """These jobs are about to get a ticket: commit, then publish."""
    tx.run(_MARK, ids=ids, ms=int(TICKET_S * 1000))


def clear_marks(tx: Transaction, hardware: str) -> int:
    """Forget which jobs of a class have a ticket: repeats at most one window."""
    return tx.run(_CLEAR, hardware=hardware)


def marked(tx: Transaction, hardware: str) -> dict[str, tuple[int, float, int]]:
    """The window: network to (jobs, work, earliest end of a mark) of those believed to have a ticket."""
    return {row[0]: (row[1], row[2], row[3]) for row in tx.all(_MARKED, hardware=hardware)}


_WAITS = Statement("SELECT hardware, lane, wait_s FROM lanes")
_BATCHES = Statement("SELECT network, hardware, batch_items, batch_work FROM rates")


def waits(tx: Transaction) -> list[tuple[str, str, float | None]]:
    """Class, lane, and the estimated wait of a job that arrives now."""
    return tx.all(_WAITS)  # type: ignore[return-value]


def batches(tx: Transaction) -> dict[tuple[str, str], tuple[int, float]]:
    """(network, class) to the items and the work of one batch, as its workers learned them."""
    return {(row[0], row[1]): (row[2], row[3]) for row in tx.all(_BATCHES)}
