"""The roll-up: how much waits in each lane, counted about each second and carried by the heartbeat.

Counting walks the backlog, so it may take 5 % of the time and no more: a million jobs are counted every 20 s.
Their estimate is minutes then, and the API keeps it up to date itself in between.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from models import backlog, feed, incarnation, network, rate
from models.backlog import Backlog
from models.contract import INTERACTIVE
from models.database import Database, Statement, Transaction
from models.errors import Unavailable

log = structlog.get_logger("headrace.housekeeping")

COUNT_S = 1.0
COUNT_SHARE = 0.05  # of the time may go into counting
# A row of `lanes` is written when one of its figures has changed by this share, or some have and it is old:
# each version of a row stays until no snapshot needs it, and whoever accepts a job reads past them all.
MATERIAL, OLD_S = 0.25, 10.0
_NOW = Statement("SELECT {now}")


@dataclass(slots=True)
class _Written:
    figures: Mapping[str, Any]
    at: float  # own monotonic clock


class Counting:
    """`count` is called by the leader only; `holding` by any thread. `news` is called with new figures."""

    def __init__(self, database: Database, news: Callable[[], None] = lambda: None) -> None:
        self._database = database
        self._news = news
        self._backlogs: Sequence[Backlog] = ()
        self._written: dict[str, _Written] = {}

    def run(self, stop: threading.Event, leads: Callable[[], bool]) -> None:
        """Count until `stop`, while `leads()`."""
        pause_s = COUNT_S
        while not stop.wait(pause_s):
            if not leads():
                self._backlogs, pause_s = (), COUNT_S
                self._written.clear()
                continue
            begun_at = time.monotonic()
            try:
                self.count()
            except Unavailable as error:
                log.warning("count_failed", detail=str(error))
            taken_s = time.monotonic() - begun_at
            pause_s = max(COUNT_S, taken_s / COUNT_SHARE) - min(taken_s, COUNT_S)

    def holding(self) -> list[list[Any]]:
        """What the heartbeat carries; nothing while another process leads."""
        return backlog.pack(self._backlogs)

    def count(self) -> Sequence[Backlog]:
        """Count every lane once. Raises Unavailable."""
        with self._database.read() as tx:
            now = int(tx.all(_NOW)[0][0])
            waiting, running = feed.waiting(tx), feed.running(tx)
            drains = backlog.drains(incarnation.live(tx))
            rates = rate.every(tx)
            for name in backlog.unrated([*waiting, *running], rates):
                found = network.get(tx, *name.split("@", 1))
                default = rate.assumed(name, {} if found is None else found.manifest)
                for tally in (*waiting, *running):
                    if tally.network == name:
                        rates.setdefault((name, tally.hardware), default)
            lanes = [hardware for hardware, lane, _ in feed.states(tx) if lane == INTERACTIVE]
        out = []
        for hardware in lanes:
            here = [tally for tally in waiting if tally.hardware == hardware]
            runs = [tally for tally in running if tally.hardware == hardware]
            out.append(Backlog(
                hardware, INTERACTIVE, sum(tally.count for tally in here), sum(tally.count for tally in runs),
                backlog.work_s([*here, *runs], rates),
                min((tally.oldest_at for tally in here if tally.oldest_at), default=None), now))
        self._backlogs = out
        self._news()
        for each in out:
            self._write(each, each.wait_s(drains.get(each.hardware, 0.0)))
        return out

    def _write(self, counted: Backlog, wait_s: float) -> None:
        figures = {"depth": counted.depth, "in_flight": counted.in_flight, "wait_s": wait_s,
                   "oldest_at": counted.oldest_at}
        before = self._written.get(counted.hardware)
        now = time.monotonic()
        if before is None or _is_material(before.figures, figures, now - before.at):
            self._database.write(_roll_up(counted.hardware, figures), durable=False)
            self._written[counted.hardware] = _Written(figures, now)


def _is_material(before: Mapping[str, Any], after: Mapping[str, Any], age_s: float) -> bool:
    if before == after:
        return False
    return age_s >= OLD_S or any(abs(after[name] - before[name]) > MATERIAL * before[name]
                                 for name in ("depth", "in_flight", "wait_s"))


def _roll_up(hardware: str, figures: Mapping[str, Any]) -> Callable[[Transaction], None]:
    return lambda tx: feed.roll_up(tx, hardware, INTERACTIVE, **figures)
