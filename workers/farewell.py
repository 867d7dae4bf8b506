"""The way down: at once, whatever Celery's loop is waiting for, and bounded, whatever the broker does."""

import os
import threading
from collections.abc import Callable

import structlog

FAREWELL_S = 5.0  # for Celery and the broker, once everything that matters is written
EXIT_BROKEN = 70  # of a worker whose device failed: a supervisor starts another

_log = structlog.get_logger("headrace.worker")


class Farewell:
    """Runs `stop` in a thread of its own, since a frozen broker may hold Celery's loop for half a minute.

    If the process is still there FAREWELL_S after that, it is ended: all was settled or given back by then.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._begun = threading.Lock()
        self._stopped = threading.Event()
        self._code = 0

    def begin(self, code: int = 0) -> None:
        """Stop, if that hasn't begun; returns at once. `code`: the exit code if it comes to that."""
        if self._begun.acquire(blocking=False):
            self._code = code
            threading.Thread(target=self._run, name="headrace-farewell", daemon=True).start()

    def wait(self) -> None:
        """Until `stop` has returned."""
        self._stopped.wait()

    def _run(self) -> None:
        try:
            self._stop()
        except Exception:  # noqa: BLE001 - the process must end all the same; its incarnation is ended by others
            _log.exception("stop_failed")
            self._code = self._code or 1
        self._stopped.set()
        threading.Event().wait(FAREWELL_S)
        _log.warning("broker_not_waited_for")
        os._exit(self._code)


def abrupt() -> None:
    """End this process at once, since its device failed: what ran becomes suspect, another takes over."""
    os._exit(EXIT_BROKEN)
