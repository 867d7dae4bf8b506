"""`/v1/webhook_endpoints`, `/v1/deliveries` and the secrets, over a real database, receivers and a delivery duty."""

import ipaddress

import pytest
import standardwebhooks

from models import addresses, endpoint, ids
from models.database import Statement
from tests import apis, waiting
from tests.deliverers import ended, finish, log_of
from tests.targets import PRIVATE

URL = "https://example.com/hook"


@pytest.fixture
def api(settings, database):
    with apis.running(settings) as running:
        yield running


def add(api, url=URL, **more):
    answer = api.call("POST", "/v1/webhook_endpoints", {"name": "mine", "url": url, **more})
    assert answer.status == 201, answer.json
    return answer.json


def test_an_endpoint_is_made_shown_listed_changed_and_deleted(api):
    made = add(api, event_types=["job.succeeded", "job.failed", "job.failed"])
    assert made["object"] == "webhook_endpoint"
    assert isinstance(made["created_at"], int)
    assert made["event_types"] == ["job.succeeded", "job.failed"]
    assert made["state"] == "enabled"
    secret = made.pop("signing_secret")
    assert secret.startswith("whsec_")
    path = f"/v1/webhook_endpoints/{made['id']}"
    assert api.call("GET", path).json == made
    assert made["signing_secret_hint"].endswith(secret[-4:])
    assert [item["id"] for item in api.call("GET", "/v1/webhook_endpoints").json["data"]] == [made["id"]]
    changed = api.call("POST", path, {"name": "other", "event_types": []}).json
    assert (changed["name"], changed["event_types"], changed["url"]) == ("other", [], URL)
    assert api.call("DELETE", path).json == {
        "id": made["id"], "object": "webhook_endpoint.deleted", "deleted": True}
    for method, suffix, body in (("GET", "", None), ("DELETE", "", None), ("POST", "", {"name": "x"}),
                                 ("POST", "/rotate_secret", {}), ("POST", "/test", {})):
        assert api.call(method, path + suffix, body).status == 404


def test_endpoints_are_listed_by_pages_newest_first(api):
    made = [add(api)["id"] for _ in range(5)]
    first = api.call("GET", "/v1/webhook_endpoints?limit=3").json
    assert [item["id"] for item in first["data"]] == made[:1:-1]
    assert first["has_more"] is True
    rest = api.call("GET", f"/v1/webhook_endpoints?limit=3&after={first['last_id']}").json
    assert [item["id"] for item in rest["data"]] == made[1::-1]
    assert rest["has_more"] is False


@pytest.mark.parametrize(("body", "pointers"), [
    ({}, ["/name", "/url"]),
    ({"name": "", "url": 5, "event_types": ["job.done"], "more": 1}, ["/event_types/0", "/more", "/name", "/url"]),
    ({"name": "x", "url": "http://example.org:99999/"}, ["/url"]),
    ({"name": "x", "url": "https://10.0.0.1/", "event_types": "all"}, ["/event_types", "/url"]),
    ({"name": "x", "url": "https://user:pw@example.com/"}, ["/url"]),
    ({"name": "x", "url": "https://169.254.169.254/latest"}, ["/url"]),
    ({"name": "x", "url": "https://example.com/", "event_types": ["bulk.succeeded"]}, ["/event_types/0"]),
    ({"name": "a\0b", "url": URL}, ["/name"]),
    ([], [""]),
])
def test_a_bad_endpoint_is_refused_with_all_its_faults_and_not_stored(api, body, pointers):
    answer = api.call("POST", "/v1/webhook_endpoints", body)
    assert answer.status == 422
    assert sorted(fault["pointer"] for fault in answer.json["errors"]) == pointers
    assert all(fault["rule"] and fault["detail"] for fault in answer.json["errors"])
    assert api.call("GET", "/v1/webhook_endpoints").json["data"] == []


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b'{"x": ' + b"[" * 100_000,
                                 b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", b'{"x": 1, '])
def test_a_body_that_is_not_json_is_refused(api, raw):
    assert api.call("POST", "/v1/webhook_endpoints", raw).status == 400


@pytest.mark.parametrize(("body", "pointer"), [
    ({"url": "https://127.0.0.1.nip.io@evil/"}, "/url"), ({"url": "http://10.0.0.1/"}, "/url"), ({"state": "off"}, "/state"),
    ({"signing_secret": "x"}, "/signing_secret"), ({"name": None}, "/name"),
])
def test_a_bad_change_is_refused_and_changes_nothing(api, body, pointer):
    made = add(api)
    path = f"/v1/webhook_endpoints/{made['id']}"
    answer = api.call("POST", path, {"name": "other", **body})
    assert answer.status == 422
    assert [fault["pointer"] for fault in answer.json["errors"]] == [pointer]
    assert api.call("GET", path).json["name"] == "mine"


def test_every_address_that_is_not_public_is_refused_where_it_is_given(api):
    """Without keys loopback alone is allowed."""
    inside = [text for text in PRIVATE if not addresses.listed(ipaddress.ip_address(text), addresses.LOOPBACK)]
    assert len(inside) > 40
    for text in inside:
        url = f"https://[{text}]/hook" if ":" in text else f"https://{text}/hook"
        refused = api.call("POST", "/v1/webhook_endpoints", {"name": "x", "url": url})
        assert (refused.status, refused.json["errors"][0]["rule"]) == (422, "address"), text
        job = api.submit(webhook={"url": url})
        assert (job.status, job.json["errors"][0]["pointer"]) == (422, "/webhook/url"), text


def test_a_name_that_leads_to_this_machine_is_allowed_only_without_keys(api):
    assert add(api, url="http://localhost:9000/hook")["url"] == "http://localhost:9000/hook"


def test_the_number_of_endpoints_is_limited(api, monkeypatch):
    monkeypatch.setattr(endpoint, "MAX_ENDPOINTS", 2)
    add(api)
    add(api)
    answer = api.call("POST", "/v1/webhook_endpoints", {"name": "x", "url": URL})
    assert answer.status == 422
    assert "delete one" in answer.json["detail"]


def test_the_same_idempotency_key_makes_one_endpoint(api):
    body = {"name": "mine", "url": URL}
    first = api.call("POST", "/v1/webhook_endpoints", body, idempotency_key="k1")
    second = api.call("POST", "/v1/webhook_endpoints", body, idempotency_key="k1")
    assert second.json == first.json
    assert second.headers["Idempotent-Replayed"] == "true"
    assert second.headers["Cache-Control"] == "no-store"
    with api.service.database.read() as tx:
        (kept,) = tx.all(Statement("SELECT body FROM idempotency_keys"))
    assert first.json["signing_secret"].encode() not in bytes(kept[0])
    api.call("POST", f"/v1/webhook_endpoints/{first.json['id']}/rotate_secret")
    third = api.call("POST", "/v1/webhook_endpoints", body, idempotency_key="k1")
    assert third.json == {name: value for name, value in first.json.items() if name != "signing_secret"}
    assert len(api.call("GET", "/v1/webhook_endpoints").json["data"]) == 1


def test_a_rotated_secret_replaces_the_old_one_at_once_or_after_a_day(api, deliverers, receiver, database):
    made = add(api, url=receiver.on("/hook", 200))
    path = f"/v1/webhook_endpoints/{made['id']}/rotate_secret"
    kept = api.call("POST", path, {"keep_old_secret_active_for_24_hours": True}).json
    deliverers.start()
    finish(database)
    ended(database, "delivered", 1)
    alone = api.call("POST", path).json
    finish(database)
    ended(database, "delivered", 2)
    first, second = receiver.at("/hook")
    secrets = [item["signing_secret"] for item in (made, kept, alone)]
    assert len(set(secrets)) == 3
    for secret in secrets[:2]:
        standardwebhooks.Webhook(secret).verify(first.body, first.headers)
        with pytest.raises(standardwebhooks.WebhookVerificationError):
            standardwebhooks.Webhook(secret).verify(second.body, second.headers)
    standardwebhooks.Webhook(secrets[2]).verify(second.body, second.headers)


def test_an_overlap_is_as_long_as_asked_for_and_its_end_is_shown(api):
    made = add(api)
    path = f"/v1/webhook_endpoints/{made['id']}/rotate_secret"
    assert [item["expires_at"] for item in made["signing_secrets"]] == [None]
    first = api.call("POST", path, {"overlap_s": 3600}).json
    current, old = first["signing_secrets"]
    assert current == {"hint": first["signing_secret_hint"], "expires_at": None}
    assert old["hint"] == made["signing_secret_hint"]
    assert 3590 <= old["expires_at"] - first["updated_at"] <= 3601
    second = api.call("POST", path, {"overlap_s": 60}).json  # what expires can only come nearer
    assert [item["expires_at"] is None for item in second["signing_secrets"]] == [True, False, False]
    assert all(item["expires_at"] - second["updated_at"] <= 61 for item in second["signing_secrets"][1:])
    alone = api.call("POST", path, {"overlap_s": 0}).json
    assert len(alone["signing_secrets"]) == 1
    assert "signing_secret" not in api.call("GET", f"/v1/webhook_endpoints/{made['id']}").json


@pytest.mark.parametrize("overlap_s", [-1, 604_801, "1", 1.5])
def test_a_bad_overlap_is_refused(api, overlap_s):
    answer = api.call("POST", f"/v1/webhook_endpoints/{add(api)['id']}/rotate_secret", {"overlap_s": overlap_s})
    assert answer.status == 422
    assert [fault["pointer"] for fault in answer.json["errors"]] == ["/overlap_s"]


def test_only_a_few_secrets_sign_at_once(api):
    path = f"/v1/webhook_endpoints/{add(api)['id']}/rotate_secret"
    for _ in range(endpoint.MAX_SECRETS - 1):
        assert api.call("POST", path, {"overlap_s": 3600}).status == 200
    refused = api.call("POST", path, {"overlap_s": 3600})
    assert refused.status == 422
    assert "rotate without keeping" in refused.json["detail"]
    assert api.call("POST", path).status == 200


def test_a_paused_endpoint_says_so_and_ends_the_pause_when_it_is_enabled(api, deliverers, receiver, database):
    made = add(api, url=receiver.on("/hook", 500))
    path = f"/v1/webhook_endpoints/{made['id']}"
    assert (made["consecutive_failures"], made["failing_since"], made["paused_until"]) == (0, None, None)
    deliverers.start([0.0] * 20, webhook_breaker_failures=3, webhook_breaker_s=3600.0)
    finish(database, 8)
    shown = waiting.until(lambda: (now := api.call("GET", path).json)["paused_until"] and now)
    assert shown["consecutive_failures"] >= 3
    assert 2_800 <= shown["paused_until"] - shown["failing_since"] <= 4_400
    assert shown["state"] == "enabled"
    waits = f"/v1/deliveries?endpoint={made['id']}&state=pending"
    waiting.until(lambda: len(now := api.call("GET", waits).json["data"]) == 8
                  and len({item["next_attempt_at"] for item in now}) == 1, what="all waiting for the same moment")
    receiver.on("/hook", 200)
    assert api.call("POST", path, {"state": "enabled"}).json["paused_until"] is None
    ended(database, "delivered", 8)


def test_an_endpoint_given_up_says_why_and_comes_back_when_enabled(api, deliverers, receiver, database):
    made = add(api, url=receiver.on("/hook", 500))
    path = f"/v1/webhook_endpoints/{made['id']}"
    deliverers.start([0.0] * 20, webhook_give_up_s=0.001)
    finish(database)
    shown = waiting.until(lambda: (now := api.call("GET", path).json)["state"] == "disabled" and now)
    assert shown["disabled_reason"].startswith("nothing but failures since ")
    receiver.on("/hook", 200)
    back = api.call("POST", path, {"state": "enabled"}).json
    assert (back["state"], back["disabled_reason"], back["consecutive_failures"]) == ("enabled", None, 0)
    finish(database)
    ended(database, "delivered", 1)


def test_a_test_tells_what_the_receiver_said(api, deliverers, receiver):
    made = add(api, url=receiver.on("/hook", 201, 500))
    deliverers.start()
    path = f"/v1/webhook_endpoints/{made['id']}/test"
    good = api.call("POST", path, {"event_type": "job.failed"}).json
    assert (good["object"], good["webhook_endpoint_id"], good["event_type"]) == (
        "webhook_endpoint.test", made["id"], "job.failed")
    assert (good["status_code"], good["success"]) == (201, True)
    bad = api.call("POST", path).json
    assert (bad["status_code"], bad["success"], bad["error"]) == (500, False, "status: 500")
    event = standardwebhooks.Webhook(made["signing_secret"]).verify(
        receiver.at("/hook")[0].body, receiver.at("/hook")[0].headers)
    assert (event["type"], event["data"]["state"]) == ("job.failed", "failed")
    shown = api.call("GET", f"/v1/deliveries/{bad['delivery']}").json
    assert (shown["state"], shown["job"], shown["attempt"]) == ("failed", None, 1)


def test_event_types_and_the_tenants_secret_are_told(api):
    assert api.call("GET", "/v1/webhook_event_types").json == {
        "object": "list", "data": ["job.succeeded", "job.failed", "job.canceled", "job.expired"]}
    first = api.call("GET", "/v1/webhook_secret").json
    assert first["signing_secret"].startswith("whsec_")
    assert api.call("GET", "/v1/webhook_secret").json == first


def test_a_jobs_own_webhook_is_verified_with_the_tenants_secret(api, deliverers, receiver, database):
    deliverers.start()
    job_id = api.submit(webhook={"url": receiver.on("/own", 200), "events": ["job.succeeded"]}).json["id"]
    apis.finish(database, job_id)
    ended(database, "delivered", 1)
    got, = receiver.at("/own")
    secret = api.call("GET", "/v1/webhook_secret").json["signing_secret"]
    event = standardwebhooks.Webhook(secret).verify(got.body, got.headers)
    assert event["data"] == api.call("GET", f"/v1/jobs/{job_id}").json


def test_deliveries_are_listed_by_job_endpoint_and_state(api, deliverers, receiver, database):
    good = add(api, url=receiver.on("/good", 200))
    bad = add(api, url=receiver.on("/bad", (500, {}, b"oh no")))
    deliverers.start(schedule=[0.0])
    jobs = finish(database, 3)
    ended(database, "failed", 3)
    ended(database, "delivered", 3)
    of_job = api.call("GET", f"/v1/deliveries?job={jobs[0]}").json["data"]
    assert {item["endpoint"] for item in of_job} == {good["id"], bad["id"]}
    assert all(item["job"] == jobs[0] for item in of_job)
    of_bad = api.call("GET", f"/v1/deliveries?endpoint={bad['id']}&state=failed").json["data"]
    assert [item["attempts"][0]["response"] for item in of_bad] == ["oh no"] * 3
    assert [item["next_attempt_at"] for item in of_bad] == [None] * 3
    assert api.call("GET", "/v1/deliveries?state=pending").json["data"] == []
    first = api.call("GET", "/v1/deliveries?limit=4").json
    rest = api.call("GET", f"/v1/deliveries?limit=4&after={first['last_id']}").json
    assert (len(first["data"]), len(rest["data"]), first["has_more"], rest["has_more"]) == (4, 2, True, False)
    assert api.call("GET", f"/v1/deliveries/{of_bad[0]['id']}").json == of_bad[0]


@pytest.mark.parametrize(("query", "pointers"), [
    ("job=x&endpoint=y&state=z&limit=0&after=q", ["?job", "?endpoint", "?state", "?after", "?limit"]),
    ("limit=101", ["?limit"]), ("colour=red", ["?colour"]),
])
def test_a_bad_query_of_deliveries_is_refused(api, query, pointers):
    answer = api.call("GET", f"/v1/deliveries?{query}")
    assert answer.status == 422
    assert [fault["pointer"] for fault in answer.json["errors"]] == pointers


def test_a_failed_delivery_is_sent_again_on_request(api, deliverers, receiver, database):
    made = add(api, url=receiver.on("/hook", 500, 200))
    deliverers.start(schedule=[0.0])
    finish(database)
    failed, = ended(database, "failed", 1)
    path = f"/v1/deliveries/{failed.id}/redeliver"
    answer = api.call("POST", path)
    assert (answer.status, answer.json["state"]) == (202, "pending")
    sent, = ended(database, "delivered", 1)
    assert [item.status for item in sent.attempts] == [500, 200]
    first, second = receiver.at("/hook")
    assert (first.body, first.headers["webhook-id"]) == (second.body, second.headers["webhook-id"])
    api.call("DELETE", f"/v1/webhook_endpoints/{made['id']}")
    refused = api.call("POST", path)
    assert refused.status == 422
    assert "deleted or disabled" in refused.json["detail"]
    assert api.call("POST", f"/v1/deliveries/{ids.new(ids.DELIVERY)}/redeliver").status == 404


def test_disabling_an_endpoint_drops_what_is_pending_and_enabling_starts_afresh(api, deliverers, receiver, database):
    made = add(api, url=receiver.on("/hook", 500, 200))
    path = f"/v1/webhook_endpoints/{made['id']}"
    deliverers.start(schedule=[0.0, 3000.0])
    finish(database)
    waiting.until(lambda: [item for item in log_of(database) if item.attempts], what="the first attempt")
    off = api.call("POST", path, {"state": "disabled"}).json
    assert (off["state"], off["disabled_reason"]) == ("disabled", "disabled by its owner")
    ended(database, "dropped", 1)
    finish(database)
    on = api.call("POST", path, {"state": "enabled"}).json
    assert (on["state"], on["disabled_reason"]) == ("enabled", None)
    finish(database)
    ended(database, "delivered", 1)
    assert len(log_of(database)) == 2


def test_what_is_pending_goes_to_a_changed_url(api, deliverers, receiver, database):
    made = add(api, url=receiver.on("/old", 500))
    deliverers.start(schedule=[0.0, 3000.0])
    finish(database)
    first, = waiting.until(lambda: [item for item in log_of(database) if item.attempts], what="the first attempt")
    api.call("POST", f"/v1/webhook_endpoints/{made['id']}", {"url": receiver.on("/new", 200)})
    api.call("POST", f"/v1/deliveries/{first.id}/redeliver")
    ended(database, "delivered", 1)
    assert (len(receiver.at("/old")), len(receiver.at("/new"))) == (1, 1)


def test_another_tenants_endpoints_and_deliveries_do_not_exist(api, deliverers, receiver, database):
    theirs = database.write(
        lambda tx: endpoint.add(tx, tenant="other", name="x", url=receiver.on("/x", 200), event_types=()))
    deliverers.start()
    finish(database, owner="other")
    waiting.until(lambda: receiver.at("/x"), what="their delivery")
    assert api.call("GET", "/v1/deliveries").json["data"] == []
    assert api.call("GET", "/v1/webhook_endpoints").json["data"] == []
    for method in ("GET", "POST", "DELETE"):
        body = {"name": "y"} if method == "POST" else None
        assert api.call(method, f"/v1/webhook_endpoints/{theirs.id}", body).status == 404
