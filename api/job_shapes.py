"""What a job looks like on the wire, for the API's description. `models/rendering.py` writes it."""

from typing import Any, Literal

from msgspec import Struct

# Inputs of the example networks, so that they work as they stand where those were added.
_TUMOR = {"model": "tumor", "input": [
    17.99, 10.38, 122.8, 1001.0, 0.1184, 0.2776, 0.3001, 0.1471, 0.2419, 0.07871, 1.095, 0.9053, 8.589, 153.4,
    0.006399, 0.04904, 0.05373, 0.01587, 0.03003, 0.006193, 25.38, 17.33, 184.6, 2019.0, 0.1622, 0.6656,
    0.7119, 0.2654, 0.4601, 0.1189]}
_TEXT = {"model": "minilm", "input": "A man is eating food.", "priority": 2, "deadline_s": 60,
         "metadata": {"order": "17"}}
JOB_EXAMPLES = {"A row of numbers, for a tabular network": _TUMOR, "A text, for a sentence encoder": _TEXT}
BATCH_EXAMPLES = {"Two jobs": {"jobs": [_TUMOR, _TEXT]}}

State = Literal["queued", "running", "succeeded", "failed", "canceled", "expired"]


class JobError(Struct):
    code: str
    message: str
    retryable: bool


class Timings(Struct):
    queued_ms: int | None
    run_ms: float | None
    batch_size: int | None


class JobUrls(Struct):
    self: str
    cancel: str


class Job(Struct):
    """One inference request. `model` is the resolved `name@version`, `hardware` the class that ran it."""

    id: str
    object: Literal["job"]
    model: str
    state: State
    output: Any
    error: JobError | None
    attempt: int
    crashes: int
    priority: int
    hardware: str | None
    variant: str | None
    cache: Any
    estimated_start_s: float | None
    created_at: str
    started_at: str | None
    finished_at: str | None
    deadline_at: str | None
    timings: Timings
    metadata: dict[str, str] | None
    urls: JobUrls


class JobList(Struct):
    """Newest first, without outputs. `after=last_id` gets the next page."""

    object: Literal["list"]
    data: list[Job]
    first_id: str | None
    last_id: str | None
    has_more: bool


class EntryFault(Struct):
    pointer: str
    rule: str
    detail: str


class EntryError(Struct):
    """Why one entry of a batch was refused; pointers are into the whole body."""

    message: str
    type: str
    param: str | None
    code: str
    errors: list[EntryFault]
    retry_after_s: int | None = None
    estimated_wait_s: float | None = None


class AcceptedEntry(Struct):
    status: Literal[202]
    job: Job


class RefusedEntry(Struct):
    status: int
    error: EntryError


class BatchReply(Struct):
    """One entry for each job that was sent, in order."""

    object: Literal["list"]
    data: list[dict[str, Any]]
