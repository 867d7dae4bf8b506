"""How much work waits in each lane, in seconds of one worker's time, and how fast its workers get through it.

Housekeeping counts, and its heartbeat carries the figures: no row is written for them that isn't written
anyway, and accepting jobs never meets a lock of theirs.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from models import incarnation
from models.contract import INTERACTIVE
from models.feed import Tally
from models.incarnation import Incarnation
from models.rate import Rate

HOLDING = "backlogs"  # under which a heartbeat of housekeeping carries them
# A worker's own word on its pace is believed within these bounds.
LEAST_PACE, MOST_PACE = 0.05, 20.0


@dataclass(frozen=True, slots=True)
class Backlog:
    """One lane when it was last counted; times are ms since the epoch by the database's clock.

    `work_s`: what one worker at its learned rates would need for all that waits and all that is claimed.
    """

    hardware: str
    lane: str
    depth: int
    in_flight: int
    work_s: float
    oldest_at: int | None
    counted_at: int

    def wait_s(self, drain: float) -> float:
        """How long that takes where `drain` learned seconds are done in a second; by one worker, if none."""
        return self.work_s / (drain or 1.0)


def pack(backlogs: Iterable[Backlog]) -> list[list[Any]]:
    """What a heartbeat carries, as JSON."""
    return [[each.hardware, each.lane, each.depth, each.in_flight, round(each.work_s, 3), each.oldest_at,
             each.counted_at] for each in backlogs]


def latest(live: Iterable[Incarnation]) -> dict[tuple[str, str], Backlog]:
    """(class, lane) to its newest count, of all that live housekeeping processes carry."""
    found: dict[tuple[str, str], Backlog] = {}
    for each in live:
        if each.kind != incarnation.HOUSEKEEPING:
            continue
        for row in each.holding.get(HOLDING, ()):
            one = Backlog(*row)
            known = found.get((one.hardware, one.lane))
            if known is None or known.counted_at < one.counted_at:
                found[one.hardware, one.lane] = one
    return found


def drains(live: Iterable[Incarnation], lane: str = INTERACTIVE) -> dict[str, float]:
    """Class to the learned seconds of work that its live workers get through in a second.

    One a worker, times the pace that it measured: how its learned rates compare with what it gets done while
    jobs wait, with all that shares its machine.
    """
    out: dict[str, float] = {}
    for each in live:
        if each.kind != incarnation.WORKER or not each.hardware:
            continue
        if lane in (each.lanes or INTERACTIVE).split(","):
            pace = min(MOST_PACE, max(LEAST_PACE, float(each.holding.get("pace", 1.0))))
            out[each.hardware] = out.get(each.hardware, 0.0) + pace
    return out


def work_s(tallies: Iterable[Tally], rates: Mapping[tuple[str, str], Rate]) -> float:
    """Seconds that one worker needs for all this. `rates`: (network, class) to learned or assumed."""
    total = 0.0
    for tally in tallies:
        rate = rates[tally.network, tally.hardware]
        batches = max(math.ceil(tally.count / max(1, rate.batch_items)),
                      math.ceil(tally.work / rate.batch_work) if rate.batch_work > 0 else 1)
        total += batches * rate.overhead_s + tally.work * rate.per_work_s
    return total


def unrated(tallies: Iterable[Tally], rates: Mapping[tuple[str, str], Rate]) -> Sequence[str]:
    """Networks, as `name@version`, of which nothing is known on a class that they wait for."""
    return sorted({tally.network for tally in tallies if (tally.network, tally.hardware) not in rates})

