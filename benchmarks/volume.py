"""Whether a table full of finished jobs slows the live ones (PostgreSQL), a snapshot held open meanwhile.

Two stacks, one with `--small` finished jobs and one with `--large`, are measured in turn, round by round, so
that whatever else the machine does meets both: quiet, and after `--churn-s` of live jobs under a snapshot.
`python -m benchmarks.volume --large 10000000 --churn-s 600`
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from benchmarks import figures, load, networks
from benchmarks.online import Bench
from cli import postgres
from examples import stack as stacks
from models import claim, feed, ids, incarnation, job
from models import database as databases
from models.database import Transaction
from workers.housekeeping import turns

PROBE = "probe"  # a hardware class without workers: nobody else touches the rows that are timed
BATCH = 64
CHUNK_ROWS = 500_000
START_S = 60.0
WARM_ROUNDS = 5

# Ids that sort before those made from now on, as a year of jobs would; times inside the retention.
_FILL = """
WITH n AS (SELECT generate_series(%(first)s::bigint, %(last)s::bigint) AS n),
timed AS (SELECT n, %(base_ms)s::bigint + n / 1000 AS ms FROM n),
ids AS (SELECT ms, 'job_' || lpad(to_hex(ms), 12, '0') || '7' || lpad(to_hex(n), 19, '0') AS id FROM timed),
made AS (INSERT INTO jobs (id, tenant, network, hardware, state, waiting, suspect, begun, priority, work,
    attempt, crashes, crashes_alone, created_at, started_at, finished_at, run_ms, batch_size)
    SELECT id, 'default', 'mlp@1', 'cpu', 'succeeded', false, false, true, 5, 30, 1, 0, 0, ms, ms + 2, ms + 4,
    0.3, 64 FROM ids),
fed AS (INSERT INTO inputs (job_id, body) SELECT id, convert_to('{"inputs": []}', 'UTF8') FROM ids)
INSERT INTO results (job_id, attempt, body, removed, created_at)
    SELECT id, 1, convert_to('{"outputs": []}', 'UTF8'), false, ms FROM ids
"""


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The URL of an embedded PostgreSQL with its data in `folder`."""
    server = postgres.prepare(folder)
    process = subprocess.Popen(server.command(), cwd="/", stdin=subprocess.DEVNULL)
    try:
        end = time.monotonic() + START_S
        while not server.answers():
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit("PostgreSQL did not start")
            time.sleep(0.1)
        yield server.url
    finally:
        process.send_signal(postgres.FAST_STOP)  # does not wait for connections
        process.wait()


def fill(url: str, want: int) -> None:
    """Finished jobs with inputs and results, written straight into the tables, then VACUUM ANALYZE."""
    with psycopg.connect(url, autocommit=True, options="-c synchronous_commit=off") as connection:
        base_ms = int(time.time() * 1000) - 86_400_000
        for first in range(0, want, CHUNK_ROWS):
            last = min(first + CHUNK_ROWS, want) - 1
            connection.execute(_FILL, {"first": first, "last": last, "base_ms": base_ms})
            figures.emit("filled", rows=last + 1)
        for table in ("jobs", "inputs", "results"):
            connection.execute(f"VACUUM ANALYZE {table}")


class Probes:
    """Times the statements of the hot path on rows of its own, and the calls of the API, in milliseconds."""

    def __init__(self, database: databases.Database, bench: Bench) -> None:
        self._database = database
        self._bench = bench
        self._turns = turns.Turns()  # as a feeder has it, with what it remembers of earlier rounds
        self._forget_at = 0.0

    def round(self) -> Iterator[tuple[str, float]]:
        """Each cost once: one batch of 64 for transitions, one call for HTTP."""
        yield from self._statements()
        yield from asyncio.run(self._calls())

    def _statements(self) -> Iterator[tuple[str, float]]:
        # A life of its own for each round: one that never beats is ended by the stack's sweep.
        life = ids.new(ids.INCARNATION)
        self._database.write(lambda tx: incarnation.begin(
            tx, life, kind=incarnation.API, host="benchmark", pid=0))
        new = [job.NewJob(ids.new(ids.JOB), "default", "mlp@1", PROBE, 30.0, b'{"inputs": []}')
               for _ in range(BATCH)]
        names, now = [each.id for each in new], self._database.now()
        yield "accept", self._timed(lambda tx: job.accept(tx, new, now))
        # The stack's own feeder may have marked them meanwhile; the pick is timed, not a race with it.
        self._database.write(lambda tx: feed.clear_marks(tx, PROBE))
        if time.monotonic() >= self._forget_at:  # now and then the feeder looks at everything
            self._turns.forget()
            self._forget_at = time.monotonic() + turns.LATE_S
        picked: list[feed.Waiting] = []
        yield "pick", self._timed(lambda tx: picked.extend(
            _expect(self._turns.pick(tx, PROBE, BATCH, _cost_s))))
        self._turns.taken(picked, names, _cost_s)
        yield "claim", self._timed(lambda tx: _expect(claim.claim(
            tx, names, incarnation=life, hardware=PROBE, begun=True)))
        yield "poll", self._timed(lambda tx: job.get(tx, "default", names[0]))
        outcomes = [claim.Outcome(name, 1, job.SUCCEEDED, b"{}") for name in names]
        yield "settle", self._timed(lambda tx: claim.settle(tx, outcomes, incarnation=life))
        yield "sweep", self._timed(job.expire)
        self._database.write(lambda tx: incarnation.end(tx, life, incarnation.EXITED, max_attempts=3))

    def _timed(self, work: Callable[[Transaction], object]) -> float:
        start = time.perf_counter()
        self._database.write(work, durable=False)
        return (time.perf_counter() - start) * 1000

    async def _calls(self) -> list[tuple[str, float]]:
        connection = await load.Connection.open(self._bench.stack.port)
        submit = self._bench.post("/v1/jobs", next(self._bench.inputs(1, time.monotonic_ns())))
        out = []
        start = time.perf_counter()
        _, body = await connection.call(submit)
        out.append(("http_submit", (time.perf_counter() - start) * 1000))
        paths = {"http_poll": f"/v1/jobs/{json.loads(body)['id']}", "http_list": "/v1/jobs?limit=20",
                 "http_queues": "/v1/queues"}
        for name, path in paths.items():
            start = time.perf_counter()
            status, answer = await connection.call(self._bench.get(path))
            out.append((name, (time.perf_counter() - start) * 1000))
            if status != 200:
                raise SystemExit(f"{path}: {status} {answer[:300]!r}")
        connection.close()
        return out


def _cost_s(_job: feed.Waiting) -> float:
    return 0.001


def _expect(rows: list[Any]) -> list[Any]:
    if len(rows) != BATCH:
        raise SystemExit(f"{len(rows)} rows came back, {BATCH} were there: this would not time what it says")
    return rows


@contextmanager
def snapshot(url: str) -> Iterator[None]:
    """A transaction that keeps every row version alive from here on, as a long report or a backup does."""
    with psycopg.connect(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT count(*) FROM leases")
        yield
        connection.rollback()


@contextmanager
def churn(bench: Bench, jobs_s: int) -> Iterator[None]:
    """Live jobs through the whole stack at a steady rate, in POSTs of 100."""
    stop = threading.Event()

    def work() -> None:
        asyncio.run(submit())

    async def submit() -> None:
        connection = await load.Connection.open(bench.stack.port)
        number = 0
        while not stop.is_set():
            jobs = list(bench.inputs(100, number))
            await connection.call(bench.post("/v1/jobs/batch", {"jobs": jobs}))
            number += 1
            await asyncio.sleep(100 / jobs_s)
        connection.close()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@dataclass(frozen=True, slots=True)
class Side:
    """One stack, with that many finished jobs in its database."""

    finished: int
    url: str
    bench: Bench
    probes: Probes


@contextmanager
def side(folder: Path, finished: int) -> Iterator[Side]:
    (folder / "database").mkdir(parents=True)
    for each in (folder, folder / "database"):
        each.chmod(0o755)  # the database's server may run as another user, who must be able to enter
    with serving(folder / "database") as url, \
            stacks.running(folder, database=None, environ={"HEADRACE_DATABASE_URL": url}) as stack:
        stack.run("models", "add", str(networks.make(folder / "networks", "mlp")))
        bench, database = Bench(stack, "mlp", {}), databases.connect(url)
        fill(url, finished)
        yield Side(finished, url, bench, Probes(database, bench))
        database.close()


def compare(sides: Sequence[Side], state: str, rounds: int) -> list[dict[str, Any]]:
    """The median of each cost on each side, the rounds of both sides in turn; then large as a multiple."""
    times: list[dict[str, list[float]]] = [{} for _ in sides]
    for number in range(rounds + WARM_ROUNDS):
        for each, found in zip(sides, times, strict=True):
            for name, value in each.probes.round():
                if number >= WARM_ROUNDS:  # plans and pools are warm
                    found.setdefault(name, []).append(value)
    medians = [{name: round(statistics.median(values), 3) for name, values in found.items()}
               for found in times]
    for each, costs in zip(sides, medians, strict=True):
        figures.emit("volume", state=state, finished=each.finished, **costs)
    first, last = medians[0], medians[-1]
    figures.emit("multiple", state=state, **{name: round(last[name] / first[name], 2) for name in first})
    return [{"state": state, "finished": each.finished, **costs}
            for each, costs in zip(sides, medians, strict=True)]


def run(small: Side, large: Side, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    rows = compare((small, large), "quiet", arguments.rounds)
    with snapshot(large.url), churn(small.bench, arguments.jobs_s), churn(large.bench, arguments.jobs_s):
        time.sleep(arguments.churn_s)
        rows += compare((small, large), "live jobs; large: snapshot held", arguments.rounds)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", type=int, default=10_000)
    parser.add_argument("--large", type=int, default=10_000_000, help="finished jobs; about 1 GB a million")
    parser.add_argument("--churn-s", type=float, default=600, help="live jobs under a held snapshot")
    parser.add_argument("--jobs-s", type=int, default=200, help="rate of the live jobs")
    parser.add_argument("--rounds", type=int, default=100, help="how often each cost is measured")
    parser.add_argument("--folder", type=Path, help="where the database is written")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-volume-", dir=arguments.folder) as name:
        folder = Path(name)
        folder.chmod(0o755)
        with side(folder / "small", arguments.small) as small, \
                side(folder / "large", arguments.large) as large:
            rows = run(small, large, arguments)
    figures.table(rows, "Costs in ms (transitions: 64 jobs at once)")


if __name__ == "__main__":
    main()
