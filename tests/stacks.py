"""One `headrace up` on its own broker with a network and a receiver, to break and to account for afterwards."""

import contextlib
import http.client
import json
import shutil
import tempfile
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from examples.webhook_receiver import Receiver
from models import contract, database, incarnation
from models.errors import Unavailable
from tests import brokers, embedded, loads, waiting

LEASE_S = 5.0
QUEUE = contract.queue_name("cpu", contract.INTERACTIVE)
ENDED = ("succeeded", "failed", "canceled", "expired")


class Stack:
    """Started with `start`; may be killed and started again on the same data."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.folder = Path(tempfile.mkdtemp(prefix="hr-chaos-"))
        self.folder.chmod(0o711)  # PostgreSQL runs as another user where the tests run as root
        self.network = loads.network(self.folder / "deep")
        self.broker = brokers.Broker()
        self.receiver = Receiver()
        self.up: embedded.Up
        self.url = ""
        self.helpers: list[psutil.Popen] = []
        self.accepted = 0  # jobs that have a right to be stored
        data = self.folder / "data"
        self.database_url = (f"postgresql://headrace@/headrace?host={data}/postgres.sock" if kind == "postgres"
                             else f"sqlite:///{data}/headrace.db")
        self.database = database.connect(self.database_url, pool_size=4)

    def __enter__(self) -> "Stack":  # noqa: PYI034 - it isn't subclassed
        self.broker.start()
        self.receiver.__enter__()
        self.start()
        added = embedded.run("models", "add", str(self.network), cwd=self.folder, url=self.url)
        assert added.returncode == 0, added.stderr
        self.receiver.secrets.append(self.get("/v1/webhook_secret")["signing_secret"])
        return self

    def __exit__(self, *_: object) -> None:
        self._end_helpers()
        self.up.end()
        self.database.close()
        self.receiver.__exit__()
        self.broker.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def settings(self) -> dict[str, str]:
        return {"broker_url": self.broker.url, "lease_s": str(LEASE_S)}

    def start(self, *, workers: int = 1) -> None:
        """`headrace up`, until it is ready."""
        self.up = embedded.Up(self.folder, "--worker", f"cpu={workers}", "--database", self.kind,
                              **self.settings())
        self.url = self.up.ready()[1]

    def restart(self, *, workers: int = 1) -> None:
        """Stop what runs in good order, and start it again."""
        if self.up.process.poll() is None:
            assert self.up.stop() == 0, self.up.log
        self.start(workers=workers)

    def restore(self) -> None:
        """As it was in the beginning, whatever a test before left: everything runs, one worker is ready."""
        self.broker.thaw()
        self._end_helpers()
        if self.up.process.poll() is not None or len(self.worker_pids()) != 1:
            self.restart()
        waiting.until(lambda: [each.ready for each in self.live()] == [True], 60, what="one worker, which is ready")
        self.drained()
        self.accepted = self.count()

    def begin_worker(self) -> "psutil.Popen":
        """`headrace worker` by hand, without a supervisor."""
        with (self.folder / "worker.log").open("ab") as log:
            self.helpers.append(psutil.Popen(
                [embedded.COMMAND, "worker", "--hardware", "cpu"], cwd=self.folder, stdout=log, stderr=log,
                env=embedded.environment(data_dir=str(self.up.data), database_url=self.database_url, **self.settings()),
                preexec_fn=waiting.die_with_parent()))
        return self.helpers[-1]

    def _end_helpers(self) -> None:
        for each in self.helpers:
            if each.poll() is None:
                each.kill()
            each.wait(10)
        self.helpers.clear()

    def get(self, path: str, timeout_s: float = 10.0) -> Any:
        place = urllib.parse.urlsplit(self.url)
        connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=timeout_s)
        try:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def worker_pids(self) -> list[int]:
        return self.up.pids("main.py worker ")

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What a query finds; asked again while the database is away."""
        def ask() -> list[list[tuple[Any, ...]]]:
            with contextlib.suppress(Unavailable), self.database.read() as tx:
                tx.cursor.execute(query)
                return [tx.cursor.fetchall()]
            return []

        return waiting.until(ask, 60, what="the database")[0]

    def count(self, condition: str = "TRUE") -> int:
        return int(self.rows(f"SELECT count(*) FROM jobs WHERE {condition}")[0][0])

    def live(self, kind: str = incarnation.WORKER) -> list[incarnation.Incarnation]:
        """The workers (or others) that live, as the database knows them."""
        with contextlib.suppress(Unavailable), self.database.read() as tx:
            return [each for each in incarnation.live(tx) if each.kind == kind]
        return []

    def ready_worker(self, but: frozenset[str] = frozenset(), timeout_s: float = 60.0) -> incarnation.Incarnation:
        """A worker that is ready, other than those."""
        found = waiting.until(lambda: [each for each in self.live() if each.ready and each.id not in but],
                              timeout_s, what="a ready worker")
        return found[0]

    def load(self, **options: Any) -> loads.Load:
        return loads.Load(self.url, seed=int(time.monotonic() * 1000) % 1_000_000, **options)

    def drained(self, timeout_s: float = 120.0) -> float:
        """Wait until no job is live; seconds that took."""
        begun = time.monotonic()
        waiting.until(lambda: not self.count("state IN ('queued', 'running')"), timeout_s, what="the end of all jobs")
        return time.monotonic() - begun

    def check(self, *done: loads.Load, told: bool = False) -> dict[str, int]:
        """Every accepted job succeeded, once, with the right output; what is remarkable about them.

        `told`: and the receiver got exactly one event for each of them.
        """
        accepted: dict[str, list[float]] = {}
        for load in done:
            accepted |= load.accepted
        self.drained()
        found = {row[0]: row for row in self.rows("SELECT id, state, error_code, attempt, crashes, crashes_alone "
                                                  "FROM jobs") if row[0] in accepted}
        lost = [name for name in accepted if name not in found]
        assert not lost, f"{len(lost)} accepted jobs have no row"
        bad = [row for row in found.values() if row[1] != "succeeded"]
        assert not bad, f"{len(bad)} of {len(accepted)} did not succeed, such as {bad[:3]}"
        self.accepted += len(accepted)
        assert self.count() == self.accepted, "a job was stored twice, or one that nobody was told of"
        outputs = {row[0]: bytes(row[1]) for row in self.rows("SELECT job_id, body FROM results")
                   if row[0] in accepted}
        assert loads.differences(self.network, accepted, outputs) == []
        if told:
            self._check_events(accepted)
        return {"jobs": len(accepted), "attempts_max": max(row[3] for row in found.values()),
                "ran_again": sum(row[3] > 1 for row in found.values()),
                "crashed": sum(row[4] > 0 for row in found.values()),
                "crashes_alone_max": max(row[5] for row in found.values())}

    def _check_events(self, accepted: dict[str, list[float]]) -> None:
        def counted() -> dict[str, int]:
            return {name: count for name, count in loads.events_of(list(self.receiver.events.values())).items()
                    if name in accepted}

        waiting.until(lambda: len(counted()) >= len(accepted), 120, what="an event for every job")
        waiting.until(lambda: not self.rows("SELECT 1 FROM deliveries WHERE state = 'pending' "
                                            "LIMIT 1"), 60, what="the end of all deliveries")
        assert set(counted().values()) == {1}


@contextlib.contextmanager
def stack(kind: str) -> Iterator[Stack]:
    with Stack(kind) as built:
        yield built
