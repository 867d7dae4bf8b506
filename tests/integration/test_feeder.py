"""The feeder against a real broker, on both databases."""

import base64
import contextlib
import json
import threading
from collections.abc import Iterator

import pytest
import redis

from models import claim, contract, feed, incarnation, job
from models import database as databases_of
from models.contract import INTERACTIVE, Ticket
from models.database import Database, Statement
from models.errors import Unavailable
from models.rate import Rate, save
from models.settings import Settings
from models.turn import Slot
from tests import brokers, rows, waiting
from workers.housekeeping import process
from workers.housekeeping.feeder import Feeder

QUEUE = contract.queue_name("cpu", INTERACTIVE)
_AGE = Statement("UPDATE jobs SET ticketed_until = ticketed_until - 10000 WHERE ticketed_until IS NOT NULL")


@pytest.fixture
def client(broker: brokers.Broker) -> Iterator[redis.Redis]:
    with broker.client() as client:
        yield client


@pytest.fixture
def feeder(database: Database, client: redis.Redis) -> Feeder:
    return Feeder(database, client)


def _tickets(client: redis.Redis) -> list[Ticket]:
    """What lies in the queue, the next to be taken first."""
    return [_read(message) for message in reversed(client.lrange(QUEUE, 0, -1))]


def _read(message: bytes) -> Ticket:
    return contract.decode_ticket("x", json.loads(base64.b64decode(json.loads(message)["body"]))[0])


def _ids(tickets: list[Ticket]) -> list[str]:
    return [entry.id for ticket in tickets for entry in ticket.entries]


def _left_behind(database: Database, count: int, **fields: object) -> list[str]:
    """Jobs without a ticket in a closed lane, as the API leaves them."""
    wanted = rows.jobs(database, count, **fields)
    database.write(lambda tx: feed.close(tx, "cpu", INTERACTIVE))
    return wanted


def _is_open(database: Database) -> bool:
    with database.read() as tx:
        return feed.states(tx) == [("cpu", INTERACTIVE, True)]


def test_without_a_worker_one_ticket_waits_however_deep_the_backlog(database, client, feeder) -> None:
    wanted = _left_behind(database, 300)
    assert feeder.round() == 64
    assert _ids(_tickets(client)) == wanted[:64]
    feeder.wake("cpu")
    assert feeder.round() == 0
    assert not _is_open(database)


def test_each_worker_gets_one_learned_batch_in_order(database, client, feeder) -> None:
    database.write(lambda tx: save(tx, "cpu", [Rate(rows.NETWORK, 0.001, 0.0001, 160.0, 160)]))
    rows.worker(database)
    rows.worker(database)
    wanted = _left_behind(database, 1000)
    fed = feeder.round()
    assert 320 <= fed < 320 + 64
    tickets = _tickets(client)
    assert _ids(tickets) == wanted[:fed]
    assert all(len(ticket.entries) <= contract.MAX_ENTRIES and ticket.network == rows.NETWORK for ticket in tickets)
    assert feeder.round() == 0


def test_a_ticket_holds_at_most_one_learned_batch_of_work(database, client, feeder) -> None:
    database.write(lambda tx: save(tx, "cpu", [Rate(rows.NETWORK, 0.001, 0.01, 10.0, 64)]))
    rows.worker(database)
    _left_behind(database, 20, work=3.0)
    feeder.round()
    assert [len(ticket.entries) for ticket in _tickets(client)] == [3]


def test_networks_do_not_share_a_ticket_and_keep_their_turn(database, client, feeder) -> None:
    for _ in range(4):
        rows.worker(database)
    first = [_left_behind(database, 1, network=name)[0] for name in ("a@1", "b@1") * 3]
    urgent = _left_behind(database, 1, network="b@1", priority=0)
    feeder.round()
    tickets = _tickets(client)
    assert [ticket.network for ticket in tickets] == ["b@1", "a@1"]
    assert _ids(tickets) == [*urgent, *first[1::2], *first[::2]]


def test_when_nothing_is_left_behind_the_lane_opens_again(database, client, feeder) -> None:
    _left_behind(database, 10)
    assert feeder.round() == 10
    assert _is_open(database)


def test_a_backlog_is_fed_to_its_end_as_tickets_are_taken(database, client, feeder) -> None:
    me = rows.worker(database)
    wanted = [*_left_behind(database, 500), *_left_behind(database, 100, deadline_s=600.0)]
    done: list[str] = []

    def turn() -> bool:
        feeder.wake("cpu")
        feeder.round()
        while message := client.rpop(QUEUE):
            ids = _ids([_read(message)])
            claimed = database.write(lambda tx, ids=ids: claim.claim(tx, ids, incarnation=me, hardware="cpu",
                                                                     begun=True))
            assert sorted(each.id for each in claimed) == sorted(ids)
            done.extend(ids)
        return len(done) == len(wanted)

    waiting.until(turn)
    assert sorted(done) == sorted(wanted)
    assert set(done[:100]) == set(wanted[500:])  # those with a deadline first
    assert done[100:] == wanted[:500]


def test_a_feeder_that_stands_by_keeps_nothing_of_what_it_hears(feeder) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=feeder.run, args=(stop, lambda: False))
    thread.start()
    try:
        for _ in range(100):
            feeder.wake("cpu")
            feeder.returned("cpu", "job_1")
        waiting.until(lambda: not feeder._news and not feeder._returned, what="what was heard is forgotten")
    finally:
        stop.set()
        thread.join()


def test_what_a_feeder_hears_while_the_database_is_away_is_kept(tmp_path, client) -> None:
    feeder = Feeder(databases_of.connect(f"sqlite:///{tmp_path}/nowhere/x.db"), client)
    feeder.wake("cpu")
    feeder.returned("cpu", "job_1")
    with pytest.raises(Unavailable):
        feeder.round()
    assert (list(feeder._news), list(feeder._returned)) == (["cpu"], [("cpu", "job_1")])


def test_a_suspect_gets_a_ticket_of_its_own(database, client, feeder) -> None:
    me = rows.worker(database)
    wanted = rows.jobs(database, 3)
    database.write(lambda tx: claim.claim(tx, wanted[:2], incarnation=me, hardware="cpu", begun=True))
    database.write(lambda tx: incarnation.end(tx, me, incarnation.KILLED, max_attempts=3))
    for _ in range(4):
        rows.worker(database)
    feeder.round()
    assert sorted((ticket.alone, len(ticket.entries)) for ticket in _tickets(client)) == [
        (False, 1), (True, 1), (True, 1)]


def test_a_job_that_came_back_below_the_cursor_is_fed(database, client, feeder) -> None:
    old = rows.jobs(database, 1, ticketed=True)
    _left_behind(database, 200)
    feeder.round()
    feeder._lanes["cpu"].turns.cursors[Slot(5, rows.TENANT)] = "job_" + "f" * 32
    client.delete(QUEUE)
    database.write(lambda tx: (feed.clear_marks(tx, "cpu")))
    feeder.wake("cpu")
    feeder.round()
    assert old[0] in _ids(_tickets(client))


def test_rows_without_a_ticket_in_an_open_lane_are_found_at_the_tick(database, client, feeder) -> None:
    wanted = rows.jobs(database, 3)
    assert _is_open(database)
    assert feeder.round() == 3
    assert _ids(_tickets(client)) == wanted


def test_tickets_lost_by_the_broker_are_made_again(database, client, feeder) -> None:
    wanted = _left_behind(database, 10)
    me = rows.worker(database, buffered=0)
    feeder.round()
    client.flushall()
    database.write(lambda tx: tx.run(_AGE))

    def turn() -> bool:
        rows.beat(database, me, buffered=0)
        feeder._refreshed_at = float("-inf")
        feeder.round()
        return client.llen(QUEUE) == 1

    waiting.until(turn)
    assert _ids(_tickets(client)) == wanted


def test_tickets_that_a_worker_buffers_are_not_taken_for_lost(database, client, feeder) -> None:
    _left_behind(database, 10)
    me = rows.worker(database, buffered=10)
    feeder.round()
    client.flushall()
    database.write(lambda tx: tx.run(_AGE))
    for _ in range(4):
        rows.beat(database, me, buffered=10)
        feeder._refreshed_at = float("-inf")
        assert feeder.round() == 0


def test_a_worker_is_not_idle_before_it_has_said_so_again(database, client, feeder) -> None:
    _left_behind(database, 10)
    rows.worker(database, buffered=0)
    feeder.round()
    client.flushall()
    database.write(lambda tx: tx.run(_AGE))
    for _ in range(4):
        feeder._refreshed_at = float("-inf")
        feeder._lanes["cpu"].search_due_at = 0.0
        assert feeder.round() == 0


def test_tickets_that_the_broker_refuses_leave_nothing_marked(database, own_broker) -> None:
    wanted = _left_behind(database, 10)
    with own_broker.client() as client:
        feeder = Feeder(database, client)
        client.config_set("maxmemory", 1)
        with pytest.raises(redis.RedisError):
            feeder.round()
        with database.read() as tx:
            assert feed.marked(tx, "cpu") == {}
        assert not _is_open(database)
        client.config_set("maxmemory", 0)
        assert feeder.round() == len(wanted)
        assert _is_open(database)


def test_a_broker_that_is_away_or_frozen_gets_it_all_when_back(database, own_broker) -> None:
    client = process.connect_broker(Settings(broker_url=own_broker.url), 0.2)
    feeder = Feeder(database, client)
    for fault, repair in ((own_broker.freeze, own_broker.thaw), (own_broker.kill, own_broker.start)):
        wanted = _left_behind(database, 10)
        fault()
        with pytest.raises((redis.RedisError, OSError)):
            feeder.round()
        with database.read() as tx:
            assert feed.marked(tx, "cpu") == {}
        repair()
        waiting.until(lambda: _round(feeder))
        assert _ids(_tickets(client)) == wanted
        client.flushall()
        database.write(lambda tx, wanted=wanted: [job.cancel(tx, rows.TENANT, each) for each in wanted])
    client.close()


def _round(feeder: Feeder) -> int:
    with contextlib.suppress(redis.RedisError, OSError):
        return feeder.round()
    return 0


def _lost(database: Database, wanted: list[str], reason: str = incarnation.LOST) -> None:
    """A worker claims these, begins, and its life is ended."""
    me = rows.worker(database)
    claimed = database.write(lambda tx: claim.claim(tx, wanted, incarnation=me, hardware="cpu", begun=True, alone=True))
    assert len(claimed) == len(wanted)
    database.write(lambda tx: incarnation.end(tx, me, reason, max_attempts=3))


def test_what_a_lost_life_ran_comes_back_in_eighths_down_to_one(database, client, feeder) -> None:
    for _ in range(20):
        rows.worker(database)
    wanted = rows.jobs(database, 64)
    sizes = []
    for _ in range(3):
        _lost(database, wanted)
        feeder.returned("cpu", "")
        feeder.round()
        tickets = _tickets(client)
        assert all(ticket.alone for ticket in tickets)
        first = tickets[0].entries
        sizes.append(len(first))
        client.delete(QUEUE)
        wanted = [entry.id for entry in first]
    assert sizes == [8, 1, 1]


def test_what_ran_when_a_process_was_seen_to_die_comes_back_one_by_one(database, client, feeder) -> None:
    for _ in range(20):
        rows.worker(database)
    wanted = rows.jobs(database, 16)
    _lost(database, wanted)
    _lost(database, wanted, incarnation.KILLED)
    _lost(database, wanted)
    feeder.returned("cpu", "")
    feeder.round()
    assert {len(ticket.entries) for ticket in _tickets(client)} == {1}


def test_a_job_that_came_back_behind_a_closed_lane_is_fed_at_once(database, client, feeder) -> None:
    old = rows.jobs(database, 1, ticketed=True)
    _left_behind(database, 200)
    feeder.round()  # without a worker: one ticket, and the rest waits behind a closed lane
    lane = feeder._lanes["cpu"]
    lane.turns.cursors[Slot(5, rows.TENANT)] = old[0] + "z"
    lane.scan_due_at = float("inf")
    client.delete(QUEUE)
    database.write(lambda tx: claim.unmark(tx, old))
    feeder.returned(*contract.decode_return(contract.encode_return("cpu", old)))
    assert feeder.round() == 64
    assert _ids(_tickets(client))[0] == old[0]


def test_without_a_worker_the_feeder_adds_no_ticket_to_one_that_is_under_way(database, client, feeder) -> None:
    """The API marks, commits and closes the lane, and publishes a moment later."""
    rows.jobs(database, 64, ticketed=True)
    _left_behind(database, 100)
    feeder.wake("cpu")
    assert feeder.round() == 0
    database.write(lambda tx: tx.run(_AGE))  # it never arrived: then the feeder's own is the one
    feeder.wake("cpu")
    assert feeder.round() == 64
    assert len(_tickets(client)) == 1
