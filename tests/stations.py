"""Real worker processes over a real broker and database, with a network from the examples."""

import dataclasses
import json
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from models import contract, database, ids, incarnation, job, manifest, network
from models.blobs import Blobs
from models.settings import Settings
from tests import embedded, graphs, rows, waiting

TUMOR = "tumor@1"


class Station:
    """One service without API and housekeeping: the test does what those would."""

    def __init__(self, settings: Settings, broker: Any) -> None:
        self.settings = settings
        self.broker = broker
        self.database = database.connect(settings.database)
        self.blobs = Blobs(settings.blobs)
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Station":  # noqa: PYI034 - it isn't subclassed
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(10)
        self.database.close()

    def environment(self, **more: str) -> dict[str, str]:
        return embedded.environment(
            data_dir=str(self.settings.data_dir), database_url=self.settings.database,
            broker_url=self.settings.broker, lease_s=str(self.settings.lease_s), **more)

    def start(self, name: str = "", *, of_class: str = "cpu", **more: str) -> "subprocess.Popen[bytes]":
        """`headrace worker`; `name` is its incarnation's id, as a supervisor would choose it."""
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [embedded.COMMAND, "worker", "--hardware", of_class], stdin=subprocess.DEVNULL,
                cwd=self.settings.data_dir, env=self.environment(incarnation=name, **more), stdout=log, stderr=log,
                preexec_fn=waiting.die_with_parent())  # noqa: PLW1509 (one C call)
        self.processes.append(process)
        return process

    def begin(self, **more: str) -> tuple["subprocess.Popen[bytes]", str]:
        """A worker that is ready, and its incarnation; what was uploaded has been checked by then."""
        name = ids.new(ids.INCARNATION)
        process = self.start(name=name, **more)
        waiting.until(lambda: self._is_ready(process, name), 60, what="the worker")
        waiting.until(self._all_checked, 60, what="the check of all networks")
        return process, name

    def _all_checked(self) -> bool:
        with self.database.read() as tx:
            return not any("cpu" in each.hardware for each in network.unchecked(tx))

    def _is_ready(self, process: "subprocess.Popen[bytes]", name: str) -> bool:
        assert process.poll() is None, self.log.read_text()
        with self.database.read() as tx:
            return any(each.id == name and each.ready for each in incarnation.live(tx))

    @property
    def log(self) -> Path:
        return self.settings.data_dir / "worker.log"

    def stop(self, process: "subprocess.Popen[bytes]") -> int:
        process.send_signal(signal.SIGTERM)
        return process.wait(30)

    def upload(self, name: str, folder: Path | None = None, **changes: Any) -> None:
        """Store an example's network, or another folder's, as the API does, for a worker to check."""
        folder = folder or graphs.EXAMPLES / name
        parsed = manifest.parse((folder / "network.yaml").read_bytes()) | changes
        files = {}
        for path in manifest.files(parsed):
            data = (folder / path).read_bytes()
            files[path] = {"blob": self.blobs.put(data), "size": len(data)}
        self.database.write(lambda tx: network.add(
            tx, name=parsed["name"], version=parsed["version"], task=parsed["task"], manifest=parsed, files=files,
            digest=json.dumps([parsed, files])))

    def network(self, name: str) -> network.Network:
        with self.database.read() as tx:
            found = network.get(tx, name, "1")
        assert found is not None
        return found

    def accept(self, bodies: Sequence[bytes], reference: str = TUMOR) -> list[str]:
        """One job a body, ticketed; their ids in the same order."""
        new = [job.NewJob(ids.new(ids.JOB), rows.TENANT, reference, "cpu", 30.0, body, ticketed=True)
               for body in bodies]
        now = self.database.now()
        self.database.write(lambda tx: job.accept(tx, new, now))
        return [each.id for each in new]

    def push(self, names: Sequence[str], reference: str = TUMOR, *, alone: bool = False) -> None:
        """Tickets for these jobs, as the API publishes them."""
        queue = contract.queue_name("cpu", contract.INTERACTIVE)
        client = self.broker.client()
        for start in range(0, len(names), contract.MAX_ENTRIES):
            entries = [contract.Entry(name, 30.0, 5, None, rows.TENANT)
                       for name in names[start:start + contract.MAX_ENTRIES]]
            ticket = contract.Ticket(reference, contract.INTERACTIVE, entries, alone)
            client.lpush(queue, contract.encode_ticket(ticket, queue))
        client.close()

    def column(self, name: str, names: Sequence[str]) -> list[Any]:
        with self.database.read() as tx:
            tx.cursor.execute(f"SELECT id, {name} FROM jobs")
            found = dict(tx.cursor.fetchall())
        return [found[each] for each in names]

    def count(self, state: str) -> int:
        with self.database.read() as tx:
            tx.cursor.execute(f"SELECT count(*) FROM jobs WHERE state = '{state}'")
            return int(tx.cursor.fetchall()[0][0])

    def ended(self, names: Sequence[str], timeout_s: float = 40) -> list[str]:
        waiting.until(lambda: not {"queued", "running"} & set(self.column("state", names)), timeout_s,
                      what="the end of the jobs")
        return self.column("state", names)

    def outputs(self, names: Sequence[str]) -> list[Any]:
        with self.database.read() as tx:
            tx.cursor.execute("SELECT job_id, body FROM results")
            found = dict(tx.cursor.fetchall())
        return [json.loads(found[name]) if name in found else None for name in names]

    def reason(self, name: str) -> str | None:
        """Why an incarnation ended."""
        with self.database.read() as tx:
            tx.cursor.execute(f"SELECT end_reason FROM incarnations WHERE id = '{name}'")
            return tx.cursor.fetchall()[0][0]  # type: ignore[no-any-return]


def with_lease(settings: Settings, lease_s: float) -> Settings:
    return dataclasses.replace(settings, lease_s=lease_s)
