"""`/v1/queues` and `/v1/workers`: what waits where, and who is there to run it."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from api import shapes
from api.http import Principal, Reply, Request, Table
from models import backlog, contract, incarnation, rendering
from models.database import Row, Statement
from models.incarnation import Incarnation

if TYPE_CHECKING:
    from api.service import Service

table = Table("operations")

_LANES = Statement(
    "SELECT hardware, lane, open, depth, in_flight, wait_s, oldest_at, updated_at, {now} FROM lanes")
_NOW = Statement("SELECT {now}")


@table.route("GET", "/v1/queues", scope="models:read",
             summary="What waits in each lane of each hardware class", replies={200: shapes.QueueList})
def queues(service: "Service", _request: Request, _principal: Principal) -> Reply:
    """Every lane that has had jobs or has a live worker. Depths are those of the last roll-up."""
    with service.database.read() as tx:
        rows = tx.all(_LANES)
    live = service.directory.live()
    lanes = lanes_now(rows, live)
    workers = live_workers(live)
    keys = lanes.keys() | {(str(each.hardware), lane) for each in workers for lane in lanes_of(each)}
    return shapes.reply(shapes.QueueList("list", [
        _queue(service, hardware, lane, lanes.get((hardware, lane)), _ready(workers, hardware, lane))
        for hardware, lane in sorted(keys, key=lambda key: (key[0], contract.LANES.index(key[1])))]))


@table.route("GET", "/v1/workers", scope="models:read", summary="List the live workers",
             replies={200: shapes.WorkerList})
def workers(service: "Service", _request: Request, _principal: Principal) -> Reply:
    """Every worker whose lease has not ended, with what it last reported."""
    with service.database.read() as tx:
        found = live_workers(incarnation.live(tx))
        now = tx.all(_NOW)[0][0]
    return shapes.reply(shapes.WorkerList("list", [
        shapes.Worker(
            id=each.id, object="worker", hardware=each.hardware, lanes=lanes_of(each), ready=each.ready,
            host=each.host, pid=each.pid, started_at=rendering.rfc3339(each.started_at),
            heartbeat_at=rendering.rfc3339(each.heartbeat_at),
            heartbeat_age_s=max(0, now - each.heartbeat_at) / 1000, holding=dict(each.holding))
        for each in found]))


def lanes_now(rows: Iterable[Row], live: Iterable[Incarnation]) -> dict[tuple[str, str], Row]:
    """Rows of `lanes` (class, lane, open, depth, in_flight, wait_s, oldest_at, updated_at, now) by their key.

    With the figures that housekeeping counted since: it writes a row only when much has changed.
    """
    counts, drains = backlog.latest(live), backlog.drains(live)
    out: dict[tuple[str, str], Row] = {}
    for row in rows:
        hardware, lane, is_open, *_, updated_at, now = row
        count = counts.get((hardware, lane))
        out[hardware, lane] = row if count is None or count.counted_at < updated_at else (
            hardware, lane, is_open, count.depth, count.in_flight, count.wait_s(drains.get(hardware, 0.0)),
            count.oldest_at, count.counted_at, now)
    return out


def live_workers(found: Iterable[Incarnation]) -> list[Incarnation]:
    return [each for each in found if each.kind == incarnation.WORKER]


def lanes_of(worker: Incarnation) -> list[str]:
    named = (worker.lanes or contract.INTERACTIVE).split(",")
    return [lane for lane in contract.LANES if lane in named]


def _ready(workers: Iterable[Incarnation], hardware: str, lane: str) -> int:
    return sum(1 for each in workers if each.ready and each.hardware == hardware and lane in lanes_of(each))


def _queue(service: "Service", hardware: str, lane: str, row: Row | None, workers: int) -> shapes.Queue:
    if row is None:
        return shapes.Queue("queue", hardware, lane, depth=0, in_flight=0, oldest_s=None,
                            estimated_wait_s=None, workers=workers, open=True, updated_at=None)
    *_, is_open, depth, in_flight, wait_s, oldest_at, updated_at, now = row
    if lane == contract.INTERACTIVE and service.directory.lane(hardware).backlog is not None:
        level = service.admission.wait_s(hardware)  # with what was admitted since the count
        wait_s = wait_s if level is None else round(level, 3)
    return shapes.Queue(
        "queue", hardware, lane, depth=depth, in_flight=in_flight,
        oldest_s=None if oldest_at is None else max(0, now - oldest_at) / 1000, estimated_wait_s=wait_s,
        workers=workers, open=bool(is_open), updated_at=rendering.rfc3339(updated_at))
