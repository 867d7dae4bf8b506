"""How fast expired rows are worked off, and what accepts cost meanwhile, on SQLite and PostgreSQL.

`--rows` finished jobs past their retention, with all that belongs to them, are written straight into the
tables; then jobs are accepted at a steady rate, first alone, then beside the retention duty.
`python -m benchmarks.retention --rows 1000000`
"""

import argparse
import multiprocessing
import sqlite3
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg

from benchmarks import figures, load
from benchmarks.volume import serving
from migrations import upgrade
from models import database as databases
from models import ids, job
from models.database import Database, sqlite_path
from models.settings import Settings
from workers.housekeeping.retention import Retention

TTL_S = 7 * 86_400.0
CHUNK = 50_000
ACCEPTED = 16  # jobs in one transaction, as group commit makes them under load
TABLES = ("jobs", "inputs", "results", "events", "deliveries", "delivery_attempts")
_COLUMNS = {
    "jobs": "id, tenant, network, hardware, state, waiting, suspect, begun, priority, work, attempt, "
            "crashes, crashes_alone, created_at, started_at, finished_at, run_ms, batch_size",
    "inputs": "job_id, body", "results": "job_id, attempt, body, removed, created_at",
    "events": "id, tenant, type, subject, created_at, fanned_at, body",
    "deliveries": "id, tenant, event_id, event_type, subject, url, origin, state, attempt, created_at, "
                  "finished_at",
    "delivery_attempts": "delivery_id, attempt, at, status, latency_ms",
}


def rows(first: int, last: int, base_ms: int) -> dict[str, list[tuple[Any, ...]]]:
    """Old jobs with all that belongs to them, by table; one in ten has a webhook."""
    out: dict[str, list[tuple[Any, ...]]] = {name: [] for name in TABLES}
    for number in range(first, last):
        at = base_ms + number // 100
        tail = f"{at:012x}7{number:019x}"
        name = f"job_{tail}"
        out["jobs"].append((name, "default", "mlp@1", "cpu", "succeeded", False, False, True, 5, 30.0, 1,
                            0, 0, at, at, at + 4, 0.3, 64))
        out["inputs"].append((name, b'{"inputs": [' + b"0.5, " * 30 + b"1]}"))
        out["results"].append((name, 1, b'{"outputs": [0.25, 0.75]}', False, at + 4))
        if number % 10 == 0:
            event, sent = f"evt_{tail}", f"dlv_{tail}"
            out["events"].append((event, "default", "job.succeeded", name, at, at, b'{"id": "evt"}' * 20))
            out["deliveries"].append((sent, "default", event, "job.succeeded", name, "http://r.test/", "http://r.test",
                                      "delivered", 1, at, at + 9))
            out["delivery_attempts"].append((sent, 1, at + 9, 200, 3.0))
    return out


def fill(url: str, count: int, age_s: float) -> None:
    """Finished jobs of that age."""
    base_ms = int((time.time() - age_s) * 1000)
    for first in range(0, count, CHUNK):
        made = rows(first, min(first + CHUNK, count), base_ms)
        if url.startswith("sqlite"):
            connection = sqlite3.connect(sqlite_path(url))
            for table, given in made.items():
                places = ", ".join("?" * len(_COLUMNS[table].split(",")))
                connection.executemany(f"INSERT INTO {table} ({_COLUMNS[table]}) VALUES ({places})", given)
            connection.commit()
            connection.close()
        else:
            with psycopg.connect(url) as server, server.cursor() as cursor:
                for table, given in made.items():
                    with cursor.copy(f"COPY {table} ({_COLUMNS[table]}) FROM STDIN".encode()) as copy:
                        for row in given:
                            copy.write_row(row)
    if not url.startswith("sqlite"):
        with psycopg.connect(url, autocommit=True) as server:
            server.execute("VACUUM ANALYZE")


class Accepts:
    """Transactions of ACCEPTED new jobs at a steady rate in a thread; their latencies in ms."""

    def __init__(self, database: Database, jobs_s: float) -> None:
        self._database = database
        self._interval_s = ACCEPTED / jobs_s
        self.latencies_ms: list[float] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        stop = threading.Event()
        thread = threading.Thread(target=self._work, args=(stop,))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _work(self, stop: threading.Event) -> None:
        due = time.monotonic()
        while not stop.wait(max(0.0, due - time.monotonic())):
            due = max(due + self._interval_s, time.monotonic())
            new = [job.NewJob(ids.new(ids.JOB), "default", "mlp@1", "probe", 30.0, b'{"inputs": []}')
                   for _ in range(ACCEPTED)]
            now = self._database.now()
            start = time.perf_counter()
            self._database.write(lambda tx, new=new, now=now: job.accept(tx, new, now))  # type: ignore[misc]
            self.latencies_ms.append((time.perf_counter() - start) * 1000)

    def figures(self) -> dict[str, float]:
        found = self.latencies_ms
        values = {"p50": statistics.median(found), "p99": load.percentile(found, 0.99), "max": max(found)}
        return {f"accept_{name}_ms": round(value, 2) for name, value in values.items()}


def clean(settings: Settings) -> tuple[dict[str, int], float, float]:
    """All that is due, in a process of its own as housekeeping is: what went, wall and CPU seconds."""
    database = databases.connect(settings.database)
    duty = Retention(settings, database)
    start, cpu = time.perf_counter(), time.process_time()
    removed = duty.turn()
    wall_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu
    database.close()
    return removed, wall_s, cpu_s


def measure(kind: str, url: str, folder: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Accepts alone; then beside the removal of results and events, and of whole jobs."""
    upgrade.upgrade(url)
    out = []
    settings = replace(Settings(), data_dir=folder, database_url=url, result_ttl_s=TTL_S)
    database = databases.connect(url)
    alone = Accepts(database, arguments.jobs_s)
    with alone.running():
        time.sleep(arguments.alone_s)
    out.append(figures.emit("retention", database=kind, beside="nothing", **alone.figures()))
    for age_ttls, what in ((1.5, "results, inputs, events"), (4.5, "whole jobs")):
        fill(url, arguments.rows, age_ttls * TTL_S)
        beside = Accepts(database, arguments.jobs_s)
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            pool.submit(time.time).result()  # it has started
            with beside.running():
                removed, wall_s, cpu_s = pool.submit(clean, settings).result()
        gone = removed["jobs"] or removed["results"]
        out.append(figures.emit(
            "retention", database=kind, beside=what, rows=gone, wall_s=round(wall_s, 1),
            jobs_s=round(gone / wall_s), cpu_us_a_job=round(1e6 * cpu_s / max(1, gone), 1),
            **beside.figures()))
    database.close()
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000, help="expired jobs; 1000000 for the real thing")
    parser.add_argument("--jobs-s", type=float, default=500, help="rate of the accepts beside it")
    parser.add_argument("--alone-s", type=float, default=10, help="how long accepts are measured alone")
    parser.add_argument("--databases", default="sqlite,postgres")
    parser.add_argument("--folder", type=Path, help="where the databases are written")
    arguments = parser.parse_args()
    out = []
    with tempfile.TemporaryDirectory(prefix="headrace-retention-", dir=arguments.folder) as name:
        folder = Path(name)
        folder.chmod(0o755)
        for kind in arguments.databases.split(","):
            if kind == "sqlite":
                out += measure(kind, f"sqlite:///{folder}/headrace.db", folder, arguments)
            else:
                (folder / "database").mkdir()
                (folder / "database").chmod(0o755)
                with serving(folder / "database") as url:
                    out += measure(kind, url, folder, arguments)
    figures.table(out, "Retention", leave=("figure",))


if __name__ == "__main__":
    main()
