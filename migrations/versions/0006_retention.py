"""Retention: rows are deleted from tables that were only added to, and which releases may use the schema.

Revision ID: 0006
Revises: 0005
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

# Deleted from in id order, a batch at a time: with the default, a fifth of a table of millions, a walk would
# step over hundreds of thousands of dead rows at its head.
_VACUUM = ("autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50000, "
           "autovacuum_vacuum_cost_delay = 0")
_DELETED_FROM = ("inputs", "results", "events", "delivery_attempts", "idempotency_keys")


def upgrade() -> None:
    op.create_table(
        "schema_support",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("oldest_release", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schema_support")),
    )
    op.execute("INSERT INTO schema_support (id, oldest_release) VALUES (1, '0.1')")
    if op.get_bind().dialect.name == "postgresql":
        for table in _DELETED_FROM:
            op.execute(f"ALTER TABLE {table} SET ({_VACUUM})")


def downgrade() -> None:
    raise RuntimeError("restore a backup instead")
