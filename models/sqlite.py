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

    def insert(self, into: str, rows: Sequence[Sequence[Any]]) -> None:
        """Insert rows, many to a statement.

        The driver lets go of the interpreter's lock at each step. With `executemany` a step is a row, and
        after each one another busy thread may keep it for 5 ms, while this one holds the database's lock.
        """
        width = len(rows[0])
        place = 0
        for count in _ROWS:
            while len(rows) - place >= count:
                self._cursor.execute(_values(into, width, count),
                                     list(chain.from_iterable(rows[place:place + count])))
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
