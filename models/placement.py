"""Which hardware class a waiting job waits for, after the API's first choice."""

import json
from collections.abc import Sequence

from models import contract, feed
from models.database import Statement, Transaction

_LOCK = Statement("SELECT id, allowed FROM jobs WHERE id {in ids} AND waiting ORDER BY id {for_update}")
_MOVE = Statement("UPDATE jobs SET hardware = :hardware, ticketed_until = NULL WHERE id {in ids}")


def move(tx: Transaction, ids: Sequence[str], to: Sequence[str]) -> dict[str, list[str]]:
    """Let waiting jobs wait for the first class of `to` that their client allows; class to the jobs moved.

    Jobs that allow none of them, or don't wait, stay as they are. The lanes they come to are closed, so that
    the feeder sends their tickets in turn: tell it with `contract.FEED_CHANNEL`.
    """
    moved: dict[str, list[str]] = {}
    for job_id, allowed in tx.all(_LOCK, ids=ids) if ids and to else ():
        wanted = None if allowed is None else json.loads(allowed)
        hardware = next((name for name in to if wanted is None or name in wanted), None)
        if hardware is not None:
            moved.setdefault(hardware, []).append(job_id)
    for hardware, jobs in moved.items():
        if feed.is_open(tx, hardware, contract.INTERACTIVE, to_close=True):
            feed.close(tx, hardware, contract.INTERACTIVE)
        tx.run(_MOVE, ids=jobs, hardware=hardware)
    return moved
