"""Jobs of a network that this worker can't load: given back, or failed once no worker can."""

from collections.abc import Sequence

import structlog

from models import claim
from models import incarnation as incarnations
from models.claim import Outcome
from models.database import Database, Transaction
from models.job import FAILED

ENGINE_UNAVAILABLE = "engine_unavailable"
PATIENCE = 3  # refusals by this worker before it may be final

_log = structlog.get_logger("headrace.worker")


def everyone_refuses(tx: Transaction, network: str, *, incarnation: str, hardware: str) -> bool:
    """Whether every other live worker of this class has reported the network as refused."""
    return all(network in each.holding.get("refused", ()) for each in incarnations.live(tx)
               if each.kind == incarnations.WORKER and each.hardware == hardware and each.id != incarnation)


def release(database: Database, ids: Sequence[str], network: str, *, count: int, reason: str,
            incarnation: str, hardware: str) -> Sequence[str]:
    """Let others take these unclaimed jobs, or fail them: the ids of those that failed.

    `count`: how often this worker has refused the network. Raises Unavailable.
    """
    def fail(tx: Transaction) -> Sequence[str]:
        # Nothing is run, so suspects may be claimed beside others.
        claimed = claim.claim(tx, ids, incarnation=incarnation, hardware=hardware, begun=False, alone=True)
        outcomes = [Outcome(job.id, job.attempt, FAILED, error_code=ENGINE_UNAVAILABLE,
                            error_message=f"no worker of class {hardware!r} can load {network}: {reason}")
                    for job in claimed]
        return list(claim.settle(tx, outcomes, incarnation=incarnation))

    with database.read() as tx:
        final = count >= PATIENCE and everyone_refuses(tx, network, incarnation=incarnation,
                                                       hardware=hardware)
    if final:
        return database.write(fail)
    given_back = database.write(lambda tx: claim.unmark(tx, ids), durable=False)
    _log.info("jobs_given_back", network=network, jobs=given_back)
    return ()
