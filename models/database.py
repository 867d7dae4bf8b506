"""`connect()`, transactions and statements: the rules of SQLite and PostgreSQL in one place.

SQLAlchemy holds the schema and the pools; statements are text run on the driver's own cursor, since building
them through the toolkit cost 2 to 3 times the whole job (measured). One `Statement` serves both databases.
"""

import json
import random
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import psycopg
import sqlalchemy as sa
from sqlalchemy.pool import QueuePool

from models.errors import Unavailable

T = TypeVar("T")
Row = tuple[Any, ...]

SQLITE = "sqlite"
POSTGRES = "postgres"
BUSY_TIMEOUT_S = 5.0
BUSY_RETRY_S = 0.0003  # SQLite's own busy handler sleeps 1, 2, 5, 10 … ms: lock waits fell from 134 to 23 us a job
MAX_TRIES = 6
STATEMENT_TIMEOUT_MS = 30_000

# Every statement here is served by an index, in its order. A plan that PostgreSQL made and kept while a table was
# nearly empty (a sequential scan, or a bitmap and a sort) would walk the whole backlog for each claim.
_INDEXES_ONLY = "-c enable_seqscan=off -c enable_bitmapscan=off -c jit=off"

_NOW = {
    SQLITE: "CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)",
    POSTGRES: "(extract(epoch from clock_timestamp()) * 1000)::bigint",
}
_MACRO = re.compile(r"\{(now|in|for_update|skip_locked|for_share)(?: (\w+))?\}")
_NAME = re.compile(r"(?<![:\w]):(\w+)")
_PG_TYPES = {"VARCHAR": "text", "TEXT": "text", "BLOB": "bytea", "BYTEA": "bytea", "BIGINT": "int8", "INTEGER": "int4",
             "SMALLINT": "int2", "FLOAT": "float8", "BOOLEAN": "bool"}


class Statement:
    """One SQL text for both databases, compiled once for each.

    `:name` binds a value. `{now}` is the database's clock in ms since the epoch. `x {in ids}` tests membership in
    a bound list. `{for_update}`, `{for_share}` and `{skip_locked}` vanish on SQLite, whose writers are alone.
    Where the two need different text, pass `sqlite=` for SQLite's.
    """

    __slots__ = ("_compiled", "lists", "sqlite", "text")

    def __init__(self, text: str, *, sqlite: str | None = None) -> None:
        self.text = text
        self.sqlite = sqlite or text
        self.lists = frozenset(m[2] for m in _MACRO.finditer(text + self.sqlite) if m[1] == "in")
        self._compiled: dict[str, str] = {}

    def compiled(self, dialect: str) -> str:
        found = self._compiled.get(dialect)
        if found is None:
            found = self._compiled[dialect] = self._compile(dialect)
        return found

    def _compile(self, dialect: str) -> str:
        lite = dialect == SQLITE

        def macro(match: re.Match[str]) -> str:
            kind, name = match[1], match[2]
            if kind == "now":
                return _NOW[dialect]
            if kind == "in":
                return f"IN (SELECT value FROM json_each(:{name}))" if lite else f"= ANY(:{name})"
            return "" if lite else kind.replace("_", " ").upper()

        text = _MACRO.sub(macro, self.sqlite if lite else self.text)
        return text if lite else _NAME.sub(r"%(\1)s", text)

    def bind(self, dialect: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
        if dialect == SQLITE and self.lists:
            return {k: json.dumps(list(v)) if k in self.lists else v for k, v in values.items()}
        return values


class Transaction:
    """What runs inside one transaction: statements in, rows out."""

    __slots__ = ("cursor", "dialect")

    def __init__(self, cursor: Any, dialect: str) -> None:
        self.cursor = cursor
        self.dialect = dialect

    def all(self, statement: Statement, **values: Any) -> list[Row]:
        """Run and return every row."""
        self.cursor.execute(statement.compiled(self.dialect), statement.bind(self.dialect, values))
        return list(self.cursor.fetchall())

    def one(self, statement: Statement, **values: Any) -> Row | None:
        """Run and return the first row, if there is one."""
        rows = self.all(statement, **values)
        return rows[0] if rows else None

    def run(self, statement: Statement, **values: Any) -> int:
        """Run a statement that returns no rows; how many rows it touched."""
        self.cursor.execute(statement.compiled(self.dialect), statement.bind(self.dialect, values))
        return int(self.cursor.rowcount)

    def insert(self, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert rows that all have the same keys: one statement, however many."""
        if rows:
            names = tuple(rows[0])
            self.insert_rows(table, names, [tuple(row[name] for name in names) for row in rows])

    def insert_rows(self, table: sa.Table, names: tuple[str, ...], rows: Sequence[Row]) -> None:
        """The same for rows as tuples in the order of `names`: a fifth less than with dicts on the hot path."""
        if not rows:
            return
        statement = _insert_statement(table, names, self.dialect)
        if self.dialect == SQLITE:
            self.cursor.executemany(statement, rows)
        else:
            self.cursor.execute(statement, [list(column) for column in zip(*rows, strict=True)])

    def update_each(self, statement: Statement, rows: Sequence[Row]) -> int:
        """SQLite only: run an UPDATE with `?` places once a row; how many rows were touched in all."""
        connection: sqlite3.Connection = self.cursor.connection
        before = connection.total_changes
        self.cursor.executemany(statement.compiled(SQLITE), rows)
        return connection.total_changes - before


_INSERTS: dict[tuple[str, tuple[str, ...], str], str] = {}


def _insert_statement(table: sa.Table, names: tuple[str, ...], dialect: str) -> str:
    key = (table.name, names, dialect)
    found = _INSERTS.get(key)
    if found is None:
        columns = ", ".join(names)
        if dialect == SQLITE:
            found = f"INSERT INTO {table.name} ({columns}) VALUES ({', '.join('?' * len(names))})"
        else:
            kinds = (_PG_TYPES[str(table.c[n].type).split("(")[0]] for n in names)
            arrays = ", ".join(f"%s::{kind}[]" for kind in kinds)
            found = f"INSERT INTO {table.name} ({columns}) SELECT * FROM unnest({arrays})"
        _INSERTS[key] = found
    return found


class Database:
    """Two pools: one whose commits wait for the disk, one for claims, marks and heartbeats that need not.

    A power cut kills the holder of a claim too, so a lost claim only means "queued again".
    """

    def __init__(self, url: str, *, synchronous: str = "full", pool_size: int = 40) -> None:
        self.url = url
        self.dialect = SQLITE if url.startswith("sqlite") else POSTGRES
        self._durable = self._pool(pool_size, durable=synchronous == "full" or self.dialect == POSTGRES)
        self._relaxed = self._pool(pool_size, durable=False)

    def _pool(self, size: int, *, durable: bool) -> QueuePool:
        creator = self._open_sqlite if self.dialect == SQLITE else self._open_postgres
        return QueuePool(lambda: creator(durable=durable), pool_size=size, max_overflow=size, use_lifo=True,
                         reset_on_return=None, timeout=BUSY_TIMEOUT_S)

    def _open_sqlite(self, *, durable: bool) -> sqlite3.Connection:
        path = sqlite_path(self.url)
        connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False,
                                     cached_statements=256)
        run_until_free(lambda: connection.execute("PRAGMA journal_mode=WAL"))
        connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        connection.execute("PRAGMA temp_store=MEMORY")
        connection.execute("PRAGMA cache_size=-16000")
        connection.execute("PRAGMA mmap_size=268435456")
        return connection

    def _open_postgres(self, *, durable: bool) -> psycopg.Connection[Row]:
        options = f"-c statement_timeout={STATEMENT_TIMEOUT_MS} -c lock_timeout=10000 {_INDEXES_ONLY}"
        if not durable:
            options += " -c synchronous_commit=off"
        return psycopg.connect(psycopg_url(self.url), autocommit=True, options=options, connect_timeout=5,
                               application_name="headrace")

    @contextmanager
    def _transaction(self, pool: QueuePool, begin: str | None) -> Iterator[Transaction]:
        try:
            fairy = pool.connect()
        except (psycopg.OperationalError, sqlite3.OperationalError, sa.exc.TimeoutError) as error:
            raise Unavailable(f"database out of reach: {error}") from error
        cursor: Any = fairy.cursor()
        try:
            if begin:
                self._begin(cursor, begin)
            yield Transaction(cursor, self.dialect)
            if begin:
                try:
                    cursor.execute("COMMIT")
                except psycopg.OperationalError as error:
                    raise CommitUnknown(str(error)) from error
        except BaseException as error:
            if _is_broken(error):
                fairy.invalidate()
            elif begin:
                _rollback(cursor, fairy)
            raise
        finally:
            fairy.close()

    def _begin(self, cursor: Any, begin: str) -> None:
        if self.dialect == SQLITE:
            run_until_free(lambda: cursor.execute(begin))
        else:
            cursor.execute(begin)

    def read(self) -> "Reading":
        """A context for statements that only read. Raises Unavailable when the database is out of reach."""
        return self._reading(None)

    @contextmanager
    def _reading(self, begin: str | None) -> Iterator[Transaction]:
        try:
            with self._transaction(self._relaxed, begin) as transaction:
                yield transaction
        except (psycopg.OperationalError, sqlite3.OperationalError) as error:
            raise Unavailable(f"database out of reach: {error}") from error

    def write(self, work: Callable[[Transaction], T], *, durable: bool = True) -> T:
        """Run `work` in one write transaction and commit it; run it again if the database asks for that.

        `work` must be repeatable. Raises Unavailable, with `may_have_been_accepted` where the answer to a commit
        was lost; data errors of the driver pass through.
        """
        pool = self._durable if durable else self._relaxed
        begin = "BEGIN IMMEDIATE" if self.dialect == SQLITE else "BEGIN"
        for attempt in range(MAX_TRIES):
            try:
                with self._transaction(pool, begin) as transaction:
                    return work(transaction)
            except CommitUnknown as error:
                raise Unavailable("the answer to a commit was lost", may_have_been_accepted=True) from error
            except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure) as error:
                if attempt == MAX_TRIES - 1:
                    raise Unavailable(str(error)) from error
                time.sleep(random.random() * 0.01 * 2**attempt)  # noqa: S311 (jitter)
            except psycopg.OperationalError as error:
                # A pooled connection may have died while idle: one fresh try, then say so.
                if attempt >= 1:
                    raise Unavailable(f"database out of reach: {error}") from error
            except sqlite3.OperationalError as error:
                raise Unavailable(f"database out of reach: {error}") from error
        raise AssertionError

    def now(self) -> int:
        """The database's clock, ms since the epoch."""
        with self.read() as transaction:
            row = transaction.one(_CLOCK)
        assert row is not None
        return int(row[0])

    def close(self) -> None:
        self._durable.dispose()
        self._relaxed.dispose()


Reading = Any
_CLOCK = Statement("SELECT {now}")


class CommitUnknown(Exception):
    """The connection died between COMMIT and its answer: accepted or not, nobody knows."""


def run_until_free(action: Callable[[], object]) -> None:
    """Run an action that takes SQLite's write lock, again every 0.3 ms while another writer holds it."""
    end = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            action()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) and "busy" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(BUSY_RETRY_S)
        else:
            return


def _is_broken(error: BaseException) -> bool:
    return isinstance(error, CommitUnknown | psycopg.OperationalError) and not isinstance(
        error, psycopg.errors.DeadlockDetected | psycopg.errors.SerializationFailure | psycopg.errors.QueryCanceled)


def _rollback(cursor: Any, fairy: Any) -> None:
    try:
        cursor.execute("ROLLBACK")
    except (psycopg.Error, sqlite3.Error):
        fairy.invalidate()


def sqlite_path(url: str) -> str:
    """The file of a `sqlite:///relative` or `sqlite:////absolute` URL."""
    return urlsplit(url).path[1:]


def psycopg_url(url: str) -> str:
    """`postgresql+psycopg://…` and `postgres://…` as libpq spells them."""
    return re.sub(r"^postgres(ql)?(\+\w+)?://", "postgresql://", url)


def sqlalchemy_url(url: str) -> str:
    """The same database for SQLAlchemy and Alembic."""
    return re.sub(r"^postgres(ql)?(\+\w+)?://", "postgresql+psycopg://", url)


def connect(url: str, *, synchronous: str = "full", pool_size: int = 40) -> Database:
    """The database at `url`; nothing is opened before the first statement."""
    return Database(url, synchronous=synchronous, pool_size=pool_size)


def values_of(rows: Iterable[Row], index: int = 0) -> list[Any]:
    return [row[index] for row in rows]
