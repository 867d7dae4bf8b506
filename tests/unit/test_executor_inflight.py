from models.claim import Claimed
from workers.inflight import Inflight, Running
from workers.scheduler import Batch


def jobs(*ids):
    return [Claimed(each, 1, "default", "a@1", 1.0, 5, None, False, b"{}", None, 0) for each in ids]


def test_a_batch_on_an_idle_device_begins_with_its_claim():
    inflight = Inflight()
    first = Running(Batch("a@1", []))
    assert inflight.add(first)
    inflight.claimed(first, jobs("a"), begun=True)
    assert inflight.reached(first)


def test_the_settle_before_says_that_the_next_batch_began():
    inflight = Inflight()
    first, second = Running(Batch("a@1", [])), Running(Batch("a@1", []))
    inflight.add(first)
    inflight.claimed(first, jobs("a"), begun=True)
    assert not inflight.add(second)
    inflight.claimed(second, jobs("b", "c"), begun=False)
    assert len(inflight) == 3
    assert inflight.left(first) == ["b", "c"]
    assert inflight.reached(second)
    assert inflight.left(second) == []


def test_a_claim_that_came_too_late_for_that_settle_says_so_itself():
    inflight = Inflight()
    first, second = Running(Batch("a@1", [])), Running(Batch("a@1", []))
    inflight.add(first)
    inflight.claimed(first, jobs("a"), begun=True)
    inflight.add(second)
    assert inflight.left(first) == []
    inflight.claimed(second, jobs("b"), begun=False)
    assert not inflight.reached(second)
    assert inflight.left(second) == []


def test_claimed_jobs_without_an_outcome_are_unrun():
    running = Running(Batch("a@1", []), claimed=jobs("a", "b"))
    assert running.unrun == ["a", "b"]
