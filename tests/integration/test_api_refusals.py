"""Bad requests: a problem+json that names the pointer and the rule, and nothing stored."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api import create_app
from models import job, keys
from models.database import Statement
from models.errors import SettingsInvalid
from models.settings import Settings
from tests import apis, brokers


@pytest.fixture
def settings(tmp_path: Path, broker: brokers.Broker, migrated_sqlite: Path) -> Settings:
    path = tmp_path / "headrace.db"
    path.write_bytes(migrated_sqlite.read_bytes())
    return Settings(data_dir=tmp_path, broker_url=broker.url, max_body_bytes=300_000, max_inline_bytes=200_000)


@pytest.fixture
def api(settings: Settings) -> Iterator[apis.Api]:
    with apis.running(settings) as running:
        yield running


def refused(answer: apis.Answer, status: int, code: str) -> Any:
    assert answer.status == status, answer.body
    assert answer.headers["Content-Type"] == "application/problem+json"
    problem = answer.json
    assert (problem["status"], problem["code"], problem["error"]["code"]) == (status, code, code)
    assert problem["detail"]
    assert "Traceback" not in answer.body.decode()
    return problem


def test_every_fault_of_a_job_is_named_at_once(api: apis.Api) -> None:
    problem = refused(api.submit(priority=10, deadline_s=0, hardware=["warp"], metadata={"a": 1, "b" * 65: "x"},
                                 webhook={"url": "ftp://x"}, extra=1, input=apis.tensor([1, 2, 3])),
                      422, "invalid_request")
    pointers = {fault["pointer"] for fault in problem["errors"]}
    assert {"/priority", "/deadline_s", "/hardware/0", "/metadata/a", "/metadata/" + "b" * 65, "/webhook/url",
            "/extra"} <= pointers
    assert any(pointer.startswith("/input") for pointer in pointers)


@pytest.mark.parametrize(("raw", "status", "code"), [
    (b"", 400, "invalid_json"),
    (b"{", 400, "invalid_json"),
    (b'{"model":"t","input":NaN}', 400, "invalid_json"),
    (b'{"model":"t","input":"\xff"}', 400, "invalid_json"),
    (b'{"model":"t","input":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, "invalid_json"),
    (b"[1]", 422, "invalid_request"),
    (b'{"model":"t"}', 422, "invalid_request"),
    (b'{"model":"t\\u0000","input":1}', 422, "invalid_request"),
    (b'{"model":"t","input":"\\ud83d"}', 422, "invalid_request"),
    (b'{"model":"t","input":{"a":["\\udc00"]}}', 422, "invalid_request"),
    (b'{"model":"nope","input":1}', 404, "model_not_found"),
    (b'{"model":"t","input":1}', 422, "input_invalid"),
    (b" " * 300_001, 413, "payload_too_large"),
])
def test_a_bad_body_is_refused_and_nothing_is_stored(api: apis.Api, raw: bytes, status: int, code: str) -> None:
    refused(api.call("POST", "/v1/jobs", raw, content_type="application/json"), status, code)
    if raw.startswith(b"{") and code != "invalid_json":
        answer = api.call("POST", "/v1/jobs/batch", b'{"jobs":[' + raw + b"]}")
        assert answer.status in (202, 422)
    with api.service.database.read() as tx:
        assert job.listing(tx, "default") == []


def test_the_pointer_leads_to_the_bad_character(api: apis.Api) -> None:
    problem = refused(api.call("POST", "/v1/jobs", b'{"model":"t","input":{"a/b":["x","\\udc00"]}}'), 422,
                      "invalid_request")
    assert problem["errors"][0]["pointer"] == "/input/a~1b/1"


def test_an_unready_network_is_a_conflict_that_may_be_tried_again(api: apis.Api) -> None:
    apis.add_network(api.service.database, "late", ready=False)
    answer = api.submit(model="late")
    refused(answer, 409, "model_not_ready")
    assert "x-should-retry" not in answer.headers
    assert answer.headers["Retry-After"]


def test_paths_and_methods_that_are_not_there_are_problems_too(api: apis.Api) -> None:
    refused(api.call("GET", "/nothing"), 404, "not_found")
    refused(api.call("GET", "//v1//jobs"), 404, "not_found")
    refused(api.call("GET", "/v1/jobs/ümlaut"), 404, "not_found")
    refused(api.call("GET", "/v1/jobs/job_" + "0" * 32), 404, "not_found")
    answer = api.call("PUT", "/v1/jobs", {})
    refused(answer, 405, "method_not_allowed")
    assert answer.headers["Allow"] == "GET, HEAD, OPTIONS, POST"
    options = api.call("OPTIONS", "/v1/jobs")
    assert (options.status, options.body, options.headers["Allow"]) == (204, b"", "GET, HEAD, OPTIONS, POST")
    head = api.call("HEAD", "/v1/jobs")
    assert (head.status, head.body) == (200, b"")


def test_bad_queries_are_refused(api: apis.Api) -> None:
    for query in ("limit=0", "limit=101", "limit=x", "after=7", "state=done", "stat=queued", "state=%ff"):
        refused(api.call("GET", f"/v1/jobs?{query}"), 422, "invalid_request")


def test_bodies_are_json_but_an_empty_post_may_be_anything(api: apis.Api) -> None:
    refused(api.call("POST", "/v1/jobs", b"x", content_type="text/html"), 415, "unsupported_media_type")
    refused(api.call("POST", "/v1/jobs", b"x", content_type=""), 415, "unsupported_media_type")
    job_id = api.submit().json["id"]
    assert api.call("POST", f"/v1/jobs/{job_id}/cancel", content_type="text/html").status == 200
    raw = json.dumps(apis.job_body()).encode()
    assert api.call("POST", "/v1/jobs", raw, content_type="application/json; charset=UTF-8").status == 202


def test_a_body_that_is_cut_or_has_no_length_is_refused_or_read(api: apis.Api) -> None:
    raw = json.dumps(apis.job_body()).encode()
    refused(api.call("POST", "/v1/jobs", raw, content_length="9999"), 400, "invalid_json")
    chunked = api.call("POST", "/v1/jobs", raw, content_length="", transfer_encoding="chunked")
    assert chunked.status == 202
    refused(api.call("POST", "/v1/jobs", b" " * 300_001, content_length="", transfer_encoding="chunked"), 413,
            "payload_too_large")


def test_without_keys_only_this_machine_may_ask(api: apis.Api) -> None:
    for host in ("127.0.0.1:8080", "localhost", "[::1]:1", "a.localhost:80"):
        assert api.call("GET", "/v1/jobs", host=host).status == 200
    for host in ("evil.example", "127.0.0.1.evil.example", "10.0.0.1", "[", "evil.example@127.0.0.1:80@x"):
        refused(api.call("GET", "/v1/jobs", host=host), 403, "forbidden")


def test_without_keys_only_its_own_pages_may_ask(api: apis.Api) -> None:
    assert api.call("POST", "/v1/jobs", apis.job_body(), origin="http://127.0.0.1:8080").status == 202
    assert api.call("GET", "/v1/jobs", host="localhost:1", origin="http://localhost:1").status == 200
    for origin in ("https://evil.example", "null", "http://127.0.0.1.evil.example", "http://localhost:3000", ""):
        refused(api.call("POST", "/v1/jobs", apis.job_body(), origin=origin), 403, "forbidden")
    for site in ("cross-site", "same-site"):  # an image, a script: they come without an origin
        refused(api.call("GET", "/v1/jobs", sec_fetch_site=site, sec_fetch_dest="image"), 403, "forbidden")
    assert api.call("GET", "/docs", sec_fetch_site="cross-site", sec_fetch_dest="document").status == 200  # a link
    assert api.call("GET", "/v1/jobs", sec_fetch_site="same-origin").status == 200


def test_an_origin_that_the_operator_names_may_ask_without_keys(settings: Settings) -> None:
    with apis.running(replace(settings, origin_allow=("http://localhost:3000",))) as api:
        assert api.call("POST", "/v1/jobs", apis.job_body(), origin="http://localhost:3000",
                        sec_fetch_site="same-site").status == 202
        refused(api.call("GET", "/v1/jobs", origin="http://localhost:3001"), 403, "forbidden")


def test_without_keys_a_public_address_is_no_place_to_listen(settings: Settings) -> None:
    with pytest.raises(SettingsInvalid, match="HEADRACE_AUTH"):
        create_app(Settings(data_dir=settings.data_dir, host="0.0.0.0"))


def test_the_request_id_is_echoed_or_made(api: apis.Api) -> None:
    assert api.call("GET", "/v1/jobs", x_request_id="mine-1").headers["X-Request-Id"] == "mine-1"
    for bad in ("a b", "ü", "x" * 201):
        assert api.call("GET", "/nothing", x_request_id=bad).headers["X-Request-Id"].startswith("req_")


def test_trouble_with_the_database_is_told_without_its_inside(api: apis.Api) -> None:
    api.service.database.write(lambda tx: tx.run(Statement("DROP TABLE results")))
    problem = refused(answer := api.call("GET", "/v1/jobs/job_" + "0" * 32), 503, "unavailable")
    assert "results" not in answer.body.decode()
    assert problem["may_have_been_accepted"] is False
    assert answer.headers["Retry-After"]


def test_an_unforeseen_error_is_told_without_its_inside(api: apis.Api) -> None:
    job_id = api.submit().json["id"]
    apis.finish(api.service.database, job_id, output_blob="no-such-blob")
    answer = api.call("GET", f"/v1/jobs/{job_id}")
    assert answer.status == 500
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert "Traceback" not in answer.body.decode()


@pytest.fixture
def keyed(settings: Settings) -> Iterator[apis.Api]:
    with apis.running(Settings(data_dir=settings.data_dir, broker_url=settings.broker_url, auth="keys")) as running:
        yield running


def make_key(api: apis.Api, tenant: str, *scopes: str, expires_days: float | None = None) -> str:
    key = keys.mint()
    api.service.database.write(lambda tx: keys.create(tx, tenant=tenant, name="k", scopes=scopes, key=key,
                                                      expires_days=expires_days))
    return f"Bearer {key}"


def test_a_key_opens_its_scopes_and_its_tenants_jobs(keyed: apis.Api) -> None:
    writer = make_key(keyed, "one", "jobs:write", "jobs:read")
    reader = make_key(keyed, "one", "jobs:read")
    other = make_key(keyed, "two", "admin")
    job_id = keyed.call("POST", "/v1/jobs", apis.job_body(), authorization=writer).json["id"]
    assert keyed.call("GET", f"/v1/jobs/{job_id}", authorization=reader).status == 200
    refused(keyed.call("GET", f"/v1/jobs/{job_id}", authorization=other), 404, "not_found")
    refused(keyed.call("POST", f"/v1/jobs/{job_id}/cancel", authorization=other), 404, "not_found")
    refused(keyed.call("POST", "/v1/jobs", apis.job_body(), authorization=reader), 403, "forbidden")
    assert keyed.call("GET", "/v1/jobs", authorization=other).json["data"] == []


def test_a_bad_key_is_told_how_to_do_better(keyed: apis.Api) -> None:
    expired = make_key(keyed, "one", "jobs:read", expires_days=-1)
    for value in ("", "Basic eDp5", "Bearer", "Bearer hr_x", f"Bearer {keys.mint()}", expired):
        answer = keyed.call("GET", "/v1/jobs", authorization=value)
        refused(answer, 401, "unauthenticated")
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")


def test_with_keys_any_host_may_ask(keyed: apis.Api) -> None:
    key = make_key(keyed, "one", "jobs:read")
    assert keyed.call("GET", "/v1/jobs", authorization=key, host="headrace.example", origin="https://x.example").status == 200


def test_the_use_of_a_key_is_noted(keyed: apis.Api) -> None:
    key = make_key(keyed, "one", "jobs:read")
    keyed.call("GET", "/v1/jobs", authorization=key)
    with keyed.service.database.read() as tx:
        (known,) = keys.listing(tx)
    assert known.last_used_at is not None
