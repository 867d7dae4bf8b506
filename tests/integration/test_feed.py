"""Marks, lanes and the pick, on both databases. The pick among tenants: test_turns."""

import threading
from concurrent import futures

from models import claim, feed, incarnation, job, turn
from models.contract import INTERACTIVE
from models.database import Database, Statement
from tests import rows, waiting

_PAST = Statement("UPDATE jobs SET ticketed_until = 1 WHERE id {in ids}")


def _pick(database: Database, limit: int = 100, after: dict[turn.Slot, str] | None = None) -> list[str]:
    return database.write(lambda tx: [w.entry.id for w in turn.pick(tx, "cpu", limit=limit, after=after or {})])


def _mark(database: Database, wanted: list[str]) -> None:
    database.write(lambda tx: feed.mark(tx, wanted))


def test_priority_goes_first_then_the_nearest_deadline_then_age(database: Database) -> None:
    old = rows.jobs(database, 2)
    late, soon = rows.jobs(database, 1, deadline_s=90.0), rows.jobs(database, 1, deadline_s=30.0)
    last = rows.jobs(database, 1, priority=9)
    first = rows.jobs(database, 2, priority=0)
    urgent = rows.jobs(database, 1, priority=0, deadline_s=60.0)
    expected = [*urgent, *first, *soon, *late, *old, *last]
    assert _pick(database) == expected
    assert _pick(database, 4) == expected[:4]


def test_only_waiting_jobs_of_the_class_without_a_ticket_are_picked(database: Database) -> None:
    wanted = rows.jobs(database, 5)
    rows.jobs(database, 1, hardware="cuda")
    rows.jobs(database, 1, ticketed=True)
    rows.jobs(database, 1, deadline_s=0.0)
    me = rows.worker(database)
    database.write(lambda tx: claim.claim(tx, wanted[:1], incarnation=me, hardware="cpu", begun=True))
    database.write(lambda tx: job.cancel(tx, rows.TENANT, wanted[1]))
    _mark(database, wanted[2:3])
    assert _pick(database) == wanted[3:]


def test_a_mark_ends_by_itself(database: Database) -> None:
    wanted = rows.jobs(database, 2)
    _mark(database, wanted)
    assert _pick(database) == []
    database.write(lambda tx: tx.run(_PAST, ids=wanted[:1]))
    assert _pick(database) == wanted[:1]


def test_a_cursor_hides_what_lies_below_it_in_its_own_priority_only(database: Database) -> None:
    wanted = rows.jobs(database, 3)
    other = rows.jobs(database, 1, priority=6)
    soon = rows.jobs(database, 1, deadline_s=60.0)
    assert _pick(database, after={turn.Slot(5, rows.TENANT): wanted[1]}) == [*soon, wanted[2], *other]


def test_suspects_are_picked_as_such(database: Database) -> None:
    (wanted,) = rows.jobs(database)
    me = rows.worker(database)
    database.write(lambda tx: claim.claim(tx, [wanted], incarnation=me, hardware="cpu", begun=True))
    database.write(lambda tx: incarnation.end(tx, me, incarnation.KILLED, max_attempts=3))
    (found,) = database.write(lambda tx: turn.pick(tx, "cpu", limit=10))
    assert (found.entry.id, found.suspect, found.network) == (wanted, True, rows.NETWORK)


def test_marks_are_counted_by_network_and_cleared_by_class(database: Database) -> None:
    wanted = rows.jobs(database, 3, work=2.0) + rows.jobs(database, 1, network="m@1", deadline_s=60.0)
    other = rows.jobs(database, 1, hardware="cuda")
    _mark(database, [*wanted, *other])
    with database.read() as tx:
        found = feed.marked(tx, "cpu")
        assert {name: part[:2] for name, part in found.items()} == {rows.NETWORK: (3, 6.0), "m@1": (1, 1.0)}
        assert feed.overdue(tx, "cpu", 0.0)
        assert not feed.overdue(tx, "cpu", 20.0)
    assert database.write(lambda tx: feed.clear_marks(tx, "cpu")) == 4
    assert sorted(_pick(database)) == sorted(wanted)
    with database.read() as tx:
        assert feed.marked(tx, "cuda") != {}


def test_a_lane_is_open_at_first_and_reopens_only_when_nothing_is_left(database: Database) -> None:
    wanted = rows.jobs(database, 2)
    assert database.write(lambda tx: feed.is_open(tx, "cpu", INTERACTIVE))
    database.write(lambda tx: feed.close(tx, "cpu", INTERACTIVE))
    assert not database.write(lambda tx: feed.is_open(tx, "cpu", INTERACTIVE))
    assert not database.write(lambda tx: feed.reopen(tx, "cpu", INTERACTIVE))
    _mark(database, wanted)
    assert database.write(lambda tx: feed.reopen(tx, "cpu", INTERACTIVE))
    assert database.write(lambda tx: feed.is_open(tx, "cpu", INTERACTIVE))


def test_a_job_past_its_deadline_does_not_keep_a_lane_closed(database: Database) -> None:
    rows.jobs(database, 1, deadline_s=0.0)
    database.write(lambda tx: feed.close(tx, "cpu", INTERACTIVE))
    assert database.write(lambda tx: feed.reopen(tx, "cpu", INTERACTIVE))


def test_a_lane_never_opens_over_a_row_that_is_just_being_left_behind(database: Database) -> None:
    """The writer has seen the lane closed and leaves a row; until it commits, nobody may open the lane."""
    rows.jobs(database, 1, ticketed=True)
    database.write(lambda tx: feed.close(tx, "cpu", INTERACTIVE))
    seen, go_on = threading.Event(), threading.Event()
    now = database.now()

    def leave(tx):
        assert not feed.is_open(tx, "cpu", INTERACTIVE)
        seen.set()
        go_on.wait(10)
        job.accept(tx, [job.NewJob("job_" + "f" * 32, rows.TENANT, rows.NETWORK, "cpu", 1.0, b"[1]")], now)

    with futures.ThreadPoolExecutor(2) as pool:
        left = pool.submit(database.write, leave)
        assert seen.wait(10)
        opened = pool.submit(database.write, lambda tx: feed.reopen(tx, "cpu", INTERACTIVE))
        go_on.set()
        left.result(20)
        assert opened.result(20) is False


def test_an_ended_worker_closes_the_lane_when_its_jobs_come_back(database: Database) -> None:
    wanted = rows.jobs(database, 3, ticketed=True)
    me = rows.worker(database)
    database.write(lambda tx: claim.claim(tx, wanted[:1], incarnation=me, hardware="cpu", begun=False))
    database.write(lambda tx: incarnation.end(tx, me, incarnation.KILLED, max_attempts=3))
    with database.read() as tx:
        assert feed.states(tx) == [("cpu", INTERACTIVE, False)]
    assert _pick(database) == wanted


def test_two_feeders_never_pick_the_same_job(database: Database) -> None:
    wanted = rows.jobs(database, 600)

    def take(_: int) -> list[str]:
        def work(tx):
            picked = [w.entry.id for w in turn.pick(tx, "cpu", limit=50)]
            feed.mark(tx, picked)
            return picked

        return database.write(work, durable=False)

    with futures.ThreadPoolExecutor(4) as pool:
        taken = [each for part in pool.map(take, range(16)) for each in part]
    assert sorted(taken) == sorted(wanted)


def test_tallies_count_what_waits_and_what_runs(database: Database) -> None:
    wanted = rows.jobs(database, 3, work=2.0) + rows.jobs(database, 1, work=2.0, deadline_s=60.0)
    rows.jobs(database, 1, hardware="cuda")
    me = rows.worker(database)
    database.write(lambda tx: claim.claim(tx, wanted[:1], incarnation=me, hardware="cpu", begun=True))
    with database.read() as tx:
        found = {t.hardware: t for t in feed.waiting(tx)}
        running = feed.running(tx)
    assert (found["cpu"].count, found["cpu"].work, found["cuda"].count) == (3, 6.0, 1)
    assert found["cpu"].oldest_at is not None
    assert [(t.hardware, t.network, t.count, t.work) for t in running] == [("cpu", rows.NETWORK, 1, 2.0)]


def test_a_claim_beside_a_feeder_takes_its_jobs_whole(database: Database) -> None:
    """Rows that the feeder holds for a moment are waited for: else they would count as unclaimable."""
    wanted = rows.jobs(database, 64)
    me = rows.worker(database)
    picked, go_on = threading.Event(), threading.Event()

    def mark_slowly(tx):
        found = [w.entry.id for w in turn.pick(tx, "cpu", limit=64)]
        feed.mark(tx, found)
        picked.set()
        go_on.wait(10)

    with futures.ThreadPoolExecutor(2) as pool:
        marking = pool.submit(database.write, mark_slowly)
        assert picked.wait(10)
        claiming = pool.submit(database.write, lambda tx: claim.claim(
            tx, wanted, incarnation=me, hardware="cpu", begun=True))
        if database.dialect == "postgres":
            waiting.until(lambda: _blocked(database), what="the claim waits for a lock")
        go_on.set()
        marking.result(20)
        assert len(claiming.result(20)) == 64


_LOCKED = Statement("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' LIMIT 1")


def _blocked(database: Database) -> bool:
    with database.read() as tx:
        return tx.one(_LOCKED) is not None
