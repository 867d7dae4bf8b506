"""Secrets that users and operators entrust to the service show up nowhere: not in a log, an answer, a metric, a
process's arguments, what `doctor` prints, or a place in the database where they needn't be."""

import json
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
import urllib3

from models import database, settings
from tests import databases, embedded, graphs, receivers, waiting

PASSWORD = "s3ntinel-Pa55word"
TOKEN = "s3ntinel-t0ken"
GARBAGE = "hr_s3ntinelGarbage"


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="hr-secret-"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made, ignore_errors=True)


def with_password(server: str, name: str) -> str:
    """A database of its own, that is entered with a password."""
    url = databases.create(server, name)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS keeper")
        connection.execute(f"CREATE ROLE keeper LOGIN SUPERUSER PASSWORD '{PASSWORD}'")
    return re.sub(r"://[^/]*/", f"://keeper:{PASSWORD}@/", url)


def test_no_secret_shows_up_where_it_need_not_be(folder: Path, postgres_server: str) -> None:
    url = with_password(postgres_server, "keeper")
    with receivers.Receiver() as receiver, embedded.up(
            folder, auth="keys", database_url=url, webhook_schedule="0,0.1", webhook_allow="127.0.0.0/8",
            log_format="json") as started:
        base = started.ready()[1]
        made = embedded.run("keys", "create", "--name", "k", "--scopes", "admin", cwd=folder, database_url=url)
        found = re.search(r"hr_[0-9A-Za-z]{36}", made.stdout)
        assert found is not None, made.stderr
        key = found[0]
        said = Talk(base, key)
        added = embedded.run("models", "add", str(graphs.EXAMPLES / "tumor"), cwd=folder, url=base, key=key)
        assert added.returncode == 0, added.stderr
        hook = said("POST", "/v1/webhook_endpoints", {
            "name": "n", "url": receiver.on(f"/hook?token={TOKEN}", 500), "event_types": ["job.succeeded"]},
            Idempotency_Key="once")
        secret = hook["signing_secret"]
        job = said("POST", "/v1/jobs", {"model": "tumor", "input": [0.1] * 30}, Prefer="wait=30")
        assert job["state"] == "succeeded", job
        waiting.until(lambda: any(each["state"] != "pending" for each in said("GET", "/v1/deliveries")["data"]), 60,
                      what="the end of the delivery")
        for wrong in (GARBAGE, key[:-1], key + "x"):
            told = Talk(base, wrong)("POST", "/v1/jobs", {})
            assert told["status"] == 401
            said.heard.append(json.dumps(told))
        said("POST", "/v1/jobs", {"model": key, "input": secret})
        said("GET", "/v1/nothing")
        shown = said.raw("GET", "/metrics") + embedded.run("doctor", cwd=folder, database_url=url, key=key).stdout
        arguments = "\n".join(" ".join(psutil.Process(pid).cmdline()) for pid in started.tree())
        rows = dump(url)
        broken(started, base, key)
        assert started.stop() == 0
        log = started.log
    answers = "\n".join(said.heard)
    for name, text in (("log", log), ("metrics and doctor", shown), ("arguments", arguments)):
        for each in (PASSWORD, TOKEN, key, secret, GARBAGE, secret.removeprefix("whsec_")):
            assert each not in text, f"{each} in {name}: {text[max(0, text.index(each) - 300):][:600]}"
    assert PASSWORD not in answers + rows
    assert key not in rows
    assert rows.count(secret) == 1, "only the endpoint itself holds what it signs with"


class Talk:
    """Requests with a key; `heard` is what came back, but for what is told on purpose."""

    def __init__(self, base: str, key: str) -> None:
        self._base, self._key = base, key
        self.heard: list[str] = []

    def __call__(self, method: str, path: str, body: object = None, **headers: str) -> dict[str, object]:
        raw = self.raw(method, path, body, **headers)
        if "signing_secret" not in raw:
            self.heard.append(raw)
        told: dict[str, object] = json.loads(raw)
        return told

    def raw(self, method: str, path: str, body: object = None, **headers: str) -> str:
        given = {"Authorization": f"Bearer {self._key}", **{name.replace("_", "-"): each for name, each in headers.items()}}
        return urllib3.request(method, self._base + path, json=body, headers=given, timeout=60, retries=False).data.decode()


def dump(url: str) -> str:
    """Every value of every table as text."""
    connected = database.connect(url, pool_size=1)
    try:
        with connected.read() as tx:
            tx.cursor.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'")
            names = [row[0] for row in tx.cursor.fetchall()]
            out = []
            for name in names:
                tx.cursor.execute(f'SELECT * FROM "{name}"')
                out += [repr(tuple(bytes(each) if isinstance(each, memoryview) else each for each in row))
                        for row in tx.cursor.fetchall()]
    finally:
        connected.close()
    return "\n".join(out)


def broken(started: embedded.Up, base: str, key: str) -> None:
    """Trouble that is logged: a request that is cut off, and a database that throws everybody out."""
    place = urllib3.util.parse_url(base)
    with socket.create_connection((str(place.host), int(place.port or 80)), timeout=10) as connection:
        connection.sendall(f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: 99\r\n\r\n{{".encode())
    Talk(base, key).raw("GET", "/v1/jobs")
    assert started.process.poll() is None


def test_settings_that_can_not_be_used_are_told_without_passwords(folder: Path) -> None:
    for url in (f"postgresql://me:{PASSWORD}@127.0.0.1:9/x", f"postgresql://127.0.0.1:9/x?password={PASSWORD}"):
        for command in (("db", "check"), ("doctor",), ("keys", "list")):
            done = embedded.run(*command, cwd=folder, database_url=url, broker_url=f"redis://:{TOKEN}@127.0.0.1:9/0")
            assert done.returncode != 0
            assert PASSWORD not in done.stdout + done.stderr, command
            assert TOKEN not in done.stdout + done.stderr, command
    assert PASSWORD not in repr(settings.load({"HEADRACE_DATABASE_URL": f"postgresql://me:{PASSWORD}@h/x"}).masked())
