"""The real stack of a run: `headrace up` with everything that it starts, a broker beside it, and receivers.

Its data lies on a small file system of its own where that may be mounted, so that a disk can be filled.
"""

import contextlib
import json
import mmap
import os
import shutil
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

import psutil

from models import database, incarnation
from models.errors import Unavailable
from tests import brokers, embedded, waiting
from tests.chaos.harness import examples, listeners
from tests.chaos.harness.history import History
from tests.chaos.harness.hooks import sitecustomize as hook
from tests.chaos.harness.schedule import LEASE_S

WORKERS = 2
DISK_MB = {"sqlite": 512, "postgres": 1024}  # it is memory; more than two minutes of jobs take
WEBHOOK_SCHEDULE = "0,0.5,1,1,2,2,3,3,4,4,5,5,5,5,5,5,8,8,8,8,8,8"
COMMANDS = {"worker": "main.py worker ", "api": "main.py api", "housekeep": "main.py housekeep",
            "database": "bin/postgres -D"}
STOP_S = 90.0


class Stage:
    """A context manager: everything runs inside, and nothing is left afterwards."""

    def __init__(self, kind: str, history: History) -> None:
        self.kind = kind
        self.history = history
        self.folder = Path(tempfile.mkdtemp(prefix="hr-run-"))
        self.folder.chmod(0o711)  # PostgreSQL runs as another user where the run is root's
        self.data = self.folder / "data"
        self.network = examples.network(self.folder / examples.MODEL)
        self.broker = brokers.Broker()
        self.receivers = {name: listeners.Listener(name, history)
                          for name in (listeners.MAIN, listeners.ODD, listeners.OWN)}
        self.url = ""
        self.up: embedded.Up
        self.mounted = _mount(self.data, DISK_MB[kind])
        self._clocks = self._shared_clocks()
        self._undo = contextlib.ExitStack()
        url = (f"postgresql://headrace@/headrace?host={self.data}/postgres.sock" if kind == "postgres"
               else f"sqlite:///{self.data}/headrace.db")
        self.database_url = url
        self.database = database.connect(url, pool_size=4)

    def _shared_clocks(self) -> mmap.mmap:
        path = self.folder / "clocks"
        path.write_bytes(bytes(8 * len(hook.PLACES)))
        with path.open("r+b") as file:
            return mmap.mmap(file.fileno(), 0)

    def __enter__(self) -> Self:
        try:
            self._undo.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self._undo.callback(_unmount, self.data, self.mounted)
            self._undo.callback(self.broker.stop)
            self.broker.start()
            for each in self.receivers.values():
                self._undo.enter_context(each)
            self._undo.callback(self.database.close)
            self._undo.callback(self._end)
            self.start()
            self._prepare()
        except BaseException:
            self._undo.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def _end(self) -> None:
        if hasattr(self, "up"):  # else it never came to that
            self.up.end()

    def settings(self) -> dict[str, str]:
        return {"broker_url": self.broker.url, "lease_s": str(LEASE_S), "sweep_s": "1",
                "max_inline_bytes": str(examples.MAX_INLINE_BYTES), "webhook_schedule": WEBHOOK_SCHEDULE}

    def start(self) -> None:
        """`headrace up`, until it is ready."""
        hooks = str(Path(hook.__file__).parent)
        os.environ[hook.CLOCKS] = str(self.folder / "clocks")
        os.environ["PYTHONPATH"] = hooks
        try:
            self.up = embedded.Up(self.folder, "--worker", f"cpu={WORKERS}", "--database", self.kind, **self.settings())
        finally:
            del os.environ[hook.CLOCKS], os.environ["PYTHONPATH"]
        self.url = self.up.ready()[1]

    def stop(self) -> int:
        """Ask it to stop; its exit code."""
        return self.up.stop()

    def _prepare(self) -> None:
        added = embedded.run("models", "add", str(self.network), cwd=self.folder, url=self.url)
        assert added.returncode == 0, added.stderr
        for name, types in ((listeners.MAIN, []), (listeners.ODD, ["job.failed", "job.canceled", "job.expired"])):
            made = self.up.post("/v1/webhook_endpoints", {
                "name": name, "url": self.receivers[name].url(), "event_types": types})
            self.receivers[name].secrets.append(made["signing_secret"])
            self.history.write("endpoint", place=name, id=made["id"], types=types)
        self.receivers[listeners.OWN].secrets.append(self.get("/v1/webhook_secret")["signing_secret"])

    def get(self, path: str) -> Any:
        import http.client
        import urllib.parse
        place = urllib.parse.urlsplit(self.url)
        connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=10)
        try:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def pids(self, part: str) -> list[int]:
        """The processes of a part, the first started first."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return self.up.pids(COMMANDS[part])
        return []

    def processes(self, part: str) -> list[psutil.Process]:
        out = []
        for pid in self.pids(part):
            with contextlib.suppress(psutil.NoSuchProcess):
                out.append(psutil.Process(pid))
        return out

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What a query finds. Raises Unavailable."""
        with self.database.read() as tx:
            tx.cursor.execute(query)
            return tx.cursor.fetchall()

    def held_by(self, pid: int) -> list[str]:
        """The jobs that the worker of this process runs now, as far as the database can say."""
        with contextlib.suppress(Unavailable):
            return [row[0] for row in self.rows(
                "SELECT j.id FROM jobs j JOIN incarnations i ON i.id = j.incarnation WHERE j.state = 'running' "
                f"AND NOT j.waiting AND i.ended_at IS NULL AND i.pid = {pid}")]
        return []

    def live_workers(self) -> int:
        with contextlib.suppress(Unavailable), self.database.read() as tx:
            return sum(each.ready for each in incarnation.live(tx) if each.kind == incarnation.WORKER)
        return 0

    def set_clock(self, part: str, offset_s: float) -> None:
        """From now on every process of a part sees its clock this far off."""
        for at, place in enumerate(hook.PLACES):
            if place == part or (part == "worker" and place.startswith("cpu-")):
                struct.pack_into("d", self._clocks, 8 * at, offset_s)

    def settled(self, timeout_s: float, what: str, query: str) -> bool:
        """Whether a query finds nothing before the time is up."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            with contextlib.suppress(Unavailable):
                if not self.rows(query):
                    return True
            time.sleep(0.1)
        self.history.write("overdue", what=what, after_s=timeout_s)
        return False


def _mount(path: Path, size_mb: int) -> bool:
    """A small file system at `path`; whether that is permitted here."""
    path.mkdir(mode=0o700)
    if shutil.which("mount") is None:
        return False
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_mb}m,mode=0711", "none", str(path)],
                          capture_output=True, check=False)
    return done.returncode == 0


def _unmount(path: Path, mounted: bool) -> None:
    if mounted:
        def gone() -> bool:
            return subprocess.run(["umount", str(path)], capture_output=True, check=False).returncode == 0

        try:
            waiting.until(gone, 20, what="the end of the small file system")
        except BaseException:
            subprocess.run(["umount", "-l", str(path)], capture_output=True, check=False)
            raise
