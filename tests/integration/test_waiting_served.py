"""Long polls through the real server process."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from models import database as databases
from tests import apis, brokers, waiting


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def server(tmp_path: Path, broker: brokers.Broker, migrated_sqlite: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    (tmp_path / "headrace.db").write_bytes(migrated_sqlite.read_bytes())
    database = databases.connect(f"sqlite:///{tmp_path}/headrace.db")
    apis.add_network(database)
    database.close()
    port = free_port()
    env = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    process = subprocess.Popen(
        [Path(sys.executable).parent / "headrace", "api", "--port", str(port)], cwd=tmp_path,
        env=env | {"HEADRACE_DATA_DIR": str(tmp_path), "HEADRACE_BROKER_URL": broker.url},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=waiting.die_with_parent())  # noqa: PLW1509 (one C call)
    try:
        waiting.until(lambda: answers(port), what="the server")
        yield process, port
    finally:
        process.kill()
        process.wait(10)


def answers(port: int) -> bool:
    try:
        return call(port, "GET", "/livez")[0] == 200
    except OSError:
        return False


def call(port: int, method: str, path: str, body: object = None, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=40)
    try:
        raw = None if body is None else body if hasattr(body, "__next__") else json.dumps(body).encode()
        connection.request(method, path, raw, {"Content-Type": "application/json", **headers},
                           encode_chunked="Transfer-Encoding" in headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_a_server_that_is_told_to_end_answers_who_waits(server: tuple[subprocess.Popen[bytes], int],
                                                        broker: brokers.Broker) -> None:
    process, port = server
    status, raw = call(port, "POST", "/v1/jobs", apis.job_body())
    assert status == 202
    job_id = json.loads(raw)["id"]
    got: list[tuple[int, bytes]] = []
    poll = threading.Thread(target=lambda: got.append(call(port, "GET", f"/v1/jobs/{job_id}?wait=30")))
    poll.start()
    waiting.until(lambda: b"headrace_long_polls 1.0" in call(port, "GET", "/metrics")[1], what="the wait")
    process.send_signal(signal.SIGTERM)
    poll.join(20)
    assert [(status, json.loads(body)["state"]) for status, body in got] == [(200, "queued")]
    waiting.until(lambda: process.poll() is not None, what="the end of the server")


def test_a_chunked_body_is_read_to_its_end(server: tuple[subprocess.Popen[bytes], int]) -> None:
    _, port = server
    raw = json.dumps(apis.job_body()).encode()
    parts = iter([raw[:10], raw[10:]])
    status, body = call(port, "POST", "/v1/jobs", parts, **{"Transfer-Encoding": "chunked"})
    assert (status, json.loads(body)["state"]) == (202, "queued")
