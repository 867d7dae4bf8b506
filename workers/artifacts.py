"""Network files on this machine: copied from the blob store once, checked, and put in place by a rename."""

import contextlib
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from models.blobs import Blobs
from models.errors import EngineUnavailable, NetworkRejected
from models.network import Network

CHUNK_BYTES = 1 << 20
DEATHS = 3


class Artifacts:
    """A folder of network folders, named by the content of each. Several processes may share it."""

    def __init__(self, folder: Path, blobs: Blobs) -> None:
        self._folder = folder
        self._blobs = blobs

    def folder_of(self, network: Network) -> Path:
        """The folder with a network's files under their relative paths.

        Raises EngineUnavailable when a file is gone or damaged, BlobMissing when the store has lost it.
        """
        target = self._folder / _name(network)
        if target.is_dir():
            return target
        incoming = self._folder / f"incoming-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            for path, file in network.files.items():
                self._fetch(str(file["blob"]), _inside(incoming, path))
            self._settle(incoming, target)
        except OSError as error:
            raise EngineUnavailable(f"its files can't be copied here: {error.strerror}") from error
        finally:
            shutil.rmtree(incoming, ignore_errors=True)
        return target

    def _fetch(self, blob: str, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with self._blobs.open(blob) as source, path.open("xb") as target:
            while chunk := source.read(CHUNK_BYTES):
                digest.update(chunk)
                target.write(chunk)
        if f"sha256-{digest.hexdigest()}" != blob:
            raise EngineUnavailable(f"blob {blob} is damaged: its content has another checksum")

    @contextlib.contextmanager
    def opening(self, network: Network) -> Iterator[None]:
        """Around anything that may kill the process, so that it doesn't do so for ever.

        Raises NetworkRejected if the last DEATHS processes on this machine that tried have died of it.
        """
        name = _name(network)
        self._folder.mkdir(parents=True, exist_ok=True)
        dead = [mark for mark in self._folder.glob(f"{name}.opening-*") if not _alive(mark)]
        if len(dead) >= DEATHS:
            _clear(dead)
            raise NetworkRejected(f"{len(dead)} worker processes in a row died while loading it")
        mark = self._folder / f"{name}.opening-{os.getpid()}"
        mark.touch()
        try:
            yield
        finally:  # lived through it, whatever came out
            _clear([*dead, mark])

    @staticmethod
    def _settle(incoming: Path, target: Path) -> None:
        incoming.mkdir(parents=True, exist_ok=True)  # a network without files is still a folder
        with contextlib.suppress(OSError):
            incoming.rename(target)
        if not target.is_dir():  # else another process was first
            raise OSError(0, f"{target} can't be made")


def _name(network: Network) -> str:
    return hashlib.sha256(network.digest.encode()).hexdigest()[:32]


def _alive(mark: Path) -> bool:
    try:
        os.kill(int(mark.name.rsplit("-", 1)[1]), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, ValueError):
        return True
    return int(mark.name.rsplit("-", 1)[1]) != os.getpid()  # a number used again


def _clear(marks: Iterable[Path]) -> None:
    for mark in marks:
        mark.unlink(missing_ok=True)


def _inside(folder: Path, relative: str) -> Path:
    path = folder / relative
    if not path.resolve().is_relative_to(folder.resolve()):
        raise EngineUnavailable(f"file path {relative!r} leads out of the network's folder")
    return path
