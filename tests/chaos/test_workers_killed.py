"""SIGKILL of workers under load: under `headrace up`, which sees its child die, and by themselves."""

import os
import signal
import statistics
import time
from collections.abc import Iterable
from typing import Any

import pytest

from tests import waiting
from tests.stacks import LEASE_S, Stack

slow = pytest.mark.slow
RUNS = pytest.mark.parametrize(("kind", "kills"), [
    ("sqlite", 1), pytest.param("sqlite", 20, marks=slow), pytest.param("postgres", 20, marks=slow)])


SWEEP_S = 2.0  # the default
MARGIN_S = 2.0


def _kill(stack: Stack, recoveries: list[float]) -> dict[str, float]:
    """Kill the worker while it runs jobs; how long all came back, seconds.

    `recoveries` is given, for each job that it held, the time from the kill to the job's end.
    """
    old = frozenset(each.id for each in stack.live())
    settled = stack.count("state = 'succeeded'")
    waiting.until(lambda: stack.count("state = 'succeeded'") > settled and stack.count("state = 'running'"),
                  30, what="jobs that run")
    (pid,) = stack.worker_pids()
    os.kill(pid, signal.SIGKILL)
    killed_at, killed = time.time(), time.monotonic()
    held = _held(stack, old)
    waiting.until(lambda: stack.worker_pids() not in ([], [pid]), 60, what="the start of another worker")
    restarted_s = time.monotonic() - killed
    new = stack.ready_worker(old)
    ready_s = time.monotonic() - killed
    first = waiting.until(lambda: stack.rows(
        f"SELECT finished_at FROM jobs WHERE incarnation = '{new.id}' AND state = 'succeeded' "
        "ORDER BY finished_at LIMIT 1"), 60, what="a job of the new worker")[0]
    recoveries += _ended(stack, held, killed_at)
    return {"restarted_s": restarted_s, "ready_s": ready_s, "start_to_ready_s": ready_s - restarted_s,
            "settled_s": first[0] / 1000 - killed_at}


def _held(stack: Stack, workers: Iterable[str]) -> list[str]:
    names = ", ".join(f"'{each}'" for each in workers)
    return [row[0] for row in stack.rows(f"SELECT id FROM jobs WHERE state = 'running' AND incarnation IN ({names})")]


def _ended(stack: Stack, jobs: list[str], since: float) -> list[float]:
    """Seconds from a wall time (this machine's is also the database's) to the end of each job."""
    names = ", ".join(f"'{each}'" for each in jobs) or "''"

    def ended() -> list[list[tuple[Any, ...]]]:
        rows = stack.rows(f"SELECT finished_at FROM jobs WHERE id IN ({names}) AND finished_at IS NOT NULL")
        return [rows] if len(rows) == len(jobs) else []

    (rows,) = waiting.until(ended, 120, what="the end of what the killed one held")
    return [row[0] / 1000 - since for row in rows]


def _p99(values: list[float]) -> float:
    return round(sorted(values)[min(len(values) - 1, int(0.99 * len(values)))], 2) if values else 0.0


def _worst(measured: list[dict[str, float]]) -> dict[str, Any]:
    return {name: {"median": round(sorted(each[name] for each in measured)[len(measured) // 2], 2),
                   "max": round(max(each[name] for each in measured), 2)} for name in measured[0]} | {
        "over_start_s_max": round(max(each["settled_s"] - each["start_to_ready_s"] for each in measured), 2)}


@RUNS
def test_every_job_succeeds_once_whatever_workers_are_killed(stack: Stack, kills: int, say: Any) -> None:
    recoveries: list[float] = []
    parked = stack.count("error_code = 'crashes_exhausted'")  # what other tests left
    with stack.load(rate_s=100, webhook=stack.receiver.url) as load:
        load.reached(100)
        measured = [_kill(stack, recoveries) for _ in range(kills)]
    # What the service promises: start to ready under this load, and a margin.
    bound_s = max(each["start_to_ready_s"] for each in measured) + MARGIN_S
    say(kills=kills, affected=len(recoveries), recovery_p50_s=round(statistics.median(recoveries or [0.0]), 2),
        recovery_p99_s=_p99(recoveries), bound_s=round(bound_s, 2), kept=_p99(recoveries) <= bound_s, **_worst(measured), **stack.check(load, told=True), trouble=dict(load.trouble),
        submit_p99_ms=load.percentile_ms(0.99), repeats=stack.receiver.repeats)
    assert stack.count("error_code = 'crashes_exhausted'") == parked


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
        names = _held(stack, [old])
        alone.kill()
        killed, killed_at = time.monotonic(), time.time()
        waiting.until(lambda: not stack.count(held), 60, what="the end of what it held")
        recovered_s = time.monotonic() - killed
        recoveries = _ended(stack, names, killed_at)
    bound_s = LEASE_S + 2 * SWEEP_S + MARGIN_S  # a lease, two sweeps, and their own runs beside the load
    say(held=holding, recovery_p99_s=_p99(recoveries), bound_s=bound_s, kept=_p99(recoveries) <= bound_s, recovered_s=round(recovered_s, 2), lease_s=LEASE_S, **stack.check(load, told=True))
