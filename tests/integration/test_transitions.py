"""Every transition of a job on both databases, one at a time."""

from collections.abc import Callable, Sequence

import pytest

from models import claim, event, feed, ids, incarnation, job
from models.claim import Outcome
from models.database import Database, Statement
from models.job import Job, NewJob
from tests import waiting

TENANT = "default"
MAX_ATTEMPTS = 3
_ROW = Statement("SELECT state, waiting, suspect, begun, attempt, crashes, crashes_alone, ticketed_until, "
                 "incarnation, error_code FROM jobs WHERE id = :id")
_EVENTS = Statement("SELECT subject, type FROM events ORDER BY id")
_LISTEN = Statement("INSERT INTO webhook_endpoints (id, tenant, name, url, event_types, secrets, state, created_at, "
                    "updated_at) VALUES ('whe_1', :tenant, 'n', 'http://x', '[]', '[]', 'enabled', 0, 0)")


@pytest.fixture
def accept(database: Database) -> Callable[..., list[str]]:
    def accept(count: int = 1, **fields: object) -> list[str]:
        new = [NewJob(**({"id": ids.new(ids.JOB), "tenant": TENANT, "network": "n@1", "hardware": "cpu", "work": 1.0,
                          "input": b"[1]"} | fields)) for _ in range(count)]
        now = database.now()
        database.write(lambda tx: (feed.is_open(tx, "cpu", "interactive"), job.accept(tx, new, now)))
        return [each.id for each in new]

    return accept


@pytest.fixture
def worker(database: Database) -> Callable[[], str]:
    def worker() -> str:
        name = ids.new(ids.INCARNATION)
        database.write(lambda tx: incarnation.begin(tx, name, kind=incarnation.WORKER, host="h", pid=1,
                                                    hardware="cpu", lanes="interactive"))
        return name

    return worker


def _claim(database: Database, wanted: Sequence[str], worker: str, *, begun: bool = True,
           alone: bool = False) -> list[claim.Claimed]:
    return database.write(lambda tx: claim.claim(tx, wanted, incarnation=worker, hardware="cpu", begun=begun,
                                                 alone=alone), durable=False)


def _settle(database: Database, claimed: Sequence[claim.Claimed], worker: str, state: str = "succeeded",
            **fields: object) -> dict[str, str]:
    outcomes = [Outcome(c.id, c.attempt, state, **({"output": b"{}"} | fields)) for c in claimed]
    return database.write(lambda tx: claim.settle(tx, outcomes, incarnation=worker))


def _end(database: Database, worker: str, reason: str) -> list[str] | None:
    return database.write(lambda tx: incarnation.end(tx, worker, reason, max_attempts=MAX_ATTEMPTS))


def _row(database: Database, job_id: str) -> dict[str, object]:
    with database.read() as tx:
        row = tx.one(_ROW, id=job_id)
    assert row is not None
    names = ("state", "waiting", "suspect", "begun", "attempt", "crashes", "crashes_alone", "marked", "holder", "error")
    values = dict(zip(names, row, strict=True))
    return values | {name: bool(values[name]) for name in ("waiting", "suspect", "begun", "marked")}


def _get(database: Database, job_id: str) -> Job:
    with database.read() as tx:
        found = job.get(tx, TENANT, job_id)
    assert found is not None
    return found


def test_a_job_is_claimed_with_its_input_and_settled_with_its_output(database, accept, worker) -> None:
    me, wanted = worker(), accept(3, input=b'{"x": 1}', webhook=b'{"url": "http://x"}')
    claimed = _claim(database, wanted, me)
    assert sorted(c.id for c in claimed) == sorted(wanted)
    assert all(c.input == b'{"x": 1}' and c.attempt == 1 and c.listened and c.tenant == TENANT for c in claimed)
    assert _settle(database, claimed, me, output=b'{"y": 2}', run_ms=1.5, batch_size=3) == dict.fromkeys(
        wanted, "succeeded")
    found = _get(database, wanted[0])
    assert (found.state, found.output, found.run_ms, found.batch_size) == ("succeeded", b'{"y": 2}', 1.5, 3)
    assert found.started_at is not None
    assert found.created_at <= found.started_at <= found.finished_at


def test_a_job_is_claimed_once(database, accept, worker) -> None:
    wanted = accept(2)
    assert len(_claim(database, wanted, worker())) == 2
    assert _claim(database, wanted, worker()) == []


def test_an_unknown_id_is_not_claimed(database, accept, worker) -> None:
    (known,) = accept()
    assert [c.id for c in _claim(database, [known, ids.new(ids.JOB)], worker())] == [known]


def test_a_job_past_its_deadline_is_not_claimed_and_expires(database, accept, worker) -> None:
    late, other = accept(deadline_s=0.0)[0], accept(deadline_s=60.0)[0]
    assert [c.id for c in _claim(database, [late, other], worker())] == [other]
    assert database.write(job.expire) == [late]
    assert _get(database, late).state == "expired"
    assert database.write(job.expire) == []


def test_a_running_job_expires_and_its_result_is_discarded(database, accept, worker) -> None:
    me, wanted = worker(), accept(deadline_s=0.5)
    claimed = _claim(database, wanted, me)
    waiting.until(lambda: database.write(job.expire), what="its deadline")
    assert _settle(database, claimed, me) == {}
    assert _get(database, wanted[0]).output is None


def test_a_settle_after_the_deadline_says_expired_and_stores_no_result(database, accept, worker) -> None:
    me, wanted = worker(), accept(deadline_s=0.5)
    claimed = _claim(database, wanted, me)
    deadline = _get(database, wanted[0]).deadline_at
    waiting.until(lambda: database.now() > deadline, what="its deadline")
    assert _settle(database, claimed, me) == {wanted[0]: "expired"}
    assert _get(database, wanted[0]).output is None


def test_expiry_goes_in_batches(database, accept) -> None:
    wanted = accept(5, deadline_s=0.0)
    found = [database.write(lambda tx: job.expire(tx, 2)) for _ in range(3)]
    assert [len(part) for part in found] == [2, 2, 1]
    assert sorted(each for part in found for each in part) == sorted(wanted)


def test_a_failed_item_keeps_its_reason(database, accept, worker) -> None:
    me, wanted = worker(), accept()
    _settle(database, _claim(database, wanted, me), me, "failed", output=None, error_code="inference_failed",
            error_message="no")
    found = _get(database, wanted[0])
    assert (found.state, found.error_code, found.error_message) == ("failed", "inference_failed", "no")


def test_a_worker_that_lost_its_lease_writes_nothing(database, accept, worker) -> None:
    first, second, wanted = worker(), worker(), accept()
    old = _claim(database, wanted, first, begun=False)
    _end(database, first, incarnation.LOST)
    new = _claim(database, wanted, second)
    assert new[0].attempt == 2
    assert _settle(database, old, first) == {}
    assert database.write(lambda tx: claim.give_back(tx, wanted, incarnation=first)) == 0
    assert _settle(database, new, second) == {wanted[0]: "succeeded"}


def test_between_its_end_and_the_next_claim_a_lost_worker_writes_nothing_either(database, accept, worker) -> None:
    me, wanted = worker(), accept()
    claimed = _claim(database, wanted, me, begun=False)
    _end(database, me, incarnation.LOST)
    assert _settle(database, claimed, me) == {}
    assert _row(database, wanted[0])["waiting"]


def test_an_older_attempt_of_the_same_worker_writes_nothing(database, accept, worker) -> None:
    me, wanted = worker(), accept()
    old = _claim(database, wanted, me)
    database.write(lambda tx: claim.give_back(tx, wanted, incarnation=me))
    new = _claim(database, wanted, me)
    assert _settle(database, old, me) == {}
    assert _settle(database, new, me) == {wanted[0]: "succeeded"}


def test_settling_twice_counts_once(database, accept, worker) -> None:
    me, wanted = worker(), accept()
    claimed = _claim(database, wanted, me)
    assert _settle(database, claimed, me) != {}
    assert _settle(database, claimed, me, output=b"other") == {}
    assert _get(database, wanted[0]).output == b"{}"


def test_a_lost_worker_cannot_claim(database, accept, worker) -> None:
    me, wanted = worker(), accept()
    _end(database, me, incarnation.LOST)
    assert _claim(database, wanted, me) == []


def test_a_canceled_job_is_not_claimed(database, accept, worker) -> None:
    wanted = accept()
    assert database.write(lambda tx: job.cancel(tx, TENANT, wanted[0])) == "queued"
    assert _claim(database, wanted, worker()) == []
    assert database.write(lambda tx: job.cancel(tx, TENANT, wanted[0])) == "canceled"


def test_a_job_canceled_while_running_keeps_no_result(database, accept, worker) -> None:
    me, wanted = worker(), accept(2)
    claimed = _claim(database, wanted, me)
    assert database.write(lambda tx: job.cancel(tx, TENANT, wanted[0])) == "running"
    assert _settle(database, claimed, me) == {wanted[1]: "succeeded"}
    assert _get(database, wanted[0]).state == "canceled"


def test_another_tenants_job_is_neither_canceled_nor_retried(database, accept) -> None:
    wanted = accept()
    assert database.write(lambda tx: job.cancel(tx, "other", wanted[0])) is None
    assert database.write(lambda tx: job.retry(tx, "other", wanted[0])) is None


def test_a_failed_job_is_retried_from_the_start(database, accept, worker) -> None:
    me, wanted = worker(), accept()
    _settle(database, _claim(database, wanted, me), me, "failed", output=None, error_code="inference_failed")
    assert database.write(lambda tx: job.retry(tx, TENANT, wanted[0])) == "failed"
    row = _row(database, wanted[0])
    assert (row["state"], row["waiting"], row["error"], row["holder"], row["attempt"]) == (
        "queued", True, None, None, 1)
    again = _claim(database, wanted, me)
    assert again[0].attempt == 2
    assert _settle(database, again, me) == {wanted[0]: "succeeded"}
    assert database.write(lambda tx: job.retry(tx, TENANT, wanted[0])) == "succeeded"


def test_given_back_jobs_count_nothing_and_have_no_mark(database, accept, worker) -> None:
    me, wanted = worker(), accept(2, ticketed=True)
    _claim(database, wanted, me)
    assert database.write(lambda tx: claim.give_back(tx, wanted, incarnation=me)) == 2
    row = _row(database, wanted[0])
    assert (row["state"], row["waiting"], row["crashes"], row["suspect"], row["marked"], row["begun"]) == (
        "queued", True, 0, False, False, False)


def test_a_killed_workers_running_jobs_become_suspects_and_its_next_batch_does_not(database, accept, worker) -> None:
    me, ran, next_one = worker(), accept(2), accept()
    _claim(database, ran, me, begun=True)
    _claim(database, next_one, me, begun=False)
    assert _end(database, me, incarnation.KILLED) == []
    for each in ran:
        row = _row(database, each)
        assert (row["state"], row["waiting"], row["suspect"], row["crashes"], row["crashes_alone"]) == (
            "running", True, True, 1, 0)
    row = _row(database, next_one[0])
    assert (row["waiting"], row["suspect"], row["crashes"]) == (True, False, 0)


def test_begun_is_written_with_the_settle_before(database, accept, worker) -> None:
    me, first, second = worker(), accept(), accept()
    claimed = _claim(database, first, me)
    _claim(database, second, me, begun=False)
    outcomes = [Outcome(claimed[0].id, 1, "succeeded", output=b"{}")]
    database.write(lambda tx: claim.settle(tx, outcomes, incarnation=me, begin=second))
    assert _row(database, second[0])["begun"]


def test_a_lease_that_ran_out_isolates_but_does_not_count(database, accept, worker) -> None:
    me, wanted = worker(), accept()
    _claim(database, wanted, me)
    _end(database, me, incarnation.LOST)
    row = _row(database, wanted[0])
    assert (row["suspect"], row["crashes"], row["crashes_alone"]) == (True, 0, 0)


def test_a_suspect_is_only_claimed_alone(database, accept, worker) -> None:
    first, wanted = worker(), accept()
    _claim(database, wanted, first)
    _end(database, first, incarnation.KILLED)
    assert _claim(database, wanted, worker()) == []
    assert len(_claim(database, wanted, worker(), alone=True)) == 1


def test_a_job_that_kills_alone_is_parked_after_max_attempts_and_may_be_retried(database, accept, worker) -> None:
    (wanted,) = accept(webhook=b'{"url": "http://x"}')
    for attempt in range(1, MAX_ATTEMPTS + 1):
        me = worker()
        assert [c.attempt for c in _claim(database, [wanted], me, alone=True)] == [attempt]
        assert _end(database, me, incarnation.KILLED) == ([wanted] if attempt == MAX_ATTEMPTS else [])
    found = _get(database, wanted)
    assert (found.state, found.error_code, found.crashes) == ("failed", "crashes_exhausted", MAX_ATTEMPTS)
    with database.read() as tx:
        assert tx.all(_EVENTS) == [(wanted, "job.failed")]
    database.write(lambda tx: job.retry(tx, TENANT, wanted))
    row = _row(database, wanted)
    assert (row["suspect"], row["crashes"], row["crashes_alone"]) == (False, 0, 0)


def test_a_job_that_takes_workers_along_whom_nobody_sees_die_is_parked_too(database, accept, worker) -> None:
    (wanted,) = accept()
    for attempt in range(1, claim.UNCONFIRMED * MAX_ATTEMPTS + 1):
        me = worker()
        assert [c.attempt for c in _claim(database, [wanted], me, alone=True)] == [attempt]
        last = attempt == claim.UNCONFIRMED * MAX_ATTEMPTS
        assert _end(database, me, incarnation.LOST) == ([wanted] if last else [])
    found = _get(database, wanted)
    assert (found.state, found.error_code, found.crashes) == ("failed", "crashes_exhausted", 0)


def test_a_worker_that_holds_what_has_begun_has_worked(database, accept, worker) -> None:
    me = worker()
    _claim(database, accept(), me, begun=False)
    with database.read() as tx:
        assert not claim.runs(tx, me)
    _claim(database, accept(), me, begun=True)
    with database.read() as tx:
        assert claim.runs(tx, me)


def test_a_life_ends_once(database, worker) -> None:
    me = worker()
    assert _end(database, me, incarnation.EXITED) == []
    assert _end(database, me, incarnation.KILLED) is None
    assert not database.write(lambda tx: incarnation.beat(tx, me, ready=True, holding={}))


def test_a_beat_in_the_last_moment_keeps_a_life_from_being_lost(database, worker) -> None:
    me = worker()
    assert database.write(lambda tx: incarnation.beat(tx, me, ready=True, holding={"buffered": 2}))
    lost = database.write(lambda tx: incarnation.end(tx, me, incarnation.LOST, beats=0, max_attempts=3))
    assert lost is None
    with database.read() as tx:
        (alive,) = incarnation.live(tx)
    assert (alive.beats, alive.ready, alive.holding) == (1, True, {"buffered": 2})
    assert database.write(lambda tx: incarnation.end(tx, me, incarnation.LOST, beats=1, max_attempts=3)) == []


def test_what_an_ended_life_still_holds_is_found_and_released(database, accept, worker) -> None:
    me, wanted = worker(), accept()
    _claim(database, wanted, me, begun=False)
    database.write(lambda tx: tx.run(Statement("UPDATE incarnations SET ended_at = 1 WHERE id = :id"), id=me))
    with database.read() as tx:
        assert incarnation.abandoned(tx) == [me]
    assert database.write(lambda tx: incarnation.forget(tx, 0.0)) == 0
    database.write(lambda tx: claim.release(tx, me, confirmed=False, max_attempts=3))
    with database.read() as tx:
        assert incarnation.abandoned(tx) == []
    assert len(_claim(database, wanted, worker())) == 1
    assert database.write(lambda tx: incarnation.forget(tx, 0.0)) == 1


def test_events_are_written_only_for_jobs_with_a_listener(database, accept, worker) -> None:
    me, silent, heard = worker(), accept(), accept(webhook=b'{"url": "http://x"}')
    _settle(database, _claim(database, [*silent, *heard], me), me)
    with database.read() as tx:
        assert tx.all(_EVENTS) == [(heard[0], "job.succeeded")]


def test_an_endpoint_made_a_moment_ago_hears_every_transition(database, accept, worker) -> None:
    me = worker()
    wanted = [accept()[0], accept()[0], accept()[0], accept(deadline_s=0.0)[0]]
    claimed = _claim(database, wanted[:2], me)
    database.write(lambda tx: tx.run(_LISTEN, tenant=TENANT))
    _settle(database, claimed[:1], me)
    _settle(database, claimed[1:], me, "failed", output=None, error_code="inference_failed")
    database.write(lambda tx: job.cancel(tx, TENANT, wanted[2]))
    database.write(job.expire)
    with database.read() as tx:
        assert sorted(kind for _, kind in tx.all(_EVENTS)) == sorted(event.JOB_TYPES)


def test_a_state_that_cannot_be_is_refused_by_the_database(database, accept) -> None:
    (wanted,) = accept()
    for change in ("state = 'done'", "priority = 10", "waiting = FALSE", "state = 'failed'"):
        with pytest.raises(Exception, match=r"(?i)check"):
            database.write(lambda tx, change=change: tx.run(
                Statement(f"UPDATE jobs SET {change} WHERE id = :id"), id=wanted))


def test_a_death_beside_another_claim_does_not_count_as_alone(database, accept, worker) -> None:
    """What was claimed for the next batch may have been in the decoder."""
    wanted = accept(2)
    me = worker()
    _claim(database, wanted[:1], me, begun=True)
    _claim(database, wanted[1:], me, begun=False)
    _end(database, me, incarnation.KILLED)
    rows = [_row(database, each) for each in wanted]
    assert [(row["suspect"], row["crashes"], row["crashes_alone"]) for row in rows] == [(True, 1, 0), (False, 0, 0)]


def test_what_was_not_run_is_given_back_with_the_settle(database, accept, worker) -> None:
    wanted, me = accept(2), worker()
    claimed = _claim(database, wanted, me)
    outcomes = [Outcome(c.id, c.attempt, "succeeded", output=b"{}") for c in claimed if c.id == wanted[0]]
    settled = database.write(lambda tx: claim.settle(tx, outcomes, incarnation=me, unrun=wanted))
    assert settled == {wanted[0]: "succeeded"}
    assert [_row(database, each)["state"] for each in wanted] == ["succeeded", "queued"]
