"""A made-up event for one endpoint, sent by housekeeping like any other: it shows what they will do."""

import threading
import time
from typing import TYPE_CHECKING

from models import addresses, contract, delivery, delivery_log, ids, rendering
from models.delivery import Addressee, Event
from models.delivery_log import Delivery
from models.endpoint import Endpoint
from models.errors import RateLimited, Unavailable
from models.job import Job

if TYPE_CHECKING:
    from api.service import Service

WAIT_S = 25.0  # the longest send, and a tick or two
LOOK_S = 0.1
MAX_AT_ONCE = 16  # each holds one of the threads that answer requests

_room = threading.BoundedSemaphore(MAX_AT_ONCE)


def run(service: "Service", endpoint: Endpoint, event_type: str) -> Delivery:
    """Send it, and wait for the one attempt that is made.

    Raises RateLimited while too many are under way, Unavailable if nobody sends it.
    """
    if not _room.acquire(blocking=False):
        raise RateLimited("too many endpoints are being tested; try again in some seconds")
    try:
        return _run(service, endpoint, event_type)
    finally:
        _room.release()


def _run(service: "Service", endpoint: Endpoint, event_type: str) -> Delivery:
    now = service.database.now()
    event = Event(ids.new(ids.EVENT), endpoint.tenant, event_type, endpoint.id, now)
    body = delivery.body_of(event, rendering.job_json(_sample(event)))
    addressee = Addressee(endpoint.url, addresses.origin_of(endpoint.url), endpoint.id)
    delivery_id = service.database.write(lambda tx: delivery.add_test(tx, event, body, addressee))
    service.publisher.announce(contract.DELIVER_CHANNEL, b"")
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        time.sleep(LOOK_S)
        with service.database.read() as tx:
            found = delivery_log.get(tx, endpoint.tenant, delivery_id)
        if found is not None and found.state != delivery.PENDING:
            return found
    raise Unavailable(f"nobody sent it within {WAIT_S:g} s; is a `headrace housekeep` running?")


def _sample(event: Event) -> Job:
    state = event.type.partition(".")[2]
    failed = state == "failed"
    return Job(
        id=ids.new(ids.JOB), tenant=event.tenant, network="sample@1", hardware="cpu", state=state, attempt=1,
        crashes=0, priority=contract.DEFAULT_PRIORITY, work=1.0, created_at=event.created_at,
        started_at=event.created_at, finished_at=event.created_at, deadline_at=None, variant=None, run_ms=1.0,
        batch_size=1, error_code="inference_failed" if failed else None,
        error_message="a made-up failure" if failed else None, metadata=b'{"test":"true"}', webhook=None)
