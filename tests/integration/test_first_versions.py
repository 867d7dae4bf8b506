"""Networks whose first versions are added at once: exactly one is the default."""

import threading
from concurrent import futures

from models import network
from models.database import Database, Statement

VERSIONS = ("1", "2", "3", "4")
_DEFAULTS = Statement("SELECT name, count(*) FROM networks WHERE is_default GROUP BY name")


def _add(database: Database, name: str, version: str) -> bool:
    return database.write(lambda tx: network.add(
        tx, name=name, version=version, task="tensor", digest=version, manifest={"hardware": ["cpu"]}, files={}))


def test_of_first_versions_added_at_once_one_is_the_default(database: Database) -> None:
    start = threading.Barrier(len(VERSIONS))

    def add(version: str) -> list[bool]:
        added = []
        for name in (f"net-{n}" for n in range(10)):
            start.wait(20)
            added.append(_add(database, name, version))
        return added

    with futures.ThreadPoolExecutor(len(VERSIONS)) as pool:
        assert all(all(part) for part in pool.map(add, VERSIONS))
    with database.read() as tx:
        assert sorted(tx.all(_DEFAULTS)) == [(f"net-{n}", 1) for n in range(10)]


def test_the_default_is_one_while_versions_are_rejected_and_added(database: Database) -> None:
    start = threading.Barrier(2)

    def reject(name: str, version: str) -> None:
        with database.read() as tx:
            found = network.get(tx, name, version)
        assert found is not None
        start.wait(20)
        database.write(lambda tx: network.reject(tx, found, "no"))

    def add(name: str, version: str) -> None:
        start.wait(20)
        _add(database, name, version)

    with futures.ThreadPoolExecutor(2) as pool:
        for name in (f"net-{n}" for n in range(10)):
            _add(database, name, "1")
            racing = [pool.submit(reject, name, "1"), pool.submit(add, name, "2")]
            for each in racing:
                each.result(30)
    with database.read() as tx:
        assert sorted(tx.all(_DEFAULTS)) == [(f"net-{n}", 1) for n in range(10)]


def test_a_version_that_exists_is_not_added_again(database: Database) -> None:
    assert _add(database, "net", "1")
    assert not _add(database, "net", "1")
