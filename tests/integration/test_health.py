"""Health, with the broker stopped and frozen and the database gone."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from api.shell import create_app
from models import settings as settings_of
from tests import brokers, waiting


@pytest.fixture
def own_settings(own_broker: brokers.Broker, migrated_sqlite: Path, tmp_path: Path) -> settings_of.Settings:
    shutil.copy(migrated_sqlite, tmp_path / "headrace.db")
    return settings_of.Settings(data_dir=tmp_path, database_url=f"sqlite:///{tmp_path}/headrace.db", broker_url=own_broker.url)


@pytest.fixture
def client(own_settings: settings_of.Settings) -> Iterator[FlaskClient]:
    app = create_app(own_settings)
    yield app.test_client()
    app.extensions["headrace"].stop()


def test_a_process_with_all_in_reach_is_ready(client: FlaskClient) -> None:
    reply = client.get("/readyz")
    assert (reply.status_code, reply.get_json()["status"]) == (200, "ready")
    assert {name: check["ok"] for name, check in reply.get_json()["checks"].items()} == {"database": True, "broker": True}


def test_readiness_names_a_stopped_broker_and_comes_back(client: FlaskClient, own_broker: brokers.Broker) -> None:
    own_broker.kill()
    reply = client.get("/readyz")
    assert (reply.status_code, reply.content_type) == (503, "application/problem+json")
    assert reply.get_json()["code"] == "unavailable"
    assert [fault["pointer"] for fault in reply.get_json()["errors"]] == ["/broker"]
    assert int(reply.headers["Retry-After"]) >= 1
    assert client.get("/livez").status_code == 200
    own_broker.start()
    assert client.get("/readyz").status_code == 200


def test_readiness_answers_although_the_broker_is_frozen(client: FlaskClient, own_broker: brokers.Broker) -> None:
    own_broker.freeze()
    for _ in range(3):
        reply = client.get("/readyz")
        assert [fault["pointer"] for fault in reply.get_json()["errors"]] == ["/broker"]
    own_broker.thaw()
    assert waiting.until(lambda: client.get("/readyz").status_code == 200)


def test_a_process_without_its_database_lives_and_says_so(own_settings: settings_of.Settings, tmp_path: Path) -> None:
    app = create_app(replace(own_settings, database_url=f"sqlite:///{tmp_path}/gone/headrace.db"))
    client = app.test_client()
    try:
        assert client.get("/livez").get_json() == {"status": "live"}
        assert [fault["pointer"] for fault in client.get("/readyz").get_json()["errors"]] == ["/database"]
        assert "headrace_database_up 0.0" in client.get("/metrics").text
        for path in ("/v1/queues", "/v1/workers", "/v1/models", "/v1/models/x"):
            reply = client.get(path)
            assert (reply.status_code, reply.get_json()["code"]) == (503, "unavailable")
    finally:
        app.extensions["headrace"].stop()
