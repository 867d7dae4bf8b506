"""`connect()`, transactions and pools: the rules that hold for both databases in one place.

SQLAlchemy holds the schema; statements are text run on the drivers, since building them through the toolkit
cost 2 to 3 times the whole job (measured). One `Statement` serves both databases.
"""

import random
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Protocol, TypeVar

import psycopg
import sqlalchemy as sa

from models.errors import Unavailable
from models.postgres import PostgresConnection
from models.sqlite import BUSY_TIMEOUT_S, SqliteConnection, run_until_free
from models.sqlite import path_of as sqlite_path
from models.statement import POSTGRES, SQLITE, Statement

__all__ = ["POSTGRES", "SQLITE", "CommitUnknown", "Database", "Row", "Statement", "Transaction", "connect",
           "psycopg_url", "run_until_free", "sqlalchemy_url", "sqlite_path", "values_of"]

T = TypeVar("T")
Row = tuple[Any, ...]

MAX_TRIES = 6
_PG_TYPES = {"VARCHAR": "text", "TEXT": "text", "BLOB": "bytea", "BYTEA": "bytea", "BIGINT": "int8",
             "INTEGER": "int4", "SMALLINT": "int2", "FLOAT": "float8", "BOOLEAN": "bool"}
_RETRIED = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)
_DRIVER_ERRORS = (psycopg.OperationalError, sqlite3.OperationalError)


class CommitUnknown(Exception):
    """The connection died between COMMIT and its answer: accepted or not, nobody knows."""


class Connection(Protocol):
    """One connection of either database."""

    @property
    def broken(self) -> bool: ...
    @property
    def rowcount(self) -> int: ...
    def begin(self) -> None: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def execute(self, text: str, values: Any = ()) -> None: ...
    def fetchall(self) -> list[Row]: ...
    def close(self) -> None: ...


class Transaction:
    """What runs inside one transaction: statements in, rows out."""

    __slots__ = ("cursor", "dialect")

    def __init__(self, cursor: Connection, dialect: str) -> None:
        self.cursor = cursor
        self.dialect = dialect

    def _execute(self, statement: Statement, values: Mapping[str, Any]) -> None:
        lite = self.dialect == SQLITE
        self.cursor.execute(*(statement.for_sqlite(values) if lite else statement.for_postgres(values)))

    def all(self, statement: Statement, **values: Any) -> list[Row]:
        """Run and return every row."""
        self._execute(statement, values)
        return self.cursor.fetchall()

    def one(self, statement: Statement, **values: Any) -> Row | None:
        """Run and return the first row, if there is one."""
        rows = self.all(statement, **values)
        return rows[0] if rows else None

    def run(self, statement: Statement, **values: Any) -> int:
        """Run a statement that returns no rows; how many rows it touched."""
        self._execute(statement, values)
        return self.cursor.rowcount

    def insert(self, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert rows that all have the same keys: one statement, however many."""
        if rows:
            names = tuple(rows[0])
            self.insert_rows(table, names, [tuple(row[name] for name in names) for row in rows])

    def insert_rows(self, table: sa.Table, names: tuple[str, ...], rows: Sequence[Row]) -> None:
        """The same for rows as tuples in the order of `names`: a fifth less than with dicts."""
        if not rows:
            return
        if isinstance(self.cursor, SqliteConnection):
            self.cursor.insert(table.name, names, rows)
        else:
            self.cursor.execute(_insert_statement(table, names), list(zip(*rows, strict=True)))


_INSERTS: dict[tuple[str, tuple[str, ...]], str] = {}


def _insert_statement(table: sa.Table, names: tuple[str, ...]) -> str:
    """PostgreSQL's, of as many rows as the arrays hold."""
    key = (table.name, names)
    found = _INSERTS.get(key)
    if found is None:
        kinds = (_PG_TYPES[str(table.c[n].type).split("(")[0]] for n in names)
        arrays = ", ".join(f"${place}::{kind}[]" for place, kind in enumerate(kinds, 1))
        found = f"INSERT INTO {table.name} ({', '.join(names)}) SELECT * FROM unnest({arrays})"
        _INSERTS[key] = found
    return found


class _Pool:
    """Connections for reuse, the last used first. One that broke makes those opened before it suspect too."""

    def __init__(self, open_one: Callable[[], Connection], size: int) -> None:
        self._open = open_one
        self._idle: list[tuple[int, Connection]] = []
        self._free = threading.BoundedSemaphore(size)
        self._generation = 0
        self._lock = threading.Lock()

    @contextmanager
    def taken(self) -> Iterator[Connection]:
        """A connection for a while; it is closed instead of kept if it broke."""
        if not self._free.acquire(timeout=BUSY_TIMEOUT_S):
            raise Unavailable("all database connections are in use")
        try:
            generation, connection = self._take()
            try:
                yield connection
            finally:
                self._give(generation, connection)
        finally:
            self._free.release()

    def _take(self) -> tuple[int, Connection]:
        while True:
            with self._lock:
                generation = self._generation
                found = self._idle.pop() if self._idle else None
            if found is None:
                try:
                    return generation, self._open()
                except _DRIVER_ERRORS as error:
                    raise Unavailable(f"database out of reach: {error}") from error
            if found[0] == generation:
                return found
            found[1].close()

    def _give(self, generation: int, connection: Connection) -> None:
        broken = connection.broken
        with self._lock:
            if broken and generation == self._generation:
                self._generation += 1
            keep = not broken and generation == self._generation
            if keep:
                self._idle.append((generation, connection))
        if not keep:
            connection.close()

    def close(self) -> None:
        """Close what is idle, and what is in use as soon as it is given back."""
        with self._lock:
            self._generation += 1
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()


class Database:
    """Two pools: one whose commits wait for the disk, one for claims, marks and heartbeats that need not.

    A power cut kills the holder of a claim too, so a lost claim only means "queued again".
    """

    def __init__(self, url: str, *, synchronous: str = "full", pool_size: int = 40) -> None:
        self.url = url
        self.dialect = SQLITE if url.startswith("sqlite") else POSTGRES
        durable = synchronous == "full" or self.dialect == POSTGRES
        self._durable = _Pool(lambda: self._open(durable=durable), 2 * pool_size)
        self._relaxed = _Pool(lambda: self._open(durable=False), 2 * pool_size)

    def _open(self, *, durable: bool) -> Connection:
        if self.dialect == SQLITE:
            return SqliteConnection(self.url, durable=durable)
        return PostgresConnection(psycopg_url(self.url), durable=durable)

    def read(self) -> AbstractContextManager[Transaction]:
        """A context for statements that only read. Raises Unavailable when the database is out of reach."""
        return self._reading()

    @contextmanager
    def _reading(self) -> Iterator[Transaction]:
        with self._relaxed.taken() as connection:
            try:
                yield Transaction(connection, self.dialect)
            except _DRIVER_ERRORS as error:
                raise Unavailable(f"database out of reach: {error}") from error

    def write(self, work: Callable[[Transaction], T], *, durable: bool = True) -> T:
        """Run `work` in one write transaction and commit it; run it again if the database asks for that.

        `work` must be repeatable. Raises Unavailable, with `may_have_been_accepted` where the answer to a
        commit was lost; data errors of the driver pass through.
        """
        pool = self._durable if durable else self._relaxed
        for attempt in range(MAX_TRIES):
            try:
                with pool.taken() as connection:
                    return self._run(connection, work)
            except CommitUnknown as error:
                raise Unavailable("the answer to a commit was lost", may_have_been_accepted=True) from error
            except _RETRIED as error:
                if attempt == MAX_TRIES - 1:
                    raise Unavailable(str(error)) from error
                time.sleep(random.random() * 0.01 * 2**attempt)  # noqa: S311 (jitter)
            except _DRIVER_ERRORS as error:
                # A pooled connection may have died while idle: one fresh try, then say so.
                if attempt >= 1 or self.dialect == SQLITE:
                    raise Unavailable(f"database out of reach: {error}") from error
        raise AssertionError

    def _run(self, connection: Connection, work: Callable[[Transaction], T]) -> T:
        connection.begin()
        try:
            done = work(Transaction(connection, self.dialect))
            self._commit(connection)
        except BaseException:
            if not connection.broken:
                with suppress(*_DRIVER_ERRORS):
                    connection.rollback()
            raise
        return done

    def _commit(self, connection: Connection) -> None:
        try:
            connection.commit()
        except psycopg.OperationalError as error:
            raise CommitUnknown(str(error)) from error

    def now(self) -> int:
        """The database's clock, ms since the epoch."""
        with self.read() as transaction:
            return int(transaction.all(_CLOCK)[0][0])

    def close(self) -> None:
        self._durable.close()
        self._relaxed.close()


_CLOCK = Statement("SELECT {now}")


def psycopg_url(url: str) -> str:
    """`postgresql+psycopg://…` and `postgres://…` as libpq spells them."""
    return re.sub(r"^postgres(ql)?(\+\w+)?://", "postgresql://", url)


def sqlalchemy_url(url: str) -> str:
    """The same database for SQLAlchemy and Alembic."""
    return re.sub(r"^postgres(ql)?(\+\w+)?://", "postgresql+psycopg://", url)


def connect(url: str, *, synchronous: str = "full", pool_size: int = 40) -> Database:
    """The database at `url`; nothing is opened before the first statement.

    `pool_size`: connections of each kind that are expected at once; twice as many are allowed.
    """
    return Database(url, synchronous=synchronous, pool_size=pool_size)


def values_of(rows: Iterable[Row], index: int = 0) -> list[Any]:
    return [row[index] for row in rows]
