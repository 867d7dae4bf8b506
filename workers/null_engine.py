"""An engine without a device: zeros or echoes of its inputs, and on demand the ways a device misbehaves."""

import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from workers.engine import DTYPES, EngineFailed, EngineOutOfMemory, ProviderFailed, TensorSpec

Test = Callable[[Mapping[str, np.ndarray]], bool]


def _never(_feeds: Mapping[str, np.ndarray]) -> bool:
    return False


class NullEngine:
    """The Engine protocol without ONNX Runtime. An output with an input's name echoes it, others are zeros.

    `delay_s` is how long a run takes. Each test is asked with the feeds: `fails` raises EngineFailed,
    `exhausts` EngineOutOfMemory, `breaks` ProviderFailed, `kills` ends the process with SIGKILL, as a
    driver's crash would. `stalls` holds every run until it is set.
    """

    def __init__(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], *, delay_s: float = 0.0,
                 fails: Test = _never, exhausts: Test = _never, kills: Test = _never,
                 breaks: Test = _never, stalls: threading.Event | None = None) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.providers = ("NullExecutionProvider",)
        self.runs: list[int] = []  # items of each run, in order
        self.closed = False
        self._delay_s = delay_s
        self._fails, self._exhausts, self._breaks, self._kills = fails, exhausts, breaks, kills
        self._stalls = stalls
        self._woken = threading.Event()

    def run(self, feeds: Mapping[str, np.ndarray], outputs: Sequence[str]) -> list[np.ndarray]:
        unknown = set(feeds) ^ {spec.name for spec in self.inputs}
        if unknown:
            raise EngineFailed(f"Required inputs {sorted(unknown)} are missing or unknown")
        rows = len(next(iter(feeds.values()))) if feeds else 1
        self.runs.append(rows)
        if self._stalls is not None:
            self._stalls.wait()
        if self._delay_s:
            self._woken.wait(self._delay_s)  # close() ends it early
        if self._kills(feeds):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._breaks(feeds):
            raise ProviderFailed("CUDA failure 700: an illegal memory access was encountered")
        if self._exhausts(feeds):
            raise EngineOutOfMemory("Failed to allocate memory for requested buffer")
        if self._fails(feeds):
            raise EngineFailed("The batch holds an item that can't be computed")
        specs = {spec.name: spec for spec in self.outputs}
        return [feeds[name] if name in feeds else _zeros(specs[name], rows) for name in outputs]

    def close(self) -> None:
        self.closed = True
        self._woken.set()


def _zeros(spec: TensorSpec, rows: int) -> np.ndarray:
    shape = [rows if at == 0 and size == -1 else abs(size) for at, size in enumerate(spec.shape)]
    return np.full(shape, "" if spec.datatype == "BYTES" else 0, DTYPES[spec.datatype])
