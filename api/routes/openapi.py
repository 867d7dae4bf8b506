"""`/openapi.json`, made from the route tables, and `/docs`, a page of ours that shows it."""

import base64
import functools
import hashlib
import json
import re
from importlib import resources
from typing import TYPE_CHECKING

from api import openapi, routes
from api.http import Principal, Reply, Request, Table

if TYPE_CHECKING:
    from api.service import Service

table = Table("documentation")

HTML = "text/html; charset=utf-8"
_INLINE = re.compile(rb"<(script|style)>(.*?)</\1>", re.DOTALL)


@table.route("GET", "/openapi.json", scope=None, summary="The OpenAPI 3.1 document", replies={200: None})
def document(service: "Service", _request: Request, _principal: Principal) -> Reply:
    """Describe every route, made from the code that answers it."""
    return Reply(200, _document(keyless=service.settings.auth == "off"))


@table.route("GET", "/docs", scope=None, summary="This document as a page", replies={200: HTML})
def docs(_service: "Service", _request: Request, _principal: Principal) -> Reply:
    """A page that loads nothing from elsewhere."""
    body, policy = _page()
    return Reply(200, body, {
        "Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer", "Cross-Origin-Opener-Policy": "same-origin",
    }, HTML)


@functools.cache
def _document(*, keyless: bool) -> bytes:
    return json.dumps(openapi.document(routes.routes(), keyless=keyless)).encode()


@functools.cache
def _page() -> tuple[bytes, str]:
    """The page and its policy: nothing but its own script, its own style and this service's answers."""
    body = resources.files("api").joinpath("docs.html").read_bytes()
    allowed: dict[str, list[str]] = {"script": [], "style": []}
    for kind, text in _INLINE.findall(body):
        allowed[kind.decode()].append(f"'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'")
    return body, (f"default-src 'none'; script-src {' '.join(allowed['script'])}; "
                  f"style-src {' '.join(allowed['style'])}; connect-src 'self'; base-uri 'none'; "
                  "form-action 'none'; frame-ancestors 'none'")
