"""Incarnations: lives of processes, with the lease that their jobs hang on; and duties that one leads."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from models import claim, contract, feed
from models.database import Statement, Transaction, values_of
from models.schema import Flag, Text, Time, metadata

WORKER, HOUSEKEEPING, API = "worker", "housekeeping", "api"
EXITED, KILLED, LOST = "exited", "killed", "lost"  # by itself; seen to die by its supervisor; lease ran out

incarnations = sa.Table(
    "incarnations", metadata,
    sa.Column("id", Text, primary_key=True),
    sa.Column("kind", Text, nullable=False),
    sa.Column("host", Text, nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("hardware", Text),
    sa.Column("lanes", Text),  # comma-separated
    sa.Column("ready", Flag, nullable=False),
    sa.Column("started_at", Time, nullable=False),
    sa.Column("heartbeat_at", Time, nullable=False),
    sa.Column("beats", sa.BigInteger, nullable=False),  # what the sweep watches: it needs no clock
    sa.Column("ended_at", Time),
    sa.Column("end_reason", Text),
    sa.Column("holding", Text),  # JSON: engines, buffered entries, free memory, rates
    sa.Column("suspects", sa.Integer),  # jobs that had begun when it ended without a confirmed death
    sa.Index("ix_incarnations_live", "id", sqlite_where=sa.text("ended_at IS NULL"),
             postgresql_where=sa.text("ended_at IS NULL")),
)

leases = sa.Table(
    "leases", metadata,
    sa.Column("duty", Text, primary_key=True),
    sa.Column("incarnation", Text, nullable=False),
    sa.Column("until", Time, nullable=False),
)


@dataclass(frozen=True, slots=True)
class Incarnation:
    id: str
    kind: str
    host: str
    pid: int
    hardware: str | None
    lanes: str | None
    ready: bool
    started_at: int
    heartbeat_at: int
    beats: int
    holding: Mapping[str, Any]


_BEGIN = Statement(
    "INSERT INTO incarnations (id, kind, host, pid, hardware, lanes, ready, started_at, heartbeat_at, beats, "
    "holding) VALUES (:id, :kind, :host, :pid, :hardware, :lanes, FALSE, {now}, {now}, 0, '{}') "
    "ON CONFLICT (id) DO NOTHING")
_BEAT = Statement("UPDATE incarnations SET heartbeat_at = {now}, beats = beats + 1, ready = :ready, "
                  "holding = :holding WHERE id = :id AND ended_at IS NULL")
_LIVE = Statement("SELECT id, kind, host, pid, hardware, lanes, ready, started_at, heartbeat_at, beats, "
                  "holding FROM incarnations WHERE ended_at IS NULL ORDER BY id")
_END = Statement("UPDATE incarnations SET ended_at = {now}, end_reason = :reason WHERE id = :id "
                 "AND ended_at IS NULL AND beats = COALESCE(:beats, beats) RETURNING hardware, kind")
_RELEASED = ("SELECT id FROM jobs WHERE incarnation = :id AND state = 'running' AND NOT waiting "
             f"UNION ALL {feed.TICKETED}")
_LOCK_JOBS = Statement(  # ARRAY(…): see claim.give_back
    f"SELECT id FROM jobs WHERE id = ANY(ARRAY({_RELEASED})) ORDER BY id FOR UPDATE", sqlite=_RELEASED)
_DROP_LEASES = Statement("DELETE FROM leases WHERE incarnation = :id")


def begin(tx: Transaction, incarnation: str, *, kind: str, host: str, pid: int, hardware: str | None = None,
          lanes: str | None = None) -> None:
    """Register this process. A second registration under the same id changes nothing."""
    tx.run(_BEGIN, id=incarnation, kind=kind, host=host, pid=pid, hardware=hardware, lanes=lanes)


def beat(tx: Transaction, incarnation: str, *, ready: bool, holding: Mapping[str, Any]) -> bool:
    """Renew the lease. False: it was ended by somebody, so this process holds nothing any more."""
    return tx.run(_BEAT, id=incarnation, ready=ready, holding=json.dumps(holding)) == 1


def live(tx: Transaction) -> list[Incarnation]:
    return [Incarnation(*(*row[:6], bool(row[6]), *row[7:10], json.loads(row[10] or "{}")))
            for row in tx.all(_LIVE)]


def end(tx: Transaction, incarnation: str, reason: str, *, max_attempts: int,
        beats: int | None = None) -> list[str] | None:
    """End a life and release what it held; the jobs parked thereby, or None if it had ended before.

    Only a supervisor that has an exit status may say `killed`, only the sweep's leader `lost`; it gives the
    `beats` that it saw stand still, and one beat more in the last moment makes this return None too.
    """
    row = tx.one(_END, id=incarnation, reason=reason, beats=beats)
    if row is None:
        return None
    # What it held and what had a ticket, locked in one go: one after the other, each in its order, they would
    # deadlock with a claim. What is marked from now on was not in its buffer.
    jobs = [] if row[0] is None else values_of(tx.all(_LOCK_JOBS, id=incarnation, hardware=row[0]))
    parked = claim.release(tx, incarnation, confirmed=reason == KILLED, max_attempts=max_attempts)
    tx.run(_DROP_LEASES, id=incarnation)
    if row[0] is not None:
        claim.unmark(tx, jobs)
        if feed.left(tx, row[0]):  # else new arrivals would slip past what came back
            feed.close(tx, row[0], contract.INTERACTIVE)
    if row[1] == HOUSEKEEPING and reason != EXITED:
        _forget_unsent(tx)
    return parked


def _forget_unsent(tx: Transaction) -> None:
    """A feeder marks, commits and then publishes: what it marked last may never have been sent."""
    for hardware in sorted({name for name, lane, _ in feed.states(tx) if lane == contract.INTERACTIVE}):
        feed.clear_marks(tx, hardware)
        if feed.left(tx, hardware):
            feed.close(tx, hardware, contract.INTERACTIVE)


# Jobs that a worker claimed in the moment it was declared lost: its `end` did not see them.
_ABANDONED = Statement(
    "SELECT DISTINCT i.id FROM incarnations i JOIN jobs j ON j.incarnation = i.id "
    "WHERE i.ended_at IS NOT NULL AND j.state = 'running' AND NOT j.waiting")
_CLASSES = Statement("SELECT DISTINCT hardware FROM incarnations WHERE id {in ids} AND hardware IS NOT NULL "
                     "ORDER BY hardware")
_FORGET = Statement(
    "DELETE FROM incarnations WHERE ended_at < {now} - :ms AND NOT EXISTS "
    "(SELECT 1 FROM jobs j WHERE j.incarnation = incarnations.id AND j.state = 'running')")


def abandoned(tx: Transaction) -> list[str]:
    """Ended incarnations that still hold jobs: `claim.release` them."""
    return [row[0] for row in tx.all(_ABANDONED)]


def classes(tx: Transaction, ids: Sequence[str]) -> list[str]:
    """The hardware classes that these lives were of."""
    return [row[0] for row in tx.all(_CLASSES, ids=ids)]


def forget(tx: Transaction, age_s: float) -> int:
    """Delete those that ended that long ago; how many."""
    return tx.run(_FORGET, ms=int(age_s * 1000))


_TAKE = Statement(
    "INSERT INTO leases (duty, incarnation, until) VALUES (:duty, :incarnation, {now} + :ms) "
    "ON CONFLICT (duty) DO UPDATE SET incarnation = excluded.incarnation, until = excluded.until "
    "WHERE leases.incarnation = excluded.incarnation OR leases.until < {now} OR NOT EXISTS "
    "(SELECT 1 FROM incarnations i WHERE i.id = leases.incarnation AND i.ended_at IS NULL) RETURNING duty")
_DROP_LEASE = Statement("DELETE FROM leases WHERE duty = :duty AND incarnation = :incarnation")


def lead(tx: Transaction, duty: str, incarnation: str, lease_s: float) -> bool:
    """Take or renew the lead of a duty; whether this incarnation has it."""
    return tx.one(_TAKE, duty=duty, incarnation=incarnation, ms=int(lease_s * 1000)) is not None


_TAKEN = Statement(
    "SELECT l.duty FROM leases l WHERE l.duty {in duties} AND l.incarnation <> :incarnation "
    "AND l.until >= {now} AND EXISTS "
    "(SELECT 1 FROM incarnations i WHERE i.id = l.incarnation AND i.ended_at IS NULL)")


def free_duties(tx: Transaction, duties: Sequence[str], incarnation: str) -> list[str]:
    """Which of these duties nobody else leads, so that `lead` may succeed."""
    taken = {row[0] for row in tx.all(_TAKEN, duties=duties, incarnation=incarnation)} if duties else set()
    return [duty for duty in duties if duty not in taken]


def resign(tx: Transaction, duty: str, incarnation: str) -> None:
    tx.run(_DROP_LEASE, duty=duty, incarnation=incarnation)
