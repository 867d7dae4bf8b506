"""Who may do what: every route, under every key that there can be."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from api import keyring, routes
from api.http import Route
from models import ids, keys, tenant
from models.settings import Settings
from tests import apis, brokers, waiting

OPEN = {"/livez", "/readyz", "/openapi.json", "/docs"}  # they tell nothing of anybody's work
SCOPES = {
    "jobs": {"GET": "jobs:read", "POST": "jobs:write"},
    "models": {"GET": "models:read", "POST": "models:write", "DELETE": "models:write"},
    "queues": {"GET": "models:read"}, "workers": {"GET": "models:read"}, "metrics": {"GET": "models:read"},
    "webhook_endpoints": dict.fromkeys(("GET", "POST", "DELETE"), "webhooks:manage"),
    "webhook_event_types": {"GET": "webhooks:manage"}, "webhook_secret": {"GET": "webhooks:manage"},
    "deliveries": {"GET": "webhooks:manage", "POST": "webhooks:manage"},
}
ROUTES = [pytest.param(each, id=f"{each.method} {each.path}".replace("/", "_")) for each in routes.routes()]
# Below them a path leads to what a tenant owns.
OWNED = ("/v1/jobs/{id}", "/v1/webhook_endpoints/{id}")


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, broker_server: brokers.Broker, migrated_sqlite: Path) -> Iterator[apis.Api]:
    folder = tmp_path_factory.mktemp("scopes")
    (folder / "headrace.db").write_bytes(migrated_sqlite.read_bytes())
    with apis.running(Settings(data_dir=folder, broker_url=broker_server.url, auth="keys")) as running:
        yield running


@pytest.fixture(scope="module")
def by_scope(api: apis.Api) -> dict[str, str]:
    return {scope: made(api, "one", scope) for scope in tenant.SCOPES}


def made(api: apis.Api, owner: str, *scopes: str, expires_days: float | None = None, revoked: bool = False) -> str:
    key = keys.mint()
    stored = api.service.database.write(lambda tx: keys.create(
        tx, tenant=owner, name="k", scopes=scopes, key=key, expires_days=expires_days))
    if revoked:
        assert api.service.database.write(lambda tx: keys.revoke(tx, stored.id))
    return f"Bearer {key}"


def status(api: apis.Api, route: Route, key: str | None) -> int:
    path = route.path.replace("{id}", ids.new(ids.JOB)).replace("{model}", "none@1")
    given = {} if key is None else {"authorization": key}
    return api.call(route.method, path, **given).status


def wanted(route: Route) -> str:
    return SCOPES[route.path.removeprefix("/v1").split("/")[1]][route.method]


@pytest.mark.parametrize("route", ROUTES)
def test_a_route_opens_for_its_scope_and_for_no_other(api: apis.Api, by_scope: dict[str, str], route: Route) -> None:
    if route.path in OPEN:
        assert status(api, route, None) == 200
        return
    for scope, key in by_scope.items():
        allowed = scope in (wanted(route), "admin")
        assert (status(api, route, key) != 403) == allowed, scope


@pytest.mark.parametrize("route", [each for each in ROUTES if each.values[0].path not in OPEN])
def test_a_route_stays_shut_without_a_live_key(api: apis.Api, route: Route) -> None:
    expired = made(api, "one", "admin", expires_days=-1)
    revoked = made(api, "one", "admin", revoked=True)
    for key in (None, "", "Bearer", "Bearer x", f"Bearer {keys.mint()}", "Basic eDp5", expired, revoked):
        assert status(api, route, key) == 401, key


@pytest.mark.parametrize("route", [each for each in ROUTES if each.values[0].path.startswith(OWNED)])
def test_what_another_tenant_owns_is_not_there(api: apis.Api, route: Route) -> None:
    mine, others = made(api, "one", "admin"), made(api, "two", "admin")
    if api.call("GET", "/v1/models/t", authorization=mine).status == 404:
        apis.add_network(api.service.database)
    api.service.directory.refresh()
    owned = {"/v1/jobs": api.call("POST", "/v1/jobs", apis.job_body(), authorization=mine)}
    owned["/v1/webhook_endpoints"] = api.call("POST", "/v1/webhook_endpoints", {
        "name": "n", "url": "https://93.184.216.34/", "event_types": ["job.canceled"]}, authorization=mine)
    collection = next(each for each in owned if route.path.startswith(each))
    assert owned[collection].status in (201, 202), owned[collection].body
    path = route.path.replace("{id}", owned[collection].json["id"])
    sent = {"event_type": "job.failed"} if path.endswith("/test") else None
    answer = api.call(route.method, path, sent, authorization=others)
    assert (answer.status, answer.json["code"]) == (404, "not_found")


def test_a_revoked_key_is_shut_out_within_half_a_minute(api: apis.Api, monkeypatch: pytest.MonkeyPatch) -> None:
    assert keyring.CACHE_S < 30
    monkeypatch.setattr(keyring, "CACHE_S", 0.05)
    key = made(api, "one", "jobs:read")
    assert api.call("GET", "/v1/jobs", authorization=key).status == 200
    (known,) = [each for each in api.service.database.write(keys.listing) if each.hint == key[-4:]]
    api.service.database.write(lambda tx: keys.revoke(tx, known.id))
    waiting.until(lambda: api.call("GET", "/v1/jobs", authorization=key).status == 401, what="the end of the key")
