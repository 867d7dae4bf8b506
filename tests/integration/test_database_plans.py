"""The statements of the hot path look up, on both databases: their cost doesn't grow with the finished jobs."""

import re
from collections.abc import Mapping
from typing import Any

import pytest

from models import claim, feed, incarnation, job, quota, turn
from models.database import Database, Statement
from tests import rows

_TABLE = re.compile(r"\b(jobs|inputs|results|events|j|i)\b")
ONE: Mapping[str, Any] = {"incarnation": "inc_x", "hardware": "cpu"}
STATEMENTS: dict[str, tuple[Statement, Mapping[str, Any]]] = {
    "claim": (claim._CLAIM, {**ONE, "ids": ["a", "b"], "begun": True, "alone": False}),
    "look": (claim._LOOK, {**ONE, "ids": ["a", "b"], "alone": False}),
    "settle": (claim._STILL_HELD, {**ONE, "ids": ["a", "b"]}),
    "begin": (claim._BEGIN, {**ONE, "ids": ["a", "b"]}),
    "give back": (claim._GIVE_BACK, {**ONE, "ids": ["a", "b"]}),
    "unmark": (claim._UNMARK, {"ids": ["a", "b"]}),
    "held": (claim._HELD, ONE),
    "release": (claim._RELEASE, {"ids": ["a"], "suspect": True, "crashed": 1, "alone": 1}),
    "get": (job._GET, {"id": "a", "tenant": "t"}),
    "states": (job._STATES, {"ids": ["a"]}),
    "cancel": (job._LOCK, {"id": "a", "tenant": "t"}),
    "due": (job._DUE, {"limit": 10}),
    "expire": (job._EXPIRED, {"ids": ["a"]}),
    "left": (feed._LEFT, {"hardware": "cpu", "after": "job_0"}),
    "slots": (turn._SLOTS, {"hardware": "cpu", "after": "job_0"}),
    "newcomer": (turn._NEWCOMER, {"hardware": "cpu", "ps": [-1, 10], "ts": ["", ""]}),
    "pick": (turn._PICK, {"hardware": "cpu", "limit": 64, "each": 64, "priorities": [5], "tenants": ["t"],
                          "afters": [""]}),
    "pick of SQLite": (turn._PICKS[1], {"hardware": "cpu", "limit": 64, "each": 64, "p0": 5, "t0": "t", "a0": ""}),
    "in flight": (quota._IN_FLIGHT, {"tenants": ["t"]}),
    "mark": (feed._MARK, {"ids": ["a"], "ms": 1}),
    "clear": (feed._CLEAR, {"hardware": "cpu"}),
    "overdue": (feed._OVERDUE, {"hardware": "cpu", "ms": 1}),
    "waiting": (feed._TALLY_WAITING, {}),
    "running": (feed._TALLY_RUNNING, {}),
    "abandoned": (incarnation._ABANDONED, {}),
}
ONLY_SQLITE = (claim._LOOK, turn._PICKS[1])
ONLY_POSTGRES = (turn._PICK, turn._NEWCOMER)
# Walks of an index that holds only what waits or runs: its size is the backlog's, not the table's.
PARTIAL = re.compile(r"ix_jobs_(waiting|waiting_deadline|turn|turn_deadline|running|deadline)\b")


def _elsewhere(statement: Statement, database: Database) -> bool:
    return statement in (ONLY_POSTGRES if database.dialect == "sqlite" else ONLY_SQLITE)


@pytest.fixture
def filled(database: Database) -> Database:
    """A few thousand finished jobs, some that wait, and statements that were first used when all was empty."""
    for statement, values in STATEMENTS.values():
        if _elsewhere(statement, database):
            continue
        for _ in range(6):
            database.write(lambda tx, s=statement, v=values: tx.run(s, **v))
    me = rows.worker(database)
    for _ in range(4):
        wanted = rows.jobs(database, 500)
        done = database.write(lambda tx, w=wanted: claim.claim(tx, w, incarnation=me, hardware="cpu", begun=True))
        database.write(lambda tx, d=done: claim.settle(
            tx, [claim.Outcome(c.id, c.attempt, "succeeded", output=b"{}") for c in d], incarnation=me))
    rows.jobs(database, 20)
    rows.jobs(database, 5, deadline_s=60.0)
    return database


def test_no_statement_walks_the_finished_jobs(filled: Database) -> None:
    walks = {}
    for name, (statement, values) in STATEMENTS.items():
        if _elsewhere(statement, filled):
            continue
        found = _sqlite(filled, statement, values) if filled.dialect == "sqlite" else _postgres(
            filled, statement, values)
        if found:
            walks[name] = found
    assert walks == {}


def _sqlite(database: Database, statement: Statement, values: Mapping[str, Any]) -> list[str]:
    text, bound = statement.for_sqlite(values)
    with database.read() as tx:
        tx.cursor.execute(f"EXPLAIN QUERY PLAN {text}", bound)
        steps = [row[3] for row in tx.cursor.fetchall()]
    return [step for step in steps if (step.startswith("SCAN") or "(id>?)" in step) and _TABLE.search(step)
            and not PARTIAL.search(step)]


def _postgres(database: Database, statement: Statement, values: Mapping[str, Any]) -> list[str]:
    text, bound = statement.for_postgres(values)
    with database.read() as tx:
        tx.cursor.execute(f"EXPLAIN {text}", bound)
        steps = [row[0].strip() for row in tx.cursor.fetchall()]
    found = []
    for step, after in zip(steps, [*steps[1:], ""], strict=True):
        walks = "Seq Scan" in step or ("Index" in step and "Scan" in step and not after.startswith("Index Cond"))
        walks |= "pk_jobs" in step and "id >" in after  # everything that is newer
        if walks and re.search(r"\bon (jobs|inputs|results|events)\b", step) and not PARTIAL.search(step):
            found.append(step)
    return found
