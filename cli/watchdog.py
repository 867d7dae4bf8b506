"""No process outlives the `up` that started it: a pipe that ends with it and, on Linux, a signal."""

import ctypes
import os
import select
import signal
import sys
import threading

FD = "HEADRACE_WATCHDOG_FD"
ORPHANED = 1
PARENT_CHECK_S = 1.0
_PR_SET_PDEATHSIG = 1

_fd: int | None = None


def guard() -> None:
    """If a supervisor started this process, end the process at once when the supervisor is gone."""
    global _fd  # noqa: PLW0603  (a fork of this process must find it again; the environment must not pass it on)
    text = os.environ.pop(FD, None)
    if text is None:
        return
    _fd = int(text)
    follow_parent()


def follow_parent() -> None:
    """End this process at once when its parent or the supervisor is gone. For forks of a guarded one."""
    end_with_parent(signal.SIGKILL)
    # The pipe works everywhere, and also sees a supervisor that died before the call above.
    threading.Thread(target=_watch, args=(_fd, os.getppid()), name="watchdog", daemon=True).start()


def end_with_parent(number: int) -> None:
    """Have the kernel signal this process when the thread that started it ends. Nothing outside Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def _watch(fd: int | None, parent: int) -> None:
    pipes = [] if fd is None else [fd]
    while os.getppid() == parent:
        if select.select(pipes, [], [], PARENT_CHECK_S)[0]:
            break  # nobody ever writes: readable means the other end is closed
    os._exit(ORPHANED)
