"""The example receiver: what it takes, what it drops, what it refuses."""

import json
import time

import pytest

from examples.webhook_receiver import Receiver
from models import addresses, signing
from workers.housekeeping.sender import Sender

SECRET = signing.new_secret()


@pytest.fixture
def receiver():
    with Receiver(secrets=[SECRET]) as running:
        yield running


@pytest.fixture
def sender():
    with Sender(addresses.Policy(addresses.LOOPBACK)) as running:
        yield running


def post(sender, receiver, event_id, *, secret=SECRET, age_s=0):
    body = json.dumps({"id": event_id, "type": "job.succeeded"}).encode()
    headers = signing.headers([secret], event_id, int(time.time()) - age_s, body)
    return sender.send(receiver.url, headers, body).status


def test_verified_events_are_kept_once(receiver, sender):
    assert [post(sender, receiver, name) for name in ("evt_1", "evt_2", "evt_1")] == [204, 204, 204]
    assert receiver.wait_for(2, timeout_s=5)
    assert set(receiver.events) == {"evt_1", "evt_2"}
    assert receiver.repeats == 1


def test_a_strangers_or_an_old_message_is_refused(receiver, sender):
    assert post(sender, receiver, "evt_1", secret=signing.new_secret()) == 401
    assert post(sender, receiver, "evt_1", age_s=1000) == 401
    assert (receiver.refused, receiver.events) == (2, {})


def test_before_it_knows_a_secret_it_asks_to_try_again(sender):
    with Receiver() as receiver:
        assert post(sender, receiver, "evt_1") == 503
        receiver.secrets.append(SECRET)
        assert post(sender, receiver, "evt_1") == 204
