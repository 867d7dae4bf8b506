"""claim → run → settle → tell, in two threads over one device: one runs while another reads or writes."""

import collections
import threading
import time
from collections.abc import Callable, Sequence

import structlog

from models import claim
from models import job as jobs
from models.blobs import Blobs
from models.claim import Claimed
from models.database import Database, Transaction
from models.errors import HeadraceError, Unavailable
from workers import batching, farewell, isolation, refusal, settling
from workers.buffer import Buffer
from workers.catalogue import Catalogue, Refusal
from workers.engine import ProviderFailed
from workers.inflight import Inflight, Running
from workers.pace import Pace
from workers.scheduler import Batch, Pending
from workers.serving import Loaded
from workers.settling import Settler
from workers.strategy import Counts, Intake
from workers.tasks.base import Item, ItemFault
from workers.tell import Teller

THREADS = 2
CLAIM_PAUSE_S = 0.5  # after the database was out of reach
# A batch shorter than this is acknowledged when it is settled, not when it is claimed: Celery's loop would
# compete for the interpreter in just the milliseconds that an idle system's latency is made of.
PROMPT_S = 0.01
STALE_S = 0.05  # after waiting that long for the device, look whether jobs were canceled meanwhile

_log = structlog.get_logger("headrace.worker")


class Executor:
    """`stop` returns when what ran is settled and the rest given back.

    `broken` is called when the device failed for good; it ends the process, as a crash of its driver would.
    """

    def __init__(self, *, database: Database, blobs: Blobs, buffer: Buffer, intake: Intake,
                 catalogue: Catalogue, settler: Settler, incarnation: str, hardware: str,
                 broker: str, broken: Callable[[], None] = farewell.abrupt) -> None:
        self._database = database
        self._blobs = blobs
        self._buffer = buffer
        self._intake = intake
        self._catalogue = catalogue
        self._settler = settler
        self._incarnation = incarnation
        self._hardware = hardware
        self._broker = broker
        self._broken = broken
        self._device = threading.Lock()
        # Jobs that were perhaps claimed: the answer to the commit was lost.
        self._doubtful: collections.deque[str] = collections.deque()
        self._stopping = False
        self._threads = [threading.Thread(target=self._work, name=f"headrace-executor-{at}", daemon=True)
                         for at in range(THREADS)]
        self.inflight = Inflight()
        self.pace = Pace()

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, *, held: bool) -> None:
        """Let what runs be settled, give all else back. `held`: nobody has ended this incarnation."""
        self._stopping = True
        self._settler.hurry()
        self._buffer.close()
        for thread in self._threads:
            thread.join()
        pending = self._buffer.remove()
        if held and pending:
            ids = [each.entry.id for each in pending]
            try:
                self._database.write(lambda tx: claim.unmark(tx, ids), durable=False)
            except Unavailable as error:
                _log.warning("marks_not_cleared", jobs=len(ids), error=str(error))
            teller = Teller(self._broker)
            teller.waiting(self._hardware, ids)
            teller.close()
        self._dismiss(pending)

    def loaded(self, _network: str) -> None:
        """An engine is ready."""
        self._buffer.wake()
        self._intake.nudge()

    def refused(self, network: str, refused: Refusal) -> None:
        """An engine could not be loaded: its jobs go back, or fail if no worker can load it."""
        pending = self._buffer.remove(network)
        ids = list(dict.fromkeys(each.entry.id for each in pending))
        try:
            released = refusal.release(
                self._database, ids, network, count=refused.count, reason=refused.reason,
                incarnation=self._incarnation, hardware=self._hardware)
        except Unavailable as error:
            _log.warning("database_unreachable", error=str(error))
            self._buffer.put_back(pending, CLAIM_PAUSE_S)
            return
        self._dismiss(pending)
        teller = Teller(self._broker)
        if released.failed:
            teller.settled(released.failed, events=len(released.failed))
        for hardware, names in released.waiting.items():
            teller.waiting(hardware, names)
        teller.close()

    def _work(self) -> None:
        teller = Teller(self._broker)
        while (taken := self._buffer.take()) is not None:
            batch, expired = taken
            self._dismiss(expired)
            if batch is not None:
                self._process(batch, teller)
        teller.close()

    def _process(self, batch: Batch, teller: Teller) -> None:
        running = Running(batch)
        idle = self.inflight.add(running)
        loaded = self._catalogue.hold(batch.network)
        started_s = time.thread_time()
        try:
            if loaded is None:
                self._buffer.put_back(batch.pending, 0.0)
                self._buffer.wake()
            elif self._claim(running, begun=idle):
                self._run(running, loaded)
                begin = self.inflight.left(running)
                self._settle(running, running.unrun, begin, teller)
                if all(each.state == jobs.SUCCEEDED for each in running.outcomes):
                    # Not the wall clock: beside another batch it shows how busy the interpreter is.
                    loaded.learn(_cost(running.claimed, loaded),
                                 time.thread_time() - started_s + running.meter.waited_s)
                rate = loaded.rate()
                self.pace.settled(sum(rate.cost_s(job.work) for job in running.claimed), time.monotonic(),
                                  more=self.inflight.more(running))
        except settling.Abandoned:
            _log.error("settle_abandoned", jobs=len(running.claimed))
        except ProviderFailed as error:
            _log.critical("provider_failed", network=batch.network, jobs=len(running.claimed),
                          error=str(error))
            if batch.alone and len(running.claimed) == 1:  # it was there when a worker died before
                self._fail(running, error, teller)
            self._broken()
        except Exception as error:  # noqa: BLE001 - a bug of ours: the jobs must end all the same
            _log.exception("batch_failed", network=batch.network, jobs=len(running.claimed))
            self._fail(running, error, teller)
        finally:
            self.inflight.remove(running)
            if loaded is not None:
                self._catalogue.let_go(loaded)
            self._buffer.done(batch)

    def _claim(self, running: Running, *, begun: bool) -> bool:
        """Whether there is anything to run."""
        batch, ids = running.batch, running.batch.ids
        doubtful = [self._doubtful.popleft() for _ in range(len(self._doubtful))]

        def write(tx: Transaction) -> list[Claimed]:
            if doubtful:
                claim.lock(tx, [*doubtful, *ids])
                claim.give_back(tx, doubtful, incarnation=self._incarnation)
            return claim.claim(tx, ids, incarnation=self._incarnation, hardware=self._hardware, begun=begun,
                               alone=batch.alone)

        try:
            claimed = self._database.write(write, durable=False)
        except Unavailable as error:
            _log.warning("claim_failed", jobs=len(ids), error=str(error))
            self._doubtful.extend(doubtful + (ids if error.may_have_been_accepted else []))
            self._buffer.put_back(batch.pending, CLAIM_PAUSE_S)
            return False
        self.inflight.claimed(running, claimed, begun=begun)
        if not claimed:
            self._dismiss(batch.pending)
        return bool(claimed)

    def _run(self, running: Running, loaded: Loaded) -> None:
        """Fill `running.outcomes` for everything that ran; what is missing there is to be given back."""
        claimed, bodies = self._bodies(running)
        decoded = isolation.decode(loaded.task, bodies) if bodies else []
        items = [(job, each) for job, each in zip(claimed, decoded, strict=True) if isinstance(each, Item)]
        running.outcomes += [settling.failed(job, each) for job, each in zip(claimed, decoded, strict=True)
                             if isinstance(each, ItemFault)]
        if loaded.curve.predict(_cost(claimed, loaded)) > PROMPT_S:
            self._strike(running)
        items = self._reach_device(running, items)
        looked_s = time.monotonic()
        runs = loaded.runs([item for _, item in items], [job.work for job, _ in items])
        for index, chosen in enumerate(runs):
            if index and self._stopping:
                break
            part = [items[at] for at in chosen]
            if index and time.monotonic() - looked_s > STALE_S:
                part, looked_s = self._still_wanted(part), time.monotonic()
                if not part:
                    continue

            def too_large(size: int, part: list[tuple[Claimed, Item]] = part) -> None:
                loaded.ran_out_of_memory(_cost([job for job, _ in part[:size]], loaded))

            ran = isolation.run(loaded.engine, loaded.task, [item for _, item in part], device=self._device,
                                meter=running.meter, out_of_memory=too_large)
            running.outcomes += [self._settler.outcome(job, each)
                                 for (job, _), each in zip(part, ran, strict=True)]

    def _bodies(self, running: Running) -> tuple[list[Claimed], list[bytes]]:
        claimed, bodies = [], []
        for job in running.claimed:
            body = job.input
            if body is None:
                try:
                    body = self._blobs.read(job.input_blob or "")
                except (OSError, HeadraceError) as error:
                    running.outcomes.append(settling.failed(job, ItemFault(
                        isolation.INFERENCE_FAILED, f"its input can't be read: {isolation.readable(error)}")))
                    continue
            claimed.append(job)
            bodies.append(body)
        return claimed, bodies

    def _reach_device(self, running: Running,
                      items: list[tuple[Claimed, Item]]) -> list[tuple[Claimed, Item]]:
        """Wait until the batch before has left the device; the items that are still to run then."""
        if running.begun or not items:
            return items
        started_s = time.monotonic()
        with self._device:
            pass
        if self._stopping:
            return []
        if time.monotonic() - started_s > STALE_S:
            items = self._still_wanted(items)
        if not self.inflight.reached(running):
            self._settler.settle((), begin=[job.id for job, _ in items])
        return items

    def _still_wanted(self, items: list[tuple[Claimed, Item]]) -> list[tuple[Claimed, Item]]:
        try:
            with self._database.read() as tx:
                wanted = claim.wanted(tx, [job.id for job, _ in items], incarnation=self._incarnation)
        except Unavailable:
            return items  # the settle's fence decides
        return [(job, item) for job, item in items if job.id in wanted]

    def _settle(self, running: Running, give_back: Sequence[str], begin: Sequence[str],
                teller: Teller) -> None:
        settled = self._settler.settle(running.outcomes, give_back=give_back, begin=begin)
        # All of them, since after a lost answer to a commit nobody knows which ones it was.
        teller.settled([each.id for each in running.outcomes], events=settled.events)
        if give_back:
            teller.waiting(self._hardware, give_back)
        self._strike(running)
        self._intake.settled(_counts(running.batch.pending))

    def _fail(self, running: Running, error: Exception, teller: Teller) -> None:
        ended = {each.id for each in running.outcomes}
        running.outcomes += [settling.failed(job, isolation.fault_of(error)) for job in running.claimed
                             if job.id not in ended]
        try:
            self._settle(running, (), self.inflight.left(running), teller)
        except settling.Abandoned:
            _log.error("settle_abandoned", jobs=len(running.claimed))

    def _strike(self, running: Running) -> None:
        if not running.struck:
            running.struck = True
            self._intake.claimed(_counts(running.batch.pending))

    def _dismiss(self, pending: Sequence[Pending]) -> None:
        """Entries that are of no use here any more."""
        if pending:
            counts = _counts(pending)
            self._intake.claimed(counts)
            self._intake.settled(counts)


def _counts(pending: Sequence[Pending]) -> Counts:
    return collections.Counter(each.source for each in pending)


def _cost(claimed: Sequence[Claimed], loaded: Loaded) -> float:
    return batching.cost([job.work for job in claimed], padded=loaded.task.padded)
