"""The size of a PNG, JPEG or WebP image from its bytes, undecoded: what is cut off or absurd is seen here."""

import struct
import zlib

MAX_PIXELS = 1 << 26  # more is a decompression bomb; 64 Mpixel in RGB are 192 MiB
# Progressive JPEGs come in about ten scans, each of which goes over the whole image: thousands of a few bytes
# would take hours. As many as an image of MAX_PIXELS may have, and more for smaller ones.
MAX_SCANS, MAX_SCANNED = 128, 16 * MAX_PIXELS
_PNG = b"\x89PNG\r\n\x1a\n"
# Start of frame of every kind but the four that are other segments.
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_BARE = frozenset({0x01, *range(0xD0, 0xD9)})  # markers without a length


class PictureInvalid(ValueError):
    """Not an image that can be served. `rule` and the message are for the client."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(detail)
        self.rule = rule


def size(content: bytes) -> tuple[int, int]:
    """Width and height in pixels. Raises PictureInvalid."""
    try:
        if content.startswith(_PNG):
            width, height = _png(content)
        elif content.startswith(b"\xff\xd8\xff"):
            width, height = _jpeg(content)
        elif content[:4] == b"RIFF" and content[8:12] == b"WEBP":
            width, height = _webp(content)
        else:
            raise PictureInvalid("format", "is not a PNG, JPEG or WebP image: convert it to one of them")
    except (struct.error, IndexError):
        raise _truncated() from None
    if not width or not height:
        raise PictureInvalid("dimensions", f"has {width} x {height} pixels: both must be above 0")
    if width * height > MAX_PIXELS:
        raise PictureInvalid("dimensions", f"has {width} x {height} pixels, over {MAX_PIXELS}: scale it down")
    return width, height


def _truncated() -> PictureInvalid:
    return PictureInvalid("truncated", "ends before the image does: send the whole file")


def _png(content: bytes) -> tuple[int, int]:
    if content[12:16] != b"IHDR" and len(content) >= 16:
        raise PictureInvalid("format", "is not a PNG image: its header is missing")
    width, height = struct.unpack(">II", content[16:24])
    at, data = len(_PNG), False
    while True:
        length, kind = struct.unpack(">I4s", content[at:at + 8])
        end = at + 12 + length
        if end > len(content):
            raise _truncated()
        if zlib.crc32(memoryview(content)[at + 4:end - 4]) != int.from_bytes(content[end - 4:end], "big"):
            raise PictureInvalid("checksum", f"is damaged: the checksum of its part {kind!r} is wrong")
        data = data or kind == b"IDAT"
        if kind == b"IEND":
            break
        at = end
    if not data:
        raise PictureInvalid("format", "is a PNG image without pixels")
    return width, height


def _jpeg(content: bytes) -> tuple[int, int]:
    found = None
    at = 2
    while True:
        if content[at] != 0xFF:
            raise PictureInvalid("format", "is not a JPEG image: a marker is missing")
        while content[at] == 0xFF:  # any number of fill bytes
            at += 1
        marker = content[at]
        at += 1
        if marker in _JPEG_BARE:
            continue
        if marker == 0xD9:
            raise _truncated()
        (length,) = struct.unpack(">H", content[at:at + 2])
        if marker in _JPEG_FRAMES:
            height, width = struct.unpack(">HH", content[at + 3:at + 7])
            found = width, height
        if marker == 0xDA:
            break
        at += length
    if found is None or content.rfind(b"\xff\xd9") < at:
        raise _truncated()
    scans = 1 + content.count(b"\xff\xda", at)
    if scans > MAX_SCANS or scans * found[0] * found[1] > MAX_SCANNED:
        raise PictureInvalid("scans", f"has {scans} scans: save it as a baseline JPEG, or with fewer")
    return found


def _webp(content: bytes) -> tuple[int, int]:
    (length,) = struct.unpack("<I", content[4:8])
    kind = content[12:16]
    if length + 8 > len(content):
        raise _truncated()
    if kind == b"VP8X":
        return (1 + int.from_bytes(content[24:27], "little"), 1 + int.from_bytes(content[27:30], "little"))
    if kind == b"VP8L":
        bits = struct.unpack("<I", content[21:25])[0]
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        width, height = struct.unpack("<HH", content[26:30])
        return width & 0x3FFF, height & 0x3FFF
    raise PictureInvalid("format", "is not a WebP image: its first part is unknown")
