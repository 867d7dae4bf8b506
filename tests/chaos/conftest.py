"""One stack a database for all fault tests, and a place to say what was measured."""

import contextlib
import json
from collections.abc import Callable, Iterator

import pytest

from tests import databases, stacks


@pytest.fixture(scope="session")
def built() -> Iterator[Callable[[str], stacks.Stack]]:
    """The stack of a kind of database, made when it is first asked for."""
    made: dict[str, stacks.Stack] = {}
    with contextlib.ExitStack() as opened:
        def make(kind: str) -> stacks.Stack:
            if kind == "postgres":
                databases._installed()
            if kind not in made:
                made[kind] = opened.enter_context(stacks.stack(kind))
            return made[kind]

        yield make


@pytest.fixture
def stack(built: Callable[[str], stacks.Stack], kind: str) -> Iterator[stacks.Stack]:
    """The stack of the test's `kind`, running; its log is shown if the test fails."""
    given = built(kind)
    given.restore()
    begun = len(given.up.log)
    yield given
    print(given.up.log[begun:][-20_000:])


@pytest.fixture
def say(request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]) -> Callable[..., None]:
    """Print figures as one JSON line, also while output is captured."""
    def write(**figures: object) -> None:
        with capfd.disabled():
            print("\n" + json.dumps({"test": request.node.name} | figures), flush=True)

    return write


def pytest_make_parametrize_id(val: object) -> str:
    return str(val)
