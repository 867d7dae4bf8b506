"""Transitions that race, on both databases: none deadlocks, and every job ends once."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent import futures

from models import claim, feed, incarnation, job, turn
from models.claim import Outcome
from models.database import Database, Statement
from tests import rows

_DEADLOCKS = Statement("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
_ENDED = Statement("SELECT id, state FROM jobs WHERE state NOT IN ('queued', 'running')")
_RESULTS = Statement("SELECT job_id FROM results")
_EVENTS = Statement("SELECT subject FROM events")
_LIVE = Statement("SELECT count(*) FROM jobs WHERE state IN ('queued', 'running')")


def _claim(database: Database, wanted: list[str], me: str) -> list[claim.Claimed]:
    return database.write(lambda tx: claim.claim(tx, wanted, incarnation=me, hardware="cpu", begun=True), durable=False)


def test_of_racing_claims_each_job_goes_to_one(database: Database) -> None:
    wanted = rows.jobs(database, 200)
    workers = [rows.worker(database) for _ in range(4)]
    start = threading.Barrier(len(workers))

    def take(me: str) -> list[str]:
        mine = random.sample(wanted, len(wanted))
        start.wait(10)
        return [each.id for begin in range(0, len(mine), 50) for each in _claim(database, mine[begin:begin + 50], me)]

    with futures.ThreadPoolExecutor(len(workers)) as pool:
        taken = [each for part in pool.map(take, workers) for each in part]
    assert sorted(taken) == sorted(wanted)


def test_cancel_and_settle_race_to_one_end(database: Database) -> None:
    me = rows.worker(database)
    wanted = rows.jobs(database, 100, webhook=b'{"url": "http://x"}')
    claimed = _claim(database, wanted, me)

    def settle() -> dict[str, str]:
        ended: dict[str, str] = {}
        for begin in range(0, len(claimed), 10):
            outcomes = [Outcome(c.id, c.attempt, "succeeded", output=b"{}") for c in claimed[begin:begin + 10]]
            ended |= database.write(lambda tx, part=outcomes: claim.settle(tx, part, incarnation=me))
        return ended

    def cancel() -> list[str]:
        return [each for each in reversed(wanted)
                if database.write(lambda tx, each=each: job.cancel(tx, rows.TENANT, each)) == "running"]

    with futures.ThreadPoolExecutor(2) as pool:
        settling, canceling = pool.submit(settle), pool.submit(cancel)
        settled, canceled = settling.result(60), canceling.result(60)
    assert sorted([*settled, *canceled]) == sorted(wanted)
    with database.read() as tx:
        assert sorted(row[0] for row in tx.all(_RESULTS)) == sorted(settled)
        assert sorted(row[0] for row in tx.all(_EVENTS)) == sorted(wanted)


def test_everything_at_once_neither_deadlocks_nor_ends_a_job_twice(database: Database) -> None:
    """Overlapping batches in random order: claims, settles, cancels, expiry, marks, ends of lives, retries."""
    wanted = rows.jobs(database, 150, webhook=b'{"url": "http://x"}')
    wanted += rows.jobs(database, 50, deadline_s=0.5, webhook=b'{"url": "http://x"}')
    before = _deadlocks(database)
    workers = [rows.worker(database) for _ in range(3)]
    ended: Counter[str] = Counter()
    lock = threading.Lock()

    def some(count: int) -> list[str]:
        return random.sample(wanted, count)

    def run(me: str) -> None:
        claimed = _claim(database, some(40), me)
        random.shuffle(claimed)
        cut = random.randrange(len(claimed) + 1)
        outcomes = [Outcome(c.id, c.attempt, random.choice(["succeeded", "failed"]), output=b"{}")
                    for c in claimed[:cut]]
        begin = [c.id for c in claimed[cut:]]
        count(database.write(lambda tx: claim.settle(tx, outcomes, incarnation=me, begin=begin)))
        database.write(lambda tx: claim.give_back(tx, begin, incarnation=me))

    def count(ids: Iterable[str]) -> None:
        with lock:
            ended.update(list(ids))

    def feeder() -> None:
        def pick(tx):
            feed.mark(tx, [w.entry.id for w in turn.pick(tx, "cpu", limit=30)])

        database.write(pick)
        database.write(lambda tx: claim.unmark(tx, some(30)))
        database.write(lambda tx: feed.clear_marks(tx, "cpu"))

    def client() -> None:
        each = some(1)[0]
        if database.write(lambda tx: job.cancel(tx, rows.TENANT, each)) not in job.TERMINAL:
            count([each])
        each = some(1)[0]
        if database.write(lambda tx: job.retry(tx, rows.TENANT, each)) == "failed":
            with lock:
                ended[each] -= 1

    def death() -> None:
        me = rows.worker(database)
        claimed = _claim(database, some(20), me)
        assert all(each.attempt >= 1 for each in claimed)
        count(database.write(lambda tx: incarnation.end(tx, me, incarnation.LOST, max_attempts=3)) or [])

    actions: list[Callable[[], object]] = [
        *(lambda me=me: run(me) for me in workers), feeder, client, client, death,
        lambda: count(database.write(lambda tx: job.expire(tx, 20)))]

    def work(action: Callable[[], object]) -> None:
        for _ in range(15):
            action()

    with futures.ThreadPoolExecutor(len(actions)) as pool:
        for done in [pool.submit(work, action) for action in actions]:
            done.result(120)
    with database.read() as tx:
        states = dict(tx.all(_ENDED))
        results = [row[0] for row in tx.all(_RESULTS)]
        (live,) = tx.all(_LIVE)
    assert {each for each, times in ended.items() if times} == set(states)
    assert all(times in (0, 1) for times in ended.values())
    assert sorted(results) == sorted(each for each, state in states.items() if state == "succeeded")
    assert len(states) + live[0] == len(wanted)
    assert _deadlocks(database) == before


def _deadlocks(database: Database) -> int:
    if database.dialect == "sqlite":
        return 0
    with database.read() as tx:
        return int(tx.all(_DEADLOCKS)[0][0])
