"""A broker that is emptied, killed, frozen, or cuts its connections; and what may lie in it."""

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import redis

from models import contract
from tests import waiting
from tests.stacks import QUEUE, Stack

slow = pytest.mark.slow
BOTH = pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=slow)])


@contextlib.contextmanager
def _still(stack: Stack) -> Iterator[None]:
    """The worker is stopped meanwhile: shorter than its lease."""
    (pid,) = stack.worker_pids()
    process = psutil.Process(pid)
    process.suspend()
    try:
        yield
    finally:
        process.resume()


@BOTH
def test_a_broker_emptied_with_a_thousand_jobs_queued_loses_none(stack: Stack, say: Any) -> None:
    client = stack.broker.client()
    with _still(stack), stack.load(count=1000, rate_s=20_000, size=100) as load:
        load.join()
        assert stack.count("state = 'queued'") > 800
        tickets = client.llen(QUEUE)
        client.flushall()
    drained_s = stack.drained()
    client.close()
    say(tickets_lost=tickets, drained_s=round(drained_s, 2), **stack.check(load))


@slow
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_broker_emptied_again_and_again_under_load_loses_none(stack: Stack, say: Any) -> None:
    client = stack.broker.client()
    with stack.load(rate_s=150) as load:
        for number in range(1, 6):
            load.reached(60 * number)
            client.flushall()
    client.close()
    say(drained_s=round(stack.drained(), 2), **stack.check(load), submit_p99_ms=load.percentile_ms(0.99))


def _out_of_reach(stack: Stack) -> set[str]:
    """What `/readyz` says is missing."""
    return {each["pointer"] for each in stack.get("/readyz").get("errors", ())}


@pytest.mark.parametrize(("kind", "fault", "jobs"), [
    ("sqlite", "frozen", 100), *(pytest.param(kind, fault, 500, marks=slow) for kind in ("sqlite", "postgres")
                                 for fault in ("killed", "frozen"))])
def test_without_a_broker_jobs_are_accepted_as_fast_and_run_when_it_is_back(
        stack: Stack, fault: str, jobs: int, say: Any) -> None:
    (worker,) = stack.live()
    with stack.load(rate_s=100) as before:
        before.reached(jobs // 2)
    stack.drained()
    (stack.broker.kill if fault == "killed" else stack.broker.freeze)()
    try:
        waiting.until(lambda: _out_of_reach(stack) == {"/broker"}, what="the API's notice")
        with stack.load(rate_s=100) as during:
            during.reached(jobs)
            poll = next(iter(during.accepted))
            asked = time.monotonic()
            told = stack.get(f"/v1/jobs/{poll}?wait=1")
            waited_s = time.monotonic() - asked
            assert told["state"] in ("queued", "running", "succeeded")
            assert _out_of_reach(stack) == {"/broker"}
    finally:
        (stack.broker.start if fault == "killed" else stack.broker.thaw)()
    back = time.monotonic()
    left = stack.count("state = 'queued'")
    waiting.until(lambda: not _out_of_reach(stack), what="readiness")
    ready_s = time.monotonic() - back
    drained_s = time.monotonic() - back + stack.drained()
    figures = stack.check(before, during)
    say(fault=fault, p50_ms=during.percentile_ms(0.5), p99_ms=during.percentile_ms(0.99),
        max_ms=during.percentile_ms(1), before_p99_ms=before.percentile_ms(0.99), trouble=dict(during.trouble),
        long_poll_s=round(waited_s, 2), left=left, ready_after_s=round(ready_s, 2),
        drained_after_s=round(drained_s, 2), **figures)
    assert not during.trouble
    assert [each.id for each in stack.live()] == [worker.id]


@pytest.mark.parametrize(("kind", "cuts"), [("sqlite", 10), pytest.param("sqlite", 60, marks=slow),
                                            pytest.param("postgres", 60, marks=slow)])
def test_connections_cut_again_and_again_lose_nothing_and_end_nobody(stack: Stack, cuts: int, say: Any) -> None:
    (worker,) = stack.live()
    client = stack.broker.client()
    killed = 0
    with stack.load(rate_s=100, webhook=stack.receiver.url) as load:
        for number in range(1, cuts + 1):
            load.reached(20 * number)
            for kind in ("normal", "pubsub"):
                with contextlib.suppress(redis.ConnectionError):
                    killed += int(client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"))
    client.close()
    say(cuts=cuts, connections_cut=killed, **stack.check(load, told=True))
    assert worker.id in {each.id for each in stack.live()}


class Census(threading.Thread):
    """Looks at the queue until stopped: the most tickets, and the most entries, that it ever held."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(daemon=True)
        self._client = stack.broker.client()
        self._over = threading.Event()
        self.tickets = self.entries = self.looks = self.memory = 0
        self.start()

    def run(self) -> None:
        while not self._over.wait(0.01):
            messages: Any = self._client.lrange(QUEUE, 0, -1)
            self.looks += 1
            self.tickets = max(self.tickets, len(messages))
            self.entries = max(self.entries, sum(len(entries(each)) for each in messages))
            self.memory = max(self.memory, int(self._client.info("memory")["used_memory"]))  # type: ignore[index]

    def end(self) -> None:
        self._over.set()
        self.join()
        self._client.close()


def entries(message: bytes) -> list[Any]:
    import base64
    import json
    network, lane, rows, alone = json.loads(base64.b64decode(json.loads(message)["body"]))[0]
    assert (network, lane, alone) == ("deep@1", contract.INTERACTIVE, False)
    return list(rows)


@pytest.mark.parametrize(("kind", "count", "for_s"), [
    ("sqlite", 3000, 0.0), pytest.param("sqlite", 100_000, 60.0, marks=slow),
    pytest.param("postgres", 100_000, 60.0, marks=slow)])
def test_a_flood_without_a_worker_stays_in_the_database_and_one_worker_drains_it(
        stack: Stack, count: int, for_s: float, say: Any) -> None:
    stack.restart(workers=0)
    census = Census(stack)
    begun = time.monotonic()
    with stack.load(count=count, rate_s=1e6, size=1000, clients=2) as load:
        load.join()
        accepted_s = time.monotonic() - begun
        census.join(max(0.0, for_s - accepted_s))
        waiting.until(lambda: census.looks > 10, what="some looks")
        alone = {"tickets": census.tickets, "entries": census.entries}
        worker = stack.begin_worker()
        stack.ready_worker()
        ready = time.monotonic()
        stack.drained(600)
        drained_s = time.monotonic() - ready
    census.end()
    say(jobs=count, accepted_per_s=round(count / accepted_s), waited_s=round(max(for_s, accepted_s), 1), **alone,
        tickets_with_worker=census.tickets, entries_with_worker=census.entries,
        broker_mb=round(census.memory / 2**20, 1), drained_per_s=round(count / drained_s), **{
            name: value for name, value in stack.check(load).items() if name != "jobs"})
    worker.terminate()
    assert worker.wait(30) == 0
    # With nobody to take it, one ticket lies there for the first that comes; then about a batch a worker.
    assert alone["tickets"] == 1
    assert alone["entries"] <= contract.MAX_ENTRIES
    assert census.entries <= 2 * contract.MAX_ENTRIES
