"""Turns between tenants: what the pick costs, by backlog and tenants, and what its indexes cost a job.

    python -m benchmarks.turns [--waiting 1000000] [--tenants 500] [--rounds 30] [--databases sqlite,postgres]
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import psycopg

from migrations import upgrade
from models import claim, database, feed, ids, incarnation, job, quota, tenant, turn
from models.contract import INTERACTIVE
from models.database import Database, Transaction
from models.job import NewJob
from tests import databases

CLASS, NETWORK = "cpu", "n@1"
BATCH, GROUP = 64, 100
INDEXES = ("ix_jobs_turn", "ix_jobs_turn_deadline")


class Bench:
    def __init__(self, url: str) -> None:
        upgrade.upgrade(url)
        self.url = url
        self.database: Database = database.connect(url)
        self.database.write(lambda tx: feed.is_open(tx, CLASS, INTERACTIVE))
        self.worker = ids.new(ids.INCARNATION)
        values = {"kind": incarnation.WORKER, "host": "h", "pid": 1, "hardware": CLASS, "lanes": INTERACTIVE}
        self.database.write(lambda tx: incarnation.begin(tx, self.worker, **values))

    def accept(self, name: str, count: int, group: int = 5000) -> list[str]:
        now = self.database.now()
        out = []
        for start in range(0, count, group):
            new = [NewJob(ids.new(ids.JOB), name, NETWORK, CLASS, 1.0, b"[1]")
                   for _ in range(min(group, count - start))]
            self.database.write(lambda tx, new=new: job.accept(tx, new, now))
            out += [each.id for each in new]
        return out

    def timed(self, what: str, work: Callable[[Transaction], Any], times: int) -> None:
        taken = []
        for _ in range(times):
            begun = time.perf_counter()
            self.database.write(work, durable=False)
            taken.append(time.perf_counter() - begun)
        say(self, what, ms=round(statistics.median(taken) * 1000, 3), least_ms=round(min(taken) * 1000, 3))

    def jobs(self, count: int) -> None:
        """Accept, claim and settle."""
        wanted = self.accept("acme", count, GROUP)
        for start in range(0, count, BATCH):
            part = wanted[start:start + BATCH]
            held = self.database.write(lambda tx, part=part: claim.claim(
                tx, part, incarnation=self.worker, hardware=CLASS, begun=True), durable=False)
            self.database.write(lambda tx, held=held: claim.settle(tx, [
                claim.Outcome(each.id, each.attempt, "succeeded", output=b"1", run_ms=1.0, batch_size=BATCH)
                for each in held], incarnation=self.worker))

    def run(self, *statements: str) -> None:
        if self.database.dialect == "sqlite":
            self.database.write(lambda tx: [tx.cursor.execute(statement) for statement in statements])
            return
        with psycopg.connect(database.psycopg_url(self.url), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)


def say(bench: Bench, what: str, **figures: float) -> None:
    print(json.dumps({"database": bench.database.dialect, "what": what, **figures}), flush=True)


def index_cost(bench: Bench, rounds: int) -> None:
    """One job's whole way through the database, with and without the indexes, in turn."""
    found: dict[bool, list[float]] = {True: [], False: []}
    made = [("CREATE INDEX ix_jobs_turn ON jobs (hardware, priority, tenant, id) "
             "WHERE waiting AND deadline_at IS NULL"),
            ("CREATE INDEX ix_jobs_turn_deadline ON jobs (hardware, priority, tenant, deadline_at, id) "
             "WHERE waiting AND deadline_at IS NOT NULL")]
    for number in range(2 * rounds):
        having = number % 2 == 0
        if number:
            bench.run(*(made if having else [f"DROP INDEX {name}" for name in INDEXES]))
        bench.jobs(BATCH)
        begun = time.process_time() if bench.database.dialect == "sqlite" else time.perf_counter()
        bench.jobs(20 * BATCH)
        ended = time.process_time() if bench.database.dialect == "sqlite" else time.perf_counter()
        found[having].append((ended - begun) / (20 * BATCH) * 1e6)
    bench.run(*made)
    with_us, without_us = (statistics.median(found[having]) for having in (True, False))
    say(bench, "a job's way, microseconds", with_indexes=round(with_us, 2), without=round(without_us, 2),
        least_with=round(min(found[True]), 2), least_without=round(min(found[False]), 2),
        percent=round((with_us / without_us - 1) * 100, 2))


def picks(bench: Bench, waiting: int, tenants: int) -> None:
    names = [f"t{number}" for number in range(tenants)]
    bench.database.write(lambda tx: [tenant.ensure(tx, name) for name in ("acme", *names)])
    bench.accept("acme", waiting)
    bench.run("ANALYZE jobs")
    for many in (1, 2, tenants):
        for name in names[:many - 1]:
            bench.accept(name, 4)
        bench.timed(f"slots, {many} tenants", lambda tx: turn.slots(tx, CLASS), 20)
        known = bench.database.write(lambda tx: turn.slots(tx, CLASS))
        for limit in (256, 2048):
            def pick(tx: Transaction, limit: int = limit, known: Any = known) -> None:
                turn.pick(tx, CLASS, limit=limit, known=known)

            bench.timed(f"pick {limit}, {many} tenants", pick, 20)
    bench.timed("in flight, one of few jobs", lambda tx: quota.in_flight(tx, names[:1]), 20)
    bench.timed("in flight, the flood", lambda tx: quota.in_flight(tx, ["acme"]), 3)


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--waiting", type=int, default=1_000_000)
    parser.add_argument("--tenants", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--databases", default="sqlite,postgres")
    arguments = parser.parse_args()
    for kind in arguments.databases.split(","):
        with ExitStack() as stack:
            if kind == "sqlite":
                url = f"sqlite:///{stack.enter_context(tempfile.TemporaryDirectory())}/headrace.db"
            else:
                url = databases.create(stack.enter_context(databases.postgres()), "turns")
            bench = Bench(url)
            index_cost(bench, arguments.rounds)
            picks(bench, arguments.waiting, arguments.tenants)
            bench.database.close()


if __name__ == "__main__":
    main()
