"""Small ONNX files made with onnx.helper, and tasks over them: what the tests of engines and tasks run on."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from api import inputs
from models import settings
from workers import engine as engines
from workers import tasks

CPU = settings.DEFAULT_CLASSES["cpu"]
FLOAT, INT64, INT32 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32
STRING, UINT8 = TensorProto.STRING, TensorProto.UINT8
EXAMPLES = Path(__file__).parent.parent / "examples" / "networks"
Value = tuple[str, int, Sequence[int | str | None]]


def save(folder: Path, nodes: Sequence[Any], takes: Sequence[Value], gives: Sequence[Value],
         weights: Mapping[str, np.ndarray] | None = None) -> Path:
    """An ONNX file of these nodes: each value is (name, type, shape)."""
    graph = helper.make_graph(
        nodes, "test", [helper.make_tensor_value_info(*value) for value in takes],
        [helper.make_tensor_value_info(*value) for value in gives],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()])
    network = helper.make_model(graph, opset_imports=[
        helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)], ir_version=9)
    path = folder / "model.onnx"
    onnx.save(network, path)
    return path


def node(kind: str, takes: Sequence[str], gives: Sequence[str], **options: Any) -> Any:
    return helper.make_node(kind, takes, gives, **options)


@dataclass
class Served:
    """A network as a worker holds it: engine, signature, task and the API's check."""

    engine: engines.OnnxEngine
    signature: Mapping[str, Any]
    task: Any
    check: inputs.Checker

    def run(self, values: Sequence[Any]) -> list[Any]:
        """Outputs (or faults) of JSON-able inputs that run as one batch; the API takes each of them too."""
        bodies = [json.dumps(value).encode() for value in values]
        works = [self.check(body) for body in bodies]
        items = self.task.decode(bodies)
        assert len(works) == len(items)
        arrays = self.engine.run(self.task.stack(items), self.task.outputs)
        return [json.loads(out) if isinstance(out, bytes) else out for out in self.task.split(arrays, items)]


def serve(path: Path, manifest: Mapping[str, Any]) -> Served:
    engine = engines.open_engine(path, CPU)
    kind = tasks.KINDS[manifest["task"]]
    # Through JSON, as the database keeps it.
    signature = json.loads(json.dumps(kind.inspect(manifest, engine, path.parent)))
    return Served(engine, signature, kind.make(manifest, signature, path.parent), inputs.checker(manifest, signature))


def tensor(name: str, shape: Sequence[int], datatype: str, data: Sequence[Any]) -> dict[str, Any]:
    return {"name": name, "shape": list(shape), "datatype": datatype, "data": data}
