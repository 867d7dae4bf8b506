"""Writing how jobs ended: durable, fenced, and again for as long as the database is away.

Trouble with the database or the blob store counts against no job; only the fence decides who may write.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import structlog

from models import claim
from models.blobs import Blobs
from models.claim import Claimed, Outcome, Settled
from models.database import Database, Transaction
from models.errors import Unavailable
from models.job import FAILED, SUCCEEDED
from workers import isolation
from workers.isolation import Ran
from workers.tasks.base import ItemFault

FIRST_RETRY_S, LAST_RETRY_S = 0.05, 2.0
GRACE_S = 10.0  # how long a worker that is to stop goes on trying

T = TypeVar("T")
_log = structlog.get_logger("headrace.worker")


class Abandoned(Exception):
    """The worker had to stop while the database was away; what it held is released with its incarnation."""


class Settler:
    """Settles for one incarnation. Used from several threads."""

    def __init__(self, database: Database, blobs: Blobs, *, incarnation: str, max_inline_bytes: int) -> None:
        self._database = database
        self._blobs = blobs
        self._incarnation = incarnation
        self._max_inline_bytes = max_inline_bytes
        self._stopping = threading.Event()
        self._give_up_s = float("inf")

    def hurry(self) -> None:
        """The worker is to stop: try for GRACE_S from now, then give up."""
        self._give_up_s = time.monotonic() + GRACE_S
        self._stopping.set()

    def outcome(self, job: Claimed, ran: Ran) -> Outcome:
        """How a job ended that ran; a large output goes to the blob store. Raises Abandoned."""
        output = ran.output
        if isinstance(output, ItemFault):
            return failed(job, output, ran)
        large = len(output) > self._max_inline_bytes
        return Outcome(job.id, job.attempt, SUCCEEDED, output=None if large else output,
                       output_blob=self._insist(lambda: self._blobs.put(output)) if large else None,
                       run_ms=ran.run_ms, batch_size=ran.batch_size)

    def settle(self, outcomes: Sequence[Outcome], *, give_back: Sequence[str] = (),
               begin: Sequence[str] = ()) -> Settled:
        """Record outcomes, queue `give_back` again and mark `begin` as begun: one durable transaction.

        Raises Abandoned.
        """
        def write(tx: Transaction) -> Settled:
            return claim.settle(tx, outcomes, incarnation=self._incarnation, begin=begin, unrun=give_back)

        try:
            return self._insist(lambda: self._database.write(write))
        except Abandoned:
            raise
        except Exception as error:  # noqa: BLE001 - a value that the database refuses must not hold up the others
            _log.warning("settle_refused", jobs=len(outcomes), error=str(error))
            return self._one_by_one(outcomes, give_back, begin)

    def _one_by_one(self, outcomes: Sequence[Outcome], give_back: Sequence[str],
                    begin: Sequence[str]) -> Settled:
        settled = Settled()
        for each in outcomes:
            fault = Outcome(each.id, each.attempt, FAILED, None, None, isolation.INFERENCE_FAILED,
                            "its output could not be stored")
            try:
                part = self._insist(lambda each=each: self._database.write(  # type: ignore[misc]
                    lambda tx: claim.settle(tx, [each], incarnation=self._incarnation)))
            except Abandoned:
                raise
            except Exception:  # noqa: BLE001 - a data error of either driver
                _log.exception("output_refused", job=each.id)
                part = self._insist(lambda fault=fault: self._database.write(  # type: ignore[misc]
                    lambda tx: claim.settle(tx, [fault], incarnation=self._incarnation)))
            settled.update(part)
            settled.events += part.events
        if give_back or begin:
            self.settle((), give_back=give_back, begin=begin)
        return settled

    def _insist(self, action: Callable[[], T]) -> T:
        pause_s = FIRST_RETRY_S
        while True:
            try:
                return action()
            except Unavailable as error:
                if time.monotonic() + pause_s > self._give_up_s:
                    raise Abandoned from error
                _log.warning("settle_delayed", error=str(error), retry_s=pause_s)
                self._stopping.wait(pause_s) if not self._stopping.is_set() else time.sleep(pause_s)
                pause_s = min(2 * pause_s, LAST_RETRY_S)


def failed(job: Claimed, fault: ItemFault, ran: Ran | None = None) -> Outcome:
    """A job that ended with a failure of its own."""
    return Outcome(job.id, job.attempt, FAILED, None, None, fault.code, fault.message,
                   ran.run_ms if ran else None, ran.batch_size if ran else None)
