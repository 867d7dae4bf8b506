"""Delivery duties, and finished jobs for them to tell of."""

import dataclasses
import json
import threading
from collections.abc import Sequence
from typing import Any, Self

from models import claim, delivery_log, endpoint, ids, incarnation, job
from models.database import Database
from models.delivery_log import Delivery as Logged
from models.endpoint import Endpoint
from models.settings import Settings
from tests import waiting
from workers.housekeeping.delivery import Delivery

TENANT = "default"


class Deliverers:
    """Delivery duties of processes of their own, as far as the database sees."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self.settings = settings
        self.database = database
        self._running: list[tuple[threading.Event, threading.Thread]] = []

    def start(self, schedule: Sequence[float] = (0.0, 0.0, 0.0), **changes: Any) -> str:
        """Start one more; its incarnation."""
        me = ids.new(ids.INCARNATION)
        self.database.write(
            lambda tx: incarnation.begin(tx, me, kind=incarnation.HOUSEKEEPING, host="test", pid=1))
        changed = dataclasses.replace(self.settings, webhook_schedule=tuple(schedule), incarnation=me, **changes)
        stop = threading.Event()
        thread = threading.Thread(target=Delivery(changed, self.database).run, args=(stop,))
        thread.start()
        self._running.append((stop, thread))
        return me

    def stop(self) -> None:
        for stop, _ in self._running:
            stop.set()
        for _, thread in self._running:
            thread.join(30)
            assert not thread.is_alive()
        self._running.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self.stop()


def add_endpoint(database: Database, url: str, *event_types: str, owner: str = TENANT) -> Endpoint:
    return database.write(
        lambda tx: endpoint.add(tx, tenant=owner, name="mine", url=url, event_types=event_types))


def finish(database: Database, count: int = 1, *, state: str = job.SUCCEEDED, output: bytes = b'{"label":"7"}',
           webhook: dict[str, Any] | None = None, owner: str = TENANT) -> list[str]:
    """Jobs that have just ended; their ids."""
    new = [job.NewJob(ids.new(ids.JOB), owner, "net@1", "cpu", 1.0, b"1",
                      webhook=None if webhook is None else json.dumps(webhook).encode()) for _ in range(count)]
    names = [item.id for item in new]
    worker = ids.new(ids.INCARNATION)
    now = database.now()
    database.write(lambda tx: job.accept(tx, new, now))
    held = database.write(lambda tx: claim.claim(tx, names, incarnation=worker, hardware="cpu", begun=True))
    outcomes = [
        claim.Outcome(item.id, item.attempt, state, output) if state == job.SUCCEEDED else
        claim.Outcome(item.id, item.attempt, state, error_code="inference_failed", error_message="no")
        for item in held]
    database.write(lambda tx: claim.settle(tx, outcomes, incarnation=worker))
    return names


def log_of(database: Database, **filters: Any) -> list[Logged]:
    with database.read() as tx:
        return delivery_log.listing(tx, TENANT, limit=1000, **filters)


def ended(database: Database, state: str, count: int = 1, **filters: Any) -> list[Logged]:
    """The deliveries in this state, once there are `count`."""
    return waiting.until(lambda: found if len(found := log_of(database, state=state, **filters)) == count else [],
                         what=f"{count} {state} deliveries")
