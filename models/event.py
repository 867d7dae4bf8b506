"""Events, the endpoints that listen for them, and their deliveries.

An event row is written in the transaction of its transition, only for jobs that have a listener then.
"""

from collections.abc import Sequence

import sqlalchemy as sa

from models import ids
from models.database import Statement, Transaction
from models.schema import Bytes, Text, Time, metadata

JOB_TYPES = ("job.succeeded", "job.failed", "job.canceled", "job.expired")
TYPES = JOB_TYPES  # bulk.* come with bulks

events = sa.Table(
    "events", metadata,
    sa.Column("id", Text, primary_key=True),
    sa.Column("tenant", Text, nullable=False),
    sa.Column("type", Text, nullable=False),
    sa.Column("subject", Text, nullable=False),  # job id
    sa.Column("created_at", Time, nullable=False),
    sa.Column("fanned_at", Time),  # deliveries were made for it
    sa.Column("body", Bytes),  # the exact bytes that are sent, from then on
    sa.Index("ix_events_pending", "id", sqlite_where=sa.text("fanned_at IS NULL"),
             postgresql_where=sa.text("fanned_at IS NULL")),
    sa.Index("ix_events_subject", "subject"),
)

webhook_endpoints = sa.Table(
    "webhook_endpoints", metadata,
    sa.Column("id", Text, primary_key=True),
    sa.Column("tenant", Text, nullable=False),
    sa.Column("name", Text, nullable=False),
    sa.Column("url", Text, nullable=False),
    sa.Column("event_types", Text, nullable=False),  # JSON list; empty: all
    sa.Column("secrets", Text, nullable=False),  # JSON list of {secret, expires_at}; the first one is current
    sa.Column("state", Text, nullable=False),
    sa.Column("reason", Text),
    sa.Column("created_at", Time, nullable=False),
    sa.Column("updated_at", Time, nullable=False),
    sa.Column("failures", sa.Integer, nullable=False, server_default="0"),  # in a row, up to now
    sa.Column("failing_since", Time),  # the first of them
    sa.Column("trips", sa.Integer, nullable=False, server_default="0"),  # pauses in a row: the next is longer
    sa.Column("open_until", Time),  # nothing is sent until then; see breaker.py
    sa.CheckConstraint("state IN ('enabled','disabled')", name="state"),
    sa.Index("ix_webhook_endpoints_tenant", "tenant", "id"),
    sa.Index("ix_webhook_endpoints_open", "open_until", sqlite_where=sa.text("open_until IS NOT NULL"),
             postgresql_where=sa.text("open_until IS NOT NULL")),
)

deliveries = sa.Table(
    "deliveries", metadata,
    sa.Column("id", Text, primary_key=True),
    sa.Column("tenant", Text, nullable=False),
    sa.Column("event_id", Text, nullable=False),
    sa.Column("event_type", Text, nullable=False),
    sa.Column("subject", Text, nullable=False),
    sa.Column("endpoint_id", Text),  # null: the job's own webhook, signed with the tenant's secret
    sa.Column("url", Text, nullable=False),
    sa.Column("origin", Text, nullable=False),  # scheme://host:port: only a few sends to one at once
    sa.Column("state", Text, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("due_at", Time),  # null while pending: it waits for its endpoint's breaker
    sa.Column("claimed_by", Text),  # incarnation that is sending it
    sa.Column("claimed_until", Time),
    sa.Column("last_status", sa.Integer),
    sa.Column("last_error", Text),
    sa.Column("created_at", Time, nullable=False),
    sa.Column("finished_at", Time),
    sa.CheckConstraint("state IN ('pending','delivered','failed','dropped')", name="state"),
    sa.UniqueConstraint("event_id", "url", "endpoint_id"),
    sa.Index("uq_deliveries_own", "event_id", "url", unique=True,  # the one above doesn't bind NULLs
             sqlite_where=sa.text("endpoint_id IS NULL"), postgresql_where=sa.text("endpoint_id IS NULL")),
    sa.Index("ix_deliveries_due", "due_at", sqlite_where=sa.text("state = 'pending'"),
             postgresql_where=sa.text("state = 'pending'")),
    sa.Index("ix_deliveries_pending", "endpoint_id", "due_at", "id",
             sqlite_where=sa.text("state = 'pending'"), postgresql_where=sa.text("state = 'pending'")),
    sa.Index("ix_deliveries_tenant", "tenant", "id"),
    sa.Index("ix_deliveries_subject", "subject"),
)

delivery_attempts = sa.Table(
    "delivery_attempts", metadata,
    sa.Column("delivery_id", Text, primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True),
    sa.Column("at", Time, nullable=False),
    sa.Column("status", sa.Integer),
    sa.Column("latency_ms", sa.Float),
    sa.Column("error", Text),
    sa.Column("response", Bytes),  # the first KB of the answer
)

_ANY_ENDPOINT = Statement("SELECT 1 FROM webhook_endpoints WHERE state = 'enabled' LIMIT 1")
_LISTENED = Statement(
    "SELECT j.id, j.tenant, {now} FROM jobs j WHERE j.id {in ids} AND (j.webhook IS NOT NULL OR EXISTS "
    "(SELECT 1 FROM webhook_endpoints e WHERE e.tenant = j.tenant AND e.state = 'enabled'))")


def any_endpoint(tx: Transaction) -> bool:
    return tx.one(_ANY_ENDPOINT) is not None


def record(tx: Transaction, job_ids: Sequence[str], state: str) -> int:
    """One event for each of these jobs that has a listener now; how many."""
    listened = tx.all(_LISTENED, ids=job_ids)
    tx.insert(events, [{"id": ids.new(ids.EVENT), "tenant": tenant, "type": f"job.{state}", "subject": job_id,
                        "created_at": now} for job_id, tenant, now in listened])
    return len(listened)
