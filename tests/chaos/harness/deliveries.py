"""The checker's rules about events and webhooks: at least once, under one id, never before the commit."""

from collections import defaultdict
from collections.abc import Iterator

from tests.chaos.harness.history import Record
from tests.chaos.harness.ledger import Ledger

TERMINAL = frozenset({"succeeded", "failed", "canceled", "expired"})
TRAP = "/trap"
Found = Iterator[tuple[str, str]]


def one_event_each(ledger: Ledger) -> Found:
    """A job that somebody listens to has one event: the one of its end."""
    events: dict[str, list[Record]] = defaultdict(list)
    for row in ledger.rows["events"]:
        events[row["subject"]].append(row)
    everybody = any(not each["types"] for each in ledger.records["endpoint"])
    for row in ledger.rows["jobs"]:
        found = events.pop(row["id"], [])
        if row["state"] not in TERMINAL:
            if found:
                yield row["id"], f"{row['state']} with {len(found)} events"
        elif everybody or row["webhook"] is not None:
            types = [each["type"] for each in found]
            if types != [f"job.{row['state']}"]:
                yield row["id"], f"{row['state']} with the events {types}"
    yield from ((subject, "an event without a job") for subject in events)


def _addressees(ledger: Ledger, event: Record, job: Record) -> set[str]:
    places = {each["place"] for each in ledger.records["endpoint"]
              if not each["types"] or event["type"] in each["types"]}
    return places | ({"own"} if job["webhook"] is not None else set())


def all_delivered(ledger: Ledger) -> Found:
    """Each event was taken at least once by everyone who listens, under its own id."""
    taken = {(each["place"], each["event"]) for each in ledger.records["received"] if each["answered"] == "ok"}
    for event in ledger.rows["events"]:
        job = ledger.jobs.get(event["subject"])
        if job is None:
            continue
        for place in sorted(_addressees(ledger, event, job)):
            if (place, event["id"]) not in taken:
                yield event["id"], f"{event['type']} of {job['id']} was never taken by {place}"
    for row in ledger.rows["deliveries"]:
        if row["state"] != "delivered":
            yield row["id"], f"{row['state']} after {row['attempt']} attempts: {row['last_error']}"
    for row in ledger.rows["webhook_endpoints"]:
        if row["state"] != "enabled":
            yield row["id"], f"{row['state']}: {row['reason']}"


def nothing_untrue(ledger: Ledger) -> Found:
    """What was received is signed, of a stored event, of a job in the state told, and not older than its commit."""
    events = {row["id"]: row for row in ledger.rows["events"]}
    for each in ledger.records["received"]:
        event = events.get(each["event"])
        if each["path"] == TRAP:
            yield each["place"], "a redirect was followed"
        elif each["fault"]:
            yield each["event"], f"at {each['place']}: {each['fault']}"
        elif event is None or each["body_id"] != each["event"]:
            yield each["event"], f"received for {each['subject']}, and there is no such event"
        elif (each["type"], each["subject"]) != (event["type"], event["subject"]):
            yield each["event"], f"told {each['type']} of {each['subject']}, stored {event['type']} of {event['subject']}"
        elif each["state"] != (state := ledger.jobs.get(event["subject"], {}).get("state")):
            yield each["event"], f"told {each['state']}, and the job is {state}"
        elif each["wall_ms"] < event["created_at"]:
            yield each["event"], f"received {event['created_at'] - each['wall_ms']} ms before it happened"
