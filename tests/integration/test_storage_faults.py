"""Trouble with the database or the blob store in the middle of a request, and clocks that are off."""

import resource
import time
from collections.abc import Iterator

import pytest

from models import signing
from models.database import Database
from models.settings import Settings
from tests import apis, receivers, waiting
from tests.deliverers import Deliverers, add_endpoint, ended, finish


@pytest.fixture
def api(settings: Settings) -> Iterator[apis.Api]:
    with apis.running(settings) as running:
        yield running


def _input(padding: str = "") -> str:
    return f'{{"inputs": [{{"name": "x", {padding} "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}}]}}'


def test_a_blob_store_that_fails_is_not_remembered_as_the_answer_to_a_batch(api: apis.Api, settings: Settings) -> None:
    large = _input(" " * settings.max_inline_bytes)
    body = f'{{"jobs": [{{"model": "t", "input": {large}}}, {{"model": "t", "input": {_input()}}}]}}'.encode()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (settings.max_inline_bytes // 2, hard))  # as a disk that is full
    try:
        first = api.call("POST", "/v1/jobs/batch", body, idempotency_key="k")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (first.status, first.json["code"], first.json["may_have_been_accepted"]) == (503, "unavailable", False)
    again = api.call("POST", "/v1/jobs/batch", body, idempotency_key="k")
    assert [each["status"] for each in again.json["data"]] == [202, 202]
    assert len(api.call("GET", "/v1/jobs").json["data"]) == 2


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_job_whose_wait_fails_is_answered_as_accepted(api: apis.Api) -> None:
    database = api.service.database
    _run(database, "ALTER TABLE results RENAME TO elsewhere")  # whatever reads jobs fails from now on
    try:
        answer = api.call("POST", "/v1/jobs", apis.job_body(), prefer="wait=1")
    finally:
        _run(database, "ALTER TABLE elsewhere RENAME TO results")
    assert answer.status == 202
    assert api.call("GET", f"/v1/jobs/{answer.json['id']}").json["state"] == "queued"


def _run(database: Database, text: str) -> None:
    database.write(lambda tx: tx.cursor.execute(text))


def test_signatures_are_timed_by_the_databases_clock(
        settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    with receivers.Receiver() as receiver, Deliverers(settings, database) as deliverers:
        endpoint = add_endpoint(database, receiver.on("/a", 204))
        monkeypatch.setattr(time, "time", lambda: real() - 3600)
        finish(database)
        deliverers.start()
        ended(database, "delivered")
        monkeypatch.undo()
        waiting.until(lambda: receiver.at("/a"), what="the webhook")
        (received,) = receiver.at("/a")
    assert signing.verify(endpoint.secrets[0].secret, received.headers, received.body)


