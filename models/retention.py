"""Retention: which rows have outlived their use, found and deleted a batch at a time, the oldest first.

Ids sort by time, so the primary keys lead from the oldest row on. Nothing that may still change is touched:
live jobs, events that nobody fanned out, deliveries that are still tried.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from models import ids
from models.database import Statement, Transaction

# A job remembers this many times as long as its result that it had one; then it goes too.
JOB_KEEP = 4
# An id's time is its maker's clock. One that runs ahead only makes its rows wait that much longer.


@dataclass(frozen=True, slots=True)
class Walk:
    """One kind of rows, kept for `keep` times RESULT_TTL_S.

    `find` reads the next ids; `remove(tx, ids, ttl_ms)` deletes those of them that have ended: how many.
    Their blobs are collected later (`models/blobs.py`), so that nobody is still reading one.
    """

    kind: str
    keep: int
    prefix: str
    find: Statement
    remove: Callable[[Transaction, Sequence[str], int], int]


def find(tx: Transaction, walk: Walk, after: str, ttl_ms: int, limit: int) -> list[str]:
    """The next ids after `after` whose makers' clock says that they may be old enough."""
    now = int(tx.all(_CLOCK)[0][0])
    below = ids.lowest(walk.prefix, now - walk.keep * ttl_ms)
    return [row[0] for row in tx.all(walk.find, after=after, below=below, limit=limit)]


_CLOCK = Statement("SELECT {now}")
_OVER = "state IN ('succeeded','failed','canceled','expired') AND finished_at < {now} - :ttl_ms"
# Locked, so that none is retried meanwhile. An event is made from its job and result when it is fanned out.
_ENDED = Statement(
    f"SELECT id FROM jobs WHERE id {{in ids}} AND {_OVER} AND NOT EXISTS "
    "(SELECT 1 FROM events e WHERE e.subject = jobs.id AND e.fanned_at IS NULL) "
    "ORDER BY id {for_update} {skip_locked}")
_INPUTS = Statement("DELETE FROM inputs WHERE job_id {in ids}")
_RESULTS = Statement("DELETE FROM results WHERE job_id {in ids}")
_JOBS = Statement("DELETE FROM jobs WHERE id {in ids}")


def _remove_data(tx: Transaction, found: Sequence[str], ttl_ms: int) -> int:
    ended = [row[0] for row in tx.all(_ENDED, ids=found, ttl_ms=ttl_ms)]
    _drop_data(tx, ended)
    return len(ended)


def _remove_jobs(tx: Transaction, found: Sequence[str], ttl_ms: int) -> int:
    ended = [row[0] for row in tx.all(_ENDED, ids=found, ttl_ms=JOB_KEEP * ttl_ms)]
    _drop_data(tx, ended)
    if ended:
        tx.run(_JOBS, ids=ended)
    return len(ended)


def _drop_data(tx: Transaction, ended: Sequence[str]) -> None:
    if ended:
        tx.run(_INPUTS, ids=ended)
        tx.run(_RESULTS, ids=ended)


# The state is asked again by the DELETE itself: one that is being redelivered stays, and its event with it.
_DELIVERIES = Statement("DELETE FROM deliveries WHERE event_id {in ids} AND state <> 'pending' "
                        "AND finished_at < {now} - :ttl_ms RETURNING id")
_ATTEMPTS = Statement("DELETE FROM delivery_attempts WHERE delivery_id {in ids}")
_EVENTS = Statement("DELETE FROM events WHERE id {in ids} AND fanned_at < {now} - :ttl_ms AND NOT EXISTS "
                    "(SELECT 1 FROM deliveries d WHERE d.event_id = events.id)")


def _remove_events(tx: Transaction, found: Sequence[str], ttl_ms: int) -> int:
    sent = [row[0] for row in tx.all(_DELIVERIES, ids=found, ttl_ms=ttl_ms)]
    if sent:
        tx.run(_ATTEMPTS, ids=sent)
    return tx.run(_EVENTS, ids=found, ttl_ms=ttl_ms)


def _next(table: str, key: str) -> Statement:
    return Statement(f"SELECT {key} FROM {table} WHERE {key} > :after AND {key} < :below "
                     f"ORDER BY {key} LIMIT :limit")


# Inputs lead to results too: every job has an input, until here.
WALKS = (
    Walk("results", 1, ids.JOB, _next("inputs", "job_id"), _remove_data),
    Walk("events", 1, ids.EVENT, _next("events", "id"), _remove_events),
    Walk("jobs", JOB_KEEP, ids.JOB, _next("jobs", "id"), _remove_jobs),
)
