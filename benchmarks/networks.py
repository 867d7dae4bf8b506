"""The networks of the benchmarks, with random weights: what they answer does not matter, the cost does."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIZES = {
    "mlp": (30, 64, 64, 2),  # the framework is all of the cost
    "big": (30, 2048, 2048, 2048, 2048, 2),  # 12.6 M weights: one item is bound by memory, a batch is not
}


def make(folder: Path, name: str) -> Path:
    """A folder with network.yaml and model.onnx: float32 [n, 30] → [n, 2]."""
    target = folder / name
    target.mkdir(parents=True, exist_ok=True)
    onnx.save(_mlp(SIZES[name]), target / "model.onnx")
    (target / "network.yaml").write_text(
        f'name: {name}\nversion: "1"\ntask: tensor\nartifact: model.onnx\nhardware: [cpu, cuda]\n'
        "pinned: true\n")
    return target


def _mlp(sizes: Sequence[int]) -> onnx.ModelProto:
    rng = np.random.default_rng(2)
    nodes, weights, last = [], [], "X"
    for layer, (rows, columns) in enumerate(itertools.pairwise(sizes)):
        matrix = (rng.normal(size=(rows, columns)) * (2.0 / rows) ** 0.5).astype(np.float32)
        weights += [numpy_helper.from_array(matrix, f"w{layer}"),
                    numpy_helper.from_array(np.zeros(columns, np.float32), f"b{layer}")]
        nodes.append(helper.make_node("Gemm", [last, f"w{layer}", f"b{layer}"], [f"g{layer}"]))
        last = f"g{layer}"
        if layer < len(sizes) - 2:
            nodes.append(helper.make_node("Relu", [last], [f"r{layer}"]))
            last = f"r{layer}"
    nodes.append(helper.make_node("Softmax", [last], ["probabilities"], axis=1))
    graph = helper.make_graph(
        nodes, "mlp", [helper.make_tensor_value_info("X", TensorProto.FLOAT, [None, sizes[0]])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [None, sizes[-1]])], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
