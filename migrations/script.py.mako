"""${message}.

Revision ID: ${up_revision}
Revises: ${down_revision | comma,n}

Rules of a revision. It runs while processes of the release before it work on the same database, and they go on
working on what it leaves (tests/upgrade runs both side by side):
- It imports nothing of ours, and its number is the highest: `models/release.py` names it as REVISION.
- EXPAND: add tables, indexes and columns that are nullable or have a server default, for the code before inserts
  rows without them. No new NOT NULL, CHECK or UNIQUE that rows of the code before would break.
- Fill old rows in batches of a few thousand, a transaction each, in housekeeping or in a later revision: never
  one UPDATE of a large table.
- CONTRACT one release later, never in the same: what no code of the release before reads or writes may be made
  required, renamed or dropped. Such a revision ends with
  `UPDATE schema_support SET oldest_release = '<the first release that does without>'`: older code then refuses to
  start and says so. A column is renamed by adding one, writing both for a release, and dropping the old one.
- The same goes for tickets: a new version is read for a release before it is written (models/contract.py).
- A lock is held for a moment or not at all (`lock_timeout` is set). On PostgreSQL index a large table
  CONCURRENTLY inside `op.get_context().autocommit_block()`, with IF NOT EXISTS, after dropping what an
  interrupted try left invalid (see 0003); add a CHECK or foreign key as
  NOT VALID and validate it in a later revision. SQLite has one writer: everybody waits while a revision runs.
- It ends with ANALYZE of the tables it changed that hold rows (never of empty ones, see 0001).
- There is no way back but a backup; but the code before runs on, so that going back to it needs none.
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
