"""Starts `headrace up` in a folder on a free port, for the demo and the benchmarks, and ends it again."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

START_S = 90.0
STOP_S = 30.0
POLL_S = 0.05


class StackFailed(Exception):
    """The embedded stack did not start; the message ends with what it printed last."""


def command() -> str:
    """The `headrace` that was installed beside this Python."""
    return str(Path(sys.executable).with_name("headrace"))


def free_port() -> int:
    with socket.socket() as probing:
        probing.bind(("127.0.0.1", 0))
        return int(probing.getsockname()[1])


class Stack:
    """A running `headrace up`. `url` is its address, `pid` the root of its process tree."""

    def __init__(self, folder: Path, *, workers: int, database: str | None,
                 environ: Mapping[str, str]) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        # Settings of the caller's own service must not leak into this one.
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        self.environ = {**clean, **environ, "HEADRACE_URL": self.url}
        self._log = folder / "up.log"
        arguments = [command(), "up", "--port", str(self.port), "--data", str(folder / "data"),
                     "--worker", f"cpu={workers}", *(("--database", database) if database else ())]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(arguments, stdout=log, stderr=subprocess.STDOUT,
                                             stdin=subprocess.DEVNULL, env=self.environ, cwd=folder)

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_ready(self, workers: int) -> None:
        """Until the API says that it is ready and that many workers are. Raises StackFailed."""
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise StackFailed(f"`headrace up` ended with {self._process.returncode}:\n{self.tail()}")
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                if self._get("/readyz")[0] == 200:
                    found = self._get("/v1/workers")[1]["data"]
                    if sum(bool(worker.get("ready")) for worker in found) >= workers:
                        return
            time.sleep(POLL_S)
        raise StackFailed(f"`headrace up` was not ready within {START_S:g} s:\n{self.tail()}")

    def _get(self, path: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", path)
            reply = connection.getresponse()
            return reply.status, json.loads(reply.read())
        finally:
            connection.close()

    def run(self, *arguments: str) -> str:
        """Run a `headrace` command against this stack; what it printed. Raises StackFailed if it fails."""
        done = subprocess.run([command(), *arguments], env=self.environ, capture_output=True, text=True,
                              check=False)
        if done.returncode != 0:
            raise StackFailed(f"`headrace {' '.join(arguments)}` ended with {done.returncode}: "
                              f"{done.stderr.strip()}")
        return done.stdout.strip()

    def tail(self, lines: int = 30) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    def stop(self) -> int:
        """Drain and end it; its exit code. What does not end in time is killed (its children end with it)."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


@contextlib.contextmanager
def running(folder: Path, *, workers: int = 1, database: str | None = "sqlite",
            environ: Mapping[str, str] | None = None) -> Iterator[Stack]:
    """A stack that is ready, ended when the block ends. `database` None: that of `environ`."""
    stack = Stack(folder, workers=workers, database=database, environ=environ or {})
    try:
        stack.wait_until_ready(workers)
        yield stack
    finally:
        stack.stop()
