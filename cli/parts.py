"""One part of the service in this process: `headrace api`, `headrace worker`, `headrace housekeep`."""

import importlib.metadata
import importlib.util
import ipaddress
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import click
import structlog

from cli import leash, logs, watchdog
from models import contract
from models import settings as settings_module
from models.errors import HardwareMissing, SettingsInvalid, Unavailable
from models.settings import Settings

# Heavy packages that an extra brings; without them a worker can't run.
ENGINE_PACKAGES = ("numpy", "onnxruntime", "PIL", "tokenizers")
STOP_API_S = 5
PORT_PATIENCE_S = 3.0  # one that was killed a moment ago may still hold the port
PORT_RETRY_S = 0.05


@click.command()
@click.option("--host", help="Address to listen on.  [127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on.  [8080]")
def api(host: str | None, port: int | None) -> None:
    """Run the HTTP API."""
    watchdog.guard()
    settings = settings_module.load(host=host, port=port)
    check_exposure(settings)
    address = check_free(settings.host, settings.port, patience_s=PORT_PATIENCE_S)
    os.environ["HEADRACE_HOST"], os.environ["HEADRACE_PORT"] = settings.host, str(settings.port)
    logs.configure(settings.log_format, "api")
    check_schema(settings)
    _serve(address, settings.port)


def _serve(address: str, port: int) -> None:
    import granian
    from granian.constants import HTTPModes, Interfaces
    from granian.log import LogLevels

    from api import wsgi

    server: Any = granian.Granian(
        "api.wsgi:build", address, port, interface=Interfaces.WSGI, workers=1, http=HTTPModes.http1,
        websockets=False, blocking_threads=wsgi.BLOCKING_THREADS, backlog=wsgi.BACKPRESSURE,
        backpressure=wsgi.BACKPRESSURE, workers_kill_timeout=STOP_API_S, log_level=LogLevels.error,
        log_access=False, log_dictconfig=logs.granian_config())
    # A loader of our own: granian's would put the current folder first on the path, and the serving process
    # is a fork, where the thread of the watchdog is gone.
    server.serve(target_loader=_load, wrap_loader=False)


def _load() -> Any:
    watchdog.follow_parent()
    from api import wsgi
    return wsgi.build()


@click.command()
@click.option("--hardware", required=True, metavar="CLASS", help="Hardware class: cpu, cuda or your own.")
@click.option("--lanes", default=",".join(contract.LANES), show_default=True, help="Lanes to take work from.")
@click.pass_context
def worker(ctx: click.Context, hardware: str, lanes: str) -> None:
    """Run a worker of one hardware class."""
    watchdog.guard()
    settings = settings_module.load()
    chosen = tuple(lane.strip() for lane in lanes.split(",") if lane.strip())
    unknown = [lane for lane in chosen if lane not in contract.LANES]
    if unknown or not chosen:
        raise click.BadParameter(f"choose among {', '.join(contract.LANES)}", param_hint="--lanes")
    check_class(settings, hardware)
    check_engine()
    logs.configure(settings.log_format, f"worker-{hardware}")
    check_schema(settings)
    from workers import process
    ctx.exit(process.run_worker(settings, hardware, chosen))


@click.command()
@click.pass_context
def housekeep(ctx: click.Context) -> None:
    """Run housekeeping: feed tickets, sweep, deliver webhooks."""
    watchdog.guard()
    settings = settings_module.load()
    logs.configure(settings.log_format, "housekeep")
    check_schema(settings)
    from workers.housekeeping import process
    ctx.exit(process.run_housekeeping(settings))


def check_class(settings: Settings, hardware: str) -> None:
    """Raise SettingsInvalid unless the hardware class is known."""
    known = settings.classes()
    if hardware not in known:
        raise SettingsInvalid(f"there is no hardware class {hardware!r}: known are {', '.join(sorted(known))}"
                              "; add it to the TOML file that HEADRACE_HARDWARE names")


def check_schema(settings: Settings) -> None:
    """Raise SchemaUnfit, with the command to run, if the database isn't one that this version can work on.

    One that is out of reach is not waited for: every part starts without it.
    """
    from models import database, release
    connected = database.connect(settings.database, pool_size=1)
    try:
        release.require_fit(connected)
    except Unavailable as error:
        structlog.get_logger().warning("database_unavailable", detail=str(error))
    finally:
        connected.close()


def missing_packages() -> list[str]:
    """Which of the engine's packages aren't installed."""
    return [name for name in ENGINE_PACKAGES if importlib.util.find_spec(name) is None]


def engine_wheels() -> list[str]:
    """The installed distributions of ONNX Runtime; two of them overwrite each other's files."""
    names = ("onnxruntime", "onnxruntime-gpu")
    return [name for name in names if any(True for _ in importlib.metadata.distributions(name=name))]


def check_engine() -> None:
    """Raise HardwareMissing, with the fix, if this install has no engine."""
    missing = missing_packages()
    if missing:
        raise HardwareMissing(f"this install has no engine ({', '.join(missing)} missing): pip install "
                              "'headrace[cpu]', or 'headrace[gpu]' on a machine with an NVIDIA GPU")


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(settings: Settings) -> None:
    """Raise SettingsInvalid if anybody on the network could use the service without a key."""
    if settings.auth == "off" and not is_loopback(settings.host):
        raise SettingsInvalid(
            f"HEADRACE_AUTH is off, so only this machine may reach the service, but --host is {settings.host}"
            ": set HEADRACE_AUTH=keys and make a key with `headrace keys create`, or listen on 127.0.0.1")


def check_free(host: str, port: int, *, patience_s: float = 0.0) -> str:
    """The host as a numeric address. Raises SettingsInvalid if it isn't ours or the port stays taken."""
    end = time.monotonic() + patience_s
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise SettingsInvalid(f"--host {host}: {error.strerror}") from error
    while True:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # Connections that were closed a moment ago don't hold the port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(place)
            except OSError as error:
                if time.monotonic() < end:
                    time.sleep(PORT_RETRY_S)
                    continue
                raise SettingsInvalid(f"can't listen on {host}:{port}: {error.strerror}; stop what listens "
                                      "there, or choose another --port") from error
            return str(place[0])


def free_port(host: str) -> int:
    """A port that is free now."""
    family, _, _, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind(place)
        return int(probe.getsockname()[1])


def own_command(*arguments: str) -> tuple[str, ...]:
    """The command line of a part of ours; the current folder, with perhaps another's `models`, stays out."""
    return (sys.executable, "-P", str(Path(__file__).with_name("main.py")), *arguments)


def leashed(*program: str, user: str | None = None, orphan_signal: int = signal.SIGKILL) -> tuple[str, ...]:
    """The command line of a foreign program that ends with its supervisor. `user`: whom it runs as."""
    options = ("--signal", str(int(orphan_signal)), *(() if user is None else ("--user", user)))
    return (sys.executable, "-I", "-S", leash.__file__, *options, "--", *program)
