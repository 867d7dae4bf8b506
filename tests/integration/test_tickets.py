"""The publisher: merging, the queue's length, and a broker that is stopped or frozen."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from api import tickets
from api.tickets import Offer
from models import contract, feed
from models.contract import Entry
from models.database import Statement
from models.settings import Settings
from tests import apis, brokers, waiting


def offer(number: int, *, network: str = "t@1", hardware: str = "cpu", share: float = 1 / 64) -> Offer:
    return Offer(hardware, network, Entry(f"job_{number:032x}", 2.0, 5, None, "default"), share)


def test_tickets_hold_one_network_and_at_most_64_entries_in_order() -> None:
    offers = [offer(n, network=f"t@{n % 2}") for n in range(200)]
    cut = tickets.tickets(offers)
    assert [len(entries) for _, _, entries, _ in cut] == [64, 36, 64, 36]
    for _, network, entries, share in cut:
        numbers = [int(entry.id[4:], 16) for entry in entries]
        assert numbers == sorted(numbers)
        assert {f"t@{n % 2}" for n in numbers} == {network}
        assert share == pytest.approx(len(entries) / 64)


def test_a_ticket_holds_at_most_one_batch_of_work() -> None:
    cut = tickets.tickets([offer(n, share=0.4) for n in range(5)] + [offer(5, share=3.0)])
    assert [len(entries) for _, _, entries, _ in cut] == [2, 2, 1, 1]
    assert len(tickets.tickets([offer(n, share=1 / 49) for n in range(49)])) == 1


@pytest.fixture
def fragile(settings: Settings, own_broker: brokers.Broker) -> Iterator[apis.Api]:
    """An API whose broker may be killed and frozen, with a worker that is said to live."""
    with apis.running(replace(settings, broker_url=own_broker.url)) as running:
        apis.add_worker(running.service.database)
        running.service.directory.refresh()
        yield running


def counts(api: apis.Api) -> tuple[int, int]:
    with api.service.database.read() as tx:
        ((every, marked),) = tx.all(Statement("SELECT count(*), count(ticketed_until) FROM jobs"))
        return every, marked


def lane_is_open(api: apis.Api) -> bool:
    return api.service.database.write(lambda tx: feed.is_open(tx, "cpu", contract.INTERACTIVE))


def test_a_stopped_broker_costs_a_submit_nothing_and_leaves_the_jobs_to_the_feeder(
        fragile: apis.Api, own_broker: brokers.Broker) -> None:
    assert fragile.submit().status == 202
    own_broker.kill()
    for _ in range(5):
        assert fragile.submit().status == 202
    # The first was published while the broker lived; no other may be believed to have a ticket.
    waiting.until(lambda: counts(fragile)[0] == 6 and counts(fragile)[1] <= 1, what="the marks cleared")
    assert not lane_is_open(fragile)
    assert fragile.service.publisher.room("cpu", 1) == 0.0


def test_a_frozen_broker_is_noticed_and_found_again(fragile: apis.Api, own_broker: brokers.Broker) -> None:
    assert fragile.submit().status == 202
    own_broker.freeze()
    try:
        for _ in range(3):
            assert fragile.submit().status == 202
        waiting.until(lambda: fragile.service.publisher.room("cpu", 1) == 0.0, what="the breaker")
        waiting.until(lambda: counts(fragile)[1] <= 1, what="the marks cleared")
    finally:
        own_broker.thaw()
    waiting.until(lambda: fragile.service.publisher.room("cpu", 64) > 0.0, what="the broker found again")


def test_a_broker_that_comes_back_gets_tickets_again(fragile: apis.Api, own_broker: brokers.Broker) -> None:
    own_broker.kill()
    fragile.submit()
    waiting.until(lambda: fragile.service.publisher.room("cpu", 1) == 0.0, what="the breaker")
    own_broker.start()
    waiting.until(lambda: fragile.service.publisher.room("cpu", 1) > 0.0, what="the broker found again")
    fragile.service.database.write(lambda tx: tx.run(Statement("DELETE FROM jobs")))
    fragile.service.database.write(lambda tx: feed.reopen(tx, "cpu", contract.INTERACTIVE))
    job_id = fragile.submit().json["id"]
    with own_broker.client() as client:
        message = waiting.until(lambda: client.lindex("infer.cpu.interactive", 0), what="the ticket")
    assert [entry.id for entry in apis.ticket_of(message).entries] == [job_id]


def test_the_room_in_a_queue_comes_back_as_workers_take_from_it(
        fragile: apis.Api, own_broker: brokers.Broker) -> None:
    publisher = fragile.service.publisher
    publisher.offer([offer(n) for n in range(64)])
    assert publisher.room("cpu", 2) == pytest.approx(1.0)
    assert publisher.room("cpu", 1) == 0.0
    with own_broker.client() as client:
        waiting.until(lambda: client.rpop("infer.cpu.interactive"), what="the ticket")
    waiting.until(lambda: publisher.room("cpu", 1) == pytest.approx(1.0), what="the queue seen empty")


def test_tickets_of_others_count_as_a_batch_each(fragile: apis.Api, own_broker: brokers.Broker) -> None:
    with own_broker.client() as client:
        client.lpush("infer.cpu.interactive", b"other", b"another")
    publisher = fragile.service.publisher
    publisher.offer([offer(1)])
    waiting.until(lambda: publisher.room("cpu", 4) == pytest.approx(2 - 1 / 64), what="the length")


def test_what_is_pending_is_published_at_the_end(settings: Settings, broker: brokers.Broker) -> None:
    with apis.running(settings) as api:
        api.service.publisher.offer([offer(n) for n in range(10)])
    with broker.client() as client:
        sent = client.lrange("infer.cpu.interactive", 0, -1)
    assert sum(len(apis.ticket_of(message).entries) for message in sent) == 10
