"""The protocol against its reference, in random orders, on both databases."""

from collections.abc import Iterator

import hypothesis
import pytest
from hypothesis import HealthCheck
from hypothesis.stateful import run_state_machine_as_test

from models import database as databases_of
from models.database import Database
from tests.model.machine import Protocol

STEPS = 40
# Sizes: on a quiet machine a step takes about 1 ms on SQLite and 3 ms on PostgreSQL.
EXAMPLES = {"sqlite": 150, "postgres": 60}
LONG_EXAMPLES = {"sqlite": 1000, "postgres": 500}


@pytest.fixture
def fast(database_url: str) -> Iterator[Database]:
    """Commits that wait for no disk: nobody cuts the power here."""
    connected = databases_of.connect(database_url, synchronous="normal")
    yield connected
    connected.close()


def _machine(database: Database) -> type[Protocol]:
    return type("Protocol", (Protocol,), {"database": database})


def _settings(examples: int, *, derandomize: bool) -> hypothesis.settings:
    return hypothesis.settings(
        max_examples=examples, stateful_step_count=STEPS, deadline=None, derandomize=derandomize, database=None,
        print_blob=True, suppress_health_check=list(HealthCheck))


def test_every_order_of_steps_does_what_the_protocol_says(fast: Database) -> None:
    run_state_machine_as_test(_machine(fast), settings=_settings(EXAMPLES[fast.dialect], derandomize=True))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_thousands_of_orders_do_what_the_protocol_says(fast: Database, seed: int) -> None:
    machine = hypothesis.seed(seed)(_machine(fast))
    run_state_machine_as_test(machine, settings=_settings(LONG_EXAMPLES[fast.dialect], derandomize=False))
