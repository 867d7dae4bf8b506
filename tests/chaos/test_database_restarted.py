"""PostgreSQL restarted under load: what clients are told meanwhile, and how soon the full rate is back."""

import http.client
import json
import signal
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Sequence
from typing import Any, Self

import psutil
import pytest

from tests import loads, waiting
from tests.stacks import Stack

pytestmark = pytest.mark.slow
RATE_S = 60.0  # jobs a second that are offered: well below what a busy machine of two cores does
FULL = 0.9  # of the rate before counts as full again
BUCKET_S = 0.5
BACK_S = 30.0  # only to notice that it never comes back; the target is 5


class Probe:
    """Submits at a steady rate, each job once and without a key; every answer with its time."""

    def __init__(self, url: str, clients: int = 6) -> None:
        self._place = urllib.parse.urlsplit(url)
        self._over = threading.Event()
        self._lock = threading.Lock()
        self.answers: list[tuple[float, int, Any]] = []
        self._threads = [threading.Thread(target=self._work, args=(at, clients), daemon=True) for at in range(clients)]

    def __enter__(self) -> Self:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for each in self._threads:
            each.join(30)

    def _work(self, number: int, clients: int) -> None:
        connection = http.client.HTTPConnection(str(self._place.hostname), self._place.port, timeout=20)
        row = loads.made_up(1, number)[0]
        body = json.dumps({"model": "deep", "input": loads.body(row)})
        while not self._over.wait(clients / RATE_S):
            try:
                connection.request("POST", "/v1/jobs", body, {"Content-Type": "application/json"})
                reply = connection.getresponse()
                status, told = reply.status, json.loads(reply.read())
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                status, told = 0, {"code": type(error).__name__}
            with self._lock:
                self.answers.append((time.monotonic(), status, told))
        connection.close()

    def rate(self, since: float, until: float) -> float:
        """Accepted jobs a second."""
        with self._lock:
            return sum(status == 202 and since <= at < until for at, status, _ in self.answers) / (until - since)

    def accepted(self) -> list[str]:
        with self._lock:
            return [told["id"] for _, status, told in self.answers if status == 202]


def _full_after_s(times: Sequence[float], back: float, wanted: float) -> float:
    """Seconds from `back` to the end of the first bucket in which that rate was reached."""
    at = back
    while True:
        if sum(at <= each < at + BUCKET_S for each in times) / BUCKET_S >= wanted:
            return at + BUCKET_S - back
        at += BUCKET_S / 5
        assert at - back < BACK_S, "the rate never came back"


@pytest.mark.parametrize("kind", ["postgres"])
@pytest.mark.parametrize("way", ["SIGINT", "SIGQUIT"])  # fast, immediate
def test_a_database_that_restarts_is_told_of_as_unavailable_and_the_rate_is_back_soon(
        stack: Stack, way: str, say: Any) -> None:
    begun = time.monotonic()
    offset_s = time.time() - begun
    with Probe(stack.url) as probe:
        waiting.until(lambda: len(probe.accepted()) > 5 * RATE_S, 60, what="a steady load")
        stopped = time.monotonic()
        before = probe.rate(stopped - 3, stopped)
        (server, *_) = stack.up.pids("bin/postgres -D")
        psutil.Process(server).send_signal(getattr(signal, way))
        waiting.until(lambda: not waiting.alive(server), 60, what="its end")
        stack.rows("SELECT 1")
        back = time.monotonic()
        waiting.until(lambda: probe.rate(back, time.monotonic()) * (time.monotonic() - back) > 5 * RATE_S, 60,
                      what="accepted jobs")
    stack.drained()
    refusals = [(status, told.get("code")) for _, status, told in probe.answers if status != 202]
    unknown = sum(bool(told.get("may_have_been_accepted")) for _, status, told in probe.answers if status == 503)
    ids = probe.accepted()
    rows = dict(stack.rows("SELECT id, state FROM jobs"))
    crashes = stack.count("crashes > 0")
    finished = [row[0] / 1000 - offset_s for row in stack.rows("SELECT finished_at FROM jobs WHERE state = 'succeeded'")]
    say(way=way, before_per_s=round(before, 1), away_s=round(back - stopped, 2), refused=len(refusals), unknown=unknown,
        told={f"{status} {code}": count for (status, code), count in Counter(refusals).items()},
        accepts_full_after_s=round(_full_after_s(
            [at for at, status, _ in probe.answers if status == 202], back, FULL * before), 2),
        results_full_after_s=round(_full_after_s(finished, back, FULL * before), 2))
    assert set(refusals) <= {(503, "unavailable")}
    assert {rows.get(each) for each in ids} == {"succeeded"}
    assert len(ids) <= len(rows) - stack.accepted <= len(ids) + unknown
    assert crashes == 0
