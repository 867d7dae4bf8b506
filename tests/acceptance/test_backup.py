"""A backup taken under load and restored elsewhere: what was accepted before it ends there, with equal results."""

import http.client
import json
import subprocess
import urllib.parse
from pathlib import Path
from typing import Any

import pytest

from examples.webhook_receiver import Receiver
from models import database
from tests import databases, embedded, loads, waiting

JOBS = 40
PATIENCE_S = 180.0  # for one command, on a machine that has other work


def get(url: str, path: str) -> dict[str, Any]:
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=30)
    try:
        connection.request("GET", path)
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
        return answer
    finally:
        connection.close()


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    connected = database.connect(url, pool_size=1)
    try:
        with connected.read() as tx:
            tx.cursor.execute(query)
            return tx.cursor.fetchall()
    finally:
        connected.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_what_was_accepted_before_a_backup_ends_where_it_is_restored(
        kind: str, tmp_path: Path, own_broker, request: pytest.FixtureRequest) -> None:
    tmp_path.chmod(0o711)
    settings = {"lease_s": "3", "sweep_s": "0.5", "max_inline_bytes": "150", "broker_url": own_broker.url}
    first, second, folder = (tmp_path / name for name in ("first", "second", "backup"))
    for each in (first, second):
        each.mkdir(mode=0o711)
    network = loads.network(tmp_path / "deep")
    if kind == "sqlite":
        urls = {each: f"sqlite:///{each}/data/headrace.db" for each in (first, second)}
    else:
        server = request.getfixturevalue("postgres_server")
        urls = {each: databases.create(server, f"backup_{each.name}") for each in (first, second)}

    def run(where: Path, *arguments: str) -> None:
        environment = embedded.environment(data_dir=str(where / "data"), database_url=urls[where])
        done = subprocess.run([embedded.COMMAND, *arguments], cwd=where, env=environment, capture_output=True, text=True,
                              timeout=PATIENCE_S, check=False)
        assert done.returncode == 0, done.stderr

    with Receiver() as receiver:
        with embedded.up(first, **settings, database_url=urls[first]) as started:
            url = started.ready()[1]
            added = embedded.run("models", "add", str(network), cwd=first, url=url)
            assert added.returncode == 0, added.stderr
            receiver.secrets.append(get(url, "/v1/webhook_secret")["signing_secret"])
            with loads.Load(url, rate_s=20.0, webhook=receiver.url) as load:
                load.reached(JOBS)
                before = dict(load.accepted)
                run(first, "db", "backup", str(folder))
                run(first, "db", "backup", str(folder))  # brings the same folder up to date
        wanted = embedded.run("db", "restore", str(folder), cwd=first, data_dir=str(first / "data"),
                              database_url=urls[first])
        assert (wanted.returncode, "empty" in wanted.stderr) == (2, True)
        run(second, "db", "restore", str(folder))
        at_backup = {row[0]: row[1] for row in rows(urls[second], "SELECT id, state FROM jobs")}
        assert set(before) <= set(at_backup)
        with embedded.up(second, **settings, database_url=urls[second]) as started:
            url = started.ready()[1]
            waiting.until(lambda: not rows(urls[second], "SELECT 1 FROM jobs WHERE state IN ('queued', 'running') "
                                                         "LIMIT 1"), 90, what="the end of all jobs")
            states = rows(urls[second], "SELECT id, state, crashes_alone FROM jobs")
            assert {row[1:] for row in states} == {("succeeded", 0)}
            accepted = {name: row for name, row in load.accepted.items() if name in at_backup}
            assert set(at_backup) == set(accepted)
            outputs = {name: json.dumps(get(url, f"/v1/jobs/{name}")["output"]).encode() for name in accepted}
            assert loads.differences(network, accepted, outputs) == []
            waiting.until(lambda: not rows(urls[second], "SELECT 1 FROM events e WHERE fanned_at IS NULL OR EXISTS "
                                                         "(SELECT 1 FROM deliveries d WHERE d.event_id = e.id "
                                                         "AND d.state = 'pending') LIMIT 1"), 90, what="all deliveries")
            told = loads.events_of(list(receiver.events.values()))
            assert set(accepted) <= set(told)
            # What had ended is told under the id that it was told under before; what had not ends here anew.
            assert {told[name] for name, state in at_backup.items() if state == "succeeded"} == {1}
            assert started.stop() == 0
