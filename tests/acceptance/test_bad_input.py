"""Bad requests over raw sockets against the whole stack: each is told where, what and how to mend it, nothing is
stored, and the good jobs that arrive in the same moment are accepted and run."""

import base64
import contextlib
import itertools
import json
import socket
import struct
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from examples import samples
from tests import embedded, graphs, waiting

NEIGHBOURS = 31
ROW = [0.1] * 30
PNG = samples.image([8] * 64)
LIMIT_BYTES = 1 << 20
DEEP = b"[" * 100_000 + b"]" * 100_000


def exchange(port: int, sent: bytes, *, finished: bool = False) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer to these bytes. `finished`: say that no more will come."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused before it was read to its end
            connection.sendall(sent)
        if finished:
            connection.shutdown(socket.SHUT_WR)
        raw = b""
        while (end := complete(raw)) is None or len(raw) < end:
            received = connection.recv(1 << 16)
            if not received:
                break
            raw += received
    head, _, body = raw.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:])
    return int(lines[0].split(" ")[1]), headers, body


def complete(raw: bytes) -> int | None:
    """How long the answer is that begins like this; None while that can't be told."""
    head, mark, _ = raw.lower().partition(b"\r\n\r\n")
    length = head.partition(b"content-length: ")[2].split(b"\r\n")[0]
    return len(head) + 4 + int(length) if mark and length else None


def request(method: str = "POST", path: str = "/v1/jobs", body: bytes = b"", *, media_type: str = "application/json",
            length: object = None, more: str = "") -> bytes:
    kind = f"Content-Type: {media_type}\r\n" if media_type else ""
    size = "" if length == "" else f"Content-Length: {len(body) if length is None else length}\r\n"
    return f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{kind}{size}{more}\r\n".encode() + body


def chunked(body: bytes) -> bytes:
    return request(body=body, length="", more="Transfer-Encoding: chunked\r\n")


def chunks(body: bytes, size: int = 1 << 16) -> bytes:
    parts = (body[at:at + size] for at in range(0, len(body), size))
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def job(model: str = "tumor", input: object = ROW, **more: object) -> bytes:  # noqa: A002 (the field's name)
    return json.dumps({"model": model, "input": input, **more}).encode()


def file(content: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(content).decode()}


def part(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(side: int = 20_000) -> bytes:
    """A small PNG of 400 million pixels."""
    packer = zlib.compressobj(9)
    data = b"".join(packer.compress(bytes(side + 1)) for _ in range(side)) + packer.flush()
    return PNG[:8] + part(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)) + part(
        b"IDAT", data) + part(b"IEND", b"")


def tensor(shape: object = (1, 2), datatype: str = "FP32", data: object = (1, 2), name: str = "x") -> object:
    return {"inputs": [{"name": name, "shape": shape, "datatype": datatype, "data": data}]}


class Service:
    def __init__(self, started: embedded.Up) -> None:
        self.started = started
        self.url = started.ready()[1]
        self.port = int(started.ready()[3])
        self.pool = ThreadPoolExecutor(NEIGHBOURS + 1)

    def jobs(self) -> int:
        return sum(self.started.job_states().values())

    def amid_neighbours(self, sent: bytes, *, finished: bool = False) -> tuple[int, dict[str, str], bytes]:
        """The answer to these bytes, sent at once with good jobs, which all must be accepted."""
        before = self.jobs()
        good = [self.pool.submit(exchange, self.port, request(body=job())) for _ in range(NEIGHBOURS)]
        answer = exchange(self.port, sent, finished=finished)
        assert [each.result()[0] for each in good] == [202] * NEIGHBOURS
        assert self.jobs() == before + NEIGHBOURS, "something was stored"
        return answer


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("bad")
    with embedded.up(folder, max_body_bytes=str(LIMIT_BYTES)) as started:
        built = Service(started)
        for network in (graphs.EXAMPLES / "tumor", graphs.EXAMPLES / "digits", doubler(folder)):
            added = embedded.run("models", "add", str(network), cwd=folder, url=built.url)
            assert added.returncode == 0, added.stderr
        yield built
        built.pool.shutdown()
        # Everything that was accepted ends well, whatever arrived beside it.
        waiting.until(lambda: started.job_states().keys() == {"succeeded"}, 60, what="the end of all good jobs")
        assert started.stop() == 0
        assert "Traceback" not in started.log


def doubler(folder: Path) -> Path:
    """A network of the task `tensor`."""
    target = folder / "doubler"
    target.mkdir()
    graphs.save(target, [graphs.node("Add", ["x", "x"], ["y"])], [("x", graphs.FLOAT, ["n", 2])],
                [("y", graphs.FLOAT, ["n", 2])])
    (target / "network.yaml").write_text('{name: doubler, version: "1", task: tensor, artifact: model.onnx}\n')
    return target


def problem(answer: tuple[int, dict[str, str], bytes], status: int, code: str, pointer: str | None) -> Any:
    got, headers, body = answer
    assert (got, headers.get("content-type")) == (status, "application/problem+json"), body[:500]
    told = json.loads(body)
    assert (told["status"], told["code"], told["error"]["code"]) == (status, code, code), told
    assert told["detail"]
    assert told["errors"]
    assert all(each["rule"] and each["detail"] for each in told["errors"]), told
    if pointer is not None:
        assert pointer in [each["pointer"] for each in told["errors"]], told
    for word in (b"Traceback", b"<html", b".py", b"site-packages"):
        assert word not in body
    return told


# Name, body, status, code, pointer.
BODIES: list[tuple[str, bytes, int, str, str]] = [
    ("empty", b"", 400, "invalid_json", ""),
    ("cut", job()[:-5], 400, "invalid_json", ""),
    ("followed by more", job() + b" x", 400, "invalid_json", ""),
    ("NaN", job(input=[float("nan"), *ROW[1:]]), 400, "invalid_json", ""),
    ("Infinity", job(input=[float("inf"), *ROW[1:]]), 400, "invalid_json", ""),
    ("not UTF-8", b'{"model":"tumor","input":"\xff"}', 400, "invalid_json", ""),
    ("surrogate in UTF-8", b'{"model":"tumor","input":"\xed\xa0\x80"}', 400, "invalid_json", ""),
    ("UTF-16", job().decode().encode("utf-16"), 400, "invalid_json", ""),
    ("byte order mark", b"\xef\xbb\xbf" + job(), 400, "invalid_json", ""),
    ("bare NUL", b'{"model":"tumor","input":"a\0"}', 400, "invalid_json", ""),
    ("deep input", b'{"model":"tumor","input":' + DEEP + b"}", 400, "invalid_json", ""),
    ("deep field", b'{"model":"tumor","input":[1],"metadata":' + DEEP + b"}", 400, "invalid_json", ""),
    ("deep unknown field", b'{"model":"tumor","input":[1],"x":' + DEEP + b"}", 400, "invalid_json", ""),
    ("deep and NUL", b'{"model":"\\u0000","input":' + DEEP + b"}", 422, "invalid_request", ""),
    ("wrong field, then cut", b'{"model":1,"input":[', 400, "invalid_json", ""),
    ("huge", job(metadata={"a": "x" * LIMIT_BYTES}), 413, "payload_too_large", ""),
    ("list", b"[]", 422, "invalid_request", ""),
    ("null", b"null", 422, "invalid_request", ""),
    ("no input", b'{"model":"tumor"}', 422, "invalid_request", "/input"),
    ("unknown field", job(colour=1), 422, "invalid_request", "/colour"),
    ("model of wrong type", job(model=1), 422, "invalid_request", "/model"),  # type: ignore[arg-type]
    ("priority of wrong type", job(priority="high"), 422, "invalid_request", "/priority"),
    ("priority out of range", job(priority=10), 422, "invalid_request", "/priority"),
    ("metadata of wrong type", job(metadata={"a": 1}), 422, "invalid_request", "/metadata/a"),
    ("unknown class", job(hardware=["tpu"]), 422, "invalid_request", "/hardware/0"),
    ("private webhook", job(webhook={"url": "http://10.0.0.1/"}), 422, "invalid_request", "/webhook/url"),
    ("escaped NUL", job(input="a\0"), 422, "invalid_request", "/input"),
    ("half a surrogate pair", job(metadata={"a": "\ud83d"}), 422, "invalid_request", "/metadata/a"),
    ("unknown model", job(model="tumour"), 404, "model_not_found", "/model"),
    ("unknown version", job(model="tumor@7"), 404, "model_not_found", "/model"),
    ("short row", job(input=ROW[1:]), 422, "input_invalid", "/input"),
    ("text in a row", job(input=["a", *ROW[1:]]), 422, "input_invalid", "/input/0"),
    ("null in a row", job(input=[*ROW[1:], None]), 422, "input_invalid", "/input/29"),
    ("beyond float32", job(input=[1e39, *ROW[1:]]), 422, "input_invalid", "/input/0"),
    ("beyond any float", job().replace(b"0.1", b"1e999", 1), 422, "input_invalid", "/input"),
    ("unknown column", job(input={"a": 1}), 422, "input_invalid", "/input/a"),
    ("wrong shape", job("doubler", tensor((1, 3), data=(1, 2, 3))), 422, "input_invalid", "/input/inputs/0/shape"),
    ("shape unlike data", job("doubler", tensor(data=(1, 2, 3))), 422, "input_invalid", "/input/inputs/0/data"),
    ("negative shape", job("doubler", tensor((-1, 2))), 422, "input_invalid", "/input/inputs/0/shape"),
    ("wrong dtype", job("doubler", tensor(datatype="INT64")), 422, "input_invalid", "/input/inputs/0/datatype"),
    ("unknown tensor", job("doubler", tensor(name="z")), 422, "input_invalid", "/input/inputs/0/name"),
    ("text in a tensor", job("doubler", tensor(data=(1, "a"))), 422, "input_invalid", "/input/inputs/0/data/1"),
    ("bad base64", job("digits", {"base64": "@@@@"}), 422, "input_invalid", "/input/base64"),
    ("cut base64", job("digits", {"base64": file(PNG)["base64"][:-3]}), 422, "input_invalid", "/input/base64"),
    ("empty file", job("digits", file(b"")), 422, "input_invalid", "/input/base64"),
    ("no picture", job("digits", file(b"hello" * 20)), 422, "input_invalid", "/input/base64"),
    ("truncated picture", job("digits", file(PNG[:-20])), 422, "input_invalid", "/input/base64"),
    ("decompression bomb", job("digits", file(bomb())), 422, "input_invalid", "/input/base64"),
]


@pytest.mark.parametrize(("body", "status", "code", "pointer"), [each[1:] for each in BODIES],
                         ids=[each[0].replace(" ", "_") for each in BODIES])
def test_a_bad_body_is_refused_and_the_jobs_beside_it_are_not(
        service: Service, body: bytes, status: int, code: str, pointer: str) -> None:
    told = problem(service.amid_neighbours(request(body=body)), status, code, pointer)
    if code != "payload_too_large":
        # As an entry of a list it spares the others; one that isn't JSON refuses the whole list.
        answer = exchange(service.port, request(path="/v1/jobs/batch", body=b'{"jobs":[' + body + b"]}"))
        if answer[0] == 202:
            (entry,) = json.loads(answer[2])["data"]
            assert (entry["status"], entry["error"]["code"]) == (status, code)
            assert entry["error"]["errors"][0]["pointer"] == "/jobs/0" + told["errors"][0]["pointer"]
        else:
            problem(answer, answer[0], "invalid_json" if answer[0] == 400 else "invalid_request", None)


REQUESTS: list[tuple[str, bytes, int, str, str]] = [
    ("length above the limit", request(length=10**15), 413, "payload_too_large", ""),
    ("shorter than sent", request(body=job(), length=10, more="Connection: close\r\n"), 400, "invalid_json", ""),
    ("huge in chunks", chunked(chunks(b" " * 2 * LIMIT_BYTES)), 413, "payload_too_large", ""),
    ("no content type", request(body=job(), media_type=""), 415, "unsupported_media_type", "Content-Type"),
    ("a form", request(body=b"model=tumor", media_type="application/x-www-form-urlencoded"), 415,
     "unsupported_media_type", "Content-Type"),
    ("another charset", request(body=job(), media_type="application/json; charset=latin-1"), 415,
     "unsupported_media_type", "Content-Type"),
    ("compressed", request(body=zlib.compress(job()), more="Content-Encoding: deflate\r\n"), 415,
     "unsupported_media_type", "Content-Encoding"),
    ("wrong method", request("PUT", body=job()), 405, "method_not_allowed", ""),
    ("made-up method", request("BREW", body=job()), 405, "method_not_allowed", ""),
    ("wrong path", request(path="/v1/job", body=job()), 404, "not_found", ""),
    ("no id", request("GET", "/v1/jobs/../../etc/passwd"), 404, "not_found", ""),
    ("bytes in the path", request("GET", "/v1/jobs/%ff%00"), 404, "not_found", ""),
    ("upload that is no form", request(path="/v1/models", body=b"{}"), 415, "unsupported_media_type", "Content-Type"),
    ("upload without boundary", request(path="/v1/models", body=b"x", media_type="multipart/form-data"), 422,
     "invalid_request", ""),
    ("bad query", request("GET", "/v1/jobs?limit=0"), 422, "invalid_request", "?limit"),
    ("foreign page", request(body=job(), more="Origin: https://evil.example\r\n"), 403, "forbidden", ""),
    ("bad idempotency key", request(body=job(), more=f"Idempotency-Key: {'x' * 300}\r\n"), 422, "invalid_request",
     "Idempotency-Key"),
]


@pytest.mark.parametrize(("sent", "status", "code", "pointer"), [each[1:] for each in REQUESTS],
                         ids=[each[0].replace(" ", "_") for each in REQUESTS])
def test_a_bad_request_is_refused_and_the_jobs_beside_it_are_not(
        service: Service, sent: bytes, status: int, code: str, pointer: str) -> None:
    problem(service.amid_neighbours(sent), status, code, pointer)


@pytest.mark.parametrize("sent", [request(body=job(), length=5000), chunked(b"ff\r\n{"), chunked(b"zz\r\nxx\r\n")],
                         ids=["length", "chunk", "size"])
def test_a_body_that_ends_early_is_refused_and_the_jobs_beside_it_are_not(service: Service, sent: bytes) -> None:
    problem(service.amid_neighbours(sent, finished=True), 400, "invalid_json", "")


@pytest.mark.parametrize("sent", [
    b"\x16\x03\x01\r\n\r\n", b"GET\r\n\r\n", request(length=-1), request(length="x"), request(length=10**30),
    request(body=b"x", more="Content-Length: 2\r\n"), request("GET", "/" + "a" * 70_000),
    request("GET", more="".join(f"X-{at}: 1\r\n" for at in range(300))),
], ids=itertools.count())
def test_what_is_no_http_ends_in_the_server_with_a_status_and_no_page(service: Service, sent: bytes) -> None:
    status, _, body = service.amid_neighbours(sent)
    assert status in (400, 414, 431)
    assert body == b""


def test_a_good_body_in_chunks_is_a_good_body(service: Service) -> None:
    status, _, body = exchange(service.port, chunked(chunks(job(), 7)))
    assert (status, json.loads(body)["state"]) == (202, "queued")
