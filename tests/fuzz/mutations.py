"""Requests as bytes: right ones for every route, and what hypothesis makes of them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

JOB = {"model": "prey", "input": [0.1] * 30}
_NIL = "0" * 32
_FORM = (b'--cut\r\nContent-Disposition: form-data; name="manifest"\r\n\r\nname: a\nversion: "1"\ntask: tensor\n'
         b'artifact: m.onnx\r\n--cut\r\nContent-Disposition: form-data; name="m.onnx"; filename="m.onnx"\r\n\r\n'
         b"hello\r\n--cut--\r\n")

# Bodies that a route takes; the others get none.
_BODIES: Mapping[str, Any] = {
    "POST /v1/jobs": {**JOB, "priority": 3, "deadline_s": 60, "hardware": ["cpu"], "metadata": {"a": "b"},
                      "webhook": {"url": "http://127.0.0.1:9/x", "events": ["job.succeeded"]}},
    "POST /v1/jobs/batch": {"jobs": [JOB, {**JOB, "priority": 0}]},
    "POST /v1/webhook_endpoints": {"name": "n", "url": "http://127.0.0.1:9/", "event_types": ["job.failed"]},
    "POST /v1/webhook_endpoints/{id}": {"name": "m"},
    "POST /v1/webhook_endpoints/{id}/test": {"event_type": "job.failed"},
}
_VALUES: tuple[bytes, ...] = (
    b"null", b"true", b"-1", b"0", b"1e999", b"-1e-999", b"NaN", b"Infinity", b"9" * 400, b"0." + b"1" * 400,
    b'""', b'"\\u0000"', b'"\\ud800"', b'"\\udfff\\ud800"', b'"\xff\xfe"', b'"\x00"', '"ä€𝄞\u202e"'.encode(),
    b'"' + b"x" * 70_000 + b'"', b"[]", b"{}", b"[" * 2_000 + b"]" * 2_000, b'{"a":' * 600 + b"1" + b"}" * 600,
    b'{"a":1,"a":2}', b"[1,]", b"01", b"+1", b"'a'", b'"a', b"\xef\xbb\xbf1", b"1e400", b"-0", b"1.5",
    b"18446744073709551616", b'"../../etc/passwd"', b'"http://169.254.169.254/"', b'"\\u202e"', b"{]", b"/**/1")
_PATHS: tuple[bytes, ...] = (
    b"", b"/", b"//", b"/v1//jobs", b"/v1/jobs/", b"/v1/jobs/%00", b"/v1/jobs/..%2f..%2fetc%2fpasswd", b"/v1/jobs/%ff",
    b"/v1/jobs/%", b"/v1/../v1/jobs", b"*", b"http://127.0.0.1/v1/jobs", b"http://[::1", b"/v1/models/%2e%2e%2f",
    b"/v1/models/a@b@c", b"/v1/models/@", b"/v1/models/prey%401", b"/v1/models/" + b"a" * 3000, b"/\xff\xfe", b"/v1/jobs;a=b",
    b"/v1/jobs/job_" + b"Z" * 32, b"/v1/jobs/\\..\\", "/v1/jobs/ä".encode(), b"/static/../../etc/passwd", b"/docs/x", b"/.env")
_QUERIES: tuple[bytes, ...] = (
    b"?", b"?wait=0", b"?wait=-1", b"?wait=nan", b"?wait=1e9", b"?limit=0", b"?limit=99999999999999999999", b"?after=x",
    b"?state=%00", b"?state=queued&state=running", b"?model=%ff", b"?" + b"&".join(b"a=1" for _ in range(200)),
    b"?" + b"x" * 9000, b"?a[]=1", b"?;", b"?=", b"?limit=%31", b"?after=job_" + _NIL.encode(), "?model=ä".encode(), b"#x")
_METHODS: tuple[bytes, ...] = (
    b"GET", b"POST", b"PUT", b"PATCH", b"DELETE", b"HEAD", b"OPTIONS", b"TRACE", b"CONNECT", b"get", b"PRI", b"X" * 300,
    b"G\xff", b"QUERY", b"")
_HEADERS: tuple[bytes, ...] = (
    b"Content-Type: text/plain", b"Content-Type: application/json; charset=utf-16", b"Content-Type: \xff",
    b"Content-Type: multipart/form-data", b"Content-Type: multipart/form-data; boundary=" + b"b" * 300,
    b"Content-Type: multipart/form-data; boundary=x", b"Content-Encoding: gzip", b"Content-Encoding: \xe4", b"Expect: 100-continue",
    b"Expect: x", b"Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13",
    b"Connection: upgrade, http2-settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__", b"Connection: close, close",
    b"Range: bytes=0-", b"If-None-Match: *", b"If-None-Match: \xff", b'If-None-Match: "' + b"x" * 5000 + b'"', b"Prefer: wait=",
    b"Prefer: wait=0; respond-async", b"Prefer: \xff", b"Idempotency-Key: ", b"Idempotency-Key: a", b"Idempotency-Key: \xff",
    b"Idempotency-Key: " + b"k" * 256, b'Idempotency-Key: "\\"', b"X-Request-Id: \xff", b"X-Request-Id: " + b"i" * 400,
    b"X-Request-Id: a\tb", b"X-Request-Id:", b"Authorization: Bearer", b"Authorization: Basic eDp5", b"Authorization: Bearer \xff",
    b"Authorization: Bearer hr_" + b"a" * 36, b"X_Under_Score: 1", b"X-\xff: 1", b"X-Nul: \x00", b"X Space: 1", b"No-Colon", b": empty",
    b"X-Fold: a\r\n b", b"Accept: application/xml", b"Accept: \xff", b"Cookie: a=b", b"Forwarded: for=1.2.3.4", b"Host: ",
    b"Host: a, b", b"Transfer-Encoding: gzip", b"Transfer-Encoding: chunked, identity", b"Transfer-Encoding:\tchunked",
    b"Transfer-Encoding: xchunked", b"Content-Length: 0", b"Content-Length: 5, 5", b"Content-Length: +5", b"Content-Length: 0x5",
    b"Content-Length: -1", b"Content-Length: 99999999999999999999999", b"Content-Length: \xd9\xa3", b"Content-Length: 300000000000",
    b"Origin: null", b"Sec-Fetch-Site: cross-site", b"\r\nGET /v1/jobs HTTP/1.1", b"X: " + b"y" * 9000)
_FRAMINGS = ("plain", "chunked", "odd chunks", "bad chunk", "long", "short", "none")


@dataclass
class Sent:
    """One request. `whole`: its framing is right, so it is answered while the connection stays open."""

    raw: bytes
    whole: bool
    waits: bool = field(init=False)

    def __post_init__(self) -> None:
        head = self.raw.lower()
        self.waits = b"wait" in head or b"/test" in head  # asked to take its time


class Making:
    """Strategies of requests. `ids`: what stands for a path's parts. `headers`: what each request has, such as a key."""

    def __init__(self, routes: list[tuple[str, str]], ids: Mapping[str, str], headers: list[bytes]) -> None:
        self._routes = routes
        self._ids = ids
        self._headers = headers

    def requests(self) -> st.SearchStrategy[Sent]:
        return st.composite(self._request)()

    def _request(self, draw: Any) -> Sent:
        method, path = draw(st.sampled_from(self._routes))
        body = self._body(draw, f"{method} {path}")
        kind = b"multipart/form-data; boundary=cut" if path == "/v1/models" and method == "POST" else b"application/json"
        target = self._target(path)
        headers = [b"Host: 127.0.0.1", *self._headers, b"Content-Type: " + kind]
        verb, version = method.encode(), b"HTTP/1.1"
        framing = "plain" if draw(st.integers(0, 3)) else draw(st.sampled_from(_FRAMINGS))
        safe = True
        for what in draw(st.lists(st.sampled_from(
                ("method", "target", "query", "header", "header", "drop", "version", "piece", "noise")), max_size=4)):
            if what == "method":
                verb = draw(st.sampled_from(_METHODS))
            elif what == "target":
                target = draw(st.sampled_from(_PATHS) | st.binary(max_size=60).map(lambda part: b"/v1/jobs/" + part))
            elif what == "query":
                target += draw(st.sampled_from(_QUERIES) | st.binary(max_size=40).map(lambda part: b"?" + part))
            elif what == "header":
                added = draw(st.sampled_from(_HEADERS) | st.binary(max_size=60).map(lambda part: b"X-Any: " + part))
                headers.insert(draw(st.integers(0, len(headers))), added)
            elif what == "drop":
                headers.pop(draw(st.integers(0, len(headers) - 1))) if headers else None
            elif what == "version":
                version = draw(st.sampled_from((b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/1.1 x", b"", b"http/1.1")))
            elif what == "piece":
                body = _cut(draw, body)
            else:
                safe = False
        raw, whole = _framed(draw, verb + b" " + target + b" " + version, headers, body, framing)
        if not safe:
            raw = _cut(draw, raw)
        plain = all(not line.lower().startswith((b"content-length", b"transfer-encoding", b"\r\n", b"expect", b"connection"))
                    for line in headers)
        return Sent(raw, whole and safe and plain)

    def _target(self, path: str) -> bytes:
        for name, value in self._ids.items():
            path = path.replace(name, value)
        return path.replace("{id}", _NIL).encode()

    def _body(self, draw: Any, route: str) -> bytes:
        if route == "POST /v1/models":
            return _cut(draw, _FORM) if draw(st.booleans()) else _FORM
        if route not in _BODIES:
            return draw(st.sampled_from((b"", b"", b"{}", b"x")))
        made = json.loads(json.dumps(_BODIES[route]))
        marks: list[bytes] = []
        for _ in range(draw(st.integers(0, 3))):
            _mutate(draw, made, marks)
        raw = json.dumps(made).encode()
        for at, value in enumerate(marks):
            raw = raw.replace(b'"\\u0001%d\\u0001"' % at, value)
        return raw


def _mutate(draw: Any, value: Any, marks: list[bytes]) -> None:
    """Replace, add or drop something inside; what isn't JSON is marked, to be put in afterwards."""
    while True:
        keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = draw(st.sampled_from(keys))
        if not isinstance(value[key], dict | list) or not value[key] or draw(st.booleans()):
            break
        value = value[key]
    action = draw(st.sampled_from(("replace", "replace", "drop", "add")))
    if action == "drop":
        del value[key]
        return
    marks.append(draw(st.sampled_from(_VALUES)))
    mark = f"\x01{len(marks) - 1}\x01"
    if action == "replace":
        value[key] = mark
    elif isinstance(value, dict):
        value[draw(st.text(max_size=20))] = mark
    else:
        value.insert(key, mark)


def _cut(draw: Any, raw: bytes) -> bytes:
    """Bytes deleted, repeated, changed or put in somewhere."""
    at = draw(st.integers(0, len(raw)))
    end = min(len(raw), at + draw(st.integers(0, 40)))
    return raw[:at] + draw(st.sampled_from((b"", raw[at:end] * 2, b"\x00", b"\r\n", b"\r\n\r\n", b"\xff")) | st.binary(
        max_size=20)) + (b"" if draw(st.integers(0, 7)) == 0 else raw[end:])


def _framed(draw: Any, line: bytes, headers: list[bytes], body: bytes, framing: str) -> tuple[bytes, bool]:
    if framing in ("chunked", "odd chunks", "bad chunk"):
        size = draw(st.integers(1, 4000)) if framing == "odd chunks" else 1 << 16
        size = max(size, len(body) // 500)
        parts = [b"%x\r\n%b\r\n" % (len(body[at:at + size]), body[at:at + size]) for at in range(0, len(body), size)]
        sent = b"".join(parts) + b"0\r\n\r\n"
        if framing == "bad chunk":
            sent = draw(st.sampled_from((b"zz\r\n", b"ffffffffffffffffff\r\n", b"-1\r\n", b"5;" + b"x" * 9000 + b"\r\n"))) + sent
        headers = [*headers, b"Transfer-Encoding: chunked"]
    else:
        length = {"plain": len(body), "long": len(body) + draw(st.integers(1, 5000)), "short": len(body) // 2}.get(framing)
        headers = headers if length is None else [*headers, b"Content-Length: %d" % length]
        sent = body
    whole = framing in ("plain", "chunked", "odd chunks") or (not body and framing != "long")
    return line + b"\r\n" + b"".join(each + b"\r\n" for each in headers) + b"\r\n" + sent, whole
