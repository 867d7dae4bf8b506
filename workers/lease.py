"""The incarnation of this process: registered, renewed about each second by one UPDATE, ended on exit.

The lease is counted on the monotonic clock from the sending of the last renewal that succeeded.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from models import incarnation as incarnations
from models.database import Database
from models.errors import Unavailable

HELD_SHARE = 0.8  # of the lease: without a renewal for that long, nothing more is claimed
BEAT_S = 1.0
CLOCK_S = 10.0  # how often the offset to the database's clock is measured
RETRY_S = 0.5

_log = structlog.get_logger("headrace.worker")
Holding = Callable[[], Mapping[str, Any]]


class Lease:
    """Start it with `begin`; then `held` says whether claims are allowed, `ended` whether somebody ended it.

    `renewed` is called after each renewal, `lost` once when it was ended by somebody.
    """

    def __init__(self, database: Database, incarnation: str, *, hardware: str, lanes: Sequence[str],
                 lease_s: float) -> None:
        self._database = database
        self.incarnation = incarnation
        self._hardware = hardware
        self._lanes = ",".join(lanes)
        self._lease_s = lease_s
        self._renewed_s = -float("inf")
        self._offset_ms = 0.0
        self._measured_s = -float("inf")
        self._stopped = threading.Event()
        self._poked = threading.Event()
        self._thread: threading.Thread | None = None
        self.ended = False

    def held(self) -> bool:
        """Whether this process may claim."""
        return not self.ended and time.monotonic() - self._renewed_s < HELD_SHARE * self._lease_s

    def now_ms(self) -> int:
        """The database's clock, as far as it is known here; near 0 before it was first asked.

        Counted on from there by the monotonic clock: this machine's own may be wrong, or be set meanwhile.
        """
        return int(time.monotonic() * 1000 + self._offset_ms)

    def begin(self, go_on: Callable[[], None]) -> None:
        """Register, as soon as the database answers. `go_on`, called between tries, raises to give up."""
        while True:
            sent_s = time.monotonic()
            try:
                self._database.write(lambda tx: incarnations.begin(
                    tx, self.incarnation, kind=incarnations.WORKER, host=socket.gethostname(),
                    pid=os.getpid(), hardware=self._hardware, lanes=self._lanes), durable=False)
            except Unavailable as error:
                _log.warning("database_unreachable", error=str(error))
                self._stopped.wait(RETRY_S)
                go_on()
            else:
                self._renewed_s = sent_s
                return

    def start(self, *, holding: Holding, ready: Callable[[], bool], renewed: Callable[[], None],
              lost: Callable[[], None]) -> None:
        """Renew from now on, in a thread of its own."""
        self._thread = threading.Thread(
            target=self._renew, args=(holding, ready, renewed, lost), name="headrace-lease", daemon=True)
        self._thread.start()

    def beat(self, *, ready: bool, holding: Mapping[str, Any]) -> bool:
        """Renew once; False if it was ended by somebody. Raises Unavailable."""
        sent_s = time.monotonic()
        alive = self._database.write(
            lambda tx: incarnations.beat(tx, self.incarnation, ready=ready, holding=holding), durable=False)
        if alive:
            self._renewed_s = sent_s
        if sent_s - self._measured_s > CLOCK_S:
            before_s = time.monotonic()
            now_ms = self._database.now()
            self._offset_ms = now_ms - (before_s + time.monotonic()) * 500
            self._measured_s = sent_s
        return alive

    def poke(self) -> None:
        """Renew now: there is something new to report."""
        self._poked.set()

    def stop(self) -> None:
        """Renew no more."""
        self._stopped.set()
        self._poked.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def end(self, max_attempts: int) -> None:
        """A graceful end: what is still held here may be claimed at once. Raises Unavailable."""
        if not self.ended:
            self._database.write(lambda tx: incarnations.end(
                tx, self.incarnation, incarnations.EXITED, max_attempts=max_attempts))
            self.ended = True

    def _renew(self, holding: Holding, ready: Callable[[], bool], renewed: Callable[[], None],
               lost: Callable[[], None]) -> None:
        pause_s = min(BEAT_S, self._lease_s / 6)
        while True:
            try:
                alive = self.beat(ready=ready(), holding=holding())
            except Unavailable as error:
                _log.warning("lease_renewal_failed", error=str(error), held=self.held())
            else:
                if not alive:
                    self.ended = True
                    _log.error("lease_lost", incarnation=self.incarnation)
                    lost()
                    return
                renewed()
            self._poked.wait(pause_s)
            self._poked.clear()
            if self._stopped.is_set():
                return
