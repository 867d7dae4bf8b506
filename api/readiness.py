"""Whether what this process depends on answers, asked so that a frozen one can't hold the asker."""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait

Check = Callable[[], object]


class Readiness:
    """Runs named checks side by side. One that hangs keeps one thread, however often it is asked about."""

    def __init__(self, checks: Mapping[str, Check]) -> None:
        self._checks = checks
        self._running: dict[str, Future[float]] = {}
        self._lock = threading.Lock()

    def ask(self, timeout_s: float) -> dict[str, float | Exception]:
        """By name: ms that the check took, or why it failed (TimeoutError: no answer in time)."""
        with self._lock:
            asked = {name: self._ask(name) for name in self._checks}
        wait(asked.values(), timeout=timeout_s)
        return {name: _outcome(future, timeout_s) for name, future in asked.items()}

    def _ask(self, name: str) -> Future[float]:
        running = self._running.get(name)
        if running is None or running.done():
            running = self._running[name] = Future()
            threading.Thread(target=_run, args=(self._checks[name], running), name=f"ready-{name}",
                             daemon=True).start()
        return running


def _run(check: Check, future: Future[float]) -> None:
    started = time.perf_counter()
    try:
        check()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        future.set_exception(error)
    else:
        future.set_result((time.perf_counter() - started) * 1000)


def _outcome(future: Future[float], timeout_s: float) -> float | Exception:
    if not future.done():
        return TimeoutError(f"no answer within {timeout_s:g} s")
    error = future.exception()
    return error if isinstance(error, Exception) else future.result()
