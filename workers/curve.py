"""What a network costs on this machine: seconds = overhead + per_work x work, learned on line (pure).

Observations are kept by size, one bucket for each doubling of work: a load that always brings the same size
does not make the line forget its slope, and the batch limit follows what was measured, not a straight line
where the device bends.
"""

import math
from dataclasses import dataclass

BATCH_S = 0.25  # the longest one batch may take: bounds how long an urgent job waits for the device
NEAR_BEST = 0.95  # take the smallest batch whose throughput is this near to the best one seen
RECENT = 0.2  # weight of a new observation in its bucket
FADE = 0.98  # how fast a bucket that isn't seen any more loses its say in the line
LEAST_SAY = 0.05
OUTLIER = 4.0  # a stopped process or a busy host says nothing about the network


@dataclass(slots=True)
class _Bucket:
    work: float
    seconds: float
    count: int
    seen_at: int  # in observations


class Curve:
    """l(w) = overhead_s + per_work_s x w, and the work limit of a batch. Work is as estimated at accept."""

    def __init__(self) -> None:
        self.overhead_s = 0.0
        self.per_work_s = 0.0
        self._buckets: dict[int, _Bucket] = {}
        self._observations = 0
        self._ceiling = math.inf  # work that ran out of memory is never tried again

    @property
    def known(self) -> bool:
        return bool(self._buckets)

    def seed(self, overhead_s: float, per_work_s: float, batch_work: float) -> None:
        """Start from what an earlier process learned."""
        for work in (1.0, max(1.0, batch_work / 2)):
            self.observe(work, overhead_s + per_work_s * work)

    def predict(self, work: float) -> float:
        """Seconds that a batch of this work takes."""
        return self.overhead_s + self.per_work_s * work

    def observe(self, work: float, seconds: float) -> None:
        """Learn that a batch of `work` took `seconds`."""
        work = max(work, 1e-9)
        self._observations += 1
        bucket = self._buckets.get(_index(work))
        if bucket is None:
            self._buckets[_index(work)] = _Bucket(work, seconds, 1, self._observations)
        else:
            if bucket.count >= 3:
                seconds = min(seconds, OUTLIER * bucket.seconds * work / bucket.work)
            share = max(RECENT, 1 / (bucket.count + 1))
            bucket.work += share * (work - bucket.work)
            bucket.seconds += share * (seconds - bucket.seconds)
            bucket.count += 1
            bucket.seen_at = self._observations
        self._fit()

    def halve(self, work: float) -> None:
        """A batch of `work` ran out of memory: from now on at most half of it."""
        self._ceiling = min(self._ceiling, work / 2)

    def limit(self) -> float:
        """The work of the smallest batch within 5 % of the best throughput, run in at most BATCH_S.

        While the largest size measured is the best one, the next doubling is tried.
        """
        inside = {at: each for at, each in self._buckets.items() if each.seconds <= BATCH_S}
        if not inside:
            # Even one item takes longer than a batch may: run what there is one by one.
            return min(self._ceiling, min((each.work for each in self._buckets.values()), default=math.inf))
        best = max(each.work / each.seconds for each in inside.values())
        chosen = min(at for at, each in inside.items() if each.work / each.seconds >= NEAR_BEST * best)
        edge = math.ldexp(1.0, chosen + 1)
        if chosen == max(self._buckets):
            edge *= 2
        if self.per_work_s > 0:
            edge = min(edge, max((BATCH_S - self.overhead_s) / self.per_work_s, inside[chosen].work))
        return min(edge, self._ceiling)

    def _fit(self) -> None:
        # Least squares of the relative error: small batches show the overhead, so they count as much.
        weight = weighted_work = weighted_square = weighted_seconds = weighted_product = 0.0
        for each in self._buckets.values():
            say = max(LEAST_SAY, FADE ** (self._observations - each.seen_at)) / max(each.seconds, 1e-9) ** 2
            weight += say
            weighted_work += say * each.work
            weighted_square += say * each.work * each.work
            weighted_seconds += say * each.seconds
            weighted_product += say * each.work * each.seconds
        spread = weight * weighted_square - weighted_work**2
        if len(self._buckets) < 2 or spread <= 1e-12 * weight * weighted_square:
            self.overhead_s, self.per_work_s = 0.0, weighted_seconds / weighted_work
            return
        slope = (weight * weighted_product - weighted_work * weighted_seconds) / spread
        start = (weighted_seconds - slope * weighted_work) / weight
        if slope <= 0:
            self.overhead_s, self.per_work_s = weighted_seconds / weight, 0.0
        elif start < 0:
            self.overhead_s, self.per_work_s = 0.0, weighted_product / weighted_square
        else:
            self.overhead_s, self.per_work_s = start, slope


def _index(work: float) -> int:
    return math.frexp(work)[1] - 1
