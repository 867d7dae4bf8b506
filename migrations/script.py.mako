"""${message}.

Revision ID: ${up_revision}
Revises: ${down_revision | comma,n}

Rules of a revision: it imports nothing of ours; the code before it must run against the schema after it (add
nullable columns, fill, then require; never rename); on PostgreSQL index a large table CONCURRENTLY inside
`op.get_context().autocommit_block()`; it ends with ANALYZE of the
tables it changed that hold rows (never of empty ones, see 0001).
"""

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    raise RuntimeError("restore a backup instead")
