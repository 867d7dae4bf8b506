"""Jobs: the table, the states, and the transitions that a client or housekeeping asks for.

    queued ──claim──► running ──settle──► succeeded | failed
      │  ▲               │ └──give back──► queued
      │  └────retry──── failed
      └──cancel, expire──┴──────────────► canceled | expired

The worker's side (claim, settle, give back, what a death leaves) is in `models/claim.py`; which jobs get a
ticket next is in `models/feed.py`. Nothing else writes a state. A job whose worker died stays `running` but
`waiting` until the next claim takes it over.
"""

import json
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from models import event
from models.database import Row, Statement, Transaction
from models.errors import ResultExpired
from models.schema import Bytes, Flag, Text, Time, metadata

QUEUED, RUNNING, SUCCEEDED, FAILED, CANCELED, EXPIRED = (
    "queued", "running", "succeeded", "failed", "canceled", "expired")
STATES = (QUEUED, RUNNING, SUCCEEDED, FAILED, CANCELED, EXPIRED)
TERMINAL = frozenset({SUCCEEDED, FAILED, CANCELED, EXPIRED})
FAILURES = ("input_invalid", "inference_failed", "output_not_finite", "crashes_exhausted", "out_of_memory",
            "engine_unavailable", "provider_failed")

# Narrow and often updated; what is written once lives in `inputs` and `results`. No foreign keys: hot path.
jobs = sa.Table(
    "jobs", metadata,
    sa.Column("id", Text, primary_key=True),
    sa.Column("tenant", Text, nullable=False),
    sa.Column("network", Text, nullable=False),  # name@version
    sa.Column("hardware", Text, nullable=False),  # the class it waits for, and in the end ran on
    sa.Column("state", Text, nullable=False),
    sa.Column("waiting", Flag, nullable=False),  # may be claimed: queued, or its holder has ended
    sa.Column("suspect", Flag, nullable=False),  # was running when its worker died: only ever claimed alone
    sa.Column("begun", Flag, nullable=False),  # handed to the device, as far as the database knows
    sa.Column("priority", sa.SmallInteger, nullable=False),
    sa.Column("work", sa.Float, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),  # raised by each claim; with the incarnation, the fence
    sa.Column("crashes", sa.Integer, nullable=False),
    sa.Column("crashes_alone", sa.Integer, nullable=False),
    sa.Column("incarnation", Text),
    sa.Column("ticketed_until", Time),  # a ticket for it is believed to be under way until then
    sa.Column("created_at", Time, nullable=False),
    sa.Column("started_at", Time),
    sa.Column("finished_at", Time),
    sa.Column("deadline_at", Time),
    sa.Column("allowed", Text),  # JSON list of classes, where the client restricted them
    sa.Column("variant", Text),
    sa.Column("run_ms", sa.Float),
    sa.Column("batch_size", sa.Integer),
    sa.Column("error_code", Text),
    sa.Column("error_message", Text),
    sa.Column("metadata", Bytes),  # JSON
    sa.Column("webhook", Bytes),  # JSON {url, events}
    sa.CheckConstraint("state IN ('queued','running','succeeded','failed','canceled','expired')",
                       name="state"),
    sa.CheckConstraint("priority BETWEEN 0 AND 9", name="priority"),
    sa.CheckConstraint("NOT waiting OR state IN ('queued','running')", name="waiting"),
    sa.CheckConstraint("state <> 'queued' OR waiting", name="queued"),
    sa.Index("ix_jobs_tenant_id", "tenant", "id"),
    sa.Index("ix_jobs_waiting", "hardware", "priority", "id",
             sqlite_where=sa.text("waiting AND deadline_at IS NULL"),
             postgresql_where=sa.text("waiting AND deadline_at IS NULL")),
    sa.Index("ix_jobs_waiting_deadline", "hardware", "priority", "deadline_at", "id",
             sqlite_where=sa.text("waiting AND deadline_at IS NOT NULL"),
             postgresql_where=sa.text("waiting AND deadline_at IS NOT NULL")),
    # The pick's: by tenant within a priority. The two above are the pick's of release 0.1, and go after 0.2.
    sa.Index("ix_jobs_turn", "hardware", "priority", "tenant", "id",
             sqlite_where=sa.text("waiting AND deadline_at IS NULL"),
             postgresql_where=sa.text("waiting AND deadline_at IS NULL")),
    sa.Index("ix_jobs_turn_deadline", "hardware", "priority", "tenant", "deadline_at", "id",
             sqlite_where=sa.text("waiting AND deadline_at IS NOT NULL"),
             postgresql_where=sa.text("waiting AND deadline_at IS NOT NULL")),
    sa.Index("ix_jobs_running", "incarnation", sqlite_where=sa.text("state = 'running'"),
             postgresql_where=sa.text("state = 'running'")),
    sa.Index("ix_jobs_deadline", "deadline_at",
             sqlite_where=sa.text("deadline_at IS NOT NULL AND state IN ('queued','running')"),
             postgresql_where=sa.text("deadline_at IS NOT NULL AND state IN ('queued','running')")),
    sqlite_with_rowid=False,
)

inputs = sa.Table(
    "inputs", metadata,
    sa.Column("job_id", Text, primary_key=True),
    sa.Column("body", Bytes),  # checked UTF-8 JSON, as sent
    sa.Column("blob", Text),  # blob name, where it is over the inline limit
    sa.CheckConstraint("body IS NOT NULL OR blob IS NOT NULL", name="somewhere"),
    # So that the collection of blobs need not walk every row.
    sa.Index("ix_inputs_blob", "blob", sqlite_where=sa.text("blob IS NOT NULL"),
             postgresql_where=sa.text("blob IS NOT NULL")),
)


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job that is ready to be stored. `ticketed`: its ticket is going to be published after the commit.

    `wait_s`: the estimated wait of its lane when it was admitted; `cost_s`: what it adds to it, in seconds of
    one worker's time.
    """

    id: str
    tenant: str
    network: str
    hardware: str
    work: float
    input: bytes | None
    input_blob: str | None = None
    priority: int = 5
    deadline_s: float | None = None
    allowed: tuple[str, ...] | None = None
    metadata: bytes | None = None
    webhook: bytes | None = None
    ticketed: bool = False
    wait_s: float | None = None
    cost_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Job:
    """One row of `jobs` with its result, times in ms since the epoch."""

    id: str
    tenant: str
    network: str
    hardware: str
    state: str
    attempt: int
    crashes: int
    priority: int
    work: float
    created_at: int
    started_at: int | None
    finished_at: int | None
    deadline_at: int | None
    variant: str | None
    run_ms: float | None
    batch_size: int | None
    error_code: str | None
    error_message: str | None
    metadata: bytes | None
    webhook: bytes | None
    output: bytes | None = None
    output_blob: str | None = None
    result_removed: bool = False

    @property
    def terminal(self) -> bool:
        return self.state in TERMINAL


TICKET_S = 30.0  # how long a ticket is believed in; a lost one is noticed sooner by the sweep

_COLUMNS = ("j.id, j.tenant, j.network, j.hardware, j.state, j.attempt, j.crashes, j.priority, j.work, "
            "j.created_at, j.started_at, j.finished_at, j.deadline_at, j.variant, j.run_ms, j.batch_size, "
            "j.error_code, j.error_message, j.metadata, j.webhook")
# What succeeded has a result until its retention ends (`models/retention.py`).
_REMOVED = "j.state = 'succeeded' AND r.job_id IS NULL"


_NEW = ("id", "tenant", "network", "hardware", "state", "waiting", "suspect", "begun", "priority", "work",
        "attempt", "crashes", "crashes_alone", "ticketed_until", "created_at", "deadline_at", "allowed",
        "metadata", "webhook")


def accept(tx: Transaction, new: Sequence[NewJob], now: int, *, ticketed: Container[str] = ()) -> None:
    """Store jobs as queued. `now`: the database's clock in this transaction.

    `ticketed`: ids whose ticket is going to be published after the commit, besides those that say so.
    """
    until = now + int(TICKET_S * 1000)
    tx.insert_rows(jobs, _NEW, [(
        job.id, job.tenant, job.network, job.hardware, QUEUED, True, False, False, job.priority, job.work,
        0, 0, 0, until if job.ticketed or job.id in ticketed else None, now,
        None if job.deadline_s is None else now + int(job.deadline_s * 1000),
        None if job.allowed is None else json.dumps(job.allowed), job.metadata, job.webhook,
    ) for job in new])
    tx.insert_rows(inputs, ("job_id", "body", "blob"), [(job.id, job.input, job.input_blob) for job in new])


_GET = Statement(
    f"SELECT {_COLUMNS}, r.body, r.blob, {_REMOVED} FROM jobs j LEFT JOIN results r ON r.job_id = j.id "
    "WHERE j.id = :id AND j.tenant = :tenant")
_SEVERAL = Statement(
    f"SELECT {_COLUMNS}, CASE WHEN length(r.body) <= :limit THEN r.body END, r.blob, {_REMOVED} "
    "FROM jobs j LEFT JOIN results r ON r.job_id = j.id WHERE j.id {in ids}")
_STATES = Statement("SELECT id, state FROM jobs WHERE id {in ids}")


def from_row(row: Row) -> Job:
    return Job(*(*row[:22], bool(row[22]))) if len(row) > 20 else Job(*row)


def get(tx: Transaction, tenant: str, job_id: str) -> Job | None:
    row = tx.one(_GET, id=job_id, tenant=tenant)
    return None if row is None else from_row(row)


def several(tx: Transaction, ids: Sequence[str], *, max_output_bytes: int) -> dict[str, Job]:
    """The jobs of these ids that exist, whoever owns them, without outputs larger than `max_output_bytes`."""
    return {row[0]: from_row(row) for row in tx.all(_SEVERAL, ids=ids, limit=max_output_bytes)}


def states(tx: Transaction, ids: Sequence[str]) -> dict[str, str]:
    """The state of each job that exists."""
    return dict(tx.all(_STATES, ids=ids))


def listing(tx: Transaction, tenant: str, *, state: str | None = None, network: str | None = None,
            limit: int = 20, after: str | None = None) -> list[Job]:
    """Newest first, without outputs; at most `limit` jobs older than `after`.

    `network`: one version, or a bare name.
    """
    where = "j.tenant = :tenant"
    values: dict[str, Any] = {"tenant": tenant, "limit": limit}
    if state is not None:
        where += " AND j.state = :state"
        values["state"] = state
    if network is not None and "@" in network:
        where += " AND j.network = :network"
        values["network"] = network
    elif network is not None:
        where += " AND substr(j.network, 1, :size) = :network"
        values |= {"network": network + "@", "size": len(network) + 1}
    if after is not None:
        where += " AND j.id < :after"
        values["after"] = after
    found = _LISTINGS.setdefault(where, Statement(
        f"SELECT {_COLUMNS} FROM jobs j WHERE {where} ORDER BY j.id DESC LIMIT :limit"))
    return [from_row(row) for row in tx.all(found, **values)]


_LISTINGS: dict[str, Statement] = {}

_LOCK = Statement("SELECT state, deadline_at FROM jobs WHERE id = :id AND tenant = :tenant {for_update}")
_CANCEL = Statement("UPDATE jobs SET state = 'canceled', waiting = FALSE, ticketed_until = NULL, "
                    "finished_at = {now} WHERE id = :id AND state IN ('queued','running')")
_RETRY = Statement(
    "UPDATE jobs SET state = 'queued', waiting = TRUE, suspect = FALSE, begun = FALSE, crashes = 0, "
    "crashes_alone = 0, incarnation = NULL, ticketed_until = NULL, started_at = NULL, finished_at = NULL, "
    "run_ms = NULL, batch_size = NULL, error_code = NULL, error_message = NULL, "
    "deadline_at = CASE WHEN deadline_at <= {now} THEN NULL ELSE deadline_at END "
    "WHERE id = :id AND state = 'failed' AND EXISTS (SELECT 1 FROM inputs i WHERE i.job_id = jobs.id)")


def cancel(tx: Transaction, tenant: str, job_id: str) -> str | None:
    """Cancel a live job; a terminal one stays as it is. The state before, or None if there is no such job."""
    row = tx.one(_LOCK, id=job_id, tenant=tenant)
    if row is None:
        return None
    if row[0] not in TERMINAL:
        tx.run(_CANCEL, id=job_id)
        event.record(tx, [job_id], CANCELED)
    return str(row[0])


def retry(tx: Transaction, tenant: str, job_id: str) -> str | None:
    """Queue a failed job once more with `crashes` at 0. The state before, or None if there is no such job.

    Raises ResultExpired when its input was removed at the end of its retention.
    """
    row = tx.one(_LOCK, id=job_id, tenant=tenant)
    if row is None:
        return None
    if row[0] == FAILED and tx.run(_RETRY, id=job_id) == 0:
        raise ResultExpired("the job's input was removed at the end of its retention: submit it anew")
    return str(row[0])


_DUE = Statement("SELECT id FROM jobs WHERE deadline_at <= {now} AND deadline_at IS NOT NULL "
                 "AND state IN ('queued','running') ORDER BY deadline_at LIMIT :limit")
_EXPIRED = Statement("SELECT id FROM jobs WHERE id {in ids} AND state IN ('queued','running') "
                     "AND deadline_at <= {now} ORDER BY id {for_update}")
_EXPIRE = Statement("UPDATE jobs SET state = 'expired', waiting = FALSE, ticketed_until = NULL, "
                    "finished_at = {now} WHERE id {in ids}")


def expire(tx: Transaction, limit: int = 1000) -> list[str]:
    """End live jobs whose deadline has passed, the longest overdue first; which they were."""
    due = [row[0] for row in tx.all(_DUE, limit=limit)]
    ids = [row[0] for row in tx.all(_EXPIRED, ids=due)] if due else []
    if ids:
        tx.run(_EXPIRE, ids=ids)
        event.record(tx, ids, EXPIRED)
    return ids
