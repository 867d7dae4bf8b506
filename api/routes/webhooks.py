"""`/v1/webhook_endpoints`, `/v1/deliveries`: who is told of events, with which secret, and how it went."""

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from api import idempotency, shapes, webhook_trial
from api import webhook_shapes as wire
from api.http import Principal, Reply, Request, Table
from models import addresses, contract, delivery, delivery_log, endpoint, ids, signing, tenant
from models.addresses import AddressDenied, NotResolved
from models.database import Transaction
from models.endpoint import Endpoint
from models.errors import Fault, InvalidRequest, NotFound
from models.event import TYPES

if TYPE_CHECKING:
    from api.service import Service

table = Table("webhooks")

SCOPE = "webhooks:manage"
PAGE, MAX_PAGE = 20, 100
LOOK_UP_S = 2.0
_UNKEPT = {"Cache-Control": "no-store"}  # answers with a secret
_DIGITS = re.compile(r"\d{1,9}\Z")
_PAGING = {
    "limit": ({"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": PAGE}, "Objects a page"),
    "after": ({"type": "string"}, "The last id of the page before"),
}


@table.route("POST", "/v1/webhook_endpoints", scope=SCOPE, summary="Add an endpoint that events are sent to",
             body=wire.NewEndpoint, replies={201: wire.WebhookEndpoint, 409: None}, idempotent=True,
             examples={"All ends of jobs": {"name": "orders", "url": "https://example.com/hooks",
                                            "event_types": ["job.succeeded", "job.failed"]}})
def add(service: "Service", request: Request, principal: Principal) -> Reply:
    """The endpoint with its secret, which is told this once."""
    body, faults, values = wire.decode(request.body, wire.NewEndpoint)
    url = body.url if body is not None else values.get("url")
    wire.refuse(faults, None if url is None else _url_fault(service, url))
    assert body is not None  # noqa: S101 (no faults)

    def create(tx: Transaction) -> Reply:
        if endpoint.count(tx, principal.tenant) >= endpoint.MAX_ENDPOINTS:
            detail = f"there are {endpoint.MAX_ENDPOINTS} endpoints already; delete one first"
            raise InvalidRequest(detail, faults=(Fault("", "count", detail),))
        made = endpoint.add(tx, tenant=principal.tenant, name=body.name, url=body.url,
                            event_types=list(dict.fromkeys(body.event_types)))
        return shapes.reply(wire.endpoint_of(made, made.created_at, secret=made.secrets[0].secret), 201,
                            {"Location": f"/v1/webhook_endpoints/{made.id}", **_UNKEPT})

    return idempotency.once(service.database, request, principal, create, veil=_veil(principal))


@table.route("GET", "/v1/webhook_endpoints", scope=SCOPE, summary="List endpoints, newest first",
             replies={200: wire.EndpointList}, query=_PAGING)
def every(service: "Service", request: Request, principal: Principal) -> Reply:
    faults: list[Fault] = []
    limit, after = _page(request, ids.ENDPOINT, faults)
    wire.refuse(faults, None)
    with service.database.read() as tx:
        found = endpoint.listing(tx, principal.tenant, limit=limit + 1, after=after)
        now = endpoint.clock(tx)
    page = [wire.endpoint_of(each, now) for each in found[:limit]]
    return shapes.reply(wire.EndpointList(
        "list", page, page[0].id if page else None, page[-1].id if page else None, len(found) > limit))


@table.route("GET", "/v1/webhook_endpoints/{id}", scope=SCOPE, summary="Show an endpoint",
             replies={200: wire.WebhookEndpoint, 404: None})
def show(service: "Service", request: Request, principal: Principal) -> Reply:
    with service.database.read() as tx:
        return shapes.reply(wire.endpoint_of(_found(tx, request, principal), endpoint.clock(tx)))


@table.route("POST", "/v1/webhook_endpoints/{id}", scope=SCOPE, summary="Change an endpoint",
             body=wire.EndpointChange, replies={200: wire.WebhookEndpoint, 404: None})
def change(service: "Service", request: Request, principal: Principal) -> Reply:
    """What is still to be sent goes to the new URL; disabling drops it.

    A new URL, or `state: enabled`, also ends a pause and forgets failures.
    """
    body, faults, values = wire.decode(request.body or b"{}", wire.EndpointChange)
    url = body.url if body is not None else values.get("url")
    wire.refuse(faults, _url_fault(service, url) if isinstance(url, str) else None)
    changes = {name: value for name, value in msgspec.structs.asdict(body).items()
               if value is not msgspec.UNSET} if body is not None else {}
    if "event_types" in changes:
        changes["event_types"] = tuple(dict.fromkeys(changes["event_types"]))
    if "state" in changes:
        changes["reason"] = "disabled by its owner" if changes["state"] == endpoint.DISABLED else None

    def work(tx: Transaction) -> wire.WebhookEndpoint:
        found = _found(tx, request, principal, lock=True)
        changed = replace(found, **changes)
        endpoint.update(tx, changed, origin=addresses.origin_of(changed.url))
        if changed.url != found.url or changes.get("state") == endpoint.ENABLED:
            endpoint.revive(tx, changed.id)
        return wire.endpoint_of(_found(tx, request, principal), endpoint.clock(tx))

    return shapes.reply(service.database.write(work))


@table.route("DELETE", "/v1/webhook_endpoints/{id}", scope=SCOPE, summary="Delete an endpoint",
             replies={200: wire.EndpointDeleted, 404: None})
def remove(service: "Service", request: Request, principal: Principal) -> Reply:
    """What is pending is dropped; the log of its deliveries stays."""
    endpoint_id = request.params["id"]
    if not service.database.write(lambda tx: endpoint.remove(tx, principal.tenant, endpoint_id)):
        raise NotFound(f"there is no webhook endpoint {endpoint_id[:100]}")
    return shapes.reply(wire.EndpointDeleted(endpoint_id, "webhook_endpoint.deleted", deleted=True))


@table.route("POST", "/v1/webhook_endpoints/{id}/rotate_secret", scope=SCOPE,
             summary="Give an endpoint a new secret", body=wire.Rotation,
             replies={200: wire.WebhookEndpoint, 404: None, 409: None}, idempotent=True)
def rotate_secret(service: "Service", request: Request, principal: Principal) -> Reply:
    """The endpoint with its new secret, which is told this once."""
    overlap_s = wire.decoded(request.body, wire.Rotation).seconds

    def create(tx: Transaction) -> Reply:
        found = _found(tx, request, principal, lock=True)
        changed = replace(found, secrets=endpoint.rotated(tx, found, overlap_s=overlap_s))
        if len(changed.secrets) > endpoint.MAX_SECRETS:
            detail = (f"{endpoint.MAX_SECRETS} secrets sign now; wait until one expires, or rotate without"
                      " keeping the old ones")
            raise InvalidRequest(detail, faults=(Fault("", "count", detail),))
        endpoint.update(tx, changed, origin=addresses.origin_of(changed.url))
        made = _found(tx, request, principal)
        return shapes.reply(wire.endpoint_of(made, endpoint.clock(tx), secret=made.secrets[0].secret),
                            headers=_UNKEPT)

    return idempotency.once(service.database, request, principal, create, veil=_veil(principal))


@table.route("POST", "/v1/webhook_endpoints/{id}/test", scope=SCOPE,
             summary="Send a made-up event to an endpoint", body=wire.Trial,
             replies={200: wire.TrialResult, 404: None, 429: None})
def test(service: "Service", request: Request, principal: Principal) -> Reply:
    """What the receiver said. It is tried once, disabled or not, by the process that sends all webhooks."""
    event_type = wire.decoded(request.body, wire.Trial).event_type
    with service.database.read() as tx:
        found = _found(tx, request, principal)
    sent = webhook_trial.run(service, found, event_type)
    return shapes.reply(wire.TrialResult(
        "webhook_endpoint.test", found.id, event_type, sent.last_status, sent.state == delivery.DELIVERED,
        sent.last_error, sent.id))


@table.route("GET", "/v1/webhook_event_types", scope=SCOPE, summary="List the types of events",
             replies={200: wire.EventTypeList})
def event_types(_service: "Service", _request: Request, _principal: Principal) -> Reply:
    return shapes.reply(wire.EventTypeList("list", list(TYPES)))


@table.route("GET", "/v1/webhook_secret", scope=SCOPE,
             summary="Show the secret that signs the webhooks of jobs", replies={200: wire.WebhookSecret})
def secret(service: "Service", _request: Request, principal: Principal) -> Reply:
    """Signs what goes to a job's own `webhook.url`; endpoints have secrets of their own."""
    with service.database.read() as tx:
        known = tenant.webhook_secret(tx, principal.tenant)
    found = known or service.database.write(lambda tx: tenant.ensure(tx, principal.tenant))
    return shapes.reply(wire.WebhookSecret("webhook_secret", found), headers=_UNKEPT)


@table.route("GET", "/v1/deliveries", scope=SCOPE, summary="List deliveries, newest first",
             replies={200: wire.DeliveryList}, query={
                 "job": ({"type": "string"}, "Only deliveries that tell of this job"),
                 "endpoint": ({"type": "string"}, "Only deliveries to this endpoint"),
                 "state": ({"type": "string", "enum": list(delivery.STATES)}, "Only those in this state"),
                 **_PAGING})
def deliveries(service: "Service", request: Request, principal: Principal) -> Reply:
    query = request.query
    faults: list[Fault] = []
    for name, prefix, kind in (("job", ids.JOB, "a job"), ("endpoint", ids.ENDPOINT, "an endpoint")):
        if name in query and not ids.is_id(query[name], prefix):
            faults.append(Fault(f"?{name}", "format", f"must be the id of {kind}"))
    if "state" in query and query["state"] not in delivery.STATES:
        faults.append(Fault("?state", "choice", f"must be one of {', '.join(delivery.STATES)}"))
    limit, after = _page(request, ids.DELIVERY, faults)
    wire.refuse(faults, None)
    with service.database.read() as tx:
        found = delivery_log.listing(
            tx, principal.tenant, job=query.get("job"), endpoint=query.get("endpoint"),
            state=query.get("state"), limit=limit + 1, after=after)
    page = found[:limit]
    return Reply(200, msgspec.json.encode({
        "object": "list", "data": [wire.delivery_of(each) for each in page],
        "first_id": page[0].id if page else None, "last_id": page[-1].id if page else None,
        "has_more": len(found) > limit}))


@table.route("GET", "/v1/deliveries/{id}", scope=SCOPE, summary="Show a delivery with its attempts",
             replies={200: wire.Delivery, 404: None})
def show_delivery(service: "Service", request: Request, principal: Principal) -> Reply:
    with service.database.read() as tx:
        return Reply(200, msgspec.json.encode(wire.delivery_of(_delivery(tx, request, principal))))


@table.route("POST", "/v1/deliveries/{id}/redeliver", scope=SCOPE, summary="Send a delivery once more, now",
             replies={202: wire.Delivery, 404: None})
def redeliver(service: "Service", request: Request, principal: Principal) -> Reply:
    """The same event under the same id. Refused if its endpoint is deleted or disabled."""
    def work(tx: Transaction) -> delivery_log.Delivery:
        found = _delivery(tx, request, principal)
        if not delivery_log.redeliver(tx, principal.tenant, found.id):
            detail = "its endpoint is deleted or disabled; enable it first"
            raise InvalidRequest(detail, faults=(Fault("", "state", detail),))
        return _delivery(tx, request, principal)

    found = service.database.write(work)
    service.publisher.announce(contract.DELIVER_CHANNEL, b"")
    return Reply(202, msgspec.json.encode(wire.delivery_of(found)))


def _found(tx: Transaction, request: Request, principal: Principal, *, lock: bool = False) -> Endpoint:
    endpoint_id = request.params["id"]
    found = endpoint.get(tx, principal.tenant, endpoint_id, lock=lock) if ids.is_id(
        endpoint_id, ids.ENDPOINT) else None
    if found is None:
        raise NotFound(f"there is no webhook endpoint {endpoint_id[:100]}")
    return found


def _delivery(tx: Transaction, request: Request, principal: Principal) -> delivery_log.Delivery:
    delivery_id = request.params["id"]
    found = delivery_log.get(tx, principal.tenant, delivery_id) if ids.is_id(
        delivery_id, ids.DELIVERY) else None
    if found is None:
        raise NotFound(f"there is no delivery {delivery_id[:100]}")
    return found


def _veil(principal: Principal) -> idempotency.Veil:
    """A replayed answer tells the secret again, as long as the endpoint still signs with it."""
    def hide(body: bytes) -> bytes:
        told = msgspec.json.decode(body)
        del told["signing_secret"]
        return msgspec.json.encode(told)

    def show(tx: Transaction, body: bytes) -> bytes:
        told = msgspec.json.decode(body)
        found = endpoint.get(tx, principal.tenant, told["id"])
        if found is not None:
            hint = told["signing_secret_hint"]
            for each in found.live(endpoint.clock(tx)):
                if signing.hint(each.secret) == hint:
                    told["signing_secret"] = each.secret
        return msgspec.json.encode(told)

    return idempotency.Veil(hide, show)


def _url_fault(service: "Service", url: str) -> InvalidRequest | None:
    """What is wrong with a target, and with its addresses if its name has some; attempts check again."""
    policy = addresses.policy(service.settings)
    try:
        target = addresses.check_url(url, allow=policy.allow, allow_http=policy.allow_http)
        found = addresses.resolve(target.host, target.port, LOOK_UP_S)
        addresses.check_addresses(target, found, policy.allow)
    except InvalidRequest as error:
        return error
    except AddressDenied as error:
        return InvalidRequest(str(error), faults=(Fault("/url", "address", str(error)),))
    except NotResolved:
        return None
    return None


def _page(request: Request, prefix: str, faults: list[Fault]) -> tuple[int, str | None]:
    limit, after = request.query.get("limit", str(PAGE)), request.query.get("after")
    if after is not None and not ids.is_id(after, prefix):
        faults.append(Fault("?after", "format", "must be the last id of the page before"))
    if _DIGITS.match(limit) is None or not 1 <= int(limit) <= MAX_PAGE:
        faults.append(Fault("?limit", "range", f"must be a number from 1 to {MAX_PAGE}"))
        return PAGE, after
    return int(limit), after
