"""From events to deliveries: the exact body of each event, made once, and everyone who asked for it."""

import json
from collections.abc import Sequence
from dataclasses import replace

from models import addresses, delivery, endpoint, rendering
from models import job as jobs
from models.database import Database
from models.delivery import Addressee, Event
from models.endpoint import Endpoint
from models.job import Job

BATCH = 256
MAX_OUTPUT_BYTES = 16_384  # receivers expect some 20 KB; who wants a larger output asks for the job
# An endpoint gets no events from before it was made; a database clock set back must not cost it one, though.
CLOCK_SLACK_MS = 5_000


def fan_out(database: Database, *, first_delay_s: float) -> int:
    """Make the deliveries of the oldest events that have none; how many events were looked at."""
    with database.read() as tx:
        events = delivery.unfanned(tx, BATCH)
        if not events:
            return 0
        found = jobs.several(tx, [event.subject for event in events], max_output_bytes=MAX_OUTPUT_BYTES)
        listening = endpoint.listening(tx, sorted({event.tenant for event in events}))
    made = [(event, body_of(event, found.get(event.subject)),
             addressees_of(event, found.get(event.subject), listening.get(event.tenant, ())))
            for event in events]
    # Not durable: what a power cut takes back is fanned out again under the same event ids.
    database.write(lambda tx: delivery.fan_out(tx, made, first_delay_s=first_delay_s), durable=False)
    return len(events)


def addressees_of(event: Event, job: Job | None, endpoints: Sequence[Endpoint]) -> list[Addressee]:
    """The endpoints that want this event, and the job's own webhook if it does."""
    found = [Addressee(each.url, addresses.origin_of(each.url), each.id) for each in endpoints
             if each.wants(event.type) and each.created_at <= event.created_at + CLOCK_SLACK_MS]
    own = json.loads(job.webhook) if job is not None and job.webhook is not None else None
    if own is not None and (not own.get("events") or event.type in own["events"]):
        found.append(Addressee(own["url"], addresses.origin_of(own["url"])))
    return found


def body_of(event: Event, job: Job | None) -> bytes:
    """The event as it is sent: valid as a Standard Webhook and as an OpenAI event."""
    if job is None:
        data = json.dumps({"id": event.subject}).encode()
    else:
        state = event.type.partition(".")[2]
        if job.state != state:  # retried since: the event still tells of what happened then
            job = replace(job, state=state, finished_at=event.created_at)
        data = rendering.job_json(job, job.output)
    return delivery.body_of(event, data)
