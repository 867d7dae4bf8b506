"""What retention removes, what it leaves alone, and what is said of it afterwards. On both databases."""

import dataclasses
import os
import secrets
from collections.abc import Callable

import pytest

from api import routes
from models import claim, delivery, event, ids, incarnation, job, rendering
from models.blobs import Blobs
from models.database import Database, Statement, Transaction
from models.delivery import Addressee, Event
from models.errors import ResultExpired
from models.settings import Settings
from tests import apis, rows
from workers.housekeeping.retention import Pace, Retention

DAY_MS = 86_400_000
TTL_S = 7 * 86_400.0
_BACKDATE = Statement("UPDATE jobs SET finished_at = :at WHERE id = :id AND finished_at IS NOT NULL")
_BACKDATE_EVENT = Statement("UPDATE events SET created_at = :at, fanned_at = :fanned WHERE id = :id")
_BACKDATE_DELIVERY = Statement("UPDATE deliveries SET state = :state, finished_at = :at WHERE event_id = :id")
_COUNTS = {name: Statement(f"SELECT count(*) FROM {name}")
           for name in ("jobs", "inputs", "results", "events", "deliveries", "idempotency_keys", "incarnations")}
_KEY = Statement("INSERT INTO idempotency_keys (tenant, path, key, fingerprint, status, body, headers, created_at) "
                 "VALUES ('t', 'p', :key, '', 202, :body, '{}', :at)")
_PENDING = Statement("SELECT e.body FROM events e JOIN deliveries d ON d.event_id = e.id WHERE d.state = 'pending'")
_KEYS = Statement("SELECT key FROM idempotency_keys")
_END_LONG_AGO = Statement("UPDATE incarnations SET ended_at = 1 WHERE id = :id")


@pytest.fixture
def retention(settings: Settings, database: Database) -> Retention:
    return Retention(dataclasses.replace(settings, result_ttl_s=TTL_S), database)


def old_id(database: Database, prefix: str, age_days: float) -> str:
    return ids.lowest(prefix, database.now() - int(age_days * DAY_MS))[:-12] + secrets.token_hex(6)


@pytest.fixture
def finished(database: Database) -> Callable[..., str]:
    """A job that ended so many days ago."""
    worker = rows.worker(database)

    def make(age_days: float, state: str = job.SUCCEEDED, ended_days: float | None = None, **blobs: str) -> str:
        name = old_id(database, ids.JOB, age_days)
        given = blobs.get("input_blob")

        def work(tx: Transaction) -> None:
            job.accept(tx, [job.NewJob(name, rows.TENANT, rows.NETWORK, "cpu", 1.0, None if given else b"[1]", given)],
                       database.now() - int(age_days * DAY_MS))
            if state == job.QUEUED:
                return
            claim.claim(tx, [name], incarnation=worker, hardware="cpu", begun=True)
            if state == job.RUNNING:
                return
            output = blobs.get("output_blob")
            claim.settle(tx, [claim.Outcome(name, 1, state, None if output else b"[2]", output)], incarnation=worker)
            ended_at = database.now() - int((age_days if ended_days is None else ended_days) * DAY_MS)
            tx.run(_BACKDATE, id=name, at=ended_at)

        database.write(work)
        return name

    return make


def counts(database: Database, *tables: str) -> list[int]:
    with database.read() as tx:
        return [tx.all(_COUNTS[table])[0][0] for table in tables]


def test_a_result_goes_with_its_input_and_the_job_says_so(database, retention, finished) -> None:
    old, fresh = finished(8), finished(6)
    assert retention.turn()["results"] == 1
    assert counts(database, "jobs", "inputs", "results") == [2, 1, 1]
    with database.read() as tx:
        removed, kept = (job.get(tx, rows.TENANT, name) for name in (old, fresh))
    assert rendering.job_object(removed)["error"]["code"] == "result_expired"
    assert (removed.state, removed.output) == (job.SUCCEEDED, None)
    assert (kept.result_removed, kept.output) == (False, b"[2]")


def test_a_job_goes_after_four_times_as_long(database, retention, finished) -> None:
    gone, there = finished(4 * 7 + 1), finished(4 * 7 - 1)
    assert (retention.turn()["jobs"], counts(database, "jobs")) == (1, [1])
    with database.read() as tx:
        assert set(job.states(tx, [gone, there])) == {there}


def test_live_jobs_and_those_that_ended_late_stay_however_old(database, retention, finished) -> None:
    kept = [finished(100, job.QUEUED), finished(100, job.RUNNING), finished(100, ended_days=1)]
    assert retention.turn()["results"] == 0
    assert counts(database, "jobs", "inputs") == [len(kept), len(kept)]


def test_what_must_stay_does_not_hide_what_is_behind_it(database, retention, finished) -> None:
    for _ in range(Pace.FIRST + 5):
        finished(100, job.QUEUED)
    finished(50)
    assert retention.turn()["results"] == 1


def test_a_failed_job_without_its_input_cannot_be_retried(database, retention, finished) -> None:
    name, fresh = finished(8, job.FAILED), finished(1, job.FAILED)
    retention.turn()
    with pytest.raises(ResultExpired, match="submit it anew"):
        database.write(lambda tx: job.retry(tx, rows.TENANT, name))
    assert database.write(lambda tx: job.retry(tx, rows.TENANT, fresh)) == job.FAILED


def told(database: Database, subject: str, age_days: float, state: str | None, sent_days: float = 0) -> str:
    """An event of that age, fanned out to one receiver unless `state` is None."""
    at = database.now() - int(age_days * DAY_MS)
    name = old_id(database, ids.EVENT, age_days)
    made = Event(name, rows.TENANT, "job.succeeded", subject, at)

    def work(tx: Transaction) -> None:
        tx.insert(event.events, [{"id": name, "tenant": rows.TENANT, "type": made.type, "subject": subject,
                                  "created_at": at}])
        if state is not None:
            delivery.fan_out(tx, [(made, b"{}", [Addressee("http://r.test/", "http://r.test:80")])], first_delay_s=0.0)
            tx.run(_BACKDATE_EVENT, id=name, at=at, fanned=at)
            if state != delivery.PENDING:
                tx.run(_BACKDATE_DELIVERY, id=name, state=state, at=database.now() - int(sent_days * DAY_MS))

    database.write(work)
    return name


def test_events_go_once_the_last_of_their_deliveries_is_old_enough(database, retention, finished) -> None:
    subject = finished(9)
    told(database, subject, 9, delivery.DELIVERED, sent_days=8)
    told(database, subject, 9, delivery.DELIVERED, sent_days=6)
    told(database, subject, 9, delivery.PENDING)
    assert retention.turn()["events"] == 1
    assert counts(database, "events", "deliveries") == [2, 2]


def test_a_webhook_still_in_retry_keeps_its_event_when_its_job_is_gone(database, retention, finished) -> None:
    told(database, finished(100), 100, delivery.PENDING)
    assert retention.turn()["jobs"] == 1
    with database.read() as tx:
        assert tx.all(_PENDING) == [(b"{}",)]


def test_an_event_that_nobody_fanned_out_keeps_its_job_and_result(database, retention, finished) -> None:
    told(database, finished(100), 100, None)
    removed = retention.turn()
    assert (removed["events"], removed["results"], removed["jobs"]) == (0, 0, 0)


def test_the_blobs_of_removed_rows_are_collected_and_those_of_others_stay(
        database, retention, finished, settings) -> None:
    store = Blobs(settings.blobs)
    names = [store.put(data) for data in (b"old in", b"old out", b"shared")]
    for name in names:
        os.utime(store.path(name), (1, 1))
    finished(8, input_blob=names[0], output_blob=names[1])
    finished(8, input_blob=names[2])
    finished(1, input_blob=names[2])
    assert retention.collect() == 0
    retention.turn()
    assert (retention.collect(), [store.exists(name) for name in names]) == (2, [False, False, True])


def test_old_keys_and_ended_lives_go(database, retention) -> None:
    now = database.now()
    for key, at in (("old", now - DAY_MS - 1000), ("new", now)):
        database.write(lambda tx, key=key, at=at: tx.run(_KEY, key=key, at=at, body=b""))
    gone, here = rows.worker(database), rows.worker(database)
    database.write(lambda tx: tx.run(_END_LONG_AGO, id=gone))
    retention.turn()
    with database.read() as tx:
        assert tx.all(_KEYS) == [("new",)]
        assert [each.id for each in incarnation.live(tx)] == [here]
    assert counts(database, "incarnations") == [1]


def test_a_long_transaction_makes_the_next_one_smaller_and_a_wait_makes_it_later() -> None:
    pace = Pace(hold_s=0.003, share=0.2, rush_s=0.001)
    assert pace.after(waited_s=0.0, held_s=0.001) == pytest.approx(0.004)
    grown = pace.limit
    assert grown > Pace.FIRST
    pace.after(waited_s=0.0, held_s=0.006)
    assert pace.limit == grown // 2
    assert pace.after(waited_s=0.01, held_s=0.001) == Pace.RUSH_PAUSE_S
    for _ in range(50):
        pace.after(waited_s=0.0, held_s=1.0)
    assert pace.limit == Pace.LEAST


def test_clients_are_told_what_was_removed_and_a_lost_blob_is_not_taken_for_that(
        database, retention, finished, settings) -> None:
    store = Blobs(settings.blobs)
    blob = store.put(b'{"value": 1}')
    kept, removed = finished(1, output_blob=blob), finished(8, output_blob=blob)
    failed = finished(8, job.FAILED)
    with apis.running(settings) as api:
        with database.read() as tx:
            read_before = job.get(tx, rows.TENANT, removed)
        retention.turn()
        store.delete(blob)
        assert api.call("GET", f"/v1/jobs/{removed}").json["error"]["code"] == "result_expired"
        assert b"result_expired" in routes.jobs._shown(api.service, read_before).body
        again = api.call("POST", f"/v1/jobs/{failed}/retry")
        assert (again.status, again.json["code"]) == (410, "result_expired")
        assert api.call("GET", f"/v1/jobs/{kept}").json["code"] == "blob_missing"
