"""The OpenAPI 3.1 document, made from the route tables and the msgspec types that they name.

What every route shares (problems, request ids, keys) is added here, so that a table holds only its own.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

import models
from api import errors, shapes, uploads
from api.http import JSON, PROBLEM, Route

VERSION = "3.1.0"
_REF = "#/components/schemas/{name}"
_CREATED = {"201", "202"}
_WITHOUT_CONTENT = frozenset({204, 304})
_TEXTS = {
    200: "Done.", 201: "Created.", 202: "Accepted.", 204: "Done; there is nothing to say.",
    304: "Not modified.", 400: "The request can't be read.", 401: "A valid API key is needed.",
    403: "The key, or this origin, may not.", 404: "There is no such object.",
    408: "The body stopped arriving.", 409: "In conflict with the state of the object.", 410: "Removed.",
    413: "The body is too large.",
    415: "The body has the wrong media type.", 422: "Some fields are wrong; `errors` names all of them.",
    429: "Too much; `Retry-After` says when to come back.",
    500: "Something went wrong here.", 503: "Out of reach; `Retry-After` says when to come back.",
}
_TAGS = {
    "jobs": "One inference request each: one input for one network.",
    "models": "Networks: versioned model artifacts with their manifests.",
    "webhooks": "Signed events, pushed when jobs end.",
    "operations": "What waits where, and who runs it.",
    "health": "For orchestrators and scrapers.",
    "documentation": "This document.",
}
_REQUEST_ID = {"description": "The request's id: as sent, or made here.", "schema": {"type": "string"}}
_HEADERS: Mapping[str, Mapping[str, Any]] = {
    "Retry-After": {"description": "Seconds until it is worth asking again.", "schema": {"type": "integer"}},
    "RateLimit": {"description": "Of a tenant with a limit: requests left, and seconds until more are.",
                  "schema": {"type": "string", "examples": ['"requests";r=49;t=1']}},
    "RateLimit-Policy": {"description": "The limit: requests, and within how many seconds.",
                         "schema": {"type": "string", "examples": ['"requests";q=150;w=2']}},
    "Location": {"description": "Where the object is.", "schema": {"type": "string"}},
    "WWW-Authenticate": {"description": "The scheme to use.", "schema": {"type": "string"}},
    "x-should-retry": {"description": "`false`: the same request will never succeed.",
                       "schema": {"type": "string", "enum": ["false"]}},
}
_HEADERS_BY_STATUS = {201: ("Location",), 202: ("Location", "Retry-After"), 401: ("WWW-Authenticate",),
                      409: ("x-should-retry", "Retry-After"), 422: ("x-should-retry",),
                      429: ("Retry-After", "x-should-retry", "RateLimit", "RateLimit-Policy"),
                      503: ("Retry-After",)}
_IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key", "in": "header", "required": False,
    "description": "The same key within 24 h answers with the first reply instead of doing it again.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]+$"},
}


def document(routes: Sequence[Route], *, keyless: bool) -> dict[str, Any]:
    """The whole document. `keyless`: this service runs without API keys, so none is required."""
    schemas = _Schemas(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        operation = _operation(route, schemas, keyless=keyless)
        paths.setdefault(route.path, {})[route.method.lower()] = operation
        for status in _CREATED & operation["responses"].keys():
            operation["responses"][status]["links"] = _links(route, routes)
    used = {route.tag for route in routes}
    return {
        "openapi": VERSION,
        "info": {
            "title": "Headrace", "version": models.__version__,
            "summary": "A queue-decoupled service for asynchronous ML inference.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "This service."}],
        "tags": [{"name": tag, "description": text} for tag, text in _TAGS.items() if tag in used],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "headers": {"X-Request-Id": _REQUEST_ID, **_HEADERS},
            "responses": {str(status): _problem(status)
                          for status in sorted({*errors.STATUSES.values(), 500})},
            "securitySchemes": {"bearer": {
                "type": "http", "scheme": "bearer",
                "description": "An API key, `hr_…`; `headrace keys create` makes one. "
                               "Not needed where the service runs without keys, on this machine alone."}},
        },
    }


def statuses(route: Route) -> set[int]:
    """Every status that a route may answer: its own and those that all routes of its kind share."""
    found = {*route.replies, 403, 422, 500, 503}
    if route.scope is not None:
        found |= {401, 429}
    if "{" in route.path:
        found.add(404)
    if route.method in {"POST", "PUT", "PATCH", "DELETE"}:
        found |= {400, 408, 413, 415, 429}
    if route.idempotent:
        found.add(409)
    return found


class _Schemas:
    """The component schemas of all types that the routes name."""

    def __init__(self, routes: Sequence[Route]) -> None:
        types = {id(kind): kind for route in routes for kind in (route.body, *route.replies.values())
                 if kind is not None and not isinstance(kind, str)}
        types[id(shapes.Problem)] = shapes.Problem
        made, self.components = msgspec.json.schema_components(types.values(), ref_template=_REF)
        self._made = dict(zip(types, made, strict=True))

    def of(self, kind: Any) -> dict[str, Any]:
        return self._made[id(kind)]


def _operation(route: Route, schemas: _Schemas, *, keyless: bool) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": _operation_id(route), "tags": [route.tag], "summary": route.summary,
        "description": inspect.getdoc(route.view) or route.summary,
        "parameters": _parameters(route),
        "responses": {str(status): _response(status, route, schemas) for status in sorted(statuses(route))},
        "security": [],
    }
    if route.scope is not None:
        operation["security"] = [{"bearer": []}, {}] if keyless else [{"bearer": []}]
        operation["description"] += f"\n\nScope: `{route.scope}`."
    if route.upload:
        content = {uploads.MEDIA_TYPE: {"schema": dict(route.form or {"type": "object"})}}
        operation["requestBody"] = {"required": True, "content": content}
    elif route.body is not None:
        content = {JSON: {"schema": schemas.of(route.body)}}
        if route.examples:
            content[JSON]["examples"] = {name: {"summary": name, "value": value}
                                         for name, value in route.examples.items()}
        # Where no field is needed, no body is: it means `{}`.
        needed = any(field.required for field in msgspec.structs.fields(route.body))
        operation["requestBody"] = {"required": needed, "content": content}
    return operation


def _operation_id(route: Route) -> str:
    return f"{route.tag}_{getattr(route.view, '__name__', 'view')}"


def _links(created: Route, routes: Sequence[Route]) -> dict[str, Any]:
    """What can be asked about the object that a POST to its collection made."""
    about = {_operation_id(route): route.params[0] for route in routes
             if len(route.params) == 1 and route.path.startswith(created.path + "/{")}
    return {name: {"operationId": name, "parameters": {parameter: "$response.body#/id"}}
            for name, parameter in about.items()}


def _parameters(route: Route) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in route.params]
    found += [{"name": name, "in": "query", "required": False, "schema": schema, "description": text}
              for name, (schema, text) in route.query.items()]
    found += [{"name": name, "in": "header", "required": False, "schema": schema, "description": text}
              for name, (schema, text) in route.headers.items()]
    if route.idempotent:
        found.append(_IDEMPOTENCY_KEY)
    return found


def _response(status: int, route: Route, schemas: _Schemas) -> dict[str, Any]:
    if status >= 400:
        return {"$ref": f"#/components/responses/{status}"}
    kind = route.replies.get(status)
    headers = {name: {"$ref": f"#/components/headers/{name}"}
               for name in ("X-Request-Id", *_HEADERS_BY_STATUS.get(status, ()))}
    response: dict[str, Any] = {"description": _TEXTS.get(status, "Done."), "headers": headers}
    if status in _WITHOUT_CONTENT:
        return response
    if isinstance(kind, str):
        response["content"] = {kind: {"schema": {"type": "string"}}}
    else:
        schema = {"type": "object"} if kind is None else schemas.of(kind)
        response["content"] = {JSON: {"schema": schema}}
    return response


def _problem(status: int) -> dict[str, Any]:
    codes = sorted(code for code, its in errors.STATUSES.items() if its == status) or ["internal"]
    headers = {name: {"$ref": f"#/components/headers/{name}"}
               for name in ("X-Request-Id", *_HEADERS_BY_STATUS.get(status, ()))}
    return {
        "description": f"{_TEXTS.get(status, 'Refused.')} Codes: {', '.join(f'`{code}`' for code in codes)}.",
        "headers": headers,
        "content": {PROBLEM: {"schema": {"$ref": _REF.format(name="Problem")}}},
    }
