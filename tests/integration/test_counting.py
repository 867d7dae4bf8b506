"""Housekeeping counts lanes: in seconds of work, carried by its heartbeat, written down when much has changed."""

import pytest

from models import backlog, claim, contract, incarnation
from models.backlog import Backlog
from models.database import Database, Statement
from models.feed import Tally
from models.rate import Rate, assumed, save
from tests import rows
from workers.housekeeping.counting import Counting
from workers.pace import Pace

_LANE = Statement("SELECT depth, in_flight, wait_s, oldest_at FROM lanes WHERE hardware = 'cpu'")
_SPOIL = Statement("UPDATE lanes SET depth = -1 WHERE hardware = 'cpu'")


def lane(database: Database) -> tuple[int, int, float, int | None]:
    with database.read() as tx:
        return tx.one(_LANE)


def test_lanes_are_rolled_up(database) -> None:
    database.write(lambda tx: save(tx, "cpu", [Rate(rows.NETWORK, 0.5, 0.01, 100.0, 2)]))
    me = rows.worker(database)
    wanted = rows.jobs(database, 4, work=10.0)
    database.write(lambda tx: claim.claim(tx, wanted[:1], incarnation=me, hardware="cpu", begun=True))
    (count,) = Counting(database).count()
    depth, in_flight, seconds, oldest_at = lane(database)
    assert (depth, in_flight) == (count.depth, count.in_flight) == (3, 1)
    assert seconds == pytest.approx(2 * 0.5 + 0.3 + 0.5 + 0.1)
    assert oldest_at is not None


def test_each_network_counts_by_its_own_rate_and_one_without_by_its_manifest(database) -> None:
    database.write(lambda tx: save(tx, "cpu", [Rate("fast@1", 0.0, 0.001, 1e9, 64), Rate("slow@1", 0.0, 2.0, 1e9, 64)]))
    for name, work in (("fast@1", 1000.0), ("slow@1", 3.0), ("unknown@1", 1.0)):
        rows.jobs(database, network=name, work=work)
    (count,) = Counting(database).count()
    assert count.work_s == pytest.approx(1.0 + 6.0 + assumed("", {}).cost_s(1.0))
    assert assumed("", {"batching": {"item_ms": 250}}).cost_s(7.0) == pytest.approx(0.25)


def test_a_lanes_row_is_written_only_when_much_has_changed(database) -> None:
    counting = Counting(database)
    rows.jobs(database, 20)
    counting.count()
    database.write(lambda tx: tx.run(_SPOIL))
    rows.jobs(database, 1)
    assert counting.count()[0].depth == 21  # the heartbeat carries it all the same
    assert lane(database)[0] == -1
    rows.jobs(database, 20)
    counting.count()
    assert lane(database)[0] == 41


def test_the_newest_count_of_living_housekeeping_counts(database) -> None:
    def carried(name: str, depth: int, at: int) -> None:
        one = Backlog("cpu", contract.INTERACTIVE, depth, 0, 1.5, None, at)

        def work(tx):
            incarnation.begin(tx, name, kind=incarnation.HOUSEKEEPING, host="h", pid=1)
            incarnation.beat(tx, name, ready=True, holding={backlog.HOLDING: backlog.pack([one])})

        database.write(work)

    carried("inc_1", 1, 1000)
    carried("inc_2", 2, 2000)
    rows.worker(database, **{backlog.HOLDING: [["cpu", "interactive", 9, 0, 1.0, None, 9000]]})
    with database.read() as tx:
        assert backlog.latest(incarnation.live(tx))["cpu", "interactive"].depth == 2
    database.write(lambda tx: incarnation.end(tx, "inc_2", incarnation.KILLED, max_attempts=3))
    with database.read() as tx:
        assert backlog.latest(incarnation.live(tx))["cpu", "interactive"].depth == 1


def test_a_class_drains_at_the_paces_of_its_live_workers(database) -> None:
    rows.worker(database, pace=0.5)
    rows.worker(database, pace=2.0)
    rows.worker(database)  # of a version that says nothing of its pace
    rows.worker(database, "cuda", pace=1e9)
    gone = rows.worker(database, pace=1.0)
    database.write(lambda tx: incarnation.end(tx, gone, incarnation.KILLED, max_attempts=3))
    with database.read() as tx:
        drains = backlog.drains(incarnation.live(tx))
    assert drains == {"cpu": pytest.approx(3.5), "cuda": backlog.MOST_PACE}


def test_batches_that_are_not_full_cost_their_overhead() -> None:
    rates = {("a@1", "cpu"): Rate("a@1", 0.5, 0.1, 1000.0, 64)}
    assert backlog.work_s([Tally("cpu", "a@1", 65, 10.0)], rates) == pytest.approx(2 * 0.5 + 1.0)


def test_pace_is_measured_only_while_more_work_is_at_hand() -> None:
    pace = Pace()
    for second in range(0, 200, 10):
        pace.settled(0.1, float(second), more=False)
    assert pace.value == 1.0
    for step in range(100):
        pace.settled(0.25, 200 + 0.5 * step, more=True)
    assert pace.value == pytest.approx(0.5, abs=0.02)
    for step in range(200):
        pace.settled(1.0, 300 + 0.5 * step, more=True)
    assert pace.value == pytest.approx(2.0, abs=0.05)
