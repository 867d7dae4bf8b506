"""Processes that stand still for longer than a lease and then go on as if nothing had happened."""

import time
from collections.abc import Iterable
from typing import Any

import psutil
import pytest

from models import incarnation
from tests import waiting
from tests.stacks import LEASE_S, Stack

pytestmark = pytest.mark.slow
BOTH = pytest.mark.parametrize("kind", ["sqlite", "postgres"])


def _suspend(pids: Iterable[int]) -> list[psutil.Process]:
    processes = [psutil.Process(pid) for pid in pids]
    for each in processes:
        each.suspend()
    return processes


def _reason(stack: Stack, name: str) -> str | None:
    return stack.rows(f"SELECT end_reason FROM incarnations WHERE id = '{name}'")[0][0]  # type: ignore[no-any-return]


@BOTH
def test_a_worker_that_wakes_after_its_lease_writes_nothing_over_the_work_of_another(stack: Stack, say: Any) -> None:
    (old,) = stack.live()
    with stack.load(rate_s=150, webhook=stack.receiver.url) as load:
        load.reached(100)
        held = f"state = 'running' AND incarnation = '{old.id}'"
        while True:  # until it holds some while it sleeps
            waiting.until(lambda: stack.count(held), what="jobs that run")
            frozen = _suspend(stack.worker_pids())
            if stack.count(held):
                break
            frozen[0].resume()
        helper = stack.begin_worker()
        waiting.until(lambda: _reason(stack, old.id), 60, what="the end of the frozen one")
        assert _reason(stack, old.id) == incarnation.LOST
        new = stack.ready_worker(frozenset({old.id}))
        waiting.until(lambda: stack.count(f"state = 'succeeded' AND incarnation = '{new.id}'"), what="its work")
        frozen[0].resume()
        waiting.until(lambda: not frozen[0].is_running() or frozen[0].status() == psutil.STATUS_ZOMBIE, 60,
                      what="the end of the one that woke")
        stack.ready_worker(frozenset({old.id, new.id}))  # `up` starts another in its place
        load.reached(len(load.accepted) + 100)
    figures = stack.check(load, told=True)
    say(**figures)
    assert figures["crashed"] == 0
    helper.terminate()
    assert helper.wait(30) == 0


@BOTH
def test_the_only_worker_frozen_for_two_leases_counts_against_no_job(stack: Stack, say: Any) -> None:
    (old,) = stack.live()
    with stack.load(rate_s=100, webhook=stack.receiver.url) as load:
        load.reached(100)
        frozen = _suspend(stack.worker_pids())
        asleep = time.monotonic()
        waiting.until(lambda: time.monotonic() - asleep > 2 * LEASE_S, 60)
        waiting.until(lambda: _reason(stack, old.id), 60, what="the end of its lease")
        frozen[0].resume()
        woken = time.monotonic()
        stack.ready_worker(frozenset({old.id}))
        ready_s = time.monotonic() - woken
        load.reached(len(load.accepted) + 100)
    figures = stack.check(load, told=True)
    say(ready_after_s=round(ready_s, 2), **figures)
    assert figures["crashed"] == 0


@BOTH
def test_a_sweep_that_slept_does_not_take_the_living_for_dead(stack: Stack, say: Any) -> None:
    (worker,) = stack.live()
    with stack.load(rate_s=100) as load:
        load.reached(100)
        frozen = _suspend(stack.up.pids("main.py housekeep"))
        asleep = time.monotonic()
        waiting.until(lambda: time.monotonic() - asleep > 2 * LEASE_S, 60)
        accepted, done = len(load.accepted), stack.count("state = 'succeeded'")
        for each in frozen:
            each.resume()
        load.reached(len(load.accepted) + 300)
    say(accepted=accepted, succeeded_meanwhile=done - (stack.accepted), **stack.check(load))
    assert [each.id for each in stack.live()] == [worker.id]


@BOTH
def test_a_machine_that_slept_goes_on_with_the_same_worker(stack: Stack, say: Any) -> None:
    (worker,) = stack.live()
    with stack.load(rate_s=100) as load:
        load.reached(100)
        frozen = _suspend([stack.up.process.pid, *stack.up.tree()])
        asleep = time.monotonic()
        waiting.until(lambda: time.monotonic() - asleep > 2 * LEASE_S, 60)
        for each in reversed(frozen):
            each.resume()
        load.reached(len(load.accepted) + 300)
    figures = stack.check(load)
    say(**figures, trouble=dict(load.trouble))
    assert figures["crashed"] == 0
    assert [each.id for each in stack.live()] == [worker.id]


@pytest.mark.parametrize("kind", ["postgres"])
@pytest.mark.parametrize("fault", ["killed", "frozen"])
def test_a_database_that_is_away_counts_against_nobody(stack: Stack, fault: str, say: Any) -> None:
    (worker,) = stack.live()
    with stack.load(rate_s=100, webhook=stack.receiver.url) as load:
        for _ in range(3):
            load.reached(len(load.accepted) + 100)
            (server, *_) = stack.up.pids("bin/postgres -D")
            if fault == "killed":
                psutil.Process(server).kill()
                waiting.until(lambda server=server: server not in stack.up.pids("bin/postgres -D"), what="its end")
            else:
                frozen = _suspend([server, *(each.pid for each in psutil.Process(server).children(recursive=True))])
                asleep = time.monotonic()
                waiting.until(lambda asleep=asleep: time.monotonic() - asleep > 2.2 * LEASE_S, 60)
                for each in frozen:
                    each.resume()
        load.reached(len(load.accepted) + 100)
    figures = stack.check(load, told=True)
    say(fault=fault, trouble=dict(load.trouble), **figures)
    assert figures["crashed"] == 0
    assert worker.id in {each.id for each in stack.live()}
