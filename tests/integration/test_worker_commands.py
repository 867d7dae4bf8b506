"""Celery's own commands, and Flower, on a running worker."""

import json
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests import waiting
from tests.stations import Station
from workers.app import create_celery

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def station(migrated_sqlite, tmp_path, broker):
    from models.settings import Settings
    path = tmp_path / "headrace.db"
    path.write_bytes(migrated_sqlite.read_bytes())
    settings = Settings(data_dir=tmp_path, database_url=f"sqlite:///{path}", broker_url=broker.url)
    with Station(settings, broker) as built:
        built.upload("tumor")
        yield built


def celery(station, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "celery", "-A", "workers.main", *arguments], cwd=ROOT, env=station.environment(),
        capture_output=True, text=True, timeout=60, check=False)


def inspect(station, command):
    """What `celery inspect` asks, without the seconds that its process takes to start."""
    app = create_celery(station.settings)
    replies = getattr(app.control.inspect(limit=1, timeout=10), command)()
    app.close()
    return next(iter(replies.values()))


def test_inspect_and_control_work_as_on_any_worker(station):
    process, name = station.begin()
    names = station.accept([json.dumps([1.0] * 30).encode()] * 10)
    station.push(names)
    station.ended(names)
    done = celery(station, "inspect", "ping", "--json")
    assert (done.returncode, list(json.loads(done.stdout).values())) == (0, [{"ok": "pong"}])
    assert inspect(station, "active") == []
    assert inspect(station, "reserved") == []
    assert {each["name"] for each in inspect(station, "active_queues")} == {
        "infer.cpu.interactive", "infer.cpu.bulk"}
    stats = inspect(station, "stats")
    assert stats["total"] == {"infer.v1": 1}
    assert stats["pool"]["implementation"].endswith("thread:TaskPool")
    assert inspect(station, "registered") == ["infer.v1"]
    assert name in celery(station, "status").stdout
    assert celery(station, "control", "cancel_consumer", "infer.cpu.bulk").returncode == 0
    assert {each["name"] for each in inspect(station, "active_queues")} == {"infer.cpu.interactive"}
    celery(station, "control", "shutdown")  # nobody is left to reply
    assert process.wait(30) == 0
    assert station.reason(name) == "exited"


def test_a_ticket_that_waits_for_its_engine_is_shown_as_reserved(station):
    station.begin()
    names = station.accept([b"[1]"], "nowhere@1")

    def shown():
        station.push(names, "nowhere@1")
        return inspect(station, "reserved")
    (found, *_) = waiting.until(shown, 60, what="a reserved ticket")
    assert (found["name"], found["args"]) == ("infer.v1", ["nowhere@1", "interactive", 1])


def test_prefork_is_refused_with_the_reason(station):
    done = celery(station, "worker", "-Q", "infer.cpu.interactive")
    assert done.returncode != 0
    assert "Prefork is refused" in done.stderr


def test_celery_s_own_worker_command_runs_it_too(station):
    with station.log.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "workers.main", "worker", "-P", "threads", "-c", "1", "-Q",
             "infer.cpu.interactive", "--without-gossip", "--without-mingle", "--without-heartbeat"],
            cwd=ROOT, env=station.environment(), stdout=log, stderr=log,
            preexec_fn=waiting.die_with_parent())  # noqa: PLW1509 (one C call)
    station.processes.append(process)
    waiting.until(lambda: station.network("tumor").state == "ready", 60)
    names = station.accept([json.dumps([1.0] * 30).encode()] * 10)
    station.push(names)
    assert station.ended(names) == ["succeeded"] * 10
    assert station.stop(process) == 0


def test_flower_lists_the_worker_and_its_queues(station):
    _, name = station.begin()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with station.log.open("ab") as log:
        flower = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "workers.main", "flower", f"--port={port}",
             "--address=127.0.0.1"], cwd=ROOT, stdout=log, stderr=log,
            env=station.environment() | {"FLOWER_UNAUTHENTICATED_API": "true"},
            preexec_fn=waiting.die_with_parent())  # noqa: PLW1509 (one C call)
    station.processes.append(flower)

    def listed():
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/workers?refresh=1", timeout=10) as reply:
                found = json.load(reply)
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            return None
        return next((value for key, value in found.items() if name in key and value.get("active_queues")), None)
    found = waiting.until(listed, 60, what="Flower's list")
    assert {each["name"] for each in found["active_queues"]} == {"infer.cpu.interactive", "infer.cpu.bulk"}
