"""Waiting for a condition, never for a time; and children that end with the test run."""

import ctypes
import signal
import sys
import time
from collections.abc import Callable
from typing import TypeVar

import psutil
import pytest

T = TypeVar("T")
_PR_SET_PDEATHSIG = 1


def until(condition: Callable[[], T], timeout_s: float = 20.0, *, what: str = "the condition") -> T:
    """What `condition` returned when it first was true. Fails the test after `timeout_s`."""
    end = time.monotonic() + timeout_s
    pause_s = 0.001
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            pytest.fail(f"{what} did not come true within {timeout_s} s")
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.05)


def die_with_parent(signal_number: int = signal.SIGKILL) -> Callable[[], None]:
    """A `preexec_fn`: even a killed test run leaves no server behind (Linux)."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def ask() -> None:
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)

    return ask


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended but wasn't waited for doesn't."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
