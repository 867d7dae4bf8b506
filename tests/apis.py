"""The API in this process, over a real database and broker, called through the same WSGI callable as in production."""

import base64
import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from api import create_app, wsgi
from api.service import Service
from models import claim, contract, ids, incarnation, network
from models.database import Database, Transaction
from models.settings import Settings

SIGNATURE = {"task": "tensor", "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
             "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 2]}], "item_axis": True}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Api:
    def __init__(self, service: Service, app: Any) -> None:
        self.service = service
        self.app = app
        self._serve = wsgi.application(service, app)

    def call(self, method: str, path: str, body: Any = None, *, through: Any = None, **headers: str) -> Answer:
        """One request. `body`: bytes as they are, or what becomes JSON. Header names with underscores."""
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        path, _, query = path.partition("?")
        environ: dict[str, Any] = {
            "REQUEST_METHOD": method, "PATH_INFO": path.encode().decode("latin-1"), "QUERY_STRING": query,
            "SCRIPT_NAME": "", "SERVER_NAME": "127.0.0.1", "SERVER_PORT": "8080", "SERVER_PROTOCOL": "HTTP/1.1",
            "wsgi.url_scheme": "http", "wsgi.input": io.BytesIO(raw), "wsgi.errors": io.StringIO(),
            "wsgi.version": (1, 0), "wsgi.multithread": True, "wsgi.multiprocess": False, "wsgi.run_once": False,
            "HTTP_HOST": "127.0.0.1:8080", "REMOTE_ADDR": "127.0.0.1", "CONTENT_LENGTH": str(len(raw)),
            "CONTENT_TYPE": "application/json" if raw else "",
        }
        for name, value in headers.items():
            key = name.upper()
            environ[key if key.startswith("CONTENT_") else "HTTP_" + key] = value
        said: list[Any] = []
        parts = (through or self._serve)(environ, lambda status, sent, *_: said.extend((status, sent)))
        return Answer(int(said[0][:3]), dict(said[1]), b"".join(parts))

    def submit(self, **more: Any) -> Answer:
        return self.call("POST", "/v1/jobs", job_body(**more))


def job_body(**more: Any) -> dict[str, Any]:
    return {"model": "t", "input": tensor([1.0, 2.0]), **more}


def tensor(data: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": data}]}


def add_network(database: Database, name: str = "t", version: str = "1", *, ready: bool = True,
                hardware: tuple[str, ...] = ("cpu",), max_items: int = 64) -> None:
    manifest = {"name": name, "version": version, "task": "tensor", "artifact": "model.onnx",
                "hardware": list(hardware), "batching": {"max_items": max_items}}

    def work(tx: Transaction) -> None:
        network.add(tx, name=name, version=version, task="tensor", digest=name + version, manifest=manifest, files={})
        found = network.get(tx, name, version)
        if ready and found is not None:
            network.accept(tx, found, SIGNATURE)

    database.write(work)


def add_worker(database: Database, hardware: str = "cpu") -> str:
    worker = ids.new(ids.INCARNATION)
    database.write(lambda tx: incarnation.begin(
        tx, worker, kind=incarnation.WORKER, host="here", pid=1, hardware=hardware, lanes="interactive"))
    return worker


def finish(database: Database, job_id: str, *, output: bytes | None = b'{"y":[1.5]}', output_blob: str | None = None,
           failed: str | None = None) -> None:
    """Run one job as a worker would: claim, settle."""
    worker = add_worker(database)

    def work(tx: Transaction) -> None:
        (held,) = claim.claim(tx, [job_id], incarnation=worker, hardware="cpu", begun=True)
        claim.settle(tx, [claim.Outcome(
            job_id, held.attempt, "failed" if failed else "succeeded", output=None if failed or output_blob else output,
            output_blob=output_blob, error_code=failed, error_message="it did not work" if failed else None,
            run_ms=1.25, batch_size=4)], incarnation=worker)

    database.write(work)


@contextmanager
def running(settings: Settings) -> Iterator[Api]:
    """An API with its threads started and the network `t@1` ready."""
    app = create_app(settings)
    service: Service = app.extensions["headrace"]
    add_network(service.database)
    service.start()
    try:
        yield Api(service, app)
    finally:
        service.stop()


def ticket_of(message: bytes) -> contract.Ticket:
    """The ticket inside a message of the broker."""
    envelope = json.loads(message)
    args, _, _ = json.loads(base64.b64decode(envelope["body"]))
    return contract.decode_ticket(envelope["headers"]["id"], args)
