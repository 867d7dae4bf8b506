"""Long polls: told by message, by re-read when the messages are cut, and limited in number."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from api import waiting as waits
from models import contract
from models.settings import Settings
from tests import apis, brokers, waiting


@pytest.fixture
def api(tmp_path: Path, broker: brokers.Broker, migrated_sqlite: Path) -> Iterator[apis.Api]:
    (tmp_path / "headrace.db").write_bytes(migrated_sqlite.read_bytes())
    with apis.running(Settings(data_dir=tmp_path, broker_url=broker.url)) as running:
        yield running


def listeners(broker: brokers.Broker) -> int:
    with broker.client() as client:
        return dict(client.pubsub_numsub(contract.DONE_CHANNEL))[contract.DONE_CHANNEL.encode()]


def test_a_message_wakes_those_who_wait_for_its_jobs_and_no_others(api: apis.Api, broker: brokers.Broker) -> None:
    waiting.until(lambda: listeners(broker) == 1, what="the subscription")
    mine, same, other = (api.service.waiters.register(name) for name in ("job_a", "job_a", "job_b"))
    assert mine is not None
    assert same is not None
    assert other is not None
    with broker.client() as client:
        client.publish(contract.DONE_CHANNEL, contract.encode_done(["job_x", "job_a"]))
    assert mine.wait(20)
    assert same.wait(20)
    assert not other.wait(0)
    api.service.waiters.forget(mine)
    with broker.client() as client:
        client.publish(contract.DONE_CHANNEL, contract.encode_done(["job_a"]))
    assert same.wait(20)


def test_a_cut_subscription_is_made_again(api: apis.Api, broker: brokers.Broker) -> None:
    waiting.until(lambda: listeners(broker) == 1, what="the subscription")
    with broker.client() as client:
        client.client_kill_filter(_type="pubsub")
        waiting.until(lambda: listeners(broker) == 1, what="the subscription again")
        waiter = api.service.waiters.register("job_a")
        assert waiter is not None
        client.publish(contract.DONE_CHANNEL, contract.encode_done(["job_a"]))
    assert waiter.wait(20)


def test_without_any_message_the_end_is_seen_by_reading(api: apis.Api) -> None:
    job_id = api.submit().json["id"]
    waiter = api.service.waiters.register(job_id)
    assert waiter is not None
    apis.finish(api.service.database, job_id)  # tells nobody
    assert waiter.wait(20)


def test_above_the_cap_the_answer_comes_at_once(api: apis.Api) -> None:
    job_id = api.submit().json["id"]
    held = [api.service.waiters.register("job_x") for _ in range(waits.MAX_WAITERS)]
    assert None not in held
    answer = api.call("GET", f"/v1/jobs/{job_id}?wait=30")
    assert (answer.status, answer.json["state"]) == (200, "queued")
    assert answer.headers["Retry-After"]
    assert api.call("POST", "/v1/jobs", apis.job_body(), prefer="wait=30").status == 202


def test_stopping_ends_every_wait(api: apis.Api) -> None:
    job_id = api.submit().json["id"]
    answers: list[apis.Answer] = []
    poll = threading.Thread(target=lambda: answers.append(api.call("GET", f"/v1/jobs/{job_id}?wait=30")))
    poll.start()
    waiting.until(lambda: api.service.waiters.count == 1, what="the wait")
    api.service.waiters.stop()
    poll.join(20)
    assert [answer.status for answer in answers] == [200]


def test_many_wait_at_once_and_all_are_told(api: apis.Api) -> None:
    made = api.call("POST", "/v1/jobs/batch", {"jobs": [apis.job_body()] * 100}).json["data"]
    ids = [entry["job"]["id"] for entry in made]
    answers: list[apis.Answer] = []
    polls = [threading.Thread(target=lambda name=name: answers.append(api.call("GET", f"/v1/jobs/{name}?wait=30")))
             for name in ids]
    for poll in polls:
        poll.start()
    waiting.until(lambda: api.service.waiters.count == 100, what="the waits")
    assert api.submit().status == 202
    for job_id in ids:
        apis.finish(api.service.database, job_id)
    for poll in polls:
        poll.join(20)
    assert [answer.json["state"] for answer in answers] == ["succeeded"] * 100
    assert api.service.waiters.count == 0
