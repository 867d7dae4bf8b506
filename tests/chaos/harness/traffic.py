"""Clients of a run: every kind of request, each with what was sent and what was answered in the history.

A request with an idempotency key is sent again until it is answered for good; one without is not, once its
answer was lost: nobody knows then whether its jobs exist.
"""

import contextlib
import http.client
import itertools
import json
import random
import threading
import time
import urllib.parse
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from tests.chaos.harness import examples, listeners
from tests.chaos.harness.examples import Example
from tests.chaos.harness.stage import Stage

REQUEST_S = 12.0
PATIENCE_S = 90.0  # for one answer, however often the service is away meanwhile
RETRY_S = 0.1
REMEMBERED = 400  # of what was accepted, to be looked at again
BURST = 150
REFUSED = "refused"  # nobody listened, so nothing was accepted
Json = Mapping[str, Any]


@dataclass(slots=True)
class Answer:
    """`lost`: the name of what went wrong on the way; then there is no status."""

    status: int = 0
    document: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    lost: str | None = None

    @property
    def final(self) -> bool:
        """Whether asking again would be pointless."""
        return self.lost is None and self.status < 500 and self.status not in (409, 429)

    @property
    def certain(self) -> bool:
        """Whether it is known that nothing was accepted, or that something was."""
        if self.lost is not None:
            return self.lost == REFUSED
        return self.status < 500 or not self.document.get("may_have_been_accepted", True)


class Connection:
    """One keep-alive connection that finds the service again, wherever the stage has it."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._open: http.client.HTTPConnection | None = None
        self._url = ""

    def ask(self, method: str, path: str, document: Json | None = None, **headers: str) -> Answer:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        raw = None if document is None else json.dumps(document).encode()
        if raw is not None:
            given["Content-Type"] = "application/json"
        try:
            connection = self._connected()
        except OSError as error:
            self.close()
            return Answer(lost=REFUSED if isinstance(error, ConnectionRefusedError) else type(error).__name__)
        try:
            connection.request(method, path, raw, given)
            reply = connection.getresponse()
            text = reply.read()
            shown = {name.lower(): value for name, value in reply.getheaders()}
            return Answer(reply.status, json.loads(text) if text else None, shown)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            return Answer(lost=type(error).__name__)

    def _connected(self) -> http.client.HTTPConnection:
        if self._open is None or self._url != self._stage.url:
            self.close()
            self._url = self._stage.url
            place = urllib.parse.urlsplit(self._url)
            self._open = http.client.HTTPConnection(str(place.hostname), place.port, timeout=REQUEST_S)
        if self._open.sock is None:
            self._open.connect()
        return self._open

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None


class Traffic:
    """Some clients that go on until left. `sent` holds every example, for the direct run afterwards."""

    def __init__(self, stage: Stage, *, seed: int, clients: int = 6, pause_s: float = 0.1) -> None:
        self._stage = stage
        self._history = stage.history
        self._seed = seed
        self._pause_s = pause_s
        self._numbers = itertools.count()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._accepted: deque[str] = deque(maxlen=REMEMBERED)
        self._answered: deque[tuple[str, str, Json, Sequence[Example]]] = deque(maxlen=REMEMBERED)
        self.sent: list[Example] = []
        self.faults: list[str] = []
        self._threads = [threading.Thread(target=self._work, args=(number,), daemon=True)
                         for number in range(clients)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S + 2 * REQUEST_S)
            if thread.is_alive():
                self.faults.append(f"{thread.name} hangs")

    @property
    def accepted(self) -> int:
        with self._lock:
            return len(self._accepted)

    def _work(self, number: int) -> None:
        chance = random.Random(f"{self._seed}/{number}")
        connection = Connection(self._stage)
        ways: Sequence[tuple[Callable[[Connection, random.Random], None], int]] = (
            (self._single, 30), (self._keyless, 8), (self._batch, 16), (self._hurried, 8), (self._canceled, 8),
            (self._waited, 6), (self._repeated, 8), (self._mismatched, 3), (self._invalid, 4), (self._polled, 14),
            (self._listed, 2))
        try:
            while not self._stop.wait(chance.expovariate(1 / self._pause_s)):
                chance.choices([way for way, _ in ways], [weight for _, weight in ways])[0](connection, chance)
        except Exception as error:  # noqa: BLE001 - told at the end: a thread has nobody else to tell
            self.faults.append(f"a client ended: {error!r}")
        finally:
            connection.close()

    def _make(self, chance: random.Random, kind: str = "", **options: Any) -> Example:
        kind = kind or chance.choices((examples.VALID, examples.LARGE, examples.NOT_FINITE), (90, 7, 3))[0]
        if chance.random() < 0.2:
            way = chance.choices(listeners.WAYS, listeners.OWN_SHARES)[0]
            options["webhook"] = {"url": self._stage.receivers[listeners.OWN].url("/" + way)}
        if chance.random() < 0.2:
            options["priority"] = chance.randrange(10)
        made = examples.example(chance, f"{self._seed}-{next(self._numbers)}", kind, **options)
        with self._lock:
            self.sent.append(made)
        return made

    def _submit(self, connection: Connection, jobs: Sequence[Example], *, key: str | None, batch: bool,
                **headers: str) -> Answer:
        """Send until it is answered for good, or can't be sent again; the last answer."""
        path = "/v1/jobs/batch" if batch else "/v1/jobs"
        documents = [each.document() for each in jobs]
        document = {"jobs": documents} if batch else documents[0]
        request = jobs[0].tag
        self._history.write("sent", request=request, path=path, key=key, jobs=[each.as_dict() for each in jobs])
        answer = self._insist(connection, request, path, document, key, **headers)
        if answer.status in (200, 202):
            ids = [each["job"]["id"] for each in answer.document["data"] if each["status"] == 202] \
                if batch else [answer.document["id"]]
            with self._lock:
                self._accepted.extend(ids)
                if key is not None and ids:  # a batch without a right one isn't stored
                    self._answered.append((path, key, document, jobs))
        return answer

    def _insist(self, connection: Connection, request: str, path: str, document: Json, key: str | None,
                **headers: str) -> Answer:
        end = time.monotonic() + PATIENCE_S
        if key is not None:
            headers["Idempotency_Key"] = key
        while True:
            answer = connection.ask("POST", path, document, **headers)
            self._history.write("answered", request=request, **_shown(answer))
            if answer.final or (key is None and not answer.certain) or time.monotonic() > end:
                return answer
            time.sleep(RETRY_S)

    def _single(self, connection: Connection, chance: random.Random) -> None:
        self._submit(connection, [self._make(chance)], key=_key(chance), batch=False)

    def _keyless(self, connection: Connection, chance: random.Random) -> None:
        jobs = [self._make(chance) for _ in range(chance.choice((1, 1, 5)))]
        self._submit(connection, jobs, key=None, batch=len(jobs) > 1)

    def _batch(self, connection: Connection, chance: random.Random) -> None:
        kinds = chance.choices(("", examples.INVALID), (92, 8), k=chance.randint(2, 30))
        self._submit(connection, [self._make(chance, kind) for kind in kinds], key=_key(chance), batch=True)

    def _hurried(self, connection: Connection, chance: random.Random) -> None:
        deadline_s = round(10 ** chance.uniform(-1.5, 1.0), 3)
        self._submit(connection, [self._make(chance, examples.VALID, deadline_s=deadline_s)], key=_key(chance),
                     batch=False)

    def _canceled(self, connection: Connection, chance: random.Random) -> None:
        answer = self._submit(connection, [self._make(chance, examples.VALID)], key=_key(chance), batch=False)
        if answer.status not in (200, 202):
            return
        self._stop.wait(chance.choice((0.0, 0.0, 0.02, 0.3)))
        end = time.monotonic() + PATIENCE_S
        job_id = answer.document["id"]
        while time.monotonic() < end:
            told = connection.ask("POST", f"/v1/jobs/{job_id}/cancel")
            self._history.write("canceled", id=job_id, **_shown(told))
            if told.final:
                break
            time.sleep(RETRY_S)

    def _waited(self, connection: Connection, chance: random.Random) -> None:
        self._submit(connection, [self._make(chance)], key=_key(chance), batch=False, Prefer="wait=2")

    def _repeated(self, connection: Connection, chance: random.Random) -> None:
        """The same request under the same key once more, long after its answer."""
        with self._lock:
            if not self._answered:
                return
            path, key, document, jobs = chance.choice(self._answered)
        self._insist(connection, jobs[0].tag, path, document, key)

    def _mismatched(self, connection: Connection, chance: random.Random) -> None:
        """Another request under a key that is taken."""
        with self._lock:
            if not self._answered:
                return
            path, key, _, jobs = chance.choice(self._answered)
        other = self._make(chance, examples.VALID)
        document = {"jobs": [other.document()]} if path.endswith("batch") else other.document()
        self._history.write("sent", request=other.tag, path=path, key=key, jobs=[other.as_dict()], taken=jobs[0].tag)
        self._insist(connection, other.tag, path, document, key)

    def _invalid(self, connection: Connection, chance: random.Random) -> None:
        self._submit(connection, [self._make(chance, examples.INVALID)], key=_key(chance), batch=False)

    def _polled(self, connection: Connection, chance: random.Random) -> None:
        with self._lock:
            if not self._accepted:
                return
            job_id = chance.choice(self._accepted)
        path = f"/v1/jobs/{job_id}" + chance.choice(("", "", "?wait=1"))
        self._history.write("polled", id=job_id, **_shown(connection.ask("GET", path)))

    def _listed(self, connection: Connection, chance: random.Random) -> None:
        answer = connection.ask("GET", f"/v1/jobs?limit={chance.choice((5, 100))}")
        self._history.write("listed", status=answer.status, lost=answer.lost, entries=[
            {"id": each["id"], "state": each["state"]} for each in answer.document["data"]]
            if answer.status == 200 else _shown(answer))

    def poison(self) -> None:
        """One input that kills its worker among 63 others."""
        self._aside("poison", [examples.VALID] * 63 + [examples.POISONED])

    def burst(self) -> None:
        """So many at once that every worker has something to do for a moment."""
        self._aside("burst", [examples.VALID] * BURST)

    def _aside(self, name: str, kinds: Sequence[str]) -> None:
        """One batch from a thread of its own."""
        def send() -> None:
            chance = random.Random(f"{self._seed}/{name}/{time.monotonic()}")
            jobs = [self._make(chance, kind) for kind in chance.sample(kinds, len(kinds))]
            with contextlib.closing(Connection(self._stage)) as connection:
                self._submit(connection, jobs, key=_key(chance), batch=True)

        thread = threading.Thread(target=send, daemon=True, name=name)
        self._threads.append(thread)
        thread.start()


def _key(chance: random.Random) -> str:
    return f"{chance.getrandbits(96):024x}"


def _shown(answer: Answer) -> dict[str, Any]:
    """What of an answer matters."""
    shown: dict[str, Any] = {"status": answer.status, "lost": answer.lost}
    document = answer.document
    if answer.headers.get("idempotent-replayed"):
        shown["replayed"] = True
    if not isinstance(document, dict):
        return shown if document is None else shown | {"odd": repr(document)[:200]}
    if answer.status >= 400:
        return shown | {name: document.get(name) for name in ("code", "detail", "may_have_been_accepted")
                        if name in document}
    if document.get("object") == "list":
        return shown | {"entries": [
            {"status": each["status"], **(_job(each["job"]) if "job" in each else {"code": each["error"]["code"]})}
            for each in document["data"]]}
    return shown | {"entries": [{"status": 202, **_job(document)}]}


def _job(document: Json) -> dict[str, Any]:
    shown = {"id": document["id"], "state": document["state"]}
    if document["output"] is not None:
        shown["output"] = document["output"]["outputs"][0]["data"]
    return shown
