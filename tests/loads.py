"""Clients that keep submitting jobs whose answers are known, through whatever fails, and the account afterwards."""

import collections
import http.client
import itertools
import json
import threading
import time
import urllib.parse
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnxruntime

from tests import graphs, waiting

REFERENCE = "deep@1"
IN, WIDTH, DEPTH, OUT = 16, 512, 16, 4
PATIENCE_S = 120.0  # for one job to be accepted, however often the service is away meanwhile
REQUEST_S = 10.0
RETRY_S = 0.05
EXACT = 1e-5


def network(folder: Path) -> Path:
    """A folder with a network heavy enough to be killed while it runs, whose outputs tell inputs apart."""
    rng = np.random.default_rng(7)
    sizes = [IN, *[WIDTH] * DEPTH, OUT]
    nodes, weights, value = [], {}, "x"
    for layer, (rows, columns) in enumerate(itertools.pairwise(sizes)):
        weights[f"w{layer}"] = rng.normal(0, 1 / np.sqrt(rows), (rows, columns)).astype(np.float32)
        nodes += [graphs.node("MatMul", [value, f"w{layer}"], [f"m{layer}"]),
                  graphs.node("Tanh", [f"m{layer}"], [f"t{layer}" if layer < DEPTH else "y"])]
        value = f"t{layer}"
    folder.mkdir(parents=True, exist_ok=True)
    graphs.save(folder, nodes, [("x", graphs.FLOAT, ["n", IN])], [("y", graphs.FLOAT, ["n", OUT])], weights)
    (folder / "network.yaml").write_text(
        "name: deep\nversion: '1'\ntask: tensor\nartifact: model.onnx\nhardware: [cpu]\n"
        "batching: {max_items: 64}\npinned: true\n")
    return folder


def expected(folder: Path, rows: Sequence[Sequence[float]]) -> np.ndarray:
    """What ONNX Runtime gives, called directly."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])
    given = np.asarray(rows, np.float32)
    return np.concatenate([session.run(["y"], {"x": given[at:at + 64]})[0] for at in range(0, len(given), 64)])


def body(row: Sequence[float]) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "shape": [1, IN], "datatype": "FP32", "data": list(row)}]}


def made_up(count: int, seed: int) -> list[list[float]]:
    rows = np.random.default_rng(seed).uniform(-1, 1, (count, IN))
    return [[round(float(value), 4) for value in row] for row in rows]


class Client:
    """One keep-alive connection that finds the service again. `where` may change under it."""

    def __init__(self, where: "Load") -> None:
        self._where = where
        self._connection: http.client.HTTPConnection | None = None
        self._url = ""

    def post(self, path: str, document: bytes, key: str) -> tuple[int, Any]:
        """Status and answer; 0 when the connection failed."""
        try:
            if self._connection is None or self._url != self._where.url:
                self.close()
                self._url = self._where.url
                place = urllib.parse.urlsplit(self._url)
                self._connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=REQUEST_S)
            self._connection.request("POST", path, document, {"Content-Type": "application/json",
                                                              "Idempotency-Key": key})
            reply = self._connection.getresponse()
            return reply.status, json.loads(reply.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._where.trouble[type(error).__name__] += 1
            self.close()
            return 0, None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Load:
    """Submits `count` jobs (None: until left) in order, at `rate_s` a second. A context manager.

    Each job has an idempotency key, with which it is sent again until it is accepted. `accepted`: job id to row.
    """

    def __init__(self, url: str, *, count: int | None = None, rate_s: float = 100.0, size: int = 1, seed: int = 0,
                 webhook: str | None = None, clients: int = 4) -> None:
        self.url = url
        self.accepted: dict[str, list[float]] = {}
        self.latencies_s: list[float] = []  # of requests answered 202 the first time
        self.trouble: collections.Counter[str] = collections.Counter()
        self._count = count
        self._interval_s = size / rate_s
        self._size = size
        self._seed = seed
        self._webhook = webhook
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._faults: list[str] = []
        self._begun_s = time.monotonic()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(clients)]

    def __enter__(self) -> Self:
        self._begun_s = time.monotonic()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self.join()

    def join(self) -> None:
        """Wait until all is accepted (with a count), or what was begun is (after leaving)."""
        for thread in self._threads:
            thread.join(PATIENCE_S + REQUEST_S)
        assert not self._faults, self._faults[0]

    def _work(self) -> None:
        client = Client(self)
        while not self._stop.is_set():
            with self._lock:
                number = next(self._numbers)
            if self._count is not None and number * self._size >= self._count:
                break
            if self._stop.wait(max(0.0, self._begun_s + number * self._interval_s - time.monotonic())):
                break
            self._submit(client, made_up(self._size, self._seed * 1_000_000 + number))
        client.close()

    def _submit(self, client: Client, rows: Sequence[list[float]]) -> None:
        jobs = [{"model": "deep", "input": body(row)} | ({"webhook": {"url": self._webhook}} if self._webhook else {})
                for row in rows]
        single = self._size == 1
        path, document = ("/v1/jobs", jobs[0]) if single else ("/v1/jobs/batch", {"jobs": jobs})
        raw, key = json.dumps(document).encode(), uuid.uuid4().hex
        end = time.monotonic() + PATIENCE_S
        tries = 0
        while time.monotonic() < end:
            tries += 1
            sent = time.monotonic()
            status, answer = client.post(path, raw, key)
            if status == 202:
                if tries == 1:
                    self.latencies_s.append(time.monotonic() - sent)
                taken = [answer["id"]] if single else [each["job"]["id"] for each in answer["data"]]
                with self._lock:
                    self.accepted.update(zip(taken, rows, strict=True))
                return
            if status:
                self.trouble[f"{status} {answer.get('code')}"] += 1
            if 400 <= status < 500 and status not in (409, 429):
                self._faults.append(f"{status}: {answer}")
                return
            time.sleep(RETRY_S)
        self._faults.append(f"not accepted within {PATIENCE_S} s: {dict(self.trouble)}")

    def reached(self, count: int, timeout_s: float = 60.0) -> None:
        """Wait until that many jobs are accepted."""
        waiting.until(lambda: len(self.accepted) >= count or self._faults, timeout_s, what=f"{count} accepted jobs")
        assert not self._faults, self._faults[0]

    def percentile_ms(self, share: float) -> float:
        found = sorted(self.latencies_s)
        return round(1000 * found[min(len(found) - 1, int(share * len(found)))], 2) if found else 0.0


def differences(folder: Path, accepted: dict[str, list[float]], outputs: dict[str, bytes]) -> list[str]:
    """The jobs whose output is missing or isn't that of a direct run."""
    names = [name for name in accepted if name in outputs]
    wanted = expected(folder, [accepted[name] for name in names]) if names else ()
    wrong = [name for name in accepted if name not in outputs]
    for name, row in zip(names, wanted, strict=True):
        (given,) = json.loads(outputs[name])["outputs"]
        if given["name"] != "y" or not np.allclose(given["data"], row, rtol=0, atol=EXACT):
            wrong.append(name)
    return wrong


def events_of(events: Iterable[dict[str, Any]]) -> collections.Counter[str]:
    """How many different events came for each job."""
    return collections.Counter(each["data"]["id"] for each in events)
