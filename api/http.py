"""Requests and replies as plain values, the route table, and the one way from a request to its reply.

Views are functions `(service, request, principal) -> Reply`. Flask is a shell around `dispatch`; the two
hottest routes are reached by a shorter way that calls the same `dispatch`, so both answer alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from api.service import Service

JSON = "application/json"
PROBLEM = "application/problem+json"


@dataclass(slots=True)
class Request:
    """One HTTP request. `headers` has lower-case names; `params` are the path's parts.

    `stream` is the raw body, not yet read, for routes declared `upload=True` (then `body` is empty).
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    params: Mapping[str, str] = field(default_factory=dict)
    stream: Any = None
    id: str = ""
    remote: str = ""


@dataclass(slots=True)
class Reply:
    """One HTTP answer. `body` may be an iterable of bytes for files."""

    status: int
    body: bytes | Iterable[bytes] = b""
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = JSON


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks: a tenant and the scopes of its key."""

    tenant: str
    scopes: frozenset[str]
    key_id: str | None = None


View = Callable[["Service", Request, Principal], Reply]


@dataclass(frozen=True, slots=True)
class Route:
    """One method on one path (`/v1/jobs/{id}`), with what OpenAPI needs to know of it.

    `scope` None: no key needed. `body`: msgspec type of the JSON body. `replies`: status to msgspec type, to
    a media type for what isn't JSON, or None.
    `query`, `headers`: name to (JSON schema, description). `form`: JSON schema of an upload's parts.
    """

    method: str
    path: str
    view: View
    scope: str | None
    summary: str
    tag: str
    body: Any = None
    replies: Mapping[int, Any] = field(default_factory=dict)
    query: Mapping[str, tuple[dict[str, Any], str]] = field(default_factory=dict)
    headers: Mapping[str, tuple[dict[str, Any], str]] = field(default_factory=dict)
    form: Mapping[str, Any] | None = None
    examples: Mapping[str, Any] = field(default_factory=dict)  # of the JSON body, by what each shows
    idempotent: bool = False  # takes Idempotency-Key
    upload: bool = False  # multipart, streamed
    max_body: int | None = None

    @property
    def params(self) -> tuple[str, ...]:
        return tuple(re.findall(r"{(\w+)}", self.path))


class Table:
    """The routes of one module: `table = Table("jobs")`, then `@table.route("POST", "/v1/jobs", scope=…)`."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.routes: list[Route] = []

    def route(self, method: str, path: str, *, scope: str | None, summary: str,
              **rest: Any) -> Callable[[View], View]:
        def add(view: View) -> View:
            self.routes.append(Route(method, path, view, scope, summary, self.tag, **rest))
            return view

        return add
