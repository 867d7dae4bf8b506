"""Webhooks.

Revision ID: 0004
Revises: 0003
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def partial(name: str, table: str, columns: list[str], where: str) -> None:
    op.create_index(name, table, columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))


def upgrade() -> None:
    for column in (
        sa.Column("failures", sa.Integer, nullable=False, server_default="0"),
        sa.Column("failing_since", sa.BigInteger),
        sa.Column("trips", sa.Integer, nullable=False, server_default="0"),
        sa.Column("open_until", sa.BigInteger),
    ):
        op.add_column("webhook_endpoints", column)
    partial("ix_webhook_endpoints_open", "webhook_endpoints", ["open_until"], "open_until IS NOT NULL")
    # Holds what is pending only, so it stays small however long the log grows. Built in the transaction: its
    # one scan holds up webhooks, which may wait, and nothing else.
    partial("ix_deliveries_pending", "deliveries", ["endpoint_id", "due_at", "id"], "state = 'pending'")


def downgrade() -> None:
    raise RuntimeError("restore a backup instead")
