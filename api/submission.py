"""From the JSON of one job to a row that is ready to be stored: everything a submit may be refused for."""

import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from api import admission, bodies
from api.directory import Served
from api.http import Principal
from models import addresses, ids, rendering
from models.errors import Fault, HeadraceError, InputInvalid, InvalidRequest, ModelNotFound, Unavailable
from models.job import QUEUED, Job, NewJob

if TYPE_CHECKING:
    from api.service import Service


_ANY_ID = ids.JOB + 32 * "0"


def prepare(service: "Service", principal: Principal, raw: bytes) -> NewJob:
    """The job that these bytes (checked text) ask for, admitted. A large input goes to the blob store.

    Raises InvalidJson, InvalidRequest, InputInvalid with every fault, ModelNotFound or ModelNotReady,
    QueueFull, DeadlineUnmeetable or TooManyInFlight. While the lane is full the input isn't looked at: only
    what had to be read to know the lane is refused as wrong.
    """
    try:
        return _prepare(service, principal, raw)
    except (msgspec.ValidationError, InvalidRequest, InputInvalid):
        _refuse(service, raw)
        raise


def _prepare(service: "Service", principal: Principal, raw: bytes) -> NewJob:
    body = bodies.decode_job(raw)
    served = service.directory.resolve(body.model)
    allowed = None
    if body.hardware is not None:
        _check_classes(service, served, body.hardware)
        allowed = tuple(dict.fromkeys(body.hardware))
    hardware = service.directory.place(served, allowed)
    if hardware is None:
        raise _no_class(served)
    if body.deadline_s is None:  # whether a deadline can be met at all shows only by the input
        service.admission.look(hardware)
    given = bytes(body.input)
    work = served.check(given)
    if body.webhook is not None:
        _check_webhook(service, body.webhook)
    rate, measured = service.directory.rate(served, hardware)
    service.quotas.take(principal.tenant)
    try:
        wait_s, cost_s = service.admission.admit(hardware, work, rate, body.deadline_s, measured=measured)
        blob = None
        if len(given) > service.settings.max_inline_bytes:
            blob = service.blobs.put(given)
    except BaseException:
        service.quotas.give_back(principal.tenant)
        raise
    return NewJob(
        ids.new(ids.JOB), principal.tenant, served.reference, hardware, work, None if blob else given, blob,
        5 if body.priority is None else body.priority, body.deadline_s, allowed,
        msgspec.json.encode(body.metadata) if body.metadata else None,
        msgspec.json.encode(body.webhook) if body.webhook is not None else None, wait_s=wait_s, cost_s=cost_s)


def prepare_all(service: "Service", principal: Principal,
                every: Iterable[bytes]) -> list[NewJob | HeadraceError]:
    """Of each of a batch the job, admitted, or why it is refused. Raises Unavailable, and then none is."""
    out: list[NewJob | HeadraceError] = []
    for raw in every:
        try:
            out.append(prepare(service, principal, raw))
        except BaseException as error:
            # That the database is away will pass, so it is no answer to be kept under a key.
            if isinstance(error, HeadraceError) and not isinstance(error, Unavailable):
                out.append(error)
                continue
            refund(service, [entry for entry in out if isinstance(entry, NewJob)])
            raise
    return out


def refund(service: "Service", jobs: Sequence[NewJob]) -> None:
    """These were admitted and then not stored."""
    service.admission.refund(jobs)
    service.quotas.refund(jobs)


def _refuse(service: "Service", raw: bytes) -> None:
    """Look at every field, and raise with all that is wrong."""
    faults, values = bodies.faults_of(raw)
    served = None
    if "model" in values:
        try:
            served = service.directory.resolve(values["model"])
        except ModelNotFound as error:
            if not faults:
                raise
            faults.append(Fault("/model", "unknown", error.detail))
    for name, check in (("hardware", _check_classes), ("webhook", None)):
        value = values.get(name)
        try:
            if value is not None and check is not None and served is not None:
                check(service, served, value)
            elif value is not None and name == "webhook":
                _check_webhook(service, value)
        except InvalidRequest as error:
            faults += error.faults
    input_faults: Sequence[Fault] = ()
    if served is not None and "input" in values:
        try:
            served.check(bytes(values["input"]))
        except InputInvalid as error:
            if not faults:
                raise
            input_faults = error.faults
    if faults:
        raise bodies.invalid((*faults, *input_faults))


def _check_classes(service: "Service", served: Served, given: Sequence[str]) -> None:
    known = service.directory.classes() | service.settings.classes().keys()
    faults = tuple(
        Fault(f"/hardware/{index}", "unknown",
              f"{name!r} is no hardware class; there are {', '.join(sorted(known))}")
        for index, name in enumerate(given) if name not in known)
    if faults:
        raise bodies.invalid(faults)
    if not set(given) & set(served.hardware):
        raise _no_class(served)


def _no_class(served: Served) -> InvalidRequest:
    detail = f"{served.reference} runs on {', '.join(served.hardware)}: name one of these"
    return bodies.invalid((Fault("/hardware", "unsupported", detail),))


def _check_webhook(service: "Service", webhook: bodies.Webhook) -> None:
    policy = addresses.policy(service.settings)
    addresses.check_url(webhook.url, allow=policy.allow, allow_http=policy.allow_http, pointer="/webhook/url")


def accepted(new: NewJob, accepted_at: int) -> Job:
    """The row as it is after its commit, without reading it back."""
    deadline_at = None if new.deadline_s is None else accepted_at + int(new.deadline_s * 1000)
    return Job(new.id, new.tenant, new.network, new.hardware, QUEUED, 0, 0, new.priority, new.work,
               accepted_at, None, None, deadline_at, None, None, None, None, None, new.metadata, new.webhook)


def accepted_json(new: NewJob, accepted_at: int) -> bytes:
    """What the client is told of a job that was stored at this time."""
    wait_s = admission.shown_s(new.wait_s)
    if new.metadata is not None:
        return rendering.job_json(accepted(new, accepted_at), estimated_start_s=wait_s)
    # The jobs of a batch differ in nothing but their ids.
    return new.id.encode().join(
        _around_id((new.network, new.hardware, new.priority, new.deadline_s), accepted_at, wait_s))


@functools.lru_cache(256)
def _around_id(kind: tuple[str, str, int, float | None], accepted_at: int,
               wait_s: float | None) -> list[bytes]:
    network, hardware, priority, deadline_s = kind
    like = NewJob(_ANY_ID, "", network, hardware, 0.0, None, priority=priority, deadline_s=deadline_s)
    shown = rendering.job_json(accepted(like, accepted_at), estimated_start_s=wait_s)
    return shown.split(_ANY_ID.encode())
