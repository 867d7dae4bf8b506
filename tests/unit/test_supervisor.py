"""The supervisor with real child processes: restarts, final exits, stages of a stop."""

import dataclasses
import io
import os
import signal
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli import codes, console, supervisor
from tests import waiting

BIRTH = """
    import os, pathlib, signal, sys, time
    folder = pathlib.Path(sys.argv[1])
    (folder / str(os.getpid())).touch()
"""
SLEEP = BIRTH + "\n    while True: time.sleep(60)"
STUBBORN = (BIRTH.replace("(folder", "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    (folder")
            + "\n    while True: time.sleep(60)")


class Deaths:
    """What the supervisor told of lives that began and ended."""

    def __init__(self) -> None:
        self.born: list[str] = []
        self.dead: list[tuple[str, int, bool]] = []

    def tell(self, incarnation: str, code: int, condemned: bool) -> None:
        self.dead.append((incarnation, code, condemned))


@pytest.fixture
def deaths() -> Deaths:
    return Deaths()


@pytest.fixture
def boss(deaths: Deaths) -> Iterator[supervisor.Supervisor]:
    made = supervisor.Supervisor(console.Console("console", io.StringIO()), environ=os.environ,
                                 born=deaths.born.append, dead=deaths.tell)
    yield made
    for stage in range(3):
        made.drain(stage, 0.0)


def part(name: str, program: str, folder: Path, *, stage: int = 0) -> supervisor.Part:
    folder.mkdir(exist_ok=True)
    command = (sys.executable, "-c", textwrap.dedent(program), str(folder))
    return supervisor.Part(name, command, stage, lambda life: (folder / str(life.process.pid)).exists(),
                           incarnated=True)


def pids(folder: Path) -> list[int]:
    return sorted(int(each.name) for each in folder.iterdir())


def test_the_first_restart_is_at_once_and_the_next_wait_longer_and_longer() -> None:
    waits = [supervisor.backoff_s(failures) for failures in range(12)]
    assert waits[:4] == [0.0, 0.0, 0.5, 1.0]
    assert waits == sorted(waits)
    assert waits[-1] == supervisor.MAX_BACKOFF_S == supervisor.backoff_s(10_000)


def test_a_killed_part_is_started_again_as_another_incarnation(
        boss: supervisor.Supervisor, deaths: Deaths, tmp_path: Path) -> None:
    boss.start(part("one", SLEEP, tmp_path))
    assert boss.wait(lambda: boss.ready("one"), 30)
    os.kill(pids(tmp_path)[0], signal.SIGKILL)
    assert boss.wait(lambda: len(pids(tmp_path)) == 2 and boss.ready("one"), 30)
    assert deaths.dead == [(deaths.born[0], -signal.SIGKILL, False)]
    assert len(set(deaths.born)) == 2


@pytest.mark.parametrize("code", sorted(codes.FINAL))
def test_a_part_that_says_it_cannot_run_here_is_not_started_again(
        boss: supervisor.Supervisor, tmp_path: Path, code: int) -> None:
    boss.start(part("one", f"import sys; sys.exit({code})", tmp_path))
    assert boss.wait(lambda: boss.given_up() == {"one": code}, 30)
    assert boss.pending() == []


def test_a_part_that_fails_before_it_is_ready_is_tried_again(
        boss: supervisor.Supervisor, deaths: Deaths, tmp_path: Path) -> None:
    boss.start(part("one", "import sys; sys.exit(1)", tmp_path))
    assert boss.wait(lambda: len(deaths.dead) >= 3, 30)
    assert boss.pending() == ["one"]
    assert {code for _, code, _ in deaths.dead} == {1}


def test_a_part_that_dies_at_its_work_before_it_was_seen_ready_is_started_again_at_once(
        boss: supervisor.Supervisor, tmp_path: Path) -> None:
    made = part("one", BIRTH, tmp_path / "one")
    boss.start(dataclasses.replace(made, ready=lambda _: False, worked=lambda _: True))
    begun = time.monotonic()
    assert boss.wait(lambda: len(pids(tmp_path / "one")) >= 8, 60)
    # With a growing wait it would take over 31 s.
    assert time.monotonic() - begun < 30


def test_a_program_that_cannot_be_started_is_tried_again(
        boss: supervisor.Supervisor, deaths: Deaths, tmp_path: Path) -> None:
    program = tmp_path / "later"
    boss.start(supervisor.Part("one", (str(program), str(tmp_path)), 0, lambda _: True, incarnated=True))
    assert boss.pending() == ["one"]
    program.write_text(f"#!{sys.executable}\n" + textwrap.dedent(SLEEP))
    program.chmod(0o755)
    assert boss.wait(lambda: boss.ready("one"), 30)
    assert deaths.dead[0] == (deaths.born[0], 0, False)


def test_parts_stop_stage_by_stage(boss: supervisor.Supervisor, deaths: Deaths, tmp_path: Path) -> None:
    for stage, name in enumerate(("worker", "api", "broker")):
        boss.start(part(name, SLEEP, tmp_path / name, stage=stage))
    assert boss.wait(lambda: boss.ready("worker", "api", "broker"), 30)
    by_name = dict(zip(("worker", "api", "broker"), deaths.born, strict=True))
    for stage in range(3):
        boss.drain(stage, 30)
    assert [incarnation for incarnation, _, _ in deaths.dead] == list(by_name.values())
    assert {code for _, code, _ in deaths.dead} == {-signal.SIGTERM}


def test_a_part_that_will_not_stop_is_killed_and_no_job_is_blamed(
        boss: supervisor.Supervisor, deaths: Deaths, tmp_path: Path) -> None:
    boss.start(part("one", STUBBORN, tmp_path))
    assert boss.wait(lambda: boss.ready("one"), 30)
    boss.drain(0, 0.1)
    assert deaths.dead == [(deaths.born[0], -signal.SIGKILL, True)]


def test_a_second_request_to_stop_does_not_wait_for_the_grace(
        boss: supervisor.Supervisor, deaths: Deaths, tmp_path: Path) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        boss.take_signals()
        boss.start(part("one", STUBBORN, tmp_path))
        assert boss.wait(lambda: boss.ready("one"), 30)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(supervisor.Stopped):
            boss.wait(lambda: False, 30)
        os.kill(os.getpid(), signal.SIGINT)
        boss.drain(0, 3600)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert deaths.dead[0][1:] == (-signal.SIGKILL, True)


def test_what_a_dead_part_left_behind_is_ended(boss: supervisor.Supervisor, tmp_path: Path) -> None:
    fork = BIRTH + """
    if os.fork() == 0:
        (folder / "0").write_text(str(os.getpid()))
    while True: time.sleep(60)
    """
    boss.start(part("one", fork, tmp_path))
    assert boss.wait(lambda: (tmp_path / "0").exists() and bool((tmp_path / "0").read_text()), 30)
    grandchild = int((tmp_path / "0").read_text())
    os.kill(pids(tmp_path)[1], signal.SIGKILL)
    assert boss.wait(lambda: not waiting.alive(grandchild), 30)


def test_a_line_of_a_child_comes_out_whole_and_under_its_name() -> None:
    out = io.StringIO()
    console.Console("console", out).line("cpu-1", "hello")
    assert out.getvalue() == "cpu-1     | hello\n"


def test_in_json_what_is_json_passes_and_the_rest_is_wrapped() -> None:
    out = io.StringIO()
    both = console.Console("json", out)
    both.line("api", '{"event": "a"}')
    both.line("broker", 'says "b"')
    assert out.getvalue() == '{"event": "a"}\n{"process": "broker", "event": "says \\"b\\""}\n'


def test_exit_statuses_are_said_in_words() -> None:
    assert supervisor.describe(4) == "exit code 4"
    assert supervisor.describe(-9) == "killed by SIGKILL"
    assert supervisor.describe(-250) == "killed by signal 250"
