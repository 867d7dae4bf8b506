"""Junk, strangers' messages, duplicates and disorder in the queue."""

import base64
import json
import random
import uuid
from typing import Any

import celery
import kombu
import pytest

from models import contract
from tests import loads, rows, waiting
from tests.stacks import QUEUE, Stack

slow = pytest.mark.slow
BOTH = pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=slow)])


def _junk() -> list[bytes]:
    """Messages that are broken at every level: not JSON, no envelope, no body, no ticket."""
    good = json.loads(contract.encode_ticket(
        contract.Ticket(loads.REFERENCE, contract.INTERACTIVE, (contract.Entry("job_x", 1.0, 5, None, rows.TENANT),)),
        QUEUE))

    def changed(**changes: Any) -> bytes:
        return json.dumps(good | changes).encode()

    def with_body(body: Any) -> bytes:
        return changed(body=base64.b64encode(json.dumps(body).encode()).decode())

    def with_args(*args: Any) -> bytes:
        return with_body([list(args), {}, {}])

    def without(part: str, name: str) -> bytes:
        return json.dumps(good | {part: {key: each for key, each in good[part].items() if key != name}}).encode()

    return [
        b"", b"junk", b"\xff\xfe\x00", b"[]", b"{}", b"null", b"7", b'"text"', b"{" * 5000,
        changed(body="no base64!"), changed(body=None), changed(body=""), changed(headers=None), changed(headers={}),
        changed(properties=None), changed(properties={}), changed(**{"content-type": "application/x-python-serialize"}),
        changed(**{"content-encoding": "rot13"}), changed(**{"content-type": None}),
        without("headers", "task"), without("headers", "id"), without("properties", "delivery_tag"),
        without("properties", "delivery_info"), without("properties", "body_encoding"),
        with_body(None), with_body({}), with_body([]), with_body([[], {}, None]), with_args(), with_args(1),
        with_args("deep@1", "interactive", "no rows", False), with_args("deep@1", "interactive", [[1]], False),
        with_args("deep@1", "interactive", [["job_x", "heavy", 5, None, "t"]], False),
        with_args("deep@1", "interactive", [], False), with_args("nobody@9", "no lane", [["j", 1, 5, None, "t"]], 0),
        with_args("deep@1", "interactive", [["\x00", 1e308, 5, -1, "t"]], True),
        with_args(None, None, [[None, 1, 5, None, None]], None),
    ]


def _strangers(url: str) -> None:
    """What another Celery application, and another kombu producer, would put there by mistake."""
    app = celery.Celery(broker=url, set_as_current=False)
    app.conf.task_protocol = 2
    for name, arguments in (("theirs.add", (1, 2)), (contract.INFER_TASK, ("mine",)), (contract.INFER_TASK, ())):
        app.send_task(name, arguments, queue=QUEUE, countdown=0)
        app.send_task(name, arguments, queue=QUEUE, eta=None, expires=1)
    app.conf.task_protocol = 1
    app.send_task("theirs.old", (1,), queue=QUEUE)
    app.close()
    with kombu.Connection(url) as connection:
        producer = connection.Producer()
        for serializer in ("json", "pickle", "yaml"):
            producer.publish({"not": "a task"}, exchange="", routing_key=QUEUE, serializer=serializer)
        producer.publish(b"\x00raw", exchange="", routing_key=QUEUE, content_type="application/octet-stream",
                         content_encoding="binary")


def _emptied(stack: Stack) -> Any:
    """A client of a broker that keeps nothing of earlier faults on record as unacknowledged."""
    client = stack.broker.client()
    client.flushall()
    return client


@BOTH
def test_junk_and_strangers_messages_in_the_queue_end_nobody(stack: Stack, say: Any) -> None:
    (worker,) = stack.live()
    client = _emptied(stack)
    junk = _junk()
    with stack.load(rate_s=100) as load:
        for number, message in enumerate(junk):
            load.reached(5 * number)
            client.lpush(QUEUE, message)
        _strangers(stack.broker.url)
        waiting.until(lambda: not client.llen(QUEUE), what="an empty queue")
        load.reached(len(load.accepted) + 50)
    figures = stack.check(load)
    waiting.until(lambda: not client.hlen("unacked"), what="acknowledgements")
    client.close()
    say(junk=len(junk), **figures)
    assert [each.id for each in stack.live()] == [worker.id]


@BOTH
def test_tickets_repeated_and_out_of_order_run_nothing_twice(stack: Stack, say: Any) -> None:
    client = _emptied(stack)
    chance = random.Random(3)
    sent = 0
    with stack.load(rate_s=150) as load:
        for number in range(1, 11):
            load.reached(50 * number)
            names = list(load.accepted)
            for _ in range(5):
                some = chance.sample(names, 40)
                entries = [contract.Entry(each, loads.IN, 5, None, rows.TENANT) for each in some + some[:10]]
                ticket = contract.Ticket(loads.REFERENCE, contract.INTERACTIVE, entries, id=str(uuid.uuid4()))
                message = contract.encode_ticket(ticket, QUEUE)
                for copy in range(2):  # the very same message twice, at either end
                    (client.lpush, client.rpush)[copy](QUEUE, message)
                    sent += 1
    figures = stack.check(load)
    waiting.until(lambda: not client.llen(QUEUE) and not client.hlen("unacked"), what="an empty broker")
    client.close()
    say(tickets=sent, **figures)
    assert figures["attempts_max"] == 1
