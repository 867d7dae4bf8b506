"""Online figures: singles over 32 connections, batches of 100, one at a time when idle, many long polls.

Starts `headrace up` itself. `python -m benchmarks.online --database postgres --network big` and so on.
"""

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import redis

from benchmarks import figures, load, networks, process_tree
from examples import stack as stacks
from models import settings as settings_module
from models.settings import Settings

TERMINAL = frozenset({"succeeded", "failed", "canceled", "expired"})
TAIL = 64  # newest jobs whose results must be there before the clock stops


@dataclass(frozen=True)
class Bench:
    """A running stack with one network, and how to talk to it."""

    stack: stacks.Stack
    network: str
    settings: dict[str, Any]

    def inputs(self, count: int, seed: int) -> Iterator[dict[str, Any]]:
        """`count` jobs whose inputs all differ."""
        rng = random.Random(seed)
        for _ in range(count):
            data = [round(rng.gauss(0, 1), 5) for _ in range(30)]
            yield {"model": self.network, "input": {
                "inputs": [{"name": "X", "shape": [1, 30], "datatype": "FP32", "data": data}]}}

    def post(self, path: str, value: Any) -> bytes:
        return load.post(self.stack.port, path, json.dumps(value).encode())

    def get(self, path: str) -> bytes:
        return load.get(self.stack.port, path)


async def fetch(bench: Bench, ids: Sequence[str], connections: int, limit_s: float) -> list[dict[str, Any]]:
    """Every job once it has ended, in the order of `ids`; long polls where one has not."""
    found: dict[str, dict[str, Any]] = {}
    left = iter(ids)
    opened = [await load.Connection.open(bench.stack.port) for _ in range(connections)]

    async def work(connection: load.Connection) -> None:
        for job_id in left:
            query = ""
            while job_id not in found:
                status, body = await connection.call(bench.get(f"/v1/jobs/{job_id}{query}"))
                if status != 200:
                    raise SystemExit(f"GET {job_id}: {status} {body[:300]!r}")
                job = json.loads(body)
                if job["state"] in TERMINAL:
                    found[job_id] = job
                query = "?wait=10"

    async with asyncio.timeout(limit_s):
        await asyncio.gather(*(work(connection) for connection in opened))
    for connection in opened:
        connection.close()
    return [found[job_id] for job_id in ids]


def _ids(sent: load.Sent) -> Iterator[str]:
    """Ids of accepted jobs, single or from lists. A refusal ends the benchmark."""
    for status, body in zip(sent.statuses, sent.bodies, strict=True):
        answer = json.loads(body)
        if status != 202:
            raise SystemExit(f"refused: {status} {body[:500]!r}")
        for entry in answer["data"] if answer["object"] == "list" else [{"status": 202, "job": answer}]:
            if entry["status"] != 202:
                raise SystemExit(f"refused: {entry}")
            yield entry["job"]["id"]


async def throughput(bench: Bench, figure: str, requests: Iterable[bytes], connections: int,
                     limit_s: float) -> dict[str, Any]:
    """Submit everything, wait until the last results can be had, then read every job once."""
    prepared = list(requests)  # made before the clock starts
    meter, start = process_tree.Meter(bench.stack.pid), time.perf_counter()
    sent = await load.send(bench.stack.port, prepared, connections)
    ids = list(_ids(sent))
    await fetch(bench, sorted(ids)[-TAIL:], 1, limit_s)
    available_s = time.perf_counter() - start
    parts, foreign = meter.read()
    jobs = await fetch(bench, ids, connections, limit_s)
    fetched_s = time.perf_counter() - start
    fetched, _ = meter.read()
    states = [job["state"] for job in jobs]
    sizes = [job["timings"]["batch_size"] for job in jobs if job["timings"]["batch_size"]]
    count = len(ids)
    return figures.emit(
        figure, **bench.settings, jobs=count, failed=sum(state != "succeeded" for state in states),
        jobs_s=round(count / available_s), jobs_s_fetched=round(count / fetched_s),
        cpu_ms=round(sum(parts.values()) / count * 1000, 4),
        cpu_ms_fetched=round(sum(fetched.values()) / count * 1000, 4),
        cpu_ms_by_part={name: round(seconds / count * 1000, 4) for name, seconds in parts.items()},
        **_spread("submit", sent.latencies_s),
        batch_mean=round(statistics.fmean(sizes), 1) if sizes else None, batch_max=max(sizes, default=None),
        memory_mib=process_tree.memory_mib(bench.stack.pid), foreign_cores=foreign)


def _batches(bench: Bench, count: int, size: int, seed: int) -> Iterator[bytes]:
    jobs = list(bench.inputs(count, seed))
    for at in range(0, count, size):
        yield bench.post("/v1/jobs/batch", {"jobs": jobs[at:at + size]})


async def idle(bench: Bench, count: int) -> dict[str, Any]:
    """One job at a time on an idle stack: from the start of the POST to the result seen by a long poll."""
    connection = await load.Connection.open(bench.stack.port)
    totals, posts = [], []
    for value in bench.inputs(count, 9):
        raw = bench.post("/v1/jobs", value)
        start = time.perf_counter()
        _, body = await connection.call(raw)
        posts.append(time.perf_counter() - start)
        job = json.loads(body)
        while job["state"] not in TERMINAL:
            _, body = await connection.call(bench.get(f"/v1/jobs/{job['id']}?wait=10"))
            job = json.loads(body)
        totals.append(time.perf_counter() - start)
        await asyncio.sleep(0.01)  # idle again before the next
    connection.close()
    return figures.emit("idle", **bench.settings, jobs=count,
                        **_spread("total", totals), **_spread("submit", posts))


async def cut_subscriptions(stack: stacks.Stack, stop: float) -> int:
    """Close every pub/sub connection of the broker, twice a second; how many were closed in all."""
    settings = Settings(data_dir=stack.folder / "data")
    client = redis.Redis.from_url(settings_module.redis_url(settings.broker))
    cut = 0
    while time.perf_counter() < stop:
        cut += int(client.client_kill_filter(_type="pubsub"))
        await asyncio.sleep(0.5)
    client.close()
    return cut


async def waiters(bench: Bench, clients: int, seconds: float, rate: float, *,
                  cut: bool = False) -> dict[str, Any]:
    """`clients` long polls held on one job that does not end, while 8 connections submit `rate` jobs/s.

    Each submitted job is long-polled too: `late` is how long after its end the poll had answered.
    `cut`: all the while every subscription is cut, again and again.
    """
    stop = time.perf_counter() + seconds
    late_s: list[float] = []
    submit_s: list[float] = []
    polls = 0
    gaps_s: list[float] = []
    held = asyncio.Event()  # all long polls are out: only then jobs are submitted
    first = await load.Connection.open(bench.stack.port)
    endless = {**next(bench.inputs(1, 1)), "hardware": ["cuda"]}  # no such worker here: it stays queued
    status, body = await first.call(bench.post("/v1/jobs", endless))
    if status != 202:
        raise SystemExit(f"refused: {status} {body[:300]!r}")
    parked = json.loads(body)["id"]

    async def hold() -> None:
        nonlocal polls
        connection = await load.Connection.open(bench.stack.port)
        while (asked := time.perf_counter()) < stop:
            polls += 1
            if polls == clients:
                held.set()
            await connection.call(bench.get(f"/v1/jobs/{parked}?wait=10"))
            gaps_s.append(time.perf_counter() - asked)
        connection.close()

    async def submit(number: int) -> None:
        connection = await load.Connection.open(bench.stack.port)
        values = bench.inputs(int(seconds * rate), number)
        await held.wait()
        due = time.perf_counter() + number / rate
        while due < stop:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            start = time.perf_counter()
            _, body = await connection.call(bench.post("/v1/jobs", next(values)))
            submit_s.append(time.perf_counter() - start)
            job = json.loads(body)
            while job["state"] not in TERMINAL:
                _, body = await connection.call(bench.get(f"/v1/jobs/{job['id']}?wait=10"))
                job = json.loads(body)
            late_s.append(time.time() - datetime.fromisoformat(job["finished_at"]).timestamp())
            due += 8 / rate
        connection.close()

    meter = process_tree.Meter(bench.stack.pid)
    cutting = asyncio.ensure_future(cut_subscriptions(bench.stack, stop if cut else 0))
    await asyncio.gather(*(submit(number) for number in range(8)), *(hold() for _ in range(clients)))
    parts, foreign = meter.read()
    await first.call(bench.post(f"/v1/jobs/{parked}/cancel", {}))
    first.close()
    return figures.emit(
        "waiters", **bench.settings, clients=clients, jobs=len(submit_s), cut=await cutting,
        **_spread("submit", submit_s),
        **_spread("late", late_s), late_max_ms=round(max(late_s) * 1000, 2),
        least_s_between_polls=round(min(gaps_s), 3),
        api_cores=round(parts.get("api", 0.0) / seconds, 2), foreign_cores=foreign)


def _spread(name: str, values_s: Sequence[float]) -> dict[str, float]:
    return {f"{name}_p50_ms": round(load.percentile(values_s, 0.5) * 1000, 2),
            f"{name}_p99_ms": round(load.percentile(values_s, 0.99) * 1000, 2)}


async def measure(bench: Bench, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    singles = (bench.post("/v1/jobs", value) for value in bench.inputs(arguments.singles // 10 + 1, 3))
    await throughput(bench, "warm_up", singles, 32, arguments.limit_s)
    rows = []
    for run in range(arguments.runs):
        rows.append(await idle(bench, arguments.idle))
        singles = (bench.post("/v1/jobs", value) for value in bench.inputs(arguments.singles, 7 + run))
        rows.append(await throughput(bench, "singles", singles, 32, arguments.limit_s))
        rows.append(await throughput(
            bench, "batches_of_100", _batches(bench, arguments.batched, 100, 11 + run), 8, arguments.limit_s))
    if arguments.clients:
        rows.append(await waiters(bench, arguments.clients, arguments.seconds, 50.0))
        rows.append(await waiters(bench, arguments.clients, arguments.seconds, 50.0, cut=True))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--network", choices=tuple(networks.SIZES), default="mlp")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--singles", type=int, default=5000, help="single POSTs over 32 connections")
    parser.add_argument("--batched", type=int, default=20000, help="jobs in POSTs of 100 over 8 connections")
    parser.add_argument("--idle", type=int, default=100, help="jobs one at a time")
    parser.add_argument("--clients", type=int, default=0, help="long polls at once (500 for the full figure)")
    parser.add_argument("--seconds", type=float, default=30, help="how long the long polls are held")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--limit-s", type=float, default=180, help="give up on a figure after this time")
    parser.add_argument("--folder", type=Path, help="where data is written; its disk is measured")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=arguments.folder) as name:
        folder = Path(name)
        figures.emit("disk", fsync_ms=process_tree.fsync_ms(folder),
                     versions=figures.versions("headrace", "onnxruntime", "granian", "celery"))
        # The database's server may run as another user, who must be able to enter.
        folder.chmod(0o755)
        with stacks.running(folder, workers=arguments.workers, database=arguments.database) as stack:
            stack.run("models", "add", str(networks.make(folder / "networks", arguments.network)))
            bench = Bench(stack, arguments.network, {
                "network": arguments.network, "database": arguments.database, "workers": arguments.workers})
            rows = asyncio.run(measure(bench, arguments))
    same = ("network", "database", "workers")
    figures.table([row for row in rows if row["figure"] == "idle"], "One job at a time, idle", leave=same)
    figures.table([row for row in rows if "cpu_ms" in row], "Throughput",
                  leave=(*same, "jobs_s_fetched", "cpu_ms_fetched", "batch_max"))
    if arguments.clients:
        figures.table(rows[-2:], "Long polls")


if __name__ == "__main__":
    main()
