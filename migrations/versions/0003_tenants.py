"""Tenants.

The pick goes by tenant within a priority from here on. The indexes that it used before stay for a release:
the code before orders by them, and would sort the whole backlog without.

Revision ID: 0003
Revises: 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0001"
branch_labels = None
depends_on = None


def drop_invalid(name: str) -> None:
    # One that was interrupted (a snapshot held for longer than lock_timeout is enough) stays, used by nobody,
    # and IF NOT EXISTS would take it for done.
    invalid = sa.text("SELECT 1 FROM pg_index WHERE indexrelid = to_regclass(:name) AND NOT indisvalid")
    if op.get_bind().scalar(invalid, {"name": name}):
        op.execute(f"DROP INDEX {name}")


def upgrade() -> None:
    lite = op.get_context().dialect.name == "sqlite"
    for column in (
        sa.Column("max_in_flight", sa.Integer),
        sa.Column("rate", sa.Float),
        sa.Column("burst", sa.Integer),
        sa.Column("max_body_bytes", sa.BigInteger),
        sa.Column("weight", sa.Float),
    ):
        op.add_column("tenants", column, if_not_exists=None if lite else True)
    for name, columns, where in (
        ("ix_jobs_turn", ["hardware", "priority", "tenant", "id"], "waiting AND deadline_at IS NULL"),
        ("ix_jobs_turn_deadline", ["hardware", "priority", "tenant", "deadline_at", "id"],
         "waiting AND deadline_at IS NOT NULL"),
    ):
        only = {f"{dialect}_where": sa.text(where) for dialect in ("sqlite", "postgresql")}
        if lite:
            op.create_index(name, "jobs", columns, **only)
        else:
            with op.get_context().autocommit_block():
                drop_invalid(name)
                op.create_index(name, "jobs", columns, postgresql_concurrently=True, if_not_exists=True,
                                **only)


def downgrade() -> None:
    raise RuntimeError("restore a backup instead")
