"""Tickets and acknowledgements under a broker that misbehaves; the worker is a real process."""

import base64
import json
import signal

import pytest

from models import contract
from models.settings import Settings
from tests import waiting
from tests.stations import Station

BODY = json.dumps([1.0] * 30).encode()
QUEUE = "infer.cpu.interactive"


@pytest.fixture
def station(migrated_sqlite, tmp_path, own_broker):
    path = tmp_path / "headrace.db"
    path.write_bytes(migrated_sqlite.read_bytes())
    settings = Settings(data_dir=tmp_path, database_url=f"sqlite:///{path}", broker_url=own_broker.url)
    with Station(settings, own_broker) as built:
        built.upload("tumor")
        yield built


def finish(station, names):
    """As the feeder would: new tickets for what still waits, since brokers lose some."""
    def done():
        left = [name for name, state in zip(names, station.column("state", names), strict=True) if state == "queued"]
        client = station.broker.client()
        if left and not client.llen(QUEUE):
            station.push(left)
        client.close()
        return station.count("succeeded") == len(names)
    waiting.until(done, 60, what="the end of the jobs")


def results(station):
    with station.database.read() as tx:
        tx.cursor.execute("SELECT count(*), count(DISTINCT job_id) FROM results")
        return tuple(tx.cursor.fetchall()[0])


def test_a_malformed_ticket_is_acknowledged_and_harms_nobody(station):
    process, _ = station.begin()
    client = station.broker.client()
    for body in ([[7], {}, {}], 7, {}, [["tumor@1", "interactive", [["job", "heavy", 5, None, "t"]], False], {}, {}],
                 [["tumor@1", "nowhere", [["job", 1e999, 5, None, "t"]], False], {}, {}]):
        ticket = json.loads(contract.encode_ticket(contract.Ticket("tumor@1", "interactive", []), QUEUE))
        ticket["body"] = base64.b64encode(json.dumps(body).encode()).decode()
        client.lpush(QUEUE, json.dumps(ticket))
    client.lpush(QUEUE, contract.encode_ticket(contract.Ticket("tumor@1", "interactive", []), QUEUE))  # empty
    names = station.accept([BODY] * 5)
    station.push(names)
    assert station.ended(names) == ["succeeded"] * 5
    waiting.until(lambda: client.hlen("unacked") == 0)
    client.close()
    assert "ticket_dropped" in station.log.read_text()
    assert process.poll() is None


def test_cut_connections_under_load_neither_end_the_worker_nor_repeat_a_result(station):
    process, _ = station.begin()
    client = station.broker.client()
    names = []
    for _ in range(10):
        more = station.accept([BODY] * 320)
        names += more
        station.push(more)
        before = len(names) - len(more)
        waiting.until(lambda before=before: station.count("succeeded") > before)
        own = client.client_id()
        for each in client.client_list():
            if int(each["id"]) != own:
                client.client_kill_filter(_id=each["id"])
    finish(station, names)
    assert process.poll() is None
    assert results(station) == (len(names), len(names))
    client.close()


def test_a_broker_that_was_killed_is_found_again(station):
    process, _ = station.begin()
    station.broker.kill()
    station.broker.start()
    names = station.accept([BODY] * 100)
    station.push(names)
    finish(station, names)
    assert process.poll() is None


def test_a_frozen_broker_does_not_hold_up_results(station):
    process, _ = station.begin()
    names = station.accept([BODY] * 1000)
    station.push(names)
    waiting.until(lambda: station.count("succeeded") > 0)
    station.broker.freeze()
    waiting.until(lambda: station.count("running") == 0)  # what was claimed is settled all the same
    station.broker.thaw()
    finish(station, names)
    assert process.poll() is None


def test_a_frozen_broker_does_not_hold_up_a_graceful_end(station):
    process, name = station.begin()
    station.broker.freeze()
    process.send_signal(signal.SIGTERM)
    waiting.until(lambda: station.reason(name) == "exited", what="the end of the incarnation")
    assert process.wait(30) == 0
    station.broker.thaw()


def test_after_flushall_new_tickets_are_taken(station):
    station.begin()
    client = station.broker.client()
    client.flushall()
    client.close()
    names = station.accept([BODY] * 10)
    station.push(names)
    assert station.ended(names) == ["succeeded"] * 10
