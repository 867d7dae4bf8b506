"""Dead processes are ended in the database, however long that is away."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli import undertaker
from migrations import upgrade
from models import database as databases_of
from models import ids, incarnation
from tests import waiting

REASON = databases_of.Statement("SELECT end_reason FROM incarnations WHERE id = :id")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "there"
    upgrade.upgrade(f"sqlite:///{made}/headrace.db")
    return made


@pytest.fixture
def database(folder: Path) -> Iterator[databases_of.Database]:
    connected = databases_of.connect(f"sqlite:///{folder}/headrace.db")
    yield connected
    connected.close()


@pytest.fixture
def roster(tmp_path: Path) -> Path:
    return tmp_path / "incarnations.json"


def worker(database: databases_of.Database) -> str:
    made = ids.new(ids.INCARNATION)
    database.write(lambda tx: incarnation.begin(tx, made, kind="worker", host="h", pid=1, hardware="cpu"))
    return made


def reason(database: databases_of.Database, identity: str) -> str | None:
    with database.read() as tx:
        return tx.all(REASON, id=identity)[0][0]


def test_a_dead_one_is_ended_and_struck_off_the_list(database: databases_of.Database, roster: Path) -> None:
    mine = undertaker.Undertaker(database, roster, max_attempts=3)
    mine.start()
    dead, alive = worker(database), worker(database)
    mine.born(dead)
    mine.born(alive)
    assert json.loads(roster.read_text()) == sorted([dead, alive])
    mine.end(dead, incarnation.KILLED)
    assert mine.stop(20)
    assert (reason(database, dead), reason(database, alive)) == ("killed", None)
    assert json.loads(roster.read_text()) == [alive]


def test_what_an_earlier_one_left_is_ended_without_blame(database: databases_of.Database, roster: Path) -> None:
    left = worker(database)
    roster.write_text(json.dumps([left]))
    mine = undertaker.Undertaker(database, roster, max_attempts=3)
    mine.start()
    assert mine.stop(20)
    assert reason(database, left) == "exited"
    assert json.loads(roster.read_text()) == []


@pytest.mark.parametrize("text", ["", "{", "7", '{"a": 1}'])
def test_a_broken_list_is_no_reason_not_to_start(database: databases_of.Database, roster: Path, text: str) -> None:
    roster.write_text(text)
    mine = undertaker.Undertaker(database, roster, max_attempts=3)
    mine.start()
    assert mine.stop(20)


def test_a_database_that_is_away_is_asked_until_it_is_back(folder: Path, roster: Path) -> None:
    there = databases_of.connect(f"sqlite:///{folder}/headrace.db")
    dead = worker(there)
    there.close()
    away = folder.rename(folder.with_name("away"))
    database = databases_of.connect(f"sqlite:///{folder}/headrace.db")
    mine = undertaker.Undertaker(database, roster, max_attempts=3)
    mine.start()
    mine.born(dead)
    mine.end(dead, incarnation.KILLED)
    away.rename(folder)
    waiting.until(lambda: reason(database, dead) == "killed", what="the end of the incarnation")
    assert mine.stop(20)
    database.close()


def test_what_could_not_be_ended_stays_on_the_list_for_the_next_start(folder: Path, roster: Path) -> None:
    folder.rename(folder.with_name("away"))
    database = databases_of.connect(f"sqlite:///{folder}/headrace.db")
    mine = undertaker.Undertaker(database, roster, max_attempts=3)
    mine.start()
    mine.born("inc_dead")
    mine.end("inc_dead", incarnation.KILLED)
    assert not mine.stop(0.01)
    assert json.loads(roster.read_text()) == ["inc_dead"]


def test_one_that_never_started_stops_at_once(database: databases_of.Database, roster: Path) -> None:
    assert undertaker.Undertaker(database, roster, max_attempts=3).stop(20)
