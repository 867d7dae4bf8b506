"""Loaded by each Python process of a test's stack: a worker kills itself at one step of its executor.

The file named by STEPS says at which step, and at which passing of it; who removes it dies, so once for each.
"""

import contextlib
import importlib.abc
import importlib.util
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEPS = "STEPS_FILE"
# What a step is named for, and the method after which it is reached.
AFTER = {"claimed": "_claim", "acknowledged": "_strike", "ran": "_run", "told": "_settle"}


def _die_at(step: str) -> Callable[[], None]:
    path = Path(os.environ[STEPS])
    passed = 0

    def reach() -> None:
        nonlocal passed
        with contextlib.suppress(OSError, ValueError):
            wanted, number = path.read_text().split()
            if wanted == step:
                passed += 1
                if passed >= int(number):
                    path.unlink()  # another worker may have been faster
                    os.kill(os.getpid(), signal.SIGKILL)

    return reach


def _after(run: Callable[..., Any], step: str) -> Callable[..., Any]:
    reach = _die_at(step)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        out = run(*args, **kwargs)
        reach()
        return out

    return wrapped


class _Executor(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `workers.executor` as ever and then wraps its steps."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        del path, target
        if name != "workers.executor":
            return None
        sys.meta_path.remove(self)
        spec: Any = importlib.util.find_spec(name)
        self._real = spec.loader
        spec.loader = self
        return spec

    def create_module(self, spec: Any) -> Any:
        return self._real.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self._real.exec_module(module)
        for step, method in AFTER.items():
            setattr(module.Executor, method, _after(getattr(module.Executor, method), step))
        module.Settler.settle = _after(module.Settler.settle, "settled")  # before anybody is told


if os.environ.get(STEPS):
    sys.meta_path.insert(0, _Executor())
