"""Endpoints that fail: their deliveries wait uncounted, one at a time tries, and days of failure end it."""

import standardwebhooks

from models import delivery, delivery_log, endpoint, ids
from models.database import Statement
from tests import waiting
from tests.deliverers import TENANT, add_endpoint, ended, finish, log_of

LONG_S = 3_600.0


def shown(database, made):
    with database.read() as tx:
        return endpoint.get(tx, TENANT, made.id)


def paused(database, made):
    return waiting.until(lambda: shown(database, made).breaker.paused_until, what="the pause")


def attempts_of(database):
    return sum(item.attempt for item in log_of(database))


def test_after_failures_in_a_row_the_rest_waits_without_spending_attempts(database, deliverers, receiver):
    made = add_endpoint(database, receiver.on("/hook", 500))
    finish(database, 60)
    deliverers.start([0.0, LONG_S], webhook_breaker_failures=3, webhook_breaker_s=LONG_S)
    until = paused(database, made)
    waits = waiting.until(lambda: found if len(found := [
        item for item in log_of(database) if not item.attempts and item.due_at == until]) >= 50 else [],
        what="what waits for the breaker")
    assert all((item.state, item.attempt) == ("pending", 0) for item in waits)
    assert len(receiver.at("/hook")) < 10
    waiting.until(lambda: attempts_of(database) == len(receiver.at("/hook")), what="all attempts in the log")


def test_one_try_at_a_time_is_let_through_and_a_success_frees_the_rest(database, deliverers, receiver):
    made = add_endpoint(database, receiver.on("/hook", *[500] * 6, 200))
    finish(database, 40)
    for _ in range(2):  # two senders must not both try
        deliverers.start([0.0] * 9, webhook_breaker_failures=3, webhook_breaker_s=0.3)
    sent = ended(database, "delivered", 40)
    assert len(receiver.at("/hook")) == 46
    assert sum(item.attempt for item in sent) == 46
    found = waiting.until(lambda: (now := shown(database, made)).breaker.open_until is None and now)
    assert (found.breaker.failures, found.breaker.failing_since, found.breaker.trips) == (0, None, 0)


def test_a_receiver_that_asks_for_time_is_left_alone_by_all(database, deliverers, receiver):
    made = add_endpoint(database, receiver.on("/hook", (429, {"Retry-After": "600"}, b"")))
    deliverers.start([0.0, 0.0])
    finish(database)
    until = paused(database, made)
    finish(database, 5)
    waiting.until(lambda: len([item for item in log_of(database) if item.due_at == until]) >= 5)
    assert len(receiver.at("/hook")) == 1


def test_a_delivery_sent_again_by_hand_is_the_next_try(database, deliverers, receiver):
    made = add_endpoint(database, receiver.on("/hook", 500))
    deliverers.start([0.0, LONG_S], webhook_breaker_failures=2, webhook_breaker_s=LONG_S)
    finish(database, 12)
    paused(database, made)
    receiver.on("/hook", 200)
    one = log_of(database)[0]
    assert database.write(lambda tx: delivery_log.redeliver(tx, TENANT, one.id))
    waiting.until(lambda: [item for item in log_of(database, state="delivered") if item.id == one.id])
    # The success frees those that were never tried; those that failed keep to their own schedule.
    waiting.until(lambda: all(item.state == "delivered" or item.attempts for item in log_of(database)))


def test_an_endpoint_that_its_owner_enables_again_starts_afresh(database, deliverers, receiver):
    made = add_endpoint(database, receiver.on("/hook", 500))
    deliverers.start([0.0] * 9, webhook_breaker_failures=3, webhook_breaker_s=LONG_S)
    finish(database, 8)
    paused(database, made)
    receiver.on("/hook", 200)
    database.write(lambda tx: endpoint.revive(tx, made.id))
    ended(database, "delivered", 8)


def test_days_of_nothing_but_failure_disable_an_endpoint_with_the_reason(database, deliverers, receiver):
    made = add_endpoint(database, receiver.on("/hook", 503))
    finish(database, 6)
    database.write(lambda tx: tx.run(Statement(
        "UPDATE webhook_endpoints SET failures = 20, failing_since = {now} - 6 * 86400000")))
    deliverers.start([0.0, 0.0])
    found = waiting.until(lambda: (now := shown(database, made)).state == "disabled" and now)
    assert found.reason.startswith("nothing but failures since ")
    assert "21 in a row" in found.reason
    waiting.until(lambda: not log_of(database, state="pending"), what="the end of what was pending")


def test_a_test_is_sent_whatever_the_breaker_says(database, deliverers, receiver):
    made = add_endpoint(database, receiver.on("/hook", 500))
    deliverers.start([0.0, LONG_S], webhook_breaker_failures=2, webhook_breaker_s=LONG_S)
    finish(database, 4)
    paused(database, made)
    receiver.on("/hook", 200)
    event = delivery.Event(ids.new(ids.EVENT), TENANT, "job.succeeded", made.id, database.now())
    to = delivery.Addressee(made.url, receiver.url(""), made.id)
    sent = database.write(lambda tx: delivery.add_test(tx, event, b"{}", to))
    waiting.until(lambda: [item for item in log_of(database, state="delivered") if item.id == sent])
    waiting.until(lambda: shown(database, made).breaker.closed, what="a closed breaker")
    got = next(item for item in receiver.at("/hook") if item.headers["webhook-id"] == event.id)
    assert standardwebhooks.Webhook(made.secrets[0].secret).verify(got.body, got.headers) == {}
