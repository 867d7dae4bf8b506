"""Network files on this machine: copied from the blob store once, checked, and put in place by a rename."""

import contextlib
import hashlib
import os
import secrets
import shutil
from pathlib import Path

from models.blobs import Blobs
from models.errors import EngineUnavailable
from models.network import Network

CHUNK_BYTES = 1 << 20


class Artifacts:
    """A folder of network folders, named by the content of each. Several processes may share it."""

    def __init__(self, folder: Path, blobs: Blobs) -> None:
        self._folder = folder
        self._blobs = blobs

    def folder_of(self, network: Network) -> Path:
        """The folder with a network's files under their relative paths.

        Raises EngineUnavailable when a file is gone or damaged, BlobMissing when the store has lost it.
        """
        name = hashlib.sha256(network.digest.encode()).hexdigest()[:32]
        target = self._folder / name
        if target.is_dir():
            return target
        incoming = self._folder / f"incoming-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            for path, file in network.files.items():
                self._fetch(str(file["blob"]), _inside(incoming, path))
            self._settle(incoming, target)
        except OSError as error:
            raise EngineUnavailable(f"its files can't be copied to {self._folder}: {error.strerror}") from error
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

    @staticmethod
    def _settle(incoming: Path, target: Path) -> None:
        incoming.mkdir(parents=True, exist_ok=True)  # a network without files is still a folder
        with contextlib.suppress(OSError):
            incoming.rename(target)
        if not target.is_dir():  # else another process was first
            raise OSError(0, f"{target} can't be made")


def _inside(folder: Path, relative: str) -> Path:
    path = folder / relative
    if not path.resolve().is_relative_to(folder.resolve()):
        raise EngineUnavailable(f"file path {relative!r} leads out of the network's folder")
    return path
