"""One way from a WSGI request to its reply: id, origin, key, scope, size, rate, body, view, problem+json.

Flask's shell and the short lane of the hottest routes both end here, so they answer alike, auth included.
"""

import functools
import ipaddress
import re
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import structlog
import uuid_utils

from api import errors, stalls
from api.http import JSON, Principal, Reply, Request, Route
from models import errors as faults
from models.quota import UNLIMITED, Quota
from models.settings import Settings
from models.tenant import DEFAULT, SCOPES

if TYPE_CHECKING:
    from api.service import Service

log = structlog.get_logger("headrace.api")

EVERYTHING = frozenset(SCOPES)
KEYLESS = Principal(DEFAULT, EVERYTHING)
MAX_QUERY_FIELDS = 64
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,200}\Z")
_OWN_SITES = frozenset({"same-origin", "none"})  # none: typed in, a bookmark
_WITH_BODY = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class Headers(Mapping[str, str]):
    """A WSGI environment's headers under their lower-case names, looked up as they are asked for."""

    __slots__ = ("_environ",)

    def __init__(self, environ: Mapping[str, Any]) -> None:
        self._environ = environ

    def __getitem__(self, name: str) -> str:
        value: str | None = self.get(name)
        if value is None:
            raise KeyError(name)
        return value

    def get(self, name: str, default: Any = None) -> Any:
        # The server hands over a header that isn't ASCII as an empty one: it must not be ignored.
        key = _key(name)
        value = self._environ.get(key)
        return default if value is None or (not value and key in _UNPREFIXED) else value

    def __iter__(self) -> Iterator[str]:
        for key in self._environ:
            if key.startswith("HTTP_") or (key in _UNPREFIXED and self._environ[key]):
                yield key.removeprefix("HTTP_").lower().replace("_", "-")

    def __len__(self) -> int:
        return sum(1 for _ in self)


_UNPREFIXED = ("CONTENT_TYPE", "CONTENT_LENGTH")


@functools.cache  # the names are those that this code asks for
def _key(name: str) -> str:
    key = name.upper().replace("-", "_")
    return key if key in _UNPREFIXED else "HTTP_" + key


def answer(service: "Service", route: Route, environ: Mapping[str, Any], params: Mapping[str, str]) -> Reply:
    """The reply to a request that `route` answers. Never raises."""
    started = time.perf_counter()
    request = request_of(environ, route.method, params)
    told: Mapping[str, str] = {}
    try:
        principal = admit(service, route, request)
        quota = UNLIMITED if route.scope is None else service.quotas.of(principal.tenant)
        limit = _check_length(service, route, environ, quota)
        if quota.rate is not None:
            pace = service.pacing.take(principal.tenant, quota)
            told = pace.headers
            pace.check()
        _check_params(request)
        _read_query(route, environ, request)
        _read_body(service, route, environ, request, limit)
        reply = route.view(service, request, principal)
    except faults.HeadraceError as error:
        reply = refusal(error, request)
    except Exception:
        log.exception("request_failed", request_id=request.id, method=request.method, path=request.path)
        reply = errors.problem(faults.HeadraceError("something went wrong here; its log says what"), request)
    reply.headers["X-Request-Id"] = request.id
    if told:
        reply.headers |= told
    reply.headers["X-Content-Type-Options"] = "nosniff"  # whatever it looks like, it is no page
    service.metrics.observe(route, reply.status, time.perf_counter() - started)
    return reply


def refusal(error: faults.HeadraceError, request: Request) -> Reply:
    """The problem+json of an error; those that are ours to mend are logged."""
    reply = errors.problem(error, request)
    if reply.status >= 500:
        log.warning("request_refused", request_id=request.id, path=request.path, code=error.code,
                    detail=error.detail)
    return reply


def request_of(environ: Mapping[str, Any], method: str, params: Mapping[str, str]) -> Request:
    path = environ["PATH_INFO"]
    if not path.isascii():  # WSGI hands bytes over as latin-1
        path = path.encode("latin-1").decode("utf-8", "replace")
    given = environ.get("HTTP_X_REQUEST_ID")
    request_id = given if given and _REQUEST_ID.match(given) else "req_" + uuid_utils.uuid7().hex
    return Request(method, path, headers=Headers(environ), params=params, id=request_id,
                   remote=environ.get("REMOTE_ADDR") or "")


def admit(service: "Service", route: Route, request: Request) -> Principal:
    """Who asks, if they may ask this. Raises Unauthenticated or Forbidden."""
    if service.settings.auth == "off":
        # Without keys only this machine may ask; that a page in a browser is none shows by its name.
        _check_origin(request, service.settings)
        return KEYLESS
    if route.scope is None:
        return KEYLESS
    kind, _, key = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not key:
        raise faults.Unauthenticated
    principal = service.keyring.verify(key.strip())
    if route.scope not in principal.scopes and "admin" not in principal.scopes:
        raise faults.Forbidden(f"this call needs a key with the scope {route.scope}")
    return principal


def _check_origin(request: Request, settings: Settings) -> None:
    """Refuse what a browser sends for a page of somebody else's, other ports of this machine included.

    By its name (a host name that was made to point here), by the page's origin, which is there with all that
    changes something, and by `Sec-Fetch-Site`, which tells of the rest. Following a link hither is fine.
    """
    host = request.headers.get("host")
    if host is not None and not _is_ours(host, settings.host):
        raise faults.Forbidden(
            f"Host {host[:200]!r} is not this machine: without API keys, ask for 127.0.0.1")
    origin = request.headers.get("origin")
    if origin in settings.origin_allow:
        return
    site = request.headers.get("sec-fetch-site")
    if origin is not None:
        foreign = origin.lower() not in {f"http://{host}".lower(), f"https://{host}".lower()}
    elif site is not None and site not in _OWN_SITES:
        followed = request.method == "GET" and request.headers.get("sec-fetch-dest") == "document"
        foreign = not followed
    else:
        return
    if foreign:
        raise faults.Forbidden(
            f"a page of {(origin or 'another origin')[:200]!r} may not drive this service, since it runs "
            "without API keys: use keys (HEADRACE_AUTH=keys), or name the origin in HEADRACE_ORIGIN_ALLOW")


@functools.lru_cache(1024)
def _is_ours(netloc: str, bound: str) -> bool:
    try:
        name = urlsplit(f"//{netloc}").hostname or ""
    except ValueError:
        return False
    return is_loopback(name) or (name == bound.lower().strip("[]") and name != "")


def is_loopback(name: str) -> bool:
    """Whether a host name or address is this machine's own."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def _check_params(request: Request) -> None:
    # No name holds it, and PostgreSQL takes none.
    if any("\x00" in value for value in request.params.values()):
        raise faults.NotFound(f"there is nothing at {request.path!r}")


def _read_query(route: Route, environ: Mapping[str, Any], request: Request) -> None:
    text = environ.get("QUERY_STRING")
    if not text:
        return
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MAX_QUERY_FIELDS)
    except ValueError as error:
        raise faults.InvalidRequest(f"the query string can't be read: {error}") from error
    query = dict(pairs)
    if "\x00" in text or "%00" in text:
        raise faults.InvalidRequest("the query string holds a NUL character", faults=tuple(
            faults.Fault(f"?{name}", "nul", "must not hold U+0000")
            for name, value in pairs if "\x00" in name + value))
    unknown = [name for name in query if name not in route.query]
    if route.query and unknown:
        known = ", ".join(route.query)
        raise faults.InvalidRequest("unknown query parameters", faults=tuple(
            faults.Fault(f"?{name}", "unknown", f"this call knows {known}") for name in unknown))
    request.query = query


def _check_length(service: "Service", route: Route, environ: Mapping[str, Any], quota: Quota) -> int:
    """How many bytes the body may have; one that says it has more is refused before it is read."""
    settings = service.settings
    limit = route.max_body or (settings.max_upload_bytes if route.upload else settings.max_body_bytes)
    if quota.max_body_bytes is not None and not route.upload:
        limit = min(limit, quota.max_body_bytes)
    if route.method in _WITH_BODY:
        length = _length(environ)
        if length is not None and length > limit:
            raise _too_large(limit)
    return limit


def _read_body(service: "Service", route: Route, environ: Mapping[str, Any], request: Request,
               limit: int) -> None:
    """Read the body, or leave an upload's to its view."""
    if request.method not in _WITH_BODY:
        return
    length = _length(environ)
    if route.upload:
        _check_encoding(environ)
        request.stream = stalls.Stream(service.stalls, environ["wsgi.input"])
        return
    if length == 0 or (length is None and "chunked" not in environ.get("HTTP_TRANSFER_ENCODING", "").lower()):
        return
    _check_media_type(environ.get("CONTENT_TYPE") or "")
    _check_encoding(environ)
    stream = stalls.Stream(service.stalls, environ["wsgi.input"])
    request.body = _read(stream, limit if length is None else length)
    if len(request.body) > limit:
        raise _too_large(limit)
    if length is not None and len(request.body) < length:
        raise faults.InvalidJson(f"the body ended after {len(request.body)} of {length} bytes; "
                                 "send as many as Content-Length says")


def _check_encoding(environ: Mapping[str, Any]) -> None:
    encoding = environ.get("HTTP_CONTENT_ENCODING")
    if encoding is not None and encoding.strip().lower() not in ("", "identity"):
        detail = f"the body is not decompressed here: send it without Content-Encoding: {encoding[:100]}"
        raise faults.UnsupportedMediaType(detail, faults=(
            faults.Fault("Content-Encoding", "media_type", detail),))


def _read(stream: stalls.Stream, size: int) -> bytes:
    """Up to `size` bytes and one more, which tells that there were too many."""
    data: bytes = stream.read(size + 1)
    if len(data) > size or not data:
        return data
    parts = [data]
    total = len(data)
    while total <= size:
        part = stream.read(size + 1 - total)
        if not part:
            break
        parts.append(part)
        total += len(part)
    return b"".join(parts)


def _length(environ: Mapping[str, Any]) -> int | None:
    text = environ.get("CONTENT_LENGTH")
    if not text:
        return None
    if not text.isdecimal():
        raise faults.InvalidRequest("Content-Length is not a number of bytes")
    return int(text)


def _too_large(limit: int) -> faults.PayloadTooLarge:
    return faults.PayloadTooLarge(f"the body is larger than {limit} bytes; send less, or raise the limit")


def _check_media_type(content_type: str) -> None:
    if content_type == JSON:
        return
    kind, _, rest = content_type.partition(";")
    charset = rest.lower().replace(" ", "").replace('"', "")
    if kind.strip().lower() != JSON or ("charset=" in charset and "charset=utf-8" not in charset):
        raise faults.UnsupportedMediaType(
            f"the body must be {JSON} in UTF-8, not {content_type or 'without a Content-Type'!r}")
