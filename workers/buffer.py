"""The scheduler behind a lock: tickets come in from Celery's loop, executor threads wait here for a batch.

Nothing polls: a thread sleeps until a ticket, an engine, the end of a batch or of a wait window wakes it.
"""

import threading
import time
from collections.abc import Callable, Sequence

from models import contract
from workers import scheduler
from workers.scheduler import Batch, Pending
from workers.strategy import Delivery


class Buffer:
    """`profile_of`: what is known of a loaded network, None while it isn't loaded; then `want` asks for it.

    `refused`: whether this machine can't load a network; `may_claim`: whether the lease allows it now;
    `now_ms`: the database's clock.
    """

    def __init__(self, *, profile_of: scheduler.Profiles, want: Callable[[str], None],
                 refused: Callable[[str], bool], may_claim: Callable[[], bool],
                 now_ms: Callable[[], int]) -> None:
        self._profile_of = profile_of
        self._want = want
        self._refused = refused
        self._may_claim = may_claim
        self._now_ms = now_ms
        self._condition = threading.Condition()
        self._scheduler = scheduler.Scheduler()
        self._busy = 0
        self._alone = False
        self._closed = False
        self._paused_until_s = 0.0
        self._barred = False  # a thread found that it may not claim

    def __len__(self) -> int:
        with self._condition:
            return len(self._scheduler)

    def offer(self, ticket: contract.Ticket, delivery: Delivery) -> None:
        """Buffer a ticket's entries."""
        with self._condition:
            self._scheduler.add(ticket, delivery, time.monotonic())
            if self._profile_of(ticket.network) is None:
                self._want(ticket.network)
            self._wake_one()

    def hungry(self) -> bool:
        """Whether another ticket is wanted."""
        with self._condition:
            return not self._closed and self._scheduler.hungry(self._profile_of, self._refused)

    def forget(self, unwanted: Callable[[Delivery], bool]) -> None:
        """Drop the entries of deliveries that are void."""
        with self._condition:
            self._scheduler.remove(lambda pending: unwanted(pending.source))

    def remove(self, network: str | None = None) -> list[Pending]:
        """Take out what is buffered for a network, or everything."""
        with self._condition:
            return self._scheduler.remove(lambda pending: network is None or pending.network == network)

    def take(self) -> tuple[Batch | None, Sequence[Pending]] | None:
        """Wait for the next batch, and for entries that came too late; None once closed. Then call `done`.

        A second batch is handed out while one is in progress only if it is full, and never beside a suspect.
        """
        with self._condition:
            while not self._closed:
                now_s = time.monotonic()
                wake_s: float | None = None
                if now_s < self._paused_until_s:
                    wake_s = self._paused_until_s
                elif not self._may_claim():
                    self._barred = True
                elif self._busy < 2 and not self._alone:
                    batch = self._scheduler.take(self._profile_of, now_s=now_s, now_ms=self._now_ms(),
                                                 only_full=self._busy > 0)
                    expired, self._scheduler.expired = self._scheduler.expired, []
                    if batch is not None:
                        self._busy += 1
                        self._alone = batch.alone
                        self._wake_one()
                    if batch is not None or expired:
                        return batch, expired
                    wake_s = self._scheduler.wake_s
                self._condition.wait(None if wake_s is None else max(0.0, wake_s - now_s))
            return None

    def done(self, batch: Batch) -> None:
        """A batch taken is settled, or given up."""
        with self._condition:
            self._busy -= 1
            self._alone = self._alone and not batch.alone
            self._wake_one()

    def put_back(self, pending: Sequence[Pending], pause_s: float) -> None:
        """Entries that could not be claimed: not before `pause_s` from now."""
        with self._condition:
            self._scheduler.put_back(pending)
            self._paused_until_s = time.monotonic() + pause_s
            self._condition.notify_all()

    def resume(self) -> None:
        """The lease was renewed."""
        with self._condition:
            if self._barred:
                self._barred = False
                self._condition.notify_all()

    def wake(self) -> None:
        """An engine was loaded or unloaded."""
        with self._condition:
            for name in self._scheduler.networks():
                if self._profile_of(name) is None:
                    self._want(name)
            self._condition.notify_all()

    def close(self) -> None:
        """Hand out nothing more."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def _wake_one(self) -> None:
        if self._busy < 2 and self._scheduler.ready(self._profile_of, only_full=self._busy > 0):
            self._condition.notify()
