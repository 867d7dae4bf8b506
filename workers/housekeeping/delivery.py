"""The delivery duty: fans events out and sends what is due, from the database alone.

One leader fans out; any number of processes send. Each send has a thread of the pool; `rooms` says who may
have one, so that receivers that hang don't hold up the others.
"""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue

import redis
import structlog

from models import addresses, breaker, contract, delivery, ids, signing
from models.database import Database, Transaction
from models.delivery import Attempt, Due, Taken
from models.errors import Unavailable
from models.settings import Settings, redis_url
from workers.housekeeping import fan_out, leader, listener, rooms, sender
from workers.housekeeping.sender import Answer, Sender

log = structlog.get_logger("headrace.delivery")

DUTY = "fan-out"
TICK_S = 0.5  # the net under lost wake-ups
CLAIM_S = 60.0  # beyond what one send can take, name look-up included
GRACE_S = 3.0  # for sends under way when the process is asked to stop
JITTER = 0.2
INTERNAL = "internal"  # first word of an error that is ours
AT_ONCE = 64  # deliveries claimed in one transaction
THROTTLES = (429, 503)  # with Retry-After, the rest of what is due to that endpoint waits too


class Delivery:
    """Delivers webhooks until told to stop. `incarnation`: of this process, if the settings don't name it."""

    def __init__(self, settings: Settings, database: Database, incarnation_id: str | None = None) -> None:
        self._settings = settings
        self._database = database
        self._me = incarnation_id or settings.incarnation or ids.new(ids.INCARNATION)
        self._policy = addresses.policy(settings)
        self._sender = Sender(self._policy)
        self._due = threading.Event()  # something may be due, or a send has ended
        self._written = threading.Event()  # events may have been written
        self._ended: SimpleQueue[tuple[Due, Answer]] = SimpleQueue()
        self._unrecorded: list[tuple[Due, Answer]] = []
        self._rooms = rooms.Rooms()
        self._rules = breaker.Rules.of(settings)
        self._news = threading.Event()  # deliveries were made
        self._looked_at = 0.0
        self._barren: frozenset[str] | None = None  # nothing was due but to these receivers, all busy
        self._stale_due_at = 0.0  # when breakers are looked after even while sends keep ending
        self._cramped = False  # what was due may lack room: a send that ends makes some
        self._leader = leader.Leader(database, self._me, [DUTY], lease_s=settings.lease_s)
        self._clock_s = 0.0  # the database's clock, less our monotonic one

    def run(self, stop: threading.Event) -> None:
        """Blocks until `stop` is set and what was under way has ended or has been given back."""
        halt = threading.Event()
        loops = {"listen": self._listen, "lead": self._leader.run, "fan-out": self._fan_out}
        helpers = [threading.Thread(target=loop, args=(halt,), name=f"webhook-{name}", daemon=True)
                   for name, loop in loops.items()]
        pool = ThreadPoolExecutor(rooms.THREADS, thread_name_prefix="webhook-send")
        with self._sender:
            for helper in helpers:
                helper.start()
            try:
                while not stop.is_set():
                    self._turn(pool)
                    self._due.wait(TICK_S)
                    self._due.clear()
            finally:
                halt.set()
                self._written.set()
                self._finish(pool)
                for helper in helpers[1:]:  # the listener touches no database and ends by itself
                    helper.join()

    def _turn(self, pool: ThreadPoolExecutor) -> None:
        """Write down what ended and start what is due, until nothing more is."""
        try:
            while self._round(pool):
                pass
        except Unavailable as error:
            log.warning("delivery_paused", reason=str(error))

    def _round(self, pool: ThreadPoolExecutor) -> bool:
        self._collect()
        begun = self._rooms.booking(time.monotonic())
        busy = frozenset(begun.busy())
        looks = begun.room > 0 and self._may_find(busy)
        if not looks and not self._unrecorded:
            return False
        stale = False
        if looks and (not self._unrecorded or time.monotonic() >= self._stale_due_at):
            with self._database.read() as tx:
                stale = breaker.any_stale(tx)
                idle = not (stale or self._unrecorded or delivery.any_due(tx, sorted(busy)))
            self._stale_due_at = time.monotonic() + TICK_S
            if idle:
                self._barren = busy
                return False
        attempts = [self._attempt(due, answer) for due, answer in self._unrecorded]

        def work(tx: Transaction) -> Taken:
            delivery.record(tx, attempts, sender=self._me, rules=self._rules)
            if not looks:
                return Taken()
            if stale:
                breaker.wake(tx)
            booking = self._rooms.booking(time.monotonic())  # anew if the transaction is tried again
            return delivery.claim(tx, sender=self._me, limit=min(AT_ONCE, booking.room), busy=sorted(busy),
                                  admits=booking.admits, lease_s=CLAIM_S)

        # Not durable: a power cut costs a second delivery under the same id, which receivers drop.
        claimed = self._database.write(work, durable=False)
        self._unrecorded.clear()
        for due in claimed.due:
            # Receivers refuse a signature that is minutes off, so it isn't timed by this host's own clock.
            self._clock_s = due.claimed_at / 1000 - time.monotonic()
            self._rooms.begin(due.id, due.receiver, time.monotonic())
            pool.submit(self._send, due)
        if looks and not claimed.due and not claimed.held:
            self._barren = busy
            self._cramped = True
        return bool(claimed.due) or claimed.held > 0

    def _may_find(self, busy: frozenset[str]) -> bool:
        """Whether a look at what is due may find anything.

        A look walks over all that is due to busy receivers, so it waits until something new is known.
        """
        now = time.monotonic()
        if self._news.is_set() or now - self._looked_at >= TICK_S:
            self._news.clear()
            self._looked_at = now
            self._barren = None
        return self._barren is None or not busy >= self._barren

    def _collect(self) -> None:
        while True:
            try:
                due, answer = self._ended.get_nowait()
            except Empty:
                return
            self._unrecorded.append((due, answer))
            self._rooms.end(due.id, time.monotonic(), ok=answer.error is None)
            if self._cramped:
                self._cramped, self._barren = False, None

    def _send(self, due: Due) -> None:
        try:
            now_s = int(time.monotonic() + self._clock_s)
            headers = signing.headers(due.secrets, due.event_id, now_s, due.body)
            answer = self._sender.send(due.url, headers, due.body)
        except Exception as error:
            log.exception("delivery_broke", delivery=due.id)
            answer = Answer(error=f"{INTERNAL}: {type(error).__name__}")
        self._ended.put((due, answer))
        self._due.set()

    def _attempt(self, due: Due, answer: Answer) -> Attempt:
        schedule = self._settings.webhook_schedule
        made = due.attempt + 1
        delay_s = None
        if answer.status != delivery.GONE and not due.last and made < len(schedule):
            delay_s = schedule[made] * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 (jitter)
            delay_s = max(delay_s, answer.retry_after_s or 0.0)
        if answer.error is not None:
            log.info("delivery_failed", delivery=due.id, event_id=due.event_id, attempt=made,
                     error=answer.error, next_s=None if delay_s is None else round(delay_s, 1))
        return Attempt(
            due, answer.status, answer.error, answer.latency_ms, answer.response, delay_s,
            throttle_s=answer.retry_after_s or None if answer.status in THROTTLES else None,
            blame=answer.error is None or not answer.error.startswith(INTERNAL))

    def _finish(self, pool: ThreadPoolExecutor) -> None:
        """Let sends end for a moment, break off the rest, and leave nothing claimed."""
        until = time.monotonic() + GRACE_S
        self._collect()
        while self._rooms and time.monotonic() < until:
            self._due.wait(until - time.monotonic())
            self._due.clear()
            self._collect()
        self._sender.abort()
        pool.shutdown(wait=True, cancel_futures=False)
        self._collect()
        broken = [due.id for due, answer in self._unrecorded
                  if answer.error is not None and answer.error.startswith(sender.STOPPED)]
        attempts = [self._attempt(due, answer) for due, answer in self._unrecorded if due.id not in broken]

        def work(tx: Transaction) -> None:
            delivery.record(tx, attempts, sender=self._me, rules=self._rules)
            if broken:
                delivery.give_back(tx, broken, sender=self._me)

        try:
            self._database.write(work, durable=False)
        except Unavailable as error:
            log.warning("delivery_ended_unrecorded", reason=str(error))

    def _fan_out(self, halt: threading.Event) -> None:
        delay_s = self._settings.webhook_schedule[0]
        while not halt.is_set():
            if not self._leader.wait(DUTY, TICK_S):
                continue
            try:
                made = fan_out.fan_out(self._database, first_delay_s=delay_s)
            except Unavailable as error:
                log.warning("fan_out_paused", reason=str(error))
                made = 0
            if made:
                self._news.set()
                self._due.set()
            if made < fan_out.BATCH:
                self._written.wait(TICK_S)
                self._written.clear()

    def _listen(self, halt: threading.Event) -> None:
        """Wake the fan-out when somebody says that events were written. Without the broker the tick does."""
        with redis.Redis.from_url(redis_url(self._settings.broker), socket_timeout=2 * listener.POLL_S,
                                  socket_connect_timeout=1.0) as client:
            listener.listen(client, {contract.DELIVER_CHANNEL: lambda _: self._written.set()}, halt)
