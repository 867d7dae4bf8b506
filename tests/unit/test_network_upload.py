"""Receiving a network: which forms are taken, and that a refused one stores nothing."""

from pathlib import Path

import pytest

from api import network_upload
from models.blobs import Blobs
from models.errors import InvalidRequest, PayloadTooLarge
from tests.unit.test_uploads import form, request

MANIFEST = b"""
name: digits
version: "1"
task: image-classification
artifact: net/model.onnx
hardware: [cpu]
labels: labels.txt
"""
FILES = [("net/model.onnx", "model.onnx", b"onnx" * 1000), ("labels.txt", None, b"a\nb\n")]


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "blobs")


def receive(blobs: Blobs, parts: list[tuple[str, str | None, bytes]], *, max_bytes: int = 1 << 20,
            max_wasted_bytes: int = 1 << 20) -> network_upload.Upload:
    return network_upload.receive(request(form(parts)), blobs, max_bytes=max_bytes, max_wasted_bytes=max_wasted_bytes)


def stored(blobs: Blobs) -> list[str]:
    return [path.name for path in blobs.folder.rglob("*") if path.is_file() and path.name != "lock"]


def faults(caught: pytest.ExceptionInfo[InvalidRequest]) -> list[tuple[str, str]]:
    return [(fault.pointer, fault.rule) for fault in caught.value.faults]


def test_files_are_stored_under_the_paths_that_the_manifest_names(blobs: Blobs) -> None:
    upload = receive(blobs, [("manifest", None, MANIFEST), *FILES])
    assert upload.manifest["name"] == "digits"
    assert {path: blobs.read(file["blob"]) for path, file in upload.files.items()} == {
        "net/model.onnx": b"onnx" * 1000, "labels.txt": b"a\nb\n"}
    assert {path: file["size"] for path, file in upload.files.items()} == {"net/model.onnx": 4000, "labels.txt": 4}


def test_a_file_may_be_named_by_its_field_or_by_its_file_name(blobs: Blobs) -> None:
    by_field = receive(blobs, [("manifest", "network.yaml", MANIFEST), *FILES])
    by_filename = receive(blobs, [("manifest", None, MANIFEST), ("file", "labels.txt", b"a\nb\n"),
                                  ("file", "net/model.onnx", b"onnx" * 1000)])
    assert by_field == by_filename


def test_the_digest_tells_content_not_spelling(blobs: Blobs) -> None:
    one = receive(blobs, [("manifest", None, MANIFEST), *FILES])
    two = receive(blobs, [("manifest", None, b"# a comment\n" + MANIFEST), *reversed(FILES)])
    other = receive(blobs, [("manifest", None, MANIFEST), FILES[0], ("labels.txt", None, b"a\nc\n")])
    assert one.digest == two.digest != other.digest


@pytest.mark.parametrize("parts", [[], [FILES[0], ("manifest", None, MANIFEST)]])
def test_the_manifest_comes_first(blobs: Blobs, parts: list[tuple[str, str | None, bytes]]) -> None:
    with pytest.raises(InvalidRequest, match="first") as caught:
        receive(blobs, parts)
    assert faults(caught) == [("/manifest", "required")]


def test_faults_of_the_manifest_point_into_it(blobs: Blobs) -> None:
    with pytest.raises(InvalidRequest) as caught:
        receive(blobs, [("manifest", None, MANIFEST.replace(b"image-classification", b"divination")), *FILES])
    assert faults(caught) == [("/manifest/task", "choice")]
    assert stored(blobs) == []


def test_all_files_that_do_not_fit_are_named_at_once_and_nothing_is_stored(blobs: Blobs) -> None:
    with pytest.raises(InvalidRequest) as caught:
        receive(blobs, [("manifest", None, MANIFEST), FILES[1], FILES[1], ("extra.bin", "extra.bin", b"?")])
    assert faults(caught) == [("/labels.txt", "twice"), ("/extra.bin", "unexpected"), ("/net~1model.onnx", "required")]
    assert stored(blobs) == []


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "net/../../x", "..", "net\\model.onnx"])
@pytest.mark.parametrize("as_field", [True, False])
def test_names_that_lead_outside_are_refused(blobs: Blobs, name: str, as_field: bool) -> None:
    escaped = name.replace("\\", "\\\\")
    part = (escaped, "x", b"!") if as_field else ("file", escaped, b"!")
    with pytest.raises(InvalidRequest) as caught:
        receive(blobs, [("manifest", None, MANIFEST), *FILES, part])
    assert [rule for _, rule in faults(caught)] == ["path"]
    assert stored(blobs) == []


def test_little_more_is_read_of_an_upload_that_is_already_refused(blobs: Blobs) -> None:
    many = [(f"extra{number}", "x", b"?" * 100_000) for number in range(8)]
    with pytest.raises(InvalidRequest) as caught:
        receive(blobs, [("manifest", None, MANIFEST), *many], max_wasted_bytes=250_000)
    assert len(caught.value.faults) == 3


def test_an_upload_above_the_limit_stores_nothing(blobs: Blobs) -> None:
    with pytest.raises(PayloadTooLarge):
        receive(blobs, [("manifest", None, MANIFEST), ("labels.txt", None, b"a"),
                        ("net/model.onnx", None, b"x" * 100_000)], max_bytes=50_000)
    assert stored(blobs) == []
