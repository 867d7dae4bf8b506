"""Claim, run, settle and give back: over both databases, with an engine that misbehaves on demand."""

import sqlite3
import threading

import numpy as np
import pytest
import structlog.testing

from models import claim, feed, incarnation, job, sqlite
from models import database as databases
from models.errors import EngineUnavailable
from tests import rows, waiting
from tests.rigs import NETWORK, Rig
from workers import catalogue


@pytest.fixture
def rig(database, tmp_path, broker):
    def build(**options):
        return Rig(database, tmp_path, broker.url, **options)
    return build


def bad(*values):
    return lambda feeds: bool(np.isin(feeds["x"], values).any())


def echo(value):
    return {"outputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [value, value]}]}


def test_jobs_of_one_ticket_run_as_one_batch(rig):
    with rig() as worker:
        worker.load()
        names = worker.accept([1.0, 2.0, 3.0])
        worker.offer(names)
        assert worker.ended(names) == ["succeeded"] * 3
        assert worker.outputs(names) == [echo(1.0), echo(2.0), echo(3.0)]
        assert worker.column("batch_size", names) == [3, 3, 3]
        assert worker.engines[-1].runs == [3]


def test_an_engine_is_loaded_when_its_first_ticket_comes(rig):
    with rig() as worker:
        names = worker.accept([1.0])
        worker.offer(names)
        assert worker.ended(names) == ["succeeded"]
        assert worker.catalogue.names() == [NETWORK]


def test_a_failed_item_does_not_fail_its_batch(rig):
    with rig(fails=bad(13.0)) as worker:
        worker.load()
        names = worker.accept([1.0, 2.0, 13.0, 4.0, 5.0])
        worker.offer(names)
        assert worker.ended(names) == ["succeeded", "succeeded", "failed", "succeeded", "succeeded"]
        assert worker.column("error_code", names)[2] == "inference_failed"
        assert worker.outputs(names)[3] == echo(4.0)


def test_an_input_that_breaks_the_decoder_fails_by_itself(rig):
    with rig() as worker:
        worker.load()
        names = [*worker.accept([1.0]), *rows.jobs(worker.database, network=NETWORK, input=b'{"inputs": 7}')]
        worker.offer(names)
        assert worker.ended(names) == ["succeeded", "failed"]
        assert worker.column("error_code", names)[1] == "input_invalid"


def test_out_of_memory_halves_the_batch_and_fails_only_what_does_not_fit_alone(rig):
    def exhausts(feeds):
        return len(feeds["x"]) > 4 or bool((feeds["x"] == 99.0).any())
    with rig(exhausts=exhausts) as worker:
        worker.load()
        names = worker.accept([float(n) for n in range(15)] + [99.0])
        worker.offer(names)
        assert worker.ended(names) == ["succeeded"] * 15 + ["failed"]
        assert worker.column("error_code", names)[15] == "out_of_memory"
        assert worker.catalogue.profile(NETWORK).max_work <= 8


def test_batches_fill_while_the_device_is_busy_and_a_full_one_is_claimed_ahead(rig):
    stalls = threading.Event()
    stalls.set()
    with rig(stalls=stalls, batching={"max_items": 4}) as worker:
        worker.load()
        stalls.clear()
        running = worker.accept([1.0])
        worker.offer(running)
        waiting.until(lambda: worker.engines[-1].runs == [1])
        names = worker.accept([2.0, 3.0, 4.0, 5.0, 6.0])
        worker.offer(names[:3])
        assert worker.column("begun", running) == [True]
        assert worker.column("state", names) == ["queued"] * 5  # a batch that isn't full waits
        worker.offer(names[3:])
        waiting.until(lambda: worker.column("state", names) == ["running"] * 4 + ["queued"])
        assert worker.column("begun", names[:4]) == [False] * 4
        stalls.set()
        assert worker.ended(running + names) == ["succeeded"] * 6
        assert worker.engines[-1].runs == [1, 4, 1]


def test_the_next_batch_is_marked_as_begun_when_it_runs(rig):
    stalls = threading.Event()
    stalls.set()
    with rig(stalls=stalls, batching={"max_items": 2}) as worker:
        worker.load()
        stalls.clear()
        first, second = worker.accept([1.0, 2.0]), worker.accept([3.0, 4.0])
        worker.offer(first)
        waiting.until(lambda: worker.engines[-1].runs == [2])
        worker.offer(second)
        waiting.until(lambda: worker.column("state", second) == ["running"] * 2)
        held = worker.engines[-1]._stalls
        worker.engines[-1]._stalls = threading.Event()  # the second run stalls by itself
        held.set()
        waiting.until(lambda: worker.column("begun", second) == [True, True])
        assert worker.column("state", first) == ["succeeded"] * 2


def test_a_suspect_runs_with_nothing_else_claimed(rig):
    stalls = threading.Event()
    stalls.set()
    with rig(stalls=stalls, batching={"max_items": 2}) as worker:
        worker.load()
        (suspect,) = worker.accept([1.0])
        worker.database.write(lambda tx: tx.cursor.execute("UPDATE jobs SET suspect = TRUE"))
        worker.offer([suspect])  # an ordinary ticket never takes it
        others = worker.accept([2.0, 3.0])
        worker.offer(others)
        assert worker.ended(others) == ["succeeded"] * 2
        assert worker.column("state", [suspect]) == ["queued"]
        stalls.clear()
        more = worker.accept([4.0, 5.0])
        worker.offer([suspect], alone=True)
        waiting.until(lambda: worker.column("state", [suspect]) == ["running"])
        worker.offer(more)
        waiting.until(lambda: len(worker.buffer) == 2)
        assert worker.column("state", more) == ["queued"] * 2
        stalls.set()
        assert worker.ended([suspect, *more]) == ["succeeded"] * 3


def test_suspects_of_one_ticket_run_as_one_batch(rig):
    with rig() as worker:
        worker.load()
        names = worker.accept([1.0, 2.0, 3.0])
        lost = rows.worker(worker.database)
        worker.database.write(lambda tx: claim.claim(tx, names, incarnation=lost, hardware="cpu", begun=True))
        worker.database.write(lambda tx: incarnation.end(tx, lost, incarnation.LOST, max_attempts=3))
        assert worker.column("suspect", names) == [1] * 3
        worker.offer(names, alone=True)
        assert worker.ended(names) == ["succeeded"] * 3
        assert worker.engines[-1].runs == [3]


def test_what_is_not_running_is_given_back_on_a_graceful_stop(rig):
    stalls = threading.Event()
    stalls.set()
    worker = rig(stalls=stalls, batching={"max_items": 2})
    with worker:
        worker.load()
        stalls.clear()
        running, claimed, buffered = worker.accept([1.0, 2.0]), worker.accept([3.0, 4.0]), worker.accept([5.0])
        worker.offer(running)
        waiting.until(lambda: worker.engines[-1].runs == [2])
        worker.offer(claimed)
        waiting.until(lambda: worker.column("state", claimed) == ["running"] * 2)
        worker.offer(buffered)
        stopping = threading.Thread(target=worker.executor.stop, kwargs={"held": True})
        stopping.start()
        waiting.until(lambda: worker.executor._stopping)
        stalls.set()
        stopping.join()
        assert worker.column("state", running + claimed + buffered) == ["succeeded"] * 2 + ["queued"] * 3
        assert worker.column("ticketed_until", claimed + buffered) == [None] * 3
        assert worker.column("crashes", claimed) == [0, 0]


def test_a_job_canceled_while_it_ran_stays_canceled(rig):
    stalls = threading.Event()
    stalls.set()
    with rig(stalls=stalls) as worker:
        worker.load()
        stalls.clear()
        names = worker.accept([1.0, 2.0])
        worker.offer(names)
        waiting.until(lambda: worker.column("state", names) == ["running"] * 2)
        worker.database.write(lambda tx: job.cancel(tx, rows.TENANT, names[0]))
        stalls.set()
        assert worker.ended(names) == ["canceled", "succeeded"]
        assert worker.outputs(names)[0] is None


def test_a_worker_whose_incarnation_was_ended_writes_nothing(rig):
    stalls = threading.Event()
    stalls.set()
    with rig(stalls=stalls) as worker:
        worker.load()
        stalls.clear()
        names = worker.accept([1.0])
        worker.offer(names)
        waiting.until(lambda: worker.engines[-1].runs == [1])
        worker.database.write(lambda tx: incarnation.end(tx, worker.incarnation, incarnation.LOST, max_attempts=3))
        stalls.set()
        waiting.until(lambda: len(worker.executor.inflight) == 0)
        assert worker.column("state", names) == ["running"]
        assert worker.column("suspect", names) == [True]
        assert worker.outputs(names) == [None]


def test_large_outputs_go_to_the_blob_store(rig):
    with rig(max_inline_bytes=10) as worker:
        worker.load()
        names = worker.accept([1.0])
        worker.offer(names)
        worker.ended(names)
        with worker.database.read() as tx:
            tx.cursor.execute("SELECT body, blob FROM results")
            ((inline, blob),) = tx.cursor.fetchall()
        assert inline is None
        assert blob.startswith("sha256-")
        assert worker.outputs(names) == [echo(1.0)]


def test_inputs_come_from_the_blob_store_and_a_lost_one_fails_its_job_alone(rig):
    with rig() as worker:
        worker.load()
        blob = worker.blobs.put(b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[7.0,7.0]}]}')
        names = [rows.jobs(worker.database, network=NETWORK, input=None, input_blob=name)[0]
                 for name in (blob, "sha256-" + "0" * 64)]
        worker.offer(names)
        assert worker.ended(names) == ["succeeded", "failed"]
        assert worker.outputs(names)[0] == echo(7.0)


def test_a_job_without_a_place_to_run_fails_once_every_worker_has_refused(rig, monkeypatch):
    monkeypatch.setattr(catalogue, "RETRY_S", (0.01, 0.01, 0.05))

    def refuse():
        raise EngineUnavailable("no memory for the weights")
    with rig(opens=refuse) as worker:
        other = rows.worker(worker.database)
        names = worker.accept([1.0])
        worker.offer(names)
        waiting.until(lambda: worker.column("ticketed_until", names) == [None])
        waiting.until(lambda: worker.offer(names) and worker.catalogue._refusals[NETWORK].count >= 4)
        assert worker.column("state", names) == ["queued"]  # the other one may still take it
        rows.beat(worker.database, other, refused=[NETWORK])
        waiting.until(lambda: worker.offer(names) and worker.column("state", names) == ["failed"])
        assert worker.column("error_code", names) == ["engine_unavailable"]
        assert worker.column("attempt", names)[0] >= 1


def test_jobs_that_one_class_refuses_go_to_another_that_their_client_allows(rig, monkeypatch):
    monkeypatch.setattr(catalogue, "RETRY_S", (0.01, 0.01, 0.05))

    def refuse():
        raise EngineUnavailable("no memory for the weights")
    with rig(opens=refuse, hardware=["cpu", "cuda", "cpu-large"]) as worker:
        rows.worker(worker.database, "cuda", refused=[NETWORK])
        rows.worker(worker.database, "cpu-large")
        rows.worker(worker.database, "elsewhere")  # no class of this network
        free, bound = worker.accept([1.0]), worker.accept([2.0], allowed=("cpu", "cuda"))
        waiting.until(lambda: worker.offer(free + bound) and worker.column("state", bound) == ["failed"])
        assert worker.column("error_code", bound) == ["engine_unavailable"]
        assert "'cpu', 'cuda', 'cpu-large'" in worker.column("error_message", bound)[0]
        assert worker.column("state", free) == ["queued"]
        assert worker.column("hardware", free) == ["cpu-large"]
        assert worker.column("ticketed_until", free) == [None]
        with worker.database.read() as tx:
            assert not feed.is_open(tx, "cpu-large", "interactive")  # the feeder sees to it


def test_without_a_lease_nothing_is_claimed(rig):
    with rig() as worker:
        worker.load()
        renewed_s, worker.lease._renewed_s = worker.lease._renewed_s, -float("inf")
        names = worker.accept([1.0])
        worker.offer(names)
        waiting.until(lambda: worker.buffer._barred)
        assert worker.column("state", names) == ["queued"]
        worker.lease._renewed_s = renewed_s
        worker.buffer.resume()
        assert worker.ended(names) == ["succeeded"]


def test_settling_waits_for_a_database_that_is_away_and_counts_nothing(migrated_sqlite, tmp_path, broker, monkeypatch):
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.05)
    path = tmp_path / "headrace.db"
    path.write_bytes(migrated_sqlite.read_bytes())
    database = databases.connect(f"sqlite:///{path}")
    stalls = threading.Event()
    stalls.set()
    with Rig(database, tmp_path, broker.url, stalls=stalls) as worker:
        worker.load()
        stalls.clear()
        names = worker.accept([1.0])
        worker.offer(names)
        waiting.until(lambda: worker.engines[-1].runs == [1])
        other = sqlite3.connect(path, isolation_level=None)
        waiting.until(lambda: _locked(other))
        with structlog.testing.capture_logs() as logs:
            stalls.set()
            waiting.until(lambda: sum(each["event"] == "settle_delayed" for each in logs) >= 2)
        other.execute("ROLLBACK")
        assert worker.ended(names) == ["succeeded"]
        assert worker.column("attempt", names) == [1]
        other.close()
    database.close()


def _locked(connection):
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:
        return False
    return True


def test_speed_is_learned_and_outlives_the_worker(rig):
    worker = rig()
    with worker:
        worker.load()
        names = worker.accept([1.0, 2.0])
        worker.offer(names)
        worker.ended(names)
    with worker.database.read() as tx:
        tx.cursor.execute("SELECT network, hardware, overhead_s, batch_work, batch_items FROM rates")
        ((network, hardware, overhead_s, batch_work, batch_items),) = tx.cursor.fetchall()
    assert (network, hardware, batch_items) == (NETWORK, "cpu", 1024)
    assert overhead_s >= 0
    assert batch_work > 0
