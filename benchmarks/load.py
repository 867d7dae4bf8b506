"""A load client as light as asyncio allows: keep-alive HTTP/1.1 connections, one request at a time each."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class Connection(asyncio.Protocol):
    """One connection to 127.0.0.1. Reads answers with a Content-Length, which all of ours have."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._transport: asyncio.Transport | None = None
        self._reply: asyncio.Future[tuple[int, bytes]] | None = None
        self._buffer = b""
        self._body_at = 0
        self._end_at = 0
        self._status = 0

    @classmethod
    async def open(cls, port: int) -> "Connection":
        connection = cls(port)
        await connection._connect()
        return connection

    async def _connect(self) -> None:
        await asyncio.get_running_loop().create_connection(lambda: self, "127.0.0.1", self.port)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._reply and not self._reply.done():
            self._reply.set_exception(exc or ConnectionError("closed by the server"))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._end_at:
            head_end = self._buffer.find(b"\r\n\r\n")
            if head_end < 0:
                return
            head = self._buffer[:head_end].lower()
            length = head.find(b"content-length:")
            self._status, self._body_at = int(head[9:12]), head_end + 4
            size = int(head[length + 15:].split(b"\r\n", 1)[0]) if length >= 0 else 0
            self._end_at = self._body_at + size
        if len(self._buffer) >= self._end_at and self._reply:
            body = self._buffer[self._body_at:self._end_at]
            self._buffer, self._end_at = b"", 0
            if not self._reply.done():
                self._reply.set_result((self._status, body))

    async def call(self, raw: bytes) -> tuple[int, bytes]:
        """Send a whole request; status and body of the answer. A closed connection is opened again."""
        if self._transport is None or self._transport.is_closing():
            await self._connect()
        assert self._transport is not None
        self._buffer, self._end_at = b"", 0
        self._reply = asyncio.get_running_loop().create_future()
        self._transport.write(raw)
        return await self._reply

    def close(self) -> None:
        if self._transport:
            self._transport.close()


def post(port: int, path: str, body: bytes) -> bytes:
    return (f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n").encode() + body


def get(port: int, path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()


@dataclass(frozen=True, slots=True)
class Sent:
    """What a load run got: bodies of the answers in order of arrival, and how long each call took."""

    statuses: list[int]
    bodies: list[bytes]
    latencies_s: list[float]
    wall_s: float


async def send(port: int, requests: Iterable[bytes], connections: int) -> Sent:
    """Send every request over `connections` connections, each with one request under way."""
    opened = [await Connection.open(port) for _ in range(connections)]
    left = iter(requests)
    statuses: list[int] = []
    bodies: list[bytes] = []
    latencies: list[float] = []

    async def work(connection: Connection) -> None:
        for raw in left:
            start = time.perf_counter()
            status, body = await connection.call(raw)
            latencies.append(time.perf_counter() - start)
            statuses.append(status)
            bodies.append(body)

    start = time.perf_counter()
    try:
        await asyncio.gather(*(work(connection) for connection in opened))
    finally:
        for connection in opened:
            connection.close()
    return Sent(statuses, bodies, latencies, time.perf_counter() - start)


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
