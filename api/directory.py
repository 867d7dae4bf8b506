"""What this process knows of networks, workers, rates and lanes: a snapshot, refreshed in the background.

A request never waits for the database here, but for a name that the snapshot does not know (yet).
"""

import difflib
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from api import inputs
from models import backlog, contract, incarnation, network, rate
from models.backlog import Backlog
from models.database import Database, Row, Statement, Transaction
from models.errors import Fault, ModelNotFound, ModelNotReady, Unavailable
from models.incarnation import Incarnation
from models.rate import Rate

log = structlog.get_logger("headrace.api")

REFRESH_S = 0.5
DEFAULT_ITEMS = 64  # of a batch, until a worker has learned better
_CLOCK = Statement("SELECT {now}")


@dataclass(frozen=True, slots=True)
class Served:
    """A network that takes jobs. `check` takes an input's JSON, gives its work, or raises InputInvalid."""

    reference: str
    hardware: tuple[str, ...]  # classes in order of preference
    check: Callable[[bytes], float]
    batch_items: int  # as the manifest says, for as long as no worker has learned it
    batch_work: float
    assumed: Rate


@dataclass(frozen=True, slots=True)
class Lane:
    """The interactive lane of a class: its last count, if any, and when that was; who works on it.

    `counted_s`: on this process's monotonic clock. `drain`: learned seconds of work done in a second.
    """

    backlog: Backlog | None = None
    counted_s: float = -math.inf
    drain: float = 0.0
    workers: int = 0


_UNKNOWN = Lane()


@dataclass(frozen=True, slots=True)
class _Snapshot:
    networks: Mapping[str, network.Network] = field(default_factory=dict)  # by name@version and by bare name
    served: Mapping[str, Served] = field(default_factory=dict)
    workers: Mapping[str, Sequence[frozenset[str]]] = field(default_factory=dict)  # class to refusals of each
    rates: Mapping[tuple[str, str], Rate] = field(default_factory=dict)  # learned, by network and class
    lanes: Mapping[str, Lane] = field(default_factory=dict)
    live: Sequence[Incarnation] = ()
    clock_ms: float = 0.0  # of the database, ahead of this machine's
    version: Row | None = None  # of the networks


class Directory:
    """Thread-safe; readers take the snapshot as it is."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._now = _Snapshot()
        self._checks: dict[str, Callable[[bytes], float]] = {}
        self._refreshed_at = -math.inf
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="directory", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(5)

    def resolve(self, model: str) -> Served:
        """The network that `name` or `name@version` means. Raises ModelNotFound or ModelNotReady."""
        snapshot = self._now
        found = snapshot.networks.get(model)
        if found is not None:
            served = snapshot.served.get(found.reference)
            if served is not None:
                return served
        self.refresh()
        snapshot = self._now
        found = snapshot.networks.get(model)
        if found is None or found.state == network.RETIRED or found.withdrawn_at is not None:
            detail = self._unknown(model, found)
            raise ModelNotFound(detail, faults=(Fault("/model", "unknown", detail),))
        served = snapshot.served.get(found.reference)
        if served is not None:
            return served
        if found.state == network.REJECTED:
            error = _not_ready(f"the network {found.reference} was rejected: {found.reason}")
            error.retryable = False
            raise error
        raise _not_ready(f"the network {found.reference} is being checked by a worker; try again shortly")

    def _unknown(self, model: str, found: network.Network | None) -> str:
        if found is not None:
            return f"the network {found.reference} is retired"
        near = difflib.get_close_matches(model, self._now.networks, 1)
        hint = f"did you mean {near[0]!r}?" if near else "GET /v1/models lists them"
        return f"there is no network {model!r}; {hint}"

    def place(self, served: Served, allowed: Sequence[str] | None = None) -> str | None:
        """The class a job waits for: the network's first with a live worker, else its first; None: none."""
        classes = [name for name in served.hardware if allowed is None or name in allowed]
        if not classes:
            return None
        workers = self._now.workers
        for name in classes:
            if any(served.reference not in refused for refused in workers.get(name, ())):
                return name
        return classes[0]

    def classes(self) -> frozenset[str]:
        """Hardware classes that some worker or network names."""
        now = self._now
        return frozenset(now.workers).union(*(served.hardware for served in now.served.values()))

    def workers(self, hardware: str) -> int:
        """How many live workers the class has."""
        return len(self._now.workers.get(hardware, ()))

    def batch(self, reference: str, hardware: str) -> tuple[int, float]:
        """Items and work of one batch of a network: learned, or as its manifest says."""
        now = self._now
        learned = now.rates.get((reference, hardware))
        if learned is not None:
            return learned.batch_items, learned.batch_work
        served = now.served.get(reference)
        return (DEFAULT_ITEMS, math.inf) if served is None else (served.batch_items, served.batch_work)

    def rate(self, served: Served, hardware: str) -> tuple[Rate, bool]:
        """What a network costs on a class, and whether a worker has measured it."""
        learned = self._now.rates.get((served.reference, hardware))
        return (served.assumed, False) if learned is None else (learned, True)

    def lane(self, hardware: str) -> Lane:
        """What is known of a class's interactive lane."""
        return self._now.lanes.get(hardware, _UNKNOWN)

    def live(self) -> Sequence[Incarnation]:
        """Whose lease had not ended when this process last looked, mostly half a second ago.

        Their rows are updated all the time: under a snapshot held elsewhere each look walks over every beat.
        """
        if time.monotonic() - self._refreshed_at > 2 * REFRESH_S:
            self.refresh()
        return self._now.live

    def now_ms(self) -> int:
        """The database's clock, as far as it is known here."""
        return int(time.time() * 1000 + self._now.clock_ms)

    @property
    def refreshed(self) -> bool:
        """Whether the database was read at all."""
        return self._refreshed_at > -math.inf

    def refresh(self) -> None:
        """Read everything again. With the database away the snapshot stays as it is."""
        asked_at = time.monotonic()
        with self._lock:
            # One at a time: who waited for one that began after he asked has what he wants.
            if self._refreshed_at > asked_at:
                return
            started_at = time.monotonic()
            try:
                with self._database.read() as tx:
                    self._now = self._read(tx)
            except Unavailable as error:
                log.warning("directory_stale", detail=str(error))
            else:
                self._refreshed_at = started_at

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.refresh()
            except Exception:
                log.exception("directory_failed")
            self._stop.wait(REFRESH_S)

    def _read(self, tx: Transaction) -> _Snapshot:
        before = self._now
        version = network.version(tx)
        if version != before.version:
            every = network.every(tx)
            networks, served = _by_name(every), self._serve(every)
        else:
            networks, served = before.networks, before.served  # type: ignore[assignment]
        workers: dict[str, list[frozenset[str]]] = {}
        live = incarnation.live(tx)
        for life in live:
            if life.kind == incarnation.WORKER and life.hardware:
                workers.setdefault(life.hardware, []).append(frozenset(life.holding.get("refused", ())))
        row = tx.one(_CLOCK)
        clock_ms = 0.0 if row is None else row[0] - time.time() * 1000
        lanes = _lanes(live, clock_ms)
        return _Snapshot(networks, served, workers, rate.every(tx), lanes, live, clock_ms, version)

    def _serve(self, every: Sequence[network.Network]) -> dict[str, Served]:
        out = {}
        kept = {}
        for item in every:
            if not item.serving or item.signature is None:
                continue
            check = self._checks.get(item.digest)
            if check is None:
                try:
                    check = inputs.checker(item.manifest, item.signature)
                except Exception:  # one odd network must not take the others down
                    log.exception("network_unserved", network=item.reference)
                    continue
            kept[item.digest] = check
            batching: Mapping[str, Any] = item.manifest.get("batching") or {}
            out[item.reference] = Served(item.reference, tuple(item.hardware), check,
                                         int(batching.get("max_items") or DEFAULT_ITEMS),
                                         float(batching.get("max_work") or math.inf),
                                         rate.assumed(item.reference, item.manifest))
        self._checks = kept
        return out


def _lanes(live: Sequence[Incarnation], clock_ms: float) -> dict[str, Lane]:
    """The lanes that have workers or were counted."""
    backlogs = {name: each for (name, lane), each in backlog.latest(live).items()
                if lane == contract.INTERACTIVE}
    drains = backlog.drains(live)
    workers = Counter(life.hardware for life in live if life.kind == incarnation.WORKER)
    now_s, now_ms = time.monotonic(), time.time() * 1000 + clock_ms
    return {
        name: Lane(counted, -math.inf if counted is None else now_s - (now_ms - counted.counted_at) / 1000,
                   drains.get(name, 0.0), workers[name])
        for name in backlogs.keys() | drains.keys() for counted in (backlogs.get(name),)}


def _by_name(every: Sequence[network.Network]) -> dict[str, network.Network]:
    out: dict[str, network.Network] = {}
    for item in every:
        out[item.reference] = item
        # Without a default (it was retired) a bare name means the newest version that is ready.
        known = out.get(item.name)
        if known is None or item.is_default or (not known.is_default and item.state == network.READY):
            out[item.name] = item
    return out


def _not_ready(detail: str) -> ModelNotReady:
    return ModelNotReady(detail, faults=(Fault("/model", "not_ready", detail),))
