"""The retention duty: removes what has outlived its use, in transactions so short that nobody waits for them.

It works a small share of the time, and less while others write.
"""

import threading
import time
from collections.abc import Callable

import structlog

from models import blobs, idempotency, incarnation, retention
from models.blobs import Blobs
from models.database import SQLITE, Database, Transaction
from models.errors import HeadraceError, Unavailable
from models.settings import Settings

log = structlog.get_logger("headrace.housekeeping")

LOOK_S = 60.0  # how often is looked for something to do, at most; a tenth of the retention if that is less
WALK_BLOBS_S = 900.0  # the whole store is walked through: it finds what a crash left between row and blob
BLOB_AGE_S = 3600.0  # a file is written before its row is
ENDED_S = 86_400.0  # how long the lives of ended processes are remembered


class Pace:
    """How many rows the next transaction takes, and how long to pause before it.

    `hold_s`: how long one may hold its locks. `share`: of the time that is worked. Who had to wait for the
    lock meets others at work, and leaves them alone for a while.
    """

    LEAST, MOST, FIRST = 50, 2000, 100
    RUSH_PAUSE_S = 0.05

    def __init__(self, *, hold_s: float, share: float, rush_s: float) -> None:
        self._hold_s = hold_s
        self._share = share
        self._rush_s = rush_s
        self.limit = self.FIRST

    def after(self, *, waited_s: float, held_s: float) -> float:
        """One transaction is over: the pause in seconds. `waited_s`: for its lock."""
        if held_s > self._hold_s:
            self.limit = max(self.LEAST, int(self.limit * max(0.25, self._hold_s / held_s)))
        elif held_s < self._hold_s / 2:
            self.limit = min(self.MOST, self.limit + self.limit // 4)
        pause_s = held_s * (1 / self._share - 1)
        return max(pause_s, self.RUSH_PAUSE_S) if waited_s > self._rush_s else pause_s


def pace_for(dialect: str) -> Pace:
    """SQLite has one writer at a time, so it is held for a few milliseconds only."""
    if dialect == SQLITE:
        return Pace(hold_s=0.003, share=0.2, rush_s=0.001)
    return Pace(hold_s=0.02, share=0.2, rush_s=1.0)


class Retention:
    """One `turn` now and then, by the duty's leader."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._ttl_ms = int(settings.result_ttl_s * 1000)
        self._look_s = min(LOOK_S, settings.result_ttl_s / 10)
        self._database = database
        self._blobs = Blobs(settings.blobs)
        self._pace = pace_for(database.dialect)
        self._halt: Callable[[float], bool] = _pause
        self._blobs_due_at = time.monotonic() + min(WALK_BLOBS_S, 10 * settings.sweep_s)

    def run(self, stop: threading.Event, leads: Callable[[], bool]) -> None:
        """Until `stop`, while `leads()`."""
        self._halt = lambda pause_s: stop.wait(pause_s) or not leads()
        while not stop.wait(self._look_s):
            if not leads():
                continue
            try:
                self.turn()
            except Unavailable as error:
                log.warning("retention_paused", detail=str(error))

    def turn(self) -> dict[str, int]:
        """Remove all that is due; how many of each kind. Raises Unavailable when the database is away."""
        removed = {walk.kind: self._walk(walk) for walk in retention.WALKS}
        removed["idempotency_keys"] = self._repeat(lambda tx: idempotency.forget(tx, self._pace.limit))
        removed["incarnations"] = self._database.write(
            lambda tx: incarnation.forget(tx, ENDED_S), durable=False)
        if time.monotonic() >= self._blobs_due_at and not self._halt(0.0):  # a walk that isn't broken off
            removed["blobs"] = self.collect()
            self._blobs_due_at = time.monotonic() + WALK_BLOBS_S
        if any(removed.values()):
            log.info("leftovers_cleared", **removed)
        return removed

    def collect(self) -> int:
        """Delete the blobs that no row refers to; how many."""
        try:
            return blobs.collect(self._database, self._blobs, BLOB_AGE_S)
        except (OSError, HeadraceError) as error:
            log.warning("collection_failed", detail=str(error))
            return 0

    def _walk(self, walk: retention.Walk) -> int:
        """From the oldest row to the limit. What must stay is passed over, and met again by the next walk."""
        after, total = "", 0
        while True:
            with self._database.read() as tx:  # outside of the write: SQLite's lock is held for less
                found = retention.find(tx, walk, after, self._ttl_ms, self._pace.limit)
            if not found:
                return total
            after = found[-1]

            def remove(tx: Transaction, found: list[str] = found) -> int:
                return walk.remove(tx, found, self._ttl_ms)

            removed, pause_s = self._write(remove)
            total += removed
            if self._halt(pause_s):
                return total

    def _repeat(self, work: Callable[[Transaction], int]) -> int:
        total = 0
        while True:
            removed, pause_s = self._write(work)
            total += removed
            if not removed or self._halt(pause_s):
                return total

    def _write(self, work: Callable[[Transaction], int]) -> tuple[int, float]:
        asked = begun = time.monotonic()

        def timed(tx: Transaction) -> int:
            nonlocal begun
            begun = time.monotonic()
            return work(tx)

        # Not durable: what a power cut brings back is removed once more.
        removed = self._database.write(timed, durable=False)
        ended = time.monotonic()
        return removed, self._pace.after(waited_s=begun - asked, held_s=ended - begun)


def _pause(pause_s: float) -> bool:
    time.sleep(pause_s)
    return False
