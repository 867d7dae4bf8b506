"""Inputs that kill the process which runs them, among others that must succeed.

The network is a real one, and so is the death: least ÷ (x - 8) divides the least integer by -1 where x is 7,
which the processor answers with SIGFPE; ONNX Runtime only looks for divisors of 0.
"""

import collections
import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import embedded, graphs, waiting
from tests.stacks import Stack

slow = pytest.mark.slow
MAX_ATTEMPTS = 3
POISON = 7
LEAST = int(np.iinfo(np.int64).min)


def _network(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    graphs.save(folder, [graphs.node("Sub", ["x", "eight"], ["d"]), graphs.node("Div", ["least", "d"], ["y"])],
                [("x", graphs.INT64, ["n", 1])], [("y", graphs.INT64, ["n", 1])],
                {"eight": np.array([8], np.int64), "least": np.array([LEAST], np.int64)})
    (folder / "network.yaml").write_text("name: least\nversion: '1'\ntask: tensor\nartifact: model.onnx\n"
                                         "hardware: [cpu]\nbatching: {max_items: 64}\npinned: true\n")
    return folder


@pytest.fixture
def least(stack: Stack) -> Stack:
    """The stack, serving the network that has a poison."""
    added = embedded.run("models", "add", str(_network(stack.folder / "least")), cwd=stack.folder, url=stack.url)
    assert added.returncode == 0, added.stderr
    return stack


def _body(value: int) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "INT64", "data": [value]}]}


def _submit(stack: Stack, values: list[int], **fields: Any) -> dict[str, int]:
    """Job to the value it was given."""
    jobs = [{"model": "least", "input": _body(value)} | fields for value in values]
    taken = [each["job"]["id"] for at in range(0, len(jobs), 500)
             for each in stack.up.post("/v1/jobs/batch", {"jobs": jobs[at:at + 500]})["data"]]
    return dict(zip(taken, values, strict=True))


def _account(stack: Stack, submitted: dict[str, int]) -> dict[str, Any]:
    """Every harmless job succeeded with the right answer, every poison is parked; how often each ran."""
    found = {row[0]: row[1:] for row in stack.rows(
        "SELECT id, state, error_code, attempt, crashes, crashes_alone FROM jobs") if row[0] in submitted}
    assert found.keys() == submitted.keys()
    outputs = dict(stack.rows("SELECT job_id, body FROM results"))
    good = [name for name, value in submitted.items() if value != POISON]
    bad = [name for name, value in submitted.items() if value == POISON]
    assert {found[name][:2] for name in good} <= {("succeeded", None)}
    for name in good:
        quotient = abs(LEAST) // abs(submitted[name] - 8) * (1 if submitted[name] < 8 else -1)
        assert json.loads(bytes(outputs[name]))["outputs"][0]["data"] == [quotient]
    assert {found[name][:2] for name in bad} <= {("failed", "crashes_exhausted")}
    assert {found[name][4] for name in bad} <= {MAX_ATTEMPTS}
    assert not {found[name][4] for name in good} - {0}, "a neighbour is blamed for a death beside the poison"
    return {"jobs": len(submitted), "attempts_of_good": _spread(found[name][2] for name in good),
            "crashes_of_good": _spread(found[name][3] for name in good),
            "attempts_of_poison": _spread(found[name][2] for name in bad),
            "crashes_of_poison": _spread(found[name][3] for name in bad)}


def _spread(numbers: Any) -> dict[int, int]:
    return dict(sorted(collections.Counter(numbers).items()))


def _deaths(stack: Stack, seen: int = 0) -> int:
    return len(stack.rows("SELECT id FROM incarnations WHERE kind = 'worker' AND end_reason = 'killed'")) - seen


@pytest.mark.parametrize(("kind", "jobs", "poisons"), [
    ("sqlite", 64, 1), pytest.param("postgres", 64, 1, marks=slow), pytest.param("sqlite", 507, 5, marks=slow),
    pytest.param("postgres", 507, 5, marks=slow)])
def test_an_input_that_kills_its_worker_is_parked_and_its_neighbours_succeed(
        least: Stack, jobs: int, poisons: int, say: Any) -> None:
    before = _deaths(least)
    values = [9 + number for number in range(jobs)]
    for number in range(poisons):
        values[(number * jobs) // poisons + 13] = POISON
    begun = time.monotonic()
    submitted = _submit(least, values, webhook={"url": least.receiver.url})
    drained_s = least.drained(300)
    figures = _account(least, submitted)
    say(poisons=poisons, deaths=_deaths(least, before), ended_after_s=round(time.monotonic() - begun, 1),
        drained_s=round(drained_s, 1), **figures)
    _told(least, submitted)
    assert least.ready_worker()
    after = _submit(least, [100, 101])
    least.drained()
    _account(least, after)  # the worker is back, and nothing is left of it

    bad = next(name for name, value in submitted.items() if value == POISON)
    again = embedded.run("jobs", "retry", bad, cwd=least.folder, url=least.url)
    assert again.returncode == 0, again.stderr
    waiting.until(lambda: least.get(f"/v1/jobs/{bad}")["state"] == "failed", 120, what="the end of the poison")
    assert least.get(f"/v1/jobs/{bad}")["crashes"] == MAX_ATTEMPTS  # counted from 0 again


def _told(stack: Stack, submitted: dict[str, int]) -> None:
    """One event each came: success, or failure with the reason."""
    def events() -> dict[str, dict[str, Any]]:
        return {each["data"]["id"]: each for each in list(stack.receiver.events.values())
                if each["data"]["id"] in submitted}

    waiting.until(lambda: events().keys() == submitted.keys(), 120, what="an event for every job")
    for name, each in events().items():
        poison = submitted[name] == POISON
        assert each["type"] == ("job.failed" if poison else "job.succeeded")
        if poison:
            assert each["data"]["error"]["code"] == "crashes_exhausted"
            assert each["data"]["error"]["retryable"] is True


@slow
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_poison_in_batch_after_batch_never_makes_restarts_slower_and_harms_nobody(
        least: Stack, say: Any) -> None:
    logged = len(least.up.log)
    for number in range(6):
        before, begun = _deaths(least), time.monotonic()
        submitted = _submit(least, [*range(9, 40), POISON, *range(40, 72)])
        least.drained(300)
        seconds = round(time.monotonic() - begun, 1)
        say(round=number, seconds=seconds, deaths=_deaths(least, before), **_account(least, submitted))
    waits = {float(each) for each in re.findall(r"part died.*delay_s=([0-9.]+).*SIGFPE", least.up.log[logged:])}
    assert waits == {0.0}
