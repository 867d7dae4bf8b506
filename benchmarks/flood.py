"""A flood: for a minute ten times what the sentence encoder does here, with HEADRACE_MAX_WAIT_S=5.

Prints how fast it goes with nobody else, under the same number of requests sent to /livez, and in the flood;
and whether what docs/performance.md promises holds. `make networks`, then `python -m benchmarks.flood`.
"""

import argparse
import asyncio
import collections
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import figures, load, process_tree
from examples import stack as stacks
from models import database as databases
from models.database import Database, Statement

NETWORK = Path(__file__).parent.parent / "examples" / "networks" / "minilm"
WORDS = ("mill", "wheel", "water", "channel", "stone", "grain", "river", "gate", "turn", "slow", "steady",
         "press", "flour", "stream", "weir", "sluice", "bucket", "axle", "gear", "hopper", "bridge", "willow")
WARM = 200  # jobs before the first figure: the network is loaded by the first, and measured by the others
CONNECTIONS = 128
OFFERED = 600.0  # jobs a second with nobody else: more than it does, so that the queue stays at its limit
FEED_S = 0.25  # between the batches that keep the workers busy in the reference
SETTLE_S = 10.0  # from the beginning of a load until its figures count: the queue fills, rates are learned
LAST_S = 30.0  # of a load, in which memory must not grow
GROWTH_MIB, KEPT, SLACK_S = 10.0, 0.85, 1.0
_ENDED = Statement("SELECT count(*) FROM jobs WHERE finished_at >= :since AND finished_at < :until "
                   "AND state = 'succeeded'")
_LATENCIES = Statement("SELECT finished_at - created_at FROM jobs WHERE created_at >= :since "
                       "AND created_at < :until AND finished_at IS NOT NULL")
_BAD = Statement("SELECT count(*) FROM jobs WHERE state IN ('failed', 'expired', 'canceled')")
_LIVE = Statement("SELECT count(*) FROM jobs WHERE state IN ('queued', 'running')")


def job(rng: random.Random) -> dict[str, Any]:
    return {"model": "minilm", "input": " ".join(rng.choice(WORDS) for _ in range(rng.randint(4, 24)))}


@dataclass
class Answers:
    """What an open loop of requests got."""

    statuses: collections.Counter[int] = field(default_factory=collections.Counter)
    latencies_s: list[float] = field(default_factory=list)
    late: int = 0  # sent later than planned, since every connection was in use


async def pour(port: int, make: Callable[[], bytes], rate: float, seconds: float) -> Answers:
    """`rate` requests a second, whatever becomes of those before, over CONNECTIONS connections."""
    out = Answers()
    free: asyncio.Queue[load.Connection] = asyncio.Queue()
    for _ in range(CONNECTIONS):
        free.put_nowait(await load.Connection.open(port))
    under_way: set[asyncio.Task[None]] = set()

    async def one(connection: load.Connection, raw: bytes) -> None:
        start = time.perf_counter()
        try:
            status, _ = await connection.call(raw)
        except OSError:
            status = 0
        out.statuses[status] += 1
        out.latencies_s.append(time.perf_counter() - start)
        free.put_nowait(connection)

    begun = time.perf_counter()
    sent = 0
    while (passed := time.perf_counter() - begun) < seconds:
        due = int(passed * rate) - sent
        for _ in range(due):
            if free.empty():
                out.late += 1
            connection = await free.get()
            task = asyncio.ensure_future(one(connection, make()))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
            sent += 1
        await asyncio.sleep(0.005)
    await asyncio.gather(*under_way)
    while not free.empty():
        free.get_nowait().close()
    return out


async def keep_busy(port: int, rng: random.Random, rate: float, seconds: float) -> None:
    """Offer `rate` jobs a second in a few large batches; admission holds the queue at its limit."""
    connection = await load.Connection.open(port)
    begun, sent = time.perf_counter(), 0
    while (passed := time.perf_counter() - begun) < seconds:
        count = min(1000, int(passed * rate) - sent)
        if count > 0:
            body = json.dumps({"jobs": [job(rng) for _ in range(count)]}).encode()
            status, answer = await connection.call(load.post(port, "/v1/jobs/batch", body))
            if status != 202:
                raise SystemExit(f"refused: {status} {answer[:300]!r}")
            sent += count
        await asyncio.sleep(FEED_S)
    connection.close()


def rss_mib(root: int) -> dict[int, float]:
    """Resident memory of every process of the tree."""
    out = {}
    for pid in process_tree.pids(root):
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except OSError:
            continue
        out[pid] = pages * 4096 / (1 << 20)
    return out


async def watch(root: int, seconds: float) -> list[tuple[float, dict[int, float]]]:
    begun, out = time.perf_counter(), []
    while (passed := time.perf_counter() - begun) < seconds:
        out.append((passed, rss_mib(root)))
        await asyncio.sleep(1)
    return out


def growth_mib(samples: list[tuple[float, dict[int, float]]], names: dict[int, str]) -> dict[str, float]:
    """By a straight line through the last half minute, how much a process of each kind grew in it."""
    end = samples[-1][0]
    late = [(at, sizes) for at, sizes in samples if at >= end - LAST_S]
    worst: dict[str, float] = {}
    for pid, name in names.items():
        points = [(at, sizes[pid]) for at, sizes in late if pid in sizes]
        if len(points) < 2:
            continue
        middle = sum(at for at, _ in points) / len(points)
        spread = sum((at - middle) ** 2 for at, _ in points)
        slope = sum((at - middle) * size for at, size in points) / spread
        worst[name] = round(max(worst.get(name, float("-inf")), slope * (points[-1][0] - points[0][0])), 2)
    return worst


@dataclass(frozen=True)
class Bench:
    stack: stacks.Stack
    database: Database
    seconds: float

    async def measure(self, figure: str, *loads: Any, **more: Any) -> tuple[dict[str, Any], list[Any]]:
        """Run loads together; what was done meanwhile, the first SETTLE_S left out."""
        meter = process_tree.Meter(self.stack.pid)
        begun = self.database.now()
        memory, *got = await asyncio.gather(watch(self.stack.pid, self.seconds), *loads)
        until = self.database.now()
        since = begun + int(min(SETTLE_S, self.seconds / 3) * 1000)
        parts, foreign = meter.read()
        with self.database.read() as tx:
            ended = tx.all(_ENDED, since=since, until=until)[0][0]
        # Jobs accepted to the very end count, so wait until they have ended.
        await self.drained()
        with self.database.read() as tx:
            latencies = sorted(row[0] / 1000 for row in tx.all(_LATENCIES, since=begun, until=until))
            bad = tx.all(_BAD)[0][0]
        row = {
            "jobs_s": round(ended / ((until - since) / 1000), 1), "admitted": len(latencies), "failed": bad,
            "p50_s": round(load.percentile(latencies, 0.5), 2) if latencies else None,
            "p99_s": round(load.percentile(latencies, 0.99), 2) if latencies else None,
            "max_s": round(latencies[-1], 2) if latencies else None,
            "cpu_s": {name: round(value, 1) for name, value in parts.items()}, "foreign_cores": foreign,
            "growth_mib": growth_mib(memory, process_tree.names(self.stack.pid))}
        if got and isinstance(got[-1], Answers):
            answers = got[-1]
            row |= {
                "requests_s": round(sum(answers.statuses.values()) / self.seconds), "late": answers.late,
                "statuses": {str(key): count for key, count in sorted(answers.statuses.items())},
                "answer_p50_ms": round(load.percentile(answers.latencies_s, 0.5) * 1000, 1),
                "answer_p99_ms": round(load.percentile(answers.latencies_s, 0.99) * 1000, 1)}
        return figures.emit(figure, **row, **more), got

    async def drained(self) -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with self.database.read() as tx:
                if not tx.all(_LIVE)[0][0]:
                    return
            await asyncio.sleep(0.1)
        raise SystemExit("jobs that were accepted have not ended in a minute")


async def run(bench: Bench, factor: float, wait_s: float) -> list[str]:
    """All figures; what did not hold."""
    rng, port = random.Random(3), bench.stack.port
    await keep_busy(port, rng, WARM / 2, 2.0)
    await bench.drained()
    alone = Bench(bench.stack, bench.database, bench.seconds / 2)
    first, _ = await alone.measure("alone", keep_busy(port, rng, OFFERED, alone.seconds))
    rate = factor * first["jobs_s"]
    livez = load.get(port, "/livez")
    base, _ = await bench.measure(
        "beside_livez", keep_busy(port, rng, 3 * first["jobs_s"], bench.seconds),
        pour(port, lambda: livez, rate, bench.seconds))
    jobs = _endless(port, rng)
    flood, got = await bench.measure("flood", pour(port, lambda: next(jobs), rate, bench.seconds))
    errors = sum(count for status, count in got[-1].statuses.items() if status >= 500 or status == 0)
    kept = flood["jobs_s"] / base["jobs_s"]
    worst = max(flood["growth_mib"].values())
    figures.emit("flood_kept", share=round(kept, 3), errors=errors, growth_mib=worst, p99_s=flood["p99_s"])
    return [text for text, broken in (
        (f"{errors} answers were errors of the service", errors > 0),
        (f"a process grew by {worst} MiB in {LAST_S:g} s", worst > GROWTH_MIB),
        (f"admitted jobs kept {kept:.0%} of the rate beside /livez", kept < KEPT),
        (f"p99 of admitted jobs was {flood['p99_s']} s", flood["p99_s"] > wait_s + SLACK_S)) if broken]


def _endless(port: int, rng: random.Random) -> Iterator[bytes]:
    while True:
        yield load.post(port, "/v1/jobs", json.dumps(job(rng)).encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--factor", type=float, default=10, help="times what the network does here")
    parser.add_argument("--max-wait-s", type=float, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-flood-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        environ = {"HEADRACE_MAX_WAIT_S": str(arguments.max_wait_s)}
        with stacks.running(folder, workers=arguments.workers, database=arguments.database,
                            environ=environ) as stack:
            stack.run("models", "add", str(NETWORK))
            data = folder / "data"
            url = (f"postgresql://headrace@/headrace?host={data}/postgres.sock"
                   if arguments.database == "postgres" else f"sqlite:///{data}/headrace.db")
            database = databases.connect(url, pool_size=2)
            broken = asyncio.run(run(Bench(stack, database, arguments.seconds), arguments.factor,
                                     arguments.max_wait_s))
            database.close()
    for text in broken:
        print("not kept:", text)
    raise SystemExit(bool(broken))


if __name__ == "__main__":
    main()
