"""The publisher: tickets off the request path, merged, over a bounded queue, behind a breaker.

A stopped or frozen broker costs a submit nothing: what can't be published is unmarked and left to the feeder.
"""

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import redis
import structlog

from models import claim, contract, feed
from models.contract import INTERACTIVE, MAX_ENTRIES, Entry
from models.database import Database, Transaction
from models.errors import HeadraceError

log = structlog.get_logger("headrace.api")

# Between two flushes, for each entry of the former, up to the maximum: a lone job's ticket leaves at once,
# and under load a ticket gathers 20 to 40 ids instead of 2 to 7, at a tenth of the cost a job.
PACE_S, MAX_PACE_S = 0.001, 0.016
MAX_PENDING = 50_000  # entries not yet published; above it rows are left behind
MIN_BACKOFF_S, MAX_BACKOFF_S = 0.5, 5.0
MIN_MEASURE_S, MAX_MEASURE_S = 0.01, 0.5
FULL = 1.0 + 1e-9  # of one batch: 49 shares of a 49th sum to a little more than 1
REMEMBERED = 4096  # tickets of one queue whose size is remembered


@dataclass(frozen=True, slots=True)
class Offer:
    """One job that is marked as having a ticket. `share`: how much of one learned batch it fills."""

    hardware: str
    network: str
    entry: Entry
    share: float


@dataclass(slots=True)
class _Lane:
    """What is known of one queue: its length when last told, and the shares of the last tickets put in."""

    tickets: int = 0
    batches: float = 0.0
    pending: float = 0.0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def measured(self, length: int) -> None:
        self.tickets = length
        known = list(self.recent)[-length:] if length else []
        self.batches = sum(known) + (length - len(known))  # of others' tickets: a batch each


class Publisher:
    """Thread-safe; one thread of its own does all the talking to the broker."""

    def __init__(self, client: redis.Redis, database: Database) -> None:
        self._client = client
        self._database = database
        self._lanes: dict[str, _Lane] = {}
        self._pending: list[Offer] = []
        self._messages: dict[tuple[str, bytes], None] = {}  # ordered, each once
        self._in_flight = 0
        self._wake = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._closed_until = 0.0  # breaker: nothing is published before
        self._backoff_s = MIN_BACKOFF_S
        self._broken = False

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Flush what is pending and end."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join(5)

    def room(self, hardware: str, workers: int) -> float:
        """How many more batches the class's queue may take; 0 while the broker is away or much is pending.

        One batch a live worker, as far as known; with none, one ticket in an empty queue.
        """
        if self._broken or len(self._pending) + self._in_flight >= MAX_PENDING:
            return 0.0
        lane = self._lanes.get(hardware)
        if lane is None:
            return float(max(1, workers))
        if not workers:
            return 0.0 if lane.tickets or lane.pending else 1.0
        return max(0.0, workers - lane.batches - lane.pending)

    def offer(self, offers: Sequence[Offer]) -> None:
        """Publish tickets for these jobs soon. Call after their commit."""
        with self._wake:
            for offer in offers:
                self._lane(offer.hardware).pending += offer.share
            idle = not self._pending
            self._pending.extend(offers)
            if idle:
                self._wake.notify()

    def announce(self, channel: str, message: bytes) -> None:
        """Publish a message on a channel soon; equal ones that wait together are sent once."""
        with self._wake:
            self._messages[channel, message] = None
            self._wake.notify()

    def _lane(self, hardware: str) -> _Lane:
        return self._lanes.setdefault(hardware, _Lane())

    def _run(self) -> None:
        measure_s = MIN_MEASURE_S
        next_flush_at = 0.0
        while True:
            with self._wake:
                if not self._pending and not self._messages and not self._stopping:
                    self._wake.wait(self._idle_s(measure_s))
                due = bool(self._pending or self._messages)
                stopping = self._stopping
            if due and not stopping:
                time.sleep(max(0.0, next_flush_at - time.monotonic()))
            offers, messages = self._take()
            next_flush_at = time.monotonic() + min(MAX_PACE_S, PACE_S * max(1, len(offers)))
            try:
                if offers or messages:
                    self._flush(offers, messages)
                    measure_s = MIN_MEASURE_S
                elif self._broken:
                    self._probe()
                elif not stopping:
                    measure_s = MIN_MEASURE_S if self._measure() else min(MAX_MEASURE_S, measure_s * 2)
            except Exception:
                log.exception("publisher_failed")
            if stopping and not self._pending:
                return

    def _idle_s(self, measure_s: float) -> float | None:
        """How long to sleep while there is nothing to send: until the next probe or look at the queues."""
        if self._broken:
            return max(0.0, self._closed_until - time.monotonic())
        return measure_s if any(lane.tickets for lane in self._lanes.values()) else None

    def _take(self) -> tuple[list[Offer], list[tuple[str, bytes]]]:
        with self._wake:
            offers, self._pending = self._pending, []
            messages, self._messages = list(self._messages), {}
            self._in_flight = len(offers)
        return offers, messages

    def _flush(self, offers: Sequence[Offer], messages: Iterable[tuple[str, bytes]]) -> None:
        if self._broken and time.monotonic() < self._closed_until:
            self._give_up(offers)
            return
        pushes: dict[str, list[bytes]] = {}
        shares: dict[str, list[float]] = {}
        for hardware, network, entries, share in tickets(offers):
            queue = contract.queue_name(hardware, INTERACTIVE)
            pushes.setdefault(hardware, []).append(
                contract.encode_ticket(contract.Ticket(network, INTERACTIVE, entries), queue))
            shares.setdefault(hardware, []).append(share)
        pipeline = self._client.pipeline(transaction=False)
        for hardware, bodies in pushes.items():
            pipeline.lpush(contract.queue_name(hardware, INTERACTIVE), *bodies)
        for channel, message in messages:
            pipeline.publish(channel, message)
        try:
            lengths = pipeline.execute()
        except (redis.RedisError, OSError) as error:
            self._break(error)
            self._give_up(offers)
            return
        self._mend()
        for hardware, length in zip(pushes, lengths, strict=False):
            lane = self._lane(hardware)
            lane.recent.extend(shares[hardware])
            lane.measured(int(length))
        self._done(offers)

    def _done(self, offers: Sequence[Offer]) -> None:
        with self._wake:
            self._in_flight = 0
            for offer in offers:
                lane = self._lane(offer.hardware)
                lane.pending = max(0.0, lane.pending - offer.share)
            if not self._pending:  # sums of fractions drift
                for lane in self._lanes.values():
                    lane.pending = 0.0

    def _give_up(self, offers: Sequence[Offer]) -> None:
        """Unmark what was not published and close its lanes, so that the feeder brings it at once."""
        self._done(offers)
        if not offers:
            return
        ids = sorted(offer.entry.id for offer in offers)
        classes = sorted({offer.hardware for offer in offers})

        def work(tx: Transaction) -> None:
            claim.unmark(tx, ids)  # jobs before lanes, as the feeder locks them
            for hardware in classes:
                if feed.is_open(tx, hardware, INTERACTIVE, to_close=True):
                    feed.close(tx, hardware, INTERACTIVE)

        try:
            self._database.write(work, durable=False)
        except HeadraceError as error:  # then the marks run out by themselves
            log.warning("unmark_failed", jobs=len(ids), detail=str(error))

    def _break(self, error: Exception) -> None:
        if not self._broken:
            log.warning("broker_unreachable", detail=str(error))
        self._closed_until = time.monotonic() + self._backoff_s
        self._backoff_s = min(MAX_BACKOFF_S, self._backoff_s * 2)
        self._broken = True
        self._client.connection_pool.disconnect()

    def _mend(self) -> None:
        if self._broken:
            log.info("broker_reached")
            self._broken = False
            self._backoff_s = MIN_BACKOFF_S

    def _probe(self) -> None:
        try:
            self._client.ping()
        except (redis.RedisError, OSError) as error:
            self._break(error)
        else:
            self._mend()
            self._measure()

    def _measure(self) -> bool:
        """Ask for the length of the queues that weren't empty; whether any has changed."""
        asked = [hardware for hardware, lane in self._lanes.items() if lane.tickets]
        pipeline = self._client.pipeline(transaction=False)
        for hardware in asked:
            pipeline.llen(contract.queue_name(hardware, INTERACTIVE))
        try:
            lengths = pipeline.execute()
        except (redis.RedisError, OSError) as error:
            self._break(error)
            return False
        changed = False
        for hardware, length in zip(asked, lengths, strict=True):
            lane = self._lane(hardware)
            changed |= lane.tickets != length
            lane.measured(int(length))
        return changed


def tickets(offers: Iterable[Offer]) -> list[tuple[str, str, list[Entry], float]]:
    """Cut into (class, network, entries, share): one network, at most MAX_ENTRIES and one batch of work."""
    out: list[tuple[str, str, list[Entry], float]] = []
    groups: dict[tuple[str, str], list[Offer]] = {}
    for offer in offers:
        groups.setdefault((offer.hardware, offer.network), []).append(offer)
    for (hardware, network), members in groups.items():
        entries: list[Entry] = []
        share = 0.0
        for offer in members:
            if entries and (len(entries) == MAX_ENTRIES or share + offer.share > FULL):
                out.append((hardware, network, entries, share))
                entries, share = [], 0.0
            entries.append(offer.entry)
            share += offer.share
        out.append((hardware, network, entries, share))
    return out
