"""What networks, queues, workers and health look like on the wire.

Times are RFC 3339 UTC with milliseconds.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from api.http import Reply


class File(msgspec.Struct):
    path: str
    size_bytes: int
    sha256: str


class Latency(msgspec.Struct):
    """What workers of a class learned of it: a batch of work w takes overhead_ms + w x ms_per_work."""

    hardware: str
    overhead_ms: float
    ms_per_work: float
    batch_work: float
    batch_items: int
    updated_at: str


class NetworkUrls(msgspec.Struct):
    self: str
    promote: str


class Network(msgspec.Struct):
    """A version of a network. The members up to `owned_by` are those of OpenAI's models.

    `manifest` is left out of lists: it may hold thousands of labels.
    """

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    name: str
    version: str
    task: str
    state: Literal["checking", "ready", "rejected", "retired"]
    reason: str | None
    is_default: bool
    retiring: bool
    hardware: list[str]
    batching: dict[str, Any]
    pinned: bool
    signature: dict[str, Any] | None
    variants: list[dict[str, Any]]
    latency: list[Latency]
    digest: str
    files: list[File]
    created_at: str
    ready_at: str | None
    urls: NetworkUrls
    manifest: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class NetworkList(msgspec.Struct):
    object: Literal["list"]
    data: list[Network]


class Queue(msgspec.Struct):
    """A lane of a hardware class. `depth` counts jobs that wait, `in_flight` those a worker holds."""

    object: Literal["queue"]
    hardware: str
    lane: str
    depth: int
    in_flight: int
    oldest_s: float | None
    estimated_wait_s: float | None
    workers: int
    open: bool
    updated_at: str | None


class QueueList(msgspec.Struct):
    object: Literal["list"]
    data: list[Queue]


class Worker(msgspec.Struct):
    """One life of one worker process. `holding` is what it last reported of itself."""

    id: str
    object: Literal["worker"]
    hardware: str | None
    lanes: list[str]
    ready: bool
    host: str
    pid: int
    started_at: str
    heartbeat_at: str
    heartbeat_age_s: float
    holding: dict[str, Any]


class WorkerList(msgspec.Struct):
    object: Literal["list"]
    data: list[Worker]


class Live(msgspec.Struct):
    status: Literal["live"]


class Check(msgspec.Struct):
    ok: bool
    latency_ms: float


class Ready(msgspec.Struct):
    status: Literal["ready"]
    checks: dict[str, Check]


class Fault(msgspec.Struct):
    pointer: str
    rule: str
    detail: str


class ProblemError(msgspec.Struct):
    """What OpenAI's clients read of an error."""

    message: str
    type: str
    param: str | None
    code: str


class Problem(msgspec.Struct):
    """RFC 9457 problem details; `code` is the stable word, `errors` all that is wrong at once."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    errors: list[Fault]
    error: ProblemError
    may_have_been_accepted: bool | msgspec.UnsetType = msgspec.UNSET
    estimated_wait_s: float | msgspec.UnsetType | None = msgspec.UNSET


def reply(shape: msgspec.Struct, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    return Reply(status, msgspec.json.encode(shape), dict(headers or {}))
