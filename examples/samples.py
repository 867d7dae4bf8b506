"""Real inputs for the demo, from committed files: images of digits and measurements of tumours, with labels.

Standard library only: the demo needs nothing beyond the service. `examples/make_samples.py` made the files.
"""

import base64
import csv
import gzip
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "samples"
SIDE = 8  # pixels
WHITE = 16  # the darkest of the 17 grey levels of the digits


@dataclass(frozen=True, slots=True)
class Sample:
    """One input, and the label that ONNX Runtime gives it when it is called directly."""

    input: Any
    expected: str


def digits(limit: int) -> list[Sample]:
    """Handwritten digits as PNG images."""
    return [Sample({"base64": base64.b64encode(image([int(level) for level in row[:-1]])).decode()}, row[-1])
            for row in _rows("digits", limit)]


def image(levels: Sequence[int]) -> bytes:
    """The PNG of 64 grey levels from 0 to 16."""
    return png(bytes(round(level * 255 / WHITE) for level in levels))


def tumor(limit: int) -> list[Sample]:
    """Rows of 30 measurements."""
    return [Sample([float(value) for value in row[:-1]], row[-1]) for row in _rows("tumor", limit)]


def _rows(name: str, limit: int) -> Iterator[list[str]]:
    with gzip.open(FOLDER / f"{name}.csv.gz", "rt", newline="") as file:
        rows = csv.reader(file)
        next(rows)
        for _, row in zip(range(limit), rows, strict=False):
            yield row


def png(pixels: bytes, side: int = SIDE) -> bytes:
    """A greyscale PNG of side x side pixels, one byte each."""
    lines = b"".join(b"\0" + pixels[at:at + side] for at in range(0, len(pixels), side))
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    chunks = (_chunk(b"IHDR", header), _chunk(b"IDAT", zlib.compress(lines)), _chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
