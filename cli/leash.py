"""Starts a foreign program that ends with its supervisor: `leash.py [--user NAME] [--signal N] -- PROGRAM …`.

Run by path in an isolated interpreter, so it knows only the standard library. On Linux it becomes the
program, and the kernel ends it; elsewhere it stays, as a small parent that watches the supervisor's pipe.
"""

import argparse
import ctypes
import os
import pwd
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any, NoReturn

FD = "HEADRACE_WATCHDOG_FD"
PR_SET_PDEATHSIG = 1
NOT_STARTED = 127


def main(argv: Sequence[str]) -> NoReturn:
    parser = argparse.ArgumentParser(prog="leash")
    parser.add_argument("--user", help="become this user first")
    parser.add_argument("--signal", type=int, default=int(signal.SIGKILL), help="what ends an orphan")
    parser.add_argument("program", nargs="+")
    arguments = parser.parse_args(argv)
    if arguments.user:
        _become(arguments.user)
    text = os.environ.pop(FD, None)
    fd = None if text is None else int(text)
    try:
        if sys.platform == "linux":
            _exec(arguments.program, arguments.signal, fd)
        _stay(arguments.program, arguments.signal, fd)
    except OSError as error:
        sys.stderr.write(f"can't start {arguments.program[0]}: {error.strerror}\n")
        sys.exit(NOT_STARTED)


def _become(name: str) -> None:
    entry = pwd.getpwnam(name)
    os.setgroups([])
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)
    os.environ["HOME"] = entry.pw_dir


def _exec(program: Sequence[str], number: int, fd: int | None) -> NoReturn:
    # After the change of user, which clears it.
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    if fd is not None:
        if select.select([fd], [], [], 0)[0]:
            sys.exit(1)  # the supervisor was gone before the kernel knew
        os.set_inheritable(fd, False)
    os.execv(program[0], list(program))  # noqa: S606  (the point: no shell between)


def _stay(program: Sequence[str], number: int, fd: int | None) -> NoReturn:
    child = subprocess.Popen(program, start_new_session=True)

    def forward(received: int, _frame: Any) -> None:
        child.send_signal(received)

    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        signal.signal(each, forward)

    def watch(pipe: int) -> None:
        select.select([pipe], [], [])
        child.send_signal(number)

    if fd is not None:
        threading.Thread(target=watch, args=(fd,), daemon=True).start()
    code = child.wait()
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main(sys.argv[1:])
