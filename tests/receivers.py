"""Real HTTP receivers that misbehave on order: each request is answered by what its path asks for."""

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

HANG_S = 30.0


@dataclass
class Received:
    path: str
    headers: dict[str, str]
    body: bytes
    client: tuple[str, int]


@dataclass
class Answers:
    """What to say to the nth request of a path: a status, (status, headers, body), or something that takes over."""

    given: list[Any] = field(default_factory=list)

    def next(self) -> Any:
        return self.given.pop(0) if len(self.given) > 1 else self.given[0]


class Serving:
    """An HTTP server in a thread of its own. `released` lets go of requests that are held up."""

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.released = threading.Event()
        self._lock = threading.Lock()
        self._server = _Server(address, handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def url(self, path: str = "/") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Senders that give up, or are killed, are part of the tests."""


class Receiver(Serving):
    """`answers["/path"] = [500, 200]`: the last answer repeats; a path without answers gets 204."""

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0,
                 tls: tuple[Path, Path] | None = None) -> None:
        super().__init__((host, port), _handler(self))
        self.received: list[Received] = []
        self.names: list[str | None] = []
        self._answers: dict[str, Answers] = {}
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            context.sni_callback = lambda _socket, name, _context: self.names.append(name)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True,
                                                      do_handshake_on_connect=False)

    def on(self, path: str, *answers: Any) -> str:
        """Answer requests to `path` so; its URL."""
        self._answers[path] = Answers(list(answers))
        return self.url(path)

    def at(self, path: str) -> list[Received]:
        with self._lock:
            return [item for item in self.received if item.path == path]

    def take(self, received: Received) -> Any:
        with self._lock:
            self.received.append(received)
            answers = self._answers.get(received.path)
            return 204 if answers is None else answers.next()


def _handler(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = HANG_S

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = receiver.take(Received(self.path, headers, body, self.client_address))
            if callable(answer):
                self.close_connection = True
                answer(self, receiver)
                return
            status, extra, text = answer if isinstance(answer, tuple) else (answer, {}, b"")
            self.send_response(status)
            for name, value in extra.items():
                self.send_header(name, value)
            if status != 204:
                self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


def hang(_handler: Any, receiver: Receiver) -> None:
    """Say nothing until the test is over."""
    receiver.released.wait(HANG_S)


def reset(handler: Any, _receiver: Receiver) -> None:
    """Drop the connection with a TCP reset."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()


def drip(handler: Any, receiver: Receiver) -> None:
    """A header that never ends, a byte at a time: each read succeeds."""
    try:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        while not receiver.released.wait(0.05):
            handler.wfile.write(b"a")
            handler.wfile.flush()
    except OSError:
        pass


def endless(handler: Any, receiver: Receiver) -> None:
    """A body that never ends, as fast as it is taken."""
    with contextlib.suppress(OSError):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not receiver.released.is_set():
            handler.wfile.write(b"10000\r\n" + b"x" * 65_536 + b"\r\n")


def endless_headers(handler: Any, receiver: Receiver) -> None:
    """Interim answers without end: each is whole, and the real one never comes."""
    with contextlib.suppress(OSError):
        while not receiver.released.wait(0.01):
            handler.wfile.write(b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\n" * 50)


def slowly(delay_s: float) -> Callable[[Any, Receiver], None]:
    """Answer 200, but late."""
    def answer(handler: Any, receiver: Receiver) -> None:
        receiver.released.wait(delay_s)
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    return answer


def raw(data: bytes) -> Callable[[Any, Receiver], None]:
    """Answer with exactly these bytes and close."""
    def answer(handler: Any, _receiver: Receiver) -> None:
        handler.wfile.write(data)
    return answer

