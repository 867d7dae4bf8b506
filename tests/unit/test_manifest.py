"""network.yaml: defaults, and every fault at once with its place and its fix."""

import json

import pytest

from models import manifest
from models.errors import InvalidRequest

MINIMAL = b'name: a\nversion: "1"\ntask: tensor\nartifact: model.onnx\n'


def faults(text: bytes) -> dict[str, str]:
    with pytest.raises(InvalidRequest) as caught:
        manifest.parse(text)
    assert all(fault.detail for fault in caught.value.faults)
    return {fault.pointer: fault.rule for fault in caught.value.faults}


def test_a_minimal_manifest_gets_its_defaults():
    found = manifest.parse(MINIMAL)
    assert found["batching"] == {"max_items": None, "max_delay_ms": 0, "max_work": None}
    assert found["hardware"] == ["cpu"]
    assert (found["pinned"], found["allow_null"]) == (False, False)
    assert manifest.files(found) == ["model.onnx"]
    assert json.loads(json.dumps(found)) == found


def test_the_contracts_own_example_is_read():
    found = manifest.parse(b"""
name: digits            # [a-z0-9-]+
version: "1"
task: image-classification
artifact: model.onnx
hardware: [cuda, cpu]
batching: {max_items: 64, max_delay_ms: 0, max_work: 16384}
labels: labels.txt
pinned: true
""")
    assert found["hardware"] == ["cuda", "cpu"]
    assert found["batching"]["max_work"] == 16384
    assert manifest.files(found) == ["model.onnx", "labels.txt"]


def test_only_fields_of_its_task_are_kept():
    assert "tokenizer" not in manifest.parse(MINIMAL)
    text = manifest.parse(MINIMAL.replace(b"tensor", b"text-embedding"))
    assert text["tokenizer"] == "tokenizer.json"
    assert manifest.files(text) == ["model.onnx", "tokenizer.json"]


def test_all_faults_are_reported_at_once():
    found = faults(b"name: A_b\nversion: 1.0\ntask: guess\nartifact: ../x\nfoo: 1\nhardware: []\n"
                   b"batching: {max_item: 3, max_items: 0}\npinned: maybe\n")
    assert found == {"/name": "pattern", "/version": "type", "/task": "choice", "/artifact": "path",
                     "/foo": "unknown_field", "/hardware": "type", "/batching/max_item": "unknown_field",
                     "/batching/max_items": "range", "/pinned": "type"}


def test_missing_fields_are_named():
    assert faults(b"name: a\n") == {"/version": "required", "/task": "required", "/artifact": "required"}


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "C:/x", "a\\\\..\\\\b", "", "a\\x00b"])
def test_paths_stay_inside_the_folder(path):
    text = MINIMAL.replace(b"model.onnx", f'"{path}"'.encode())
    assert faults(text)["/artifact"] in ("path", "type")


@pytest.mark.parametrize("url", ["s3://bucket/model.onnx", "https://example.com/model.onnx"])
def test_artifacts_by_url_are_refused_for_now(url):
    with pytest.raises(InvalidRequest, match="aren't built yet"):
        manifest.parse(MINIMAL.replace(b"model.onnx", url.encode()))


def test_a_field_of_another_task_is_refused():
    assert faults(MINIMAL + b"labels: [a, b]\nmax_tokens: 5\n") == {"/labels": "task", "/max_tokens": "task"}


def test_labels_that_yaml_reads_as_booleans_must_be_quoted():
    assert faults(MINIMAL.replace(b"tensor", b"tabular") + b"labels: [no, maybe]\n") == {"/labels/0": "type"}


@pytest.mark.parametrize("text", [
    b"", b"[]", b"- a", b"\xff\xfe\x00", b"a: &x [1]\nb: *x", b"[" * 20_000, b"name: a\nname: b\n", b"? [a]\n: 1",
    b"!!python/object/apply:os.system [x]", b"a: 2024-13-45", b"{", b"#" * (manifest.MAX_BYTES + 1),
])
def test_what_is_no_manifest_is_refused_with_a_reason(text):
    assert list(faults(text)) == ["/"]


def test_image_and_bytes_options_are_checked():
    image = MINIMAL.replace(b"tensor", b"image-classification")
    found = faults(image + b"image: {mode: CMYK, size: [0, 8], std: [0], resample: best, zoom: 2}\n")
    assert found == {"/image/mode": "choice", "/image/size/0": "range", "/image/std": "range",
                     "/image/resample": "choice", "/image/zoom": "unknown_field"}
    binary = MINIMAL.replace(b"tensor", b"bytes-classification")
    assert faults(binary + b"bytes: {head: 0, tail: 0}\n") == {"/bytes": "range"}
    assert faults(binary + b"bytes: {head: 10, tail: 10, block: 5}\n") == {"/bytes/block": "range"}


def test_the_time_of_an_item_is_kept_where_it_is_given():
    found = manifest.parse(MINIMAL + b"\nbatching: {item_ms: 2.5}\n")
    assert found["batching"]["item_ms"] == 2.5
