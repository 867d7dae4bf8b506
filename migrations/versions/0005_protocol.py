"""Protocol.

Revision ID: 0005
Revises: 0004
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def drop_invalid(name: str) -> None:
    # One that was interrupted (a snapshot held for longer than lock_timeout is enough) stays, used by nobody,
    # and IF NOT EXISTS would take it for done.
    invalid = sa.text("SELECT 1 FROM pg_index WHERE indexrelid = to_regclass(:name) AND NOT indisvalid")
    if op.get_bind().scalar(invalid, {"name": name}):
        op.execute(f"DROP INDEX {name}")


def upgrade() -> None:
    op.add_column("incarnations", sa.Column("suspects", sa.Integer))
    # UNIQUE (event_id, url, endpoint_id) doesn't bind where there is no endpoint.
    op.execute("DELETE FROM deliveries WHERE endpoint_id IS NULL AND EXISTS (SELECT 1 FROM deliveries d "
               "WHERE d.event_id = deliveries.event_id AND d.url = deliveries.url AND d.endpoint_id IS NULL "
               "AND d.id < deliveries.id)")
    only = {f"{dialect}_where": sa.text("endpoint_id IS NULL") for dialect in ("sqlite", "postgresql")}
    if op.get_context().dialect.name == "sqlite":
        op.create_index("uq_deliveries_own", "deliveries", ["event_id", "url"], unique=True, **only)
    else:
        with op.get_context().autocommit_block():
            drop_invalid("uq_deliveries_own")
            op.create_index("uq_deliveries_own", "deliveries", ["event_id", "url"], unique=True,
                            postgresql_concurrently=True, if_not_exists=True, **only)


def downgrade() -> None:
    raise RuntimeError("restore a backup instead")
