"""The feeder: brings jobs that wait without a ticket, in their turn, while the window has room.

Marks first, commits, then publishes. Losing a ticket costs time and a second one costs an empty claim, so
nothing here needs to be exact; that no job is left behind for good is what must hold.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import redis
import structlog

from models import claim, contract, feed, incarnation, quota, rate, turn
from models.contract import INTERACTIVE
from models.database import Database, Transaction
from models.errors import Unavailable
from models.incarnation import Incarnation
from workers.housekeeping.turns import DUTY_SHARE, LATE_S, Turns
from workers.housekeeping.window import Limit, Packed, Window, pack

log = structlog.get_logger("headrace.housekeeping")

TICK_S = 0.25  # a net only: messages wake the feeder
MAX_ROWS = 2048  # picked in one transaction: 10 to 20 ms on SQLite, whose other writers wait meanwhile
LOST_AFTER_S = 2.0  # a marked job of an idle class whose ticket nobody has: it was lost
UNDER_WAY_S = 1.0  # from a commit with marks until its tickets are in the broker: else they are lost
MIN_BACKOFF_S, MAX_BACKOFF_S = 0.25, 2.0


@dataclass(slots=True)
class _Lane:
    """What the feeder remembers of one class between rounds."""

    window: Window = field(default_factory=Window)
    open: bool = True
    turns: Turns = field(default_factory=Turns)
    row_share: float = 1 / 1024  # of a batch, that a job filled lately; at first rather look at too many
    workers: list[Incarnation] = field(default_factory=list)
    scan_due_at: float = 0.0  # own monotonic clock
    search_due_at: float = 0.0
    idle_beats: dict[str, int] | None = None  # the workers' beats when the class was first seen idle


class Feeder:
    """One round feeds every class. Not thread-safe but for `wake`."""

    def __init__(self, database: Database, client: redis.Redis) -> None:
        self._database = database
        self._client = client
        self._lanes: dict[str, _Lane] = {}
        self._rates: dict[tuple[str, str], rate.Rate] = {}
        self._weights: dict[str, float] = {}
        self._refreshed_at = float("-inf")
        self._woken = threading.Event()
        self._news: deque[str] = deque()  # classes with rows left behind, as messages say
        self._returned: deque[tuple[str, str]] = deque()  # and the lowest id of jobs that came back
        self._backoff_s = 0.0

    def wake(self, hardware: str | None = None) -> None:
        """Something changed: rows were left behind in a class, or (None) jobs ended, so there is room."""
        if hardware is not None:
            self._news.append(hardware)
        elif all(lane.open for lane in list(self._lanes.values())):
            return  # nothing waits for the room
        self._woken.set()

    def returned(self, hardware: str, lowest: str) -> None:
        """Jobs from this id on wait again without a ticket, perhaps below where the last search began."""
        self._returned.append((hardware, lowest))
        self._woken.set()

    def run(self, stop: threading.Event, leads: Callable[[], bool]) -> None:
        """Feed whenever woken, and at each tick, while `leads()`."""
        while not stop.is_set():
            self._woken.wait(TICK_S)
            self._woken.clear()
            if not leads():
                self._lanes.clear()  # what it remembers will be another leader's past
                self._news.clear()
                self._returned.clear()
                continue
            try:
                self.round()
            except (redis.RedisError, OSError, Unavailable) as error:
                self._backoff_s = min(MAX_BACKOFF_S, max(MIN_BACKOFF_S, 2 * self._backoff_s))
                log.warning("feed_failed", detail=str(error), again_in_s=self._backoff_s)
                stop.wait(self._backoff_s)
            else:
                self._backoff_s = 0.0

    def round(self) -> int:
        """Feed each class as far as its window has room; how many jobs got a ticket.

        Raises Unavailable and redis.RedisError; nothing is left marked whose ticket wasn't sent.
        """
        news = {self._news.popleft() for _ in range(len(self._news))}
        returned = [self._returned.popleft() for _ in range(len(self._returned))]
        told = news | {hardware for hardware, _ in returned}
        if time.monotonic() - self._refreshed_at >= TICK_S or not told <= self._lanes.keys():
            try:
                self._refresh()
            except Unavailable:
                self._news.extend(news)
                self._returned.extend(returned)
                raise
        for hardware in news & self._lanes.keys():
            lane = self._lanes[hardware]
            if lane.open:  # not a new arrival behind others, so perhaps an old job that came back
                lane.turns.forget()
            lane.turns.heard()
            lane.open = False
        for hardware, lowest in returned:
            if hardware in self._lanes:
                self._lanes[hardware].turns.came_back(lowest)
                self._lanes[hardware].open = False
        return sum(self._feed(hardware, lane) for hardware, lane in self._lanes.items())

    def _refresh(self) -> None:
        with self._database.read() as tx:
            states = feed.states(tx)
            live = incarnation.live(tx)
            self._rates = rate.every(tx)
            self._weights = quota.weights(tx)
        for hardware, name, is_open in states:
            if name != INTERACTIVE:
                continue
            lane = self._lanes.setdefault(hardware, _Lane())
            lane.open = is_open
            workers = [each for each in live if each.kind == incarnation.WORKER and each.hardware == hardware
                       and INTERACTIVE in (each.lanes or "").split(",")]
            if {w.id for w in lane.workers} - {w.id for w in workers}:
                lane.turns.forget()  # what a lost worker held has come back
            lane.workers = workers
        self._refreshed_at = time.monotonic()

    def _feed(self, hardware: str, lane: _Lane) -> int:
        queue = contract.queue_name(hardware, INTERACTIVE)
        if lane.open:
            with self._database.read() as tx:
                left = lane.turns.left(tx, hardware)
            if not left:
                self._search(hardware, lane, queue)
                return 0
        total = 0
        length = self._length(queue)
        if not length and not lane.workers and self._under_way(hardware):
            return 0  # the API's last ticket before it closed the lane: with nobody to take it, one is enough
        while (room := lane.window.room(length, len(lane.workers))) > 0:
            packed, short = self._mark(hardware, lane, room)
            if packed:
                length = self._publish(hardware, lane, queue, packed)
                shares = [each.share for each in packed]
                jobs = sum(len(each.ticket.entries) for each in packed)
                lane.window.published(shares)
                lane.row_share = sum(shares) / jobs
                total += jobs
            if short:
                if not packed:
                    self._search(hardware, lane, queue)
                break
        return total

    def _under_way(self, hardware: str) -> bool:
        with self._database.read() as tx:
            return feed.under_way(tx, hardware, UNDER_WAY_S)

    def _length(self, queue: str) -> int:
        return int(self._client.llen(queue))

    def _mark(self, hardware: str, lane: _Lane, room: float) -> tuple[list[Packed], bool]:
        """Pick and mark what fits; and whether nothing was left without a ticket behind it."""
        now = time.monotonic()
        if now >= lane.scan_due_at:
            lane.turns.forget()
        scan = not lane.turns.cursors
        cost = self._cost_of(hardware)
        lane.turns.shares.weights = self._weights
        limit = int(min(MAX_ROWS, max(contract.MAX_ENTRIES, room / lane.row_share + 1)))

        def work(tx: Transaction) -> tuple[turn.Picked, list[Packed], bool]:
            waiting = lane.turns.pick(tx, hardware, limit, cost)
            if not waiting and lane.turns.remembers and lane.turns.left(tx, hardware):
                lane.turns.forget()
                waiting = lane.turns.pick(tx, hardware, limit, cost)
            packed = pack(waiting, lambda name: self._limit(name, hardware), room)
            marked = sum(len(each.ticket.entries) for each in packed)
            feed.mark(tx, [entry.id for each in packed for entry in each.ticket.entries])
            short = marked == len(waiting) and not waiting.more
            is_open = lane.open
            if short and not is_open:
                is_open = lane.turns.reopen(tx, hardware)
            elif not short and is_open:
                feed.close(tx, hardware, INTERACTIVE)
                is_open = False
            lane.open = is_open
            return waiting, packed, short

        waiting, packed, short = self._database.write(work, durable=False)
        if scan:
            lane.scan_due_at = now + max(LATE_S, (time.monotonic() - now) / DUTY_SHARE)
        lane.turns.taken(waiting, {entry.id for each in packed for entry in each.ticket.entries}, cost)
        return packed, short

    def _cost_of(self, hardware: str) -> Callable[[feed.Waiting], float]:
        def cost_s(job: feed.Waiting) -> float:
            learned = self._rates.get((job.network, hardware)) or rate.assumed(job.network, {})
            return learned.cost_s(job.entry.work)

        return cost_s

    def _limit(self, network: str, hardware: str) -> Limit:
        learned = self._rates.get((network, hardware))
        return Limit(learned.batch_items, learned.batch_work) if learned else Limit()

    def _publish(self, hardware: str, lane: _Lane, queue: str, packed: Sequence[Packed]) -> int:
        """Send tickets, the first one to be taken first; the queue's length. Unmarks them if that fails."""
        messages = [contract.encode_ticket(each.ticket, queue) for each in packed]
        try:
            return int(self._client.lpush(queue, *messages))
        except (redis.RedisError, OSError):
            unsent = [entry.id for each in packed for entry in each.ticket.entries]

            def give_up(tx: Transaction) -> None:
                claim.unmark(tx, unsent)
                feed.close(tx, hardware, INTERACTIVE)

            lane.turns.forget()
            lane.open = False
            self._database.write(give_up, durable=False)
            raise

    def _search(self, hardware: str, lane: _Lane, queue: str) -> None:
        """Notice tickets that were lost (broker emptied, pop lost, buffer dropped): forget the class's marks.

        Lost means: marked some time ago and still waiting, while no ticket is queued and every worker has
        said twice, with a beat between, that it buffers nothing.
        """
        busy = any(worker.holding.get("buffered", 0) for worker in lane.workers)
        now = time.monotonic()
        if busy or now < lane.search_due_at:
            lane.idle_beats = None if busy else lane.idle_beats
            return
        with self._database.read() as tx:
            found = feed.overdue(tx, hardware, LOST_AFTER_S)
        lane.search_due_at = now + (time.monotonic() - now) / DUTY_SHARE
        beats = {worker.id: worker.beats for worker in lane.workers}
        if not found or self._length(queue):
            lane.idle_beats = None
        elif lane.idle_beats is None or lane.idle_beats.keys() != beats.keys():
            lane.idle_beats = beats
        elif all(beats[worker] > lane.idle_beats[worker] for worker in beats):
            self._forget(hardware, lane)

    def _forget(self, hardware: str, lane: _Lane) -> None:
        def work(tx: Transaction) -> int:
            cleared = feed.clear_marks(tx, hardware)
            feed.close(tx, hardware, INTERACTIVE)
            return cleared

        cleared = self._database.write(work, durable=False)
        log.warning("tickets_lost", hardware=hardware, jobs=cleared)
        lane.turns.forget()
        lane.idle_beats = None
        lane.open = False
        self._woken.set()
