"""Celery's side: tickets in, acknowledgements out.

An acknowledgement means "the rows know": a ticket is acknowledged once each of its jobs was claimed or seen
unclaimable, long before slow ones have run. Celery's own structures are touched in its event loop alone.
"""

import collections
import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from celery import Celery, Task
from celery.worker import state

from models import contract

_log = structlog.get_logger("headrace.worker")


class Delivery:
    """One ticket in this process, as Celery's control commands see it (`inspect active`, `reserved`)."""

    __slots__ = ("__weakref__", "acknowledged", "args", "buffered", "generation", "hostname", "id", "kwargs",
                 "message", "name", "open", "task", "ticket", "time_start")

    def __init__(self, ticket: contract.Ticket, message: Any, task: Any, *, generation: int,
                 hostname: str) -> None:
        self.id = ticket.id
        self.ticket = ticket
        self.message = message
        self.task = task
        self.name = contract.INFER_TASK
        self.args = (ticket.network, ticket.lane, len(ticket.entries))
        self.kwargs: dict[str, Any] = {}
        self.hostname = hostname
        self.generation = generation
        self.buffered = len(ticket.entries)  # not claimed yet
        self.open = len(ticket.entries)  # not settled yet
        self.acknowledged = False
        self.time_start: float | None = None

    def info(self, safe: bool = False) -> dict[str, Any]:
        """What the control commands show."""
        del safe
        return {
            "id": self.id, "name": self.name, "type": self.name, "args": list(self.args), "kwargs": {},
            "hostname": self.hostname, "time_start": self.time_start, "acknowledged": self.acknowledged,
            "delivery_info": dict(self.message.delivery_info or {}), "worker_pid": None,
        }

    def cancel(self, pool: Any, **_: Any) -> None:
        """A cold shutdown asks for this; what is unsettled comes back when the incarnation ends."""


Offer = Callable[[contract.Ticket, Delivery], None]
Counts = Mapping[Delivery, int]


class Intake:
    """Hands tickets to the executor, and its progress back to Celery.

    `claimed`, `settled` and `nudge` may be called from any thread.
    """

    def __init__(self, offer: Offer, forget: Callable[[Callable[[Delivery], bool]], None],
                 hungry: Callable[[], bool]) -> None:
        self._offer = offer
        self._forget = forget
        self._hungry = hungry
        self._consumer: Any = None
        self._generation = 0
        self._unacknowledged: set[Delivery] = set()
        self._events: collections.deque[tuple[bool, Counts]] = collections.deque()
        self._scheduled = False

    def open(self, task: Task, consumer: Any) -> Callable[..., None]:
        """Begin with a new connection: the strategy that Celery calls for each message.

        What was buffered from an older connection is dropped: the broker delivers it again, and its
        acknowledgements would meet a channel that is gone.
        """
        self._generation += 1
        generation = self._generation
        self._consumer = consumer
        for delivery in self._unacknowledged:
            state.task_ready(delivery)
        self._unacknowledged.clear()
        self._forget(lambda delivery: delivery.generation != generation)

        def receive(message: Any, _body: Any, _ack: Any, _reject: Any, callbacks: Any, **_: Any) -> None:
            payload = message.decode()  # Celery drops what isn't JSON
            try:
                ticket = contract.decode_ticket(str(message.headers["id"]), payload[0])
            except Exception as error:  # noqa: BLE001 - whatever a stranger sent must not end the worker
                _log.warning("ticket_dropped", ticket=str(message.headers.get("id")), error=str(error))
                _acknowledge(message)
                return
            if not ticket.entries:
                _acknowledge(message)
                return
            delivery = Delivery(ticket, message, task, generation=generation, hostname=consumer.hostname)
            self._unacknowledged.add(delivery)
            state.task_reserved(delivery)
            for callback in callbacks or ():
                callback(delivery)
            self._offer(ticket, delivery)
            self._regulate()

        return receive

    def claimed(self, counts: Counts) -> None:
        """So many entries of these deliveries were claimed, or are of no use."""
        self._later(False, counts)

    def settled(self, counts: Counts) -> None:
        """So many entries of these deliveries are done with."""
        self._later(True, counts)

    def nudge(self) -> None:
        """Ask again whether another ticket is wanted."""
        self._later(False, {})

    def close(self) -> None:
        """Acknowledge what is left, once the event loop has ended: all rows were claimed or unmarked."""
        self._drain()
        for delivery in tuple(self._unacknowledged):
            if not self._acknowledge(delivery):
                return  # a broker that is gone would be waited for each time; what is left claims nothing

    def _later(self, done: bool, counts: Counts) -> None:
        self._events.append((done, counts))
        if not self._scheduled and self._consumer is not None:
            self._scheduled = True
            self._consumer.call_soon_ack(self._drain)

    def _drain(self) -> None:
        # One callback for all that happened, in order: the loop itself keeps no order.
        self._scheduled = False
        while self._events:
            done, counts = self._events.popleft()
            for delivery, count in counts.items():
                (self._finish if done else self._start)(delivery, count)
        self._regulate()

    def _start(self, delivery: Delivery, count: int) -> None:
        delivery.buffered -= count
        if delivery.time_start is None:
            delivery.time_start = time.time()
            state.task_accepted(delivery)
        if delivery.buffered <= 0:
            self._acknowledge(delivery)

    @staticmethod
    def _finish(delivery: Delivery, count: int) -> None:
        delivery.open -= count
        if delivery.open <= 0:
            state.task_ready(delivery, successful=True)

    def _acknowledge(self, delivery: Delivery) -> bool:
        if delivery.acknowledged or delivery.generation != self._generation:
            return True
        delivery.acknowledged = True
        self._unacknowledged.discard(delivery)
        return _acknowledge(delivery.message)

    def _regulate(self) -> None:
        """Let the broker send one ticket more, or none: the buffer is bounded by work, not by messages."""
        qos = getattr(self._consumer, "qos", None)
        if qos is None:
            return
        wanted = max(1, len(self._unacknowledged) + int(self._hungry()))
        if wanted > qos.value:
            qos.increment_eventually(wanted - qos.value)
        elif wanted < qos.value:
            qos.decrement_eventually(qos.value - wanted)


def _acknowledge(message: Any) -> bool:
    try:
        message.ack()
    except Exception as error:  # noqa: BLE001 - a channel that was replaced raises anything, AttributeError too, and
        # Celery would end the whole worker for it; the loop notices a lost connection by itself.
        _log.warning("ack_failed", ticket=str(message.headers.get("id")), error=repr(error))
        return False
    return True


def task_class(open_intake: Callable[[Any, Any], Callable[..., None]]) -> type[Task]:
    """The class of `infer.v1`, whose tickets go to an Intake instead of Celery's pool."""

    class InferTask(Task):  # type: ignore[misc]
        name = contract.INFER_TASK
        acks_late = True
        ignore_result = True

        def start_strategy(self, app: Celery, consumer: Any, **_: Any) -> Callable[..., None]:
            del app
            return open_intake(self, consumer)

        def run(self, *_args: Any, **_kwargs: Any) -> None:
            raise NotImplementedError(f"{contract.INFER_TASK} runs in batches, never by itself")

    return InferTask
