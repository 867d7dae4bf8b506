"""Tensor inputs at the door: what passes with which work, and every fault with its pointer, rule and fix."""

import json

import pytest

from api import inputs
from models.errors import InputInvalid
from tests.graphs import tensor


def checker(*tensors, item_axis=True):
    signature = {"task": "tensor", "item_axis": item_axis, "columns": None, "labels": None, "max_tokens": None,
                 "inputs": [{"name": name, "datatype": kind, "shape": shape} for name, kind, shape in tensors],
                 "outputs": []}
    return inputs.checker({"task": "tensor"}, signature)


MATRIX = ("X", "FP32", [-1, 3])


def asked(*tensors):
    return json.dumps({"inputs": list(tensors)}).encode()


def faults(check, body):
    with pytest.raises(InputInvalid) as caught:
        check(body)
    assert all(fault.pointer.startswith("/input") and fault.detail for fault in caught.value.faults)
    return {fault.pointer: fault.rule for fault in caught.value.faults}


@pytest.mark.parametrize(("shape", "data", "work"), [
    ([1, 3], [1, 2.5, -3e38], 3), ([2, 3], [1] * 6, 6), ([2, 3], [[1, 2, 3], [4, 5, 6]], 6), ([1, 3], [[1, 2, 3]], 3),
])
def test_data_may_be_flat_or_nested_and_costs_its_elements(shape, data, work):
    assert checker(MATRIX)(asked(tensor("X", shape, "FP32", data))) == work


@pytest.mark.parametrize(("datatype", "good", "bad"), [
    ("FP32", [1.5, 3.4028235e38, -1], [3.5e38]), ("FP64", [1e308, 0], ["1"]), ("FP16", [65504, 1e-9], [65520]),
    ("INT8", [-128, 127], [128]), ("UINT8", [0, 255], [-1]), ("INT64", [-(2**63), 2**63 - 1], [2**63]),
    ("UINT64", [0, 2**64 - 1], [2**64]), ("INT32", [5], [5.0]), ("BOOL", [True, False], [1]), ("FP32", [1], [True]),
    ("BYTES", ["a", ""], [1]), ("BYTES", ["ü"], ["a\0b"]), ("FP32", [0], [None]),
])
def test_each_datatype_has_its_range(datatype, good, bad):
    check = checker(("X", datatype, [-1]))
    assert check(asked(tensor("X", [len(good)], datatype, good))) == len(good)
    assert faults(check, asked(tensor("X", [1], datatype, bad))) == {"/input/inputs/0/data/0": "value"}


def test_all_faults_are_reported_at_once():
    found = faults(checker(MATRIX, ("Y", "INT64", [-1, 1])), asked(
        {"name": "X", "shape": [1, 2], "datatype": "FP64", "data": [1, "a"], "extra": 1},
        {"name": "Z", "shape": [1, 1], "datatype": "INT64", "data": [1]}))
    assert found == {
        "/input/inputs/0/extra": "unknown_field", "/input/inputs/0/datatype": "datatype",
        "/input/inputs/0/shape": "shape", "/input/inputs/0/data/1": "value", "/input/inputs/1/name": "name",
        "/input/inputs": "required"}


def test_the_details_say_what_to_do():
    with pytest.raises(InputInvalid) as caught:
        checker(("pixels", "FP32", [-1, 3]))(asked(tensor("pixel", [3], "FP32", [1, 2, 3])))
    assert any('did you mean "pixels"' in fault.detail for fault in caught.value.faults)
    with pytest.raises(InputInvalid) as caught:
        checker(MATRIX)(asked(tensor("X", [3], "FP32", [1, 2, 3])))
    assert "send [1, 3]" in caught.value.faults[0].detail


@pytest.mark.parametrize(("shape", "data", "pointer", "rule"), [
    ([1, 3], [1, 2], "/input/inputs/0/data", "length"), ([2, 3], [[1, 2, 3]], "/input/inputs/0/data", "length"),
    ([1, 3], [[1, 2]], "/input/inputs/0/data/0", "length"), ([1, 3], [[1, 2, 3], 4], "/input/inputs/0/data", "length"),
    ([2, 3], [[1, 2, 3], 4], "/input/inputs/0/data/1", "nesting"), ([0, 3], [], "/input/inputs/0/shape", "shape"),
    ([1, 3], [[[1, 2, 3]]], "/input/inputs/0/data/0", "length"), ([-1, 3], [], "/input/inputs/0/shape", "shape"),
    ([1.0, 3], [1, 2, 3], "/input/inputs/0/shape", "shape"), ([True, 3], [1, 2, 3], "/input/inputs/0/shape", "shape"),
    ([1, 3], "abc", "/input/inputs/0/data", "type"), ("x", [1, 2, 3], "/input/inputs/0/shape", "shape"),
    ([1 << 40, 3], [1, 2, 3], "/input/inputs/0/shape", "shape"),
])
def test_data_must_be_what_the_shape_says(shape, data, pointer, rule):
    assert faults(checker(MATRIX), asked(tensor("X", shape, "FP32", data)))[pointer] == rule


@pytest.mark.parametrize(("body", "rule"), [
    (b"", "json"), (b"{", "json"), (b"NaN", "json"), (b"\xff", "json"), (b'"\xed\xa0\x80"', "json"),
    (b"[" * 100_000 + b"]" * 100_000, "depth"), (b'{"inputs":' + b"[" * 100_000, "depth"),
    (b'{"inputs":[{"name":"X","shape":[1,3],"datatype":"FP32","data":' + b"[" * 100_000, "depth"),
    (b'"\\ud800"', "surrogate"), (b'{"\\udfff x":1}', "surrogate"), (b'{"inputs":[{"name":"\\ud800"}]}', "surrogate"),
    (b"5", "type"), (b"null", "type"), (b"[]", "type"),
])
def test_what_is_no_tensor_at_all_is_refused(body, rule):
    assert rule in faults(checker(MATRIX), body).values()


@pytest.mark.parametrize("number", [b"1e400", b"-1e999", b"1" * 5000])
def test_numbers_beyond_every_datatype_are_refused(number):
    body = b'{"inputs":[{"name":"X","shape":[1,3],"datatype":"FP32","data":[1,2,' + number + b"]}]}"
    assert set(faults(checker(MATRIX), body).values()) <= {"range", "value", "json"}


def test_a_million_wrong_numbers_are_not_a_million_faults():
    body = asked(tensor("X", [100_000, 3], "FP32", ["a"] * 300_000))
    assert len(faults(checker(MATRIX), body)) <= 40


def test_several_tensors_must_agree_on_their_rows_where_they_count_items():
    pair = (("A", "FP32", [-1, 1]), ("B", "FP32", [-1, 1]))
    body = asked(tensor("B", [2, 1], "FP32", [1, 2]), tensor("A", [1, 1], "FP32", [1]))
    assert faults(checker(*pair), body) == {"/input/inputs": "rows"}
    assert checker(*pair, item_axis=False)(body) == 3
    same = asked(tensor("B", [1, 1], "FP32", [1]), tensor("A", [1, 1], "FP32", [1]))
    assert checker(*pair)(same) == 2
    twice = asked(tensor("A", [1, 1], "FP32", [1]), tensor("A", [1, 1], "FP32", [1]), tensor("B", [1, 1], "FP32", [1]))
    assert faults(checker(*pair), twice) == {"/input/inputs/1/name": "unique"}


def test_fixed_and_empty_shapes_are_taken():
    assert checker(("s", "FP32", []), item_axis=False)(asked(tensor("s", [], "FP32", [1]))) == 1
    assert checker(("x", "FP32", [2, 2]), item_axis=False)(asked(tensor("x", [2, 2], "FP32", [[1, 2], [3, 4]]))) == 4
    assert faults(checker(("x", "FP32", [2, 2]), item_axis=False), asked(tensor("x", [1, 2], "FP32", [1, 2])))
