"""The networks of this worker: checks new ones, loads what is wanted, keeps pinned ones warm.

One thread loads them, so that engines are loaded one at a time, and nothing else waits for them. Another one
checks, since what strangers send may take its time.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from models import network as networks
from models import rate as rates
from models.database import Database
from models.errors import HardwareMissing, NetworkRejected, Unavailable
from models.network import Network
from models.settings import HardwareClass
from workers import engine as engines
from workers import serving, trial
from workers.artifacts import Artifacts
from workers.isolation import readable
from workers.scheduler import Profile
from workers.serving import Loaded
from workers.tasks import KINDS

POLL_S = 0.5
SURVEY_S = 2.0  # how often networks pinned, replaced or retired elsewhere, and rates, are looked after
RETRY_S = (1.0, 2.0, 5.0)  # waits after the first, the second and each further refusal
MAX_ENGINES = 32
STOP_S = 5.0

_log = structlog.get_logger("headrace.worker")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a network can't be loaded here, how often it was tried, and when it is tried again."""

    reason: str
    count: int
    retry_s: float


class Catalogue:
    """`loaded` is called after an engine was loaded, `refused` after one could not be; both in its thread."""

    def __init__(self, database: Database, artifacts: Artifacts, hardware: HardwareClass,
                 open_engine: trial.OpenEngine = engines.open_engine, inspect: trial.Inspect | None = None,
                 ) -> None:
        self._open_engine = open_engine
        self._try = inspect or self._try_here
        self._database = database
        self._artifacts = artifacts
        self._hardware = hardware
        self._memory_bytes = serving.memory_bytes()
        self._condition = threading.Condition()
        self._loaded: dict[str, Loaded] = {}
        self._refusals: dict[str, Refusal] = {}
        self._wanted: set[str] = set()
        self._pinned: set[str] = set()
        self._surveyed = False
        self._survey_s = 0.0  # when the next survey is due
        self._closed = False
        self._thread: threading.Thread | None = None
        self._checker: threading.Thread | None = None
        self._unchecked: dict[str, float] = {}  # could not be checked: when they are tried again
        self.loaded: Callable[[str], None] = lambda _reference: None
        self.refused: Callable[[str, Refusal], None] = lambda _reference, _refusal: None

    def profile(self, reference: str) -> Profile | None:
        """What the scheduler needs to know of a network; None while it isn't loaded."""
        found = self._loaded.get(reference)
        return None if found is None else found.profile

    def hold(self, reference: str) -> Loaded | None:
        """A loaded network that stays loaded until `let_go`; None if it isn't loaded."""
        with self._condition:
            found = self._loaded.get(reference)
            if found is not None:
                found.users += 1
                found.used_s = time.monotonic()
            return found

    def let_go(self, held: Loaded) -> None:
        with self._condition:
            held.users -= 1

    def want(self, reference: str) -> None:
        """Load a network as soon as possible."""
        with self._condition:
            if reference not in self._wanted and reference not in self._loaded:
                self._wanted.add(reference)
                self._condition.notify_all()

    def names(self) -> list[str]:
        return sorted(self._loaded)

    def refusals(self) -> list[str]:
        return sorted(self._refusals)

    def is_refused(self, reference: str) -> bool:
        return reference in self._refusals

    def rates(self) -> list[rates.Rate]:
        with self._condition:
            return [each.rate() for each in self._loaded.values() if each.curve.known]

    def ready(self) -> bool:
        """Whether every pinned network of this class is warm, or known not to load here."""
        return self._surveyed and all(
            each in self._loaded or each in self._refusals for each in tuple(self._pinned))

    def start(self) -> None:
        self._thread = threading.Thread(target=self._tend, name="headrace-catalogue", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Load nothing more; rates are saved."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        if self._thread is not None:
            self._thread.join(STOP_S)  # it may be in the middle of loading a large network
        if self._checker is not None:
            self._checker.join(0 if self._try != self._try_here else STOP_S)  # a child ends with this process

    def _tend(self) -> None:
        while not self._closed:
            try:
                for reference in self._due():
                    self._load(reference)
                self._check_new()
                if time.monotonic() >= self._survey_s:
                    self._survey()
            except Unavailable as error:
                _log.warning("database_unreachable", error=str(error))
            with self._condition:
                if not self._closed and not any(self._is_due(each) for each in self._wanted):
                    self._condition.wait(POLL_S)
        try:
            self._save_rates()
        except Unavailable as error:
            _log.warning("rates_not_saved", error=str(error))

    def _is_due(self, reference: str) -> bool:
        refusal = self._refusals.get(reference)
        return refusal is None or refusal.retry_s <= time.monotonic()

    def _due(self) -> list[str]:
        with self._condition:
            return [each for each in self._wanted if self._is_due(each)]

    def _check_new(self) -> None:
        if self._checker is not None and self._checker.is_alive():
            return
        with self._database.read() as tx:
            found = [each for each in networks.unchecked(tx) if self._hardware.name in each.hardware]
        due = [each for each in found if self._unchecked.get(each.digest, 0.0) <= time.monotonic()]
        if due:
            self._checker = threading.Thread(target=self._check, args=(due,), name="headrace-checker",
                                             daemon=True)
            self._checker.start()

    def _check(self, found: Sequence[Network]) -> None:
        try:
            self._check_each(found)
        except Unavailable as error:
            _log.warning("database_unreachable", error=str(error))

    def _check_each(self, found: Sequence[Network]) -> None:
        for network in found:
            if self._closed:
                return
            try:
                signature = self._inspect(network)
            except NetworkRejected as error:
                if self._closed:
                    return
                reason = str(error)
                self._database.write(lambda tx, n=network, r=reason: networks.reject(tx, n, r))  # type: ignore[misc]
                _log.warning("network_rejected", network=network.reference, reason=reason)
            except Exception as error:  # noqa: BLE001 - nothing against the network: another try or worker may do
                self._unchecked[network.digest] = time.monotonic() + RETRY_S[-1]
                _log.warning("network_check_failed", network=network.reference, reason=readable(error))
            else:
                if self._closed:
                    return
                self._database.write(lambda tx, n=network, s=signature: networks.accept(tx, n, s))  # type: ignore[misc]
                _log.info("network_accepted", network=network.reference)
                self._survey_s = 0.0  # it may be a pinned one
                with self._condition:
                    self._condition.notify_all()

    def _inspect(self, network: Network) -> dict[str, object]:
        folder = self._artifacts.folder_of(network)
        try:
            return self._try(network, folder)
        except HardwareMissing:
            # This worker's own start proved the hardware: a device that only one process may use.
            return self._try_here(network, folder)

    def _try_here(self, network: Network, folder: Path) -> dict[str, object]:
        with self._artifacts.opening(network):
            return trial.inspect(network, folder, self._hardware, self._open_engine)

    def _survey(self) -> None:
        with self._database.read() as tx:
            mine = {each.reference: each for each in networks.every(tx)
                    if self._hardware.name in each.hardware}
        self._pinned = {name for name, each in mine.items()
                        if each.state == networks.READY and each.manifest["pinned"]}
        for reference in self._pinned:
            self.want(reference)
        for reference, each in list(self._loaded.items()):
            found = mine.get(reference)
            if found is None or found.state != networks.READY or found.digest != each.digest:
                self._unload(each)
        self._save_rates()
        self._surveyed = True
        self._survey_s = time.monotonic() + SURVEY_S

    def _save_rates(self) -> None:
        learned = self.rates()
        if learned:
            self._database.write(lambda tx: rates.save(tx, self._hardware.name, learned), durable=False)

    def _load(self, reference: str) -> None:
        try:
            found = self._open(reference)
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001 - whatever keeps a network from loading is reported, not fatal
            before = self._refusals.get(reference)
            count = before.count + 1 if before else 1
            refusal = Refusal(readable(error), count,
                              time.monotonic() + RETRY_S[min(count, len(RETRY_S)) - 1])
            with self._condition:
                self._refusals[reference] = refusal
                if reference not in self._pinned:
                    self._wanted.discard(reference)
            _log.error("engine_refused", network=reference, reason=refusal.reason, count=count)
            self.refused(reference, refusal)
            return
        self._make_room(found)
        with self._condition:
            self._loaded[reference] = found
            self._refusals.pop(reference, None)
            self._wanted.discard(reference)
        profile = found.profile
        _log.info("engine_loaded", network=reference, batch_work=profile.max_work,
                  batch_items=profile.max_items)
        self.loaded(reference)

    def _open(self, reference: str) -> Loaded:
        name, _, version = reference.partition("@")
        with self._database.read() as tx:
            network = networks.get(tx, name, version)
            known = rates.known(tx, self._hardware.name, [reference]).get(reference)
        if network is None or network.signature is None:
            raise NetworkRejected(f"there is no checked network {reference}")
        folder = self._artifacts.folder_of(network)
        with self._artifacts.opening(network):
            engine = self._open_engine(folder / network.manifest["artifact"], self._hardware)
            try:
                task = KINDS[network.task].make(network.manifest, network.signature, folder)
                found = serving.loaded(network, engine, task)
                found.warm_up(known)
            except BaseException:
                engine.close()
                raise
        return found

    def _make_room(self, newcomer: Loaded) -> None:
        """Unload the least recently used networks that are neither pinned nor running."""
        while True:
            with self._condition:
                size_bytes = newcomer.size_bytes + sum(each.size_bytes for each in self._loaded.values())
                if len(self._loaded) < MAX_ENGINES and size_bytes <= self._memory_bytes:
                    return
                idle = [each for each in self._loaded.values() if not each.users and not each.pinned]
            if not idle:
                return
            self._unload(min(idle, key=lambda each: each.used_s))

    def _unload(self, found: Loaded) -> None:
        with self._condition:
            if found.users:
                return
            self._loaded.pop(found.reference, None)
        found.engine.close()
        _log.info("engine_unloaded", network=found.reference)
