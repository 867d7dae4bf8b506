"""Each kind of fault: how it is brought about, and how it is mended."""

import contextlib
import heapq
import itertools
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import psycopg
import redis

from models import contract
from tests import waiting
from tests.chaos.harness.schedule import Fault
from tests.chaos.harness.stage import Stage
from tests.chaos.harness.traffic import Traffic

QUEUE = contract.queue_name("cpu", contract.INTERACTIVE)
BALLAST_LEFT, PAGE = 1 << 18, 4096
COMES_BACK_S = 5.0
AT_WORK_S = 2.5  # how long a kill of a worker waits for it to have something to do
Mend = Callable[[], None]


def _nothing() -> None:
    """There is nothing to mend."""


class Injector:
    """Goes through a schedule in the calling thread."""

    def __init__(self, stage: Stage, traffic: Traffic, seed: int) -> None:
        self._stage = stage
        self._traffic = traffic
        self._chance = random.Random(seed)
        self._stopped: dict[int, psutil.Process] = {}
        self._silent = False  # the database is frozen: a question to it would wait for the thaw
        self.counts: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()

    def run(self, faults: Sequence[Fault], seconds: float, stop: threading.Event) -> None:
        """Inject each in its time; all is mended on return."""
        begun_s = time.monotonic()
        number = itertools.count()
        due: list[tuple[float, int, Fault | Mend, str]] = [
            (fault.at_s, next(number), fault, fault.kind) for fault in faults]
        heapq.heapify(due)
        try:
            while due:
                at_s, _, what, kind = heapq.heappop(due)
                if stop.wait(max(0.0, begun_s + at_s - time.monotonic())):
                    return
                if isinstance(what, Fault):
                    if what.target == "up":  # it can't start again beside a broker that is away
                        due = self._mended(due)
                    mend = self._inject(what)
                    if mend is not _nothing:
                        heapq.heappush(due, (at_s + what.for_s, next(number), mend, kind))
                else:
                    self._mend(what, kind)
            stop.wait(max(0.0, begun_s + seconds - time.monotonic()))
        finally:
            for _, _, what, _ in due:
                if not isinstance(what, Fault):
                    what()

    def _mend(self, mend: Mend, kind: str) -> None:
        mend()
        self._stage.history.write("mended", fault=kind)

    def _mended(self, due: list[tuple[float, int, Fault | Mend, str]]) -> list[tuple[float, int, Fault | Mend, str]]:
        """What is still due once all that is broken has been mended now."""
        for _, _, what, kind in due:
            if not isinstance(what, Fault):
                self._mend(what, kind)
        left = [each for each in due if isinstance(each[2], Fault)]
        heapq.heapify(left)
        return left

    def _inject(self, fault: Fault) -> Mend:
        # The prefix is the kind's family: "database_fast" is one way of `_database`.
        way = getattr(self, "_" + fault.kind.partition("_")[0])
        self._stage.history.write("injecting", fault=fault.as_dict())
        details: dict[str, object] = {}
        mend: Mend | None = way(fault, details)
        if mend is None:
            self.skipped[fault.kind] += 1
            self._stage.history.write("skipped", fault=fault.kind, **details)
            return _nothing
        self.counts[fault.kind] += 1
        self._stage.history.write("injected", fault=fault.kind, target=fault.target, **details)
        return mend

    def _pick(self, fault: Fault) -> psutil.Process | None:
        """One process of the target; one that is just being started again is waited for a little."""
        end = time.monotonic() + COMES_BACK_S
        while not (found := self._stage.processes(fault.target)) and time.monotonic() < end:
            time.sleep(0.05)
        return found[int(fault.share * len(found))] if found else None

    def _kill(self, fault: Fault, details: dict[str, object]) -> Mend | None:
        if fault.target == "up":
            return self._kill_up(details)
        process = self._pick(fault)
        if process is None:
            return None
        with contextlib.suppress(psutil.NoSuchProcess):
            if fault.target == "worker":
                details["held"] = self._stopped_at_work(process)
            details["killed_ms"] = time.time_ns() // 1_000_000
            details["pid"] = process.pid
            process.kill()
            return _nothing
        return None

    def _stopped_at_work(self, process: psutil.Process) -> list[str]:
        """Stop a worker, if it can be while it runs jobs; which it holds, and will when it is killed."""
        if self._silent:
            return []
        self._traffic.burst()
        end = time.monotonic() + AT_WORK_S
        while True:
            process.suspend()
            held = self._stage.held_by(process.pid)
            if held or time.monotonic() > end:
                return held
            process.resume()
            time.sleep(0.002 * self._chance.random())

    def _kill_up(self, details: dict[str, object]) -> Mend:
        stage = self._stage
        family = stage.up.tree()
        details["killed_ms"] = time.time_ns() // 1_000_000
        stage.up.process.kill()
        stage.up.process.wait(10)
        waiting.until(lambda: not any(waiting.alive(pid) for pid in family), 30, what="the end of all that `up` started")
        begun_s = time.monotonic()
        self._resume_all()
        self.free_disk()  # or it could not start
        stage.start()
        details["ready_after_s"] = round(time.monotonic() - begun_s, 2)
        return _nothing

    def _freeze(self, fault: Fault, details: dict[str, object]) -> Mend | None:
        process = self._pick(fault)
        if process is None:
            return None
        details["pid"] = process.pid
        return self._suspend([process])

    def _suspend(self, processes: Sequence[psutil.Process]) -> Mend:
        for each in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.suspend()
                self._stopped[each.pid] = each

        def resume() -> None:
            for each in reversed(processes):
                self._stopped.pop(each.pid, None)
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.resume()
        return resume

    def _resume_all(self) -> None:
        for each in list(self._stopped.values()):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.resume()
        self._stopped.clear()
        self._silent = False

    def _broker(self, fault: Fault, details: dict[str, object]) -> Mend | None:
        broker = self._stage.broker
        if fault.kind == "broker_kill":
            broker.kill()
            return broker.start
        if fault.kind.startswith("broker_frozen"):
            broker.freeze()
            return broker.thaw
        try:
            with contextlib.closing(broker.client(timeout_s=1.0)) as client:
                if fault.kind == "broker_flush":
                    details["tickets"] = client.llen(QUEUE)
                    client.flushall()
                else:
                    details["cut"] = sum(int(client.execute_command("CLIENT", "KILL", "TYPE", each, "SKIPME", "yes"))
                                         for each in ("normal", "pubsub"))
        except redis.RedisError:
            return None  # it is away already
        return _nothing

    def _tickets(self, _fault: Fault, details: dict[str, object]) -> Mend | None:
        """Every ticket in the queue and every one under way twice more, in any order."""
        try:
            with contextlib.closing(self._stage.broker.client(timeout_s=1.0)) as client:
                found: list[bytes] = client.lrange(QUEUE, 0, -1)  # type: ignore[assignment]
                again = [each for each in found for _ in range(2)] + self._known
                self._known = found[:20]
                self._chance.shuffle(again)
                for each in again:
                    (client.lpush, client.rpush)[self._chance.random() < 0.5](QUEUE, each)
                details["pushed"] = len(again)
        except redis.RedisError:
            return None
        return _nothing

    _known: list[bytes] = []  # noqa: RUF012 - replaced, never changed

    def _database(self, fault: Fault, details: dict[str, object]) -> Mend | None:
        if fault.kind == "database_cut":
            return self._cut(details)
        servers = self._stage.processes("database")
        if not servers:
            return None
        with contextlib.suppress(psutil.NoSuchProcess):
            if fault.kind == "database_frozen":
                self._silent = True
                resume = self._suspend([servers[0], *servers[0].children(recursive=True)])

                def thaw() -> None:
                    resume()
                    self._silent = False
                return thaw
            # A stopped backend would hold up even an immediate end.
            self._resume_all()
            servers[0].send_signal(signal.SIGINT if fault.kind == "database_fast" else signal.SIGQUIT)
            details["pid"] = servers[0].pid
            return _nothing
        return None

    def _cut(self, details: dict[str, object]) -> Mend | None:
        try:
            with psycopg.connect(self._stage.database_url, autocommit=True, connect_timeout=2) as connection:
                (details["cut"],) = connection.execute(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                    "WHERE datname = 'headrace' AND pid <> pg_backend_pid()").fetchone() or (0,)
        except psycopg.OperationalError:
            return None
        return _nothing

    @property
    def _ballast(self) -> Path:
        return self._stage.data / "ballast"

    def _disk(self, _fault: Fault, details: dict[str, object]) -> Mend | None:
        if not self._stage.mounted:
            details["why"] = "no file system may be mounted here"
            return None
        # Of the same name from the first byte on, so that it is removed however this ends.
        with contextlib.suppress(OSError), self._ballast.open("ab", buffering=0) as file:
            space = os.statvfs(self._stage.data)
            with contextlib.suppress(OSError):  # somebody else was faster
                os.posix_fallocate(file.fileno(), 0, max(1, space.f_bavail * space.f_frsize - BALLAST_LEFT))
            while file.write(bytes(PAGE)) == PAGE:  # to the last page
                pass
        return self.free_disk

    def free_disk(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def _clock(self, fault: Fault, _details: dict[str, object]) -> Mend:
        self._stage.set_clock(fault.target, fault.value)
        return lambda: self._stage.set_clock(fault.target, 0.0)

    def _receiver(self, fault: Fault, _details: dict[str, object]) -> Mend:
        receiver = self._stage.receivers["odd"]
        receiver.mood = fault.target

        def behave() -> None:
            receiver.mood = "ok"
        return behave

    def _poison(self, _fault: Fault, _details: dict[str, object]) -> Mend:
        self._traffic.poison()
        return _nothing

    def mend(self) -> None:
        """Whatever is still broken."""
        self._resume_all()
        self.free_disk()
        self._stage.broker.thaw()
        for part in ("api", "worker", "housekeep"):
            self._stage.set_clock(part, 0.0)
        for each in self._stage.receivers.values():
            each.mood = "ok"
