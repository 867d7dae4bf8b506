"""Overlapping batches in many threads at once, in random orders: none deadlocks, and nothing is lost or doubled."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent import futures

import psycopg
import pytest

from models import claim, feed, ids, incarnation, job, turn
from models.claim import Outcome
from models.contract import INTERACTIVE
from models.database import Database, Statement
from models.job import NewJob
from tests import rows

WEBHOOK = b'{"url": "http://x"}'
BEGIN_WITH = 150
BATCH = 40
HUNG_S = 300  # more than any of these may take on a busy machine

_JOBS = Statement("SELECT id, state, waiting, crashes, crashes_alone, attempt FROM jobs")
_RESULTS = Statement("SELECT job_id, attempt FROM results")
_EVENTS = Statement("SELECT subject FROM events")


class Counting(Database):
    """The database as it is; it keeps the deadlocks that it got over by itself."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.deadlocks: list[str] = []

    def _run(self, connection, work):
        try:
            return super()._run(connection, work)
        except psycopg.errors.DeadlockDetected as error:
            self.deadlocks.append(str(error))
            raise


class Crowd:
    """Threads that do everything that may be done to one set of jobs, and what they were told came of it."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.wanted: list[str] = []
        self.attempts: Counter[tuple[str, int]] = Counter()  # handed out by claims
        self.written: dict[str, int] = {}  # results: job to the attempt that settled it
        self.ends: Counter[str] = Counter()
        self.crashes: Counter[str] = Counter()  # the most that each may show
        self.did: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.arrive(BEGIN_WITH)

    def some(self, count: int) -> list[str]:
        with self._lock:
            return random.sample(self.wanted, min(count, len(self.wanted)))

    def arrive(self, count: int = 5) -> None:
        """As the API does: the lane's row, held or closed, then new rows."""
        new = [NewJob(id=ids.new(ids.JOB), tenant=rows.TENANT, network=rows.NETWORK, hardware="cpu", work=1.0,
                      input=b"[1]", webhook=WEBHOOK, priority=random.randrange(10),
                      deadline_s=random.choice([None, None, 0.02, 60.0])) for _ in range(count)]
        close = random.random() < 0.5

        def work(tx):
            if feed.is_open(tx, "cpu", INTERACTIVE, to_close=close) and close:
                feed.close(tx, "cpu", INTERACTIVE)
            job.accept(tx, new, int(tx.all(_CLOCK)[0][0]), ticketed=() if close else {each.id for each in new})

        self.database.write(work)
        with self._lock:
            self.wanted += [each.id for each in new]

    def take(self, me: str, wanted: list[str], *, begun: bool, alone: bool = False) -> list[claim.Claimed]:
        claimed = self.database.write(lambda tx: claim.claim(
            tx, wanted, incarnation=me, hardware="cpu", begun=begun, alone=alone), durable=False)
        with self._lock:
            self.attempts.update((each.id, each.attempt) for each in claimed)
        return claimed

    def work(self, me: str) -> None:
        """A worker's round: claim, claim the next, settle with what is left over, give back."""
        claimed = self.take(me, self.some(BATCH), begun=True, alone=random.random() < 0.3)
        following = self.take(me, self.some(BATCH // 2), begun=False)
        random.shuffle(claimed)
        cut = random.randrange(len(claimed) + 1)
        self.settle(me, claimed[:cut], begin=[c.id for c in following], unrun=[c.id for c in claimed[cut:]])
        random.shuffle(following)
        self.settle(me, following[1:])
        self.database.write(lambda tx: claim.give_back(tx, [c.id for c in following], incarnation=me))

    def settle(self, me: str, claimed: list[claim.Claimed], **also: list[str]) -> None:
        outcomes = [Outcome(c.id, c.attempt, random.choice(["succeeded", "failed"]), output=b"{}") for c in claimed]
        settled = self.database.write(lambda tx: claim.settle(tx, outcomes, incarnation=me, **also))
        with self._lock:
            self.ends.update(list(settled))
            self.written |= {c.id: c.attempt for c in claimed if settled.get(c.id) == "succeeded"}

    def feed(self) -> None:
        def pick(tx):
            feed.mark(tx, [w.entry.id for w in turn.pick(tx, "cpu", limit=30)])
            return feed.reopen(tx, "cpu", INTERACTIVE)

        self.database.write(pick)

    def give_up(self) -> None:
        """What API, worker and feeder do with tickets that could not be sent or are of no use."""
        some = self.some(BATCH)
        self.database.write(lambda tx: (claim.unmark(tx, some), feed.close(tx, "cpu", INTERACTIVE)))
        self.database.write(lambda tx: (feed.clear_marks(tx, "cpu"), feed.close(tx, "cpu", INTERACTIVE)))

    def ask(self) -> None:
        """A client's cancel, then its retries."""
        (each,) = self.some(1)
        if random.random() < 0.3 and self.database.write(lambda tx: job.cancel(tx, rows.TENANT, each)) in (
                "queued", "running"):
            with self._lock:
                self.ends[each] += 1
        for again in self.some(10):
            if self.database.write(lambda tx, again=again: job.retry(tx, rows.TENANT, again)) == "failed":
                with self._lock:
                    self.ends[again] -= 1
                    self.did["retried"] += 1

    def die(self) -> None:
        """A worker dies with a batch, or the same job kills several in a row."""
        if random.random() < 0.5:
            return self._die_of(self.some(BATCH), alone=random.random() < 0.5)
        (poison,) = self.some(1)
        for _ in range(4):
            self._die_of([poison], alone=True)
        return None

    def _die_of(self, wanted: list[str], *, alone: bool) -> None:
        me = rows.worker(self.database)
        claimed = self.take(me, wanted, begun=alone or random.random() < 0.5, alone=alone)
        reason = random.choice([incarnation.KILLED, incarnation.LOST])
        if reason == incarnation.KILLED:
            with self._lock:
                self.crashes.update(each.id for each in claimed)
        parked = self.database.write(lambda tx: incarnation.end(tx, me, reason, max_attempts=3))
        with self._lock:
            self.ends.update(parked or ())
            self.did["parked"] += len(parked or ())

    def expire(self) -> None:
        expired = self.database.write(lambda tx: job.expire(tx, 30))
        with self._lock:
            self.ends.update(expired)
            self.did["expired"] += len(expired)

    def run(self, rounds: int) -> None:
        workers = [rows.worker(self.database) for _ in range(3)]
        actions: list[Callable[[], object]] = [
            *(lambda me=me: self.work(me) for me in workers), self.feed, self.give_up, self.ask, self.die, self.die,
            self.expire, self.arrive]

        def repeat(action: Callable[[], object]) -> None:
            for _ in range(rounds):
                action()

        with futures.ThreadPoolExecutor(len(actions)) as pool:
            for done in [pool.submit(repeat, action) for action in actions]:
                done.result(HUNG_S)
        for each in workers:
            self.database.write(lambda tx, each=each: incarnation.end(tx, each, incarnation.EXITED, max_attempts=3))

    def check(self) -> None:
        with self.database.read() as tx:
            found, results, events = tx.all(_JOBS), tx.all(_RESULTS), tx.all(_EVENTS)
            assert incarnation.abandoned(tx) == []
        assert sorted(row[0] for row in found) == sorted(self.wanted)
        assert max(self.attempts.values()) == 1  # none was handed out twice
        handed = Counter(name for name, _ in self.attempts)
        assert dict(results) == self.written
        told = Counter(row[0] for row in events)
        for name, state, waiting, crashes, crashes_alone, attempt in found:
            ended = state in job.TERMINAL
            assert self.ends[name] == int(ended), name
            assert attempt == handed[name], name
            assert bool(waiting) != ended, name  # nobody holds anything any more
            assert (name in self.written) == (state == "succeeded"), name
            assert crashes_alone <= crashes <= self.crashes[name], name
            assert told[name] >= int(ended), name


_CLOCK = Statement("SELECT {now}")


@pytest.fixture
def counting(database_url: str) -> Iterator[Counting]:
    connected = Counting(database_url)
    yield connected
    connected.close()


@pytest.mark.parametrize("rounds", [15, pytest.param(400, marks=pytest.mark.slow)])
def test_whatever_overlaps_nothing_deadlocks_is_lost_or_doubled(
        counting: Counting, rounds: int, capfd: pytest.CaptureFixture[str]) -> None:
    crowd = Crowd(counting)
    crowd.run(rounds)
    crowd.check()
    with capfd.disabled():
        print(f"\n{counting.dialect}: {len(crowd.wanted)} jobs, {sum(crowd.attempts.values())} attempts, "
              f"{len(crowd.written)} results, {dict(crowd.did)}, {len(counting.deadlocks)} deadlocks retried")
    assert not counting.deadlocks
