"""A receiver of webhooks on this machine: verifies each signature, drops repeats, prints what came.

    python examples/webhook_receiver.py --port 9000 --secret whsec_…

A receiver of your own needs no Headrace: `standardwebhooks` verifies the same three headers in any language.
"""

import argparse
import json
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from models import signing

MAX_BODY = 1 << 20
SILENCE_S = 10.0


class Receiver:
    """Events by their id. A context manager; `url` is where to send to.

    The secret may come later, since it is told in the answer that registers `url`: until then everything is
    refused with 503, and the sender tries again.
    """

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0, secrets: Sequence[str] = (),
                 on_event: Callable[[dict[str, Any]], None] | None = None) -> None:
        self.secrets = list(secrets)
        self.events: dict[str, dict[str, Any]] = {}
        self.repeats = 0
        self.refused = 0
        self._on_event = on_event
        self._changed = threading.Condition()
        self._server = ThreadingHTTPServer((host, port), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{host}:{port}/webhooks"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def take(self, headers: dict[str, str], body: bytes) -> int:
        """Verify and keep one message; the status to answer with."""
        if not self.secrets:
            return 503
        message_id = self._verified(headers, body)
        with self._changed:
            if message_id is None:
                self.refused += 1
                return 401
            repeated = message_id in self.events
            if repeated:
                self.repeats += 1
            else:
                self.events[message_id] = json.loads(body)
            self._changed.notify_all()
        if not repeated and self._on_event is not None:
            self._on_event(self.events[message_id])
        return 204

    def _verified(self, headers: dict[str, str], body: bytes) -> str | None:
        for secret in self.secrets:
            try:
                return signing.verify(secret, headers, body)
            except signing.SignatureInvalid:
                continue
        return None

    def wait_for(self, count: int, timeout_s: float) -> bool:
        """Whether `count` different events have come before `timeout_s` seconds are over."""
        end = time.monotonic() + timeout_s
        with self._changed:
            return self._changed.wait_for(lambda: len(self.events) >= count, max(0.0, end - time.monotonic()))


def _handler(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = SILENCE_S

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            if not length.isdigit() or int(length) > MAX_BODY:
                self.close_connection = True
                status = 413
            else:
                status = receiver.take(dict(self.headers), self.rfile.read(int(length)))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


def main() -> None:
    parser = argparse.ArgumentParser(description="Receive and verify webhooks.")
    parser.add_argument("--port", type=int, default=9000)
    parser.add_argument("--secret", action="append", required=True,
                        help="whsec_…; several while one is rotated")
    arguments = parser.parse_args()
    receiver = Receiver(port=arguments.port, secrets=arguments.secret,
                        on_event=lambda event: print(json.dumps(event), flush=True))
    with receiver:
        print(f"listening on {receiver.url}", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print(f"{len(receiver.events)} events, {receiver.repeats} repeats, {receiver.refused} refused")


if __name__ == "__main__":
    main()
