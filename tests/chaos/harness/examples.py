"""The network of the runs, inputs of each kind, and what must become of them."""

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from tests import graphs
from tests.chaos.harness.hooks.sitecustomize import POISON

MODEL = "deep"
IN, WIDTH, DEPTH, OUT = 16, 512, 32, 4
NOT_A_NUMBER = 3.0  # the first value of an input whose output isn't finite
LARGE_ROWS = 32  # input and output over MAX_INLINE_BYTES, so that both become blobs
MAX_INLINE_BYTES = 1024
CHUNK = 256  # rows of the direct run at a time
VALID, LARGE, INVALID, NOT_FINITE, POISONED = "valid", "large", "invalid", "not_finite", "poison"


@dataclass(frozen=True, slots=True)
class Example:
    """One job to be sent. `tag` goes into its metadata, so that its row can be found without its id."""

    tag: str
    kind: str
    rows: Sequence[Sequence[float]]
    options: Mapping[str, Any] = field(default_factory=dict)  # deadline_s, webhook, priority

    def document(self) -> dict[str, Any]:
        data = [value for row in self.rows for value in row]
        if self.kind == INVALID:
            data = data[:-1]
        given = {"name": "x", "shape": [len(self.rows), IN], "datatype": "FP32", "data": data}
        return {"model": MODEL, "input": {"inputs": [given]}, "metadata": {"tag": self.tag}, **self.options}

    def as_dict(self) -> dict[str, Any]:
        return {"tag": self.tag, "kind": self.kind, **self.options}


def example(chance: random.Random, tag: str, kind: str, **options: Any) -> Example:
    count = LARGE_ROWS if kind == LARGE else 1
    rows = [[round(chance.uniform(-1, 1), 4) for _ in range(IN)] for _ in range(count)]
    if kind == NOT_FINITE:
        rows[0][0] = NOT_A_NUMBER
    elif kind == POISONED:
        rows[0][0] = POISON
    return Example(tag, kind, rows, options)


def network(folder: Path) -> Path:
    """A folder with a network that is heavy enough to be killed in, and whose outputs tell inputs apart.

    An input that starts with NOT_A_NUMBER gives 0/0.
    """
    rng = np.random.default_rng(7)
    sizes = [IN, *[WIDTH] * DEPTH, OUT]
    first = np.zeros((IN, 1), np.float32)
    first[0] = 1
    weights: dict[str, np.ndarray] = {"first": first, "limit": np.full(1, NOT_A_NUMBER, np.float32)}
    nodes, value = [], "x"
    for layer, (rows, columns) in enumerate(itertools.pairwise(sizes)):
        weights[f"w{layer}"] = rng.normal(0, 1 / np.sqrt(rows), (rows, columns)).astype(np.float32)
        nodes += [graphs.node("MatMul", [value, f"w{layer}"], [f"m{layer}"]),
                  graphs.node("Tanh", [f"m{layer}"], [f"t{layer}"])]
        value = f"t{layer}"
    nodes += [graphs.node("MatMul", ["x", "first"], ["x0"]), graphs.node("Sub", ["x0", "limit"], ["d"]),
              graphs.node("Div", ["d", "d"], ["one"]), graphs.node("Mul", [value, "one"], ["y"])]
    folder.mkdir(parents=True, exist_ok=True)
    graphs.save(folder, nodes, [("x", graphs.FLOAT, ["n", IN])], [("y", graphs.FLOAT, ["n", OUT])], weights)
    (folder / "network.yaml").write_text(
        f"name: {MODEL}\nversion: '1'\ntask: tensor\nartifact: model.onnx\nhardware: [cpu]\n"
        "batching: {max_items: 64}\npinned: true\n")
    return folder


def expected(folder: Path, given: Sequence[Example]) -> dict[str, list[float]]:
    """The output of each example by its tag, from ONNX Runtime called directly."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])
    wanted = [each for each in given if each.kind in (VALID, LARGE)]
    rows = np.asarray([row for each in wanted for row in each.rows], np.float32).reshape(-1, IN)
    values = np.concatenate([np.empty((0, OUT), np.float32), *(
        session.run(["y"], {"x": rows[at:at + CHUNK]})[0] for at in range(0, len(rows), CHUNK))])
    out: dict[str, list[float]] = {}
    at = 0
    for each in wanted:
        out[each.tag] = [round(float(value), 7) for value in values[at:at + len(each.rows)].reshape(-1)]
        at += len(each.rows)
    return out
