"""Rows, texts, images and other bytes at the door."""

import base64
import io
import json
import struct
import zlib

import pytest
from PIL import Image

from api import inputs
from api.inputs import pictures
from models.errors import InputInvalid


def checker(task, **signature):
    return inputs.checker({"task": task}, {"task": task, "item_axis": True, "columns": None, "labels": None,
                                           "max_tokens": None, "inputs": [], "outputs": []} | signature)


def faults(check, value):
    with pytest.raises(InputInvalid) as caught:
        check(value if isinstance(value, bytes) else json.dumps(value).encode())
    assert all(fault.pointer.startswith("/input") and fault.detail for fault in caught.value.faults)
    return {fault.pointer: fault.rule for fault in caught.value.faults}


ROW = checker("tabular", columns=["age", "income/year", "ok"],
              inputs=[{"name": "X", "datatype": "FP32", "shape": [-1, 3]}])
MIXED = checker("tabular", columns=["age", "town"],
                inputs=[{"name": "age", "datatype": "INT64", "shape": [-1, 1]},
                        {"name": "town", "datatype": "BYTES", "shape": [-1, 1]}])
TEXT = checker("text-embedding", max_tokens=100)
IMAGE = checker("image-classification")
BYTES = checker("bytes-classification")


def test_a_row_is_an_object_or_a_list():
    assert ROW(b"[1, 2.5, 3]") == ROW(b'{"ok": 1, "age": 2, "income/year": 3}') == 3
    assert MIXED(b'{"town": "x", "age": 3}') == MIXED(b'[3, "x"]') == 2


@pytest.mark.parametrize(("check", "row", "expected"), [
    (ROW, {"age": 1, "income/year": "a", "agee": 3},
     {"/input/agee": "unknown_field", "/input/ok": "required", "/input/income~1year": "value"}),
    (ROW, [1, 2], {"/input": "length"}), (ROW, [1, 2, 3, 4], {"/input": "length"}),
    (ROW, [1, None, True], {"/input/1": "value", "/input/2": "value"}), (ROW, 5, {"/input": "type"}),
    (ROW, [1, 1e39, 1], {"/input/1": "value"}), (ROW, b"[1, 2, NaN]", {"/input": "json"}),
    (MIXED, [1.5, 3], {"/input/0": "value", "/input/1": "value"}), (MIXED, [1, "a\0"], {"/input/1": "value"}),
    (MIXED, b'[1, "\\ud800"]', {"/input": "surrogate"}), (ROW, b"[" * 100_000, {"/input": "depth"}),
    (ROW, b'{"a": ' * 100_000, {"/input": "depth"}),
])
def test_a_wrong_row_is_refused_with_all_faults(check, row, expected):
    assert faults(check, row) == expected


def test_a_mistyped_column_is_told_the_nearest():
    with pytest.raises(InputInvalid, match=r'did you mean "age'):
        ROW(b'{"agee": 1, "income/year": 2, "ok": 3}')


def test_a_text_costs_about_its_tokens():
    assert TEXT(json.dumps("word " * 20).encode()) == 25
    assert TEXT(b'""') == 1
    assert TEXT(json.dumps("word " * 1000).encode()) == 100
    assert TEXT('"😀 \\ud83d\\ude00"'.encode()) == 1


@pytest.mark.parametrize(("value", "rule"), [
    (5, "type"), (["a"], "type"), ("a\0b", "nul"), (b'"\\u0000"', "nul"), (b'"a\\ud800b"', "surrogate"),
    (b'"\\ud83d"', "surrogate"), (b'"\xff"', "json"), (b'"a', "json"), (b"[" * 100_000, "depth"), (b"", "json"),
])
def test_a_wrong_text_is_refused(value, rule):
    assert faults(TEXT, value) == {"/input": rule}


def encoded(content):
    return json.dumps({"base64": base64.b64encode(content).decode()}).encode()


def test_bytes_cost_their_length():
    assert BYTES(encoded(b"abcde")) == 5


@pytest.mark.parametrize(("value", "expected"), [
    ({"base64": "YWJ"}, {"/input/base64": "base64"}), ({"base64": "YW Jj"}, {"/input/base64": "base64"}),
    ({"base64": "YWJj\n"}, {"/input/base64": "base64"}), ({"base64": "ü"}, {"/input/base64": "base64"}),
    ({"base64": "\0"}, {"/input/base64": "base64"}), ({"base64": ""}, {"/input/base64": "empty"}),
    ({"base64": 5}, {"/input/base64": "type"}), ("YWJj", {"/input": "type"}),
    ({"b64": "YWJj"}, {"/input/b64": "unknown_field", "/input/base64": "required"}),
])
def test_bad_base64_is_refused(value, expected):
    assert faults(BYTES, value) == expected
    assert faults(IMAGE, value) == expected


def picture(format_, size=(20, 10), mode="RGB", **options):
    out = io.BytesIO()
    Image.effect_noise(size, 60).convert(mode).save(out, format_, **options)
    return out.getvalue()


PICTURES = [picture("PNG"), picture("PNG", mode="1"), picture("PNG", mode="P"), picture("JPEG"), picture("JPEG", mode="L"),
            picture("JPEG", progressive=True), picture("JPEG", quality=1, comment=b"\xff\xd9 not the end"),
            picture("WEBP"), picture("WEBP", lossless=True), picture("WEBP", mode="RGBA"),
            picture("WEBP", exif=b"Exif\0\0" + b"x" * 10)]


@pytest.mark.parametrize("content", PICTURES)
def test_the_size_of_an_image_is_read_from_its_header(content):
    assert pictures.size(content) == (20, 10)
    assert IMAGE(encoded(content)) == 200


@pytest.mark.parametrize("content", PICTURES)
def test_an_image_cut_off_anywhere_is_refused(content):
    for end in range(0, len(content) - 1, 7):
        with pytest.raises(pictures.PictureInvalid):
            pictures.size(content[:end])


def test_a_jpeg_of_thousands_of_scans_is_refused():
    out = io.BytesIO()
    Image.new("L", (64, 64), 128).save(out, "JPEG", progressive=True)
    content = out.getvalue()
    assert pictures.size(content) == (64, 64)
    start, end = content.rfind(b"\xff\xda"), content.rfind(b"\xff\xd9")
    with pytest.raises(pictures.PictureInvalid, match="scans"):
        pictures.size(content[:end] + content[start:end] * pictures.MAX_SCANS + content[end:])


@pytest.mark.parametrize("content", PICTURES)
def test_a_damaged_image_is_refused_or_has_a_size(content):
    for at in range(0, len(content), 5):
        damaged = content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1:]
        try:
            width, height = pictures.size(damaged)
        except pictures.PictureInvalid:
            continue
        assert 0 < width * height <= pictures.MAX_PIXELS


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


@pytest.mark.parametrize(("width", "height"), [(60_000, 60_000), (2**31 - 1, 2**31 - 1), (0, 10), (10, 0)])
def test_absurd_dimensions_are_refused(width, height):
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    bomb = (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 100_000))
            + chunk(b"IEND", b""))
    assert faults(IMAGE, encoded(bomb)) == {"/input/base64": "dimensions"}


@pytest.mark.parametrize("content", [b"GIF89a" + b"\0" * 50, b"%PDF-1.7", b"x", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff",
                                     b"RIFF\0\0\0\0WEBP", b"BM" + b"\0" * 60])
def test_what_is_no_image_is_refused(content):
    assert set(faults(IMAGE, encoded(content)).values()) <= {"format", "truncated"}
