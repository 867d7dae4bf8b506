"""SQLite's side of `models.database`: how a connection is opened, begins, waits and ends."""

import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any
from urllib.parse import urlsplit

BUSY_TIMEOUT_S = 5.0
BUSY_RETRY_S = 0.0003  # SQLite's own handler sleeps 1, 2, 5, 10 … ms: waits fell from 134 to 23 us a job
MISSING = (sqlite3.OperationalError,)


_ROWS = (512, 128, 32, 8, 2, 1)  # few different statements, so that they stay compiled


def _plain(column: Sequence[Any]) -> Sequence[Any] | None:
    """The column as types that the driver binds at once; None if it is NULL throughout.

    It looks for adapters of every None, bool and bytes, which costs 0.6 us each, and of int, str, float and
    bytearray not (measured).
    """
    if column.count(None) == len(column):
        return None
    kind = type(column[0])
    if kind is bool:
        return [int(value) if type(value) is bool else value for value in column]
    if kind is bytes:
        return [bytearray(value) if type(value) is bytes else value for value in column]
    return column


@cache
def _values(into: str, width: int, count: int) -> str:
    row = f"({', '.join('?' * width)})"
    return f"{into} VALUES {', '.join([row] * count)}"


class SqliteConnection:
    """One connection with one cursor. `durable`: commits wait for the disk."""

    def __init__(self, url: str, *, durable: bool) -> None:
        self.raw = sqlite3.connect(path_of(url), timeout=0, isolation_level=None, check_same_thread=False,
                                   cached_statements=256)
        run_until_free(lambda: self.raw.execute("PRAGMA journal_mode=WAL"))
        # wal_autocheckpoint: 16 MB of log instead of 4: hot pages are copied back less often.
        for pragma in (f"synchronous={'FULL' if durable else 'NORMAL'}", "temp_store=MEMORY",
                       "wal_autocheckpoint=4000",
                       "cache_size=-16000", "mmap_size=268435456"):
            self.raw.execute(f"PRAGMA {pragma}")
        self._cursor = self.raw.cursor()

    @property
    def broken(self) -> bool:
        return False  # a file needs no connection

    @property
    def rowcount(self) -> int:
        return self._cursor.rowcount

    def begin(self) -> None:
        # A deferred transaction that reads and then writes fails at once with "locked", whatever the timeout.
        run_until_free(lambda: self._cursor.execute("BEGIN IMMEDIATE"))

    def commit(self) -> None:
        self._cursor.execute("COMMIT")

    def rollback(self) -> None:
        if self.raw.in_transaction:
            self._cursor.execute("ROLLBACK")

    def execute(self, text: str, values: Mapping[str, Any] | Sequence[Any] = ()) -> None:
        if self.raw.in_transaction:
            self._cursor.execute(text, values)
        else:  # a read may still meet another process that recovers or truncates the log
            run_until_free(lambda: self._cursor.execute(text, values))

    def insert(self, table: str, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Insert rows, many to a statement.

        The driver lets go of the interpreter's lock at each step. With `executemany` a step is a row, and
        after each one another busy thread may keep it for 5 ms, while this one holds the database's lock.
        """
        given = {name: _plain(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
        kept = {name: column for name, column in given.items() if column is not None}
        into = f"INSERT INTO {table} ({', '.join(kept)})"
        values = list(zip(*kept.values(), strict=True))
        place = 0
        for count in _ROWS:
            while len(values) - place >= count:
                self._cursor.execute(_values(into, len(kept), count),
                                     list(chain.from_iterable(values[place:place + count])))
                place += count

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._cursor.fetchall()

    def close(self) -> None:
        self.raw.close()


def run_until_free(action: Callable[[], object]) -> None:
    """Run an action that takes SQLite's lock, again every 0.3 ms while another one holds it."""
    end = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            action()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise
            if time.monotonic() > end:
                raise
            time.sleep(BUSY_RETRY_S)
        else:
            return


def path_of(url: str) -> str:
    """The file of a `sqlite:///relative` or `sqlite:////absolute` URL."""
    return urlsplit(url).path[1:]
