"""Multipart uploads, read as they arrive: a part is never held in memory whole, whatever its size."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.http import parse_options_header
from werkzeug.sansio import multipart

from api.http import Request
from models.errors import Fault, InvalidRequest, PayloadTooLarge, UnsupportedMediaType

CHUNK_BYTES = 1 << 18
HEADER_BYTES = 1 << 16  # of one part; also bounds what precedes the first boundary
MAX_PARTS = 256
MEDIA_TYPE = "multipart/form-data"


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a form: its field's name, its file's name if it has one, and its bytes, in order."""

    name: str
    filename: str | None
    chunks: Iterator[bytes]

    def read(self, limit_bytes: int) -> bytes:
        """The whole part, for small fields. Raises PayloadTooLarge above the limit."""
        data = bytearray()
        for chunk in self.chunks:
            data += chunk
            if len(data) > limit_bytes:
                raise PayloadTooLarge(f"the field `{self.name[:100]}` may hold at most {limit_bytes} bytes")
        return bytes(data)


def parts(request: Request, *, max_bytes: int) -> Iterator[Part]:
    """The parts of a request's body, in the order sent; what is not read of one is skipped.

    Raises UnsupportedMediaType, InvalidRequest (not a well-formed form) or PayloadTooLarge (above `max_bytes`
    in all) while it is read.
    """
    form = _Form(request, max_bytes)
    while (part := form.next_part()) is not None:
        yield part
        for _ in part.chunks:
            pass


class _Form:
    def __init__(self, request: Request, max_bytes: int) -> None:
        media_type, options = parse_options_header(request.headers.get("content-type", ""))
        if media_type != MEDIA_TYPE:
            raise UnsupportedMediaType(f"the body must be `{MEDIA_TYPE}`")
        boundary = options.get("boundary", "").encode("latin-1", "replace")
        if not 0 < len(boundary) <= 200:
            raise _malformed("the content type names no boundary: leave it to your HTTP client's form option")
        self._stream: Any = request.stream
        self._max_bytes = max_bytes
        self._delimiter = b"--" + boundary
        self._tail = b""
        self._seen_bytes = 0
        self._decoder = multipart.MultipartDecoder(boundary, CHUNK_BYTES + HEADER_BYTES, max_parts=MAX_PARTS)

    def next_part(self) -> Part | None:
        while True:
            match self._event():
                case multipart.File(name=name, filename=filename):
                    return Part(_named(name), filename, self._chunks())
                case multipart.Field(name=name):
                    return Part(_named(name), None, self._chunks())
                case multipart.Epilogue():
                    return None
                case _:
                    continue

    def _chunks(self) -> Iterator[bytes]:
        more = True
        while more:
            event = self._event()
            if isinstance(event, multipart.Data):
                more = event.more_data
                if event.data:
                    yield event.data

    def _event(self) -> multipart.Event:
        try:
            while isinstance(event := self._decoder.next_event(), multipart.NeedData):
                self._decoder.receive_data(self._read())
        except RequestEntityTooLarge as error:
            raise PayloadTooLarge(f"a form may have at most {MAX_PARTS} parts, and each at most "
                                  f"{HEADER_BYTES} bytes of headers") from error
        except ValueError as error:
            raise _malformed("the form ends early or is not well-formed") from error
        return event

    def _read(self) -> bytes | None:
        data = self._receive(CHUNK_BYTES)
        # Werkzeug 3.1 takes the line break before a boundary for data when it is given the boundary and just
        # one byte of what follows it; so it never is.
        end = self._tail + data[-len(self._delimiter) - 1:]
        if end[:-1].endswith(self._delimiter):
            more = self._receive(1)
            data, end = data + more, end + more
        self._tail = end[-len(self._delimiter):]
        return data or None

    def _receive(self, size: int) -> bytes:
        data: bytes = self._stream.read(size)
        self._seen_bytes += len(data)
        if self._seen_bytes > self._max_bytes:
            raise PayloadTooLarge(f"an upload may hold at most {self._max_bytes} bytes")
        return data


def _named(name: str | None) -> str:
    if not name:
        raise _malformed("each part needs a name in its Content-Disposition header")
    return name


def _malformed(detail: str) -> InvalidRequest:
    return InvalidRequest(detail, faults=(Fault("", "multipart", detail),))
