"""The answer to a batch: of each entry what became of it, in order."""

import math
from collections.abc import Sequence

import msgspec

from api import errors, submission
from api.http import Reply
from models.errors import HeadraceError, NotAdmitted
from models.job import NewJob


def reply(entries: Sequence[NewJob | HeadraceError], now: int) -> Reply:
    parts = [b'{"status":202,"job":' + submission.accepted_json(entry, now) + b"}"
             if isinstance(entry, NewJob) else refused(entry, index) for index, entry in enumerate(entries)]
    return Reply(202, b'{"object":"list","data":[' + b",".join(parts) + b"]}")


def refused(error: HeadraceError, index: int) -> bytes:
    shown = errors.error_object(error)
    under = f"/jobs/{index}"
    shown["param"] = under if shown["param"] is None else under + shown["param"]
    shown["errors"] = [errors.fault_object(fault, under)
                       for fault in errors.faults_of(error, errors.status_of(error))]
    if isinstance(error, NotAdmitted):
        shown["retry_after_s"] = math.ceil(error.retry_after_s) if error.retryable else None
        shown["estimated_wait_s"] = error.estimated_wait_s
    return msgspec.json.encode({"status": errors.status_of(error), "error": shown})
