"""Foreign programs and our own processes end with the supervisor that started them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli import leash, watchdog
from tests import waiting

SLEEPER = "import time, os, sys; print(os.getpid(), flush=True); time.sleep(600)"
GUARDED = ("import os, sys, time; from cli import watchdog; watchdog.guard(); print(os.getpid(), flush=True); "
           "time.sleep(600)")
FORKED = ("import os, sys, time; from cli import watchdog; watchdog.guard()\n"
          "if os.fork() == 0: watchdog.follow_parent(); print(os.getpid(), flush=True)\n"
          "time.sleep(600)")
# Elsewhere than on Linux the leash stays as a parent: the same file, told that it is elsewhere.
ELSEWHERE = "import runpy, sys; sys.platform = 'elsewhere'; sys.argv = sys.argv[1:]; runpy.run_path({!r}, run_name='__main__')"


def start(command: list[str]) -> tuple["subprocess.Popen[str]", int]:
    """A child with the reading end of a pipe; the child and the other end."""
    reading, held = os.pipe()
    child = subprocess.Popen(command, env=os.environ | {watchdog.FD: str(reading)}, pass_fds=(reading,),
                             stdout=subprocess.PIPE, text=True)
    os.close(reading)
    return child, held


@pytest.mark.parametrize("command", [
    pytest.param([sys.executable, "-c", GUARDED], id="our own"),
    pytest.param([sys.executable, "-c", FORKED], id="a fork of ours"),
    pytest.param([sys.executable, "-I", "-S", "-c", ELSEWHERE.format(leash.__file__), "leash", "--",
                  sys.executable, "-c", SLEEPER], id="a foreign one without the kernel's help"),
])
def test_a_process_ends_when_the_supervisors_end_of_the_pipe_closes(command: list[str]) -> None:
    child, held = start(command)
    assert child.stdout is not None
    pid = int(child.stdout.readline())
    os.close(held)
    child.wait(20)
    waiting.until(lambda: not waiting.alive(pid), what="the end of the orphan")
    child.stdout.close()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal is Linux's")
def test_a_foreign_program_ends_with_the_thread_that_started_it() -> None:
    launcher = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-I', '-S', {leash.__file__!r}, '--', sys.executable, '-c', "
        f"{SLEEPER!r}], stdout=sys.stdout)\n"
        "time.sleep(600)")
    parent = subprocess.Popen([sys.executable, "-c", launcher], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait(20)
    waiting.until(lambda: not waiting.alive(pid), what="the end of the orphan")
    parent.stdout.close()


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-S", leash.__file__, "--", str(tmp_path / "nothing")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == leash.NOT_STARTED
    assert done.stderr == f"can't start {tmp_path / 'nothing'}: No such file or directory\n"


def test_the_pipe_is_not_passed_on_to_what_a_process_starts() -> None:
    program = (
        "import os, subprocess, sys; from cli import watchdog; watchdog.guard()\n"
        f"print(os.environ.get({watchdog.FD!r}), flush=True)")
    child, held = start([sys.executable, "-c", program])
    assert child.communicate(timeout=20)[0] == "None\n"
    os.close(held)
