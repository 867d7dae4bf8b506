"""Cursors: how far the feeder is in each slot, so that what it has passed isn't walked again."""

from models.contract import Entry
from models.feed import Waiting
from models.turn import Picked, Slot
from workers.housekeeping.turns import Turns

SLOT = Slot(5, "a")


def _picked(*ids: str) -> Picked:
    return Picked(Waiting(Entry(name, 1.0, 5, None, "a"), "n@1", suspect=False) for name in ids)


def _taken(turns: Turns, picked: Picked, *marked: str) -> str:
    turns.taken(picked, marked, lambda job: job.entry.work)
    return turns.cursors[SLOT]


def test_a_cursor_stops_before_the_first_job_that_got_no_ticket() -> None:
    assert _taken(Turns(), _picked("job_1", "job_2", "job_3"), "job_1", "job_3") == "job_1"


def test_a_job_that_was_committed_late_and_got_no_ticket_takes_the_cursor_back() -> None:
    turns = Turns()
    assert _taken(turns, _picked("job_1", "job_3"), "job_1", "job_3") == "job_3"
    assert _taken(turns, _picked("job_2", "job_4")) < "job_2"
