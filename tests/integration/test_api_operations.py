"""`/v1/queues`, `/v1/workers` and `/metrics` over rows that housekeeping and workers write, on both databases."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from flask.testing import FlaskClient
from prometheus_client.parser import text_string_to_metric_families

from api.shell import create_app
from models import feed, incarnation
from models.database import Database, Transaction
from models.settings import Settings

RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z\Z")


@pytest.fixture
def client(settings: Settings) -> Iterator[FlaskClient]:
    app = create_app(settings)
    yield app.test_client()
    app.extensions["headrace"].stop()


def begin(database: Database, name: str, kind: str = incarnation.WORKER, *, lanes: str | None = "interactive,bulk",
          hardware: str | None = "cpu", ready: bool = True, holding: dict[str, Any] | None = None) -> None:
    def work(tx: Transaction) -> None:
        incarnation.begin(tx, name, kind=kind, host="mill", pid=7, hardware=hardware, lanes=lanes)
        incarnation.beat(tx, name, ready=ready, holding=holding or {})

    database.write(work)


def roll_up(database: Database, hardware: str, lane: str, **figures: Any) -> None:
    now = database.now()
    row = {"hardware": hardware, "lane": lane, "open": True, "depth": 0, "in_flight": 0, "wait_s": None,
           "oldest_at": None, "updated_at": now} | figures
    database.write(lambda tx: tx.insert(feed.lanes, [row]))


def queues(client: FlaskClient) -> list[dict[str, Any]]:
    client.application.extensions["headrace"].directory.refresh()  # as it does by itself twice a second
    found: list[dict[str, Any]] = client.get("/v1/queues").get_json()["data"]
    return found


def scraped(client: FlaskClient) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    reply = client.get("/metrics")
    assert reply.status_code == 200
    assert reply.content_type == "text/plain; version=0.0.4; charset=utf-8"
    return {(sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(reply.text) for sample in family.samples}


def test_nothing_waits_and_nobody_works_at_first(client: FlaskClient) -> None:
    assert client.get("/v1/queues").get_json() == {"object": "list", "data": []}
    assert client.get("/v1/workers").get_json() == {"object": "list", "data": []}


def test_a_queue_shows_its_last_roll_up_and_its_ready_workers(client: FlaskClient, database: Database) -> None:
    roll_up(database, "cpu", "interactive", depth=12, in_flight=3, wait_s=1.5, oldest_at=database.now() - 4000, open=False)
    begin(database, "inc_1")
    begin(database, "inc_2", lanes="interactive")
    begin(database, "inc_3", ready=False)
    begin(database, "inc_4", incarnation.HOUSEKEEPING, hardware=None, lanes=None)
    interactive, bulk = queues(client)
    assert (interactive["hardware"], interactive["lane"]) == ("cpu", "interactive")
    assert (interactive["depth"], interactive["in_flight"], interactive["estimated_wait_s"]) == (12, 3, 1.5)
    assert 4 <= interactive["oldest_s"] < 60
    assert (interactive["workers"], interactive["open"]) == (2, False)
    assert (bulk["lane"], bulk["depth"], bulk["workers"], bulk["oldest_s"]) == ("bulk", 0, 1, None)


def test_a_lane_without_workers_is_still_shown(client: FlaskClient, database: Database) -> None:
    roll_up(database, "cuda", "interactive", depth=5)
    assert [(each["hardware"], each["depth"], each["workers"]) for each in queues(client)] == [("cuda", 5, 0)]


def test_live_workers_are_listed_with_what_they_hold(client: FlaskClient, database: Database) -> None:
    begin(database, "inc_1", holding={"networks": ["digits@1"], "buffered": 3})
    begin(database, "inc_2", hardware="cuda", lanes=None)
    begin(database, "inc_3")
    database.write(lambda tx: incarnation.end(tx, "inc_3", incarnation.KILLED, max_attempts=3))
    one, two = client.get("/v1/workers").get_json()["data"]
    assert (one["id"], one["hardware"], one["lanes"], one["ready"]) == ("inc_1", "cpu", ["interactive", "bulk"], True)
    assert one["holding"] == {"networks": ["digits@1"], "buffered": 3}
    assert 0 <= one["heartbeat_age_s"] < 60
    assert RFC3339.match(one["started_at"])
    assert (two["hardware"], two["lanes"]) == ("cuda", ["interactive"])


def test_metrics_tell_lanes_workers_and_requests(client: FlaskClient, database: Database) -> None:
    roll_up(database, "cpu", "interactive", depth=12, in_flight=3, wait_s=1.5)
    begin(database, "inc_1", lanes="interactive", holding={"buffered": 3, "networks": ["a@1", "b@1"], "host": "x"})
    client.get("/v1/queues")
    client.get("/v1/models/none")
    found = scraped(client)
    lane = frozenset({("hardware", "cpu"), ("lane", "interactive")})
    assert found["headrace_database_up", frozenset()] == 1
    assert found["headrace_lane_depth", lane] == 12
    assert found["headrace_lane_in_flight", lane] == 3
    assert found["headrace_lane_estimated_wait_seconds", lane] == 1.5
    assert found["headrace_workers", lane | {("ready", "true")}] == 1
    worker = frozenset({("incarnation", "inc_1"), ("hardware", "cpu"), ("host", "mill")})
    assert found["headrace_worker_figure", worker | {("figure", "buffered")}] == 3
    assert found["headrace_worker_figure", worker | {("figure", "networks")}] == 2
    request = {("method", "GET"), ("route", "/v1/models/{model}"), ("status", "404")}
    assert found["headrace_http_request_duration_seconds_count", frozenset(request)] == 1


def test_two_services_in_one_process_count_apart(client: FlaskClient, settings: Settings) -> None:
    client.get("/livez")
    other = create_app(settings)
    try:
        found = scraped(other.test_client())
        assert not any(("route", "/livez") in labels for _, labels in found)
    finally:
        other.extensions["headrace"].stop()
