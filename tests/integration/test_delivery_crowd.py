"""Many receivers that misbehave at once beside one that answers, and a sender that is killed in the middle."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import standardwebhooks

from tests import receivers, waiting
from tests.deliverers import add_endpoint, ended, finish, log_of

MISBEHAVE = {
    "hang": receivers.hang, "reset": receivers.reset, "drip": receivers.drip, "error": 500,
    "continue": receivers.endless_headers, "endless": receivers.endless, "close": receivers.raw(b""),
    "redirect": (302, {"Location": "http://127.0.0.1:1/"}, b""),
    "broken": receivers.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"),
    "header": receivers.raw(b"HTTP/1.1 200 OK\r\nX: " + b"a" * 200_000 + b"\r\n\r\n"),
}
BAD_OF_EACH = 3
HEALTHY_S = 10.0  # below the 15 s that a send to a receiver that hangs may take


def test_a_healthy_endpoint_is_not_held_up_by_thirty_that_misbehave(database, deliverers, receiver):
    """All behind one host: it is the endpoint that counts."""
    good = add_endpoint(database, receiver.on("/good", 200))
    deliverers.start([0.0, 0.0])
    finish(database)
    waiting.until(lambda: receiver.at("/good"), what="the first delivery")
    for kind, answer in MISBEHAVE.items():
        for number in range(BAD_OF_EACH):
            add_endpoint(database, receiver.on(f"/{kind}/{number}", answer))
    began = time.monotonic()
    names = finish(database, 20)
    waiting.until(lambda: len(receiver.at("/good")) == 21, what="the healthy endpoint's deliveries")
    ended(database, "delivered", 21, endpoint=good.id)
    assert time.monotonic() - began < HEALTHY_S
    assert {item.subject for item in log_of(database, endpoint=good.id)} >= set(names)
    for kind in ("hang", "drip", "continue"):
        for number in range(BAD_OF_EACH):
            assert len(receiver.at(f"/{kind}/{number}")) <= 1
    waiting.until(lambda: all(receiver.at(f"/{kind}/0") for kind in MISBEHAVE), what="a send to each kind")


START_S = 60.0  # a bound on a process's start, however busy the machine


def housekeeping(settings, folder):
    environ = {**os.environ, "HEADRACE_DATABASE_URL": settings.database, "HEADRACE_BROKER_URL": settings.broker,
               "HEADRACE_DATA_DIR": str(folder), "HEADRACE_LEASE_S": "2", "HEADRACE_SWEEP_S": "0.2",
               "HEADRACE_WEBHOOK_SCHEDULE": "0,0,0"}
    return subprocess.Popen([sys.executable, "-c", "from cli.main import main; main()", "housekeep"], env=environ,
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.mark.slow
def test_housekeeping_killed_in_the_middle_of_a_send_repeats_it_under_the_same_id(
        database, settings, receiver, tmp_path):
    made = add_endpoint(database, receiver.on("/hook", receivers.hang, 200))
    settings = dataclasses.replace(settings, lease_s=2.0)
    first = housekeeping(settings, tmp_path)
    try:
        names = finish(database)
        waiting.until(lambda: receiver.at("/hook"), START_S, what="the first send")
        first.send_signal(signal.SIGKILL)
        first.wait()
        first = housekeeping(settings, tmp_path)
        waiting.until(lambda: log_of(database, state="delivered"), START_S, what="the delivery")
        sent, = log_of(database)
    finally:
        first.terminate()
        first.wait(30)
    one, two = receiver.at("/hook")
    assert one.headers["webhook-id"] == two.headers["webhook-id"] == sent.event_id
    assert one.body == two.body
    assert json.loads(two.body)["data"]["id"] == names[0]
    standardwebhooks.Webhook(made.secrets[0].secret).verify(two.body, two.headers)
    assert [item.status for item in sent.attempts] == [200]  # what nobody could write down isn't counted
