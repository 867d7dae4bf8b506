"""Receiving a network: its manifest, then its files, streamed to blobs. All fits, or nothing is stored."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from api import uploads
from api.http import Request
from models import manifest as manifests
from models.blobs import Blobs, BlobWriter
from models.errors import Fault, InvalidRequest

MANIFEST = "manifest"
_OUTSIDE = re.compile(r"(^|/)\.\.(/|$)|^/|[\\\x00]")


@dataclass(frozen=True, slots=True)
class Upload:
    """A network as it was sent. `files`: relative path to `{blob, size}`; `digest` tells equal content."""

    manifest: Mapping[str, Any]
    files: Mapping[str, Mapping[str, Any]]
    digest: str


def receive(request: Request, blobs: Blobs, *, max_bytes: int, max_wasted_bytes: int) -> Upload:
    """Read and store what `POST /v1/models` carries.

    All faults are told at once: files that the manifest doesn't name, sent twice, leading outside, missing.
    After the first, at most `max_wasted_bytes` more are read. Raises InvalidRequest, PayloadTooLarge,
    UnsupportedMediaType or StorageUnavailable; then nothing is stored.
    """
    parts = uploads.parts(request, max_bytes=max_bytes)
    manifest = _manifest(next(parts, None))
    with ExitStack() as stack:
        reception = _Reception(stack, blobs, manifests.files(manifest), max_wasted_bytes)
        writers = reception.files(parts)
        names = {path: writer.commit() for path, writer in sorted(writers.items())}
        files = {path: {"blob": name, "size": writers[path].size} for path, name in names.items()}
    return Upload(manifest, files, digest(manifest, names))


def digest(manifest: Mapping[str, Any], blob_names: Mapping[str, str]) -> str:
    """Hex SHA-256 of the parsed manifest (so spacing and comments don't count) and the files' digests."""
    text = json.dumps({"manifest": manifest, "files": blob_names}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _manifest(part: uploads.Part | None) -> dict[str, Any]:
    if part is None or part.name != MANIFEST:
        found = "the form is empty" if part is None else f"the first part is `{part.name[:100]}`"
        detail = f"{found}: send network.yaml as the first part, named `{MANIFEST}`"
        raise InvalidRequest(detail, faults=(Fault(f"/{MANIFEST}", "required", detail),))
    try:
        return manifests.parse(part.read(manifests.MAX_BYTES))
    except InvalidRequest as error:
        raise InvalidRequest(error.detail, faults=tuple(
            Fault(f"/{MANIFEST}{fault.pointer}".rstrip("/"), fault.rule, fault.detail)
            for fault in error.faults)) from error


@dataclass
class _Reception:
    stack: ExitStack
    blobs: Blobs
    wanted: list[str]
    spare_bytes: int
    faults: list[Fault] = field(default_factory=list)

    def files(self, parts: Iterator[uploads.Part]) -> dict[str, BlobWriter]:
        writers: dict[str, BlobWriter] = {}
        for part in parts:
            path = self._path(part)
            if path is not None and path in writers:
                self._fault(path, "twice", "was sent twice: send each file once")
                path = None
            if path is None:
                self._skip(part)
                continue
            writer = writers[path] = self.stack.enter_context(self.blobs.writer())
            for chunk in part.chunks:
                writer.write(chunk)
        for path in self.wanted:
            if path not in writers:
                self._fault(path, "required",
                            "is named by the manifest but was not sent: add it as a part with this name")
        self._refuse()
        return writers

    def _path(self, part: uploads.Part) -> str | None:
        for name in (part.name, part.filename):
            if name is not None and name in self.wanted:
                return name
        name = part.name if part.filename is None or _OUTSIDE.search(part.name) else part.filename
        if _OUTSIDE.search(name):
            self._fault(name, "path", "must be relative, with forward slashes, and stay inside the folder")
        else:
            self._fault(name, "unexpected", "is not a file that the manifest names: leave it out, or list it "
                                            f"under `files` (named are {', '.join(self.wanted)})")
        return None

    def _skip(self, part: uploads.Part) -> None:
        for chunk in part.chunks:
            self.spare_bytes -= len(chunk)
            if self.spare_bytes < 0:
                self._refuse()

    def _fault(self, name: str, rule: str, detail: str) -> None:
        pointer = "/" + name[:200].replace("~", "~0").replace("/", "~1")
        self.faults.append(Fault(pointer, rule, f"{name[:200]!r} {detail}"))

    def _refuse(self) -> None:
        if self.faults:
            raise InvalidRequest("the files don't fit the manifest: " + "; ".join(
                fault.detail for fault in self.faults[:8]), faults=tuple(self.faults))
