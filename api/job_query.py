"""What the query and headers of the job routes ask for: how long to wait, which jobs to list."""

import re

from api import bodies
from api.http import Request
from models import ids, job
from models.errors import Fault

MAX_WAIT_S = 30
MAX_PAGE, PAGE = 100, 20
_PREFER_WAIT = re.compile(r'(?:^|[,;])\s*wait\s*=\s*"?(\d{1,9})"?\s*(?=$|[,;])', re.IGNORECASE)
_DIGITS = re.compile(r"\d{1,9}\Z")
_NUMBER = re.compile(r"\d{1,9}(\.\d{1,9})?\Z")


def preferred_wait_s(request: Request) -> float:
    """Seconds to wait, from `?wait=` or `Prefer: wait=`; a preference that can't be read is none."""
    text = request.query.get("wait")
    if text is not None:
        if _NUMBER.match(text) is None:
            raise bodies.invalid((Fault("?wait", "type", "must be a number of seconds, 0 to 30"),))
        return min(MAX_WAIT_S, float(text))
    prefer = request.headers.get("prefer")
    found = _PREFER_WAIT.search(prefer) if prefer is not None else None
    return 0 if found is None else min(MAX_WAIT_S, int(found[1]))


def listing(request: Request) -> tuple[str | None, str | None, int, str | None]:
    """State, network, limit and the id to go on after, of a listing. Raises InvalidRequest."""
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
