"""Long polls: one pub/sub listener and one re-read a second for all waiters of this process.

Register, then read the row, then wait: what is told in between is not lost. No database connection is held.
"""

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import redis
import structlog

from models import contract, job
from models.database import Database
from models.errors import Unavailable

log = structlog.get_logger("headrace.api")

MAX_WAITERS = 512  # each holds one of the server's threads; see api/wsgi.py
REREAD_S = 1.0  # pub/sub loses messages while its connection is cut
LISTEN_S = 1.0
RECONNECT_S = 0.2
# Polls that began together time out together. Hundreds of threads that want the interpreter at once hold up
# every submit among them for as long as all of them take; so few at a time look their job up.
AT_ONCE = 4
TURN_S = 0.5  # after that without a turn: a database that hangs must not hold up the polls behind it too


class Waiter:
    """One request that waits for the end of one job."""

    __slots__ = ("_event", "job_id")

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self._event = threading.Event()

    def wait(self, timeout_s: float) -> bool:
        """Sleep until the job was said to have ended; False when the time is up. Ready to be used again."""
        told = self._event.wait(timeout_s)
        self._event.clear()
        return told

    def tell(self) -> None:
        self._event.set()


class Waiters:
    """Thread-safe. `client` is used for the subscription alone: its commands may block for LISTEN_S."""

    def __init__(self, client: redis.Redis, database: Database) -> None:
        self._client = client
        self._database = database
        self._waiting: dict[str, list[Waiter]] = {}
        self._count = 0
        self._lock = threading.Lock()
        self._turns = threading.Semaphore(AT_ONCE)
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        self._threads = [threading.Thread(target=self._listen, name="listener", daemon=True),
                         threading.Thread(target=self._reread, name="reread", daemon=True)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads, and every wait."""
        self._stop.set()
        with self._lock:
            ids = list(self._waiting)
        self.tell(ids)
        for thread in self._threads:
            thread.join(LISTEN_S + 5)

    @property
    def count(self) -> int:
        """How many wait now."""
        return self._count

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def register(self, job_id: str) -> Waiter | None:
        """Listen for this job from now on; None when too many wait already. Give it back with `forget`."""
        waiter = Waiter(job_id)
        with self._lock:
            if self._count >= MAX_WAITERS or self._stop.is_set():
                return None
            self._count += 1
            self._waiting.setdefault(job_id, []).append(waiter)
        return waiter

    def forget(self, waiter: Waiter) -> None:
        with self._lock:
            others = self._waiting[waiter.job_id]
            others.remove(waiter)  # its own: another may wait for the same job
            self._count -= 1
            if not others:
                del self._waiting[waiter.job_id]

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Hold this while a poll looks its job up, never while it sleeps."""
        held = self._turns.acquire(timeout=TURN_S)
        try:
            yield
        finally:
            if held:
                self._turns.release()

    def tell(self, ids: Iterable[str]) -> None:
        """These jobs have ended: wake whoever waits for them."""
        with self._lock:
            told = [waiter for job_id in ids for waiter in self._waiting.get(job_id, ())]
        for waiter in told:
            waiter.tell()

    def _listen(self) -> None:
        while not self._stop.is_set():
            pubsub = self._client.pubsub(  # type: ignore[no-untyped-call]
                ignore_subscribe_messages=True)
            try:
                pubsub.subscribe(contract.DONE_CHANNEL)
                while not self._stop.is_set():
                    self._heard(pubsub.get_message(timeout=LISTEN_S))
            except (redis.RedisError, OSError) as error:
                log.debug("listener_cut", detail=str(error))
                self._stop.wait(RECONNECT_S)
            except Exception:
                log.exception("listener_failed")
                self._stop.wait(RECONNECT_S)
            finally:
                pubsub.close()

    def _heard(self, message: dict[str, Any] | None) -> None:
        if message is not None and self._waiting:
            self.tell(contract.decode_done(message["data"]))

    def _reread(self) -> None:
        while not self._stop.wait(REREAD_S):
            with self._lock:
                ids = list(self._waiting)
            if not ids:
                continue
            try:
                with self._database.read() as tx:
                    states = job.states(tx, ids)
            except Unavailable as error:
                log.debug("reread_failed", detail=str(error))
            except Exception:
                log.exception("reread_failed")
            else:
                self.tell(job_id for job_id, state in states.items() if state in job.TERMINAL)


def deadline(seconds: float) -> float:
    """The monotonic time when a wait that starts now is over."""
    return time.monotonic() + seconds


def remaining(until: float) -> float:
    return until - time.monotonic()
