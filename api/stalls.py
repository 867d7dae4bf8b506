"""Bodies that don't come: each read of one holds a server thread, and the server itself puts no end to it.

A read that is overdue is ended at its socket. The server doesn't tell which one that is, so it is found by
what the kernel counts: nothing was answered on it for as long as a read may take, and less than a piece has
arrived. Kept-alive connections in no use look alike; a server may shut those at any time.
"""

import contextlib
import os
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import structlog

from models.errors import RateLimited, RequestTimeout

PIECE_BYTES = 1 << 18
PIECE_S = 45.0  # for one piece at most: slower than 6 kB/s is a stall; well above the longest long poll
# Reads at a time: the server's threads hold as many besides the long polls. Bodies that are there already,
# which is nearly all of them, take microseconds.
MAX_READS = 256
TICK_S = 1.0
_FOLDER = "/proc/self/fd"
# struct tcp_info of Linux: bytes acknowledged by the peer, bytes received.
_COUNTS = struct.Struct("=120xQQ")

log = structlog.get_logger("headrace.api")

Peer = tuple[Any, ...]


@dataclass(slots=True)
class _Read:
    begun_s: float
    ended: bool = False  # its connection was shut, since it took too long


class Stalls:
    """Every read of a body passes through here. `start` runs the watch, `stop` ends it."""

    def __init__(self, piece_s: float = PIECE_S, max_reads: int = MAX_READS) -> None:
        self._piece_s = piece_s
        self._max_reads = max_reads
        self._reads: dict[int, _Read] = {}
        self._seen: deque[tuple[float, dict[Peer, tuple[int, int]]]] = deque()
        self._stopped = threading.Event()

    def start(self) -> None:
        if os.path.isdir(_FOLDER):  # noqa: PTH112 - elsewhere only the number of reads is bounded
            threading.Thread(target=self._watch, name="stalls", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def read(self, stream: Any, size: int) -> bytes:
        """One read of at most `size` bytes, at most PIECE_BYTES; fewer only at the body's end.

        Raises RequestTimeout if the client took too long, RateLimited where too many are read already.
        """
        if len(self._reads) >= self._max_reads:
            raise RateLimited(f"{self._max_reads} request bodies are being received; try again shortly")
        me = threading.get_ident()
        read = self._reads[me] = _Read(time.monotonic())
        try:
            data: bytes = stream.read(min(size, PIECE_BYTES))
        finally:
            del self._reads[me]
        if read.ended:
            raise RequestTimeout(f"the body stopped arriving: send each {PIECE_BYTES >> 10} KiB of it within "
                                 f"{self._piece_s:g} s")
        return data

    def _watch(self) -> None:
        tick_s = min(TICK_S, self._piece_s / 4)
        while not self._stopped.wait(tick_s):
            now_s = time.monotonic()
            slow = [each for each in tuple(self._reads.values()) if now_s - each.begun_s > tick_s]
            if not slow:
                self._seen.clear()
                continue
            self._seen.append((now_s, {peer: counts for _, peer, counts in _connections()}))
            overdue = [each for each in slow if now_s - each.begun_s > self._piece_s + 2 * tick_s]
            if overdue:
                self._end(overdue, now_s)
            while self._seen and now_s - self._seen[0][0] > 2 * self._piece_s:
                self._seen.popleft()

    def _end(self, overdue: list[_Read], now_s: float) -> None:
        since_s = now_s - self._piece_s
        before = next((counts for at_s, counts in reversed(self._seen) if at_s <= since_s), None)
        if before is None:
            return
        for each in overdue:
            each.ended = True
        count = 0
        for connection, peer, (answered, received) in _connections():
            then = before.get(peer)
            if then is not None and then[0] == answered and received - then[1] < PIECE_BYTES:
                with contextlib.suppress(OSError):  # the client has just gone
                    connection.shutdown(socket.SHUT_RD)
                    count += 1
        log.warning("stalled_bodies_ended", reads=len(overdue), connections=count)


class Stream:
    """An upload's body, read through `Stalls`."""

    def __init__(self, stalls: Stalls, stream: Any) -> None:
        self._stalls = stalls
        self._stream = stream

    def read(self, size: int) -> bytes:
        """Up to `size` bytes, at most PIECE_BYTES; none at the end."""
        return self._stalls.read(self._stream, size)


def _connections() -> Iterator[tuple[socket.socket, Peer, tuple[int, int]]]:
    """TCP connections that were made to this process, each open until the next is asked for.

    Peer, (answered, received). Those that it made itself, to a database or a broker, may idle as they like.
    """
    ports = {each.getsockname()[1] for each in _sockets() if _listens(each)}
    for connection in _sockets():
        try:
            if _listens(connection) or connection.getsockname()[1] not in ports:
                continue
            counts = _COUNTS.unpack(
                connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _COUNTS.size))
            peer = connection.getpeername()
        except (OSError, struct.error):  # not TCP, or gone meanwhile
            continue
        yield connection, peer, counts


def _listens(each: socket.socket) -> bool:
    return bool(each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _sockets() -> Iterator[socket.socket]:
    """Internet sockets of this process, each open until the next is asked for."""
    for name in os.listdir(_FOLDER):  # noqa: PTH208 - names, which are numbers
        try:
            # A copy of the descriptor: the number may be another file's by the time that it is used.
            copy = os.dup(int(name))
        except OSError:
            continue
        try:
            found = socket.socket(fileno=copy)
        except OSError:  # no socket
            os.close(copy)
            continue
        with found:
            if found.family in (socket.AF_INET, socket.AF_INET6):
                yield found
