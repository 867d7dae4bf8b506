"""The client commands against small HTTP servers of the tests' own: what they send, and how failures read."""

import base64
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cli import client, jobs

JOB = {"id": "job_1", "object": "job", "model": "digits@1", "state": "queued", "output": None, "error": None,
       "timings": {"queued_ms": None, "run_ms": None, "batch_size": None}, "created_at": "2026-01-01T00:00:00.000Z"}


@dataclass
class Seen:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Service:
    """A server that answers with what the test says: path (without query) to (status, object)."""

    answers: dict[str, Any] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    url: str = ""

    def answer(self, method: str, path: str) -> tuple[int, Any]:
        found = self.answers[f"{method} {path.partition('?')[0]}"]
        return found() if callable(found) else found


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    made = Service()

    class Answering(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            made.seen.append(Seen(self.command, self.path,
                                  {k.lower(): v for k, v in self.headers.items()}, body))
            status, value = made.answer(self.command, self.path)
            data = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_DELETE = do_POST  # noqa: N815 (http.server finds them by name)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    made.url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("HEADRACE_URL", made.url)
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def run() -> Callable[..., Result]:
    def invoke(command: Any, *arguments: str, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(command, list(arguments), input=stdin)

    return invoke


def test_a_service_that_is_not_there_is_exit_code_3_in_one_line(run, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HEADRACE_URL", f"http://127.0.0.1:{free.getsockname()[1]}")
        result = run(jobs.jobs, "list")
    assert result.exit_code == 3
    assert result.stderr.count("\n") == 1
    assert "out of reach" in result.stderr
    assert "headrace up" in result.stderr


@pytest.mark.parametrize("url", ["localhost:8080", "ftp://x", "http://"])
def test_a_url_that_is_none_is_wrong_use(run, monkeypatch, url):
    monkeypatch.setenv("HEADRACE_URL", url)
    result = run(jobs.jobs, "list")
    assert result.exit_code == 2
    assert "HEADRACE_URL" in result.stderr


def test_every_fault_of_a_refusal_is_shown_with_its_pointer(run, service):
    service.answers = {"GET /v1/models/tumor": (200, {"task": "tabular"}), "POST /v1/jobs": (422, {
        "code": "input_invalid", "detail": "The input does not fit the network's signature.",
        "errors": [{"pointer": "/input/f0", "rule": "type", "detail": "must be a number"},
                   {"pointer": "/input/f9", "rule": "required", "detail": "is missing"}]})}
    result = run(jobs.submit, "tumor", "{}")
    assert result.exit_code == 2
    assert result.stderr == ("headrace: The input does not fit the network's signature: /input/f0: must be a number; "
                             "/input/f9: is missing [input_invalid]\n")


@pytest.mark.parametrize(("status", "code", "exit_code"), [
    (404, "not_found", 2), (401, "unauthenticated", 2), (429, "rate_limited", 1), (409, "model_not_ready", 1),
    (500, "internal", 1), (503, "unavailable", 3)])
def test_refusals_have_the_exit_codes_of_the_contract(run, service, status, code, exit_code):
    service.answers = {"GET /v1/jobs/job_1": (status, {"code": code, "detail": "it says why"})}
    result = run(jobs.jobs, "show", "job_1")
    assert result.exit_code == exit_code
    assert "it says why" in result.stderr
    assert result.stdout == ""


def test_an_answer_of_some_other_server_is_out_of_reach(run, service):
    service.answers = {"GET /v1/jobs/job_1": (404, b"<html>not here</html>")}
    result = run(jobs.jobs, "show", "job_1")
    assert result.exit_code == 3
    assert "not a Headrace answer" in result.stderr


def test_control_characters_of_an_answer_do_not_reach_the_terminal(run, service):
    service.answers = {"GET /v1/jobs/job_1": (404, {"code": "not_found", "detail": "a\x1b[2Jb\nc"})}
    assert run(jobs.jobs, "show", "job_1").stderr == "headrace: a [2Jb c [not_found]\n"


def test_a_key_is_sent_as_a_bearer_token(run, service, monkeypatch):
    service.answers = {"POST /v1/jobs/job_1/cancel": (200, JOB)}
    monkeypatch.setenv("HEADRACE_KEY", "hr_abc")
    assert run(jobs.jobs, "cancel", "job_1").exit_code == 0
    assert service.seen[0].headers["authorization"] == "Bearer hr_abc"


def test_a_key_that_would_break_the_header_is_wrong_use(run, service, monkeypatch):
    monkeypatch.setenv("HEADRACE_KEY", "hr_a\r\nX-Other: 1")
    result = run(jobs.jobs, "list")
    assert result.exit_code == 2
    assert service.seen == []


def test_submit_sends_what_the_options_say(run, service):
    service.answers = {"GET /v1/models/tumor": (200, {"task": "tabular"}), "POST /v1/jobs": (202, JOB)}
    result = run(jobs.submit, "tumor", "[1, 2.5]", "--priority", "0", "--deadline", "3", "--hardware", "cpu",
                 "--metadata", "a=b=c", "--webhook", "https://x.example/h", "--idempotency-key", "k1", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == JOB
    sent = service.seen[-1]
    assert json.loads(sent.body) == {"model": "tumor", "input": [1, 2.5], "priority": 0, "deadline_s": 3.0,
                                     "hardware": ["cpu"], "metadata": {"a": "b=c"},
                                     "webhook": {"url": "https://x.example/h"}}
    assert sent.headers["idempotency-key"] == "k1"


@pytest.mark.parametrize(("task", "typed", "stdin", "sent"), [
    ("text-embedding", "plain words", None, "plain words"),
    ("text-embedding", "42", None, "42"),
    ("text-embedding", '"quoted"', None, "quoted"),
    ("text-embedding", "-", "from a pipe", "from a pipe"),
    ("tabular", "-", "[1]", [1]),
    ("bytes-classification", "-", b"\x00\xff", {"base64": "AP8="}),
    ("image-classification", '{"base64": "AAAA"}', None, {"base64": "AAAA"}),
])
def test_the_input_is_read_as_the_task_takes_it(run, service, task, typed, stdin, sent):
    service.answers = {"GET /v1/models/m": (200, {"task": task}), "POST /v1/jobs": (202, JOB)}
    assert run(jobs.submit, "m", typed, stdin=stdin).exit_code == 0
    assert json.loads(service.seen[-1].body)["input"] == sent


def test_files_are_read_as_the_task_takes_them(run, service, tmp_path):
    service.answers = {"GET /v1/models/m": (200, {"task": "image-classification"}), "POST /v1/jobs": (202, JOB)}
    image, wrapped = tmp_path / "a.png", tmp_path / "a.json"
    image.write_bytes(b"\x89PNG")
    wrapped.write_text('{"base64": "iVBORw=="}')
    for typed in (str(image), f"@{image}", f"@{wrapped}"):
        assert run(jobs.submit, "m", typed).exit_code == 0
        assert json.loads(service.seen[-1].body)["input"] == {"base64": base64.b64encode(b"\x89PNG").decode()}


@pytest.mark.parametrize("typed", ["{", "NaN", "@/nowhere.json", "[" * 100_000])
def test_an_input_that_cannot_be_read_is_wrong_use_and_sends_nothing(run, service, typed):
    service.answers = {"GET /v1/models/m": (200, {"task": "tensor"})}
    result = run(jobs.submit, "m", typed)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert [seen.method for seen in service.seen] == ["GET"]


def test_wait_prints_the_output(run, service):
    states = iter(["running", "succeeded"])
    service.answers = {
        "GET /v1/models/m": (200, {"task": "tensor"}), "POST /v1/jobs": (202, JOB),
        "GET /v1/jobs/job_1": lambda: (200, {**JOB, "state": next(states), "output": {"label": "3"}})}
    result = run(jobs.submit, "m", "1", "--wait")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {"label": "3"}


def test_wait_ends_with_1_and_the_reason_when_the_job_fails(run, service):
    failed = {**JOB, "state": "failed", "error": {"code": "output_not_finite", "message": "NaN at 3"}}
    service.answers = {"GET /v1/models/m": (200, {"task": "tensor"}), "POST /v1/jobs": (202, JOB),
                       "GET /v1/jobs/job_1": (200, failed)}
    result = run(jobs.submit, "m", "1", "--wait", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout) == failed
    assert result.stderr.endswith("headrace: job_1 failed: NaN at 3 [output_not_finite]\n")


def test_wait_gives_up_after_its_timeout_and_says_that_the_job_goes_on(run, service):
    service.answers = {"GET /v1/models/m": (200, {"task": "tensor"}), "POST /v1/jobs": (202, JOB),
                       "GET /v1/jobs/job_1": (200, JOB)}
    result = run(jobs.submit, "m", "1", "--wait", "--timeout", "0.1")
    assert result.exit_code == 1
    assert "it goes on" in result.stderr


def test_lists_follow_the_pages_and_keep_ids_whole(run, service):
    identity = "job_" + "0" * 32
    first = {"data": [{**JOB, "id": identity}], "has_more": True, "last_id": identity}
    pages = iter([first, {"data": [{**JOB, "id": "job_last"}], "has_more": False, "last_id": "job_last"}])
    service.answers = {"GET /v1/jobs": lambda: (200, next(pages))}
    result = run(jobs.jobs, "list", "--limit", "5")
    assert identity in result.stdout
    assert "job_last" in result.stdout
    assert f"after={identity}" in service.seen[1].path


def test_a_lost_answer_to_a_submit_is_asked_for_again_under_the_same_key():
    """The server reads the first POST and hangs up; the second gets an answer."""
    keys: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        def serve() -> None:
            for number in range(2):
                connection, _ = listening.accept()
                with connection:
                    head = b""
                    while b"{}" not in head:
                        head += connection.recv(65536)
                    keys.append(head.lower().split(b"idempotency-key: ")[1].split(b"\r")[0].decode())
                    if number == 1:
                        connection.sendall(b'HTTP/1.1 202 Accepted\r\nContent-Length: 8\r\n\r\n{"a": 1}')

        thread = threading.Thread(target=serve)
        thread.start()
        answer = client.Client(f"http://127.0.0.1:{listening.getsockname()[1]}").post(
            "/v1/jobs", {}, idempotency_key="k")
        thread.join()
    assert answer.body == {"a": 1}
    assert keys == ["k", "k"]
