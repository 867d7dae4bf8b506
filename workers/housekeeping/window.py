"""How much may lie in the broker, and how picked jobs are packed into tickets. Values in, values out."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from models.contract import INTERACTIVE, MAX_ENTRIES, Ticket
from models.feed import Waiting

REMEMBERED = 4096  # tickets of one queue whose share is remembered
UNLEARNED_ITEMS = 64
SLIVER = 1e-9
FULL = 1.0 + SLIVER  # of one batch: 49 shares of a 49th sum to a little more than 1


@dataclass(frozen=True, slots=True)
class Limit:
    """One learned batch of a network on a class."""

    items: int = UNLEARNED_ITEMS
    work: float = float("inf")

    def share(self, work: float) -> float:
        """How much of one batch a job of this work fills, 0 to 1."""
        return min(1.0, max(1 / max(1, self.items), work / self.work if self.work > 0 else 1.0))


@dataclass(slots=True)
class Window:
    """What is believed to lie in one queue, in batches: its length is measured, the shares are remembered."""

    recent: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def published(self, shares: Sequence[float]) -> None:
        self.recent.extend(shares)

    def ticket_share(self) -> float:
        """The share of a batch that a ticket held lately; a whole one while nothing is known."""
        last = list(self.recent)[-16:]
        return sum(last) / len(last) if last else 1.0

    def room(self, length: int, workers: int) -> float:
        """Batches that may be added to a queue of `length` tickets, so that it holds one a live worker.

        An empty queue takes at least one ticket, so that work is there for the first worker that starts.
        """
        if length == 0:
            return max(float(workers), SLIVER)
        mine = list(self.recent)[-length:]
        held = sum(mine) + (length - len(mine)) * self.ticket_share()
        room = workers - held
        # A sliver would be fed as slivers: rather wait until a whole ticket fits.
        return room if room >= self.ticket_share() - SLIVER else 0.0


@dataclass(frozen=True, slots=True)
class Packed:
    """A ticket, and its share of one learned batch of its network."""

    ticket: Ticket
    share: float


def pack(waiting: Sequence[Waiting], limit_of: Callable[[str], Limit], room: float) -> list[Packed]:
    """Tickets for these jobs in order, until `room` batches are used; at least one if any job waits.

    A ticket holds one network, at most MAX_ENTRIES jobs and at most one learned batch; a suspect goes alone,
    or with those of its company.
    """
    packed: list[list[Waiting]] = []
    shares: list[float] = []
    # Network, and whose suspects, to the ticket that still takes such jobs.
    current: dict[tuple[str, str | None], int] = {}
    used = 0.0
    for job in waiting:
        whose, size = job.company or (None, 1 if job.suspect else MAX_ENTRIES)
        share = limit_of(job.network).share(job.entry.work) if size > 1 else 1.0
        place = current.get((job.network, whose)) if size > 1 else None
        if place is None or len(packed[place]) >= min(size, MAX_ENTRIES) or shares[place] + share > FULL:
            if packed and used + share > room + SLIVER:
                break
            place = len(packed)
            packed.append([])
            shares.append(0.0)
            if size > 1:
                current[job.network, whose] = place
        packed[place].append(job)
        shares[place] += share
        used += share
    return [Packed(Ticket(jobs[0].network, INTERACTIVE, tuple(job.entry for job in jobs), jobs[0].suspect),
                   share) for jobs, share in zip(packed, shares, strict=True)]
