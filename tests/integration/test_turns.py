"""Turns between tenants on both databases: in the pick, and through the feeder into the queue."""

import base64
import json
from collections import Counter
from collections.abc import Iterator

import pytest
import redis

from models import claim, contract, feed, turn
from models.contract import INTERACTIVE
from models.database import Database
from models.rate import Rate, save
from models.turn import Slot
from tests import brokers, rows
from workers.housekeeping.feeder import Feeder

QUEUE = contract.queue_name("cpu", INTERACTIVE)
BATCH = 64


@pytest.fixture
def client(broker: brokers.Broker) -> Iterator[redis.Redis]:
    with broker.client() as client:
        yield client


class Line:
    """One worker that takes a ticket after the other, with a feeder behind a closed lane."""

    def __init__(self, database: Database, client: redis.Redis) -> None:
        self.database = database
        self.client = client
        self.feeder = Feeder(database, client)
        self.worker = rows.worker(database)
        self.order: list[str] = []  # tenants and priorities of the jobs, as they began
        database.write(lambda tx: save(tx, "cpu", [Rate(rows.NETWORK, 0.001, 0.01, 64.0, BATCH),
                                                   Rate("slow@1", 0.001, 0.08, 64.0, BATCH)]))

    def leave(self, count: int, **fields: object) -> None:
        rows.jobs(self.database, count, **fields)
        self.database.write(lambda tx: feed.close(tx, "cpu", INTERACTIVE))
        for lane in self.feeder._lanes.values():  # here no time goes by, and a busy machine makes a search seem dear
            lane.turns._slots_due_at = 0.0

    def feed(self) -> None:
        self.feeder.wake("cpu")
        self.feeder.round()

    def run(self, tickets: int = 1) -> list[contract.Entry]:
        """Take and finish this many tickets; what was in them."""
        out: list[contract.Entry] = []
        for _ in range(tickets):
            self.feed()
            message = self.client.rpop(QUEUE)
            assert isinstance(message, bytes)
            entries = contract.decode_ticket("x", json.loads(base64.b64decode(json.loads(message)["body"]))[0]).entries
            names = [entry.id for entry in entries]
            held = self.database.write(lambda tx, names=names: claim.claim(
                tx, names, incarnation=self.worker, hardware="cpu", begun=True))
            assert sorted(each.id for each in held) == sorted(names)
            self.database.write(lambda tx, held=held: claim.settle(tx, [claim.Outcome(
                each.id, each.attempt, "succeeded", output=b"1", run_ms=640.0, batch_size=len(held)) for each in held],
                incarnation=self.worker))
            out += entries
        return out


@pytest.fixture
def line(database: Database, client: redis.Redis) -> Line:
    return Line(database, client)


def test_behind_ten_thousand_jobs_of_another_a_first_job_waits_for_a_window_and_two_batches_at_most(line: Line) -> None:
    line.leave(10_000, tenant="flood")
    line.run(5)
    line.feed()
    window = sum(len(contract.decode_ticket("x", json.loads(base64.b64decode(json.loads(m)["body"]))[0]).entries)
                 for m in line.client.lrange(QUEUE, 0, -1))
    line.leave(1, tenant="late")
    before: list[str] = []
    while "late" not in before:
        before += [entry.tenant for entry in line.run()]
        assert len(before) < 2000
    place = before.index("late")
    print(f"jobs before the first of another tenant: {place} (window {window}, batch {BATCH})")
    assert place <= window + 2 * BATCH


def test_priority_0_overtakes_a_thousand_of_priority_9(line: Line) -> None:
    line.leave(1000, priority=9)
    line.run(2)
    line.leave(1, priority=0, tenant="urgent")
    line.leave(1, priority=0)
    began = [entry for _ in range(4) for entry in line.run()]
    places = [place for place, entry in enumerate(began) if entry.priority == 0]
    print(f"jobs before those of priority 0: {places}")
    assert len(places) == 2
    assert max(places) <= 3 * BATCH


def test_priority_goes_before_fair_shares(database: Database) -> None:
    rows.jobs(database, 5, tenant="a", priority=1)
    rows.jobs(database, 2, tenant="b", priority=3)
    rows.jobs(database, 2, tenant="a", priority=0)
    picked = database.write(lambda tx: turn.pick(tx, "cpu", limit=20))
    assert [(job.entry.priority, job.entry.tenant) for job in picked] == [(0, "a")] * 2 + [(1, "a")] * 5 + [(3, "b")] * 2


def test_within_a_tenant_the_nearest_deadline_goes_first_then_age(line: Line) -> None:
    expected: dict[str, list[str]] = {}
    for tenant in ("a", "b"):
        old = rows.jobs(line.database, 3, tenant=tenant)
        late = rows.jobs(line.database, 1, tenant=tenant, deadline_s=900.0)
        soon = rows.jobs(line.database, 1, tenant=tenant, deadline_s=300.0)
        expected[tenant] = [*soon, *late, *old]
    found = line.run()
    for tenant, wanted in expected.items():
        assert [entry.id for entry in found if entry.tenant == tenant] == wanted


def test_tenants_that_keep_waiting_get_equal_seconds_whatever_their_jobs_cost(line: Line) -> None:
    line.leave(600, tenant="slow", network="slow@1")
    line.leave(2000, tenant="quick")
    began = [entry for _ in range(40) for entry in line.run()]
    jobs = Counter(entry.tenant for entry in began)
    print(f"jobs begun: {dict(jobs)} of which a slow one costs eight times as much")
    assert 5 <= jobs["quick"] / jobs["slow"] <= 11


def test_many_tenants_are_all_served_and_the_lane_opens_at_the_end(line: Line) -> None:
    names = [f"t{number:03}" for number in range(100)]
    for tenant in names:
        line.leave(3, tenant=tenant)
    began = [entry.tenant for _ in range(3) for entry in line.run()]
    assert max(Counter(began).values()) <= 3
    while len(began) < 300:
        began += [entry.tenant for entry in line.run()]
    assert Counter(began) == dict.fromkeys(names, 3)
    line.feed()
    with line.database.read() as tx:
        assert feed.states(tx) == [("cpu", INTERACTIVE, True)]


def test_a_new_leader_goes_on_where_the_one_before_was(line: Line) -> None:
    line.leave(500, tenant="a")
    line.run(4)
    line.client.delete(QUEUE)
    line.database.write(lambda tx: feed.clear_marks(tx, "cpu"))
    line.leave(500, tenant="b")
    line.feeder = Feeder(line.database, line.client)  # another process
    assert Counter(entry.tenant for entry in line.run())["b"] > BATCH // 2


def test_slots_are_the_tenants_that_wait_by_priority(database: Database) -> None:
    rows.jobs(database, 3, tenant="a", priority=9)
    rows.jobs(database, 1, tenant="b", deadline_s=60.0)
    rows.jobs(database, 2, tenant="b")
    rows.jobs(database, 1, tenant="a", priority=0)
    rows.jobs(database, 1, tenant="other class", hardware="cuda")
    with database.read() as tx:
        assert turn.slots(tx, "cpu") == [Slot(0, "a"), Slot(5, "b"), Slot(9, "a")]
        assert turn.slots(tx, "tpu") == []


def test_a_newcomer_is_told_from_the_known_in_whatever_order_they_come(database: Database) -> None:
    """Names sort in one way here and, with its locale, in another in the database."""
    for tenant in ("B", "a", "a-c", "ab"):
        rows.jobs(database, 1, tenant=tenant)
    with database.read() as tx:
        known = turn.slots(tx, "cpu")
        assert not turn.newcomer(tx, "cpu", known[::-1])
        for slot in known:
            assert turn.newcomer(tx, "cpu", [each for each in known[::-1] if each != slot])
