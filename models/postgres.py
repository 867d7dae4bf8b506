"""PostgreSQL's side of `models.database`: statements on libpq's own calls, through psycopg.

psycopg's cursors cost three times the CPU of these calls (70 against 24 us a statement, measured), since they
drive libpq step by step, and dump lists value by value.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import psycopg
from psycopg.adapt import Transformer
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus

STATEMENT_TIMEOUT_MS = 30_000
LOCK_TIMEOUT_MS = 10_000
# Every statement here is a few look-ups in an index, in its order. A plan that PostgreSQL made and kept while
# a table was nearly empty (scan it all; hash it all and join) would walk every job for each claim, until the
# next ANALYZE a minute later.
_OPTIONS = (f"-c statement_timeout={STATEMENT_TIMEOUT_MS} -c lock_timeout={LOCK_TIMEOUT_MS} -c jit=off "
            "-c enable_seqscan=off -c enable_bitmapscan=off -c enable_hashjoin=off -c enable_mergejoin=off")
# A server that vanished without a word is noticed within about half a minute.
_NETWORK: dict[str, Any] = {
    "application_name": "headrace", "client_encoding": "utf8", "connect_timeout": 5, "keepalives_idle": 10,
    "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": STATEMENT_TIMEOUT_MS,
}

_UNKNOWN, _BOOL, _BYTEA, _INT8, _INT4, _FLOAT8, _BYTEAS = 0, 16, 17, 20, 23, 701, 1001
_NUMBERS = (_INT4, _INT8, _FLOAT8)  # each takes the text of those before it
_TEXT_FORMAT, _BINARY_FORMAT = 0, 1
_INT4_MAX = 2**31 - 1


class PostgresConnection:
    """One connection; every statement is prepared once. `durable`: commits wait for the disk."""

    def __init__(self, url: str, *, durable: bool) -> None:
        options = _OPTIONS if durable else f"{_OPTIONS} -c synchronous_commit=off"
        self.raw: psycopg.Connection[Any] = psycopg.connect(url, autocommit=True, options=options, **_NETWORK)
        self._libpq = self.raw.pgconn
        self._loader = Transformer(self.raw)
        self._prepared: dict[str, tuple[bytes, tuple[int, ...]]] = {}
        self._count = 0
        self._result: Any = None
        self._lost = False

    @property
    def broken(self) -> bool:
        return self._lost or self._libpq.status != ConnStatus.OK

    @property
    def rowcount(self) -> int:
        return self._result.command_tuples or 0

    def begin(self) -> None:
        self._command(b"BEGIN")

    def commit(self) -> None:
        # A transaction that failed before answers a COMMIT with ROLLBACK, and no error.
        if self._command(b"COMMIT") != b"COMMIT":
            raise psycopg.errors.InFailedSqlTransaction("the transaction had failed and was rolled back")

    def rollback(self) -> None:
        self._command(b"ROLLBACK")

    def _command(self, text: bytes) -> bytes:
        result = self._check(self._call(lambda: self._libpq.exec_(text)))
        return bytes(result.command_status or b"")

    def execute(self, text: str, values: Sequence[Any] = ()) -> None:
        encoded: list[tuple[Any, int, int]] = [_encode(value) for value in values]
        name = self._prepare(text, tuple(part[1] for part in encoded))
        self._result = self._check(self._call(lambda: self._libpq.exec_prepared(
            name, [part[0] for part in encoded], [part[2] for part in encoded], _BINARY_FORMAT)))

    def _prepare(self, text: str, types: tuple[int, ...]) -> bytes:
        known = self._prepared.get(text)
        if known is not None:
            merged = tuple(map(_wider, known[1], types))
            if merged == known[1]:
                return known[0]
            types = merged  # a value that was NULL till now has a type, or a number is larger
        self._count += 1
        name = b"s%d" % self._count
        self._check(self._call(lambda: self._libpq.prepare(name, text.encode(), types)))
        self._prepared[text] = name, types
        return name

    def _call(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (MemoryError, psycopg.OperationalError) as error:  # libpq gives no result without a connection
            self._lost = True
            raise psycopg.OperationalError(self._message() or str(error)) from error

    def _check(self, result: Any) -> Any:
        if result.status in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
            return result
        # Only the server gives a SQLSTATE; libpq's status alone may still say OK after a failed send.
        if self.broken or result.error_field(DiagnosticField.SQLSTATE) is None:
            self._lost = True
            raise psycopg.OperationalError(self._message())
        raise psycopg.errors.error_from_result(result)

    def _message(self) -> str:
        return self._libpq.error_message.decode(errors="replace").strip()

    def fetchall(self) -> list[tuple[Any, ...]]:
        self._loader.set_pgresult(self._result)
        return self._loader.load_rows(0, self._result.ntuples, tuple)

    def close(self) -> None:
        self.raw.close()


def _wider(old: int, new: int) -> int:
    """The type of a place that held one of type `old` and now holds one of type `new`."""
    if new == _UNKNOWN:
        return old
    return max(old, new, key=_NUMBERS.index) if old in _NUMBERS and new in _NUMBERS else new


def _encode(value: Any) -> tuple[bytes | None, int, int]:
    """A value as libpq takes it: bytes, type, format. Strings and lists get their type from the statement."""
    if value is None:
        return None, _UNKNOWN, _TEXT_FORMAT
    if isinstance(value, str):
        return _text(value), _UNKNOWN, _TEXT_FORMAT
    if isinstance(value, bool):
        return (b"t" if value else b"f"), _BOOL, _TEXT_FORMAT
    if isinstance(value, int):
        return b"%d" % value, _INT4 if -_INT4_MAX <= value <= _INT4_MAX else _INT8, _TEXT_FORMAT
    if isinstance(value, float):
        return repr(value).encode(), _FLOAT8, _TEXT_FORMAT
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value), _BYTEA, _BINARY_FORMAT
    values = list(value)
    if any(isinstance(each, bytes | bytearray | memoryview) for each in values):
        return _bytes_array(values), _BYTEAS, _BINARY_FORMAT
    return _text(f"{{{','.join(map(_element, values))}}}"), _UNKNOWN, _TEXT_FORMAT


def _text(value: str) -> bytes:
    encoded = value.encode()
    if b"\0" in encoded:  # libpq would stop reading there, in silence
        raise psycopg.DataError("PostgreSQL text cannot hold NUL (0x00) characters")
    return encoded


def _element(value: Any) -> str:
    if isinstance(value, str):
        if "\\" in value or '"' in value:
            value = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{value}"'
    return "NULL" if value is None else repr(value)


def _bytes_array(values: Iterable[bytes | None]) -> bytes:
    """`bytea[]` as PostgreSQL's binary form has it: one dimension, from 1."""
    values = list(values)
    head = struct.pack("!iiIii", 1, int(None in values), _BYTEA, len(values), 1)
    return head + b"".join(struct.pack("!i", -1) if value is None else struct.pack("!i", len(value)) + value
                           for value in values)
