"""`headrace up`: the whole service on this machine, in the foreground, as child processes."""

import fcntl
import http.client
import os
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
import structlog

from cli import broker, codes, console, logs, parts, postgres
from cli.supervisor import Life, Part, Stopped, Supervisor
from cli.undertaker import Undertaker
from models import claim, database, incarnation
from models import settings as settings_module
from models.errors import SettingsInvalid, Unavailable
from models.settings import Settings

WORKERS, SERVICES, STORES = 0, 1, 2  # the order in which they are stopped
DRAIN_S = {WORKERS: 60.0, SERVICES: 15.0, STORES: 15.0}
STORES_READY_S = 60.0
SLOW_START_S = 30.0
LOCK_PATIENCE_S = 5.0  # children of a killed `up` take a moment to end
LOCK_RETRY_S = 0.05
PROBE_S = 2.0
_WORKER = re.compile(r"([\w.-]+)(?:=(\d{1,3}))?\Z", re.ASCII)
_log = structlog.get_logger()


def _workers(_ctx: click.Context, _param: click.Parameter, value: Sequence[str]) -> dict[str, int]:
    out: dict[str, int] = {}
    for text in value:
        match = _WORKER.match(text)
        if match is None:
            raise click.BadParameter(f"{text!r}: say CLASS or CLASS=COUNT, such as cpu=2")
        out[match[1]] = out.get(match[1], 0) + int(match[2] or 1)
    return out


@click.command()
@click.option("--host", help="Address to listen on.  [127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; 0: any free one.  [8080]")
@click.option("--data", type=click.Path(path_type=Path, file_okay=False), help="Data folder.  [.headrace]")
@click.option("--worker", "workers", multiple=True, default=("cpu=1",), callback=_workers, show_default=True,
              metavar="CLASS=COUNT", help="Workers of a hardware class; may be given several times.")
@click.option("--database", "kind", type=click.Choice(["sqlite", "postgres"]),
              help="Embedded database.  [sqlite, or HEADRACE_DATABASE_URL]")
@click.pass_context
def up(ctx: click.Context, *, host: str | None, port: int | None, data: Path | None, workers: dict[str, int],
       kind: str | None) -> None:
    """Run the whole service here, in the foreground.

    Starts a broker, a database, the API, workers and housekeeping as child processes, and starts again what
    dies. Ctrl-C lets workers finish their batch and ends everything.
    """
    settings = settings_module.load(host=host, port=port, data_dir=data)
    if kind is not None:
        settings = replace(settings, database_url="")
    parts.check_exposure(settings)
    for hardware in workers:
        parts.check_class(settings, hardware)
    folder = _folder(settings)
    out = console.Console(settings.log_format)
    os.environ[logs.PROCESS] = "up"
    logs.configure(settings.log_format, "up", stream=console.Stream(out, "up"))
    lock = _lock(folder)
    if settings.port == 0:
        settings = replace(settings, port=parts.free_port(settings.host))
    parts.check_free(settings.host, settings.port)
    ctx.exit(Stack(replace(settings, data_dir=folder), workers, kind, lock, out).run())


def _folder(settings: Settings) -> Path:
    folder = settings.data_dir.resolve()
    if re.search(r"[?#%]", str(folder)):
        raise SettingsInvalid(f"the data folder's path must not hold ?, # or %: {folder}")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsInvalid(f"can't make the data folder {folder}: {error.strerror}") from error
    return folder


def _lock(folder: Path) -> int:
    """The lock of a data folder, held as long as this process or a child of it lives.

    Raises SettingsInvalid if another `up` has it.
    """
    try:
        lock = os.open(folder / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SettingsInvalid(f"can't write in the data folder {folder}: {error.strerror}") from error
    end = time.monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 32, 0).decode(errors="replace").strip()
            if _alive(holder) or time.monotonic() > end:
                raise SettingsInvalid(f"another `headrace up` (process {holder}) runs on {folder}: stop it, "
                                      "or choose another folder with --data") from None
            time.sleep(LOCK_RETRY_S)
        else:
            os.ftruncate(lock, 0)
            os.pwrite(lock, str(os.getpid()).encode(), 0)
            return lock


def _alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


class Stack:
    """The parts of one embedded service, from first start to last stop."""

    def __init__(self, settings: Settings, workers: dict[str, int], kind: str | None, lock: int,
                 out: console.Console) -> None:
        self.settings = settings
        self.workers = workers
        self.kind = kind
        self.lock = lock
        self.out = out
        self.url = f"http://{_bracketed(settings.host)}:{settings.port}"

    def run(self) -> int:
        """Start everything, look after it until a signal, stop everything; the exit code."""
        stores = self._stores()
        self.database = database.connect(self.settings.database, pool_size=4)
        self.undertaker = Undertaker(self.database, self.settings.data_dir / "incarnations.json",
                                     max_attempts=self.settings.max_attempts)
        self.supervisor = Supervisor(self.out, environ=self._environ(),
                                     kept_fds=(self.lock,), born=self.undertaker.born, dead=self._dead)
        self.supervisor.take_signals()
        code = codes.DONE
        try:
            self._start_stores(stores)
            self._start_services()
            code = self._look_after()
        except Stopped:
            pass
        finally:
            self._stop()
        return code

    def _stores(self) -> list[Part]:
        """The parts that others need first; fills in the URLs that come from them."""
        out = []
        if not self.settings.broker_url:
            path = broker.make_folder(self.settings.data_dir) / "broker.sock"
            command = parts.leashed(*broker.command(broker.binary(), path))
            out.append(Part("broker", command, STORES, lambda _: broker.answers(path), final=frozenset(),
                            noise=broker.NOISE))
            self.settings = replace(self.settings, broker_url=broker.url(path))
        if self.kind == "postgres":
            server = postgres.prepare(self.settings.data_dir)
            out.append(Part("postgres", tuple(server.command()), STORES, lambda _: server.answers(),
                            stop_signal=postgres.FAST_STOP, final=frozenset(), noise=postgres.NOISE))
            self.settings = replace(self.settings, database_url=server.url)
        return out

    def _environ(self) -> dict[str, str]:
        settings = self.settings
        return dict(os.environ) | {
            "HEADRACE_DATA_DIR": str(settings.data_dir), "HEADRACE_DATABASE_URL": settings.database,
            "HEADRACE_BROKER_URL": settings.broker, "HEADRACE_HOST": settings.host,
            "HEADRACE_PORT": str(settings.port), "HEADRACE_URL": self.url, "PYTHONUNBUFFERED": "1",
        }

    def _start_stores(self, stores: list[Part]) -> None:
        for part in stores:
            self.supervisor.start(part)
        names = [part.name for part in stores]
        if not self.supervisor.wait(lambda: self.supervisor.ready(*names), STORES_READY_S):
            missing = ", ".join(self.supervisor.pending())
            raise Unavailable(f"{missing} did not start within {STORES_READY_S:.0f} s")
        from migrations import upgrade
        upgrade.upgrade(self.settings.database)
        self.undertaker.start()

    def _start_services(self) -> None:
        start = self.supervisor.start
        start(Part("api", parts.own_command("api"), SERVICES, lambda _: self._api_answers()))
        start(Part("housekeep", parts.own_command("housekeep"), SERVICES, self._lives, incarnated=True))
        for hardware, count in self.workers.items():
            for number in range(1, count + 1):
                command = parts.own_command("worker", "--hardware", hardware)
                start(Part(f"{hardware}-{number}", command, WORKERS, self._warm, incarnated=True,
                           worked=self._worked))

    def _look_after(self) -> int:
        supervisor = self.supervisor
        if not supervisor.wait(lambda: not supervisor.pending(), SLOW_START_S):
            _log.warning("still starting", action="start_slow", parts=supervisor.pending())
            supervisor.wait(lambda: not supervisor.pending())
        if "api" not in supervisor.given_up():
            self._announce()
        supervisor.wait(lambda: "api" in supervisor.given_up())
        return supervisor.given_up()["api"]

    def _announce(self) -> None:
        gone = self.supervisor.given_up()
        working = sum(self.workers.values()) - sum(name not in {"api", "housekeep"} for name in gone)
        note = f"{working} worker{'' if working == 1 else 's'}"
        if gone:
            note += f"; not running: {', '.join(sorted(gone))}, see above"
        if not working:
            note += "; jobs are taken and wait"
        where = self.settings.data_dir
        if self.kind == "postgres":
            print("other commands reach its database with "
                  f"HEADRACE_DATABASE_URL='{self.settings.database}'", flush=True)
        print(f"headrace is ready at {self.url} ({note}; API at /docs; data in {where}; Ctrl-C stops it)",
              flush=True)

    def _stop(self) -> None:
        for stage in (WORKERS, SERVICES):
            self.supervisor.drain(stage, DRAIN_S[stage])
        if not self.undertaker.stop(DRAIN_S[STORES]):
            _log.warning("the database is away: the next start ends what died", action="undertaker_left")
        self.database.close()
        self.supervisor.drain(STORES, DRAIN_S[STORES])

    def _dead(self, identity: str, code: int, condemned: bool) -> None:
        # Killed by us because it would not stop: no job is to blame, so nothing is counted.
        quiet = code == 0 or condemned
        self.undertaker.end(identity, incarnation.EXITED if quiet else incarnation.KILLED)

    def _api_answers(self) -> bool:
        connection = http.client.HTTPConnection(self.settings.host, self.settings.port, timeout=PROBE_S)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _find(self, identity: str) -> incarnation.Incarnation | None:
        try:
            with self.database.read() as tx:
                return next((each for each in incarnation.live(tx) if each.id == identity), None)
        except Unavailable:
            return None

    def _lives(self, life: Life) -> bool:
        return self._find(life.incarnation) is not None

    def _warm(self, life: Life) -> bool:
        found = self._find(life.incarnation)
        return found is not None and found.ready

    def _worked(self, life: Life) -> bool:
        try:
            with self.database.read() as tx:
                return claim.runs(tx, life.incarnation) or self._warm(life)
        except Unavailable:
            return False


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
