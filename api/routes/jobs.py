"""`/v1/jobs`: submit one or many, look, wait, list, cancel, retry."""

import math
from typing import TYPE_CHECKING

import msgspec
import structlog

from api import admission, batches, bodies, idempotency, job_query, job_shapes, submission, waiting
from api.http import Principal, Reply, Request, Table
from api.intake import Key, Submission
from models import blobs, contract, feed, ids, job, rendering
from models.database import Transaction
from models.errors import InvalidRequest, NotAdmitted, NotFound, Unavailable
from models.idempotency import Name
from models.job import Job, NewJob

if TYPE_CHECKING:
    from api.service import Service

table = Table("jobs")
log = structlog.get_logger("headrace.api")

POLL_S = 1  # Retry-After while nothing better is known
MAX_POLL_S = 30

_WAIT = ({"type": "number", "minimum": 0, "default": 0},
         "Seconds to wait for the end of the job; more than 30 is taken as 30")


_PREFER = ({"type": "string"}, "`wait=N`: answer when the job has ended, or after N seconds (at most 30)")
_IF_NONE_MATCH = ({"type": "string"}, "An `ETag` seen before: 304 if the job is still that")


@table.route("POST", "/v1/jobs", scope="jobs:write", summary="Submit a job", body=bodies.JobBody,
             replies={202: job_shapes.Job, 200: job_shapes.Job, 404: None, 409: None, 429: None},
             headers={"Prefer": _PREFER}, examples=job_shapes.JOB_EXAMPLES, idempotent=True)
def submit(service: "Service", request: Request, principal: Principal) -> Reply:
    """Store one job and answer 202; with `Prefer: wait=N` answer 200 if it ends in that time."""
    bodies.check_text(request.body)
    key_name = idempotency.name_of(request, principal)
    wait_s = job_query.preferred_wait_s(request)
    try:
        new = submission.prepare(service, principal, request.body)
    except NotAdmitted:
        stored = _stored(service, request, key_name)
        if stored is None:
            raise
        return stored
    entry = Submission((new,))
    if key_name is not None:
        entry.key = Key(key_name, idempotency.fingerprint_of(request), lambda now: _accepted(new, now))
    if not wait_s:
        return _submit(service, entry, new)
    waiter = service.waiters.register(new.id)  # before the commit, so that no end goes unheard
    if waiter is None:
        return _submit(service, entry, new)
    try:
        reply = _submit(service, entry, new)
        if entry.taken:
            return reply
        shown = _shown_at_end(service, principal, new.id, waiter, wait_s)
    finally:
        service.waiters.forget(waiter)
    reply = shown or reply
    reply.headers["Preference-Applied"] = f"wait={wait_s:g}"
    return reply


def _submit(service: "Service", entry: Submission, new: NewJob) -> Reply:
    _store(service, entry)
    if entry.key is None:
        return _accepted(new, entry.accepted_at)
    return _replayed_or(service, entry)


def _store(service: "Service", entry: Submission) -> None:
    try:
        service.intake.submit(entry)
    except BaseException:
        submission.refund(service, entry.jobs)
        raise
    if entry.taken:
        submission.refund(service, entry.jobs)
    else:
        service.quotas.stored(entry.jobs)


def _stored(service: "Service", request: Request, name: Name | None) -> Reply | None:
    """The answer that this very request got before: a refusal must not hide it from a client's retry."""
    if name is None:
        return None
    return idempotency.find(service.database, name, idempotency.fingerprint_of(request))


def _replayed_or(service: "Service", entry: Submission) -> Reply:
    assert entry.key is not None  # noqa: S101 (for the type checker)
    if entry.taken or entry.reply is None:
        try:
            return idempotency.look_up(service.database, entry.key.name, entry.key.fingerprint)
        except Unavailable as error:  # whoever has the key was accepted
            raise Unavailable(error.detail, may_have_been_accepted=True) from error
    return entry.reply


def _accepted(new: NewJob, now: int) -> Reply:
    return Reply(202, submission.accepted_json(new, now), {
        "Location": "/v1/jobs/" + new.id, "Retry-After": _retry_after(new.wait_s)})


@table.route("POST", "/v1/jobs/batch", scope="jobs:write", summary="Submit up to 1000 jobs",
             body=bodies.BatchBody,
             replies={202: job_shapes.BatchReply}, examples=job_shapes.BATCH_EXAMPLES, idempotent=True)
def submit_batch(service: "Service", request: Request, principal: Principal) -> Reply:
    """Store the jobs that are right, in one transaction, and say of each what became of it."""
    key_name = idempotency.name_of(request, principal)
    entries = submission.prepare_all(service, principal, bodies.decode_batch(request.body))
    jobs = [entry for entry in entries if isinstance(entry, NewJob)]
    if any(isinstance(entry, NotAdmitted) for entry in entries):
        try:
            stored = _stored(service, request, key_name)
        except BaseException:
            submission.refund(service, jobs)
            raise
        if stored is not None:
            submission.refund(service, jobs)
            return stored
    if not jobs:
        return batches.reply(entries, 0)
    entry = Submission(jobs)
    if key_name is not None:
        entry.key = Key(key_name, idempotency.fingerprint_of(request),
                        lambda now: batches.reply(entries, now))
    _store(service, entry)
    if entry.key is not None:
        return _replayed_or(service, entry)
    return batches.reply(entries, entry.accepted_at)


@table.route("GET", "/v1/jobs/{id}", scope="jobs:read", summary="Get a job, or wait for its end",
             replies={200: job_shapes.Job, 304: None}, query={"wait": _WAIT},
             headers={"Prefer": _PREFER, "If-None-Match": _IF_NONE_MATCH})
def get(service: "Service", request: Request, principal: Principal) -> Reply:
    """The job as it is; with `wait`, as it is when it has ended or the time is up."""
    job_id = _id_of(request)
    wait_s = job_query.preferred_wait_s(request)
    if not wait_s:
        return _conditional(request, _shown(service, _found(service, principal, job_id)))
    waiter = service.waiters.register(job_id)
    if waiter is None:
        return _conditional(request, _shown(service, _found(service, principal, job_id)))
    try:
        found = _outcome(service, principal, job_id, waiter, wait_s)
    finally:
        service.waiters.forget(waiter)
    if found is None:
        raise NotFound(f"there is no job {job_id}")
    reply = _conditional(request, _shown(service, found))
    if "prefer" in request.headers:
        reply.headers["Preference-Applied"] = f"wait={wait_s:g}"
    return reply


@table.route("GET", "/v1/jobs", scope="jobs:read", summary="List jobs, newest first",
             replies={200: job_shapes.JobList}, query={
                 "state": ({"type": "string", "enum": list(job.STATES)}, "Only jobs in this state"),
                 "model": ({"type": "string"}, "Only jobs of this network, or of this version of it"),
                 "limit": ({"type": "integer", "minimum": 1, "maximum": job_query.MAX_PAGE,
                            "default": job_query.PAGE}, "Jobs a page"),
                 "after": ({"type": "string"}, "The last id of the page before"),
             })
def listing(service: "Service", request: Request, principal: Principal) -> Reply:
    state, model, limit, after = job_query.listing(request)
    with service.database.read() as tx:
        found = job.listing(tx, principal.tenant, state=state, network=model, limit=limit + 1, after=after)
    page = found[:limit]
    return Reply(200, msgspec.json.encode({
        "object": "list", "data": [rendering.job_object(item) for item in page],
        "first_id": page[0].id if page else None, "last_id": page[-1].id if page else None,
        "has_more": len(found) > limit}))


@table.route("POST", "/v1/jobs/{id}/cancel", scope="jobs:write", summary="Cancel a job",
             replies={200: job_shapes.Job})
def cancel(service: "Service", request: Request, principal: Principal) -> Reply:
    """End a live job as canceled; one that has ended stays as it is."""
    job_id = _id_of(request)
    before = service.database.write(lambda tx: job.cancel(tx, principal.tenant, job_id))
    if before is None:
        raise NotFound(f"there is no job {job_id}")
    if before not in job.TERMINAL:
        service.waiters.tell([job_id])
        service.publisher.announce(contract.DONE_CHANNEL, contract.encode_done([job_id]))
        service.publisher.announce(contract.DELIVER_CHANNEL, b"")
    return _shown(service, _found(service, principal, job_id))


@table.route("POST", "/v1/jobs/{id}/retry", scope="jobs:write", summary="Run a failed job once more",
             replies={202: job_shapes.Job})
def retry(service: "Service", request: Request, principal: Principal) -> Reply:
    """Queue a failed job again, `crashes` back at 0."""
    job_id = _id_of(request)

    def work(tx: Transaction) -> tuple[str | None, Job | None]:
        before = job.retry(tx, principal.tenant, job_id)
        found = job.get(tx, principal.tenant, job_id)
        if before == job.FAILED and found is not None and feed.is_open(
                tx, found.hardware, contract.INTERACTIVE, to_close=True):
            feed.close(tx, found.hardware, contract.INTERACTIVE)  # it waits without a ticket
        return before, found

    before, found = service.database.write(work)
    if before is None or found is None:
        raise NotFound(f"there is no job {job_id}")
    if before != job.FAILED:
        raise InvalidRequest(f"only a failed job can be run once more; this one is {before}: submit it anew")
    service.publisher.announce(contract.RETURN_CHANNEL, contract.encode_return(found.hardware, [job_id]))
    reply = _shown(service, found)
    reply.status = 202
    reply.headers["Location"] = "/v1/jobs/" + job_id
    return reply


def _id_of(request: Request) -> str:
    job_id = request.params["id"]
    if not ids.is_id(job_id, ids.JOB):
        raise NotFound(f"{job_id!r} is not the id of a job: it is `job_` and 32 hexadecimal digits")
    return job_id


def _found(service: "Service", principal: Principal, job_id: str) -> Job:
    with service.database.read() as tx:
        found = job.get(tx, principal.tenant, job_id)
    if found is None:
        raise NotFound(f"there is no job {job_id}")
    return found


def _outcome(service: "Service", principal: Principal, job_id: str, waiter: waiting.Waiter,
             wait_s: float) -> Job | None:
    """The job when it has ended or the time is up; None if there is none."""
    until = waiting.deadline(wait_s)
    while True:
        with service.waiters.turn(), service.database.read() as tx:
            found = job.get(tx, principal.tenant, job_id)
        left_s = waiting.remaining(until)
        if found is None or found.terminal or left_s <= 0 or service.waiters.stopping:
            return found
        waiter.wait(left_s)


def _shown_at_end(service: "Service", principal: Principal, job_id: str, waiter: waiting.Waiter,
                  wait_s: float) -> Reply | None:
    """A job that was just accepted, if it ends in time and can be read then. It is accepted either way."""
    try:
        found = _outcome(service, principal, job_id, waiter, wait_s)
        return None if found is None or not found.terminal else _shown(service, found)
    except (Unavailable, OSError) as error:
        log.warning("wait_ended", job=job_id, detail=str(error))
        return None


def _shown(service: "Service", found: Job) -> Reply:
    """A job with its output, tag, and when to ask again."""
    output = found.output
    if output is None and found.output_blob is not None and not found.result_removed:
        try:
            output = service.blobs.read(found.output_blob)
        except blobs.BlobMissing:  # perhaps its retention ended since the row was read
            with service.database.read() as tx:
                found = job.get(tx, found.tenant, found.id) or found
            if not found.result_removed:
                raise
    headers = {"Cache-Control": "private, no-cache"}
    estimate = None
    if not found.terminal:
        if found.state == job.QUEUED:
            estimate = admission.shown_s(service.admission.remaining_s(found.hardware, found.created_at))
        headers["Retry-After"] = _retry_after(estimate)
    # Everything that can change in the body of a job.
    headers["ETag"] = (f'"{found.state}-{found.attempt}-{found.crashes}-{found.finished_at or estimate or 0}'
                       f'{"-removed" if found.result_removed else ""}"')
    return Reply(200, rendering.job_json(found, output, estimated_start_s=estimate), headers)


def _conditional(request: Request, reply: Reply) -> Reply:
    """304 if the client has this very answer."""
    given = request.headers.get("if-none-match")
    if given is None:
        return reply
    tags = {tag.strip().removeprefix("W/") for tag in given.split(",")}
    if "*" not in tags and reply.headers["ETag"] not in tags:
        return reply
    return Reply(304, b"", reply.headers)


def _retry_after(estimate: float | None) -> str:
    return str(min(MAX_POLL_S, math.ceil(estimate)) if estimate and estimate > POLL_S else POLL_S)
