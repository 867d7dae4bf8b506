"""What crosses the broker: names, tickets, channels and the Celery settings. Standard library only.

A ticket is a hint that work exists, never the work: the row in the database is the truth.
"""

import base64
import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

INFER_TASK = "infer.v1"
INTERACTIVE = "interactive"
BULK = "bulk"
LANES = (INTERACTIVE, BULK)
MAX_ENTRIES = 256  # a message costs about 1.1 ms to consume, with 1 id or many; 64 still cost 0.02 ms a job

DONE_CHANNEL = "headrace.done.v1"  # job ids that became terminal, separated by spaces
FEED_CHANNEL = "headrace.feed.v1"  # hardware class whose lane has rows without a ticket
RETURN_CHANNEL = "headrace.return.v1"  # class and lowest id of jobs that wait again, behind others perhaps
DELIVER_CHANNEL = "headrace.deliver.v1"  # "events were written"

DEFAULT_PRIORITY = 5


def queue_name(hardware: str, lane: str) -> str:
    return f"infer.{hardware}.{lane}"


class Entry(NamedTuple):
    """One job inside a ticket."""

    id: str
    work: float  # estimated cost: elements, characters / 4 or pixels
    priority: int
    deadline_at: int | None  # ms since the epoch, database clock
    tenant: str


@dataclass(frozen=True, slots=True)
class Ticket:
    """Up to MAX_ENTRIES jobs of one network and one lane. `alone`: one suspect, to be run by itself."""

    network: str
    lane: str
    entries: Sequence[Entry]
    alone: bool = False
    id: str = field(default_factory=lambda: str(uuid.uuid4()))


def encode_ticket(ticket: Ticket, queue: str) -> bytes:
    """The message as Celery's protocol 2 on kombu's Redis transport reads it: push it to the head of `queue`.

    Written out here, since building it through kombu costs 0.35 ms against 0.05, and the API needs no Celery.
    A test reads it back through a stock Celery application.
    """
    args = [ticket.network, ticket.lane, ticket.entries, ticket.alone]
    body = json.dumps([args, {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}],
                      separators=(",", ":"))
    message = {
        "body": base64.b64encode(body.encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {
            "lang": "py", "task": INFER_TASK, "id": ticket.id, "root_id": ticket.id, "parent_id": None,
            "group": None, "retries": 0, "eta": None, "expires": None, "timelimit": [None, None],
            "argsrepr": f"({ticket.network!r}, {len(ticket.entries)} jobs)", "kwargsrepr": "{}",
            "origin": "headrace", "ignore_result": True,
        },
        "properties": {
            "correlation_id": ticket.id, "reply_to": "", "delivery_mode": 2, "priority": 0,
            "delivery_info": {"exchange": "", "routing_key": queue},
            "body_encoding": "base64", "delivery_tag": ticket.id,
        },
    }
    return json.dumps(message, separators=(",", ":")).encode()


def decode_ticket(ticket_id: str, args: Sequence[Any]) -> Ticket:
    """The ticket from a task's positional arguments; what a newer release added at the ends is left out.

    Raises ValueError if they are not version 1's. A release reads a version before the next one writes it:
    a ticket that a worker can't read is dropped, its jobs wait, and get another one when its time is up.
    """
    try:
        network, lane, rows, alone, *_ = args
        entries = tuple(Entry(str(i), float(w), int(p), d, str(t)) for i, w, p, d, t, *_ in rows)
    except (TypeError, ValueError) as error:
        raise ValueError(f"not an {INFER_TASK} ticket: {error}") from error
    return Ticket(str(network), str(lane), entries, bool(alone), ticket_id)


def encode_done(ids: Iterable[str]) -> bytes:
    return " ".join(ids).encode()


def decode_done(message: bytes) -> list[str]:
    return message.decode().split()


def encode_return(hardware: str, ids: Iterable[str] = ()) -> bytes:
    """`ids`: the jobs that came back; none where it isn't known which."""
    return f"{hardware} {min(ids, default='')}".encode()


def decode_return(message: bytes) -> tuple[str, str]:
    """The class, and the lowest id; "" where it isn't known."""
    hardware, _, lowest = message.decode().partition(" ")
    return hardware, lowest


def celery_settings(broker_url: str, visibility_timeout_s: int = 600) -> dict[str, Any]:
    """One dict for every process that speaks Celery, so that both sides are equal."""
    return {
        "broker_url": broker_url,
        "result_backend": None,
        "task_ignore_result": True,
        "task_acks_late": True,
        "task_serializer": "json",
        "accept_content": ["json"],
        "task_create_missing_queues": True,
        "task_default_queue": "infer.default",
        "worker_prefetch_multiplier": 8,
        "worker_hijack_root_logger": False,
        "worker_send_task_events": False,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_transport_options": {
            "visibility_timeout": visibility_timeout_s,
            "unacked_restore_interval": 10,
            "unacked_restore_throttle": 1,
            "socket_timeout": 30,
            "socket_connect_timeout": 5,
            "socket_keepalive": True,
            "health_check_interval": 10,
            "priority_steps": [0],
        },
    }
