"""The job routes, on both databases, through both ways in."""

import json
import threading
from collections.abc import Iterator

import pytest

from models import job
from models.database import Statement
from models.settings import Settings
from tests import apis, waiting


@pytest.fixture
def api(settings: Settings) -> Iterator[apis.Api]:
    with apis.running(settings) as running:
        yield running


def stored_count(api: apis.Api) -> int:
    with api.service.database.read() as tx:
        return len(job.listing(tx, "default", limit=2000))


def test_a_job_is_accepted_stored_and_shown(api: apis.Api) -> None:
    answer = api.submit(priority=3, deadline_s=60, metadata={"a": "ü"})
    assert answer.status == 202
    shown = answer.json
    assert answer.headers["Location"] == f"/v1/jobs/{shown['id']}"
    assert int(answer.headers["Retry-After"]) >= 1
    assert (shown["object"], shown["model"], shown["state"], shown["priority"]) == ("job", "t@1", "queued", 3)
    assert shown["metadata"] == {"a": "ü"}
    assert [shown[name] for name in ("output", "error", "hardware", "started_at", "finished_at", "cache")] == [None] * 6
    again = api.call("GET", answer.headers["Location"])
    assert again.status == 200
    assert again.json == shown


def test_the_input_is_stored_as_it_was_sent(api: apis.Api) -> None:
    raw = b'{"model": "t@1", "input":  {"inputs": [{"name":"x","shape":[1,2],"datatype":"FP32","data":[1.50, 2e0]}] }}'
    job_id = api.call("POST", "/v1/jobs", raw).json["id"]
    with api.service.database.read() as tx:
        (row,) = tx.all(Statement("SELECT body FROM inputs"))
    assert bytes(row[0]) == raw[raw.index(b'{"inputs"'):-1]
    assert job_id.startswith("job_")


def test_a_finished_job_shows_its_output_as_the_worker_wrote_it(api: apis.Api) -> None:
    job_id = api.submit().json["id"]
    apis.finish(api.service.database, job_id, output=b'{"y": [1.50]}')
    answer = api.call("GET", f"/v1/jobs/{job_id}")
    assert b'"output":{"y": [1.50]}' in answer.body
    shown = answer.json
    assert (shown["state"], shown["hardware"], shown["attempt"]) == ("succeeded", "cpu", 1)
    assert shown["timings"]["run_ms"] == 1.25
    assert shown["timings"]["batch_size"] == 4
    assert shown["timings"]["queued_ms"] >= 0
    assert "Retry-After" not in answer.headers


def test_a_large_output_comes_from_the_blob_store(api: apis.Api) -> None:
    job_id = api.submit().json["id"]
    apis.finish(api.service.database, job_id, output_blob=api.service.blobs.put(b'{"big":true}'))
    assert api.call("GET", f"/v1/jobs/{job_id}").json["output"] == {"big": True}


def test_a_large_input_goes_to_the_blob_store(api: apis.Api, settings: Settings) -> None:
    padding = b" " * settings.max_inline_bytes
    raw = json.dumps(apis.job_body()).encode().replace(b'"inputs": ', b'"inputs": ' + padding)
    assert api.call("POST", "/v1/jobs", raw).status == 202
    with api.service.database.read() as tx:
        ((body, blob),) = tx.all(Statement("SELECT body, blob FROM inputs"))
    assert body is None
    assert json.loads(api.service.blobs.read(blob)) == apis.tensor([1.0, 2.0])


def test_the_tag_of_a_job_changes_only_with_the_job(api: apis.Api) -> None:
    job_id = api.submit().json["id"]
    first = api.call("GET", f"/v1/jobs/{job_id}").headers["ETag"]
    unchanged = api.call("GET", f"/v1/jobs/{job_id}", if_none_match=f'"x", {first}')
    assert (unchanged.status, unchanged.body, unchanged.headers["ETag"]) == (304, b"", first)
    apis.finish(api.service.database, job_id)
    changed = api.call("GET", f"/v1/jobs/{job_id}", if_none_match=first)
    assert changed.status == 200
    assert changed.headers["ETag"] != first


def test_a_long_poll_ends_with_the_job(api: apis.Api) -> None:
    job_id = api.submit().json["id"]
    answers: list[apis.Answer] = []
    poll = threading.Thread(target=lambda: answers.append(api.call("GET", f"/v1/jobs/{job_id}?wait=30")))
    poll.start()
    waiting.until(lambda: api.service.waiters.count == 1, what="the wait")
    apis.finish(api.service.database, job_id)
    poll.join(20)
    assert [answer.json["state"] for answer in answers] == ["succeeded"]
    assert api.service.waiters.count == 0


def test_a_submit_that_prefers_to_wait_gets_the_finished_job(api: apis.Api) -> None:
    answers: list[apis.Answer] = []
    call = threading.Thread(target=lambda: answers.append(
        api.call("POST", "/v1/jobs", apis.job_body(), prefer="respond-async, wait=25")))
    call.start()
    waiting.until(lambda: stored_count(api) == 1, what="the row")
    (job_id,) = [item["id"] for item in api.call("GET", "/v1/jobs").json["data"]]
    apis.finish(api.service.database, job_id)
    call.join(20)
    assert (answers[0].status, answers[0].json["state"]) == (200, "succeeded")
    assert answers[0].headers["Preference-Applied"] == "wait=25"


def test_a_wait_that_is_too_short_answers_with_the_job_as_it_is(api: apis.Api) -> None:
    answer = api.call("POST", "/v1/jobs", apis.job_body(), prefer="wait=1")
    assert (answer.status, answer.json["state"]) == (202, "queued")


def test_jobs_are_listed_newest_first_in_pages(api: apis.Api) -> None:
    apis.add_network(api.service.database, "t", "2")
    made = [api.submit(model=model).json["id"] for model in ("t", "t@2", "t", "t@2", "t")]
    first = api.call("GET", "/v1/jobs?limit=2").json
    assert [item["id"] for item in first["data"]] == made[:2:-1]
    assert (first["first_id"], first["last_id"], first["has_more"]) == (made[4], made[3], True)
    rest = api.call("GET", f"/v1/jobs?limit=3&after={first['last_id']}").json
    assert ([item["id"] for item in rest["data"]], rest["has_more"]) == (made[2::-1], False)
    assert len(api.call("GET", "/v1/jobs?model=t@2").json["data"]) == 2
    assert len(api.call("GET", "/v1/jobs?model=t").json["data"]) == 5
    assert api.call("GET", "/v1/jobs?state=running").json == {
        "object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


def test_cancel_ends_a_live_job_and_leaves_an_ended_one(api: apis.Api) -> None:
    live, ended = api.submit().json["id"], api.submit().json["id"]
    apis.finish(api.service.database, ended)
    assert api.call("POST", f"/v1/jobs/{live}/cancel").json["state"] == "canceled"
    assert api.call("POST", f"/v1/jobs/{live}/cancel").json["state"] == "canceled"
    assert api.call("POST", f"/v1/jobs/{ended}/cancel").json["state"] == "succeeded"


def test_a_failed_job_is_run_once_more_and_no_other(api: apis.Api) -> None:
    job_id = api.submit().json["id"]
    apis.finish(api.service.database, job_id, failed="out_of_memory")
    failed = api.call("GET", f"/v1/jobs/{job_id}").json
    assert failed["error"] == {"code": "out_of_memory", "message": "it did not work", "retryable": True}
    answer = api.call("POST", f"/v1/jobs/{job_id}/retry")
    assert (answer.status, answer.json["state"], answer.json["error"]) == (202, "queued", None)
    again = api.call("POST", f"/v1/jobs/{job_id}/retry")
    assert (again.status, again.json["code"]) == (422, "invalid_request")


def test_one_bad_entry_does_not_refuse_its_batch(api: apis.Api) -> None:
    entries = [apis.job_body(), apis.job_body(model="nope"), apis.job_body(input=apis.tensor([1, "a"])),
               {"model": "t"}, 7, apis.job_body(priority=0)]
    answer = api.call("POST", "/v1/jobs/batch", {"jobs": entries})
    assert answer.status == 202
    data = answer.json["data"]
    assert [entry["status"] for entry in data] == [202, 404, 422, 422, 422, 202]
    assert [entry["error"]["code"] for entry in data[1:5]] == [
        "model_not_found", "input_invalid", "invalid_request", "invalid_request"]
    assert data[2]["error"]["errors"][0]["pointer"].startswith("/jobs/2/input")
    assert stored_count(api) == 2


def test_a_batch_has_one_to_a_thousand_jobs(api: apis.Api) -> None:
    assert api.call("POST", "/v1/jobs/batch", {"jobs": []}).status == 422
    assert api.call("POST", "/v1/jobs/batch", {"jobs": [apis.job_body()] * 1001}).status == 422
    answer = api.call("POST", "/v1/jobs/batch", {"jobs": [apis.job_body()] * 1000})
    assert {entry["status"] for entry in answer.json["data"]} == {202}
    assert stored_count(api) == 1000


def test_both_ways_in_answer_alike(api: apis.Api) -> None:
    job_id = api.submit().json["id"]
    varying = {"Location", "X-Request-Id", "Content-Length"}
    for method, path, body, headers in (
            ("GET", f"/v1/jobs/{job_id}", None, {}),
            ("GET", f"/v1/jobs/{job_id}", None, {"if_none_match": "*"}),
            ("GET", f"/v1/jobs/{job_id}", None, {"host": "evil.example"}),
            ("GET", "/v1/jobs/job_" + "0" * 32, None, {}),
            ("GET", f"/v1/jobs/{job_id}?wait=x", None, {}),
            ("POST", "/v1/jobs", apis.job_body(), {}),
            ("POST", "/v1/jobs", b"{", {}),
            ("POST", "/v1/jobs", apis.job_body(), {"content_type": "text/plain"}),
            ("POST", "/v1/jobs", apis.job_body(priority=11, x=1), {"x_request_id": "mine"})):
        short = api.call(method, path, body, **headers)
        through_flask = api.call(method, path, body, through=api.app, **headers)
        assert short.status == through_flask.status
        assert ({k: v for k, v in short.headers.items() if k not in varying}
                == {k: v for k, v in through_flask.headers.items() if k not in varying})
        if short.status >= 300:
            assert short.body == through_flask.body
