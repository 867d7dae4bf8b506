"""`run_housekeeping(settings)`: this process's life, and the duties that it does or stands by for."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import redis
import structlog
from redis.backoff import NoBackoff
from redis.retry import Retry

from models import contract, database, heap, ids, incarnation
from models.backlog import HOLDING
from models.database import Database
from models.errors import Unavailable
from models.settings import Settings, redis_url
from workers.housekeeping import listener
from workers.housekeeping.counting import Counting
from workers.housekeeping.delivery import Delivery
from workers.housekeeping.feeder import Feeder
from workers.housekeeping.leader import Leader
from workers.housekeeping.retention import Retention
from workers.housekeeping.sweeper import Sweeper

log = structlog.get_logger("headrace.housekeeping")

FEED, SWEEP, RETAIN = "feed", "sweep", "retain"
DUTIES = (FEED, SWEEP, RETAIN)
BROKER_TIMEOUT_S = 0.5  # a frozen broker must not hold up the sweep
LISTEN_TIMEOUT_S = 5.0
STOP_S = 10.0  # what duties get to end their turn
RETRY_S = 1.0


class _Life:
    """The incarnation of this process: registered, beating, ended."""

    def __init__(self, settings: Settings, connected: Database) -> None:
        self.id = settings.incarnation or ids.new(ids.INCARNATION)
        self._database = connected
        self._max_attempts = settings.max_attempts
        self._period_s = min(1.0, settings.lease_s / 6)
        self._poked = threading.Event()

    def poke(self) -> None:
        """Beat now: there is something new to carry."""
        self._poked.set()

    def begin(self, stop: threading.Event) -> None:
        """Register, again and again while the database is away."""
        while not stop.is_set():
            try:
                self._database.write(lambda tx: incarnation.begin(
                    tx, self.id, kind=incarnation.HOUSEKEEPING, host=socket.gethostname(), pid=os.getpid()))
            except Unavailable as error:
                log.warning("database_unavailable", detail=str(error))
                stop.wait(RETRY_S)
            else:
                return

    def beat(self, stop: threading.Event, holding: Callable[[], Mapping[str, Any]]) -> None:
        """Renew until `stop`. Raises RuntimeError when somebody ended this life."""
        while not stop.is_set():
            self._poked.wait(self._period_s)
            self._poked.clear()
            try:
                alive = self._database.write(
                    lambda tx: incarnation.beat(tx, self.id, ready=True, holding=holding()), durable=False)
            except Unavailable as error:
                log.warning("beat_failed", detail=str(error))
                continue
            if not alive:
                raise RuntimeError(f"incarnation {self.id} was ended by another process")

    def end(self) -> None:
        try:
            self._database.write(lambda tx: incarnation.end(
                tx, self.id, incarnation.EXITED, max_attempts=self._max_attempts), durable=False)
        except Unavailable as error:  # then its supervisor or the next sweep ends it
            log.warning("end_unrecorded", detail=str(error))


def connect_broker(settings: Settings, timeout_s: float) -> redis.Redis:
    """A client that fails within about `timeout_s` instead of trying again by itself."""
    return redis.Redis.from_url(redis_url(settings.broker), socket_timeout=timeout_s,
                                socket_connect_timeout=timeout_s, retry=Retry(NoBackoff(), 0))


def run_housekeeping(settings: Settings) -> int:
    """Feed, sweep and deliver until SIGTERM or SIGINT; any number of such processes may run.

    0: asked to stop. 1: another process ended its life, or a duty broke; a supervisor starts a new one.
    """
    stop = threading.Event()
    broken = threading.Event()
    connected = database.connect(settings.database, synchronous=settings.sqlite_synchronous)
    client = connect_broker(settings, BROKER_TIMEOUT_S)
    ear = connect_broker(settings, LISTEN_TIMEOUT_S)
    life = _Life(settings, connected)
    leader = Leader(connected, life.id, DUTIES, lease_s=settings.lease_s)
    feeder = Feeder(connected, client)
    sweeper = Sweeper(settings, connected, client)
    counting = Counting(connected, life.poke)
    delivery = Delivery(settings, connected, life.id)
    retention = Retention(settings, connected)
    heap.settle()
    calls: dict[str, Callable[[bytes], None]] = {
        contract.FEED_CHANNEL: lambda message: feeder.wake(message.decode()),
        contract.RETURN_CHANNEL: lambda message: feeder.returned(*contract.decode_return(message)),
        contract.DONE_CHANNEL: lambda _: feeder.wake(),
    }
    duties: dict[str, Callable[[], None]] = {
        "beat": lambda: life.beat(stop, lambda: {"duties": list(DUTIES), HOLDING: counting.holding()}),
        "lead": lambda: leader.run(stop),
        "listen": lambda: listener.listen(ear, calls, stop),
        FEED: lambda: feeder.run(stop, lambda: leader.leads(FEED)),
        SWEEP: lambda: sweeper.run(stop, lambda: leader.leads(SWEEP)),
        RETAIN: lambda: retention.run(stop, lambda: leader.leads(RETAIN)),
        "count": lambda: counting.run(stop, lambda: leader.leads(SWEEP)),
        "deliver": lambda: delivery.run(stop),
    }

    def do(name: str, duty: Callable[[], None]) -> None:
        try:
            duty()
        except Exception:
            log.exception("duty_broke", duty=name)
            broken.set()
            stop.set()

    with _stopped_by_signals(stop):
        life.begin(stop)
        threads = [threading.Thread(target=do, args=item, name=f"housekeeping-{item[0]}", daemon=True)
                   for item in duties.items()]
        log.info("housekeeping_started", incarnation=life.id)
        for thread in threads:
            thread.start()
        stop.wait()
        life.poke()  # its thread may be in the middle of a pause
        deadline = time.monotonic() + STOP_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        life.end()
    late = [thread.name for thread in threads if thread.is_alive()]
    log.info("housekeeping_stopped", incarnation=life.id, still_running=late)
    client.close()
    ear.close()
    if not late:
        connected.close()
    return int(broken.is_set())


@contextmanager
def _stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """SIGTERM and SIGINT set `stop`, if this is the main thread; afterwards they do what they did before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    # A handler may not set `stop`: this thread may be inside `stop.wait()`, with the lock that `set` takes.
    heard, told = socket.socketpair()
    told.setblocking(False)

    def watch() -> None:
        if heard.recv(1):
            stop.set()

    numbers = (signal.SIGTERM, signal.SIGINT)
    earlier = signal.set_wakeup_fd(told.fileno())
    before: dict[int, Any] = {number: signal.signal(number, _noted) for number in numbers}
    watcher = threading.Thread(target=watch, name="housekeeping-signals", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)
        signal.set_wakeup_fd(earlier)
        told.close()
        watcher.join()
        heard.close()


def _noted(_number: int, _frame: FrameType | None) -> None:
    """Python's own part of it wrote to the socket."""
