"""What was last learned of a network's speed on a hardware class, so that estimates outlive the workers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from models.database import Statement, Transaction


@dataclass(frozen=True, slots=True)
class Rate:
    """Seconds of one batch = overhead_s + per_work_s x work, everything from claim to settle counted in."""

    network: str
    overhead_s: float
    per_work_s: float
    batch_work: float  # learned limit of one batch
    batch_items: int

    def share(self, work: float) -> float:
        """How much of one learned batch a job of this work fills."""
        return max(1 / self.batch_items, work / self.batch_work)

    def cost_s(self, work: float) -> float:
        """Seconds of one worker's time that a job adds, run in full batches with others like it."""
        return self.share(work) * self.overhead_s + work * self.per_work_s

    def alone_s(self, work: float) -> float:
        """Seconds that a job takes as a batch by itself, which is the soonest that it can end when idle."""
        return self.overhead_s + work * self.per_work_s


ITEM_MS = 10.0  # what one job is taken to cost while nobody has measured it, where its manifest says nothing


def assumed(reference: str, manifest: Mapping[str, Any]) -> Rate:
    """The rate of a network that no worker has run yet: `batching.item_ms` of its manifest for each job."""
    item_ms = (manifest.get("batching") or {}).get("item_ms") or ITEM_MS
    return Rate(reference, item_ms / 1000, 0.0, math.inf, 1)


_FIELDS = "network, overhead_s, per_work_s, batch_work, batch_items"
_KNOWN = Statement(f"SELECT {_FIELDS} FROM rates WHERE hardware = :hardware AND network {{in networks}}")
_SAVE = Statement(
    f"INSERT INTO rates (hardware, {_FIELDS}, updated_at) VALUES (:hardware, :network, :overhead_s, "
    ":per_work_s, :batch_work, :batch_items, {now}) ON CONFLICT (network, hardware) DO UPDATE SET "
    "overhead_s = excluded.overhead_s, per_work_s = excluded.per_work_s, batch_work = excluded.batch_work, "
    "batch_items = excluded.batch_items, updated_at = excluded.updated_at")


def known(tx: Transaction, hardware: str, networks: Sequence[str]) -> dict[str, Rate]:
    return {row[0]: Rate(*row) for row in tx.all(_KNOWN, hardware=hardware, networks=networks)}


def save(tx: Transaction, hardware: str, rates: Sequence[Rate]) -> None:
    # In name order: two workers that save at once must not lock each other out.
    for each in sorted(rates, key=lambda rate: rate.network):
        tx.run(_SAVE, hardware=hardware, network=each.network, overhead_s=each.overhead_s,
               per_work_s=each.per_work_s, batch_work=each.batch_work, batch_items=each.batch_items)


_EVERY = Statement(f"SELECT hardware, {_FIELDS} FROM rates")


def every(tx: Transaction) -> dict[tuple[str, str], Rate]:
    """(network, class) to what was last learned."""
    return {(row[1], row[0]): Rate(*row[1:]) for row in tx.all(_EVERY)}
