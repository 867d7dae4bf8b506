"""The sweep and the leases of duties, on both databases, and the housekeeping process itself."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from models import claim, contract, ids, incarnation, job, turn
from models import database as databases_of
from models.contract import INTERACTIVE
from models.database import Database, Statement
from models.errors import Unavailable
from models.settings import Settings
from tests import rows, waiting
from workers.housekeeping import process
from workers.housekeeping.leader import Leader
from workers.housekeeping.sweeper import Sweeper, Watch, gap_s

_LEADER = Statement("SELECT incarnation FROM leases WHERE duty = 'sweep'")
_END_LONG_AGO = Statement("UPDATE incarnations SET ended_at = 1 WHERE id = :id")


@pytest.fixture
def sweeper(settings: Settings, database: Database) -> Iterator[Sweeper]:
    client = process.connect_broker(settings, 1.0)
    yield Sweeper(settings, database, client)
    client.close()


def _life(name: str, beats: int) -> incarnation.Incarnation:
    return incarnation.Incarnation(name, "worker", "h", 1, "cpu", "interactive", True, 0, 0, beats, {})


def test_a_life_silent_for_a_whole_lease_is_noticed_once_it_is() -> None:
    watch = Watch(10.0, 3.0)
    for now in range(12):
        silent = watch.look([_life("a", 7), _life("b", now)], sent_at=float(now), answered_at=now + 0.1)
        assert [each.id for each in silent] == (["a"] if now >= 11 else [])


def test_a_watcher_that_was_stopped_begins_anew() -> None:
    watch = Watch(10.0, 3.0)
    for now in (0.0, 2.0, 4.0, 60.0, 62.0, 65.0, 67.0):
        assert watch.look([_life("a", 7)], sent_at=now, answered_at=now) == []


def test_a_watcher_whose_look_hung_begins_anew() -> None:
    watch = Watch(4.0, 3.0)
    for sent, answered in ((0.0, 0.1), (2.0, 7.0), (8.0, 8.1), (10.0, 10.1)):
        assert watch.look([_life("a", 7)], sent_at=sent, answered_at=answered) == []
    assert len(watch.look([_life("a", 7)], sent_at=11.0, answered_at=11.1)) == 1


def test_a_database_that_let_nobody_write_for_a_lease_shows_as_a_gap() -> None:
    for lease_s, sweep_s in ((3.0, 2.0), (5.0, 2.0), (30.0, 2.0), (3.0, 1.0)):
        allowed_s = gap_s(lease_s, sweep_s)
        assert sweep_s < allowed_s  # a sweep takes some time itself
        assert allowed_s < lease_s + sweep_s / 4


def test_a_watcher_that_could_not_look_begins_anew() -> None:
    watch = Watch(4.0, 3.0)
    for now in (0.0, 2.0):
        assert watch.look([_life("a", 7)], sent_at=now, answered_at=now) == []
    watch.reset()
    assert watch.look([_life("a", 7)], sent_at=4.0, answered_at=4.0) == []
    assert watch.look([_life("a", 7)], sent_at=7.0, answered_at=7.0) == []
    assert len(watch.look([_life("a", 7)], sent_at=8.0, answered_at=8.0)) == 1


def test_a_silent_worker_is_lost_and_what_it_held_waits_again(settings, database) -> None:
    settings = Settings(**{**_fields(settings), "lease_s": 0.2, "sweep_s": 0.05})
    sweeper = Sweeper(settings, database, process.connect_broker(settings, 1.0))
    me, alive = rows.worker(database), rows.worker(database)
    (wanted,) = rows.jobs(database)
    database.write(lambda tx: claim.claim(tx, [wanted], incarnation=me, hardware="cpu", begun=False))

    def tick() -> list[str]:
        rows.beat(database, alive)
        return sweeper.end_lost()

    assert waiting.until(tick) == [me]
    with database.read() as tx:
        assert [each.id for each in incarnation.live(tx)] == [alive]
        assert [each.entry.id for each in turn.pick(tx, "cpu", limit=5)] == [wanted]


def test_expired_jobs_are_told_of(database, sweeper, broker) -> None:
    wanted = rows.jobs(database, 3, deadline_s=0.0)
    with broker.client() as client, client.pubsub(ignore_subscribe_messages=True) as heard:
        heard.subscribe(contract.DONE_CHANNEL)
        waiting.until(lambda: client.pubsub_numsub(contract.DONE_CHANNEL)[0][1] == 1)
        assert sweeper.expire() == 3
        message = waiting.until(lambda: heard.get_message(timeout=1.0))
    assert sorted(contract.decode_done(message["data"])) == sorted(wanted)


def test_a_dead_broker_does_not_stop_the_sweep(database, settings, own_broker) -> None:
    sweeper = Sweeper(settings, database, process.connect_broker(Settings(broker_url=own_broker.url), 0.2))
    own_broker.kill()
    (wanted,) = rows.jobs(database, 1, deadline_s=0.0)
    sweeper.sweep()
    with database.read() as tx:
        assert job.states(tx, [wanted]) == {wanted: "expired"}


def test_what_a_worker_claimed_while_it_was_declared_lost_is_released(database, sweeper, broker) -> None:
    me, (wanted,) = rows.worker(database), rows.jobs(database)
    database.write(lambda tx: claim.claim(tx, [wanted], incarnation=me, hardware="cpu", begun=True))
    database.write(lambda tx: tx.run(_END_LONG_AGO, id=me))
    with broker.client() as client, client.pubsub(ignore_subscribe_messages=True) as heard:
        heard.subscribe(contract.RETURN_CHANNEL)
        waiting.until(lambda: client.pubsub_numsub(contract.RETURN_CHANNEL)[0][1] == 1)
        sweeper.sweep()
        message = waiting.until(lambda: heard.get_message(timeout=1.0))
    assert contract.decode_return(message["data"]) == ("cpu", "")  # the feeder is told
    with database.read() as tx:
        (found,) = turn.pick(tx, "cpu", limit=5)
    assert (found.entry.id, found.suspect) == (wanted, True)


def _fields(settings: Settings) -> dict[str, object]:
    return {name: getattr(settings, name) for name in settings.__dataclass_fields__}


@pytest.fixture
def lives(database: Database) -> Callable[[], str]:
    def begin() -> str:
        name = ids.new(ids.INCARNATION)
        database.write(lambda tx: incarnation.begin(tx, name, kind=incarnation.HOUSEKEEPING, host="h", pid=1))
        return name

    return begin


def test_a_duty_has_one_leader_and_a_resigned_one_is_replaced_at_once(database, lives) -> None:
    first, second = (Leader(database, lives(), ["feed", "sweep"], lease_s=60.0) for _ in range(2))
    first.turn()
    second.turn()
    assert (first.leads("feed"), first.leads("sweep"), second.leads("feed")) == (True, True, False)
    first.resign()
    assert not first.leads("feed")
    second.turn()
    assert second.leads("feed")


def test_a_leader_whose_life_was_ended_is_replaced_at_once(database, lives) -> None:
    old = lives()
    first, second = Leader(database, old, ["feed"], lease_s=60.0), Leader(database, lives(), ["feed"], lease_s=60.0)
    first.turn()
    database.write(lambda tx: incarnation.end(tx, old, incarnation.KILLED, max_attempts=3))
    second.turn()
    assert second.leads("feed")


def test_a_silent_leader_stops_by_itself_before_another_takes_over(database, lives) -> None:
    first, second = (Leader(database, lives(), ["feed"], lease_s=0.4) for _ in range(2))
    first.turn()
    began = time.monotonic()

    def taken() -> bool:
        still = first.leads("feed")
        second.turn()
        assert not (still and second.leads("feed") and time.monotonic() - began < 0.3)
        return second.leads("feed")

    waiting.until(taken)
    assert not first.leads("feed")


def test_leading_is_lost_with_the_database(tmp_path) -> None:
    away = databases_of.connect(f"sqlite:///{tmp_path}/nowhere/x.db")
    leader = Leader(away, "inc_x", ["feed"], lease_s=1.0)
    with pytest.raises(Unavailable):
        leader.turn()
    assert not leader.leads("feed")
    away.close()


@pytest.fixture
def housekeeping(settings: Settings) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(**environment: str) -> subprocess.Popen[bytes]:
        code = ("import sys; from models import settings; from workers.housekeeping import process; "
                "sys.exit(process.run_housekeeping(settings.load()))")
        env = os.environ | {"HEADRACE_DATA_DIR": str(settings.data_dir), "HEADRACE_DATABASE_URL": settings.database,
                            "HEADRACE_BROKER_URL": settings.broker, "HEADRACE_SWEEP_S": "0.2",
                            "HEADRACE_LEASE_S": "30"} | environment
        started.append(subprocess.Popen([sys.executable, "-c", code], env=env))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.wait(10)


def _leader(database: Database) -> str | None:
    with database.read() as tx:
        row = tx.one(_LEADER)
    return None if row is None else row[0]


def test_housekeeping_feeds_and_sweeps_hands_over_and_ends_when_asked(database, broker, housekeeping) -> None:
    names = [ids.new(ids.INCARNATION) for _ in range(2)]
    first = housekeeping(HEADRACE_INCARNATION=names[0])
    waiting.until(lambda: _leader(database) == names[0])
    second = housekeeping(HEADRACE_INCARNATION=names[1])
    rows.jobs(database, 5)
    late = rows.jobs(database, 1, deadline_s=0.0)
    with broker.client() as client:
        queue = contract.queue_name("cpu", INTERACTIVE)
        waiting.until(lambda: client.llen(queue) == 1)
    waiting.until(lambda: _states(database, late) == {late[0]: "expired"})
    first.kill()
    first.wait(10)
    database.write(lambda tx: incarnation.end(tx, names[0], incarnation.KILLED, max_attempts=3))
    waiting.until(lambda: _leader(database) == names[1])
    second.send_signal(signal.SIGTERM)
    assert second.wait(15) == 0
    with database.read() as tx:
        assert incarnation.live(tx) == []
    assert _leader(database) is None


def test_a_signal_in_the_middle_of_the_wait_for_it_does_not_lock_up() -> None:
    stop = threading.Event()
    with process._stopped_by_signals(stop):
        with stop._cond:  # as at the beginning and the end of `stop.wait()`
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(10)


def _states(database: Database, wanted: list[str]) -> dict[str, str]:
    with database.read() as tx:
        return job.states(tx, wanted)


def test_housekeeping_whose_life_was_ended_by_another_goes(database, housekeeping) -> None:
    name = ids.new(ids.INCARNATION)
    running = housekeeping(HEADRACE_INCARNATION=name)
    waiting.until(lambda: _leader(database) == name)
    database.write(lambda tx: incarnation.end(tx, name, incarnation.LOST, max_attempts=3))
    assert running.wait(20) == 1
