"""Bodies of the webhook routes, as they come and as they go, and how all that is wrong with one is found.

Endpoints have OpenAI's shape, times in seconds since the epoch included; deliveries are our own.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from api import bodies
from models import delivery_log, endpoint, rendering, signing
from models.endpoint import Endpoint
from models.errors import Fault, InvalidRequest
from models.event import TYPES

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Url = Annotated[str, Meta(min_length=1, max_length=2048)]
EventTypes = Annotated[list[bodies.EventType], Meta(max_length=len(TYPES))]
State = Literal["enabled", "disabled"]
Overlap = Annotated[int, Meta(ge=0, le=endpoint.MAX_OVERLAP_S)]


class NewEndpoint(Struct, forbid_unknown_fields=True):
    """Where to send events. `event_types` empty or left out: all of them, later ones too."""

    name: Name
    url: Url
    event_types: EventTypes = []  # msgspec makes a new list each time


class EndpointChange(Struct, forbid_unknown_fields=True):
    """What is to be different. A disabled endpoint gets nothing, and what was pending is dropped."""

    name: Name | UnsetType = UNSET
    url: Url | UnsetType = UNSET
    event_types: EventTypes | UnsetType = UNSET
    state: State | UnsetType = UNSET


class Rotation(Struct, forbid_unknown_fields=True):
    """The new secret signs alone, or beside the old for `overlap_s` seconds, or for 24 hours."""

    keep_old_secret_active_for_24_hours: bool = False
    overlap_s: Overlap | UnsetType = UNSET

    @property
    def seconds(self) -> int:
        if isinstance(self.overlap_s, int):
            return self.overlap_s
        return endpoint.OLD_SECRET_S if self.keep_old_secret_active_for_24_hours else 0


class Trial(Struct, forbid_unknown_fields=True):
    """The type of the event that is made up."""

    event_type: bodies.EventType = "job.succeeded"


class SigningSecret(Struct):
    """A secret that signs now; `expires_at` null: the current one, else when the old one stops."""

    hint: str
    expires_at: int | None


class WebhookEndpoint(Struct):
    """Members as in OpenAI's webhook endpoints. `signing_secret` is told once, when it is made.

    After several failures in a row nothing is sent before `paused_until`; then one delivery at a time tries.
    """

    id: str
    object: Literal["webhook_endpoint"]
    created_at: int
    updated_at: int
    name: str
    url: str
    event_types: list[str]
    state: State
    disabled_reason: str | None
    consecutive_failures: int
    failing_since: int | None
    paused_until: int | None
    signing_secret_hint: str
    signing_secrets: list[SigningSecret]
    signing_secret: str | UnsetType = UNSET


class EndpointList(Struct):
    object: Literal["list"]
    data: list[WebhookEndpoint]
    first_id: str | None
    last_id: str | None
    has_more: bool


class EndpointDeleted(Struct):
    id: str
    object: Literal["webhook_endpoint.deleted"]
    deleted: bool


class TrialResult(Struct):
    """What the receiver said to the made-up event; `status_code` null: no answer, `error` says why."""

    object: Literal["webhook_endpoint.test"]
    webhook_endpoint_id: str
    event_type: str
    status_code: int | None
    success: bool
    error: str | None
    delivery: str


class EventTypeList(Struct):
    object: Literal["list"]
    data: list[str]


class WebhookSecret(Struct):
    """Signs the webhooks that jobs name themselves (`webhook.url`)."""

    object: Literal["webhook_secret"]
    signing_secret: str


class Attempt(Struct):
    """`response`: the first KB of the answer; `error` null: it was 2xx."""

    attempt: int
    at: str
    status: int | None
    latency_ms: float | None
    error: str | None
    response: str | None


class Delivery(Struct):
    """One event on its way to one URL. `endpoint` null: the job's own webhook; `job` null: a test."""

    id: str
    object: Literal["webhook_delivery"]
    event: str
    event_type: str
    job: str | None
    endpoint: str | None
    url: str
    state: Literal["pending", "delivered", "failed", "dropped"]
    attempt: int
    next_attempt_at: str | None
    last_status: int | None
    last_error: str | None
    created_at: str
    finished_at: str | None
    attempts: list[Attempt]


class DeliveryList(Struct):
    object: Literal["list"]
    data: list[Delivery]
    first_id: str | None
    last_id: str | None
    has_more: bool


Body = TypeVar("Body", NewEndpoint, EndpointChange, Rotation, Trial)
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


def decode(raw: bytes, shape: type[Body]) -> tuple[Body | None, list[Fault], Mapping[str, Any]]:
    """The body as `shape`, or everything that is wrong with it and the members that are right.

    Raises InvalidJson, or InvalidRequest for text that can't be stored.
    """
    bodies.check_text(raw)
    try:
        return msgspec.json.decode(raw, type=shape), [], {}
    except msgspec.ValidationError as error:
        first = bodies.fault_of(error)
    except (msgspec.DecodeError, RecursionError) as error:
        raise bodies.not_json(raw, error) from error
    try:
        members = _OBJECT.decode(raw)
    except msgspec.ValidationError:
        return None, [first], {}
    except (msgspec.DecodeError, RecursionError) as error:  # broken after what was found first
        raise bodies.not_json(raw, error) from error
    faults, values = [], {}
    fields = {field.name: field for field in msgspec.structs.fields(shape)}
    for name, field in fields.items():
        if field.required and name not in members:
            faults.append(Fault(f"/{name}", "required", f"add {name!r}"))
    for name, part in members.items():
        if name not in fields:
            known = ", ".join(fields)
            faults.append(Fault(f"/{bodies.escape(name)}", "unknown", f"remove it; this call knows {known}"))
            continue
        try:
            values[name] = msgspec.json.decode(part, type=fields[name].type)
        except msgspec.ValidationError as error:
            faults.append(bodies.fault_of(error, f"/{name}"))
    return None, faults or [first], values


def decoded(raw: bytes, shape: type[Body]) -> Body:
    """The body as `shape`, the empty one if there is none. Raises InvalidJson, InvalidRequest."""
    body, faults, _ = decode(raw or b"{}", shape)
    if body is None:
        raise bodies.invalid(tuple(faults))
    return body


def refuse(faults: list[Fault], error: InvalidRequest | None) -> None:
    """Raise with these faults and those of `error`, if there are any."""
    every = (*faults, *(error.faults if error is not None else ()))
    if every:
        raise bodies.invalid(every)


def endpoint_of(row: Endpoint, now: int, *, secret: str | None = None) -> WebhookEndpoint:
    """`now` in ms, database clock. `secret`: the one that is told this once."""
    return WebhookEndpoint(
        row.id, "webhook_endpoint", row.created_at // 1000, row.updated_at // 1000, row.name, row.url,
        list(row.event_types), "enabled" if row.state == "enabled" else "disabled", row.reason,
        row.breaker.failures, _seconds(row.breaker.failing_since), _seconds(row.breaker.paused_until),
        signing.hint(row.secrets[0].secret),
        [SigningSecret(signing.hint(each.secret), _seconds(each.expires_at)) for each in row.live(now)],
        UNSET if secret is None else secret)


def _seconds(at_ms: int | None) -> int | None:
    return None if at_ms is None else at_ms // 1000


def delivery_of(row: delivery_log.Delivery) -> dict[str, Any]:
    """A `Delivery`, ready to be encoded."""
    return {
        "id": row.id, "object": "webhook_delivery", "event": row.event_id, "event_type": row.event_type,
        "job": None if row.subject == row.endpoint_id else row.subject, "endpoint": row.endpoint_id,
        "url": row.url, "state": row.state, "attempt": row.attempt,
        "next_attempt_at": rendering.time_of(row.due_at) if row.state == "pending" else None,
        "last_status": row.last_status, "last_error": row.last_error,
        "created_at": rendering.time_of(row.created_at), "finished_at": rendering.time_of(row.finished_at),
        "attempts": [{
            "attempt": item.attempt, "at": rendering.time_of(item.at), "status": item.status,
            "latency_ms": item.latency_ms, "error": item.error,
            "response": None if item.response is None else item.response.decode("utf-8", "replace"),
        } for item in row.attempts],
    }
