"""Real services for every test: a broker, and both databases with clean tables."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from migrations import upgrade
from models import database as databases_of
from models import settings as settings_of
from models.tables import metadata
from tests import brokers, databases


@pytest.fixture(scope="session")
def broker_server() -> Iterator[brokers.Broker]:
    server = brokers.Broker()
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture
def broker(broker_server: brokers.Broker) -> brokers.Broker:
    """The session's broker, emptied. A test that kills or freezes one takes `own_broker`."""
    client = broker_server.client()
    client.flushall()
    client.close()
    return broker_server


@pytest.fixture
def own_broker() -> Iterator[brokers.Broker]:
    """A broker of this test alone."""
    server = brokers.Broker()
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a PostgreSQL server; make databases in it with `databases.create(url, name)`."""
    with databases.postgres() as url:
        yield url


@pytest.fixture(scope="session")
def migrated_postgres(postgres_server: str) -> str:
    url = databases.create(postgres_server, "headrace")
    upgrade.upgrade(url)
    return url


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sqlite") / "headrace.db"
    upgrade.upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a migrated, empty database; every test that uses it runs on both."""
    if request.param == "sqlite":
        path = tmp_path / "headrace.db"
        shutil.copy(request.getfixturevalue("migrated_sqlite"), path)
        return f"sqlite:///{path}"
    url: str = request.getfixturevalue("migrated_postgres")
    databases.empty(url, list(metadata.tables))
    return url


@pytest.fixture
def database(database_url: str) -> Iterator[databases_of.Database]:
    """A connected, migrated, empty database."""
    connected = databases_of.connect(database_url)
    yield connected
    connected.close()


@pytest.fixture
def settings(database_url: str, broker: brokers.Broker, tmp_path: Path) -> settings_of.Settings:
    """Settings over this test's folder, its database and the session's broker."""
    return settings_of.Settings(data_dir=tmp_path, database_url=database_url, broker_url=broker.url)
