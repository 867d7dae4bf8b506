"""A worker that is killed exactly between two steps: claim, acknowledge, run, settle, tell."""

import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests import databases, waiting
from tests.chaos.steps.sitecustomize import AFTER, STEPS
from tests.stacks import Stack


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "rounds"), [("sqlite", 1), ("sqlite", 8), ("postgres", 8)])
def test_killed_between_any_two_steps_a_worker_loses_and_doubles_nothing(
        kind: str, rounds: int, say: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if kind == "postgres":
        databases._installed()
    order = tmp_path / "step"
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "steps"))
    monkeypatch.setenv(STEPS, str(order))
    seed = int(os.environ.get("STEPS_SEED") or random.randrange(1 << 32))  # the same seed, the same schedule
    say(seed=seed)
    dice = random.Random(seed)
    with Stack(kind) as stack:
        with stack.load(rate_s=100, webhook=stack.receiver.url) as load:
            for _ in range(rounds):
                for step in dice.sample([*AFTER, "settled"], len(AFTER) + 1):
                    deaths = _deaths(stack)
                    order.with_suffix(".new").write_text(f"{step} {dice.randint(1, 20)}")
                    order.with_suffix(".new").rename(order)
                    waiting.until(lambda deaths=deaths: _deaths(stack) > deaths, 60, what=f"a death once {step}")
        figures = stack.check(load, told=True)
        say(kills=rounds * (len(AFTER) + 1), **figures, repeats=stack.receiver.repeats)
        assert not stack.count("error_code = 'crashes_exhausted'")


def _deaths(stack: Stack) -> int:
    return int(stack.rows("SELECT count(*) FROM incarnations WHERE kind = 'worker' AND end_reason = 'killed'")[0][0])
