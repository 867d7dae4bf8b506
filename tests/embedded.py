"""The installed `headrace up` as a user starts it, with everything that it starts, to look at and to kill."""

import contextlib
import http.client
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from models.database import sqlite_path
from tests import waiting

COMMAND = str(Path(sys.executable).with_name("headrace"))
READY = re.compile(r"^headrace is ready at (http://(\S+):(\d+)) \((.*)\)$", re.MULTILINE)
START_S = 60.0
STOP_S = 60.0


def environment(**settings: str) -> dict[str, str]:
    """This environment without settings of somebody's own service."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    return clean | {f"HEADRACE_{name.upper()}": value for name, value in settings.items()}


def run(*arguments: str, cwd: Path, **settings: str) -> "subprocess.CompletedProcess[str]":
    """One command to its end."""
    return subprocess.run([COMMAND, *arguments], cwd=cwd, env=environment(**settings), capture_output=True,
                          text=True, timeout=START_S, check=False, stdin=subprocess.DEVNULL)


class Up:
    """One `headrace up --port 0` on the folder `data` below `folder`."""

    def __init__(self, folder: Path, *arguments: str, cwd: Path | None = None, **settings: str) -> None:
        self.data = folder / "data"
        self._out, self._log = folder / "up.out", folder / "up.log"
        with self._out.open("wb") as out, self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [COMMAND, "up", "--port", "0", "--data", str(self.data), *arguments], cwd=cwd or folder,
                env=environment(**settings), stdout=out, stderr=log, stdin=subprocess.DEVNULL)

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def ready(self) -> "re.Match[str]":
        """Wait for the line that says so: URL, host, port, notes."""
        def said() -> "re.Match[str] | None":
            assert self.process.poll() is None, self.log
            return READY.search(self._out.read_text())

        try:
            found = waiting.until(said, START_S, what="the ready line")
        except BaseException:
            sys.stderr.write(self.log)
            raise
        assert found is not None
        return found

    def get(self, path: str) -> int:
        """The status that the API answers with; 0 if it doesn't."""
        _, host, port, _ = self.ready().groups()
        connection = http.client.HTTPConnection(host, int(port), timeout=5)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()

    def post(self, path: str, body: object) -> Any:
        """The answer to a POST, which must succeed."""
        _, host, port, _ = self.ready().groups()
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            reply = connection.getresponse()
            answer = json.loads(reply.read())
            assert reply.status < 300, answer
            return answer
        finally:
            connection.close()

    def tree(self) -> dict[int, str]:
        """Every process below `up`, and how it was started."""
        out = {}
        for each in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if each.status() != psutil.STATUS_ZOMBIE:
                    out[each.pid] = " ".join(each.cmdline())
        return out

    def pids(self, part: str) -> list[int]:
        """The processes of one part, the first started first."""
        return sorted(pid for pid, command in self.tree().items() if part in command)

    def _rows(self, query: str, *values: str) -> dict[str, Any]:
        with contextlib.closing(sqlite3.connect(sqlite_path(f"sqlite:///{self.data}/headrace.db"))) as database:
            return dict(database.execute(query, values).fetchall())

    def job_states(self) -> dict[str, int]:
        """State to number of jobs (SQLite)."""
        return self._rows("SELECT state, count(*) FROM jobs GROUP BY state")

    def incarnations(self, kind: str) -> dict[str, str | None]:
        """Id to the reason of its end, null while it lives, the oldest first (SQLite)."""
        return self._rows("SELECT id, end_reason FROM incarnations WHERE kind = ? ORDER BY id", kind)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask it to stop; its exit code."""
        self.process.send_signal(number)
        return self.process.wait(STOP_S)

    def end(self) -> None:
        """Whatever the test left of it."""
        if self.process.poll() is None:
            left = self.tree()
            self.process.kill()
            self.process.wait(STOP_S)
            waiting.until(lambda: not any(waiting.alive(pid) for pid in left), what="the end of all children")


@contextlib.contextmanager
def up(folder: Path, *arguments: str, cwd: Path | None = None, **settings: str) -> Iterator[Up]:
    started = Up(folder, *arguments, cwd=cwd, **settings)
    try:
        yield started
    finally:
        started.end()
