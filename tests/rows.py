"""Rows that tests begin with: jobs that wait, workers that live."""

from models import feed, ids, incarnation, job
from models.contract import INTERACTIVE
from models.database import Database
from models.job import NewJob

TENANT = "default"
NETWORK = "n@1"


def jobs(database: Database, count: int = 1, **fields: object) -> list[str]:
    """Accept `count` jobs for class `cpu`, whose lane exists then; their ids, oldest first."""
    values = {"tenant": TENANT, "network": NETWORK, "hardware": "cpu", "work": 1.0, "input": b"[1]"} | fields
    new = [NewJob(id=ids.new(ids.JOB), **values) for _ in range(count)]  # type: ignore[arg-type]
    now = database.now()

    def accept(tx):
        for hardware in sorted({each.hardware for each in new}):
            feed.is_open(tx, hardware, INTERACTIVE)
        job.accept(tx, new, now)

    database.write(accept)
    return [each.id for each in new]


def worker(database: Database, hardware: str = "cpu", **holding: object) -> str:
    """A live worker that has beaten once."""
    name = ids.new(ids.INCARNATION)
    database.write(lambda tx: incarnation.begin(tx, name, kind=incarnation.WORKER, host="h", pid=1, hardware=hardware,
                                                lanes=INTERACTIVE))
    beat(database, name, **holding)
    return name


def beat(database: Database, name: str, **holding: object) -> bool:
    return database.write(lambda tx: incarnation.beat(tx, name, ready=True, holding=holding))
