"""A network's folder as one multipart body, streamed from disk: artifacts may be larger than memory."""

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

CHUNK_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the body: its field name (for a file its path in the folder) and where its bytes are."""

    name: str
    source: bytes | Path
    content_type: str = "application/octet-stream"

    @property
    def size_bytes(self) -> int:
        return len(self.source) if isinstance(self.source, bytes) else self.source.stat().st_size

    def read(self) -> Iterator[bytes]:
        if isinstance(self.source, bytes):
            yield self.source
            return
        with self.source.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk


class Multipart:
    """multipart/form-data with a known length. Iterating it again reads the files again."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._boundary = secrets.token_hex(16)

    @property
    def headers(self) -> dict[str, str]:
        tail = len(self._tail())
        size = sum(len(self._head(part)) + part.size_bytes + 2 for part in self._parts) + tail
        return {"Content-Type": f"multipart/form-data; boundary={self._boundary}",
                "Content-Length": str(size)}

    def __iter__(self) -> Iterator[bytes]:
        for part in self._parts:
            yield self._head(part)
            yield from part.read()
            yield b"\r\n"
        yield self._tail()

    def _head(self, part: Part) -> bytes:
        # As browsers escape names (WHATWG): a quote or a line break would end the header.
        name = part.name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
        return (f'--{self._boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="{name}"\r\n'
                f"Content-Type: {part.content_type}\r\n\r\n").encode()

    def _tail(self) -> bytes:
        return f"--{self._boundary}--\r\n".encode()
