"""The sweep: ends what has run out (deadlines, leases)."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence

import redis
import structlog

from models import claim, contract, incarnation, job, network
from models.database import Database, Transaction
from models.errors import Unavailable
from models.incarnation import Incarnation
from models.settings import Settings

log = structlog.get_logger("headrace.housekeeping")

EXPIRE_BATCH = 500  # one short transaction each


class Watch:
    """Which lives have shown no beat for a whole lease, by the watcher's own monotonic clock.

    It says so only if it could itself look at the database, often enough, all that time: a stopped watcher,
    or a database that was away, must not look like the death of everybody else.
    """

    def __init__(self, lease_s: float, gap_s: float) -> None:
        self._lease_s = lease_s
        self._gap_s = gap_s
        self._seen: dict[str, tuple[int, float]] = {}  # beats, and when they were first seen
        self._looked_at = float("-inf")

    def reset(self) -> None:
        self._seen.clear()

    def look(self, live: Iterable[Incarnation], *, sent_at: float, answered_at: float) -> list[Incarnation]:
        """One look: the lives that have been silent for a lease now. Times are `time.monotonic()`."""
        if answered_at - self._looked_at > self._gap_s:  # a look that hung is a gap too
            self.reset()
        self._looked_at = answered_at
        silent, seen = [], {}
        for each in live:
            beats, since = self._seen.get(each.id, (-1, answered_at))
            if beats != each.beats:
                since = answered_at
            elif sent_at - since >= self._lease_s:
                silent.append(each)
            seen[each.id] = (each.beats, since)
        self._seen = seen
        return silent


def gap_s(lease_s: float, sweep_s: float) -> float:
    """The longest time between two looks that a Watch takes as having looked all the time.

    Room for a slow sweep, but well below the lease where sweeps allow that: a database that let nobody write
    for a whole lease must show as a gap.
    """
    return max(sweep_s + min(sweep_s, lease_s / 3), lease_s / 3)


class Sweeper:
    """One `sweep` every SWEEP_S, by the duty's leader."""

    def __init__(self, settings: Settings, database: Database, client: redis.Redis) -> None:
        self._settings = settings
        self._database = database
        self._client = client
        self._watch = Watch(settings.lease_s, gap_s(settings.lease_s, settings.sweep_s))

    def run(self, stop: threading.Event, leads: Callable[[], bool]) -> None:
        """Sweep until `stop`, while `leads()`."""
        while not stop.wait(self._settings.sweep_s):
            if not leads():
                self._watch.reset()
                continue
            try:
                self.sweep()
            except Unavailable as error:
                self._watch.reset()
                log.warning("sweep_failed", detail=str(error))

    def sweep(self) -> None:
        """Everything that is due. Raises Unavailable when the database is out of reach."""
        self.expire()
        self.end_lost()
        self.release_abandoned()
        self.retire()

    def expire(self) -> int:
        """End every live job whose deadline has passed; how many."""
        total = 0
        while ids := self._database.write(lambda tx: job.expire(tx, EXPIRE_BATCH)):
            total += len(ids)
            self._tell(ids)
            if len(ids) < EXPIRE_BATCH:
                break
        return total

    def end_lost(self) -> list[str]:
        """End the lives that have been silent for a whole lease; which."""
        sent_at = time.monotonic()
        with self._database.read() as tx:
            live = incarnation.live(tx)
        ended = []
        for each in self._watch.look(live, sent_at=sent_at, answered_at=time.monotonic()):
            parked = self._database.write(self._end(each))
            if parked is not None:
                ended.append(each.id)
                log.warning("incarnation_lost", incarnation=each.id, kind=each.kind, host=each.host,
                            pid=each.pid)
                self._tell(parked)
                if each.hardware is not None:
                    self._publish(contract.RETURN_CHANNEL, contract.encode_return(each.hardware))
        return ended

    def _end(self, each: Incarnation) -> Callable[[Transaction], list[str] | None]:
        return lambda tx: incarnation.end(tx, each.id, incarnation.LOST, beats=each.beats,
                                          max_attempts=self._settings.max_attempts)

    def release_abandoned(self) -> None:
        """Release what a worker claimed in the very moment in which it was declared lost."""
        with self._database.read() as tx:
            holders = incarnation.abandoned(tx)

        for holder in holders:  # each by itself: each locks its jobs in their order
            self._tell(self._database.write(self._release(holder)))
        if holders:
            log.warning("jobs_released", incarnations=holders)
            with self._database.read() as tx:
                classes = incarnation.classes(tx, holders)
            for hardware in classes:
                self._publish(contract.RETURN_CHANNEL, contract.encode_return(hardware))

    def _release(self, holder: str) -> Callable[[Transaction], list[str]]:
        return lambda tx: claim.release(tx, holder, confirmed=False, max_attempts=self._settings.max_attempts)

    def retire(self) -> None:
        """Retire the withdrawn networks whose last job has ended."""
        with self._database.read() as tx:
            if not network.any_withdrawn(tx):
                return
        retired = self._database.write(network.retire_withdrawn)
        if retired:
            log.info("networks_retired", networks=retired)

    def _tell(self, ids: Sequence[str]) -> None:
        if ids:
            self._publish(contract.DONE_CHANNEL, contract.encode_done(ids))
            self._publish(contract.DELIVER_CHANNEL, b"")

    def _publish(self, channel: str, message: bytes) -> None:
        try:
            self._client.publish(channel, message)
        except (redis.RedisError, OSError) as error:  # those who wait look for themselves within a second
            log.warning("publish_failed", channel=channel, detail=str(error))
