"""The batches in progress (at most two): who has the device, and whether the database knows that it began."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from models.claim import Claimed, Outcome
from workers.isolation import Meter
from workers.scheduler import Batch


@dataclass(slots=True, eq=False)
class Running:
    """A batch in progress."""

    batch: Batch
    claimed: Sequence[Claimed] = ()
    begun: bool = False  # as far as the database knows, or will once the batch before is settled
    past_device: bool = False
    struck: bool = False  # its tickets know that it was claimed
    outcomes: list[Outcome] = field(default_factory=list)
    meter: Meter = field(default_factory=Meter)

    @property
    def unrun(self) -> list[str]:
        """Claimed jobs without an outcome."""
        ended = {each.id for each in self.outcomes}
        return [job.id for job in self.claimed if job.id not in ended]


class Inflight:
    """In the order in which they were taken. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: list[Running] = []

    def __len__(self) -> int:
        """Jobs claimed and not settled."""
        with self._lock:
            return sum(len(each.claimed) for each in self._running)

    def add(self, running: Running) -> bool:
        """A batch was taken; whether the device is idle, so that its claim may say that it begins."""
        with self._lock:
            self._running.append(running)
            return all(each.past_device for each in self._running if each is not running)

    def claimed(self, running: Running, jobs: Sequence[Claimed], *, begun: bool) -> None:
        with self._lock:
            running.claimed, running.begun = jobs, begun

    def reached(self, running: Running) -> bool:
        """A batch has its turn at the device; whether somebody has written, or will write, that it began.

        The settle of a batch before it does so, unless that one left the device before this one was claimed.
        """
        with self._lock:
            before = self._running[:self._running.index(running)]
            told = running.begun or any(not each.past_device for each in before)
            running.begun = running.begun or not told
            return told

    def left(self, running: Running) -> list[str]:
        """A batch is past the device; the jobs of the next one, which its settle is to mark as begun."""
        with self._lock:
            running.past_device = True
            following = [each for each in self._running
                         if each is not running and each.claimed and not each.begun]
            for each in following:
                each.begun = True
            return [job.id for each in following for job in each.claimed]

    def more(self, running: Running) -> bool:
        """Whether another batch is in progress beside this one: such a one was full when it was taken."""
        with self._lock:
            return any(each is not running for each in self._running)

    def remove(self, running: Running) -> None:
        with self._lock:
            self._running.remove(running)
