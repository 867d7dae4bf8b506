"""A worker's parts without Celery, over a real database and an engine without a device."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from models import contract, ids, manifest, network
from models.blobs import Blobs
from models.database import Database
from models.settings import DEFAULT_CLASSES
from tests import rows, waiting
from workers.artifacts import Artifacts
from workers.buffer import Buffer
from workers.catalogue import Catalogue
from workers.engine import TensorSpec
from workers.executor import Executor
from workers.lease import Lease
from workers.null_engine import NullEngine
from workers.settling import Settler
from workers.strategy import Delivery, Intake

SPEC = TensorSpec("x", "FP32", (-1, 2), "n")
NETWORK = "net@1"


def body(value: float) -> bytes:
    """A `tensor` input of one row."""
    return json.dumps({"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [value, value]}]}).encode()


class Message:
    """What a delivery needs of kombu's message."""

    delivery_info: Mapping[str, str] = MappingProxyType({})

    def ack(self) -> None: ...


class Rig:
    """Buffer, executor, catalogue and lease of one incarnation; its network echoes its input.

    `engine`: keyword arguments of NullEngine. `opens`: raises what keeps the engine from loading.
    """

    def __init__(self, database: Database, folder: Path, broker: str, *, batching: dict[str, Any] | None = None,
                 max_inline_bytes: int = 1 << 18, opens: Any = None,
                 hardware: Sequence[str] = ("cpu",), **engine: Any) -> None:
        self.database = database
        self.blobs = Blobs(folder / "blobs")
        self.engines: list[NullEngine] = []
        self.broken = 0  # how often the executor said that its device failed
        self.incarnation = ids.new(ids.INCARNATION)
        self._opens = opens
        self._engine = engine
        parsed = manifest.parse(b"name: net\nversion: '1'\ntask: tensor\nartifact: model.onnx\n")
        parsed["hardware"] = list(hardware)
        parsed["batching"] = parsed["batching"] | (batching or {})
        blob = self.blobs.put(b"not read")
        database.write(lambda tx: network.add(
            tx, name="net", version="1", task="tensor", digest="d", manifest=parsed,
            files={"model.onnx": {"blob": blob, "size": 8}}))
        self.lease = Lease(database, self.incarnation, hardware="cpu", lanes=contract.LANES, lease_s=30)
        self.catalogue = Catalogue(database, Artifacts(folder / "cache", self.blobs), DEFAULT_CLASSES["cpu"],
                                   self._open_engine)
        self.buffer = Buffer(profile_of=self.catalogue.profile, want=self.catalogue.want,
                             refused=self.catalogue.is_refused, may_claim=self.lease.held, now_ms=self.lease.now_ms)
        self.intake = Intake(self.buffer.offer, self.buffer.forget, self.buffer.hungry)
        self.executor = Executor(
            database=database, blobs=self.blobs, buffer=self.buffer, intake=self.intake, catalogue=self.catalogue,
            settler=Settler(database, self.blobs, incarnation=self.incarnation, max_inline_bytes=max_inline_bytes),
            incarnation=self.incarnation, hardware="cpu", broker=broker, broken=self._break)
        self.catalogue.loaded, self.catalogue.refused = self.executor.loaded, self.executor.refused

    def _break(self) -> None:
        self.broken += 1

    def _open_engine(self, _path: Path, _hardware: Any) -> NullEngine:
        # The check of the file always passes: a network that nobody accepted has no jobs.
        if self._opens is not None and self.state() == network.READY:
            self._opens()
        engine = NullEngine([SPEC], [SPEC], **self._engine)
        self.engines.append(engine)
        return engine

    def state(self) -> str:
        with self.database.read() as tx:
            found = network.get(tx, "net", "1")
        assert found is not None
        return found.state

    def __enter__(self) -> Self:
        self.lease.begin(lambda: None)
        self.catalogue.start()
        waiting.until(lambda: self.state() == network.READY, what="the network's check")
        self.executor.start()
        return self

    def load(self) -> Self:
        """With the engine loaded; what it runs from now on is the test's."""
        self.catalogue.want(NETWORK)
        waiting.until(lambda: self.catalogue.profile(NETWORK), what="the engine")
        self.engines[-1].runs.clear()
        return self

    def __exit__(self, *_: object) -> None:
        for engine in self.engines:
            if engine._stalls is not None:
                engine._stalls.set()
        self.executor.stop(held=True)
        self.catalogue.stop()

    def accept(self, values: Sequence[float], **fields: Any) -> list[str]:
        """One job a value; their ids."""
        return [rows.jobs(self.database, network=NETWORK, input=body(value), ticketed=True, **fields)[0]
                for value in values]

    def offer(self, names: Sequence[str], *, alone: bool = False, **fields: Any) -> Delivery:
        """A ticket for these jobs reaches the worker."""
        entries = [contract.Entry(name, fields.get("work", 1.0), 5, None, rows.TENANT) for name in names]
        ticket = contract.Ticket(NETWORK, contract.INTERACTIVE, entries, alone)
        delivery = Delivery(ticket, Message(), None, generation=0, hostname="h")
        self.buffer.offer(ticket, delivery)
        return delivery

    def column(self, name: str, names: Sequence[str]) -> list[Any]:
        """One column of these jobs, in their order."""
        with self.database.read() as tx:
            tx.cursor.execute(f"SELECT id, {name} FROM jobs")
            found = dict(tx.cursor.fetchall())
        return [found[each] for each in names]

    def ended(self, names: Sequence[str]) -> list[str]:
        """The states of these jobs, once all of them are terminal."""
        waiting.until(lambda: not {"queued", "running"} & set(self.column("state", names)),
                      what="the end of the jobs")
        return self.column("state", names)

    def outputs(self, names: Sequence[str]) -> list[Any]:
        """The stored outputs of these jobs, None where there is none."""
        with self.database.read() as tx:
            tx.cursor.execute("SELECT job_id, body, blob FROM results")
            found = {row[0]: row for row in tx.cursor.fetchall()}
        return [None if each not in found else json.loads(found[each][1] or self.blobs.read(found[each][2]))
                for each in names]
