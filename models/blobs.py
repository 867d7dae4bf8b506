"""Blobs: bytes too large for a row, and network files. A folder of files named for their content.

A blob is written under a temporary name, synced and renamed, so it is there whole or not at all. Which rows
refer to blobs is written down here (`referenced`), so that what nobody refers to can be collected.
"""

import errno
import fcntl
import hashlib
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from models import network
from models.database import Database, Statement, Transaction
from models.errors import HeadraceError, Unavailable

_NAME = re.compile(r"sha256-[0-9a-f]{64}\Z")
_TEMPORARY = "incoming"
_LOCK = "lock"
COPY_BYTES = 1 << 20
TEMPORARY_S = 86_400.0  # an upload may take hours, so what a killed process left unfinished stays for a day
BATCH = 500


class BlobMissing(HeadraceError):
    """A stored file is gone from the blob store."""

    code = "blob_missing"


class StorageUnavailable(Unavailable):
    """The blob store cannot be written; nothing was stored."""


class BlobWriter:
    """One blob being written: `write` bytes, then `commit`. Without it, leaving the context leaves nothing.

    `size` counts the bytes so far. Raises StorageUnavailable when the disk is full or failing.
    """

    def __init__(self, blobs: "Blobs") -> None:
        self._blobs = blobs
        self._hash = hashlib.sha256()
        self._path = blobs.folder / _TEMPORARY / secrets.token_hex(16)
        self.size = 0
        with _storage():
            _make_folder(self._path.parent)
            self._file: BinaryIO = self._path.open("xb", buffering=0)

    @property
    def name(self) -> str:
        """The name that what was written so far would have."""
        return f"sha256-{self._hash.hexdigest()}"

    def write(self, data: bytes | bytearray | memoryview) -> int:
        view = memoryview(data).cast("B")
        self._hash.update(view)
        with _storage():
            written = 0
            while written < len(view):  # a raw write may be short, for instance just before the disk is full
                written += self._file.write(view[written:]) or 0
        self.size += len(view)
        return len(view)

    def commit(self) -> str:
        """Put the blob in its place, on the disk for good; its name."""
        with _storage():
            os.fsync(self._file.fileno())
            self._blobs.adopt(self._path, self.name)
        self.close()
        return self.name

    def close(self) -> None:
        """Drop what was not committed. Harmless after `commit`."""
        self._file.close()
        self._path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()


class Blobs:
    """The blob store in a folder, made on first write. Names are `sha256-<64 hex>`; no other exists."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, data: bytes) -> str:
        """Store bytes; their name. The same content twice is one blob."""
        name = f"sha256-{hashlib.sha256(data).hexdigest()}"
        if self.keep(name):
            return name
        with self.writer() as writer:
            writer.write(data)
            return writer.commit()

    def writer(self) -> BlobWriter:
        """Store a stream piece by piece: `with blobs.writer() as w: w.write(…); name = w.commit()`."""
        return BlobWriter(self)

    def keep(self, name: str) -> bool:
        """Start a blob's age anew, so that it isn't collected before a row refers to it; if it exists."""
        if not self.folder.exists():
            return False
        with _storage(), self._locked(fcntl.LOCK_SH):
            try:
                os.utime(self.path(name))
            except FileNotFoundError:
                return False
        return True

    def adopt(self, temporary: Path, name: str) -> None:
        """Give a synced file of this folder its place."""
        path = self.path(name)
        _make_folder(path.parent)
        with self._locked(fcntl.LOCK_SH):
            try:
                os.utime(path)
            except FileNotFoundError:
                temporary.rename(path)
        _sync_folder(path.parent)

    def path(self, name: str) -> Path:
        """Where a blob lies. Raises BlobMissing for any other name, so that no name leads elsewhere."""
        if not _NAME.match(name):
            raise BlobMissing(f"{name[:100]!r} is not a blob's name")
        return self.folder / name[7:9] / name

    def open(self, name: str) -> BinaryIO:
        try:
            return self.path(name).open("rb")
        except FileNotFoundError as error:
            raise BlobMissing(f"blob {name} is gone") from error

    def read(self, name: str) -> bytes:
        with self.open(name) as file:
            return file.read()

    def size(self, name: str) -> int:
        """Bytes of a blob."""
        try:
            return self.path(name).stat().st_size
        except FileNotFoundError as error:
            raise BlobMissing(f"blob {name} is gone") from error

    def exists(self, name: str) -> bool:
        return _NAME.match(name) is not None and self.path(name).exists()

    def delete(self, name: str) -> None:
        self.path(name).unlink(missing_ok=True)

    def older_than(self, age_s: float) -> Iterator[str]:
        """Names of blobs that were stored, or last kept, longer ago than that."""
        limit = self._now() - age_s
        for folder in sorted(self.folder.glob("[0-9a-f][0-9a-f]")):
            with os.scandir(folder) as entries:
                for entry in entries:
                    if _NAME.match(entry.name) and _modified(Path(entry.path), default=limit) < limit:
                        yield entry.name

    def discard(self, names: Iterable[str], older_than_s: float) -> int:
        """Delete those of these blobs that are still that old; how many. One kept meanwhile stays."""
        limit, count = self._now() - older_than_s, 0
        for name in names:
            path = self.path(name)
            with self._locked(fcntl.LOCK_EX):
                if _modified(path, default=limit) < limit:
                    path.unlink(missing_ok=True)
                    count += 1
        return count

    def discard_unfinished(self, older_than_s: float = TEMPORARY_S) -> int:
        """Delete what killed processes left half written; how many."""
        limit, count = self._now() - older_than_s, 0
        for path in (self.folder / _TEMPORARY).glob("*"):
            if _modified(path, default=limit) < limit:
                path.unlink(missing_ok=True)
                count += 1
        return count

    def _now(self) -> float:
        # The clock that gives files their times, which need not be this host's.
        with self._locked(fcntl.LOCK_SH) as descriptor:
            os.utime(descriptor)
            return os.fstat(descriptor).st_mtime

    @contextmanager
    def _locked(self, kind: int) -> Iterator[int]:
        # Between "kept" and "deleted" there must be an order, across processes: else a blob that was just
        # found to exist already would be collected before its row is committed.
        _make_folder(self.folder)
        descriptor = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, kind)
            yield descriptor
        finally:
            os.close(descriptor)


@contextmanager
def _storage() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, FileExistsError | FileNotFoundError):
            raise
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise StorageUnavailable(
            "the blob store's disk is full; nothing was stored" if full
            else f"the blob store cannot be written ({error.strerror}); nothing was stored") from error


def _modified(path: Path, *, default: float) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return default


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_REFERENCED = (Statement("SELECT DISTINCT blob FROM inputs WHERE blob {in names}"),
               Statement("SELECT DISTINCT blob FROM results WHERE blob {in names}"))


def referenced(tx: Transaction, names: Sequence[str]) -> set[str]:
    """Those of these blobs that a row refers to. Whoever adds a column that holds blob names adds it here."""
    found = {row[0] for statement in _REFERENCED for row in tx.all(statement, names=names)}
    for each in network.every(tx):
        if each.state != network.RETIRED:
            found.update(file["blob"] for file in each.files.values())
    return found & set(names)


def collect(database: Database, blobs: Blobs, older_than_s: float = 3600.0) -> int:
    """Delete blobs older than that which no row refers to, and stale unfinished ones; how many."""
    if not blobs.folder.exists():
        return 0
    count, batch = 0, list[str]()

    def flush() -> int:
        with database.read() as tx:
            used = referenced(tx, batch)
        return blobs.discard([name for name in batch if name not in used], older_than_s)

    for name in blobs.older_than(older_than_s):
        batch.append(name)
        if len(batch) == BATCH:
            count += flush()
            batch.clear()
    if batch:
        count += flush()
    return count + blobs.discard_unfinished(max(TEMPORARY_S, older_than_s))
