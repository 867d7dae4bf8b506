"""`/v1/models`: networks are uploaded, listed, shown, promoted and retired."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from api import idempotency, network_upload, shapes
from api.http import Principal, Reply, Request, Table
from models import network, rendering
from models.database import Statement, Transaction
from models.errors import ModelExists, ModelNotFound, ModelNotReady
from models.network import Network

if TYPE_CHECKING:
    from api.service import Service

table = Table("models")

OWNER = "headrace"
_FORM = {
    "type": "object", "required": ["manifest"],
    "properties": {"manifest": {"type": "string", "description": "network.yaml; must be the first part"}},
    "additionalProperties": {"type": "string", "format": "binary",
                             "description": "a file that the manifest names, under its relative path"},
}
_RATES = Statement("SELECT network, hardware, overhead_s, per_work_s, batch_work, batch_items, updated_at "
                   "FROM rates ORDER BY network, hardware")


@table.route("POST", "/v1/models", scope="models:write", upload=True,
             summary="Upload a network: `manifest` (network.yaml), then each file under its relative path",
             replies={201: shapes.Network, 200: shapes.Network, 409: None}, form=_FORM, idempotent=True)
def add(service: "Service", request: Request, principal: Principal) -> Reply:
    """201 with the new version, in state `checking`; 200 if the same content is there already."""
    settings = service.settings
    upload = network_upload.receive(request, service.blobs, max_bytes=settings.max_upload_bytes,
                                    max_wasted_bytes=settings.max_body_bytes)
    name, version = upload.manifest["name"], upload.manifest["version"]

    def store(tx: Transaction) -> Reply:
        added = network.add(tx, name=name, version=version, task=upload.manifest["task"],
                            digest=upload.digest, manifest=upload.manifest, files=upload.files)
        found = _versioned(tx, name, version)
        if found.digest != upload.digest:
            raise ModelExists(f"{found.reference} exists with other content and is {_state_of(found)}: "
                              "give this one another version")
        if not added and _retiring(found):
            network.reinstate(tx, name, version)
            found = _versioned(tx, name, version)
        return shapes.reply(_shape(found, ()), 201 if added else 200,
                            {"Location": f"/v1/models/{found.reference}"})

    # What was sent, not how the form was cut: its boundary differs each time.
    fingerprint = idempotency.fingerprint_of(request, upload.digest.encode())
    reply = idempotency.once(service.database, request, principal, store, fingerprint=fingerprint)
    service.directory.refresh()
    return reply


@table.route("GET", "/v1/models", scope="models:read", summary="List every network and version",
             replies={200: shapes.NetworkList})
def every(service: "Service", _request: Request, _principal: Principal) -> Reply:
    """Networks in OpenAI's list shape, oldest first within a name."""
    with service.database.read() as tx:
        found = network.every(tx)
        rates = tx.all(_RATES)
    return shapes.reply(shapes.NetworkList("list", [_shape(each, rates, whole=False) for each in found]))


@table.route("GET", "/v1/models/{model}", scope="models:read",
             summary="Show a network: `name` (its default version) or `name@version`",
             replies={200: shapes.Network, 404: None})
def show(service: "Service", request: Request, _principal: Principal) -> Reply:
    """One network with signature, hardware, batching and learned latency."""
    with service.database.read() as tx:
        found = _resolve(tx, request.params["model"])
        rates = tx.all(_RATES)
    return shapes.reply(_shape(found, rates))


@table.route("POST", "/v1/models/{model}/promote", scope="models:write",
             summary="Make `name@version` the default of its name",
             replies={200: shapes.Network, 404: None, 409: None})
def promote(service: "Service", request: Request, _principal: Principal) -> Reply:
    """The promoted network; only a ready one can be promoted."""
    name, version = _reference(request.params["model"])

    def work(tx: Transaction) -> Network:
        found = _versioned(tx, name, version)
        if not found.serving:
            error = ModelNotReady(f"{found.reference} is {_state_of(found)}: "
                                  "only a ready version can be the default")
            error.retryable = found.state == network.CHECKING
            raise error
        network.promote(tx, name, version)
        return _versioned(tx, name, version)

    found = service.database.write(work)
    service.directory.refresh()  # so that this process follows at once
    return shapes.reply(_shape(found, ()))


@table.route("DELETE", "/v1/models/{model}", scope="models:write",
             summary="Withdraw `name@version`: no new jobs from now on, retired once its live ones are done",
             replies={200: shapes.Network, 404: None})
def remove(service: "Service", request: Request, _principal: Principal) -> Reply:
    """The network; `retiring` while jobs of it are queued or running."""
    name, version = _reference(request.params["model"])

    def work(tx: Transaction) -> Network:
        if _versioned(tx, name, version).state != network.RETIRED:
            network.withdraw(tx, name, version)
        return _versioned(tx, name, version)

    found = service.database.write(work)
    service.directory.refresh()  # so that this process follows at once
    return shapes.reply(_shape(found, ()))


def _reference(text: str) -> tuple[str, str]:
    name, at, version = text.partition("@")
    if not at:
        raise ModelNotFound(f"{text[:200]!r} names no version: use name@version")
    return name, version


def _versioned(tx: Transaction, name: str, version: str) -> Network:
    found = network.get(tx, name, version)
    if found is None:
        raise ModelNotFound(f"there is no network {name[:200]}@{version[:200]}")
    return found


def _resolve(tx: Transaction, text: str) -> Network:
    if "@" in text:
        return _versioned(tx, *_reference(text))
    versions = [each for each in network.every(tx) if each.name == text]
    for each in versions:
        if each.is_default:
            return each
    if not versions:
        raise ModelNotFound(f"there is no network {text[:200]}")
    named = ", ".join(each.reference for each in versions)
    raise ModelNotFound(f"{text[:200]} has no default version, since none is ready or being checked: "
                        f"name one of {named}")


def _state_of(found: Network) -> str:
    return "being retired" if _retiring(found) else found.state


def _retiring(found: Network) -> bool:
    return found.withdrawn_at is not None and found.state != network.RETIRED


def _shape(found: Network, rates: Sequence[tuple[Any, ...]], *, whole: bool = True) -> shapes.Network:
    manifest: Mapping[str, Any] = found.manifest
    url = f"/v1/models/{found.reference}"
    return shapes.Network(
        id=found.reference, object="model", created=found.created_at // 1000, owned_by=OWNER, name=found.name,
        version=found.version, task=found.task, state=found.state,  # type: ignore[arg-type]
        reason=found.reason, is_default=found.is_default, retiring=_retiring(found),
        hardware=list(found.hardware), batching=dict(manifest.get("batching") or {}),
        pinned=bool(manifest.get("pinned")),
        signature=None if found.signature is None else dict(found.signature), variants=[],
        latency=[shapes.Latency(hardware, overhead_s * 1000, per_work_s * 1000, work, items,
                                rendering.rfc3339(at))
                 for reference, hardware, overhead_s, per_work_s, work, items, at in rates
                 if reference == found.reference],
        digest=found.digest,
        files=[shapes.File(path, file["size"], file["blob"].removeprefix("sha256-"))
               for path, file in found.files.items()],
        created_at=rendering.rfc3339(found.created_at),
        ready_at=rendering.time_of(found.ready_at),
        urls=shapes.NetworkUrls(url, url + "/promote"), manifest=dict(manifest) if whole else msgspec.UNSET)
