"""Whether a job is taken now: the estimated wait of its lane, against the limit and the job's own deadline.

The estimate is a level: seconds of one worker's time that wait, as housekeeping last counted them, falling as
the live workers draw and rising with what is admitted here. Nothing here asks the database.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Iterable

from api.directory import Directory, Lane
from models.errors import DeadlineUnmeetable, Fault, QueueFull
from models.job import NewJob
from models.rate import Rate

SLOT_S = 0.02  # what is admitted within that is remembered as one
SLOTS = 3000
COMMIT_S = 0.03  # between admission and commit: what was admitted that long before a count isn't in it yet
UNMANNED_RETRY_S = 10.0  # nobody knows when a worker comes
LEAST_RETRY_S = 1.0


class _Level:
    """One lane. Not thread-safe: `Admission` holds its lock."""

    def __init__(self, now_s: float) -> None:
        self.work_s = 0.0
        self.jobs = 0
        self.lane = Lane()
        self._at_s = now_s
        self._slots: deque[list[float]] = deque(maxlen=SLOTS)  # [time, seconds of work, jobs]

    def flow(self, lane: Lane, now_s: float) -> None:
        """Bring it to this moment."""
        if lane is not self.lane:
            recounted = lane.counted_s != self.lane.counted_s and lane.backlog is not None
            self._fall(now_s)
            self.lane = lane
            if recounted:
                self._recount(now_s)
        self._fall(now_s)

    def add(self, work_s: float, jobs: int, now_s: float) -> None:
        self.work_s = max(0.0, self.work_s + work_s)
        self.jobs = max(0, self.jobs + jobs)
        if self._slots and now_s - self._slots[-1][0] < SLOT_S:
            self._slots[-1][1] += work_s
            self._slots[-1][2] += jobs
        else:
            self._slots.append([now_s, work_s, jobs])

    def wait_s(self) -> float:
        """Until all of it is done; by one worker, where there is none."""
        return self.work_s / (self.lane.drain or 1.0)

    def _fall(self, now_s: float) -> None:
        self.work_s = max(0.0, self.work_s - self.lane.drain * max(0.0, now_s - self._at_s))
        self._at_s = now_s

    def _recount(self, now_s: float) -> None:
        """Start anew from a count, with what was admitted since."""
        backlog, since_s = self.lane.backlog, self.lane.counted_s - COMMIT_S
        assert backlog is not None  # noqa: S101 (for the type checker)
        while self._slots and self._slots[0][0] <= since_s:
            self._slots.popleft()
        self.work_s, self.jobs = backlog.work_s, backlog.depth
        self._at_s = min(now_s, since_s)
        for at_s, work_s, jobs in self._slots:
            self._fall(max(at_s, self._at_s))
            self.work_s += work_s
            self.jobs += int(jobs)


class Admission:
    """Thread-safe. What is admitted counts at once, so that requests that come together see each other."""

    def __init__(self, directory: Directory, *, max_wait_s: float, max_depth: int) -> None:
        self._directory = directory
        self._max_wait_s = max_wait_s
        self._max_depth = max_depth
        self._levels: dict[str, _Level] = {}
        self._lock = threading.Lock()

    def look(self, hardware: str) -> None:
        """Raise QueueFull if the lane takes nothing now, before anything costly is looked at."""
        now_s = time.monotonic()
        with self._lock:
            self._check_room(hardware, self._level(hardware, now_s))

    def admit(self, hardware: str, work: float, rate: Rate, deadline_s: float | None, *,
              measured: bool) -> tuple[float | None, float]:
        """Take a job on; the estimated wait (None with no live worker), and the seconds of work that it adds.

        Raises QueueFull or DeadlineUnmeetable, and then nothing is charged. `measured`: the rate is more than
        an assumption, so it may rule a deadline out for good.
        """
        cost_s = rate.cost_s(work)
        run_s = rate.alone_s(work)
        if deadline_s is not None and measured and run_s > deadline_s:
            raise _never(deadline_s, run_s)
        now_s = time.monotonic()
        with self._lock:
            level = self._level(hardware, now_s)
            self._check_room(hardware, level)
            wait_s = level.wait_s()
            if deadline_s is not None and wait_s + run_s > deadline_s:
                raise _late(deadline_s, wait_s, run_s)
            level.add(cost_s, 1, now_s)
            return (wait_s if level.lane.workers else None), cost_s

    def refund(self, jobs: Iterable[NewJob]) -> None:
        """These were admitted and then not stored."""
        now_s = time.monotonic()
        with self._lock:
            for job in jobs:
                self._level(job.hardware, now_s).add(-job.cost_s, -1, now_s)

    def wait_s(self, hardware: str) -> float | None:
        """Estimated wait of a job that arrives now; by one worker, where there is none. None: unknown."""
        if not self._directory.refreshed:
            return None
        with self._lock:
            return self._level(hardware, time.monotonic()).wait_s()

    def remaining_s(self, hardware: str, created_at: int) -> float | None:
        """Estimated wait of a queued job that was accepted then; None with no live worker.

        Where it stands in the queue is taken from its age: between the oldest and one that arrives now.
        """
        if not self._directory.refreshed:
            return None
        with self._lock:
            level = self._level(hardware, time.monotonic())
            whole_s, lane = level.wait_s(), level.lane
        if not lane.workers:
            return None
        backlog, now = lane.backlog, self._directory.now_ms()
        if backlog is None or backlog.oldest_at is None:
            return whole_s
        oldest = backlog.oldest_at + now - backlog.counted_at  # those before it went meanwhile
        if oldest >= now or created_at >= now:
            return whole_s
        return whole_s * min(1.0, max(0.0, (created_at - oldest) / (now - oldest)))

    def _level(self, hardware: str, now_s: float) -> _Level:
        level = self._levels.get(hardware)
        if level is None:
            level = self._levels[hardware] = _Level(now_s)
        level.flow(self._directory.lane(hardware), now_s)
        return level

    def _check_room(self, hardware: str, level: _Level) -> None:
        if not level.lane.workers:
            if level.jobs >= self._max_depth:
                raise QueueFull(
                    f"no worker of the class {hardware} is alive, and {level.jobs} jobs wait for one already",
                    retry_after_s=UNMANNED_RETRY_S)
            return
        wait_s = level.wait_s()
        if wait_s > self._max_wait_s:
            raise QueueFull(
                f"a job for {hardware} would wait for about {wait_s:.1f} s; up to {self._max_wait_s:g} s are "
                "taken on", retry_after_s=max(LEAST_RETRY_S, wait_s - self._max_wait_s),
                estimated_wait_s=round(wait_s, 1))


def _never(deadline_s: float, run_s: float) -> DeadlineUnmeetable:
    detail = (f"{deadline_s:g} s is less than this job runs even when nothing waits, about {run_s:.3g} s: "
              "give it more time")
    error = DeadlineUnmeetable(detail, faults=(Fault("/deadline_s", "unmeetable", detail),))
    error.retryable = False
    return error


def _late(deadline_s: float, wait_s: float, run_s: float) -> DeadlineUnmeetable:
    detail = (f"it would end in about {wait_s + run_s:.1f} s, after its deadline of {deadline_s:g} s: "
              "give it more time, or try again later")
    return DeadlineUnmeetable(
        detail, retry_after_s=max(LEAST_RETRY_S, wait_s + run_s - deadline_s),
        estimated_wait_s=round(wait_s, 1), faults=(Fault("/deadline_s", "unmeetable", detail),))


def shown_s(wait_s: float | None) -> float | None:
    """An estimate as clients see it: in tenths below a second, then in whole ones: no better than that."""
    if wait_s is None:
        return None
    return round(wait_s, 1) if wait_s < 1 else float(math.ceil(wait_s))
