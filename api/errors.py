"""A domain error as problem+json: the only place that knows HTTP statuses.

One hybrid body: the members of RFC 9457, and an `error` object, so that OpenAI's clients read it too.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from api.http import PROBLEM, Reply, Request
from models.errors import Fault, HeadraceError, NotAdmitted, Unavailable

STATUSES: Mapping[str, int] = {
    "invalid_json": 400, "invalid_request": 422, "unauthenticated": 401, "forbidden": 403, "not_found": 404,
    "method_not_allowed": 405, "model_not_found": 404, "model_not_ready": 409, "model_exists": 409,
    "input_invalid": 422, "request_timeout": 408, "payload_too_large": 413, "unsupported_media_type": 415,
    "idempotency_mismatch": 422, "idempotency_in_progress": 409,
    "rate_limited": 429, "queue_full": 429, "deadline_unmeetable": 429,
    "result_not_ready": 404, "result_expired": 410, "unavailable": 503,
}
_KINDS = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
# Clients retry these by themselves (OpenAI's SDK: 408, 409, 429, 5xx), so a permanent answer has to say so.
_RETRIED = frozenset({408, 409, 429})
_HEADERS_AT_FAULT = {"unsupported_media_type": "Content-Type", "unauthenticated": "Authorization",
                     "idempotency_mismatch": "Idempotency-Key", "idempotency_in_progress": "Idempotency-Key"}
_SAYS_WHEN = frozenset({429, 503})


def status_of(error: HeadraceError) -> int:
    return STATUSES.get(error.code, 500)


def problem(error: HeadraceError, request: Request) -> Reply:
    """The answer that tells this error: status, headers and body."""
    status = status_of(error)
    detail = detail_of(error)
    body: dict[str, Any] = {
        "type": f"urn:headrace:problem:{error.code}",
        "title": error.code.replace("_", " ").capitalize(),
        "status": status,
        "detail": detail,
        "instance": request.path,
        "code": error.code,
        "errors": [fault_object(fault) for fault in faults_of(error, status)],
        "error": error_object(error, status),
    }
    if isinstance(error, Unavailable):
        body["may_have_been_accepted"] = error.may_have_been_accepted
    if isinstance(error, NotAdmitted):
        body["estimated_wait_s"] = error.estimated_wait_s
    return Reply(status, _encode(body), _headers(error, status), PROBLEM)


def detail_of(error: HeadraceError) -> str:
    """What the client may read. A driver's own words may name hosts and users: they go to the log alone."""
    if isinstance(error, Unavailable) and error.__cause__ is not None:
        return type(error)().detail
    return error.detail


def faults_of(error: HeadraceError, status: int) -> Sequence[Fault]:
    """What is wrong with the request; an error that names no field is about its body or one header."""
    if error.faults or status >= 500:
        return error.faults
    return (Fault(_HEADERS_AT_FAULT.get(error.code, ""), error.code, detail_of(error)),)


def fault_object(fault: Fault, under: str = "") -> dict[str, str]:
    return {"pointer": under + fault.pointer, "rule": fault.rule, "detail": fault.detail}


def error_object(error: HeadraceError, status: int | None = None) -> dict[str, Any]:
    """The part that OpenAI's clients read; also what one entry of a batch carries."""
    status = status or status_of(error)
    kind = "server_error" if status >= 500 else _KINDS.get(status, "invalid_request_error")
    param = error.faults[0].pointer if error.faults else None
    return {"message": detail_of(error), "type": kind, "param": param, "code": error.code}


def _headers(error: HeadraceError, status: int) -> dict[str, str]:
    headers = {}
    permanent = isinstance(error, NotAdmitted) and not error.retryable
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="headrace"'
    if (status in _SAYS_WHEN and not permanent) or (error.retryable and status in _RETRIED):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    if not error.retryable and (status in _RETRIED or error.code == "idempotency_mismatch"):
        headers["x-should-retry"] = "false"
    return headers


def _encode(body: Mapping[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:  # a detail that quotes half a surrogate pair
        return json.dumps(body).encode()
