"""Sends one webhook to a checked address: no redirects, no proxies, bounded time, bounded answer.

The only place of the workers that connects to where a stranger says. Time limits of sockets count each read,
so a receiver that drips bytes would hold a thread for hours: a watch thread shuts each connection in time.
"""

import contextlib
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from socket import SHUT_RDWR, socket
from typing import Self

import urllib3
from urllib3 import connection as connections
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError

from models import OWNER, __version__, addresses
from models.errors import InvalidRequest

CONNECT_S = 5.0
TOTAL_S = 15.0
MAX_READ = 16_384  # of the answer; a larger one costs the connection, not the delivery
KEPT = 1_024
STOPPED = "stopped"  # first word of the error of a send that was broken off
MAX_RETRY_AFTER_S = 86_400.0
IDLE_S = 4.0  # below the 5 s after which common servers close an idle connection
IDLE_PER_ADDRESS = 4
MAX_IDLE = 64
WATCH_S = 0.25
MAX_ERROR = 300  # characters of an error kept in the log

Connection = connections.HTTPConnection
Place = tuple[str, str, int, str]  # scheme, host, port, address: a connection is reused for exactly these


@dataclass(frozen=True, slots=True)
class Answer:
    """How one attempt went: `error` is None for 2xx alone, else its first word is the kind of trouble."""

    status: int | None = None
    error: str | None = None
    latency_ms: float = 0.0
    response: bytes = b""  # its first KB
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Message:
    """What is sent, and the monotonic time at which it is given up."""

    resource: str
    headers: Mapping[str, str]
    body: bytes
    until: float


@dataclass(slots=True)
class _Watched:
    """Connections in use with the monotonic time at which they are shut."""

    until: dict[int, tuple[float, Connection]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Sender:
    """Sends from any number of threads at once; a context manager: it holds connections and a thread."""

    def __init__(self, policy: addresses.Policy, *, connect_s: float = CONNECT_S,
                 total_s: float = TOTAL_S) -> None:
        self._policy = policy
        self._connect_s = connect_s
        self._total_s = total_s
        self._tls = ssl.create_default_context()
        self._idle: dict[Place, list[tuple[float, Connection]]] = {}
        self._idle_lock = threading.Lock()
        self._watched = _Watched()
        self._stopped = threading.Event()
        self._aborted = threading.Event()
        self._watch = threading.Thread(target=self._shut_late_ones, name="webhook-deadlines", daemon=True)

    def __enter__(self) -> Self:
        self._watch.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self.abort()
        self._stopped.set()
        self._watch.join()
        with self._idle_lock:
            for kept in self._idle.values():
                for _, connection in kept:
                    connection.close()
            self._idle.clear()

    def abort(self) -> None:
        """End every send that is under way, at once; later ones fail."""
        self._aborted.set()
        with self._watched.lock:
            for _, connection in self._watched.until.values():
                _shut(connection)

    def send(self, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """POST `body` to `url`, once. Never raises for what a URL, a name or a receiver may do."""
        began = time.monotonic()
        try:
            answer = self._send(url, headers, body, began + self._total_s)
        except InvalidRequest as error:
            answer = Answer(error=f"address: {error.detail}")
        except addresses.AddressDenied as error:
            answer = Answer(error=f"address: {error}")
        except addresses.NotResolved as error:
            answer = Answer(error=f"dns: {error}")
        except (HTTPError, HTTPException, OSError, ValueError) as error:
            answer = Answer(error=self._trouble(error, began))
        error_text = None if answer.error is None else _printable(answer.error)
        return Answer(answer.status, error_text, (time.monotonic() - began) * 1000, answer.response,
                      answer.retry_after_s)

    def _send(self, url: str, headers: Mapping[str, str], body: bytes, until: float) -> Answer:
        policy = self._policy
        target = addresses.check_url(url, allow=policy.allow, allow_http=policy.allow_http)
        found = addresses.resolve(target.host, target.port, self._connect_s)
        address = addresses.check_addresses(target, found, policy.allow)
        place = (target.scheme, target.host, target.port, str(address))
        sent = {"Host": target.authority, "User-Agent": f"{OWNER}/{__version__}",
                "Content-Type": "application/json", "Accept": "*/*", **headers}
        message = _Message(target.resource, sent, body, until)
        kept = self._take(place)
        if kept is not None:
            try:
                return self._exchange(kept, place, message)
            except (ConnectionError, HTTPException, HTTPError):
                # Most likely closed by the receiver while it lay idle; had it been read, the id tells.
                if time.monotonic() >= until:
                    raise
        return self._exchange(self._open(place), place, message)

    def _open(self, place: Place) -> Connection:
        scheme, host, port, address = place
        if scheme == "http":
            return connections.HTTPConnection(address, port, timeout=self._connect_s)
        # Connected to the checked address, while SNI and certificate are the host's.
        return connections.HTTPSConnection(address, port, timeout=self._connect_s, ssl_context=self._tls,
                                           server_hostname=host)

    def _exchange(self, connection: Connection, place: Place, message: _Message) -> Answer:
        with self._watched.lock:
            self._watched.until[id(connection)] = (message.until, connection)
        reusable = False
        try:
            if self._aborted.is_set():
                raise ConnectionAbortedError("this sender is stopping")
            if connection.sock is None:
                connection.connect()
            connection.timeout = max(0.001, message.until - time.monotonic())
            connection.request("POST", message.resource, body=message.body, headers=message.headers,
                               preload_content=False, decode_content=False)
            response = connection.getresponse()
            if self._aborted.is_set() or time.monotonic() >= message.until:
                # Shut while its headers came in: the library takes that for their end.
                raise TimeoutError
            answer, whole = _read(response)
            reusable = whole and connection.sock is not None
            return answer
        finally:
            with self._watched.lock:
                del self._watched.until[id(connection)]
            if reusable:
                self._keep(place, connection)
            else:
                connection.close()

    def _trouble(self, error: Exception, began: float) -> str:
        if self._aborted.is_set():
            return f"{STOPPED}: this sender is stopping"
        if time.monotonic() - began >= self._total_s - 0.001:
            return f"timeout: no answer within {self._total_s:g} s"
        if isinstance(error, NewConnectionError):  # before its parent, the time-out
            return f"connect: {error.__cause__ or error}"
        if isinstance(error, ConnectTimeoutError):
            return f"timeout: no connection within {self._connect_s:g} s"
        if isinstance(error, ssl.SSLError):
            return f"tls: {error}"
        if isinstance(error, TimeoutError):
            return "timeout: the receiver went silent"
        return f"connection: {type(error).__name__} {error}"

    def _take(self, place: Place) -> Connection | None:
        """An idle connection to exactly this place, if a live one is left."""
        with self._idle_lock:
            kept = self._idle.get(place, [])
            while kept:
                since, connection = kept.pop()
                if time.monotonic() - since < IDLE_S and connection.is_connected:
                    return connection
                connection.close()
            self._idle.pop(place, None)
        return None

    def _keep(self, place: Place, connection: Connection) -> None:
        with self._idle_lock:
            kept = self._idle.setdefault(place, [])
            if len(kept) < IDLE_PER_ADDRESS and sum(map(len, self._idle.values())) < MAX_IDLE:
                connection.timeout = self._connect_s
                kept.append((time.monotonic(), connection))
                return
        connection.close()

    def _shut_late_ones(self) -> None:
        while not self._stopped.wait(WATCH_S):
            now = time.monotonic()
            with self._watched.lock:
                for deadline, connection in self._watched.until.values():
                    if now >= deadline:
                        _shut(connection)
            with self._idle_lock:
                for place, kept in list(self._idle.items()):
                    for _, connection in [item for item in kept if now - item[0] >= IDLE_S]:
                        connection.close()
                    self._idle[place] = [item for item in kept if now - item[0] < IDLE_S]
                    if not self._idle[place]:
                        del self._idle[place]


def _shut(connection: Connection) -> None:
    """Wake whoever reads from it. Past the TLS layer: its own shutdown would wait for that reader."""
    sock = connection.sock
    if sock is not None:
        with contextlib.suppress(OSError):
            socket.shutdown(sock, SHUT_RDWR)


def _read(response: urllib3.BaseHTTPResponse) -> tuple[Answer, bool]:
    """The answer, and whether it was read to its end."""
    status = response.status
    whole = False
    body = b""
    try:
        body = response.read(MAX_READ + 1)
        whole = len(body) <= MAX_READ
    except (HTTPError, HTTPException, OSError):
        pass  # the status has been told; a body that breaks off changes nothing about it
    if 200 <= status < 300:
        error = None
    elif 300 <= status < 400:
        error = f"redirect: {status} is not followed; give the final URL"
    else:
        error = f"status: {status}"
    return Answer(status, error, 0.0, body[:KEPT], _retry_after(response.headers.get("Retry-After"))), whole


def _retry_after(text: str | None) -> float | None:
    """Seconds out of a Retry-After header, as number or date, at most a day; None if it says nothing."""
    if text is None:
        return None
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), MAX_RETRY_AFTER_S)
    try:
        delay_s = parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, OverflowError):
        return None
    return min(max(delay_s, 0.0), MAX_RETRY_AFTER_S)


def _printable(text: str) -> str:
    """Without what a database or a terminal can't take: a receiver's status line may be anything."""
    return "".join(char if char.isprintable() else "?" for char in text[:MAX_ERROR])
