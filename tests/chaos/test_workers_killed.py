"""SIGKILL of workers under load: under `headrace up`, which sees its child die, and by themselves."""

import os
import signal
import time
from typing import Any

import pytest

from tests import waiting
from tests.stacks import LEASE_S, Stack

slow = pytest.mark.slow
RUNS = pytest.mark.parametrize(("kind", "kills"), [
    ("sqlite", 1), pytest.param("sqlite", 20, marks=slow), pytest.param("postgres", 20, marks=slow)])


def _kill(stack: Stack) -> dict[str, float]:
    """Kill the worker while it runs jobs; how long all came back, seconds."""
    old = frozenset(each.id for each in stack.live())
    settled = stack.count("state = 'succeeded'")
    waiting.until(lambda: stack.count("state = 'succeeded'") > settled and stack.count("state = 'running'"),
                  30, what="jobs that run")
    (pid,) = stack.worker_pids()
    os.kill(pid, signal.SIGKILL)
    killed_at, killed = time.time(), time.monotonic()
    waiting.until(lambda: stack.worker_pids() not in ([], [pid]), 60, what="the start of another worker")
    restarted_s = time.monotonic() - killed
    new = stack.ready_worker(old)
    ready_s = time.monotonic() - killed
    first = waiting.until(lambda: stack.rows(
        f"SELECT finished_at FROM jobs WHERE incarnation = '{new.id}' AND state = 'succeeded' "
        "ORDER BY finished_at LIMIT 1"), 60, what="a job of the new worker")[0]
    return {"restarted_s": restarted_s, "ready_s": ready_s, "start_to_ready_s": ready_s - restarted_s,
            "settled_s": first[0] / 1000 - killed_at}


def _worst(measured: list[dict[str, float]]) -> dict[str, Any]:
    return {name: {"median": round(sorted(each[name] for each in measured)[len(measured) // 2], 2),
                   "max": round(max(each[name] for each in measured), 2)} for name in measured[0]} | {
        "over_start_s_max": round(max(each["settled_s"] - each["start_to_ready_s"] for each in measured), 2)}


@RUNS
def test_every_job_succeeds_once_whatever_workers_are_killed(stack: Stack, kills: int, say: Any) -> None:
    with stack.load(rate_s=100, webhook=stack.receiver.url) as load:
        load.reached(100)
        measured = [_kill(stack) for _ in range(kills)]
    say(kills=kills, **_worst(measured), **stack.check(load, told=True), trouble=dict(load.trouble),
        submit_p99_ms=load.percentile_ms(0.99), repeats=stack.receiver.repeats)
    assert not stack.count("error_code = 'crashes_exhausted'")


@slow
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_jobs_of_a_worker_that_nobody_saw_die_are_run_by_another_once_its_lease_is_over(
        stack: Stack, say: Any) -> None:
    (kept,) = stack.live()
    alone = stack.begin_worker()  # by hand: it has no supervisor
    old = stack.ready_worker(frozenset({kept.id})).id
    held = f"state = 'running' AND incarnation = '{old}'"
    with stack.load(rate_s=150, webhook=stack.receiver.url) as load:
        while True:  # until it holds some and says nothing more
            waiting.until(lambda: stack.count(held), what="jobs that run")
            alone.suspend()
            if holding := stack.count(held):
                break
            alone.resume()
        alone.kill()
        killed = time.monotonic()
        waiting.until(lambda: not stack.count(held), 60, what="the end of what it held")
        recovered_s = time.monotonic() - killed
    say(held=holding, recovered_s=round(recovered_s, 2), lease_s=LEASE_S, **stack.check(load, told=True))
