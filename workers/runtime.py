"""The parts of one worker put together, and the bootstep that starts and stops them with Celery's own."""

import os
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from celery import bootsteps
from celery.concurrency.thread import TaskPool
from celery.exceptions import ImproperlyConfigured
from celery.worker import state

from models import contract, database, ids
from models.blobs import Blobs
from models.errors import SettingsInvalid, Unavailable
from models.settings import Settings
from workers import catalogue, engine, serving, trial
from workers.artifacts import Artifacts
from workers.buffer import Buffer
from workers.executor import Executor
from workers.farewell import Farewell
from workers.lease import Lease
from workers.settling import Settler
from workers.strategy import Intake

EXIT_LOST = 1  # the incarnation was ended under this process: a supervisor starts a new one

_log = structlog.get_logger("headrace.worker")


class Runtime:
    """Everything beside Celery in a worker process. Raises HardwareMissing or EngineUnavailable when made."""

    def __init__(self, settings: Settings, hardware: str, lanes: tuple[str, ...]) -> None:
        classes = settings.classes()
        if hardware not in classes:
            raise SettingsInvalid(f"there is no hardware class {hardware!r}; "
                                  f"known are {', '.join(sorted(classes))}")
        engine.available(classes[hardware])
        self._settings = settings
        self.incarnation = settings.incarnation or ids.new(ids.INCARNATION)
        self._database = database.connect(settings.database, synchronous=settings.sqlite_synchronous,
                                          pool_size=4)
        blobs = Blobs(settings.blobs)
        self._lease = Lease(self._database, self.incarnation, hardware=hardware, lanes=lanes,
                            lease_s=settings.lease_s)
        tried = trial.Trial(classes[hardware], limit_s=settings.check_s,
                            limit_bytes=serving.memory_bytes())
        self._catalogue = catalogue.Catalogue(
            self._database, Artifacts(settings.data_dir / "cache", blobs), classes[hardware], inspect=tried)
        self._buffer = Buffer(profile_of=self._catalogue.profile, want=self._catalogue.want,
                              refused=self._catalogue.is_refused, may_claim=self._lease.held,
                              now_ms=self._lease.now_ms)
        self.intake = Intake(self._buffer.offer, self._buffer.forget, self._buffer.hungry)
        settler = Settler(self._database, blobs, incarnation=self.incarnation,
                          max_inline_bytes=settings.max_inline_bytes)
        self._executor = Executor(
            database=self._database, blobs=blobs, buffer=self._buffer, intake=self.intake,
            catalogue=self._catalogue, settler=settler, incarnation=self.incarnation, hardware=hardware,
            broker=settings.broker)
        self._catalogue.loaded = self._loaded
        self._catalogue.refused = self._executor.refused

    def start(self, *, go_on: Callable[[], None], lost: Callable[[], None]) -> None:
        """Register and begin. `go_on` raises to give up while the database is away.

        `lost` is called, in another thread, when somebody ended this incarnation.
        """
        self._lease.begin(go_on)
        self._executor.start()
        self._catalogue.start()
        self._lease.start(holding=self.holding, ready=self._catalogue.ready, renewed=self._buffer.resume,
                          lost=lost)

    def stop(self) -> None:
        """What runs is settled, all else is given back, the incarnation is ended."""
        self._executor.stop(held=not self._lease.ended)
        self._catalogue.stop()
        self._lease.stop()
        try:
            self._lease.end(self._settings.max_attempts)
        except Unavailable as error:
            _log.warning("incarnation_not_ended", error=str(error))  # a supervisor, or the sweep, will do it
        self._database.close()

    def holding(self) -> Mapping[str, Any]:
        """What the heartbeat reports."""
        return {
            "networks": self._catalogue.names(), "refused": self._catalogue.refusals(),
            "buffered": len(self._buffer), "inflight": len(self._executor.inflight), "pid": os.getpid(),
            "rss_mb": _rss_mb(), "pace": round(self._executor.pace.value, 3),
            "rates": {each.network: {"overhead_s": each.overhead_s, "per_work_s": each.per_work_s,
                                     "batch_work": each.batch_work, "batch_items": each.batch_items}
                      for each in self._catalogue.rates()},
        }

    def _loaded(self, network: str) -> None:
        self._executor.loaded(network)
        self._lease.poke()


def _rss_mb() -> float:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - a hot path, once a second
            pages = int(file.read().split()[1])
    except OSError:
        return 0.0
    return round(pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20), 1)


def step(settings: Settings, adopt: Callable[[Runtime], None]) -> type[bootsteps.StartStopStep]:
    """A bootstep of Celery's worker that runs a Runtime for the queues which the worker was given."""

    class RuntimeStep(bootsteps.StartStopStep):  # type: ignore[misc]
        """Started before the consumer, stopped after it."""

        requires = ("celery.worker.components:Pool",)
        label = "headrace"

        def create(self, worker: Any) -> None:
            if worker.pool_cls is not TaskPool:
                raise ImproperlyConfigured(
                    "Headrace serves one device from one process: start it with `headrace worker`, or with "
                    "`--pool threads --concurrency 1`. Prefork is refused: an engine (CUDA above all) "
                    "that was opened before a fork breaks after it, and each child would load every network.")
            hardware, lanes = _queues(worker)
            self._runtime = Runtime(settings, hardware, lanes)
            adopt(self._runtime)

            self._farewell = Farewell(self._runtime.stop)

        def start(self, worker: Any) -> None:
            celerys = signal.getsignal(signal.SIGTERM)

            def warm(number: int, frame: Any) -> None:
                self._farewell.begin()
                if callable(celerys):
                    celerys(number, frame)

            def lost() -> None:
                state.should_stop = EXIT_LOST
                self._farewell.begin(EXIT_LOST)
                if worker.hub is not None:
                    worker.hub.call_soon(lambda: None)

            self._runtime.start(go_on=state.maybe_shutdown, lost=lost)
            # Celery restarts itself on SIGHUP and fails on Ctrl-C; here both end the worker as SIGTERM does.
            if threading.current_thread() is threading.main_thread():
                for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                    signal.signal(each, warm)

        def close(self, _worker: Any) -> None:
            # The first thing of all on the way down, however it began: `control shutdown` gives no signal.
            self._farewell.begin()
            self._farewell.wait()

        def stop(self, _worker: Any) -> None:
            self._runtime.intake.close()

        terminate = stop

    return RuntimeStep


def _queues(worker: Any) -> tuple[str, tuple[str, ...]]:
    names = [name.split(".") for name in worker.app.amqp.queues.consume_from]
    ours = [parts for parts in names
            if len(parts) == 3 and parts[0] == "infer" and parts[2] in contract.LANES]
    if len({parts[1] for parts in ours}) != 1 or len(ours) != len(names):
        raise ImproperlyConfigured("a worker serves one hardware class: use `headrace worker --hardware "
                                   "CLASS`, or -Q infer.CLASS.interactive,infer.CLASS.bulk")
    return ours[0][1], tuple(parts[2] for parts in ours)
