"""What each tenant may have, and how many jobs it has in flight, as far as this process knows.

Jobs in flight are what the database counted at most a second ago, what was stored from here since, and what
is on its way there. So each other API process may, within that second, admit once more what was free.
"""

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from models import quota
from models.database import Database
from models.errors import TooManyInFlight, Unavailable
from models.job import NewJob
from models.quota import Quota
from models.settings import Settings

log = structlog.get_logger("headrace.api")

REFRESH_S = 1.0  # how soon what the operator sets is in force
COUNT_S = 1.0  # a count is used for so long,
RECOUNT_S = 0.05  # or so long where it seems that no more fit
COUNT_SHARE = 0.05  # of the time of one thread, for a tenant whose count takes long
MAX_COUNTED = 10_000  # tenants


@dataclass(slots=True)
class _Count:
    """Jobs in flight of one tenant. `since`: what was stored from here since the count, by time."""

    jobs: int = 0
    newer: int = 0  # the sum of `since`, which holds thousands where many come
    unstored: int = 0  # taken on, and neither stored nor given back yet
    counted_at: float = float("-inf")  # own monotonic clock
    taken_s: float = 0.0
    since: deque[tuple[float, int]] = field(default_factory=deque)
    counting: bool = False

    def total(self) -> int:
        return self.jobs + self.newer + self.unstored

    def stored(self, jobs: int) -> None:
        self.drop(jobs)
        self.since.append((time.monotonic(), jobs))
        self.newer += jobs

    def drop(self, jobs: int) -> None:
        self.unstored = max(0, self.unstored - jobs)  # all counts may have been forgotten meanwhile

    def due(self, now: float, period_s: float) -> bool:
        return not self.counting and now - self.counted_at > max(period_s, self.taken_s / COUNT_SHARE)

    def counted(self, jobs: int, asked_at: float, now: float) -> None:
        self.jobs, self.counted_at, self.taken_s = jobs, asked_at, now - asked_at
        while self.since and self.since[0][0] < asked_at:
            self.newer -= self.since.popleft()[1]


class Quotas:
    """Thread-safe. `start` runs the thread that reads what the operator has set."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings = settings
        self._database = database
        self._default = quota.default(settings)
        self._own: Mapping[str, Quota] | None = None  # of tenants for which something was set
        self._counts: dict[str, _Count] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="quotas", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(5)

    def of(self, tenant: str) -> Quota:
        """The limits in force. While the database was never reached: the settings' own."""
        own = self._own
        if own is None:
            own = self.refresh()
        found = own.get(tenant)
        if found is not None:
            return found
        return quota.UNLIMITED if tenant == quota.EMBEDDED else self._default

    def refresh(self) -> Mapping[str, Quota]:
        """Read what the operator has set. With the database away it stays as it was."""
        try:
            with self._database.read() as tx:
                own = {each.tenant: quota.in_force(each, self._settings) for each in quota.limited(tx)}
        except Unavailable as error:
            log.warning("quotas_stale", detail=str(error))
            return self._own or {}
        self._own = own
        return own

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.refresh()
            except Exception:
                log.exception("quotas_failed")
            self._stop.wait(REFRESH_S)

    def take(self, tenant: str) -> None:
        """Take one job on, until `stored`, `refund` or `give_back`, one of which must follow.

        Raises TooManyInFlight or Unavailable, and then nothing is counted.
        """
        limit = self.of(tenant).max_in_flight
        if limit is None:
            return
        if self._fits(tenant, limit, COUNT_S) or self._fits(tenant, limit, RECOUNT_S):
            return
        raise TooManyInFlight(f"the tenant may have {limit} jobs in flight, and has them: let some end first")

    def _fits(self, tenant: str, limit: int, period_s: float) -> bool:
        now = time.monotonic()
        with self._lock:
            count = self._counts.get(tenant)
            if count is None:
                if len(self._counts) >= MAX_COUNTED:
                    self._counts.clear()
                count = self._counts[tenant] = _Count()
            due = count.due(now, period_s)
            count.counting |= due
        if due:
            self._count(tenant, count, now)
        with self._lock:
            if count.total() >= limit:
                return False
            count.unstored += 1
            return True

    def _count(self, tenant: str, count: _Count, asked_at: float) -> None:
        try:
            with self._database.read() as tx:
                jobs = quota.in_flight(tx, [tenant])[tenant]
            with self._lock:
                count.counted(jobs, asked_at, time.monotonic())
        finally:
            count.counting = False

    def stored(self, jobs: Sequence[NewJob]) -> None:
        """These, of one tenant, are committed: every count that is asked for from now on holds them."""
        if not jobs or not self._counts:
            return
        with self._lock:
            count = self._counts.get(jobs[0].tenant)
            if count is not None:
                count.stored(len(jobs))

    def refund(self, jobs: Iterable[NewJob]) -> None:
        """These were taken on and then not stored."""
        for job in jobs:
            self.give_back(job.tenant)

    def give_back(self, tenant: str) -> None:
        """One was taken on and then refused for something else."""
        with self._lock:
            count = self._counts.get(tenant)
            if count is not None:
                count.drop(1)
