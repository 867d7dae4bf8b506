"""A feeder that dies between marking jobs and publishing their tickets."""

import pytest

from models import feed, ids, incarnation
from models.database import Database
from tests import rows


def _begun(database: Database) -> str:
    name = ids.new(ids.INCARNATION)
    database.write(lambda tx: incarnation.begin(tx, name, kind=incarnation.HOUSEKEEPING, host="here", pid=1))
    return name


def _marked(database: Database) -> None:
    """Jobs whose tickets were never sent."""
    names = rows.jobs(database, 3)
    database.write(lambda tx: feed.close(tx, "cpu", "interactive"))
    database.write(lambda tx: feed.mark(tx, names))


@pytest.mark.parametrize("reason", [incarnation.KILLED, incarnation.LOST])
def test_jobs_that_a_dead_feeder_marked_may_have_another_ticket_at_once(database: Database, reason: str) -> None:
    feeder = _begun(database)
    _marked(database)
    with database.read() as tx:
        assert not feed.left(tx, "cpu")
    database.write(lambda tx: incarnation.end(tx, feeder, reason, max_attempts=3))
    with database.read() as tx:
        assert feed.left(tx, "cpu")
        assert not feed.marked(tx, "cpu")


def test_a_feeder_that_ends_by_itself_leaves_its_marks(database: Database) -> None:
    feeder = _begun(database)
    _marked(database)
    database.write(lambda tx: incarnation.end(tx, feeder, incarnation.EXITED, max_attempts=3))
    with database.read() as tx:
        assert not feed.left(tx, "cpu")
