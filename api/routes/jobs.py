"""`/v1/jobs`: submit one or many, look, wait, list, cancel, retry."""

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from api import bodies, errors, idempotency, job_shapes, submission, waiting
from api.http import Principal, Reply, Request, Table
from api.intake import Key, Submission
from models import contract, feed, ids, job, rendering
from models.database import Transaction
from models.errors import Fault, HeadraceError, InvalidRequest, NotFound
from models.job import Job, NewJob

if TYPE_CHECKING:
    from api.service import Service

table = Table("jobs")

MAX_WAIT_S = 30
MAX_PAGE, PAGE = 100, 20
POLL_S = 1  # Retry-After while nothing better is known
MAX_POLL_S = 30
_PREFER_WAIT = re.compile(r'(?:^|[,;])\s*wait\s*=\s*"?(\d{1,9})"?\s*(?=$|[,;])', re.IGNORECASE)
_DIGITS = re.compile(r"\d{1,9}\Z")
_NUMBER = re.compile(r"\d{1,9}(\.\d{1,9})?\Z")

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
    wait_s = _preferred_wait(request)
    new = submission.prepare(service, principal, request.body)
    entry = Submission((new,))
    if key_name is not None:
        entry.key = Key(key_name, idempotency.fingerprint_of(request),
                        lambda now: _accepted(service, new, now))
    if not wait_s:
        return _submit(service, entry, new)
    waiter = service.waiters.register(new.id)  # before the commit, so that no end goes unheard
    if waiter is None:
        return _submit(service, entry, new)
    try:
        reply = _submit(service, entry, new)
        if entry.taken:
            return reply
        found = _outcome(service, principal, new.id, waiter, wait_s)
    finally:
        service.waiters.forget(waiter)
    if found is not None and found.terminal:
        reply = _shown(service, found)
    reply.headers["Preference-Applied"] = f"wait={wait_s:g}"
    return reply


def _submit(service: "Service", entry: Submission, new: NewJob) -> Reply:
    service.intake.submit(entry)
    if entry.key is None:
        return _accepted(service, new, entry.accepted_at)
    return _replayed_or(service, entry)


def _replayed_or(service: "Service", entry: Submission) -> Reply:
    assert entry.key is not None  # noqa: S101 (for the type checker)
    if entry.taken or entry.reply is None:
        return idempotency.look_up(service.database, entry.key.name, entry.key.fingerprint)
    return entry.reply


def _accepted(service: "Service", new: NewJob, now: int) -> Reply:
    return Reply(202, submission.accepted_json(service, new, now), {
        "Location": "/v1/jobs/" + new.id, "Retry-After": _retry_after(service, new.hardware)})


@table.route("POST", "/v1/jobs/batch", scope="jobs:write", summary="Submit up to 1000 jobs",
             body=bodies.BatchBody,
             replies={202: job_shapes.BatchReply}, examples=job_shapes.BATCH_EXAMPLES, idempotent=True)
def submit_batch(service: "Service", request: Request, principal: Principal) -> Reply:
    """Store the jobs that are right, in one transaction, and say of each what became of it."""
    key_name = idempotency.name_of(request, principal)
    entries: list[NewJob | HeadraceError] = []
    for raw in bodies.decode_batch(request.body):
        try:
            entries.append(submission.prepare(service, principal, raw))
        except HeadraceError as error:
            entries.append(error)
    jobs = [entry for entry in entries if isinstance(entry, NewJob)]
    if not jobs:
        return _batch_reply(service, entries, 0)
    entry = Submission(jobs)
    if key_name is not None:
        entry.key = Key(key_name, idempotency.fingerprint_of(request),
                        lambda now: _batch_reply(service, entries, now))
    service.intake.submit(entry)
    if entry.key is not None:
        return _replayed_or(service, entry)
    return _batch_reply(service, entries, entry.accepted_at)


def _batch_reply(service: "Service", entries: Sequence[NewJob | HeadraceError], now: int) -> Reply:
    parts = [b'{"status":202,"job":' + submission.accepted_json(service, entry, now) + b"}"
             if isinstance(entry, NewJob) else _refused(entry, index) for index, entry in enumerate(entries)]
    return Reply(202, b'{"object":"list","data":[' + b",".join(parts) + b"]}")


def _refused(error: HeadraceError, index: int) -> bytes:
    shown = errors.error_object(error)
    under = f"/jobs/{index}"
    shown["param"] = under if shown["param"] is None else under + shown["param"]
    shown["errors"] = [errors.fault_object(fault, under)
                       for fault in errors.faults_of(error, errors.status_of(error))]
    return msgspec.json.encode({"status": errors.status_of(error), "error": shown})


@table.route("GET", "/v1/jobs/{id}", scope="jobs:read", summary="Get a job, or wait for its end",
             replies={200: job_shapes.Job, 304: None}, query={"wait": _WAIT},
             headers={"Prefer": _PREFER, "If-None-Match": _IF_NONE_MATCH})
def get(service: "Service", request: Request, principal: Principal) -> Reply:
    """The job as it is; with `wait`, as it is when it has ended or the time is up."""
    job_id = _id_of(request)
    wait_s = _preferred_wait(request)
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
                 "limit": ({"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": PAGE},
                           "Jobs a page"),
                 "after": ({"type": "string"}, "The last id of the page before"),
             })
def listing(service: "Service", request: Request, principal: Principal) -> Reply:
    state, model, limit, after = _listing_query(request)
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
    service.publisher.announce(contract.FEED_CHANNEL, found.hardware.encode())
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


def _shown(service: "Service", found: Job) -> Reply:
    """A job with its output, tag, and when to ask again."""
    output = found.output
    if output is None and found.output_blob is not None and not found.result_removed:
        output = service.blobs.read(found.output_blob)
    headers = {"Cache-Control": "private, no-cache"}
    estimate = None
    if not found.terminal:
        headers["Retry-After"] = _retry_after(service, found.hardware)
        estimate = service.directory.wait_s(found.hardware) if found.state == job.QUEUED else None
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


def _retry_after(service: "Service", hardware: str) -> str:
    estimate = service.directory.wait_s(hardware)
    return str(min(MAX_POLL_S, math.ceil(estimate)) if estimate and estimate > POLL_S else POLL_S)


def _preferred_wait(request: Request) -> float:
    """Seconds to wait, from `?wait=` or `Prefer: wait=`; a preference that can't be read is none."""
    text = request.query.get("wait")
    if text is not None:
        if _NUMBER.match(text) is None:
            raise bodies.invalid((Fault("?wait", "type", "must be a number of seconds, 0 to 30"),))
        return min(MAX_WAIT_S, float(text))
    prefer = request.headers.get("prefer")
    found = _PREFER_WAIT.search(prefer) if prefer is not None else None
    return 0 if found is None else min(MAX_WAIT_S, int(found[1]))


def _listing_query(request: Request) -> tuple[str | None, str | None, int, str | None]:
    query = request.query
    faults = []
    state, after, limit = query.get("state"), query.get("after"), query.get("limit", str(PAGE))
    if state is not None and state not in job.STATES:
        faults.append(Fault("?state", "choice", f"must be one of {', '.join(job.STATES)}"))
    if after is not None and not ids.is_id(after, ids.JOB):
        faults.append(Fault("?after", "format", "must be the id of a job, the last of the page before"))
    if _DIGITS.match(limit) is None or not 1 <= int(limit) <= MAX_PAGE:
        faults.append(Fault("?limit", "range", f"must be a number from 1 to {MAX_PAGE}"))
    if faults:
        raise bodies.invalid(tuple(faults))
    return state, query.get("model"), int(limit), after
