"""Networks that are made to harm whoever tries them: the trial ends, and says why."""

import threading
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
from onnx import TensorProto, helper, numpy_helper

from models import manifest
from models.errors import EngineUnavailable, NetworkRejected
from models.network import Network
from tests import graphs, waiting
from tests.graphs import FLOAT, node
from workers import trial

MIB = 1 << 20


def network_of(tmp_path: Path) -> tuple[Network, Path]:
    parsed = manifest.parse(b"name: a\nversion: '1'\ntask: tensor\nartifact: model.onnx\n")
    return Network(name="a", version="1", task="tensor", digest="d", manifest=parsed, files={}, state="checking",
                   **{field: None for field in Network.__dataclass_fields__ if field not in (
                       "name", "version", "task", "digest", "manifest", "files", "state")}), tmp_path


def harmless(folder: Path) -> None:
    graphs.save(folder, [node("Add", ["x", "x"], ["y"])], [("x", FLOAT, ["n", 2])], [("y", FLOAT, ["n", 2])])


def endless(folder: Path) -> None:
    """A loop of 2^62 turns."""
    body = helper.make_graph(
        [node("Identity", ["go"], ["on"]), node("Add", ["v", "v"], ["w"])], "body",
        [helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("go", TensorProto.BOOL, []),
         helper.make_tensor_value_info("v", FLOAT, ["n", 2])],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, []), helper.make_tensor_value_info("w", FLOAT, ["n", 2])])
    graphs.save(folder, [node("Loop", ["turns", "", "x"], ["y"], body=body)], [("x", FLOAT, ["n", 2])], [("y", FLOAT, ["n", 2])],
                {"turns": np.array(1 << 62)})


def greedy(folder: Path) -> None:
    """A few bytes that ask for 16 GiB as soon as they are run, and before that when constants are folded."""
    fill = node("ConstantOfShape", ["shape"], ["much"], value=numpy_helper.from_array(np.ones(1, np.float32)))
    graphs.save(folder, [fill, node("ReduceSum", ["much"], ["sum"], keepdims=0), node("Add", ["x", "sum"], ["y"])],
                [("x", FLOAT, ["n", 2])], [("y", FLOAT, ["n", 2])], {"shape": np.array([1 << 32])})


def foreign(folder: Path) -> None:
    """An operator of a library that nobody here has."""
    harmless(folder)
    found = onnx.load(folder / "model.onnx")
    found.graph.node[0].domain = "com.example"
    found.opset_import.append(helper.make_opsetid("com.example", 1))
    onnx.save(found, folder / "model.onnx")


def tried(folder: Path, *, limit_s: float = 60, limit_bytes: int = 2048 * MIB) -> dict[str, object]:
    return trial.Trial(graphs.CPU, limit_s=limit_s, limit_bytes=limit_bytes)(*network_of(folder))


def test_a_good_network_has_the_signature_that_it_has_without_a_process(tmp_path: Path) -> None:
    harmless(tmp_path)
    network, folder = network_of(tmp_path)
    assert tried(folder) == trial.inspect(network, folder, graphs.CPU)


def test_a_network_that_never_ends_is_rejected(tmp_path: Path) -> None:
    endless(tmp_path)
    with pytest.raises(NetworkRejected, match="within 5 s"):
        tried(tmp_path, limit_s=5)


def test_a_network_that_eats_memory_is_rejected(tmp_path: Path) -> None:
    greedy(tmp_path)
    with pytest.raises(NetworkRejected, match="memory"):
        tried(tmp_path)


def test_an_operator_of_a_library_that_is_not_here_is_rejected_by_its_name(tmp_path: Path) -> None:
    foreign(tmp_path)
    with pytest.raises(NetworkRejected, match=r"com\.example"):
        tried(tmp_path)


@pytest.mark.parametrize(("signal_number", "expected", "word"), [
    (11, NetworkRejected, "SIGSEGV"), (6, NetworkRejected, "SIGABRT"), (9, EngineUnavailable, "SIGKILL")])
def test_a_process_that_dies_is_told_by_its_signal(
        tmp_path: Path, signal_number: int, expected: type[Exception], word: str) -> None:
    endless(tmp_path)
    before = {each.pid for each in psutil.Process().children()}

    def end() -> None:
        found = waiting.until(lambda: [each for each in psutil.Process().children() if each.pid not in before
                                       and "trial.main" in " ".join(each.cmdline())], what="the child")
        found[0].send_signal(signal_number)

    thread = threading.Thread(target=end)
    thread.start()
    with pytest.raises(expected, match=word):
        tried(tmp_path)
    thread.join()


def test_one_that_the_system_ends_each_time_is_rejected(tmp_path: Path) -> None:
    judge = trial.Trial(graphs.CPU, limit_s=1, limit_bytes=0)
    network, _ = network_of(tmp_path)
    for _ in range(trial.KILLS - 1):
        with pytest.raises(EngineUnavailable):
            judge._judge(network, -9)
    with pytest.raises(NetworkRejected, match="memory"):
        judge._judge(network, -9)
