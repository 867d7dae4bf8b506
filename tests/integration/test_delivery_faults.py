"""Receivers that hang, senders that die, brokers and networks that are away: who else is held up, and who isn't."""

import dataclasses
import json
import threading

from models import breaker, delivery, incarnation
from models.settings import Settings
from tests import receivers, waiting
from tests.deliverers import Deliverers, add_endpoint, ended, finish, log_of
from workers.housekeeping.rooms import PER_RECEIVER

RULES = breaker.Rules.of(Settings())


def claim(tx, sender):
    return delivery.claim(tx, sender=sender, limit=9, busy=(), admits=lambda _: True, lease_s=3600)


def test_receivers_that_hang_hold_up_nobody_else(database, deliverers, receiver):
    with receivers.Receiver() as stuck:
        add_endpoint(database, stuck.on("/stuck", receivers.hang))
        finish(database, 50)
        deliverers.start()
        waiting.until(lambda: stuck.at("/stuck"), what="the hanging send")
        add_endpoint(database, receiver.on("/quick", 200))
        names = finish(database, 50)
        sent = ended(database, "delivered", 50)
        assert {item.subject for item in sent} == set(names)
        assert len(stuck.at("/stuck")) == 1  # a receiver that never answered gets one at a time


def test_one_receiver_gets_only_a_few_sends_at_a_time(database, deliverers, receiver):
    lock, now, most = threading.Lock(), [0], [0]

    def count(handler, running):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        running.released.wait(0.02)
        with lock:
            now[0] -= 1
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    add_endpoint(database, receiver.on("/a", count))
    add_endpoint(database, receiver.on("/b", count))
    finish(database, 30)
    deliverers.start()
    ended(database, "delivered", 60)
    assert most[0] <= 2 * PER_RECEIVER  # two endpoints


def test_what_a_dead_sender_held_is_sent_by_another(database, deliverers, receiver):
    url = receiver.on("/hook", 200)
    add_endpoint(database, url)
    finish(database)
    first = deliverers.start(schedule=[3600.0, 0.0])  # fans out, and sends nothing yet
    waiting.until(lambda: log_of(database), what="the delivery")
    deliverers.stop()
    database.write(lambda tx: tx.run(delivery.Statement("UPDATE deliveries SET due_at = {now}")))
    held = database.write(lambda tx: claim(tx, first)).due
    assert len(held) == 1
    deliverers.start()
    assert database.write(lambda tx: claim(tx, "inc_x")) == delivery.Taken()
    database.write(lambda tx: incarnation.end(tx, first, incarnation.KILLED, max_attempts=3))
    sent, = ended(database, "delivered")
    assert sent.attempt == 1
    # The dead one's word counts for nothing any more.
    late = delivery.Attempt(held[0], 500, "status: 500", 1.0, b"", None)
    database.write(lambda tx: delivery.record(tx, [late], sender=first, rules=RULES))
    assert log_of(database)[0].state == "delivered"


def test_a_sender_that_stops_gives_back_what_hangs_uncounted(database, deliverers, receiver):
    add_endpoint(database, receiver.on("/hook", receivers.hang, 200))
    finish(database)
    deliverers.start()
    waiting.until(lambda: receiver.at("/hook"), what="the hanging send")
    deliverers.stop()
    left, = log_of(database)
    assert (left.state, left.attempt, left.attempts) == ("pending", 0, ())
    deliverers.start()
    sent, = ended(database, "delivered")
    assert sent.attempt == 1


def test_a_slow_receiver_is_waited_for(database, deliverers, receiver):
    add_endpoint(database, receiver.on("/slow", receivers.slowly(1.5)))
    deliverers.start()
    finish(database)
    sent, = ended(database, "delivered")
    assert sent.attempts[0].latency_ms >= 1500


def test_a_broker_that_is_away_does_not_stop_deliveries(database, settings, own_broker, receiver):
    add_endpoint(database, receiver.on("/hook", 200))
    with Deliverers(dataclasses.replace(settings, broker_url=own_broker.url), database) as deliverers:
        deliverers.start()
        own_broker.freeze()
        try:
            finish(database)
            ended(database, "delivered", 1)
        finally:
            own_broker.thaw()
        own_broker.kill()
        finish(database)
        ended(database, "delivered", 2)


def test_a_target_is_checked_again_at_every_attempt(database, deliverers, receiver):
    add_endpoint(database, receiver.on("/hook", 200))
    deliverers.start(auth="keys")  # no loopback in this mode
    finish(database, webhook={"url": receiver.on("/own", 200)})
    for item in ended(database, "failed", 2):
        assert item.last_error.startswith("address:")
    assert receiver.received == []


def test_a_delivery_whose_endpoint_went_meanwhile_is_dropped(database, deliverers, receiver):
    made = add_endpoint(database, receiver.on("/hook", 200))
    finish(database)
    deliverers.start(schedule=[3600.0])
    waiting.until(lambda: log_of(database), what="the delivery")
    # As if it had been removed between the look at the endpoints and the insert: its delivery stays pending.
    database.write(lambda tx: tx.run(
        delivery.Statement("DELETE FROM webhook_endpoints WHERE id = :id"), id=made.id))
    database.write(lambda tx: tx.run(delivery.Statement("UPDATE deliveries SET due_at = {now}")))
    ended(database, "dropped")
    assert receiver.received == []


def test_events_written_while_nobody_delivers_are_delivered_later(database, deliverers, receiver):
    add_endpoint(database, receiver.on("/hook", 200))
    names = finish(database, 300)
    deliverers.start()
    ended(database, "delivered", 300)
    assert sorted(json.loads(item.body)["data"]["id"] for item in receiver.received) == sorted(names)
