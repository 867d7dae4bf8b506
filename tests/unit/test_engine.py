"""Engines: what loads, what is refused and why, and the Null engine beside the real one."""

import threading

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from models import settings
from models.errors import HardwareMissing, NetworkRejected
from tests import graphs
from tests.graphs import FLOAT, INT64, node
from workers.engine import (
    EngineFailed,
    EngineOutOfMemory,
    ProviderFailed,
    TensorSpec,
    _run_error,
    available,
    open_engine,
)
from workers.null_engine import NullEngine


def test_a_network_is_described_in_open_inference_names(tmp_path):
    path = graphs.save(tmp_path, [node("Identity", ["a"], ["b"]), node("Identity", ["s"], ["t"])],
                       [("a", FLOAT, ["n", 3]), ("s", graphs.STRING, [2])],
                       [("b", FLOAT, ["n", 3]), ("t", graphs.STRING, [2])])
    engine = open_engine(path, graphs.CPU)
    assert engine.inputs == (TensorSpec("a", "FP32", (-1, 3), "n"), TensorSpec("s", "BYTES", (2,)))
    assert engine.providers == ("CPUExecutionProvider",)
    found = engine.run({"a": np.ones((2, 3), np.float32), "s": np.array(["x", "ü"], np.object_)}, ["t", "b"])
    assert found[0].tolist() == ["x", "ü"]
    assert found[1].tolist() == [[1, 1, 1], [1, 1, 1]]


def test_a_class_that_is_not_here_says_what_is_missing():
    available(graphs.CPU)
    with pytest.raises(HardwareMissing, match=r"needs TeapotExecutionProvider.*headrace\[gpu\]"):
        available(settings.HardwareClass("teapot", ("TeapotExecutionProvider",)))


def test_an_engine_never_falls_back_to_the_cpu(tmp_path):
    path = graphs.save(tmp_path, [node("Identity", ["a"], ["b"])], [("a", FLOAT, [1])], [("b", FLOAT, [1])])
    teapot = settings.HardwareClass("teapot", ("TeapotExecutionProvider",))
    with pytest.raises((HardwareMissing, NetworkRejected), match="Teapot"):
        open_engine(path, teapot)


@pytest.mark.parametrize("content", [b"", b"not an ONNX file", b"\x08\x09"])
def test_a_file_that_is_no_network_is_rejected(tmp_path, content):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(NetworkRejected) as caught:
        open_engine(path, graphs.CPU)
    assert str(tmp_path) not in str(caught.value)


def test_a_missing_file_and_an_unknown_operator_are_rejected(tmp_path):
    with pytest.raises(NetworkRejected, match="missing"):
        open_engine(tmp_path / "none.onnx", graphs.CPU)
    graph = helper.make_graph([node("Brew", ["a"], ["b"], domain="my.ops")], "g",
                              [helper.make_tensor_value_info("a", FLOAT, [1])],
                              [helper.make_tensor_value_info("b", FLOAT, [1])])
    network = helper.make_model(graph, ir_version=9, opset_imports=[
        helper.make_opsetid("", 18), helper.make_opsetid("my.ops", 1)])
    onnx.save(network, tmp_path / "model.onnx")
    with pytest.raises(NetworkRejected, match=r"my\.ops"):
        open_engine(tmp_path / "model.onnx", graphs.CPU)


@pytest.mark.parametrize("location", ["../secret.bin", "{outside}/secret.bin", "link.bin", "sub/../../secret.bin"])
def test_external_data_outside_the_folder_is_rejected(tmp_path, location):
    folder = tmp_path / "network"
    folder.mkdir()
    np.zeros(4, np.float32).tofile(tmp_path / "secret.bin")
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    weight = TensorProto(name="w", data_type=FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    entry = weight.external_data.add()
    entry.key, entry.value = "location", location.format(outside=tmp_path)
    graph = helper.make_graph([node("Add", ["a", "w"], ["b"])], "g", [helper.make_tensor_value_info("a", FLOAT, [4])],
                              [helper.make_tensor_value_info("b", FLOAT, [4])], [weight])
    network = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    (folder / "model.onnx").write_bytes(network.SerializeToString())
    with pytest.raises(NetworkRejected):
        open_engine(folder / "model.onnx", graphs.CPU)


def test_a_zipmap_is_rejected_with_the_export_option(tmp_path):
    cells = helper.make_map_type_proto(INT64, helper.make_tensor_type_proto(FLOAT, []))
    graph = helper.make_graph([node("ZipMap", ["a"], ["b"], domain="ai.onnx.ml", classlabels_int64s=[0, 1])], "g",
                              [helper.make_tensor_value_info("a", FLOAT, [None, 2])],
                              [helper.make_value_info("b", helper.make_sequence_type_proto(cells))])
    onnx.save(helper.make_model(graph, ir_version=9, opset_imports=[
        helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]), tmp_path / "model.onnx")
    with pytest.raises(NetworkRejected, match="zipmap"):
        open_engine(tmp_path / "model.onnx", graphs.CPU)


def test_running_out_of_memory_and_failing_are_told_apart(tmp_path):
    path = graphs.save(tmp_path, [node("Expand", ["a", "n"], ["b"])], [("a", FLOAT, [1]), ("n", INT64, [1])],
                       [("b", FLOAT, [None])])
    engine = open_engine(path, graphs.CPU)
    with pytest.raises(EngineOutOfMemory):
        engine.run({"a": np.zeros(1, np.float32), "n": np.array([1 << 46])}, ["b"])
    with pytest.raises(EngineFailed) as caught:
        engine.run({"a": np.zeros(2, np.float32), "n": np.array([1])}, ["b"])
    assert not isinstance(caught.value, EngineOutOfMemory)
    assert "[ONNXRuntimeError]" not in str(caught.value)


@pytest.mark.parametrize(("text", "kind"), [
    ("CUDA failure 2: out of memory ; GPU=0", EngineOutOfMemory),
    ("CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0", EngineOutOfMemory),
    ("CUDA failure 214: uncorrectable ECC error encountered ; GPU=0", ProviderFailed),
    ("CUDA failure 700: an illegal memory access was encountered ; GPU=0", ProviderFailed),
    ("Invalid input shape", EngineFailed),
])
def test_what_a_device_says_tells_whether_a_smaller_batch_may_do(text, kind):
    assert type(_run_error(RuntimeError(text))) is kind


def _null(**options):
    return NullEngine([TensorSpec("a", "FP32", (-1, 2))], [TensorSpec("a", "FP32", (-1, 2)),
                                                         TensorSpec("z", "INT64", (-1, 3))], **options)


def test_the_null_engine_echoes_and_gives_zeros():
    engine = _null()
    echo, zeros = engine.run({"a": np.ones((4, 2), np.float32)}, ["a", "z"])
    assert echo.tolist() == [[1, 1]] * 4
    assert zeros.shape == (4, 3)
    assert engine.runs == [4]


def test_the_null_engine_misbehaves_on_demand():
    feeds = {"a": np.full((3, 2), 7, np.float32)}
    with pytest.raises(EngineOutOfMemory):
        _null(exhausts=lambda given: len(given["a"]) > 2).run(feeds, ["z"])
    with pytest.raises(EngineFailed):
        _null(fails=lambda given: bool((given["a"] == 7).any())).run(feeds, ["z"])
    with pytest.raises(EngineFailed):
        _null().run({"b": feeds["a"]}, ["z"])


def test_a_stalled_null_engine_goes_on_when_told():
    gate, done = threading.Event(), threading.Event()
    engine = _null(stalls=gate)
    thread = threading.Thread(target=lambda: (engine.run({"a": np.zeros((1, 2), np.float32)}, ["z"]), done.set()))
    thread.start()
    assert not done.is_set()
    gate.set()
    thread.join()
    assert done.is_set()
