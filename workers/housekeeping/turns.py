"""Whose turn it is in one class, as the feeder remembers it between picks: slots, cursors, shares."""

import time
from collections.abc import Container, Sequence

from models import contract, feed, ids, turn
from models.database import Transaction
from models.feed import Waiting
from models.turn import Picked, Slot
from workers.housekeeping.shares import Cost, Shares

LATE_S = 5.0  # between the making of an id and its commit
LATE_LOOK_S = 0.5  # how often cursors are lowered by that: under a held snapshot it is a walk
DUTY_SHARE = 0.05  # of the time, for walks that may be long: full scans, searches for lost tickets and slots
FEW_SLOTS, QUICK_S = 64, 0.002  # so few, found so quickly: they are searched for each pick
BEARABLE_S = 0.01  # found so quickly, they are searched at once when rows were left behind


class Turns:
    """Picks, and learns from what was marked of it."""

    def __init__(self) -> None:
        self.cursors: dict[Slot, str] = {}
        self._floor = ""  # nothing below waits without a ticket, in whatever slot
        self._floor_due_at = 0.0  # own monotonic clock: when it is to be made sure again
        self.shares = Shares()
        self._slots: list[Slot] = []
        self._idle: set[Slot] = set()  # of them, where nothing was found by the last pick that saw all
        self._slots_due_at = 0.0  # own monotonic clock: when to look whether there are others
        self._search_due_at = 0.0  # and when to find all of them again
        self._look_s = 0.0
        self._late_due_at = 0.0
        self._resumed = False

    @property
    def remembers(self) -> bool:
        """Whether a pick may have missed something for what is remembered."""
        return bool(self.cursors) or time.monotonic() < max(self._slots_due_at, self._search_due_at)

    def left(self, tx: Transaction, hardware: str) -> bool:
        """Whether a job without a ticket waits; a walk over everything only every few seconds."""
        begun_at = time.monotonic()
        if self._floor and begun_at < self._floor_due_at:
            return feed.left(tx, hardware, after=self._floor)
        newest = _newest()
        self._floor = ""
        if feed.left(tx, hardware):
            return True
        self._floor = newest
        self._floor_due_at = begun_at + max(LATE_S, (time.monotonic() - begun_at) / DUTY_SHARE)
        return False

    def reopen(self, tx: Transaction, hardware: str) -> bool:
        """Open the lane if nothing without a ticket waits in it; whether it is open now."""
        return feed.reopen(tx, hardware, contract.INTERACTIVE, after=self._floor)

    def forget(self) -> None:
        """Search from the beginning."""
        self.cursors.clear()
        self._floor = ""
        self._slots_due_at = self._search_due_at = 0.0

    def heard(self) -> None:
        """Rows were left behind, perhaps of a tenant that did not wait before."""
        if self._look_s < BEARABLE_S:
            self._slots_due_at = 0.0

    def came_back(self, lowest: str) -> None:
        """Search again from this id on; from the beginning if it is ""."""
        below = lowest[:-1]  # of a string, each beginning sorts before it
        self.cursors = {slot: min(cursor, below) for slot, cursor in self.cursors.items() if below}
        self._floor = min(self._floor, below)
        self._slots_due_at = self._search_due_at = 0.0

    def pick(self, tx: Transaction, hardware: str, limit: int, cost: Cost) -> Picked:
        """Up to `limit` jobs without a ticket, locked, in their order."""
        self._look(tx, hardware)
        if not self._resumed and self._slots:
            self._resume(tx, hardware, self._slots)
        self.shares.enter(slot.tenant for slot in self._slots if slot not in self._idle)
        begun_at = time.monotonic()
        late = begun_at >= self._late_due_at
        newest = _newest()
        after = {slot: min(cursor, newest) for slot, cursor in self.cursors.items()} if late else self.cursors
        picked = turn.pick(tx, hardware, limit=limit, known=self._slots, after=after,
                           order=self.shares.turn(cost))
        if late:
            self._late_due_at = begun_at + max(LATE_LOOK_S, (time.monotonic() - begun_at) / DUTY_SHARE)
        found = {Slot(job.entry.priority, job.entry.tenant) for job in picked}
        self._idle = (self._idle if picked.more else set(self._slots)) - found
        return picked

    def _look(self, tx: Transaction, hardware: str) -> None:
        """Find the slots: mostly by a look whether there are others than before."""
        begun_at = time.monotonic()
        if begun_at < self._slots_due_at:
            return
        again = bool(self._slots) and begun_at < self._search_due_at
        if not again or turn.newcomer(tx, hardware, self._slots):
            self._slots = turn.slots(tx, hardware, after=self._floor)
            self._idle = set()
            self._search_due_at = begun_at + max(LATE_S, (time.monotonic() - begun_at) / DUTY_SHARE)
        self._look_s = time.monotonic() - begun_at
        cheap = len(self._slots) <= FEW_SLOTS and self._look_s < QUICK_S
        self._slots_due_at = begun_at if cheap else begun_at + self._look_s / DUTY_SHARE

    def _resume(self, tx: Transaction, hardware: str, slots: Sequence[Slot]) -> None:
        """Go on about where the leader before was."""
        self._resumed = True
        if len({slot.tenant for slot in slots}) > 1:
            heads = turn.pick(tx, hardware, limit=contract.MAX_ENTRIES, known=slots)
            self.shares.resume(turn.used_s(tx, hardware, min((job.entry.id for job in heads), default="")))

    def taken(self, picked: Picked, marked: Container[str], cost: Cost) -> None:
        """These ids of what was picked got a ticket: charge them, and move each slot's cursor over them.

        It stops before the slot's first job that got none.
        """
        blocked: set[Slot] = set()
        charged: list[Waiting] = []
        for job in picked:
            entry = job.entry
            slot = Slot(entry.priority, entry.tenant)
            if entry.id in marked:
                charged.append(job)
            if entry.deadline_at is not None or slot in blocked:
                continue
            if entry.id in marked:
                self.cursors[slot] = max(entry.id, self.cursors.get(slot, ""))
            else:
                blocked.add(slot)
                if entry.id < self.cursors.get(slot, ""):  # committed late: else it would be passed over
                    self.cursors[slot] = entry.id[:-1]
        self.shares.charge(charged, cost)


def _newest() -> str:
    """Above this id a job may still be on its way into the database."""
    return ids.lowest(ids.JOB, int((time.time() - LATE_S) * 1000))
