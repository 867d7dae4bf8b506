"""`upgrade(url)` brings a database to the newest revision, `check(url)` says how it differs from it."""

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from models import database, release
from models.errors import Unavailable
from models.tables import metadata

LOCK_TIMEOUT_MS = 10_000  # a migration that waits for a lock makes everybody behind it wait too
UPGRADE_LOCK = 0x68656164  # PostgreSQL's advisory lock: two deployments that upgrade at once take turns
LOCK_RETRY_S = 0.05
HEAD = "head"
_ONE_AT_A_TIME = threading.Lock()  # Alembic keeps its context in module globals


def upgrade(url: str, revision: str = HEAD) -> None:
    """Bring the database to `revision`; creates an SQLite file and its folder. Two may run at once.

    A database that newer code has upgraded is left as it is. Raises SchemaUnfit when it no longer serves this
    version, Unavailable when it can't be reached or a lock can't be had.
    """
    if url.startswith("sqlite"):
        Path(database.sqlite_path(url)).parent.mkdir(parents=True, exist_ok=True)
    with _ONE_AT_A_TIME, _connected(url) as connection:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql(f"SET lock_timeout = {LOCK_TIMEOUT_MS}")
            _take_turn(connection)
        current = MigrationContext.configure(connection).get_current_revision()
        connection.rollback()
        if current is not None and release.newer(current):
            _require_fit(url)
            return
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def _require_fit(url: str) -> None:
    connected = database.connect(url, pool_size=1)
    try:
        release.require_fit(connected)
    finally:
        connected.close()


def _take_turn(connection: sa.Connection) -> None:
    # Asked again and again, in transactions that end: who waits inside one holds up an index that the other
    # builds CONCURRENTLY, while that one holds the lock.
    give_up_at = time.monotonic() + LOCK_TIMEOUT_MS / 1000
    while True:
        mine = connection.exec_driver_sql(f"SELECT pg_try_advisory_lock({UPGRADE_LOCK})").scalar()
        connection.commit()
        if mine:
            return
        if time.monotonic() > give_up_at:
            raise Unavailable("another process upgrades the database: try again when it is done")
        time.sleep(LOCK_RETRY_S)


def check(url: str) -> list[str]:
    """How the database differs from the tables and the newest revision: a readable line a difference.

    A newer database that serves this version differs in nothing that matters. Raises SchemaUnfit when it no
    longer does, Unavailable when it can't be reached.
    """
    with _connected(url) as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        head = ScriptDirectory.from_config(_config()).get_current_head()
        current = context.get_current_revision()
        if current is not None and release.newer(current):
            connection.rollback()
            _require_fit(url)
            return []
        if current != head:
            fix = "run `headrace db upgrade`"
            return [f"the database is at revision {current or 'none'}, this version needs {head}: {fix}"]
        found = [_say(part) for part in _flat(compare_metadata(context, metadata))]
        return found + _unseen(connection)


def _config() -> Config:
    # By folder, not by package name: another project's `migrations` may come first on the path.
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    return config


@contextmanager
def _connected(url: str) -> Iterator[sa.Connection]:
    lite = url.startswith("sqlite")
    options = {"timeout": LOCK_TIMEOUT_MS / 1000} if lite else {"connect_timeout": 5}
    pool = sa.create_engine(database.sqlalchemy_url(url), poolclass=sa.pool.NullPool, connect_args=options)
    if lite:
        sa.event.listen(pool, "connect", _prepare_sqlite)
        sa.event.listen(pool, "begin", _begin_immediate)
    try:
        with pool.connect() as connection:
            yield connection
    except sa.exc.OperationalError as error:
        raise Unavailable(f"database out of reach: {error.orig}") from error


def _prepare_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    # Left to itself, sqlite3 begins only before DML: a failed revision would leave half a schema.
    connection.isolation_level = None
    database.run_until_free(lambda: connection.execute("PRAGMA journal_mode=WAL"))


def _begin_immediate(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _flat(differences: Any) -> Iterator[tuple[Any, ...]]:
    for part in differences:
        if isinstance(part, list):
            yield from _flat(part)
        else:
            yield part


def _say(difference: tuple[Any, ...]) -> str:
    kind, *rest = difference
    verb, _, noun = kind.partition("_")
    if verb == "modify":
        _, table, column = rest[:3]
        return f"column {table}.{column}: {noun} is {rest[-2]!r} in the database, {rest[-1]!r} in the tables"
    item = rest[-1]
    owner = getattr(getattr(item, "table", None), "name", None) or (rest[-2] if noun == "column" else None)
    name = f"{owner}.{item.name}" if owner else item.name
    return f"{noun} {name} is missing" if verb == "add" else f"{noun} {name} is not in the tables"


def _unseen(connection: sa.Connection) -> list[str]:
    """What Alembic doesn't compare: check constraints, the condition of partial indexes, and rowid tables."""
    inspector = sa.inspect(connection)
    found = []
    for table in metadata.sorted_tables:
        if not inspector.has_table(table.name):
            continue
        wanted = {str(c.name) for c in table.constraints if isinstance(c, sa.CheckConstraint)}
        present = {str(c["name"]) for c in inspector.get_check_constraints(table.name)}
        found += [f"check constraint {name} is missing" for name in sorted(wanted - present)]
        found += [f"check constraint {name} is not in the tables" for name in sorted(present - wanted)]
        dialect = connection.dialect.name
        conditions = {i["name"]: i.get("dialect_options", {}).get(f"{dialect}_where")
                      for i in inspector.get_indexes(table.name)}
        for index in table.indexes:
            partial = index.dialect_options[dialect]["where"] is not None
            if index.name in conditions and partial != (conditions[index.name] is not None):
                found.append(f"index {table.name}.{index.name} must {'' if partial else 'not '}be partial")
    if connection.dialect.name == "sqlite":
        found += _rowids(connection)
    return found


def _rowids(connection: sa.Connection) -> list[str]:
    rows = connection.exec_driver_sql("SELECT name, wr FROM pragma_table_list WHERE schema = 'main'")
    without = {str(name): bool(flag) for name, flag in rows}
    found = []
    for table in metadata.sorted_tables:
        wanted = table.dialect_options["sqlite"]["with_rowid"] is False
        if without.get(table.name, wanted) != wanted:
            found.append(f"table {table.name} must {'not ' if wanted else ''}have a rowid")
    return found
