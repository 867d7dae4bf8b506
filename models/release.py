"""Which code may run on which schema. A newer one is fine for the release before it; an older one never is.

Read at the start of a process, without Alembic, which costs a worker a fifth of a second.
"""

import sqlalchemy as sa

import models
from models.database import Database, Statement, Transaction
from models.errors import SchemaUnfit
from models.schema import Text, metadata

REVISION = "0006"  # the newest revision in migrations/versions: what this code needs

# One row. A revision that takes away what a release needs (contracts) sets it to the first that doesn't.
schema_support = sa.Table(
    "schema_support", metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("oldest_release", Text, nullable=False),  # such as 0.1: it and what came after may run
)

_EXISTS = Statement("SELECT 1 WHERE to_regclass(:name) IS NOT NULL",
                    sqlite="SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = :name")
_REVISION = Statement("SELECT version_num FROM alembic_version")
_OLDEST = Statement("SELECT oldest_release FROM schema_support WHERE id = 1")
_UPGRADE = "run `headrace db upgrade` first: it may run while older processes do"


def require_fit(database: Database) -> None:
    """Raise SchemaUnfit, with the command to run, if this code can't run on that schema.

    Raises Unavailable when the database is out of reach.
    """
    with database.read() as tx:
        fault = unfit(tx)
    if fault is not None:
        raise SchemaUnfit(fault)


def unfit(tx: Transaction) -> str | None:
    """Why this code can't run on that schema; None: it can."""
    current = _one(tx, "alembic_version", _REVISION)
    if current is None:
        return f"the database has no tables yet, this version needs revision {REVISION}: {_UPGRADE}"
    if _number(current) < _number(REVISION):
        return f"the database is at revision {current}, this version needs {REVISION}: {_UPGRADE}"
    oldest = _one(tx, "schema_support", _OLDEST)
    if oldest is not None and _parts(models.__version__) < _parts(oldest):
        return (f"the database is at revision {current}, which serves release {oldest} and later, and this "
                f"is {models.__version__}: install a newer headrace")
    return None


def newer(revision: str) -> bool:
    """Whether a database's revision was made by code after this one."""
    return _number(revision) > _number(REVISION)


def _one(tx: Transaction, table: str, statement: Statement) -> str | None:
    # Asked for first: a missing table is an error on PostgreSQL, and a database out of reach on SQLite.
    if tx.one(_EXISTS, name=table) is None:
        return None
    row = tx.one(statement)
    return None if row is None else str(row[0])


def _number(revision: str) -> int:
    return int(revision.partition("_")[0])


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])
