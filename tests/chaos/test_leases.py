"""Leases hold through long runs, locked databases and clocks that are wrong: no job runs twice or is blamed."""

import contextlib
import sqlite3
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from models.database import sqlite_path
from tests import databases, embedded, graphs, waiting
from tests.chaos.harness.hooks import sitecustomize as clocks
from tests.stacks import LEASE_S, Stack

pytestmark = pytest.mark.slow
BOTH = pytest.mark.parametrize("kind", ["sqlite", "postgres"])
HERE = Path(__file__).parent
SIZE = 256
LONG_S = 40.0
HOUR_S = 3600.0


class ShortLease(Stack):
    """With a lease far shorter than a job, and a broker that redelivers after 2 s."""

    def settings(self) -> dict[str, str]:
        return super().settings() | {"lease_s": "3", "sweep_s": "1"}


def _endless(folder: Path) -> Path:
    """A network that multiplies matrices as often as its input says."""
    folder.mkdir(exist_ok=True)
    state = (TensorProto.FLOAT, [SIZE, SIZE])
    body = helper.make_graph(
        [graphs.node("MatMul", ["before", "w"], ["product"]), graphs.node("Tanh", ["product"], ["after"]),
         graphs.node("Identity", ["go"], ["on"])], "round",
        [helper.make_tensor_value_info("number", TensorProto.INT64, []),
         helper.make_tensor_value_info("go", TensorProto.BOOL, []), helper.make_tensor_value_info("before", *state)],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, []), helper.make_tensor_value_info("after", *state)])
    w = np.random.default_rng(3).normal(0, 1 / np.sqrt(SIZE), (SIZE, SIZE)).astype(np.float32)
    graphs.save(
        folder,
        [graphs.node("ReduceMax", ["x"], ["rounds"], keepdims=0), graphs.node("Loop", ["rounds", "", "w"], ["end"],
                                                                              body=body),
         graphs.node("ReduceSum", ["end"], ["sum"], keepdims=0), graphs.node("Cast", ["x"], ["given"], to=graphs.FLOAT),
         graphs.node("Mul", ["sum", "zero"], ["nothing"]), graphs.node("Add", ["given", "nothing"], ["y"])],
        [("x", graphs.INT64, ["n", 1])], [("y", graphs.FLOAT, ["n", 1])],
        {"w": w, "zero": np.array(0, np.float32)})
    (folder / "network.yaml").write_text("name: endless\nversion: '1'\ntask: tensor\nartifact: model.onnx\n"
                                         "hardware: [cpu]\nbatching: {max_items: 1}\n")
    return folder


def _rounds(folder: Path, seconds: float) -> int:
    """How often this machine multiplies in that time."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])
    count, took_s = 1000, 0.0
    while took_s < 0.5:
        count *= 2
        begun = time.perf_counter()
        session.run(None, {"x": np.array([[count]], np.int64)})
        took_s = time.perf_counter() - begun
    return int(count * seconds / took_s)


@BOTH
def test_a_job_many_leases_long_runs_once(kind: str, say: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "postgres":
        databases._installed()
    monkeypatch.setenv("PYTHONPATH", str(HERE / "hooks"))
    with ShortLease(kind) as stack:
        folder = _endless(stack.folder / "endless")
        added = embedded.run("models", "add", str(folder), cwd=stack.folder, url=stack.url)
        assert added.returncode == 0, added.stderr
        (worker,) = stack.live()
        rounds = _rounds(folder, LONG_S)
        job = stack.up.post("/v1/jobs", {"model": "endless", "input": {"inputs": [
            {"name": "x", "shape": [1, 1], "datatype": "INT64", "data": [rounds]}]}})
        begun = time.monotonic()
        waiting.until(lambda: stack.count("state = 'running'"), what="its run")
        client = stack.broker.client()
        waiting.until(lambda: not client.hlen("unacked"), what="its ticket's acknowledgement")
        client.close()
        stack.drained(10 * LONG_S)
        ended = stack.get(f"/v1/jobs/{job['id']}")
        say(seconds=round(time.monotonic() - begun, 1), run_s=round(ended["timings"]["run_ms"] / 1000, 1),
            attempt=ended["attempt"], crashes=ended["crashes"])
        assert (ended["state"], ended["attempt"], ended["crashes"]) == ("succeeded", 1, 0)
        assert [each.id for each in stack.live()] == [worker.id]


@contextlib.contextmanager
def _locked(stack: Stack) -> Iterator[None]:
    """Nobody else writes meanwhile."""
    with contextlib.closing(sqlite3.connect(sqlite_path(stack.database_url), isolation_level=None,
                                            timeout=30)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


@pytest.mark.parametrize("kind", ["sqlite"])
def test_a_database_locked_for_two_leases_counts_against_nobody(stack: Stack, say: Any) -> None:
    (worker,) = stack.live()
    with stack.load(rate_s=100, webhook=stack.receiver.url) as load:
        for _ in range(2):
            load.reached(len(load.accepted) + 100)
            with _locked(stack):
                asleep = time.monotonic()
                waiting.until(lambda asleep=asleep: time.monotonic() - asleep > 2.2 * LEASE_S, 60)
        load.reached(len(load.accepted) + 100)
    figures = stack.check(load, told=True)
    say(trouble=dict(load.trouble), **figures)
    assert figures["crashed"] == 0
    assert [each.id for each in stack.live()] == [worker.id]


class Clocks:
    """The offsets of a stack's processes, which may be set while they run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offsets = dict.fromkeys(clocks.PLACES, 0.0)
        self.set()

    def set(self, **offsets_s: float) -> None:
        self._offsets |= {name.replace("_", "-"): value for name, value in offsets_s.items()}
        with self.path.open("r+b" if self.path.exists() else "w+b") as file:
            file.write(struct.pack(f"{len(self._offsets)}d", *self._offsets.values()))


@BOTH
def test_clocks_that_are_off_by_an_hour_or_set_while_they_run_change_nothing(
        kind: str, say: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if kind == "postgres":
        databases._installed()
    given = Clocks(tmp_path / "clocks")
    monkeypatch.setenv("PYTHONPATH", str(HERE / "harness" / "hooks"))
    monkeypatch.setenv(clocks.CLOCKS, str(given.path))
    tmp_path.chmod(0o755)
    with Stack(kind) as stack:
        (worker,) = stack.live()
        timed: list[str] = []
        with stack.load(rate_s=100, webhook=stack.receiver.url) as load:
            for offsets in ({"cpu_1": HOUR_S}, {"cpu_1": -HOUR_S}, {"cpu_1": 0.0, "api": HOUR_S}, {"api": -HOUR_S},
                            {"api": 0.0, "housekeep": HOUR_S}, {"housekeep": -HOUR_S}):
                given.set(**offsets)
                job = {"model": "deep", "deadline_s": 60, "input": {"inputs": [
                    {"name": "x", "shape": [1, 16], "datatype": "FP32", "data": [0.5] * 16}]}}
                timed += [each["job"]["id"] for each in stack.up.post("/v1/jobs/batch", {"jobs": [job] * 20})["data"]]
                waiting.until(lambda: not stack.count("deadline_at IS NOT NULL AND state IN ('queued', 'running')"),
                              45, what="the end of jobs with a deadline")
                load.reached(len(load.accepted) + 100)
        stack.accepted = len(timed)
        figures = stack.check(load, told=True)
        say(timed=len(timed), **figures)
        assert stack.count("deadline_at IS NOT NULL AND state = 'succeeded'") == len(timed)
        assert figures["crashed"] == 0
        assert [each.id for each in stack.live()] == [worker.id]
