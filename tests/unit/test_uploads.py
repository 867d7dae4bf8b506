"""Multipart forms, as different clients cut them, well-formed and not."""

import io
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api import uploads
from api.http import Request
from models.errors import InvalidRequest, PayloadTooLarge, UnsupportedMediaType

BOUNDARY = "b0undary"
LIMIT = 10 << 20


class Dribble(io.RawIOBase):
    """A body that arrives in pieces of one size."""

    def __init__(self, data: bytes, size: int) -> None:
        self._data, self._size = io.BytesIO(data), size

    def read(self, size: int = -1) -> bytes:
        return self._data.read(min(size, self._size))


def form(parts: Sequence[tuple[str, str | None, bytes]]) -> bytes:
    out = b""
    for name, filename, data in parts:
        extra = "" if filename is None else f'; filename="{filename}"'
        out += f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{extra}\r\n\r\n'.encode() + data + b"\r\n"
    return out + f"--{BOUNDARY}--\r\n".encode()


def request(body: bytes, content_type: str = f"multipart/form-data; boundary={BOUNDARY}", piece: int = 1 << 20) -> Request:
    return Request("POST", "/v1/models", headers={"content-type": content_type}, stream=Dribble(body, piece))


def read(body: bytes, piece: int = 1 << 20, max_bytes: int = LIMIT) -> list[tuple[str, str | None, bytes]]:
    return [(part.name, part.filename, part.read(LIMIT))
            for part in uploads.parts(request(body, piece=piece), max_bytes=max_bytes)]


@given(st.lists(st.tuples(st.sampled_from(["a", "dir/b.txt", "é"]), st.none() | st.just("f.bin"),
                          st.binary(max_size=300)), max_size=4), st.integers(1, 70))
def test_parts_come_back_as_sent_however_the_body_is_cut(parts: list[tuple[str, str | None, bytes]], piece: int) -> None:
    if any(f"--{BOUNDARY}".encode() in data for _, _, data in parts):
        return
    assert read(form(parts), piece) == parts


def test_line_ends_and_near_boundaries_inside_a_file_are_its_own() -> None:
    data = b"\r\n--b0undar\r\n--\r\n\n\r--b0undary?"
    assert read(form([("f", "f", data)]), 3) == [("f", "f", data)]


def test_a_part_that_is_not_read_is_skipped() -> None:
    names = [part.name for part in uploads.parts(request(form([("a", "a", b"x" * 100_000), ("b", None, b"y")])),
                                                 max_bytes=LIMIT)]
    assert names == ["a", "b"]


@pytest.mark.parametrize("content_type", ["", "application/json", "multipart/mixed; boundary=b", "text/plain"])
def test_another_media_type_is_refused(content_type: str) -> None:
    with pytest.raises(UnsupportedMediaType, match="multipart/form-data"):
        list(uploads.parts(request(b"", content_type), max_bytes=LIMIT))


@pytest.mark.parametrize("content_type", ["multipart/form-data", "multipart/form-data; boundary=",
                                          f"multipart/form-data; boundary={'b' * 300}"])
def test_a_form_without_a_usable_boundary_is_refused(content_type: str) -> None:
    with pytest.raises(InvalidRequest, match="boundary"):
        list(uploads.parts(request(b"", content_type), max_bytes=LIMIT))


@pytest.mark.parametrize("body", [
    b"", b"not a form", form([("a", None, b"x")])[:-6], f"--{BOUNDARY}\r\nContent-Type: text/plain\r\n\r\nx\r\n".encode(),
    f"--{BOUNDARY}\r\nContent-Disposition: form-data\r\n\r\nx\r\n--{BOUNDARY}--\r\n".encode(),
    f"--{BOUNDARY}\r\nContent-Disposition: \xff; name=a\r\n\r\nx".encode("latin-1"),
])
def test_a_form_that_is_broken_or_cut_short_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(body)
    assert caught.value.faults[0].rule == "multipart"


def test_a_body_above_the_limit_is_refused_while_it_is_read() -> None:
    body = form([("a", "a", b"x" * 5000)])
    assert read(body, max_bytes=len(body))
    with pytest.raises(PayloadTooLarge):
        read(body, max_bytes=len(body) - 1)


def test_headers_without_end_are_refused_early() -> None:
    stream = Dribble(f"--{BOUNDARY}\r\n".encode() + b"X: y\r\n" * 1_000_000, 1 << 16)
    sent = Request("POST", "/", headers={"content-type": f"multipart/form-data; boundary={BOUNDARY}"}, stream=stream)
    with pytest.raises(PayloadTooLarge, match="headers"):
        list(uploads.parts(sent, max_bytes=1 << 30))
    assert stream._data.tell() < 1 << 20


def test_too_many_parts_are_refused() -> None:
    with pytest.raises(PayloadTooLarge, match="parts"):
        read(form([("a", None, b"")] * (uploads.MAX_PARTS + 1)))


def test_a_field_above_its_limit_is_refused() -> None:
    part = next(uploads.parts(request(form([("manifest", None, b"x" * 1000)])), max_bytes=LIMIT))
    with pytest.raises(PayloadTooLarge, match="`manifest`"):
        part.read(999)
