"""Idempotency-Key: one request, one set of jobs, however often and however close together it is sent."""

import threading
from collections.abc import Iterator

import pytest

from models import job
from models.database import Statement
from models.settings import Settings
from tests import apis


@pytest.fixture
def api(settings: Settings) -> Iterator[apis.Api]:
    with apis.running(settings) as running:
        yield running


def job_count(api: apis.Api) -> int:
    with api.service.database.read() as tx:
        return len(job.listing(tx, "default", limit=1000))


def send(api: apis.Api, key: str, path: str = "/v1/jobs", **more: object) -> apis.Answer:
    return api.call("POST", path, apis.job_body(**more), idempotency_key=key)


def test_a_repeated_request_gets_the_first_answer(api: apis.Api) -> None:
    first, again, quoted = send(api, "k 1"), send(api, "k 1"), send(api, '"k 1"')
    assert first.status == again.status == quoted.status == 202
    assert first.body == again.body == quoted.body
    assert again.headers["Location"] == first.headers["Location"]
    assert "Idempotent-Replayed" not in first.headers
    assert again.headers["Idempotent-Replayed"] == quoted.headers["Idempotent-Replayed"] == "true"
    assert job_count(api) == 1


def test_another_request_under_the_same_key_is_refused_for_good(api: apis.Api) -> None:
    send(api, "k")
    answer = send(api, "k", priority=1)
    assert (answer.status, answer.json["code"]) == (422, "idempotency_mismatch")
    assert answer.headers["x-should-retry"] == "false"
    assert job_count(api) == 1


def test_a_refused_request_does_not_use_up_its_key(api: apis.Api) -> None:
    assert send(api, "k", priority=77).status == 422
    assert send(api, "k").status == 202


def test_a_key_belongs_to_one_path(api: apis.Api) -> None:
    assert send(api, "k").status == 202
    batch = api.call("POST", "/v1/jobs/batch", {"jobs": [apis.job_body(), {}]}, idempotency_key="k")
    again = api.call("POST", "/v1/jobs/batch", {"jobs": [apis.job_body(), {}]}, idempotency_key="k")
    assert batch.status == 202
    assert batch.body == again.body
    assert again.headers["Idempotent-Replayed"] == "true"
    assert job_count(api) == 2


def test_of_many_at_once_one_is_stored_and_all_get_its_answer(api: apis.Api) -> None:
    gate = threading.Barrier(16)
    answers: list[apis.Answer] = []

    def run(index: int) -> None:
        gate.wait()
        answers.append(send(api, f"k{index % 2}"))

    threads = [threading.Thread(target=run, args=(index,)) for index in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert {answer.status for answer in answers} == {202}
    assert len({answer.json["id"] for answer in answers}) == 2
    assert sum("Idempotent-Replayed" not in answer.headers for answer in answers) == 2
    assert job_count(api) == 2


def test_a_key_is_new_again_after_a_day(api: apis.Api) -> None:
    first = send(api, "k").json["id"]
    api.service.database.write(lambda tx: tx.run(Statement(
        "UPDATE idempotency_keys SET created_at = created_at - 90000000")))
    second = send(api, "k", priority=1)
    assert second.status == 202
    assert second.json["id"] != first
    assert send(api, "k", priority=1).json["id"] == second.json["id"]


@pytest.mark.parametrize("key", ["", '""', "x" * 256, "ü", "a\tb"])
def test_a_key_is_printable_and_not_too_long(api: apis.Api, key: str) -> None:
    answer = send(api, key)
    assert (answer.status, answer.json["code"]) == (422, "invalid_request")
    assert job_count(api) == 0
