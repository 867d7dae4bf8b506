"""Webhook receivers of a run: one that behaves, one that misbehaves on order, one that is odd by path.

Each request goes into the history with how it was answered. Nobody may ever arrive at TRAP: the sender follows
no redirects.
"""

import json
import socket
import struct
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler
from typing import Any

from models import signing
from tests import receivers
from tests.chaos.harness.history import History

MAIN, ODD, OWN = "main", "odd", "own"
TRAP = "/trap"
HANG_S = 20.0  # longer than a sender waits
WAYS = ("ok", "500", "reset", "redirect", "hang")
OWN_SHARES = (70, 14, 12, 6, 1)  # of the jobs' own URLs: how the first attempt is answered


class Listener(receivers.Serving):
    """One HTTP server. `mood`: how requests to `/` are answered now. `/<way>` answers each event so once."""

    def __init__(self, name: str, history: History) -> None:
        super().__init__(("127.0.0.1", 0), _handler(self))
        self.name = name
        self.secrets: list[str] = []
        self.mood = "ok"
        self._history = history
        self._seen: Counter[tuple[str, str]] = Counter()

    def take(self, path: str, headers: dict[str, str], body: bytes) -> str:
        """Keep one request; how to answer it."""
        fault = self._fault(headers, body)
        event = headers.get(signing.ID, "")
        with self._lock:
            self._seen[path, event] += 1
            first = self._seen[path, event] == 1
        way = path.strip("/") or self.mood
        if way != self.mood and not first:
            way = "ok"
        if path == TRAP:
            way = "ok"
        elif fault:
            way = "401"
        document = json.loads(body)
        data = document.get("data", {})
        self._history.write("received", place=self.name, path=path, event=event, body_id=document.get("id"),
                            type=document.get("type"), subject=data.get("id"), state=data.get("state"),
                            answered=way, fault=fault)
        return way

    def _fault(self, headers: dict[str, str], body: bytes) -> str | None:
        """What is wrong with the signature; no secret is known before the first registration's answer."""
        reason = "no secret is known"
        for secret in self.secrets:
            try:
                signing.verify(secret, headers, body)
            except signing.SignatureInvalid as error:
                reason = str(error)
            else:
                return None
        return reason


def _handler(listener: Listener) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = HANG_S

        def do_GET(self) -> None:  # what a sender would do that follows a redirect
            self._answer(listener.take(self.path, {}, b"{}"))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            self._answer(listener.take(self.path, {k.lower(): v for k, v in self.headers.items()}, body))

        def _answer(self, way: str) -> None:
            if way == "hang":
                self.close_connection = True
                end = time.monotonic() + HANG_S
                while listener.mood in ("hang", "ok") and time.monotonic() < end and not listener.released.wait(0.1):
                    pass
                return
            if way == "reset":
                self.close_connection = True
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
                return
            self.send_response({"ok": 204, "redirect": 307}.get(way) or int(way))
            if way == "redirect":
                self.send_header("Location", listener.url(TRAP))
            if way != "ok":
                self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    return Handler
