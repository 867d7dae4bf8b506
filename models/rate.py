"""What was last learned of a network's speed on a hardware class, so that estimates outlive the workers."""

from collections.abc import Sequence
from dataclasses import dataclass

from models.database import Statement, Transaction


@dataclass(frozen=True, slots=True)
class Rate:
    """Seconds of one batch = overhead_s + per_work_s x work, everything from claim to settle counted in."""

    network: str
    overhead_s: float
    per_work_s: float
    batch_work: float  # learned limit of one batch
    batch_items: int


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
