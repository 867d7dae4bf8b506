"""A network's first run, in a process of its own: whatever a file does there, the worker lives on.

The process may take only so much memory and time. What it answers is read as data, never as code.
"""

import contextlib
import ctypes
import json
import os
import pickle
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from models.errors import EngineUnavailable, HardwareMissing, HeadraceError, NetworkRejected
from models.network import Network
from models.settings import HardwareClass
from workers import engine as engines
from workers import serving
from workers.isolation import readable
from workers.tasks import KINDS

KILLS = 3  # times that the system ended the process, as it does for its memory: then it is the file's fault
_FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_PR_SET_PDEATHSIG = 1
_ROOT = str(Path(__file__).resolve().parent.parent)
_PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from workers import trial; trial.main()"

OpenEngine = Callable[[Path, HardwareClass], engines.Engine]
Inspect = Callable[[Network, Path], dict[str, object]]


def inspect(network: Network, folder: Path, hardware: HardwareClass,
            open_engine: OpenEngine = engines.open_engine) -> dict[str, object]:
    """The signature of a network whose files lie in `folder`, after one run of an input made up from it.

    Raises NetworkRejected with the reason, HardwareMissing or EngineUnavailable.
    """
    kind = KINDS.get(network.task)
    if kind is None:
        raise NetworkRejected(f"task {network.task!r} is not served; known are {', '.join(KINDS)}")
    engine = open_engine(folder / network.manifest["artifact"], hardware)
    try:
        signature = kind.inspect(network.manifest, engine, folder)
        serving.loaded(network, engine, kind.make(network.manifest, signature, folder)).try_once()
    except engines.EngineFailed as error:
        raise NetworkRejected(f"it can't run an input made up from its signature: {error}") from error
    finally:
        engine.close()
    return dict(signature)


class Trial:
    """`inspect` in a child process. `limit_bytes` holds where the class runs on the CPU alone."""

    def __init__(self, hardware: HardwareClass, *, limit_s: float, limit_bytes: int) -> None:
        self._hardware = hardware
        self._limit_s = limit_s
        self._limit_bytes = limit_bytes if hardware.providers == (engines.CPU,) else 0
        self._kills: dict[str, int] = {}

    def __call__(self, network: Network, folder: Path) -> dict[str, object]:
        """As `inspect`; a process that died or didn't come to an end is a NetworkRejected too."""
        asked = pickle.dumps((network, folder, self._hardware, self._limit_bytes))
        with subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-P", "-c", _PROGRAM, _ROOT], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, start_new_session=True) as process:
            try:
                said, _ = process.communicate(asked, self._limit_s)
            except subprocess.TimeoutExpired:
                process.kill()
                raise NetworkRejected("it did not load and run an input made up from its signature within "
                                      f"{self._limit_s:g} s") from None
        self._judge(network, process.returncode)
        return _answer(said)

    def _judge(self, network: Network, code: int) -> None:
        if code >= 0:
            return
        name = signal.Signals(-code).name
        if -code in _FROM_OUTSIDE:
            count = self._kills[network.digest] = self._kills.get(network.digest, 0) + 1
            if count < KILLS:
                raise EngineUnavailable(f"the process that tried it was ended by {name}")
            del self._kills[network.digest]
            raise NetworkRejected(f"the process that tried it was ended by {name} {KILLS} times, as the "
                                  "system does with one that takes too much memory")
        raise NetworkRejected(f"the process that tried it crashed ({name})")


def _answer(said: bytes) -> dict[str, object]:
    try:
        answer = json.loads(said)
    except ValueError:
        raise NetworkRejected("the process that tried it ended without an answer") from None
    if "signature" in answer:
        return dict(answer["signature"])
    raise _ERRORS.get(answer["code"], EngineUnavailable)(answer["detail"])


_ERRORS: dict[str, type[HeadraceError]] = {
    each.code: each for each in (NetworkRejected, EngineUnavailable, HardwareMissing)}


def main() -> None:
    """The child: what to do comes on stdin, one JSON object goes to stdout."""
    _end_with_parent()
    answers = os.dup(1)
    os.dup2(2, 1)  # what a library prints must not mix with the answer
    network, folder, hardware, limit_bytes = pickle.load(sys.stdin.buffer)  # noqa: S301 - our parent's
    if limit_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
    with os.fdopen(answers, "wb") as out:
        out.write(json.dumps(_outcome(network, folder, hardware, limit_bytes)).encode())
    os._exit(0)  # a library's end is no part of the trial


def _outcome(network: Network, folder: Path, hardware: HardwareClass, limit_bytes: int) -> dict[str, Any]:
    try:
        return {"signature": inspect(network, folder, hardware)}
    except (MemoryError, engines.EngineOutOfMemory) as error:
        return _refusal(NetworkRejected(_too_large(limit_bytes, readable(error))))
    except EngineUnavailable as error:
        if limit_bytes and "no memory" in str(error):
            return _refusal(NetworkRejected(_too_large(limit_bytes, str(error))))
        return _refusal(error)
    except HeadraceError as error:
        return _refusal(error)
    except Exception as error:  # noqa: BLE001 - any other is the file's too: nothing else differs from the last
        return _refusal(NetworkRejected(readable(error)))


def _refusal(error: HeadraceError) -> dict[str, str]:
    return {"code": error.code, "detail": str(error)}


def _too_large(limit_bytes: int, detail: str) -> str:
    return f"it takes more than {limit_bytes >> 20} MiB of memory, which is what one may take here: {detail}"


def _end_with_parent() -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
