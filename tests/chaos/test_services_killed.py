"""SIGKILL of the API, of housekeeping and of `up` itself under load."""

import os
import signal
import time
from typing import Any

import pytest

from models import incarnation
from tests import waiting
from tests.stacks import Stack

slow = pytest.mark.slow
RUNS = pytest.mark.parametrize(("kind", "kills"), [
    ("sqlite", 1), pytest.param("sqlite", 10, marks=slow), pytest.param("postgres", 10, marks=slow)])


def _kill(stack: Stack, part: str, which: int) -> None:
    """Kill one process of a part and wait until the part has been started again."""
    old = stack.up.pids(part)
    os.kill(old[which], signal.SIGKILL)
    waiting.until(lambda: len(set(stack.up.pids(part)) - set(old)) >= len(old), 60, what=f"another {part}")


@RUNS
def test_clients_that_send_again_with_their_keys_lose_and_double_nothing_when_the_api_is_killed(
        stack: Stack, kills: int, say: Any) -> None:
    with stack.load(rate_s=100, clients=8) as load:
        for number in range(kills):
            load.reached(len(load.accepted) + 100)
            _kill(stack, "main.py api", (-1, 0)[number % 2])  # the one that serves, and granian's first process
        load.reached(len(load.accepted) + 100)
    say(kills=kills, **stack.check(load), trouble=dict(load.trouble))


@RUNS
def test_jobs_and_webhooks_survive_killed_housekeeping(stack: Stack, kills: int, say: Any) -> None:
    with stack.load(rate_s=100, webhook=stack.receiver.url) as load:
        for _ in range(kills):
            load.reached(len(load.accepted) + 100)
            (old,) = stack.live(incarnation.HOUSEKEEPING)
            _kill(stack, "main.py housekeep", 0)
            # Killed before it has begun, it would be started again ever later.
            waiting.until(lambda old=old: [each for each in stack.live(incarnation.HOUSEKEEPING) if each.id != old.id],
                          60, what="other housekeeping")
        load.reached(len(load.accepted) + 100)
    say(kills=kills, repeats=stack.receiver.repeats, **stack.check(load, told=True), trouble=dict(load.trouble))


@pytest.mark.parametrize(("kind", "kills"), [
    ("sqlite", 1), pytest.param("sqlite", 5, marks=slow), pytest.param("postgres", 5, marks=slow)])
def test_every_accepted_job_ends_when_up_itself_is_killed_and_started_again(
        stack: Stack, kills: int, say: Any) -> None:
    ready_s = []
    with stack.load(rate_s=100, webhook=stack.receiver.url, clients=8) as load:
        for _ in range(kills):
            load.reached(len(load.accepted) + 150)
            family = stack.up.tree()
            stack.up.process.kill()
            stack.up.process.wait(10)
            waiting.until(lambda family=family: not any(waiting.alive(pid) for pid in family), what="the end of all")
            begun = time.monotonic()
            stack.start()
            ready_s.append(round(time.monotonic() - begun, 2))
            load.url = stack.url
        load.reached(len(load.accepted) + 100)
    say(kills=kills, ready_s_max=max(ready_s), **stack.check(load, told=True), trouble=dict(load.trouble))
