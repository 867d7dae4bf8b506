"""What tenants may have: requests a second, jobs in flight, size of a body; by both ways in, with real keys."""

import dataclasses
import re
import time
from collections.abc import Callable, Iterator
from concurrent import futures

import pytest

from api import pacing
from api.quotas import RECOUNT_S, Quotas
from models import job, keys, quota, tenant
from models.database import Database
from models.errors import TooManyInFlight
from models.quota import Quota
from models.settings import Settings
from tests import apis, brokers, rows, waiting

POLICY = re.compile(r'"requests";q=(\d+);w=(\d+)\Z')
STATE = re.compile(r'"requests";r=(\d+);t=(\d+)\Z')
Call = Callable[..., apis.Answer]


@pytest.fixture
def api(settings: Settings) -> Iterator[apis.Api]:
    with apis.running(dataclasses.replace(settings, auth="keys")) as running:
        yield running


@pytest.fixture(params=["short lane", "Flask"])
def call(request: pytest.FixtureRequest, api: apis.Api) -> Call:
    """One request by either way in."""
    through = None if request.param == "short lane" else api.app

    def send(key: str, method: str = "POST", path: str = "/v1/jobs", body: object = None, **headers: str) -> apis.Answer:
        body = apis.job_body() if body is None and method == "POST" else body
        return api.call(method, path, body, through=through, authorization=f"Bearer {key}", **headers)

    return send


def _key(api: apis.Api, name: str, **limits: float | None) -> str:
    """A key of a tenant with these limits, which are in force."""
    key = keys.mint()

    def work(tx):
        tenant.ensure(tx, name)
        keys.create(tx, tenant=name, name="k", scopes=["jobs:read", "jobs:write"], key=key)
        quota.change(tx, name, **limits)

    api.service.database.write(work)
    api.service.quotas.refresh()
    return key


def test_above_its_rate_a_tenant_is_told_when_to_come_back(api: apis.Api, call: Call) -> None:
    key, other = _key(api, "acme", rate=0.1, burst=3), _key(api, "free")
    answers = [call(key) for _ in range(5)]
    assert [answer.status for answer in answers] == [202, 202, 202, 429, 429]
    assert [int(STATE.match(answer.headers["RateLimit"])[1]) for answer in answers] == [2, 1, 0, 0, 0]
    assert {POLICY.match(answer.headers["RateLimit-Policy"]).groups() for answer in answers} == {("3", "30")}
    refused = answers[-1]
    assert refused.json["code"] == "rate_limited"
    assert "3 requests within 30 s" in refused.json["detail"]
    assert 1 <= int(refused.headers["Retry-After"]) <= 60
    assert call(other).status == 202
    assert "RateLimit" not in call(other).headers


def test_reads_count_as_well_and_are_told_what_is_left(api: apis.Api, call: Call) -> None:
    key = _key(api, "acme", rate=0.1, burst=2)
    job_id = call(key).json["id"]
    found = call(key, "GET", f"/v1/jobs/{job_id}")
    assert (found.status, STATE.match(found.headers["RateLimit"])[1]) == (200, "0")
    assert call(key, "GET", f"/v1/jobs/{job_id}").status == 429


def test_a_wrong_request_counts_and_one_too_large_does_not(api: apis.Api, call: Call) -> None:
    key = _key(api, "acme", rate=0.1, burst=2, max_body_bytes=100)
    large = call(key, body=apis.job_body(metadata={"a": 200 * "x"}))
    assert (large.status, large.json["code"]) == (413, "payload_too_large")
    assert "100 bytes" in large.json["detail"]
    assert [call(key, body=b"{}").status for _ in range(3)] == [422, 422, 429]


def test_a_body_of_unknown_length_is_held_to_the_tenants_limit_too(api: apis.Api, call: Call) -> None:
    key = _key(api, "acme", max_body_bytes=100)
    for size, status in ((101, 413), (99, 400)):
        assert call(key, body=b"x" * size, content_length="", transfer_encoding="chunked").status == status


def test_jobs_above_those_that_may_be_in_flight_are_refused_until_some_end(api: apis.Api, call: Call) -> None:
    key = _key(api, "acme", max_in_flight=3)
    accepted = [call(key) for _ in range(3)]
    refused = call(key)
    assert [answer.status for answer in accepted] == [202] * 3
    assert (refused.status, refused.json["code"], refused.headers["Retry-After"]) == (429, "rate_limited", "1")
    assert "3 jobs in flight" in refused.json["detail"]
    apis.finish(api.service.database, accepted[0].json["id"])
    waiting.until(lambda: call(key).status == 202)
    assert waiting.until(lambda: call(key).status == 429)


def test_a_batch_counts_its_jobs(api: apis.Api, call: Call) -> None:
    key = _key(api, "acme", max_in_flight=5, rate=0.1, burst=10)
    many = call(key, path="/v1/jobs/batch", body={"jobs": [apis.job_body() for _ in range(8)]})
    assert [entry["status"] for entry in many.json["data"]] == [202] * 5 + [429] * 3
    assert many.json["data"][-1]["error"]["code"] == "rate_limited"
    assert STATE.match(many.headers["RateLimit"])[1] == "9"  # one request


def test_a_refused_or_replayed_job_takes_no_place(api: apis.Api, call: Call) -> None:
    key = _key(api, "acme", max_in_flight=2)
    assert call(key, body=apis.job_body(input={})).status == 422
    first = call(key, idempotency_key="k")
    again = [call(key, idempotency_key="k") for _ in range(3)]
    assert {answer.json["id"] for answer in again} == {first.json["id"]}
    assert call(key).status == 202
    assert call(key).status == 429
    assert call(key, idempotency_key="k").json["id"] == first.json["id"]  # full, but it was answered before


def test_all_waiting_and_running_jobs_are_in_flight_whatever_their_class_or_priority(database: Database) -> None:
    me = rows.worker(database)
    database.write(lambda tx: [tenant.ensure(tx, name) for name in ("acme", "other")])
    wanted = [*rows.jobs(database, 3, tenant="acme"), *rows.jobs(database, 1, tenant="acme", priority=0),
              *rows.jobs(database, 1, tenant="acme", deadline_s=60.0), *rows.jobs(database, 1, tenant="acme", hardware="x")]
    rows.jobs(database, 2, tenant="other")
    apis.finish(database, wanted[0])
    database.write(lambda tx: job.cancel(tx, "acme", wanted[1]))
    database.write(lambda tx: apis.claim.claim(tx, [wanted[2]], incarnation=me, hardware="cpu", begun=True))
    with database.read() as tx:
        assert quota.in_flight(tx, ["acme", "other", "nobody"]) == {"acme": 4, "other": 2, "nobody": 0}


def test_submits_at_once_admit_no_more_than_the_limit(database: Database, settings: Settings) -> None:
    database.write(lambda tx: tenant.ensure(tx, "acme"))
    database.write(lambda tx: quota.change(tx, "acme", max_in_flight=20))
    quotas = Quotas(settings, database)

    def take(_: int) -> bool:
        try:
            quotas.take("acme")
        except TooManyInFlight:
            return False
        return True

    with futures.ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(take, range(60))) == 20
    # However long they take to be stored: no count that comes meanwhile forgets them.
    count = quotas._counts["acme"]
    counted_at = count.counted_at

    def recounted() -> bool:
        assert not take(0)
        return count.counted_at > counted_at

    waiting.until(recounted, what="another count")
    waiting.until(lambda: count.counted_at < time.monotonic() - RECOUNT_S)
    assert not take(0)
    quotas.give_back("acme")
    assert take(0)


def test_defaults_hold_for_tenants_without_their_own_and_spare_the_embedded_one(
        database: Database, settings: Settings) -> None:
    settings = dataclasses.replace(settings, tenant_max_in_flight=7, tenant_rate=5.0)
    for name in ("own", "free", "plain"):
        database.write(lambda tx, name=name: tenant.ensure(tx, name))
    database.write(lambda tx: quota.change(tx, "own", max_in_flight=2, weight=3.0))
    database.write(lambda tx: quota.change(tx, "free", max_in_flight=0, rate=0))
    quotas = Quotas(settings, database)
    assert quotas.of("own") == Quota(2, 5.0, weight=3.0)
    assert quotas.of("free") == Quota()
    assert quotas.of("plain") == quotas.of("never seen") == Quota(7, 5.0)
    assert quotas.of(tenant.DEFAULT) == Quota()


def test_what_the_operator_sets_is_seen_by_a_running_api(api: apis.Api, call: Call) -> None:
    key = _key(api, "acme")
    assert call(key).status == 202
    api.service.database.write(lambda tx: quota.change(tx, "acme", max_body_bytes=10))
    waiting.until(lambda: call(key).status == 413)


def test_api_processes_count_together(broker: brokers.Broker) -> None:
    settings = Settings(broker_url=broker.url)
    both = [pacing.Pacing(settings), pacing.Pacing(settings)]
    limit = Quota(rate=0.1, burst=6)
    assert [both[n % 2].take("acme", limit).allowed for n in range(8)] == [True] * 6 + [False] * 2
    assert both[0].take("other", limit).allowed
    for each in both:
        each.close()


@pytest.mark.parametrize("fault", ["freeze", "kill"])
def test_without_the_broker_a_process_counts_for_itself_and_hardly_waits(own_broker: brokers.Broker, fault: str) -> None:
    pace = pacing.Pacing(Settings(broker_url=own_broker.url))
    limit = Quota(rate=0.1, burst=3)
    assert pace.take("acme", limit).allowed
    getattr(own_broker, fault)()
    taken = [pace.take("acme", limit) for _ in range(50)]
    assert [each.allowed for each in taken] == [True] * 3 + [False] * 47
    assert taken[-1].headers["RateLimit"].startswith('"requests";r=0;t=')
    own_broker.thaw() if fault == "freeze" else own_broker.start()
    waiting.until(lambda: pace.take("new", limit) and not pace._away, what="counting together again")
    pace.close()


def test_a_tenant_without_a_rate_never_meets_the_broker(api: apis.Api, call: Call) -> None:
    key = _key(api, "acme", max_in_flight=1000)
    assert call(key).status == 202
    assert not api.service.pacing._known
    assert not api.service.pacing._buckets


@pytest.mark.parametrize(("rate", "burst", "policy"), [
    (10.0, None, (10, 1)), (100.0, 150, (200, 2)), (0.5, None, (1, 2)), (2.5, 1, (2, 1)), (0.1, 3, (3, 30)), (50.0, 50, (50, 1))])
def test_a_policy_never_allows_more_than_the_rate_and_at_least_the_burst(rate, burst, policy) -> None:
    made = pacing.Policy.of(rate, burst)
    assert (made.amount, made.window_s) == policy
    assert made.amount / made.window_s <= rate
    assert made.amount >= (burst or 1)
