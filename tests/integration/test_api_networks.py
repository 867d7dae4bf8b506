"""`/v1/models` through the whole application, on both databases."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from api.service import Service
from api.shell import create_app
from models import feed, job, network
from models.settings import Settings

MANIFEST = """
name: {name}
version: "{version}"
task: tensor
artifact: model.onnx
hardware: [cuda, cpu]
batching: {{max_items: 8}}
"""
SIGNATURE = {
    "task": "tensor", "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 1]}], "item_axis": True,
}


@pytest.fixture
def client(settings: Settings) -> Iterator[FlaskClient]:
    app = create_app(settings)
    yield app.test_client()
    app.extensions["headrace"].stop()


def service_of(client: FlaskClient) -> Service:
    found: Service = client.application.extensions["headrace"]
    return found


def upload(client: FlaskClient, name: str = "mill", version: str = "1", content: bytes = b"onnx") -> TestResponse:
    return client.post("/v1/models", data={
        "manifest": MANIFEST.format(name=name, version=version), "model.onnx": (io.BytesIO(content), "model.onnx")})


def make_ready(client: FlaskClient, version: str = "1", name: str = "mill") -> None:
    service = service_of(client)

    def work(tx: Any) -> None:
        found = network.get(tx, name, version)
        assert found is not None
        assert network.accept(tx, found, SIGNATURE)

    service.database.write(work)
    service.directory.refresh()


def reject(client: FlaskClient, version: str = "1", name: str = "mill") -> None:
    def work(tx: Any) -> None:
        found = network.get(tx, name, version)
        assert found is not None
        assert network.reject(tx, found, "not an ONNX file")

    service_of(client).database.write(work)


def submit(client: FlaskClient, model: str) -> TestResponse:
    return client.post("/v1/jobs", json={
        "model": model, "input": {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}})


def blobs_in(settings: Settings) -> list[Path]:
    return list(settings.blobs.rglob("sha256-*"))


def test_an_uploaded_network_is_checking_and_shows_what_was_sent(client: FlaskClient) -> None:
    reply = upload(client)
    assert reply.status_code == 201
    assert reply.headers["Location"] == "/v1/models/mill@1"
    shown = reply.get_json()
    assert shown == client.get("/v1/models/mill@1").get_json() == client.get("/v1/models/mill").get_json()
    assert shown["id"] == "mill@1"
    assert shown["object"] == "model"
    assert isinstance(shown["created"], int)
    assert (shown["state"], shown["reason"], shown["is_default"], shown["signature"]) == ("checking", None, True, None)
    assert shown["hardware"] == ["cuda", "cpu"]
    assert shown["batching"]["max_items"] == 8
    assert shown["variants"] == []
    assert [(file["path"], file["size_bytes"]) for file in shown["files"]] == [("model.onnx", 4)]


def test_the_same_content_again_is_no_new_version(client: FlaskClient) -> None:
    first = upload(client)
    again = upload(client)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.get_json() == first.get_json()


def test_other_content_under_the_same_version_is_a_permanent_conflict(client: FlaskClient) -> None:
    upload(client)
    reply = upload(client, content=b"other")
    assert reply.status_code == 409
    assert reply.content_type == "application/problem+json"
    assert reply.get_json()["code"] == "model_exists"
    assert reply.headers["x-should-retry"] == "false"


def test_a_rejected_version_says_why_and_may_be_replaced(client: FlaskClient) -> None:
    upload(client)
    reject(client)
    shown = client.get("/v1/models/mill@1").get_json()
    assert (shown["state"], shown["reason"], shown["is_default"]) == ("rejected", "not an ONNX file", False)
    replaced = upload(client, content=b"better")
    assert replaced.status_code == 201
    shown = client.get("/v1/models/mill").get_json()
    assert (shown["state"], shown["reason"], shown["is_default"]) == ("checking", None, True)


def test_a_ready_network_shows_its_signature_and_learned_latency(client: FlaskClient) -> None:
    upload(client)
    make_ready(client)
    service_of(client).database.write(lambda tx: tx.insert(feed.rates, [{
        "network": "mill@1", "hardware": "cpu", "overhead_s": 0.002, "per_work_s": 1e-6, "batch_work": 4096.0,
        "batch_items": 64, "updated_at": 1}]))
    shown = client.get("/v1/models/mill").get_json()
    assert shown["state"] == "ready"
    assert shown["signature"] == SIGNATURE
    assert shown["ready_at"].endswith("Z")
    assert shown["latency"] == [{"hardware": "cpu", "overhead_ms": 2.0, "ms_per_work": 0.001, "batch_work": 4096.0,
                                 "batch_items": 64, "updated_at": "1970-01-01T00:00:00.001Z"}]


def test_networks_are_listed_as_openai_lists_models(client: FlaskClient) -> None:
    assert client.get("/v1/models").get_json() == {"object": "list", "data": []}
    upload(client, version="1")
    upload(client, version="2", content=b"two")
    upload(client, name="axle")
    listed = client.get("/v1/models").get_json()
    assert [each["id"] for each in listed["data"]] == ["axle@1", "mill@1", "mill@2"]
    assert all({"id", "object", "created", "owned_by"} <= each.keys() for each in listed["data"])
    assert [each["is_default"] for each in listed["data"]] == [True, True, False]


def test_only_a_ready_version_can_be_promoted(client: FlaskClient) -> None:
    upload(client, version="1")
    upload(client, version="2", content=b"two")
    refused = client.post("/v1/models/mill@2/promote")
    assert (refused.status_code, refused.get_json()["code"]) == (409, "model_not_ready")
    assert "x-should-retry" not in refused.headers
    make_ready(client, "2")
    assert client.post("/v1/models/mill@2/promote").get_json()["is_default"] is True
    assert client.get("/v1/models/mill").get_json()["id"] == "mill@2"
    assert client.get("/v1/models/mill@1").get_json()["is_default"] is False


def test_promoting_a_rejected_version_is_not_worth_a_retry(client: FlaskClient) -> None:
    upload(client)
    reject(client)
    refused = client.post("/v1/models/mill@1/promote")
    assert (refused.status_code, refused.headers["x-should-retry"]) == (409, "false")


def test_a_removed_network_refuses_jobs_at_once_and_is_retired_when_its_last_job_ends(client: FlaskClient) -> None:
    upload(client)
    make_ready(client)
    accepted = submit(client, "mill@1")
    assert accepted.status_code == 202, accepted.text
    removed = client.delete("/v1/models/mill@1").get_json()
    assert (removed["state"], removed["retiring"]) == ("ready", True)
    refused = submit(client, "mill@1")
    assert (refused.status_code, refused.get_json()["code"]) == (404, "model_not_found")
    service = service_of(client)
    assert service.database.write(network.retire_withdrawn) == []
    service.database.write(lambda tx: job.cancel(tx, "default", accepted.get_json()["id"]))
    assert service.database.write(network.retire_withdrawn) == ["mill@1"]
    shown = client.get("/v1/models/mill@1").get_json()
    assert (shown["state"], shown["retiring"]) == ("retired", False)


def test_a_network_without_live_jobs_is_retired_at_once_and_the_next_version_is_the_default(client: FlaskClient) -> None:
    upload(client, version="1")
    upload(client, version="2", content=b"two")
    make_ready(client, "2")
    removed = client.delete("/v1/models/mill@1")
    assert (removed.status_code, removed.get_json()["state"]) == (200, "retired")
    assert client.delete("/v1/models/mill@1").get_json()["state"] == "retired"
    assert client.get("/v1/models/mill").get_json()["id"] == "mill@2"
    assert submit(client, "mill").status_code == 202


def test_a_retired_version_may_be_uploaded_again(client: FlaskClient) -> None:
    upload(client)
    client.delete("/v1/models/mill@1")
    again = upload(client)
    assert (again.status_code, again.get_json()["state"], again.get_json()["is_default"]) == (201, "checking", True)


def test_the_same_content_brings_back_a_version_that_is_being_retired(client: FlaskClient) -> None:
    upload(client)
    make_ready(client)
    submit(client, "mill@1")
    client.delete("/v1/models/mill@1")
    assert upload(client, content=b"other").status_code == 409
    back = upload(client).get_json()
    assert (back["state"], back["retiring"], back["is_default"]) == ("ready", False, True)
    assert submit(client, "mill").status_code == 202


@pytest.mark.parametrize(("method", "path"), [
    ("GET", "/v1/models/none"), ("GET", "/v1/models/mill@9"), ("GET", "/v1/models/@"), ("DELETE", "/v1/models/mill"),
    ("DELETE", "/v1/models/mill@9"), ("POST", "/v1/models/mill@9/promote"), ("POST", "/v1/models/mill/promote"),
    ("GET", "/v1/models/%ff@\u00e9"),
])
def test_a_network_that_does_not_exist_is_not_found(client: FlaskClient, method: str, path: str) -> None:
    upload(client)
    reply = client.open(path, method=method)
    assert (reply.status_code, reply.get_json()["code"]) == (404, "model_not_found")


def test_a_refused_upload_names_every_fault_and_stores_nothing(client: FlaskClient, settings: Settings) -> None:
    reply = client.post("/v1/models", data={
        "manifest": MANIFEST.format(name="mill", version="1"), "extra": (io.BytesIO(b"?"), "../extra")})
    assert (reply.status_code, reply.get_json()["code"]) == (422, "invalid_request")
    assert {(fault["pointer"], fault["rule"]) for fault in reply.get_json()["errors"]} == {
        ("/..~1extra", "path"), ("/model.onnx", "required")}
    assert client.get("/v1/models").get_json()["data"] == []
    assert blobs_in(settings) == []


@pytest.mark.parametrize(("body", "content_type", "status", "code"), [
    (b"{}", "application/json", 415, "unsupported_media_type"),
    (b"", None, 415, "unsupported_media_type"),
    (b"nonsense", "multipart/form-data; boundary=x", 422, "invalid_request"),
    (b"", "multipart/form-data", 422, "invalid_request"),
])
def test_what_is_no_form_is_refused(client: FlaskClient, body: bytes, content_type: str | None, status: int, code: str) -> None:
    reply = client.post("/v1/models", data=body, content_type=content_type)
    assert (reply.status_code, reply.get_json()["code"]) == (status, code)


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_a_nul_in_a_name_is_not_found_on_either_database(client: FlaskClient, method: str) -> None:
    assert client.open("/v1/models/mill@%00", method=method).status_code == 404


def test_an_idempotency_key_replays_an_upload_and_refuses_another_under_it(client: FlaskClient) -> None:
    def send(content: bytes) -> TestResponse:
        return client.post("/v1/models", headers={"Idempotency-Key": "k1"}, data={
            "manifest": MANIFEST.format(name="mill", version="1"), "model.onnx": (io.BytesIO(content), "model.onnx")})

    first, again, other = send(b"onnx"), send(b"onnx"), send(b"other")
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.data == first.data
    assert again.headers["Idempotent-Replayed"] == "true"
    assert again.headers["Location"] == first.headers["Location"]
    assert (other.status_code, other.get_json()["code"]) == (422, "idempotency_mismatch")
