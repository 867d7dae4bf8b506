"""Ends the incarnations of processes known to be dead, so that what they held is claimed again at once.

A file lists those that live, so that the next `up` can end what a killed one left behind.
"""

import json
import queue
import threading
from pathlib import Path

import structlog

from models import incarnation
from models.database import Database
from models.errors import Unavailable

RETRY_S = 0.2
_log = structlog.get_logger()


class Undertaker:
    """A thread that ends incarnations in the database, again and again while that is away."""

    def __init__(self, database: Database, roster: Path, *, max_attempts: int) -> None:
        self._database = database
        self._roster = roster
        self._max_attempts = max_attempts
        self._living: set[str] = set()
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[tuple[str, str] | None] = queue.SimpleQueue()
        self._give_up = threading.Event()
        self._thread = threading.Thread(target=self._work, name="undertaker", daemon=True)

    def start(self) -> None:
        """Start, and end what an earlier `up` left; nothing of that one may be alive any more."""
        left = self._read()
        self._living = set(left)
        self._thread.start()
        for each in left:
            # Nobody saw them die, by a job's fault or with their supervisor: so nothing counts.
            self.end(each, incarnation.EXITED)

    def born(self, identity: str) -> None:
        """A process under this incarnation is about to start."""
        with self._lock:
            self._living.add(identity)
            self._write()

    def end(self, identity: str, reason: str) -> None:
        """The process is dead. Returns at once."""
        self._queue.put((identity, reason))

    def stop(self, timeout_s: float) -> bool:
        """Finish what is queued; False if the database stayed away (the next start does it then)."""
        self._queue.put(None)
        if self._thread.ident is None:
            return True  # it never came to that
        self._thread.join(timeout_s)
        self._give_up.set()
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            identity, reason = item
            while not self._end(identity, reason):
                if self._give_up.wait(RETRY_S):
                    return
            with self._lock:
                self._living.discard(identity)
                self._write()

    def _end(self, identity: str, reason: str) -> bool:
        try:
            parked = self._database.write(
                lambda tx: incarnation.end(tx, identity, reason, max_attempts=self._max_attempts))
        except Unavailable as error:
            _log.warning("incarnation not ended yet", action="incarnation_end_retried", incarnation=identity,
                         error=str(error))
            return False
        except Exception:  # noqa: BLE001  (whatever it was, the next dead process must still be buried)
            _log.exception("incarnation not ended: its lease will", action="incarnation_end_failed",
                           incarnation=identity)
            return True
        if parked is not None:
            _log.info("incarnation ended", action="incarnation_ended", incarnation=identity, reason=reason,
                      **({"parked": parked} if parked else {}))
        return True

    def _read(self) -> list[str]:
        try:
            found = json.loads(self._roster.read_text())
        except (OSError, ValueError):
            return []
        return [str(each) for each in found] if isinstance(found, list) else []

    def _write(self) -> None:
        fresh = self._roster.with_suffix(".new")
        try:
            fresh.write_text(json.dumps(sorted(self._living)))
            fresh.replace(self._roster)
        except OSError as error:  # a full disk costs the next start a lease's wait, and must not end this one
            _log.warning("list of living incarnations not written", action="roster_failed", error=str(error))
