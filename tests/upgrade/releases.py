"""Two releases installed side by side: the one before, from its commit, and this tree. Both borrow our packages."""

import contextlib
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from models import contract, database, ids, incarnation
from models.errors import SchemaUnfit, Unavailable
from tests import brokers, embedded, waiting

__all__ = ["SchemaUnfit", "database", "waiting"]

ROOT = Path(__file__).resolve().parents[2]
COMMIT = Path(__file__).with_name("previous.txt").read_text().strip()  # of the release before
START_S = 60.0
STOP_S = 60.0


def source_of_previous(folder: Path) -> Path:
    """Its files; the test is skipped where the checkout lacks them (a shallow clone, a source archive)."""
    archive = subprocess.run(["git", "-C", ROOT, "archive", "--format=tar", COMMIT], capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"this checkout lacks commit {COMMIT}: fetch the whole history to try an upgrade from it")
    source = folder / "source"
    source.mkdir(parents=True)
    subprocess.run(["tar", "-x", "-C", source], input=archive.stdout, check=True)
    return source


def install(source: Path, folder: Path) -> Path:
    """The `headrace` of an environment that holds the wheel of `source`; offline."""
    subprocess.run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir",
                    folder, source], check=True, cwd=folder)
    venv.create(folder / "environment", with_pip=False)
    python = folder / "environment" / "bin" / "python"
    (wheel,) = folder.glob("headrace-*.whl")
    subprocess.run([sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index",
                    wheel], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    # As a plain path entry: its own .pth files, and with them our editable install, are not read.
    (folder / "environment" / "lib" / version / "site-packages" / "borrowed.pth").write_text(
        sysconfig.get_path("purelib") + "\n")
    return python.with_name("headrace")


class Part:
    """One process of the service, of one release."""

    def __init__(self, headrace: Path, *arguments: str, log: Path, settings: dict[str, str]) -> None:
        self.incarnation = ids.new(ids.INCARNATION)
        self.log = log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [headrace, *arguments], cwd=log.parent, stdout=out, stderr=out, stdin=subprocess.DEVNULL,
                env=embedded.environment(**settings, incarnation=self.incarnation),
                preexec_fn=waiting.die_with_parent())  # noqa: PLW1509 (one C call)

    def check(self) -> None:
        assert self._process.poll() is None, self.log.read_text(errors="replace")[-3000:]

    def stop(self) -> None:
        self._process.terminate()
        assert self._process.wait(STOP_S) == 0, self.log.read_text(errors="replace")[-3000:]

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(STOP_S)


class Service:
    """API, housekeeping and one worker over one database and broker, each of the release last asked for."""

    def __init__(self, folder: Path, database_url: str, broker: brokers.Broker) -> None:
        self.folder = folder
        self.url = ""
        self.database_url = database_url
        self.broker = broker
        self.database = database.connect(database_url, pool_size=4)
        self._settings = {"data_dir": str(folder / "data"), "database_url": database_url, "broker_url": broker.url,
                          "lease_s": "20", "sweep_s": "0.5"}
        self._parts: dict[str, Part] = {}

    def command(self, headrace: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([headrace, *arguments], cwd=self.folder, capture_output=True, text=True, check=False,
                              timeout=START_S, env=embedded.environment(**self._settings, url=self.url))

    def replace(self, part: str, headrace: Path) -> None:
        """Start this part of that release, and when it is ready stop the one that ran before."""
        arguments: dict[str, tuple[str, ...]] = {"worker": ("--hardware", "cpu"), "housekeep": (), "api": ()}
        before = self._parts.get(part)
        settings = dict(self._settings)
        if part == "api":
            from cli import parts
            settings["port"] = str(parts.free_port("127.0.0.1"))
        fresh = Part(headrace, part, *arguments[part], log=self.folder / f"{part}.log", settings=settings)
        self._parts[part] = fresh
        try:
            if part == "api":
                url = f"http://127.0.0.1:{settings['port']}"
                waiting.until(lambda: self._checked(fresh) and _answers(url), START_S, what="the API")
                self.url = url
            else:
                waiting.until(lambda: self._checked(fresh) and self._ready(fresh), START_S, what=part)
            if before is not None:
                before.stop()
        except BaseException:
            if before is not None:
                before.end()
            raise

    @staticmethod
    def _checked(part: Part) -> bool:
        part.check()
        return True

    def _ready(self, part: Part) -> bool:
        with contextlib.suppress(Unavailable), self.database.read() as tx:
            return any(each.id == part.incarnation and each.ready for each in incarnation.live(tx))
        return False

    def end(self) -> None:
        for part in self._parts.values():
            part.end()
        self.database.close()


def _answers(url: str) -> bool:
    import http.client
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=5)
    try:
        connection.request("GET", "/livez")
        return connection.getresponse().status == http.client.OK
    except OSError:
        return False
    finally:
        connection.close()


@contextlib.contextmanager
def service(folder: Path, database_url: str, broker: brokers.Broker) -> Iterator[Service]:
    built = Service(folder, database_url, broker)
    try:
        yield built
    finally:
        built.end()


def odd_tickets(broker: brokers.Broker, job_ids: list[str]) -> None:
    """Tickets as later releases might write them, for jobs that exist: another shape, another task's name."""
    queue = contract.queue_name("cpu", contract.INTERACTIVE)
    ticket = contract.Ticket("deep@1", contract.INTERACTIVE,
                             [contract.Entry(name, 1.0, 5, None, "default") for name in job_ids])
    plain = contract.encode_ticket(ticket, queue)
    with broker.client() as client:
        client.lpush(queue, plain.replace(contract.INFER_TASK.encode(), b"infer.v9"))


