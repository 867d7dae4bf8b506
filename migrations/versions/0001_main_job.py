"""The main job: networks, jobs with inputs and results, incarnations, lanes, events, webhooks, tenants.

Revision ID: 0001
Revises:
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

Text = sa.Text
Time = sa.BigInteger  # ms since the epoch, database clock
Bytes = sa.LargeBinary
Flag = sa.Boolean

# PostgreSQL. Rows updated over and over need room on their page (HOT), and a vacuum that counts in rows,
# not in shares of a table that keeps its finished jobs. Without cost delay: falling behind costs claims more.
_ROWS = "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_threshold"
_STATISTICS = "autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000"
_INSERTED = "autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000"
_SMALL = f"fillfactor = 50, {_ROWS} = 500"
_STORAGE = {
    "jobs": f"fillfactor = 70, {_ROWS} = 10000, {_STATISTICS}, {_INSERTED}",
    "inputs": f"{_STATISTICS}, {_INSERTED}",
    "results": f"{_STATISTICS}, {_INSERTED}",
    "deliveries": f"fillfactor = 80, {_ROWS} = 10000",
} | dict.fromkeys(("incarnations", "lanes", "leases", "rates"), _SMALL)


def partial(name: str, table: str, columns: Sequence[str], where: str) -> None:
    op.create_index(name, table, list(columns), sqlite_where=sa.text(where), postgresql_where=sa.text(where))


def upgrade() -> None:
    op.create_table(
        "tenants",
        sa.Column("id", Text, nullable=False),
        sa.Column("webhook_secret", Text, nullable=False),
        sa.Column("created_at", Time, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tenants")),
    )

    op.create_table(
        "api_keys",
        sa.Column("id", Text, nullable=False),
        sa.Column("tenant", Text, nullable=False),
        sa.Column("name", Text, nullable=False),
        sa.Column("hash", Text, nullable=False),
        sa.Column("hint", Text, nullable=False),
        sa.Column("scopes", Text, nullable=False),
        sa.Column("created_at", Time, nullable=False),
        sa.Column("expires_at", Time),
        sa.Column("revoked_at", Time),
        sa.Column("last_used_at", Time),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("hash", name=op.f("uq_api_keys_hash")),
    )

    op.create_table(
        "idempotency_keys",
        sa.Column("tenant", Text, nullable=False),
        sa.Column("path", Text, nullable=False),
        sa.Column("key", Text, nullable=False),
        sa.Column("fingerprint", Text, nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("body", Bytes, nullable=False),
        sa.Column("headers", Text, nullable=False),
        sa.Column("created_at", Time, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "path", "key", name=op.f("pk_idempotency_keys")),
    )
    op.create_index("ix_idempotency_keys_created", "idempotency_keys", ["created_at"])

    op.create_table(
        "networks",
        sa.Column("name", Text, nullable=False),
        sa.Column("version", Text, nullable=False),
        sa.Column("task", Text, nullable=False),
        sa.Column("state", Text, nullable=False),
        sa.Column("reason", Text),
        sa.Column("is_default", Flag, nullable=False),
        sa.Column("digest", Text, nullable=False),
        sa.Column("manifest", Text, nullable=False),
        sa.Column("files", Text, nullable=False),
        sa.Column("signature", Text),
        sa.Column("created_at", Time, nullable=False),
        sa.Column("ready_at", Time),
        sa.Column("withdrawn_at", Time),
        sa.Column("updated_at", Time, nullable=False),
        sa.CheckConstraint("state IN ('checking','ready','rejected','retired')",
                           name=op.f("ck_networks_state")),
        sa.PrimaryKeyConstraint("name", "version", name=op.f("pk_networks")),
    )

    op.create_table(
        "jobs",
        sa.Column("id", Text, nullable=False),
        sa.Column("tenant", Text, nullable=False),
        sa.Column("network", Text, nullable=False),
        sa.Column("hardware", Text, nullable=False),
        sa.Column("state", Text, nullable=False),
        sa.Column("waiting", Flag, nullable=False),
        sa.Column("suspect", Flag, nullable=False),
        sa.Column("begun", Flag, nullable=False),
        sa.Column("priority", sa.SmallInteger, nullable=False),
        sa.Column("work", sa.Float, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("crashes", sa.Integer, nullable=False),
        sa.Column("crashes_alone", sa.Integer, nullable=False),
        sa.Column("incarnation", Text),
        sa.Column("ticketed_until", Time),
        sa.Column("created_at", Time, nullable=False),
        sa.Column("started_at", Time),
        sa.Column("finished_at", Time),
        sa.Column("deadline_at", Time),
        sa.Column("allowed", Text),
        sa.Column("variant", Text),
        sa.Column("run_ms", sa.Float),
        sa.Column("batch_size", sa.Integer),
        sa.Column("error_code", Text),
        sa.Column("error_message", Text),
        sa.Column("metadata", Bytes),
        sa.Column("webhook", Bytes),
        sa.CheckConstraint("priority BETWEEN 0 AND 9", name=op.f("ck_jobs_priority")),
        sa.CheckConstraint("state <> 'queued' OR waiting", name=op.f("ck_jobs_queued")),
        sa.CheckConstraint("state IN ('queued','running','succeeded','failed','canceled','expired')",
                           name=op.f("ck_jobs_state")),
        sa.CheckConstraint("NOT waiting OR state IN ('queued','running')", name=op.f("ck_jobs_waiting")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sqlite_with_rowid=False,
    )
    partial("ix_jobs_deadline", "jobs", ["deadline_at"],
            "deadline_at IS NOT NULL AND state IN ('queued','running')")
    partial("ix_jobs_running", "jobs", ["incarnation"], "state = 'running'")
    op.create_index("ix_jobs_tenant_id", "jobs", ["tenant", "id"])
    partial("ix_jobs_waiting", "jobs", ["hardware", "priority", "id"], "waiting AND deadline_at IS NULL")
    partial("ix_jobs_waiting_deadline", "jobs", ["hardware", "priority", "deadline_at", "id"],
            "waiting AND deadline_at IS NOT NULL")

    op.create_table(
        "inputs",
        sa.Column("job_id", Text, nullable=False),
        sa.Column("body", Bytes),
        sa.Column("blob", Text),
        sa.CheckConstraint("body IS NOT NULL OR blob IS NOT NULL", name=op.f("ck_inputs_somewhere")),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_inputs")),
    )
    partial("ix_inputs_blob", "inputs", ["blob"], "blob IS NOT NULL")

    op.create_table(
        "results",
        sa.Column("job_id", Text, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("body", Bytes),
        sa.Column("blob", Text),
        sa.Column("removed", Flag, nullable=False),
        sa.Column("created_at", Time, nullable=False),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_results")),
    )
    partial("ix_results_blob", "results", ["blob"], "blob IS NOT NULL")

    op.create_table(
        "incarnations",
        sa.Column("id", Text, nullable=False),
        sa.Column("kind", Text, nullable=False),
        sa.Column("host", Text, nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("hardware", Text),
        sa.Column("lanes", Text),
        sa.Column("ready", Flag, nullable=False),
        sa.Column("started_at", Time, nullable=False),
        sa.Column("heartbeat_at", Time, nullable=False),
        sa.Column("beats", sa.BigInteger, nullable=False),
        sa.Column("ended_at", Time),
        sa.Column("end_reason", Text),
        sa.Column("holding", Text),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_incarnations")),
    )
    partial("ix_incarnations_live", "incarnations", ["id"], "ended_at IS NULL")

    op.create_table(
        "leases",
        sa.Column("duty", Text, nullable=False),
        sa.Column("incarnation", Text, nullable=False),
        sa.Column("until", Time, nullable=False),
        sa.PrimaryKeyConstraint("duty", name=op.f("pk_leases")),
    )

    op.create_table(
        "lanes",
        sa.Column("hardware", Text, nullable=False),
        sa.Column("lane", Text, nullable=False),
        sa.Column("open", Flag, nullable=False),
        sa.Column("depth", sa.Integer, nullable=False),
        sa.Column("in_flight", sa.Integer, nullable=False),
        sa.Column("wait_s", sa.Float),
        sa.Column("oldest_at", Time),
        sa.Column("updated_at", Time, nullable=False),
        sa.PrimaryKeyConstraint("hardware", "lane", name=op.f("pk_lanes")),
    )

    op.create_table(
        "rates",
        sa.Column("network", Text, nullable=False),
        sa.Column("hardware", Text, nullable=False),
        sa.Column("overhead_s", sa.Float, nullable=False),
        sa.Column("per_work_s", sa.Float, nullable=False),
        sa.Column("batch_work", sa.Float, nullable=False),
        sa.Column("batch_items", sa.Integer, nullable=False),
        sa.Column("updated_at", Time, nullable=False),
        sa.PrimaryKeyConstraint("network", "hardware", name=op.f("pk_rates")),
    )

    op.create_table(
        "events",
        sa.Column("id", Text, nullable=False),
        sa.Column("tenant", Text, nullable=False),
        sa.Column("type", Text, nullable=False),
        sa.Column("subject", Text, nullable=False),
        sa.Column("created_at", Time, nullable=False),
        sa.Column("fanned_at", Time),
        sa.Column("body", Bytes),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    partial("ix_events_pending", "events", ["id"], "fanned_at IS NULL")
    op.create_index("ix_events_subject", "events", ["subject"])

    op.create_table(
        "webhook_endpoints",
        sa.Column("id", Text, nullable=False),
        sa.Column("tenant", Text, nullable=False),
        sa.Column("name", Text, nullable=False),
        sa.Column("url", Text, nullable=False),
        sa.Column("event_types", Text, nullable=False),
        sa.Column("secrets", Text, nullable=False),
        sa.Column("state", Text, nullable=False),
        sa.Column("reason", Text),
        sa.Column("created_at", Time, nullable=False),
        sa.Column("updated_at", Time, nullable=False),
        sa.CheckConstraint("state IN ('enabled','disabled')", name=op.f("ck_webhook_endpoints_state")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_endpoints")),
    )
    op.create_index("ix_webhook_endpoints_tenant", "webhook_endpoints", ["tenant", "id"])

    op.create_table(
        "deliveries",
        sa.Column("id", Text, nullable=False),
        sa.Column("tenant", Text, nullable=False),
        sa.Column("event_id", Text, nullable=False),
        sa.Column("event_type", Text, nullable=False),
        sa.Column("subject", Text, nullable=False),
        sa.Column("endpoint_id", Text),
        sa.Column("url", Text, nullable=False),
        sa.Column("origin", Text, nullable=False),
        sa.Column("state", Text, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("due_at", Time),
        sa.Column("claimed_by", Text),
        sa.Column("claimed_until", Time),
        sa.Column("last_status", sa.Integer),
        sa.Column("last_error", Text),
        sa.Column("created_at", Time, nullable=False),
        sa.Column("finished_at", Time),
        sa.CheckConstraint("state IN ('pending','delivered','failed','dropped')",
                           name=op.f("ck_deliveries_state")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deliveries")),
        sa.UniqueConstraint("event_id", "url", "endpoint_id",
                            name=op.f("uq_deliveries_event_id_url_endpoint_id")),
    )
    partial("ix_deliveries_due", "deliveries", ["due_at"], "state = 'pending'")
    op.create_index("ix_deliveries_subject", "deliveries", ["subject"])
    op.create_index("ix_deliveries_tenant", "deliveries", ["tenant", "id"])

    op.create_table(
        "delivery_attempts",
        sa.Column("delivery_id", Text, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("at", Time, nullable=False),
        sa.Column("status", sa.Integer),
        sa.Column("latency_ms", sa.Float),
        sa.Column("error", Text),
        sa.Column("response", Bytes),
        sa.PrimaryKeyConstraint("delivery_id", "attempt", name=op.f("pk_delivery_attempts")),
    )

    if op.get_bind().dialect.name == "postgresql":
        for table, options in _STORAGE.items():
            op.execute(f"ALTER TABLE {table} SET ({options})")
    # No ANALYZE: PostgreSQL takes a table that it never counted for ten pages, one that it counted as empty
    # for empty, and a plan kept from then would scan it whole. The first count comes with 20,000 rows.


def downgrade() -> None:
    raise RuntimeError("restore a backup instead: going back would drop every job")
