"""Fair shares between tenants that wait: start-time fair queueing, in estimated seconds of compute.

P. Goyal, H. Vin, H. Cheng, "Start-time Fair Queuing" (SIGCOMM 1996): each tenant has a tag, the seconds that
it was given over its weight; the lowest goes first. Who begins to wait starts at the clock: idle time is no
credit. Our clock is the lowest tag of who waits (as in Linux's CFS), since priorities serve out of order.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence

from models.feed import Waiting

# Estimated seconds of compute of a job.
Cost = Callable[[Waiting], float]
LEAST_S = 1e-6  # so that each job moves its tenant's tag


class Shares:
    """The tags of one class. `weights`: of tenants whose weight isn't 1."""

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self.weights: Mapping[str, float] = weights or {}
        self._clock_s = 0.0
        self._tags: dict[str, float] = {}
        self._waiting: frozenset[str] = frozenset()

    def resume(self, used_s: Mapping[str, float]) -> None:
        """Take over from another process, after which tenants were given these seconds."""
        self._tags = {tenant: used / self._weight(tenant) for tenant, used in used_s.items()}

    def enter(self, tenants: Iterable[str]) -> None:
        """These wait now, and nobody else."""
        now = frozenset(tenants)
        if now == self._waiting or not now:
            self._waiting = now
            return
        for tenant in now - self._waiting:
            self._tags[tenant] = max(self._tags.get(tenant, 0.0), self._clock_s)
        self._clock_s = max(self._clock_s, min(self._tags[tenant] for tenant in now))
        self._tags = {tenant: tag for tenant, tag in self._tags.items()
                      if tag > self._clock_s or tenant in now}
        self._waiting = now

    def charge(self, jobs: Iterable[Waiting], cost: Cost) -> None:
        """These are on their way."""
        if len(self._tags) <= 1:
            return  # with nobody to compare it to, the clock may as well stand still
        for job in jobs:
            tenant = job.entry.tenant
            self._tags[tenant] = self.after(tenant, self._tags.get(tenant, self._clock_s), cost(job))
        if self._waiting:
            self._clock_s = max(self._clock_s, min(self._tags.get(each, 0.0) for each in self._waiting))

    def turn(self, cost: Cost) -> "Turn":
        """The order of one pick, which charges nothing by itself."""
        return Turn(self, cost)

    def tag(self, tenant: str) -> float:
        """Seconds over weight: the lowest goes first."""
        return max(self._tags.get(tenant, 0.0), 0.0 if tenant in self._waiting else self._clock_s)

    def _weight(self, tenant: str) -> float:
        return self.weights.get(tenant, 1.0)

    def after(self, tenant: str, tag: float, cost_s: float) -> float:
        return tag + max(LEAST_S, cost_s) / self._weight(tenant)


class Turn:
    """Tenants in their order, as if what was merged already were on its way (see `models.turn.Order`)."""

    def __init__(self, shares: Shares, cost: Cost) -> None:
        self._shares = shares
        self._cost = cost
        self._tags: dict[str, float] = {}

    def first(self, tenants: Iterable[str], count: int) -> Sequence[str]:
        return heapq.nsmallest(count, tenants, key=lambda tenant: (self._tag(tenant), tenant))

    def merge(self, queues: Mapping[str, Sequence[Waiting]]) -> list[Waiting]:
        out: list[Waiting] = []
        heap = [(self._tag(tenant), queue[0].entry.id, tenant, 0)
                for tenant, queue in queues.items() if queue]
        heapq.heapify(heap)
        while heap:
            tag, _, tenant, place = heap[0]
            queue = queues[tenant]
            out.append(queue[place])
            tag = self._tags[tenant] = self._shares.after(tenant, tag, self._cost(queue[place]))
            if place + 1 < len(queue):
                heapq.heapreplace(heap, (tag, queue[place + 1].entry.id, tenant, place + 1))
            else:
                heapq.heappop(heap)
        return out

    def _tag(self, tenant: str) -> float:
        return self._tags.get(tenant, self._shares.tag(tenant))
