"""Group commit: requests that arrive together share one transaction.

Who finds nobody at it leads and goes at once: it stores all that is pending, then hands the lead on to one
that came meanwhile, which gathers company for a few ms first.
"""

import _thread
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from api.directory import Directory
from api.http import Reply
from api.tickets import Offer, Publisher
from models import contract, feed, idempotency, job
from models.contract import INTERACTIVE, Entry
from models.database import Database, Statement, Transaction
from models.errors import HeadraceError, Unavailable

log = structlog.get_logger("headrace.api")

MAX_GROUP_JOBS = 2000  # of one transaction: some 30 ms, so that a single job behind big ones isn't held up
# Only who was handed the lead waits for company: whoever finds nobody at it goes at once.
GATHER_S, GATHER_STEP_S = 0.004, 0.0007
_CLOCK = Statement("SELECT {now}")


@dataclass(slots=True)
class Key:
    """An Idempotency-Key, and how the answer that it stands for is made from the time of acceptance."""

    name: idempotency.Name
    fingerprint: str
    reply: Callable[[int], Reply]


@dataclass(slots=True)
class Submission:
    """The jobs of one request, on their way into the database. They are stored all or none."""

    jobs: Sequence[job.NewJob]
    key: Key | None = None
    accepted_at: int = 0  # ms, database clock
    reply: Reply | None = None  # of a request with a key, as it was stored
    taken: bool = False  # another request had the key before: nothing was stored
    error: HeadraceError | Exception | None = None
    leads: bool = False
    gate: _thread.LockType = field(default_factory=_thread.allocate_lock)


@dataclass(slots=True)
class _Plan:
    """What one transaction does besides storing: which jobs get tickets, which classes have some left."""

    offers: list[Offer] = field(default_factory=list)
    left: set[str] = field(default_factory=set)


class Intake:
    """Thread-safe; it has no thread of its own."""

    def __init__(self, database: Database, directory: Directory, publisher: Publisher) -> None:
        self._database = database
        self._directory = directory
        self._publisher = publisher
        self._pending: list[Submission] = []
        self._led = False
        self._lock = _thread.allocate_lock()
        self._closed: dict[str, bool] = {}  # class to whether its lane was closed when last seen

    def submit(self, submission: Submission) -> Submission:
        """Store these jobs; returns when they are on disk, or the key turned out to be taken.

        Raises Unavailable, or what the database found wrong with them.
        """
        submission.gate.acquire()
        with self._lock:
            self._pending.append(submission)
            lead = not self._led
            self._led = True
        if not lead:
            submission.gate.acquire()  # until it is stored, or it is to lead
            lead = submission.leads
            if lead:
                self._gather()
        if lead:
            self._lead(submission)
        if submission.error is not None:
            raise submission.error
        return submission

    def _gather(self) -> None:
        """Under load, let the group grow while it does: a transaction costs 0.2 ms, a row in it 0.02."""
        until = time.monotonic() + GATHER_S
        seen = 0
        while seen < len(self._pending) and time.monotonic() < until:
            seen = len(self._pending)
            time.sleep(GATHER_STEP_S)

    def _lead(self, own: Submission) -> None:
        with self._lock:
            group = self._cut()
        try:
            self._store(group)
        finally:
            with self._lock:
                following = self._pending[0] if self._pending else None
                self._led = following is not None
            if following is not None:
                following.leads = True
                following.gate.release()
            for member in group:
                if member is not own:
                    member.gate.release()

    def _cut(self) -> list[Submission]:
        """All that is pending, up to MAX_GROUP_JOBS."""
        count = size = 0
        for member in self._pending:
            size += len(member.jobs)
            if count and size > MAX_GROUP_JOBS:
                break
            count += 1
        group, self._pending = self._pending[:count], self._pending[count:]
        return group

    def _store(self, group: Sequence[Submission]) -> None:
        try:
            plan = self._database.write(lambda tx: self._write(tx, group))
        except Unavailable as error:
            for member in group:  # each its own: an exception carries the traceback of one thread
                member.error = Unavailable(error.detail, may_have_been_accepted=error.may_have_been_accepted)
                member.error.__cause__ = error.__cause__
        except Exception as error:  # noqa: BLE001 - raised again, in the thread that it belongs to
            if len(group) == 1:
                group[0].error = error
                return
            # One of them is poison: the others must not suffer for it.
            log.warning("group_split", members=len(group), detail=str(error))
            self._store(group[: len(group) // 2])
            self._store(group[len(group) // 2:])
        except BaseException as error:
            for member in group:
                member.error = Unavailable(f"interrupted: {error!r}", may_have_been_accepted=True)
            raise
        else:
            self._publish(plan)

    def _write(self, tx: Transaction, group: Sequence[Submission]) -> _Plan:
        """Everything of one transaction. It may run again, so it builds its state anew."""
        row = tx.one(_CLOCK)
        assert row is not None  # noqa: S101 (for the type checker)
        now = int(row[0])
        for member in group:
            member.accepted_at, member.taken, member.error = now, False, None
        if any(member.key is not None for member in group):
            _enter_keys(tx, group, now)
        jobs = [new for member in group if not member.taken for new in member.jobs]
        if not jobs:
            return _Plan()
        plan = self._plan(tx, jobs, now)
        job.accept(tx, jobs, now, ticketed={offer.entry.id for offer in plan.offers})
        return plan

    def _plan(self, tx: Transaction, jobs: Sequence[job.NewJob], now: int) -> _Plan:
        plan = _Plan()
        for hardware in sorted({new.hardware for new in jobs}):  # sorted: lanes are locked in one order
            offers, left = self._fit(hardware, [new for new in jobs if new.hardware == hardware], now)
            # Known to be closed, it is only held shared, and by all at once; it is locked alone for closing.
            close = left and not self._closed.get(hardware, False)
            is_open = feed.is_open(tx, hardware, INTERACTIVE, to_close=close)
            if is_open and left:
                feed.close(tx, hardware, INTERACTIVE)
            if is_open:
                plan.offers += offers
            if left or not is_open:
                plan.left.add(hardware)
            self._closed[hardware] = left or not is_open
        return plan

    def _fit(self, hardware: str, jobs: Sequence[job.NewJob], now: int) -> tuple[list[Offer], bool]:
        """The jobs, in order, for which the class's queue has room; whether any are left."""
        room = self._publisher.room(hardware, self._directory.workers(hardware))
        if room <= 0.0:
            return [], True
        offers: list[Offer] = []
        filled = 0.0
        for new in jobs:
            items, work = self._directory.batch(new.network, hardware)
            share = max(1.0 / items, new.work / work)
            if filled and filled + share > room + 1e-9:
                return offers, True
            filled += share
            deadline = None if new.deadline_s is None else now + int(new.deadline_s * 1000)
            offers.append(Offer(hardware, new.network,
                                Entry(new.id, new.work, new.priority, deadline, new.tenant), share))
        return offers, False

    def _publish(self, plan: _Plan) -> None:
        if plan.offers:
            self._publisher.offer(plan.offers)
        for hardware in plan.left:
            self._publisher.announce(contract.FEED_CHANNEL, hardware.encode())


def _enter_keys(tx: Transaction, group: Sequence[Submission], now: int) -> None:
    first: dict[idempotency.Name, Submission] = {}
    for member in group:
        if member.key is not None:
            # The second with one key in one group loses as if it had come later.
            member.taken = first.setdefault(member.key.name, member) is not member
    stored = []
    for name, member in first.items():
        assert member.key is not None  # noqa: S101 (for the type checker)
        member.reply = member.key.reply(now)
        body = member.reply.body
        assert isinstance(body, bytes)  # noqa: S101 (for the type checker)
        stored.append(idempotency.Stored(name, member.key.fingerprint, member.reply.status, body,
                                         member.reply.headers))
    new = idempotency.enter(tx, stored)
    for name, member in first.items():
        member.taken = name not in new
