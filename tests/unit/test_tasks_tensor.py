"""`tensor`: items, rows and batches over networks of every shape, against ONNX Runtime's own arithmetic."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import NetworkRejected
from tests import graphs
from tests.graphs import FLOAT, INT64, STRING, node, tensor
from workers.tasks import floats
from workers.tasks.base import ItemFault

TENSOR = {"task": "tensor", "allow_null": False}


def double(folder, sides, datatype=FLOAT):
    return graphs.save(folder, [node("Add", ["x", "x"], ["y"])], [("x", datatype, sides)], [("y", datatype, sides)])


def asked(*tensors):
    return {"inputs": list(tensors)}


def test_items_of_one_row_and_of_several_share_a_batch(tmp_path):
    network = graphs.serve(double(tmp_path, ["n", 2]), TENSOR)
    found = network.run([asked(tensor("x", [1, 2], "FP32", [1, 2])), asked(tensor("x", [3, 2], "FP32", range_(6))),
                         asked(tensor("x", [2, 2], "FP32", [[0.1, 0.2], [0.3, 0.4]]))])
    assert [out["outputs"][0]["shape"] for out in found] == [[1, 2], [3, 2], [2, 2]]
    assert found[0] == {"outputs": [tensor("y", [1, 2], "FP32", [2, 4])]}
    assert found[1]["outputs"][0]["data"] == [0, 2, 4, 6, 8, 10]
    assert found[2]["outputs"][0]["data"] == [0.2, 0.4, 0.6, 0.8]
    items = network.task.decode([json.dumps(asked(tensor("x", [3, 2], "FP32", range_(6)))).encode()])
    assert items[0].work == 6


def range_(many):
    return [float(at) for at in range(many)]


def test_a_network_without_free_first_dimension_takes_one_item_a_batch(tmp_path):
    network = graphs.serve(double(tmp_path, [2, 2]), TENSOR)
    assert network.signature["item_axis"] is False
    body = json.dumps(asked(tensor("x", [2, 2], "FP32", [1, 2, 3, 4]))).encode()
    first, second = network.task.decode([body, body])
    assert first.key != second.key
    assert network.run([json.loads(body)])[0]["outputs"][0]["data"] == [2, 4, 6, 8]


def test_an_output_that_does_not_count_items_forbids_batches(tmp_path):
    path = graphs.save(tmp_path, [node("ReduceSum", ["x"], ["y"], keepdims=0)], [("x", FLOAT, ["n", 2])],
                       [("y", FLOAT, [])])
    network = graphs.serve(path, TENSOR)
    assert network.signature["item_axis"] is False
    found = network.run([asked(tensor("x", [2, 2], "FP32", [1, 2, 3, 4]))])
    assert found == [{"outputs": [tensor("y", [], "FP32", [10])]}]


def test_a_free_dimension_that_counts_something_else_is_found_out(tmp_path):
    path = graphs.save(tmp_path, [node("NonZero", ["x"], ["found"]), node("Transpose", ["found"], ["y"])],
                       [("x", FLOAT, ["n", 2])], [("y", INT64, ["m", 2])])
    assert graphs.serve(path, TENSOR).signature["item_axis"] is False


def test_items_of_different_trailing_sizes_do_not_share_a_batch(tmp_path):
    network = graphs.serve(double(tmp_path, ["n", "length"]), TENSOR)
    bodies = [json.dumps(asked(tensor("x", [1, many], "FP32", range_(many)))).encode() for many in (2, 3, 2)]
    keys = [item.key for item in network.task.decode(bodies)]
    assert keys[0] == keys[2] != keys[1]


def test_several_inputs_and_outputs_keep_their_order(tmp_path):
    path = graphs.save(tmp_path, [node("Sub", ["a", "b"], ["c"]), node("Identity", ["s"], ["t"])],
                       [("a", INT64, ["n", 1]), ("b", INT64, ["n", 1]), ("s", STRING, ["n"])],
                       [("c", INT64, ["n", 1]), ("t", STRING, ["n"])])
    network = graphs.serve(path, TENSOR)
    found = network.run([asked(tensor("s", [1], "BYTES", [text]), tensor("b", [1, 1], "INT64", [low]),
                               tensor("a", [1, 1], "INT64", [2**62])) for text, low in (("ü", 1), ('"],["', -5))])
    assert found[0]["outputs"] == [tensor("c", [1, 1], "INT64", [2**62 - 1]), tensor("t", [1], "BYTES", ["ü"])]
    assert found[1]["outputs"][1]["data"] == ['"],["']
    assert found[1]["outputs"][0]["data"] == [2**62 + 5]


def test_only_the_item_with_a_value_that_is_not_finite_fails(tmp_path):
    path = graphs.save(tmp_path, [node("Log", ["x"], ["y"])], [("x", FLOAT, ["n", 1])], [("y", FLOAT, ["n", 1])])
    values = [asked(tensor("x", [1, 1], "FP32", [value])) for value in (1, 0, math.e)]
    found = graphs.serve(path, TENSOR).run(values)
    assert isinstance(found[1], ItemFault)
    assert found[1].code == "output_not_finite"
    assert [out["outputs"][0]["data"] for out in (found[0], found[2])] == [[0], [pytest.approx(1)]]
    allowed = graphs.serve(path, TENSOR | {"allow_null": True}).run(values)
    assert allowed[1]["outputs"][0]["data"] == [None]


@pytest.mark.parametrize("body", [
    b"", b"null", b"[]", b'{"inputs":[]}', b'{"inputs":[{"name":"x"}]}', b"[" * 100_000,
    b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[1]}]}',
    b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP64","data":[1,2]}]}',
    b'{"inputs":[{"name":"x","shape":[1,3],"datatype":"FP32","data":[1,2,3]}]}',
    b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":["a",2]}]}',
    b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[1e39,2]}]}',
    b'{"inputs":[{"name":"x","shape":[0,2],"datatype":"FP32","data":[]}]}',
    b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[[1],[2,3]]}]}',
])
def test_what_slipped_past_the_api_fails_alone(tmp_path, body):
    network = graphs.serve(double(tmp_path, ["n", 2]), TENSOR)
    good = json.dumps(asked(tensor("x", [1, 2], "FP32", [1, 2]))).encode()
    before, bad, after = network.task.decode([good, body, good])
    assert isinstance(bad, ItemFault)
    assert bad.code == "input_invalid"
    assert before == after


def test_made_up_items_have_about_the_size_asked_for(tmp_path):
    network = graphs.serve(double(tmp_path, ["n", 4]), TENSOR)
    items = network.task.sample(3, 100)
    assert [item.work for item in items] == [100, 100, 100]
    assert network.task.stack(items)["x"].shape == (75, 4)


def test_a_network_that_gives_nothing_to_read_is_rejected(tmp_path):
    path = graphs.save(tmp_path, [node("Reshape", ["x", "shape"], ["y"])], [("x", FLOAT, ["n", 3])],
                       [("y", FLOAT, [7])], {"shape": np.array([7])})
    with pytest.raises(NetworkRejected, match="can't run a made-up input"):
        graphs.serve(path, TENSOR)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=50))
def test_short_numbers_are_the_same_fp32(values):
    exact = np.array(values, np.float32)
    text = floats.rows(exact.reshape(1, -1))[0]
    found = np.array(json.loads(b"[" + text + b"]"))
    assert (found.astype(np.float32) == exact).all()
    usual = found[(np.abs(exact) > 1e-3) & (np.abs(exact) < 1e6)]
    assert all(len(repr(float(value))) <= 13 for value in usual)


def test_short_decimals_come_back_as_they_were_sent():
    decimals = [at / 1000 for at in range(-5000, 5000)] + [at * 0.5 for at in range(10_000)]
    text = floats.rows(np.array([decimals], np.float32))[0]
    assert json.loads(b"[" + text + b"]") == decimals


@given(st.lists(st.floats(width=16, allow_nan=False, allow_infinity=False), min_size=1, max_size=50))
def test_short_numbers_are_the_same_fp16(values):
    exact = np.array(values, np.float16)
    found = json.loads(b"[" + floats.rows(exact.reshape(1, -1))[0] + b"]")
    assert (np.array(found).astype(np.float16) == exact).all()
