"""What is taken on and what is refused with 429, over real backlogs and rates, on both databases."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from models import backlog, contract, feed, incarnation, job, rate
from models.backlog import Backlog
from models.rate import Rate
from models.settings import Settings
from tests import apis, rows, waiting

LIMIT_S = 5.0
DEPTH = 20


@pytest.fixture
def api(settings: Settings) -> Iterator[apis.Api]:
    """Jobs of `t` take a second each, one worker's time."""
    with apis.running(replace(settings, max_wait_s=LIMIT_S, max_depth=DEPTH)) as running:
        save(running, Rate("t@1", 0.0, 0.5, 1000.0, 64))
        yield running


def save(api: apis.Api, *rates: Rate) -> None:
    api.service.database.write(lambda tx: rate.save(tx, "cpu", rates))
    api.service.directory.refresh()


def counted(api: apis.Api, work_s: float, *, workers: int = 1, pace: float = 0.05, depth: int = 1,
            oldest_s: float | None = None) -> None:
    """As if housekeeping had just counted this much work. The slow pace keeps it from falling under a test."""
    database = api.service.database
    for _ in range(workers):
        rows.worker(database, pace=pace)
    now = database.now()
    count = Backlog("cpu", contract.INTERACTIVE, depth, 0, work_s, None if oldest_s is None else now - int(oldest_s * 1000), now)

    def begin(tx):
        incarnation.begin(tx, "inc_h", kind=incarnation.HOUSEKEEPING, host="h", pid=1)
        incarnation.beat(tx, "inc_h", ready=True, holding={backlog.HOLDING: backlog.pack([count])})

    database.write(begin)
    api.service.directory.refresh()


def stored(api: apis.Api) -> int:
    with api.service.database.read() as tx:
        return len(job.listing(tx, "default", limit=2000))


def test_over_the_limit_a_job_is_refused_with_the_estimate_and_when_to_come_back(api) -> None:
    counted(api, 1.0, pace=0.05)  # 20 s of waiting at that pace
    answer = api.submit()
    assert (answer.status, answer.json["code"]) == (429, "queue_full")
    assert answer.json["estimated_wait_s"] == pytest.approx(20, abs=2)
    assert int(answer.headers["Retry-After"]) == pytest.approx(15, abs=2)
    assert "x-should-retry" not in answer.headers
    assert stored(api) == 0


def test_below_the_limit_a_job_is_taken_and_told_when_it_starts(api) -> None:
    counted(api, 0.15)
    answer = api.submit()
    assert answer.status == 202
    assert answer.json["estimated_start_s"] == pytest.approx(3, abs=1)
    assert int(answer.headers["Retry-After"]) >= 2


def test_of_a_batch_that_crosses_the_limit_the_later_ones_are_refused(api) -> None:
    counted(api, 0.0, pace=1.0, workers=2)
    answer = api.call("POST", "/v1/jobs/batch", {"jobs": [apis.job_body()] * 40})
    assert answer.status == 202
    statuses = [entry["status"] for entry in answer.json["data"]]
    taken = statuses.count(202)
    assert statuses == [202] * taken + [429] * (40 - taken)
    assert taken == pytest.approx(11, abs=3)  # half a second each, with two workers
    refused = answer.json["data"][-1]["error"]
    assert refused["code"] == "queue_full"
    assert refused["retry_after_s"] >= 1
    assert refused["estimated_wait_s"] == pytest.approx(LIMIT_S, abs=1)
    assert stored(api) == taken
    assert api.submit().status == 429


def test_one_by_one_and_all_at_once_the_same_number_is_taken(api) -> None:
    counted(api, 0.0, pace=1.0, workers=2)
    statuses = [api.submit().status for _ in range(40)]
    assert statuses.count(202) == pytest.approx(11, abs=6)
    assert statuses[:10] == [202] * 10
    assert 429 in statuses


def test_as_the_workers_draw_there_is_room_again(api) -> None:
    counted(api, 100.0 + LIMIT_S * 20, pace=20.0)
    assert api.submit().status == 429
    waiting.until(lambda: api.submit().status == 202, 60)


def test_a_deadline_below_the_idle_run_time_can_never_be_met(api) -> None:
    for work_s in (0.0, 100.0):
        counted(api, work_s)
        answer = api.submit(deadline_s=0.5)
        assert (answer.status, answer.json["code"]) == (429, "deadline_unmeetable")
        assert answer.headers["x-should-retry"] == "false"
        assert "Retry-After" not in answer.headers
        assert answer.json["errors"][0]["pointer"] == "/deadline_s"
    assert stored(api) == 0


def test_a_deadline_that_the_queue_does_not_allow_is_refused_for_now(api) -> None:
    counted(api, 0.2)
    answer = api.submit(deadline_s=2)
    assert (answer.status, answer.json["code"]) == (429, "deadline_unmeetable")
    assert int(answer.headers["Retry-After"]) == pytest.approx(3, abs=1)
    assert api.submit(deadline_s=60).status == 202


def test_an_assumed_rate_rules_no_deadline_out_for_good(api) -> None:
    apis.add_network(api.service.database, "unmeasured")
    counted(api, 0.0)
    answer = api.submit(model="unmeasured", deadline_s=0.001)
    assert answer.status == 429
    assert "x-should-retry" not in answer.headers


def test_without_a_live_worker_jobs_are_taken_up_to_the_depth_cap(api) -> None:
    counted(api, 1000.0, workers=0, depth=DEPTH - 2)
    first = api.submit()
    assert (first.status, first.json["estimated_start_s"]) == (202, None)
    answer = api.call("POST", "/v1/jobs/batch", {"jobs": [apis.job_body()] * 3})
    assert [entry["status"] for entry in answer.json["data"]] == [202, 429, 429]
    assert int(api.submit().headers["Retry-After"]) >= 1


def test_without_a_live_worker_a_deadline_is_held_against_one_worker(api) -> None:
    counted(api, 10.0, workers=0)
    assert api.submit(deadline_s=5).json["code"] == "deadline_unmeetable"
    assert api.submit(deadline_s=60).status == 202


def test_a_refusal_does_not_hide_the_answer_of_an_earlier_request(api) -> None:
    counted(api, 0.0, pace=1.0)
    first = api.call("POST", "/v1/jobs", apis.job_body(), Idempotency_Key="k")
    many = api.call("POST", "/v1/jobs/batch", {"jobs": [apis.job_body()]}, Idempotency_Key="k")
    counted(api, 1000.0, workers=0)
    assert api.submit().status == 429
    again = api.call("POST", "/v1/jobs", apis.job_body(), Idempotency_Key="k")
    assert (again.status, again.body, again.headers["Idempotent-Replayed"]) == (202, first.body, "true")
    assert api.call("POST", "/v1/jobs/batch", {"jobs": [apis.job_body()]}, Idempotency_Key="k").body == many.body
    assert api.call("POST", "/v1/jobs", apis.job_body(), Idempotency_Key="other").status == 429


def test_while_the_lane_is_full_fields_are_checked_and_inputs_are_not(api) -> None:
    counted(api, 1000.0)
    assert api.submit(priority=99).status == 422
    assert api.submit(model="none").status == 404
    assert api.submit(input="no tensor").status == 429


def test_what_was_not_stored_is_not_counted(api) -> None:
    counted(api, 0.0)
    body = apis.job_body()
    for _ in range(5):  # the second and later ones replay the first
        assert api.call("POST", "/v1/jobs", body, Idempotency_Key="k").status == 202
    assert api.service.admission.wait_s("cpu") == pytest.approx(20, abs=3)  # one job at that pace


def test_a_new_count_takes_the_place_of_what_was_believed(api) -> None:
    counted(api, 1000.0)
    assert api.submit().status == 429
    counted(api, 0.0, workers=0)
    assert api.submit().status == 202


def test_how_long_a_job_still_waits_follows_from_its_age(api) -> None:
    counted(api, 0.2, oldest_s=4.0)  # 4 s of waiting
    now = api.service.directory.now_ms()
    whole, half, none = (api.service.admission.remaining_s("cpu", now - age_ms) for age_ms in (0, 2000, 60_000))
    assert (whole, half, none) == (pytest.approx(4, abs=0.5), pytest.approx(2, abs=0.5), 0.0)


def test_queues_show_the_count_of_housekeeping_and_what_came_since(api) -> None:
    api.service.database.write(lambda tx: feed.is_open(tx, "cpu", contract.INTERACTIVE))
    counted(api, 0.1, depth=7)
    before = api.call("GET", "/v1/queues").json["data"][0]
    assert before["depth"] == 7
    assert before["estimated_wait_s"] == pytest.approx(2, abs=0.5)
    api.submit()
    assert api.call("GET", "/v1/queues").json["data"][0]["estimated_wait_s"] == pytest.approx(22, abs=1.5)
    assert json.loads(api.call("GET", "/v1/workers").body)["data"][0]["holding"]["pace"] == 0.05
