"""Duties that one process leads at a time, by a lease row that points to its incarnation.

A leader whose incarnation is ended is replaced at once, one that only falls silent after its lease.
"""

import threading
import time
from collections.abc import Sequence

import structlog

from models import incarnation
from models.database import Database, Transaction
from models.errors import Unavailable

log = structlog.get_logger("headrace.housekeeping")

LOOK_S = 0.5  # how soon a stand-by sees that a leader was ended
SAFE_SHARE = 0.8  # of the lease: the rest is for clocks that run unequally and a write that takes long


class Leader:
    """Takes and renews the leases of some duties. Thread-safe; `run` is the thread that does the work."""

    def __init__(self, database: Database, incarnation_id: str, duties: Sequence[str], *,
                 lease_s: float) -> None:
        self._database = database
        self._incarnation = incarnation_id
        self._duties = tuple(duties)
        self._lease_s = lease_s
        self._until = dict.fromkeys(duties, float("-inf"))  # own monotonic clock
        self._changed = threading.Condition()

    def leads(self, duty: str) -> bool:
        """Whether this process may do the duty now, by the sending time of its last successful renewal."""
        return time.monotonic() < self._until[duty]

    def wait(self, duty: str, timeout_s: float) -> bool:
        """Wait until this process leads the duty; whether it does."""
        with self._changed:
            return self._changed.wait_for(lambda: self.leads(duty), timeout_s)

    def run(self, stop: threading.Event) -> None:
        """Take what is free and renew what is held until `stop`, then resign."""
        while not stop.is_set():
            try:
                self.turn()
            except Unavailable as error:
                log.warning("lease_unavailable", detail=str(error))
            stop.wait(min(LOOK_S, self._lease_s / 6))
        self.resign()

    def turn(self) -> None:
        """Renew each lease that is due and take each one that is free. Raises Unavailable."""
        sent = time.monotonic()
        renew_below = self._lease_s * (SAFE_SHARE - 1 / 3)
        due = [duty for duty in self._duties if self._until[duty] - sent < renew_below]
        if not due:
            return
        mine = [duty for duty in due if self.leads(duty)]
        with self._database.read() as tx:  # a stand-by only looks: it must not write twice a second
            free = incarnation.free_duties(tx, [duty for duty in due if duty not in mine], self._incarnation)
        wanted = sorted({*mine, *free})
        if not wanted:
            return

        def take(tx: Transaction) -> list[str]:
            return [duty for duty in wanted if incarnation.lead(tx, duty, self._incarnation, self._lease_s)]

        taken = self._database.write(take, durable=False)
        with self._changed:
            for duty in wanted:
                led = self.leads(duty)
                self._until[duty] = sent + self._lease_s * SAFE_SHARE if duty in taken else float("-inf")
                if led != (duty in taken):
                    log.info("lead_taken" if duty in taken else "lead_lost", duty=duty)
            self._changed.notify_all()

    def resign(self) -> None:
        """Give up every duty, so that another process takes over at once."""
        with self._changed:
            held = sorted(duty for duty in self._duties if self._until[duty] > float("-inf"))
            self._until = dict.fromkeys(self._duties, float("-inf"))
        if not held:
            return

        def drop(tx: Transaction) -> None:
            for duty in held:
                incarnation.resign(tx, duty, self._incarnation)

        try:
            self._database.write(drop, durable=False)
        except Unavailable as error:
            log.warning("lease_unavailable", detail=str(error))
