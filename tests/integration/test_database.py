"""Transactions, pools and values on both databases, and what happens when a database goes away."""

import math
import sqlite3
import threading
from concurrent import futures

import psycopg
import pytest
import sqlalchemy as sa

from models import database as databases_of
from models.database import Database, Statement, Transaction
from models.errors import Unavailable
from tests import databases, waiting

_VALUES = sa.Table("values_kept", sa.MetaData(), sa.Column("id", sa.Text), sa.Column("small", sa.Integer),
                   sa.Column("large", sa.BigInteger), sa.Column("real", sa.Float), sa.Column("flag", sa.Boolean),
                   sa.Column("bytes", sa.LargeBinary))
_NAMES = ("id", "small", "large", "real", "flag", "bytes")
_MAKE = Statement("CREATE TABLE values_kept (id text, small integer, large bigint, real double precision, flag boolean, "
                  "bytes bytea)", sqlite="CREATE TABLE values_kept (id text, small integer, large bigint, real float, "
                  "flag boolean, bytes blob)")
_DROP = Statement("DROP TABLE IF EXISTS values_kept")
_ALL = Statement("SELECT id, small, large, real, flag, bytes FROM values_kept ORDER BY id")
_ADD = Statement("INSERT INTO values_kept (id, small, large, real, flag, bytes) "
                 "VALUES (:id, :small, :large, :real, :flag, :bytes)")
_IN = Statement("SELECT id FROM values_kept WHERE id {in ids} ORDER BY id")
_RAISE = Statement("UPDATE values_kept SET small = small + 1 WHERE id = :id")
_END_OTHERS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'headrace'"

ROWS = [
    ("a", 1, 2**40, 1.5, True, b"\x00\xff'\\"),
    ('quote " back \\ brace {} comma, NULL', -1, -(2**62), -0.25, False, b""),
    ("né 日本 \U0001f600", None, None, None, None, None),
    ("z", 2**31 - 1, 7, 1e300, True, b"\n" * 70_000),
]


@pytest.fixture(autouse=True)
def table(database: Database):
    database.write(lambda tx: (tx.run(_DROP), tx.run(_MAKE)))
    yield
    database.write(lambda tx: tx.run(_DROP))


def _kept(database: Database) -> list[tuple[object, ...]]:
    with database.read() as tx:
        return [(*row[:4], None if row[4] is None else bool(row[4]), row[5]) for row in tx.all(_ALL)]


def _sorted(rows: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    return sorted(rows, key=lambda row: str(row[0]).encode())


def test_values_come_back_as_they_went_in_rows_at_once(database: Database) -> None:
    database.write(lambda tx: tx.insert_rows(_VALUES, _NAMES, ROWS))
    assert _sorted(_kept(database)) == _sorted(ROWS)


def test_values_come_back_as_they_went_in_one_by_one(database: Database) -> None:
    for order in (ROWS, list(reversed(ROWS))):  # NULL first, and NULL last: both must find the places' types
        database.write(lambda tx, order=order: [tx.run(_ADD, **dict(zip(_NAMES, row, strict=True))) for row in order])
    assert _sorted(_kept(database)) == _sorted(ROWS * 2)


def test_numbers_of_every_size_share_one_place(database: Database) -> None:
    for real in (1, 2**40, 0.5, 3, math.pi):
        database.write(lambda tx, real=real: tx.run(_ADD, id=str(real), small=1, large=int(real), real=real, flag=True,
                                                    bytes=b""))
    assert sorted(row[3] for row in _kept(database)) == sorted([1.0, 2.0**40, 0.5, 3.0, math.pi])


def test_membership_takes_any_strings_and_none(database: Database) -> None:
    database.write(lambda tx: tx.insert_rows(_VALUES, _NAMES, ROWS))
    wanted = [row[0] for row in ROWS[:3]]
    with database.read() as tx:
        assert sorted(row[0] for row in tx.all(_IN, ids=[*wanted, "missing", "a"])) == sorted(wanted)
        assert tx.all(_IN, ids=[]) == []


def test_a_text_with_nul_is_refused_whole_instead_of_cut(database: Database) -> None:
    if database.dialect == "sqlite":
        pytest.skip("SQLite keeps NUL characters")
    with pytest.raises(psycopg.DataError):
        database.write(lambda tx: tx.insert_rows(_VALUES, _NAMES, [("a\0b", 1, 1, 1.0, True, b"")]))
    assert _kept(database) == []


def test_what_raises_is_undone_and_the_connection_is_used_again(database: Database) -> None:
    def fail(tx: Transaction) -> None:
        tx.insert_rows(_VALUES, _NAMES, ROWS)
        raise KeyError("mine")

    for _ in range(100):
        with pytest.raises(KeyError):
            database.write(fail)
    assert _kept(database) == []


def test_a_statement_that_failed_cannot_be_committed_over(database: Database) -> None:
    """PostgreSQL answers COMMIT of a failed transaction with a silent ROLLBACK."""
    wrong = Statement("SELECT nothing_like_this FROM values_kept")

    def swallow(tx: Transaction) -> None:
        tx.insert_rows(_VALUES, _NAMES, ROWS[:1])
        try:
            tx.all(wrong)
        except (psycopg.Error, sqlite3.Error):
            return

    if database.dialect == "sqlite":
        database.write(swallow)
        assert len(_kept(database)) == 1
    else:
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            database.write(swallow)
        assert _kept(database) == []


def test_writers_take_turns_without_losing_a_write(database: Database) -> None:
    database.write(lambda tx: tx.insert_rows(_VALUES, _NAMES, [("a", 0, 0, 0.0, True, b"")]))
    with futures.ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(database.write, lambda tx: tx.run(_RAISE, id="a"), durable=n % 2 == 0)
                     for n in range(200)]:
            assert done.result(60) == 1
    assert _kept(database)[0][1] == 200


def test_a_deadlock_is_tried_again(database: Database) -> None:
    if database.dialect == "sqlite":
        pytest.skip("SQLite's writers are alone")
    database.write(lambda tx: tx.insert_rows(_VALUES, _NAMES, [(n, 0, 0, 0.0, True, b"") for n in "ab"]))
    met = threading.Barrier(2)

    def both(first: str, second: str) -> None:
        tries = []

        def work(tx: Transaction) -> None:
            tx.run(_RAISE, id=first)
            if not tries:
                tries.append(1)
                met.wait(20)
            tx.run(_RAISE, id=second)

        database.write(work)

    with futures.ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(both, "a", "b"), pool.submit(both, "b", "a")]:
            done.result(60)
    assert [row[1] for row in _kept(database)] == [2, 2]


def test_the_clock_is_the_databases_in_milliseconds(database: Database) -> None:
    first = database.now()
    assert 1_600_000_000_000 < first <= database.now()


def test_connections_that_died_while_idle_cost_nobody_a_write(database: Database, database_url: str) -> None:
    if database.dialect == "sqlite":
        pytest.skip("a file has no connections to lose")
    start = threading.Barrier(8)

    def one(number: int) -> None:
        start.wait(20)
        database.write(lambda tx: tx.insert_rows(_VALUES, _NAMES, [(str(number), 0, 0, 0.0, True, b"")]))

    for begin in (0, 8):
        with futures.ThreadPoolExecutor(8) as pool:  # so that eight connections of the pool are open
            list(pool.map(one, range(begin, begin + 8)))
        with psycopg.connect(database_url, autocommit=True) as other:
            other.execute(_END_OTHERS)
    database.write(lambda tx: tx.run(_RAISE, id="0"))
    assert len(_kept(database)) == 16


def test_a_commit_whose_answer_was_lost_says_so(database: Database, database_url: str) -> None:
    if database.dialect == "sqlite":
        pytest.skip("SQLite answers or doesn't commit")

    def work(tx: Transaction) -> None:
        tx.insert_rows(_VALUES, _NAMES, ROWS[:1])
        with psycopg.connect(database_url, autocommit=True) as other:
            other.execute(_END_OTHERS)

    with pytest.raises(Unavailable) as caught:
        database.write(work)
    assert caught.value.may_have_been_accepted
    assert _kept(database) == []


def test_a_database_that_is_gone_is_unavailable_and_back_when_it_is(tmp_path) -> None:
    with databases.postgres() as url:
        database = databases_of.connect(url)
        assert database.now() > 0
    for call in (database.now, lambda: database.write(lambda tx: tx.run(_DROP))):
        with pytest.raises(Unavailable) as caught:
            call()
        assert not caught.value.may_have_been_accepted
    database.close()


def test_sqlite_waits_for_another_writer_and_says_so_if_it_never_ends(database: Database, monkeypatch) -> None:
    if database.dialect != "sqlite":
        pytest.skip("about SQLite's one writer")
    other = sqlite3.connect(database.url.removeprefix("sqlite:///"), isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    with futures.ThreadPoolExecutor(1) as pool:
        waits = pool.submit(database.write, lambda tx: tx.insert_rows(_VALUES, _NAMES, ROWS))
        assert _kept(database) == []  # readers don't wait
        other.execute("COMMIT")
        waits.result(20)
    assert len(_kept(database)) == len(ROWS)
    monkeypatch.setattr("models.sqlite.BUSY_TIMEOUT_S", 0.1)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="locked"):
        database.write(lambda tx: tx.run(_RAISE, id="a"))
    other.close()
    waiting.until(lambda: database.write(lambda tx: tx.run(_RAISE, id="a")) == 1)
