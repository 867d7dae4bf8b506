"""Events on their way to real receivers: fan-out, schedule, filters, and receivers that fail."""

import dataclasses
import json

import pytest
import standardwebhooks

from models import endpoint, job, tenant
from models.database import Statement
from tests import receivers, waiting
from tests.deliverers import TENANT, Deliverers, add_endpoint, ended, finish, log_of


@pytest.fixture
def deliver(settings, database):
    """Start delivery duties; they are stopped at the end of the test."""
    with Deliverers(settings, database) as running:
        yield running.start


def test_an_endpoint_hears_of_a_job_and_the_stock_package_verifies_it(database, deliver, receiver):
    made = add_endpoint(database, receiver.on("/hook", 200))
    deliver()
    job_id, = finish(database)
    sent, = ended(database, "delivered")
    got, = receiver.at("/hook")
    event = standardwebhooks.Webhook(made.secrets[0].secret).verify(got.body, got.headers)
    assert got.headers["webhook-id"] == event["id"] == sent.event_id
    assert event["object"] == "event"
    assert event["type"] == "job.succeeded"
    assert isinstance(event["created_at"], int)
    assert event["timestamp"].endswith("Z")
    assert event["data"]["id"] == job_id == sent.subject
    assert event["data"]["object"] == "job"
    assert event["data"]["state"] == "succeeded"
    assert event["data"]["output"] == {"label": "7"}
    assert (sent.attempt, sent.last_status, sent.due_at) == (1, 200, None)
    assert [item.status for item in sent.attempts] == [200]


def test_a_jobs_own_webhook_is_signed_with_the_tenants_secret(database, deliver, receiver):
    deliver()
    finish(database, webhook={"url": receiver.on("/own", 204)})
    ended(database, "delivered")
    got, = receiver.at("/own")
    secret = database.write(lambda tx: tenant.ensure(tx, TENANT))
    assert standardwebhooks.Webhook(secret).verify(got.body, got.headers)["type"] == "job.succeeded"


def test_only_the_events_asked_for_are_sent(database, deliver, receiver):
    add_endpoint(database, receiver.on("/failures", 200), "job.failed")
    add_endpoint(database, receiver.on("/all", 200))
    add_endpoint(database, receiver.on("/strangers", 200), owner="other")
    deliver()
    own = {"url": receiver.on("/own", 200), "events": ["job.canceled"]}
    good, = finish(database, webhook=own)
    bad, = finish(database, state=job.FAILED, webhook=own)
    ended(database, "delivered", 3)
    told = {path: [json.loads(item.body)["data"]["id"] for item in receiver.at(path)]
            for path in ("/failures", "/all", "/own", "/strangers")}
    assert told["/failures"] == [bad]
    assert sorted(told["/all"]) == sorted([good, bad])
    assert told["/own"] == told["/strangers"] == []


def test_an_endpoint_made_after_the_event_is_not_told(database, deliver, receiver):
    add_endpoint(database, receiver.on("/first", 200))
    finish(database)
    late = add_endpoint(database, receiver.on("/late", 200))
    database.write(lambda tx: tx.run(
        Statement("UPDATE webhook_endpoints SET created_at = created_at + 60000 WHERE id = :id"), id=late.id))
    deliver()
    ended(database, "delivered")
    assert receiver.at("/late") == []


def test_a_large_output_is_left_out(database, deliver, receiver):
    add_endpoint(database, receiver.on("/hook", 200))
    deliver()
    finish(database, output=json.dumps("x" * 50_000).encode())
    ended(database, "delivered")
    got, = receiver.at("/hook")
    assert len(got.body) < 20_000
    assert json.loads(got.body)["data"]["output"] is None


def test_a_job_retried_meanwhile_is_told_as_it_was(database, deliver, receiver):
    add_endpoint(database, receiver.on("/hook", 200))
    job_id, = finish(database, state=job.FAILED)
    database.write(lambda tx: job.retry(tx, TENANT, job_id))
    deliver()
    ended(database, "delivered")
    event = json.loads(receiver.at("/hook")[0].body)
    assert (event["type"], event["data"]["state"]) == ("job.failed", "failed")


def test_a_failed_attempt_is_repeated_with_the_same_id_and_body(database, deliver, receiver):
    made = add_endpoint(database, receiver.on("/hook", receivers.reset, 500, 302, 200))
    deliver(schedule=[0.0] * 5)
    finish(database)
    sent, = ended(database, "delivered")
    got = receiver.at("/hook")
    assert [item.status for item in sent.attempts] == [None, 500, 302, 200]
    assert [item.attempt for item in sent.attempts] == [1, 2, 3, 4]
    assert sent.attempts[3].error is None
    assert len({item.body for item in got}) == len({item.headers["webhook-id"] for item in got}) == 1
    for item in got:
        standardwebhooks.Webhook(made.secrets[0].secret).verify(item.body, item.headers)


def test_after_the_last_attempt_a_delivery_has_failed(database, deliver, receiver):
    add_endpoint(database, receiver.on("/hook", (500, {}, b"\x00broken\xff")))
    deliver(schedule=[0.0] * 3)
    finish(database)
    sent, = ended(database, "failed")
    assert (sent.attempt, sent.last_status, sent.last_error) == (3, 500, "status: 500")
    assert sent.finished_at is not None
    assert sent.attempts[0].response == b"\x00broken\xff"
    assert len(receiver.at("/hook")) == 3


def test_the_next_attempt_waits_for_the_schedule_give_or_take_a_fifth(database, deliver, receiver):
    add_endpoint(database, receiver.on("/hook", 500))
    deliver(schedule=[0.0, 1000.0, 0.0], webhook_breaker_failures=100)
    finish(database, 20)
    waits = waiting.until(lambda: (found := log_of(database)) and len(found) == 20
                          and all(item.attempts for item in found) and found)
    delays_s = [(item.due_at - item.attempts[0].at) / 1000 for item in waits]
    assert all(799 <= delay <= 1201 for delay in delays_s)
    assert len(set(delays_s)) > 1


def test_retry_after_postpones_the_next_attempt(database, deliver, receiver):
    add_endpoint(database, receiver.on("/hook", (429, {"Retry-After": "3000"}, b"")))
    deliver(schedule=[0.0, 5.0])
    finish(database)
    sent = waiting.until(lambda: (found := log_of(database)) and found[0].attempts and found[0])
    assert 2999 <= (sent.due_at - sent.attempts[0].at) / 1000 <= 3001


def test_410_disables_the_endpoint_and_drops_what_is_pending(database, deliver, receiver):
    made = add_endpoint(database, receiver.on("/hook", 500, 410))
    deliver(schedule=[0.0, 3000.0])
    finish(database)
    waiting.until(lambda: [item for item in log_of(database) if item.attempts], what="the first attempt")
    finish(database)
    ended(database, "failed")
    ended(database, "dropped")
    with database.read() as tx:
        gone = endpoint.get(tx, TENANT, made.id)
    assert (gone.state, gone.reason) == ("disabled", "the receiver answered 410 Gone")
    finish(database)
    assert len(log_of(database)) == 2


def test_during_rotation_both_secrets_sign(database, deliver, receiver):
    made = add_endpoint(database, receiver.on("/hook", 200))

    def rotate(tx):
        secrets = endpoint.rotated(tx, made, overlap_s=60)
        endpoint.update(tx, dataclasses.replace(made, secrets=secrets), origin="http://x")
        return secrets

    new, old = database.write(rotate)
    deliver()
    finish(database)
    ended(database, "delivered")
    got, = receiver.at("/hook")
    for item in (new, old):
        standardwebhooks.Webhook(item.secret).verify(got.body, got.headers)


def test_every_event_is_delivered_once_by_two_processes(database, deliver, receiver):
    add_endpoint(database, receiver.on("/hook", 200))
    deliver()
    deliver()
    names = [name for _ in range(5) for name in finish(database, 40)]
    ended(database, "delivered", 200)
    assert sorted(json.loads(item.body)["data"]["id"] for item in receiver.received) == sorted(names)
