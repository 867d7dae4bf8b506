"""Jobs of a network that this worker can't load: given back, moved to a class that may, or failed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog

from models import claim, network, placement
from models import incarnation as incarnations
from models.claim import Outcome
from models.database import Database, Transaction
from models.incarnation import Incarnation
from models.job import FAILED

ENGINE_UNAVAILABLE = "engine_unavailable"
PATIENCE = 3  # refusals by this worker before it may be final

_log = structlog.get_logger("headrace.worker")


@dataclass(frozen=True, slots=True)
class Released:
    """What became of the jobs: those that `failed`; class to those that wait there."""

    failed: Sequence[str]
    waiting: Mapping[str, Sequence[str]]


def _willing(live: Sequence[Incarnation], reference: str) -> set[str]:
    """Classes with a live worker that hasn't reported the network as refused."""
    return {each.hardware for each in live if each.kind == incarnations.WORKER and each.hardware is not None
            and reference not in each.holding.get("refused", ())}


def release(database: Database, ids: Sequence[str], reference: str, *, count: int, reason: str,
            incarnation: str, hardware: str) -> Released:
    """Let others take these unclaimed jobs; fail those that no live worker of an allowed class can take.

    `count`: how often this worker has refused the network. Raises Unavailable.
    """
    def give_up(tx: Transaction) -> Released:
        live = [each for each in incarnations.live(tx) if each.id != incarnation]
        willing = _willing(live, reference)
        if hardware in willing:
            return give_back(tx)
        name, _, version = reference.partition("@")
        served = network.get(tx, name, version)
        others = [] if served is None else [each for each in served.hardware if each in willing]
        moved = placement.move(tx, ids, others)
        gone = {each for jobs in moved.values() for each in jobs}
        left = [each for each in ids if each not in gone]
        # Nothing is run, so suspects may be claimed beside others.
        claimed = claim.claim(tx, left, incarnation=incarnation, hardware=hardware, begun=False, alone=True)
        classes = ", ".join(repr(each) for each in served.hardware) if served else repr(hardware)
        outcomes = [Outcome(job.id, job.attempt, FAILED, error_code=ENGINE_UNAVAILABLE,
                            error_message=f"no live worker of an allowed class (of {classes}) can load "
                                          f"{reference}; on {hardware!r}: {reason}")
                    for job in claimed]
        return Released(list(claim.settle(tx, outcomes, incarnation=incarnation)), moved)

    def give_back(tx: Transaction) -> Released:
        claim.unmark(tx, ids)
        return Released((), {hardware: ids} if ids else {})

    released = database.write(give_up if count >= PATIENCE else give_back)
    _log.info("jobs_given_back", network=reference, jobs=len(ids), failed=len(released.failed),
              to=sorted(released.waiting))
    return released
