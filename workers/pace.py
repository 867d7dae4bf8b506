"""How fast this worker really gets through a backlog, against what its learned rates say (pure).

The rates are of one batch by itself, in CPU time and waits for the device. What they leave out is how the
batches overlap, what padding and half-full ones cost, and who else needs this machine's cores.
"""

import math
import threading

MEMORY_S = 8.0  # of saturated time: older measurements lose their say
PRIOR_S = 1.0  # the weight of "as learned", until there are measurements


class Pace:
    """`value`: learned seconds of work done in a second, measured only while more work was at hand."""

    def __init__(self) -> None:
        self._done_s = PRIOR_S
        self._passed_s = PRIOR_S
        self._since_s: float | None = None
        self._lock = threading.Lock()  # of two batches in progress, either may be settled first

    @property
    def value(self) -> float:
        return self._done_s / self._passed_s

    def settled(self, cost_s: float, now_s: float, *, more: bool) -> None:
        """Jobs of this learned cost were settled. `more`: another full batch was in progress meanwhile.

        Only the time between two such moments counts: then the worker never waited for work.
        """
        with self._lock:
            if self._since_s is not None:
                passed_s = max(0.0, now_s - self._since_s)
                kept = math.exp(-passed_s / MEMORY_S)
                self._done_s = self._done_s * kept + cost_s
                self._passed_s = self._passed_s * kept + passed_s
            self._since_s = now_s if more else None
