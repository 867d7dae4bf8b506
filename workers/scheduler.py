"""Which buffered jobs run next (pure: no clock, no I/O, no threads).

Work-conserving: whoever asks gets the most urgent work there is now; batches fill by themselves while the
device is busy. One network a batch; its limit is work as well as a count; suspects run with none but those of
their ticket.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from models import contract
from workers import batching

LOOKAHEAD = 256  # entries among which a padded batch looks for neighbours of like length
SHORT_S = 0.05  # of batches shorter than this the buffer holds two, else one
Order = tuple[int, int, float, str]


@dataclass(frozen=True, slots=True)
class Profile:
    """What is known of a loaded network: its limits and its learned line."""

    max_items: int
    max_work: float
    padded: bool = False
    max_delay_s: float = 0.0
    overhead_s: float = 0.0
    per_work_s: float = 0.0


@dataclass(slots=True, eq=False)
class Pending:
    """One entry of a ticket, not claimed yet. `source` is whatever the caller struck it from."""

    entry: contract.Entry
    network: str
    order: Order
    arrived_s: float
    source: Any
    alone: bool


@dataclass(slots=True)
class Batch:
    """Jobs to claim and run together."""

    network: str
    pending: list[Pending]
    alone: bool = False

    @property
    def ids(self) -> list[str]:
        """Job ids, each once, although two tickets may name the same job."""
        return list(dict.fromkeys(each.entry.id for each in self.pending))


@dataclass(slots=True)
class _Queue:
    waiting: list[Pending] = field(default_factory=list)
    sorted: bool = True
    work: float = 0.0

    def add(self, pending: Pending) -> None:
        if self.waiting and pending.order < self.waiting[-1].order:
            self.sorted = False
        self.waiting.append(pending)
        self.work += pending.entry.work

    def in_order(self) -> list[Pending]:
        if not self.sorted:
            self.waiting.sort(key=lambda each: each.order)
            self.sorted = True
        return self.waiting

    def remove(self, taken: list[Pending]) -> None:
        # Mostly the first ones: then this is a cut.
        if all(a is b for a, b in zip(self.waiting, taken, strict=False)):
            del self.waiting[:len(taken)]
        else:
            gone = set(map(id, taken))
            self.waiting = [each for each in self.waiting if id(each) not in gone]
        left = self.work - math.fsum(each.entry.work for each in taken)
        self.work = max(0.0, left) if self.waiting else 0.0


Profiles = Callable[[str], Profile | None]


class Scheduler:
    """The buffer of one worker. Not thread-safe: its caller holds a lock."""

    def __init__(self) -> None:
        self._queues: dict[str, _Queue] = {}
        self._alone: list[Pending] = []
        self.expired: list[Pending] = []  # dropped by `take`: too late for their deadline
        self.wake_s: float | None = None  # when a batch that `take` held back for its wait window is due

    def __len__(self) -> int:
        return sum(len(queue.waiting) for queue in self._queues.values()) + len(self._alone)

    def add(self, ticket: contract.Ticket, source: Any, now_s: float) -> None:
        lane = contract.LANES.index(ticket.lane) if ticket.lane in contract.LANES else len(contract.LANES)
        self.put_back(Pending(
            entry, ticket.network,
            (lane, entry.priority, math.inf if entry.deadline_at is None else entry.deadline_at, entry.id),
            now_s, source, ticket.alone) for entry in ticket.entries)

    def put_back(self, pending: Iterable[Pending]) -> None:
        """Buffer entries again whose batch could not be claimed."""
        for each in pending:
            if each.alone:
                self._alone.append(each)
                self._alone.sort(key=lambda waiting: waiting.order)
            else:
                self._queues.setdefault(each.network, _Queue()).add(each)

    def networks(self) -> set[str]:
        """Networks that have entries waiting."""
        return {name for name, queue in self._queues.items() if queue.waiting} | {
            each.network for each in self._alone}

    def remove(self, unwanted: Callable[[Pending], bool]) -> list[Pending]:
        """Take out every entry that `unwanted` says so of."""
        out = [each for each in self._alone if unwanted(each)]
        self._alone = [each for each in self._alone if not unwanted(each)]
        for queue in self._queues.values():
            gone = [each for each in queue.waiting if unwanted(each)]
            if gone:
                queue.in_order()
                queue.remove(gone)
                out += gone
        return out

    def ready(self, profile_of: Profiles, *, only_full: bool) -> bool:
        """Whether `take` would find something, but for wait windows and deadlines."""
        best = self._best(profile_of)
        if best is None:
            return False
        if best.alone:
            return not only_full
        return not only_full or _share(self._queues[best.network], profile_of(best.network)) >= 1

    def hungry(self, profile_of: Profiles, refused: Callable[[str], bool]) -> bool:
        """Whether another ticket is wanted: about two short batches or a long one beyond what is claimed.

        What waits for its engine counts as one batch, so that it doesn't keep others out; what was `refused`
        as nothing.
        """
        total, loading, wanted = float(len({id(each.source) for each in self._alone})), 0.0, 2.0
        for name, queue in self._queues.items():
            if not queue.waiting:
                continue
            profile = profile_of(name)
            if profile is not None:
                total += _share(queue, profile)
                if _seconds(queue, profile) > SHORT_S:
                    wanted = 1.0
            elif not refused(name):
                loading = 1.0
        return total + loading < wanted

    def take(self, profile_of: Profiles, *, now_s: float, now_ms: int, only_full: bool) -> Batch | None:
        """The next batch, removed from the buffer; None if nothing is to run now.

        `only_full`: the device is busy, so take only a batch that waiting can't better, and no suspect.
        Fills `expired` and `wake_s`.
        """
        self.wake_s = None
        held_back: set[str] = set()
        while True:
            best = self._best(profile_of, held_back)
            if best is None:
                return None
            if best.alone:
                if only_full:
                    return None  # it waits until nothing else is claimed, and nothing overtakes it
                company = self._company(best, profile_of)
                late = [each for each in company if _expired(each, now_ms)]
                self.expired += late
                company = [each for each in company if each not in late]
                if not company:
                    continue
                return Batch(best.network, company, alone=True)
            queue, profile = self._queues[best.network], profile_of(best.network)
            if profile is None:
                continue  # unloaded since `_best` looked
            self._drop_late(queue, profile, now_ms)
            if not queue.waiting:
                continue
            full = _share(queue, profile) >= 1
            if not full:
                if only_full:
                    return None
                due_s = min(each.arrived_s for each in queue.waiting) + profile.max_delay_s
                if profile.max_delay_s and due_s > now_s:
                    self.wake_s = due_s if self.wake_s is None else min(self.wake_s, due_s)
                    held_back.add(best.network)
                    continue
            chosen = _choose(queue, profile)
            queue.remove(chosen)
            return Batch(best.network, chosen)

    def _company(self, best: Pending, profile_of: Profiles) -> list[Pending]:
        """Remove a suspect and those of its ticket that fit into one batch with it: mostly it comes alone."""
        found = [each for each in self._alone
                 if each.source is best.source and each.network == best.network]
        profile = profile_of(best.network)
        count = 1 if profile is None else batching.prefix(
            [each.entry.work for each in found], max_items=profile.max_items, max_work=profile.max_work)
        chosen = found[:max(1, count)]
        gone = set(map(id, chosen))
        self._alone = [each for each in self._alone if id(each) not in gone]
        return chosen

    def _best(self, profile_of: Profiles, but: Iterable[str] = ()) -> Pending | None:
        return min(self._heads(profile_of, but), key=lambda each: each.order, default=None)

    def _heads(self, profile_of: Profiles, but: Iterable[str]) -> Iterator[Pending]:
        for name, queue in self._queues.items():
            if queue.waiting and name not in but and profile_of(name) is not None:
                yield queue.in_order()[0]
        for each in self._alone:
            if profile_of(each.network) is not None:
                yield each
                break

    def _drop_late(self, queue: _Queue, profile: Profile, now_ms: int) -> None:
        waiting = queue.in_order()
        if all(each.entry.deadline_at is None for each in waiting):
            return
        # What can't be met is dropped only if more waits than one batch holds: shrinking the batch to rescue
        # it would lose more, and an idle device may as well try.
        crowded = _share(queue, profile) > 1
        ahead_ms = 1000 * _seconds(queue, profile) if crowded else 0.0
        late = [each for each in waiting if _expired(each, now_ms + ahead_ms)]
        if late:
            queue.remove(late)
            self.expired += late


def _expired(pending: Pending, now_ms: float) -> bool:
    return pending.entry.deadline_at is not None and pending.entry.deadline_at <= now_ms


def _share(queue: _Queue, profile: Profile | None) -> float:
    if profile is None or not queue.waiting:
        return 0.0
    return max(len(queue.waiting) / profile.max_items, queue.work / profile.max_work)


def _seconds(queue: _Queue, profile: Profile) -> float:
    """How long the next batch of this queue takes."""
    return profile.overhead_s + profile.per_work_s * min(queue.work, profile.max_work)


def _choose(queue: _Queue, profile: Profile) -> list[Pending]:
    waiting = queue.in_order()
    if not profile.padded:
        works = [each.entry.work for each in waiting[:profile.max_items + 1]]
        return waiting[:batching.prefix(works, max_items=profile.max_items, max_work=profile.max_work)]
    near = waiting[:LOOKAHEAD]
    chosen = batching.around([each.entry.work for each in near], 0, max_items=profile.max_items,
                             max_work=profile.max_work)
    return [near[index] for index in sorted(chosen)]
