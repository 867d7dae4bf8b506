"""A running service under mutated requests, with good ones beside them: what may not happen is written down."""

import contextlib
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import urllib3

from tests import embedded, graphs
from tests.fuzz import mutations

PAUSE_S = 0.02  # between two good requests
WAIT_S = 31.0  # what a request may ask for
_SHOWN = 1500


class Exchange:
    """What came back to the bytes of one request."""

    def __init__(self, port: int, sent: mutations.Sent, limit_s: float) -> None:
        self.sent = sent
        began_s = time.monotonic()
        self.raw = self._talk(port, limit_s)
        self.took_s = time.monotonic() - began_s
        while self.raw.startswith(b"HTTP/1.1 100"):
            self.raw = self.raw.partition(b"\r\n\r\n")[2]
        found = re.match(rb"HTTP/1\.[01] (\d{3})", self.raw)
        self.status = int(found[1]) if found else 0
        self.head, _, self.body = self.raw.partition(b"\r\n\r\n")
        # What follows answers what followed: to the server, the rest of a body that is too long is a request.
        length = _length(self.head)
        self.body = self.body if length is None else self.body[:length]

    def _talk(self, port: int, limit_s: float) -> bytes:
        raw = b""
        end_s = time.monotonic() + limit_s
        with socket.create_connection(("127.0.0.1", port), timeout=limit_s) as connection, contextlib.suppress(OSError):
            with contextlib.suppress(OSError):  # refused before it was read to its end
                connection.sendall(self.sent.raw)
                if not self.sent.whole:
                    connection.shutdown(socket.SHUT_WR)
            while not _complete(raw, bare=self.sent.raw.startswith(b"HEAD ")):
                connection.settimeout(max(0.01, end_s - time.monotonic()))
                received = connection.recv(1 << 16)
                if not received:
                    break
                raw += received
        return raw

    def faults(self, limit_s: float) -> list[str]:
        """What this answer has that none may have."""
        found = []
        if self.took_s > limit_s:
            found.append(f"took {self.took_s:.2f} s")
        if self.status >= 500:
            found.append(f"status {self.status}")
        if not self.status and self.sent.whole:
            found.append("no answer")
        if b"Traceback" in self.raw:
            found.append("a traceback")
        if self.status >= 400 and self.body and b"content-type: application/problem+json" not in self.head.lower():
            found.append("an error that is no problem+json")
        if self.status in range(400, 500) and self.body:
            try:
                json.loads(self.body)
            except ValueError:
                found.append("a problem that is no JSON")
        return found


def _length(head: bytes) -> int | None:
    found = re.search(rb"content-length: (\d+)", head.lower())
    return int(found[1]) if found else None


def _complete(raw: bytes, *, bare: bool) -> bool:
    """Whether an answer is there to its end, as far as that shows before the connection is closed."""
    while raw.startswith(b"HTTP/1.1 100"):
        raw = raw.partition(b"\r\n\r\n")[2]
    head, mark, body = raw.partition(b"\r\n\r\n")
    length = _length(head)
    return bool(mark) and (bare or head[9:12] in (b"204", b"304") or (length is not None and len(body) >= length))


class Neighbour(threading.Thread):
    """Good requests, one after the other, all of which must be accepted and succeed."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        super().__init__(daemon=True)
        self._url, self._headers = url, headers
        self._over = threading.Event()
        self._pool = urllib3.PoolManager(retries=False)
        self.accepted: list[str] = []
        self.refused: list[str] = []
        self.slowest_s = 0.0

    def run(self) -> None:
        while not self._over.wait(PAUSE_S):
            began_s = time.monotonic()
            try:
                reply = self._pool.request("POST", f"{self._url}/v1/jobs", json={"model": "tumor", "input": [0.1] * 30},
                                           headers=self._headers, timeout=30)
            except urllib3.exceptions.HTTPError as error:
                self.refused.append(str(error))
                continue
            self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)
            if reply.status == 202:
                self.accepted.append(reply.json()["id"])
            else:
                self.refused.append(f"{reply.status} {reply.data[:200]!r}")

    def end(self) -> list[str]:
        """Stop; what went wrong with the good requests."""
        self._over.set()
        self.join(60)
        states: Counter[str] = Counter()
        for job_id in self.accepted:
            states[str(self._ended(job_id))] += 1
        out = [f"a good request was refused: {each}" for each in self.refused]
        return out + [f"{count} good jobs ended as {state}" for state, count in states.items() if state != "succeeded"]

    def _ended(self, job_id: str) -> Any:
        reply = self._pool.request("GET", f"{self._url}/v1/jobs/{job_id}?wait=30", headers=self._headers, timeout=60)
        return reply.json()["state"]


class Campaign:
    """`headrace up` on a database, with keys or without, its networks, a worker, and a neighbour."""

    def __init__(self, folder: Path, database: str, *, keyed: bool, limit_s: float) -> None:
        self.started = embedded.Up(folder, "--database", database, auth="keys" if keyed else "off")
        self.folder, self._limit_s = folder, limit_s
        self.statuses: Counter[int] = Counter()
        self.took_s: list[float] = []
        self.violations: list[str] = []
        ready = self.started.ready()
        self.url, self.port = ready[1], int(ready[3])
        data = self.started.data
        self._database_url = f"postgresql://headrace@/headrace?host={data}/postgres.sock" if database == "postgres" \
            else f"sqlite:///{data}/headrace.db"
        self.key = self._key("fuzz") if keyed else ""
        self.headers = {"Authorization": f"Bearer {self.key}"} if keyed else {}
        self._add_networks()
        self.document: dict[str, Any] = urllib3.request("GET", f"{self.url}/openapi.json").json()
        self.neighbour = Neighbour(
            self.url, {"Authorization": f"Bearer {self._key('neighbour')}"} if keyed else {})
        self.neighbour.start()

    def _key(self, tenant: str) -> str:
        made = embedded.run("keys", "create", "--tenant", tenant, "--name", "all", "--scopes", "admin", "--json",
                            cwd=self.folder, database_url=self._database_url)
        found = re.search(r"hr_[0-9A-Za-z]{36}", made.stdout)
        assert found is not None, made.stderr
        return found[0]

    def _add_networks(self) -> None:
        """`tumor` is the neighbour's, `prey` that of the mutated requests, which may do with it what they like."""
        source = graphs.EXAMPLES / "tumor"
        prey = self.folder / "prey"
        prey.mkdir()
        (prey / "model.onnx").write_bytes((source / "model.onnx").read_bytes())
        (prey / "network.yaml").write_text((source / "network.yaml").read_text().replace("name: tumor", "name: prey"))
        for path in (source, prey):
            given = {"key": self.key} if self.key else {}
            added = embedded.run("models", "add", str(path), cwd=self.folder, url=self.url, **given)
            assert added.returncode == 0, added.stderr

    def making(self) -> mutations.Making:
        """Strategies over every route of this service, on objects that are there."""
        routes = [(method.upper(), path) for path, each in self.document["paths"].items() for method in each]
        job = self._post("/v1/jobs", mutations.JOB)
        hook = self._post("/v1/webhook_endpoints", {"name": "n", "url": "http://127.0.0.1:9/", "event_types": ["job.failed"]})
        ids = {"{model}": "prey@1", "/v1/jobs/{id}": f"/v1/jobs/{job['id']}",
               "/v1/webhook_endpoints/{id}": f"/v1/webhook_endpoints/{hook.get('id', 'whe_0')}"}
        routes = [each for each in routes if each[0] != "DELETE"] + [
            ("DELETE", "/v1/models/gone@1"), ("DELETE", "/v1/webhook_endpoints/{id}0")]
        return mutations.Making(routes, ids, [f"{name}: {value}".encode() for name, value in self.headers.items()])

    def _post(self, path: str, body: object) -> Any:
        return urllib3.request("POST", self.url + path, json=body, headers=self.headers, timeout=30).json()

    def send(self, sent: mutations.Sent) -> None:
        limit_s = self._limit_s + (WAIT_S if sent.waits else 0)
        done = Exchange(self.port, sent, limit_s + 5)
        self.statuses[done.status] += 1
        if not sent.waits:
            self.took_s.append(done.took_s)
        found = done.faults(limit_s)
        if found:
            self.violations.append(f"{', '.join(found)}: {sent.raw[:_SHOWN]!r} -> {done.raw[:_SHOWN]!r}")

    def schemathesis(self, examples: int, seed: int) -> int:
        """Requests that schemathesis makes from the document; how many."""
        document = json.loads(json.dumps(self.document))
        fields = document["components"]["schemas"]["JobBody"]["properties"]
        fields["model"] = {"enum": ["prey", "prey@1"]}
        for path in document["paths"].values():
            for each in path.values():  # nothing that may take its time by request
                each["parameters"] = [one for one in each["parameters"] if one["name"] not in ("wait", "Prefer")]
        (self.folder / "narrowed.json").write_text(json.dumps(document))
        before = self._answered()
        done = subprocess.run(
            [str(Path(sys.executable).with_name("schemathesis")), "run", "narrowed.json", "--url", self.url, "--seed", str(seed),
             "--max-examples", str(examples), "--checks", "not_a_server_error,content_type_conformance,status_code_conformance",
             "--max-response-time", str(self._limit_s), "--continue-on-failure", "--no-color", "--request-timeout", "40",
             "--exclude-path-regex", "/test$", "--exclude-method", "DELETE", "--warnings", "off",
             *(f"--header={name}: {value}" for name, value in self.headers.items())],
            cwd=self.folder, capture_output=True, text=True, check=False)
        if done.returncode or not re.search(r"\d+ generated", done.stdout):
            self.violations.append("schemathesis: " + done.stdout[-6000:].replace(self.key or "\0", "hr_…"))
        return self._answered() - before

    def _answered(self) -> int:
        text = urllib3.request("GET", f"{self.url}/metrics", headers=self.headers).data.decode()
        counted = sum(float(value) for value in re.findall(
            r"^headrace_http_request_duration_seconds_count\S* (\S+)$", text, re.MULTILINE))
        return int(counted) - len(self.neighbour.accepted)

    def end(self) -> list[str]:
        """Stop all; everything that was wrong."""
        try:
            self.violations += self.neighbour.end()
            if self.started.stop() != 0:
                self.violations.append("it did not stop in good order")
        finally:
            self.started.end()
        if "Traceback" in self.started.log:
            self.violations.append("a traceback in the log: " + self.started.log[
                max(0, self.started.log.index("Traceback") - 500):][:3000])
        return self.violations


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0.0


