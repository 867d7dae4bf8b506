"""The worker's side of a job: claim, begin, settle, give back, and what an ended incarnation leaves.

Every write is conditional on `running, not waiting, incarnation = mine, attempt = mine`: a worker that lost
its lease writes nothing. On PostgreSQL every write locks its rows in id order first, so that none deadlock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from models import event
from models.database import SQLITE, Row, Statement, Transaction
from models.job import FAILED, SUCCEEDED
from models.result import results


@dataclass(frozen=True, slots=True)
class Claimed:
    """A job that this incarnation now holds, with its input."""

    id: str
    attempt: int
    tenant: str
    network: str
    work: float
    priority: int
    deadline_at: int | None
    listened: bool  # it has a webhook of its own
    input: bytes | None
    input_blob: str | None
    created_at: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one attempt of one job ended. `state` is succeeded or failed."""

    id: str
    attempt: int
    state: str
    output: bytes | None = None
    output_blob: str | None = None
    error_code: str | None = None
    error_message: str | None = None
    run_ms: float | None = None
    batch_size: int | None = None


# A life that was ended may not claim: what it took would have no lease. (Here, since its next beat may be a
# second away; the sweep releases what slips through between this look and the end.)
_CLAIMABLE = (
    "waiting AND (NOT suspect OR :alone) AND (deadline_at IS NULL OR deadline_at > {now}) AND NOT EXISTS "
    "(SELECT 1 FROM incarnations i WHERE i.id = :incarnation AND i.ended_at IS NOT NULL)")
_SET_CLAIMED = ("state = 'running', waiting = FALSE, ticketed_until = NULL, incarnation = :incarnation, "
                "hardware = :hardware, attempt = attempt + 1, begun = :begun, started_at = {now}")
# Plain FOR UPDATE in id order: beside a writer, SKIP LOCKED returned 32 of 64, and the other 32 would have
# been acknowledged as unclaimable (measured).
_CLAIM = Statement(
    f"""WITH locked AS (SELECT id FROM jobs WHERE id {{in ids}} AND {_CLAIMABLE} ORDER BY id FOR UPDATE),
    claimed AS (UPDATE jobs j SET {_SET_CLAIMED} FROM locked WHERE j.id = locked.id RETURNING j.id, j.attempt,
        j.tenant, j.network, j.work, j.priority, j.deadline_at, j.webhook IS NOT NULL AS listened,
        j.created_at)
    SELECT c.id, c.attempt, c.tenant, c.network, c.work, c.priority, c.deadline_at, c.listened, i.body,
        i.blob, c.created_at FROM claimed c JOIN inputs i ON i.job_id = c.id""",
    sqlite=f"UPDATE jobs SET {_SET_CLAIMED} WHERE id {{in ids}}")
# SQLite's writer is alone from BEGIN IMMEDIATE on, so it may look first. All of a batch comes in one row: the
# driver lets go of the interpreter's lock at each row, and a busy thread then keeps it for up to 5 ms.
_LOOK = Statement(
    "SELECT json_group_array(json_array(j.id, j.attempt + 1, j.tenant, j.network, j.work, j.priority, "
    "j.deadline_at, j.webhook IS NOT NULL, CAST(i.body AS TEXT), i.blob, j.created_at)) "
    f"FROM jobs j JOIN inputs i ON i.job_id = j.id WHERE j.id {{in ids}} AND {_CLAIMABLE}")


def claim(tx: Transaction, ids: Sequence[str], *, incarnation: str, hardware: str, begun: bool,
          alone: bool = False) -> list[Claimed]:
    """Turn the jobs of `ids` that wait into running ones of this incarnation; run only what comes back.

    `begun`: the device is idle, so the run starts at once. `alone`: suspects may be taken, since nothing else
    is held.
    """
    if tx.dialect != SQLITE:
        rows = tx.all(_CLAIM, ids=ids, incarnation=incarnation, hardware=hardware, begun=begun, alone=alone)
        return [Claimed(*row) for row in rows]
    looked = msgspec.json.decode(tx.all(_LOOK, ids=ids, incarnation=incarnation, alone=alone)[0][0])
    if looked:
        tx.run(_CLAIM, ids=[row[0] for row in looked], incarnation=incarnation, hardware=hardware,
               begun=begun)
    return [Claimed(*(*row[:7], bool(row[7]), None if row[8] is None else row[8].encode(), *row[9:]))
            for row in looked]


_FENCE = "state = 'running' AND NOT waiting AND incarnation = :incarnation"
_BEGIN = Statement(f"UPDATE jobs SET begun = TRUE WHERE id {{in ids}} AND {_FENCE}")
_WANTED = Statement(f"SELECT id FROM jobs WHERE id {{in ids}} AND {_FENCE} "
                    "AND (deadline_at IS NULL OR deadline_at > {now})")
_LOCK_ALL = Statement("SELECT count(*) FROM "
                      "(SELECT 1 FROM jobs WHERE id {in ids} ORDER BY id {for_update}) AS j")
# Both look first, with the rows locked, and then write alike what ended alike, mostly all of it. (One UPDATE
# joined to the outcomes took PostgreSQL 0.6 ms a job at 1,024, since it may walk them all for each row.)
_STILL_HELD = Statement(
    "SELECT id, attempt, deadline_at IS NOT NULL AND deadline_at <= {now}, webhook IS NOT NULL, {now} "
    "FROM jobs WHERE id {in ids} AND state = 'running' AND NOT waiting AND incarnation = :incarnation "
    "ORDER BY id {for_update}",
    # In one row: see _LOOK. The unary plus keeps it from walking all the incarnation's running jobs.
    sqlite="SELECT json_group_array(json_array(id, attempt, "
    "deadline_at IS NOT NULL AND deadline_at <= {now}, webhook IS NOT NULL, {now})) FROM jobs "
    "WHERE id {in ids} AND +state = 'running' AND NOT waiting AND +incarnation = :incarnation")
_SETTLE = Statement(
    "UPDATE jobs SET state = :state, finished_at = :now, error_code = :code, error_message = :message, "
    "run_ms = :run_ms, batch_size = :size WHERE id {in ids}")


def _settle(tx: Transaction, outcomes: Sequence[Outcome], incarnation: str) -> list[Row]:
    """(id, state, whether it has a webhook of its own, time) of each job that was still held."""
    rows = tx.all(_STILL_HELD, ids=[o.id for o in outcomes], incarnation=incarnation)
    if tx.dialect == SQLITE:
        rows = msgspec.json.decode(rows[0][0])
    held = {(row[0], row[1]): row for row in rows}
    now = max((row[4] for row in rows), default=0)
    alike: dict[Row, list[str]] = {}
    out: list[Row] = []
    for o in outcomes:
        row = held.get((o.id, o.attempt))
        if row is not None:
            state = "expired" if row[2] else o.state
            ending = (state, o.error_code, o.error_message, o.run_ms, o.batch_size)
            alike.setdefault(ending, []).append(o.id)
            out.append((o.id, state, bool(row[3]), now))
    for (state, code, message, run_ms, size), ids in alike.items():
        tx.run(_SETTLE, ids=ids, state=state, now=now, code=code, message=message, run_ms=run_ms,
               size=size)
    return out


def wanted(tx: Transaction, ids: Sequence[str], *, incarnation: str) -> set[str]:
    """Which of these an incarnation still holds, neither canceled nor past their deadline."""
    return {row[0] for row in tx.all(_WANTED, ids=ids, incarnation=incarnation)}


class Settled(dict[str, str]):
    """The state of each job that was still held, by id. `events`: how many were written."""

    events = 0


def lock(tx: Transaction, ids: Sequence[str]) -> None:
    """Lock these rows in id order, before a transaction that writes them in several steps."""
    if tx.dialect != SQLITE:
        tx.one(_LOCK_ALL, ids=ids)


def settle(tx: Transaction, outcomes: Sequence[Outcome], *, incarnation: str,
           begin: Sequence[str] = (), unrun: Sequence[str] = ()) -> Settled:
    """Record how these attempts ended, with results and events; the state of each job that was still held.

    A job past its deadline ends as expired. `begin`: jobs of the next batch, whose run has started since.
    `unrun`: jobs to give back in the same transaction.
    """
    if begin or unrun:
        lock(tx, [*begin, *unrun, *(o.id for o in outcomes)])
    rows = _settle(tx, outcomes, incarnation)
    settled = {row[0]: row for row in rows}
    tx.insert_rows(results, ("job_id", "attempt", "body", "blob", "removed", "created_at"), [
        (o.id, o.attempt, o.output, o.output_blob, False, settled[o.id][3])
        for o in outcomes if o.id in settled and settled[o.id][1] == SUCCEEDED])
    everybody = event.any_endpoint(tx)
    out = Settled((job_id, row[1]) for job_id, row in settled.items())
    out.events = _tell(tx, {job_id: row[1] for job_id, row in settled.items() if everybody or row[2]})
    if begin:
        tx.run(_BEGIN, ids=begin, incarnation=incarnation)
    if unrun:
        give_back(tx, unrun, incarnation=incarnation)
    return out


def _tell(tx: Transaction, states: Mapping[str, str]) -> int:
    return sum(event.record(tx, [job_id for job_id, s in states.items() if s == state], state)
               for state in set(states.values()))


_SET_GIVEN_BACK = ("state = 'queued', waiting = TRUE, begun = FALSE, incarnation = NULL, "
                   "ticketed_until = NULL, started_at = NULL")
# ARRAY(…): found and locked once. Under IN (…) PostgreSQL may find and lock all of them again for each row
# (measured: 2,000 rows took over 30 s).
_GIVE_BACK = Statement(
    f"UPDATE jobs SET {_SET_GIVEN_BACK} WHERE id = ANY(ARRAY("
    f"SELECT id FROM jobs WHERE id {{in ids}} AND {_FENCE} ORDER BY id FOR UPDATE))",
    sqlite=f"UPDATE jobs SET {_SET_GIVEN_BACK} WHERE id {{in ids}} AND {_FENCE}")
_UNMARK = Statement(
    "UPDATE jobs SET ticketed_until = NULL WHERE id = ANY(ARRAY("
    "SELECT id FROM jobs WHERE id {in ids} AND waiting ORDER BY id FOR UPDATE))",
    sqlite="UPDATE jobs SET ticketed_until = NULL WHERE id {in ids} AND waiting")


def give_back(tx: Transaction, ids: Sequence[str], *, incarnation: str) -> int:
    """Queue held jobs again, unrun; nothing is counted against them. How many were still held."""
    return tx.run(_GIVE_BACK, ids=ids, incarnation=incarnation)


def unmark(tx: Transaction, ids: Sequence[str]) -> int:
    """Clear the ticket marks of jobs whose ticket this process gives up without claiming."""
    return tx.run(_UNMARK, ids=ids)


UNCONFIRMED = 10  # many, since a lease that runs out is mostly not the job's fault

_RUNS = Statement("SELECT 1 FROM jobs WHERE incarnation = :incarnation AND state = 'running' AND NOT waiting "
                  "AND begun LIMIT 1")


def runs(tx: Transaction, incarnation: str) -> bool:
    """Whether an incarnation holds a job that has begun."""
    return tx.one(_RUNS, incarnation=incarnation) is not None


_HELD = Statement("SELECT id, begun, attempt FROM jobs WHERE incarnation = :incarnation "
                  "AND state = 'running' AND NOT waiting ORDER BY id {for_update}")
_RELEASE = Statement(
    "UPDATE jobs SET waiting = TRUE, ticketed_until = NULL, begun = FALSE, suspect = suspect OR :suspect, "
    "crashes = crashes + :crashed, crashes_alone = crashes_alone + :alone WHERE id {in ids}")
_EXHAUSTED = Statement(
    "UPDATE jobs SET state = 'failed', waiting = FALSE, finished_at = {now}, "
    "error_code = 'crashes_exhausted', "
    "error_message = 'its worker was lost each time it ran, the last times while it ran alone' "
    "WHERE id {in ids} AND crashes_alone >= :limit RETURNING id")
_LEAVE = Statement("UPDATE incarnations SET suspects = COALESCE(suspects, 0) + :count "
                   "WHERE id = :incarnation")


def release(tx: Transaction, incarnation: str, *, confirmed: bool, max_attempts: int) -> list[str]:
    """What an ended incarnation held may be claimed again; the jobs that were parked instead.

    Jobs that had begun become suspects. Only a confirmed death counts as a crash of theirs, and only of a
    job that was all its worker held counts towards `max_attempts`: what was claimed beside it may have been
    in the decoder. Without a confirmed death their number is kept, see `feed.companies`.

    Where nobody confirms any death (no supervisor), a job that is alone with a lost worker once more is
    parked after UNCONFIRMED times as many attempts: it would never end, and take a worker along each time.
    """
    held = tx.all(_HELD, incarnation=incarnation)
    begun = [row[0] for row in held if row[1]]
    unbegun = [row[0] for row in held if not row[1]]
    parked: list[str] = []
    if unbegun:
        tx.run(_RELEASE, ids=unbegun, suspect=False, crashed=0, alone=0)
    if begun:
        tx.run(_RELEASE, ids=begun, suspect=True, crashed=int(confirmed),
               alone=int(confirmed and len(held) == 1))
        if not confirmed:
            tx.run(_LEAVE, incarnation=incarnation, count=len(begun))
    if len(begun) == 1:
        worn = not confirmed and len(held) == 1 and held[0][2] >= UNCONFIRMED * max_attempts
        parked = [row[0] for row in tx.all(_EXHAUSTED, ids=begun, limit=0 if worn else max_attempts)]
        event.record(tx, parked, FAILED)
    return parked
