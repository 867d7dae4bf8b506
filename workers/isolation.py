"""Decoding and running a batch so that a bad item fails alone: what fails is halved until it is found."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from workers.engine import Engine, EngineOutOfMemory, ProviderFailed
from workers.tasks.base import Item, ItemFault, Task

INFERENCE_FAILED = "inference_failed"
OUT_OF_MEMORY = "out_of_memory"
PROVIDER_FAILED = "provider_failed"


@dataclass(frozen=True, slots=True)
class Ran:
    """How one item ended: its JSON output or why it failed, with its run's time and size."""

    output: bytes | ItemFault
    run_ms: float
    batch_size: int


@dataclass(slots=True)
class Meter:
    """Seconds that runs took beyond the CPU time of their own thread: what the device worked by itself."""

    waited_s: float = 0.0


class Lengths(Exception):
    """A task gave back another number of items than it was given."""


def decode(task: Task, bodies: Sequence[bytes]) -> list[Item | ItemFault]:
    """Decode JSON inputs in order. An input that breaks the decoder fails by itself."""
    try:
        out = task.decode(bodies)
        _check(len(out), len(bodies), "decode")
    except Exception as error:  # noqa: BLE001 - whatever a task raises is about its items, never about the worker
        if len(bodies) == 1:
            return [fault_of(error)]
        half = len(bodies) // 2
        return decode(task, bodies[:half]) + decode(task, bodies[half:])
    return out


def run(engine: Engine, task: Task, items: Sequence[Item], *, device: threading.Lock, meter: Meter,
        out_of_memory: Callable[[int], None]) -> list[Ran]:
    """Run items that share a key as one batch; one result an item, in order.

    `device` is held for the run alone, so that stacking and splitting overlap with the run of another batch.
    `out_of_memory` is told the size of each run that did not fit. Raises ProviderFailed: then no other item
    of this process can be tried.
    """
    try:
        feeds = task.stack(items)
        with device:
            started_s, cpu_s = time.perf_counter(), time.thread_time()
            arrays: list[np.ndarray] = engine.run(feeds, task.outputs)
            elapsed_s = time.perf_counter() - started_s
            meter.waited_s += max(0.0, elapsed_s - (time.thread_time() - cpu_s))
        outputs = task.split(arrays, items)
        _check(len(outputs), len(items), "split")
    except ProviderFailed:
        raise
    except Exception as error:  # noqa: BLE001 - the bad item must be found, whatever it makes the code raise
        if isinstance(error, EngineOutOfMemory):
            out_of_memory(len(items))
        if len(items) == 1:
            return [Ran(fault_of(error), 0.0, 1)]
        half = len(items) // 2
        return [each for part in (items[:half], items[half:]) for each in
                run(engine, task, part, device=device, meter=meter, out_of_memory=out_of_memory)]
    run_ms = round(elapsed_s * 1000, 3)  # finer than the clock is meaningful
    return [Ran(output, run_ms, len(items)) for output in outputs]


def fault_of(error: Exception) -> ItemFault:
    """The failure that an error means for the one item that caused it."""
    code = INFERENCE_FAILED
    if isinstance(error, EngineOutOfMemory | MemoryError):
        code = OUT_OF_MEMORY
    elif isinstance(error, ProviderFailed):
        code = PROVIDER_FAILED
    return ItemFault(code, readable(error))


def readable(error: Exception) -> str:
    """The message of an error, fit for a text column: no NUL (PostgreSQL), no lone surrogates (UTF-8)."""
    text = f"{type(error).__name__}: {error}" if not hasattr(error, "code") else str(error)
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()[:1000]


def _check(got: int, wanted: int, step: str) -> None:
    if got != wanted:
        raise Lengths(f"the task's {step} gave {got} items for {wanted}")
