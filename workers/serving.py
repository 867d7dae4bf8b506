"""A loaded network: its engine, its task, what it has learned about itself, and its warm-up."""

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from models import manifest as manifests
from models.network import Network
from models.rate import Rate
from workers import batching
from workers.curve import BATCH_S, Curve
from workers.engine import Engine, EngineOutOfMemory
from workers.scheduler import Profile
from workers.tasks.base import Item, Task

WARM_UP_S = 0.5
PADDING_SLACK = 1.25  # estimates at accept are rough: rather one run a bit larger than two, one of them tiny
SAMPLE_WORK = 32.0  # of one made-up item where its size is free: a sentence of text
# What a batch and each of its jobs cost beside the device, until real ones have shown it (measured).
BATCH_OVERHEAD_S = 0.0015
ITEM_OVERHEAD_S = 0.00004
MEMORY_SHARE = 0.5  # of the machine's memory that the files of loaded networks may take up together


def memory_bytes() -> int:
    """What networks may take of this machine's memory."""
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * MEMORY_SHARE)


@dataclass(slots=True, eq=False)
class Loaded:
    """A network that is ready to run here. `profile` is replaced as a whole: reading it needs no lock."""

    reference: str
    digest: str
    engine: Engine
    task: Task
    max_items: int
    max_work: float
    max_delay_s: float
    size_bytes: int
    pinned: bool
    curve: Curve = field(default_factory=Curve)
    profile: Profile = field(init=False)
    users: int = 0  # batches in progress: it isn't closed under them
    used_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.profile = self._profiled()

    def learn(self, work: float, seconds: float) -> None:
        """A batch of this cost took that long, from claim to settle, waits for the device left out."""
        with self._lock:
            self.curve.observe(work, seconds)
            self.profile = self._profiled()

    def ran_out_of_memory(self, work: float) -> None:
        """A run of this cost did not fit: never try more than half of it again."""
        with self._lock:
            self.curve.halve(work)
            self.profile = self._profiled()

    def runs(self, items: Sequence[Item], works: Sequence[float]) -> list[list[int]]:
        """How a batch is cut into runs: indices of items. `works`: their cost as estimated at accept."""
        if not items:
            return []
        profile, max_work = self.profile, float("inf")
        if profile.padded:  # the limit is in work as estimated at accept; the lengths are real now
            real, estimated = sum(item.work for item in items), sum(works)
            max_work = PADDING_SLACK * profile.max_work * (real / estimated if estimated > 0 else 1.0)
        return batching.runs(items, padded=profile.padded, max_items=profile.max_items, max_work=max_work)

    def rate(self) -> Rate:
        """What others should know of its speed."""
        known = self.profile
        return Rate(self.reference, known.overhead_s, known.per_work_s, known.max_work, known.max_items)

    def try_once(self) -> None:
        """Run one made-up item. Raises whatever the engine or the task does."""
        self._sample_s(1)

    def warm_up(self, known: Rate | None) -> None:
        """Run made-up batches of doubling size, until they take half a second together, or get no better.

        With a known rate one run is enough. Whatever a run raises passes through: what can't run its own
        samples can't be served.
        """
        self._sample_s(1)  # the first run allocates, and would teach a wrong overhead
        if known is not None:
            with self._lock:
                self.curve.seed(known.overhead_s, known.per_work_s, known.batch_work)
                self.profile = self._profiled()
            return
        end_s = time.monotonic() + WARM_UP_S
        count, last_s = 1, 0.0
        while count <= self.max_items and time.monotonic() + 2 * last_s < end_s and last_s < BATCH_S:
            try:
                work, last_s = self._sample_s(count)
            except EngineOutOfMemory:
                if count == 1:
                    raise
                self.ran_out_of_memory(SAMPLE_WORK * count)
                return
            if count > 1 and work > self.max_work:
                return
            self.learn(work, last_s + BATCH_OVERHEAD_S + count * ITEM_OVERHEAD_S)
            count *= 2

    def _sample_s(self, count: int) -> tuple[float, float]:
        """Work and seconds on the device of a made-up batch: of its items that share a key."""
        items = self.task.sample(count, SAMPLE_WORK)
        run = batching.runs(items, padded=False, max_items=count, max_work=float("inf"))[0]
        items = [items[index] for index in run]
        feeds = self.task.stack(items)
        started_s = time.perf_counter()
        arrays = self.engine.run(feeds, self.task.outputs)
        seconds = time.perf_counter() - started_s
        self.task.split(arrays, items)
        return batching.cost([item.work for item in items], padded=self.task.padded), seconds

    def _profiled(self) -> Profile:
        return Profile(self.max_items, max(min(self.curve.limit(), self.max_work), 1e-9), self.task.padded,
                       self.max_delay_s, self.curve.overhead_s, self.curve.per_work_s)


def loaded(network: Network, engine: Engine, task: Task) -> Loaded:
    """An engine and its task with the limits of their manifest, not warmed up yet."""
    limits = network.manifest["batching"]
    return Loaded(
        network.reference, network.digest, engine, task,
        max_items=limits["max_items"] or manifests.MAX_ITEMS,
        max_work=float(limits["max_work"] or "inf"),
        max_delay_s=limits["max_delay_ms"] / 1000,
        size_bytes=sum(int(file["size"]) for file in network.files.values()),
        pinned=bool(network.manifest["pinned"]), used_s=time.monotonic())
