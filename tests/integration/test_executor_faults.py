"""Cancel, deadlines and a device that fails, while a batch is under way: over both databases."""

import threading
import time

import numpy as np
import pytest

from models import incarnation, job
from tests import rows, waiting
from tests.rigs import Rig
from workers import isolation


@pytest.fixture
def rig(database, tmp_path, broker):
    def build(**options):
        return Rig(database, tmp_path, broker.url, **options)
    return build


def bad(*values):
    return lambda feeds: bool(np.isin(feeds["x"], values).any())


def _ahead(worker, stalls):
    """One job that runs and holds the device, and two that were claimed behind it."""
    stalls.clear()
    running = worker.accept([1.0])
    worker.offer(running)
    waiting.until(lambda: worker.engines[-1].runs == [1])
    names = worker.accept([2.0, 3.0])
    worker.offer(names)
    waiting.until(lambda: worker.column("state", names) == ["running"] * 2)
    begun = time.monotonic()
    waiting.until(lambda: time.monotonic() - begun > 0.2)  # long enough for the executor to look again
    return running, names


@pytest.fixture
def stalls():
    made = threading.Event()
    made.set()
    return made


def test_a_job_canceled_in_a_batch_that_waits_is_dropped_from_it(rig, stalls):
    with rig(stalls=stalls, batching={"max_items": 2}) as worker:
        worker.load()
        running, names = _ahead(worker, stalls)
        assert worker.database.write(lambda tx: job.cancel(tx, rows.TENANT, names[0])) == "running"
        stalls.set()
        assert worker.ended(running + names) == ["succeeded", "canceled", "succeeded"]
        assert worker.engines[-1].runs == [1, 1]  # it took no place on the device
        assert worker.outputs(names)[0] is None


def test_a_job_whose_deadline_passes_in_a_batch_that_waits_is_dropped_from_it(rig, stalls):
    with rig(stalls=stalls, batching={"max_items": 2}) as worker:
        worker.load()
        running, names = _ahead(worker, stalls)
        now = worker.database.now()
        worker.database.write(lambda tx: tx.cursor.execute(
            f"UPDATE jobs SET deadline_at = {now - 1} WHERE id = '{names[0]}'"))
        stalls.set()
        waiting.until(lambda: worker.column("state", names) == ["queued", "succeeded"])
        assert worker.engines[-1].runs == [1, 1]
        worker.offer(names[:1])  # a ticket that comes again claims nothing
        assert worker.database.write(job.expire) == names[:1]
        assert worker.ended(running + names) == ["succeeded", "expired", "succeeded"]


def test_a_batch_of_a_worker_that_lost_its_lease_while_it_waited_does_not_run(rig, stalls):
    with rig(stalls=stalls, batching={"max_items": 2}) as worker:
        worker.load()
        running, names = _ahead(worker, stalls)
        worker.database.write(lambda tx: incarnation.end(tx, worker.incarnation, incarnation.LOST, max_attempts=3))
        stalls.set()
        waiting.until(lambda: not len(worker.executor.inflight))
        assert worker.engines[-1].runs == [1]
        assert worker.column("state", running + names) == ["running"] * 3
        assert worker.column("crashes", running + names) == [0] * 3


def test_a_device_that_fails_ends_the_worker_and_fails_nobody(rig):
    with rig(breaks=bad(13.0)) as worker:
        worker.load()
        names = worker.accept([1.0, 13.0, 2.0])
        worker.offer(names)
        waiting.until(lambda: worker.broken)
        assert worker.engines[-1].runs == [3]  # no half of it is tried: every run would fail now
        assert worker.column("state", names) == ["running"] * 3
        parked = worker.database.write(
            lambda tx: incarnation.end(tx, worker.incarnation, incarnation.KILLED, max_attempts=3))
        assert parked == []
        assert [bool(each) for each in worker.column("suspect", names)] == [True] * 3


def test_a_suspect_that_makes_the_device_fail_again_alone_ends_as_provider_failed(rig):
    with rig(breaks=bad(13.0)) as worker:
        worker.load()
        names = worker.accept([13.0])
        worker.database.write(lambda tx: tx.cursor.execute("UPDATE jobs SET suspect = TRUE"))
        worker.offer(names, alone=True)
        assert worker.ended(names) == ["failed"]
        assert worker.column("error_code", names) == [isolation.PROVIDER_FAILED]
        waiting.until(lambda: worker.broken)
