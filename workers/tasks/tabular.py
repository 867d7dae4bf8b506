"""`tabular`: a row of columns in, `{label, probabilities}` or `{value}` out.

The network takes one [n, f] tensor, or one [n, 1] tensor a column as skl2onnx makes them.
"""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from models.errors import NetworkRejected
from models.signature import DATATYPES, Result, Signature, column_datatypes, row_types
from workers.engine import DTYPES, Engine, TensorSpec
from workers.tasks import floats, inspection
from workers.tasks.base import Item, ItemFault, Task
from workers.tasks.scores import NOT_FINITE, Scores

_WANTED = ("a tabular network takes one [n, f] tensor or one [n, 1] tensor a column, and gives one [n, k] "
           "score tensor, one [n] or [n, 1] value tensor, or skl2onnx's pair of labels and probabilities")


class _Value:
    """The output side of a network that gives one number."""

    def __init__(self, manifest: Mapping[str, Any], output: str) -> None:
        self.outputs: tuple[str, ...] = (output,)
        self._nulls = bool(manifest.get("allow_null"))

    def split(self, outputs: Sequence[np.ndarray], items: Sequence[Item]) -> list[bytes | ItemFault]:
        values = outputs[0].reshape(-1)
        if len(values) != len(items):
            raise ValueError(f"{len(values)} values for {len(items)} items")
        finite = None if self._nulls else floats.finite_rows(values)
        return [NOT_FINITE if finite is not None and not finite[at] else b'{"value":' + text + b"}"
                for at, text in enumerate(floats.rows(values.reshape(-1, 1)))]


class TabularTask:
    """An item's value is its row: packed numbers for a single tensor, else one value a column."""

    padded = False

    def __init__(self, manifest: Mapping[str, Any], signature: Signature) -> None:
        named, plain = row_types(signature)
        self._row = msgspec.json.Decoder(named | plain).decode
        self._inputs = signature["inputs"]
        self._datatypes = column_datatypes(signature)
        self._batched = signature["item_axis"]
        result = signature["result"]
        self._results = (_Value(manifest, result["output"]) if result and result["kind"] == "value"
                         else Scores(manifest, signature, "probabilities"))
        self.outputs: tuple[str, ...] = self._results.outputs
        self.split = self._results.split
        self._dtype = np.dtype(DTYPES[self._datatypes[0]])
        code = DATATYPES[self._datatypes[0]].code
        single = len(self._inputs) == 1 and code is not None
        self._pack = struct.Struct(f"={len(self._datatypes)}{code}").pack if single else None

    def decode(self, bodies: Sequence[bytes]) -> list[Item | ItemFault]:
        work = float(len(self._datatypes))
        out: list[Item | ItemFault] = []
        for body in bodies:
            try:
                row = self._row(body)
                if not isinstance(row, list | tuple):
                    row = msgspec.structs.astuple(row)
                value = row if self._pack is None else self._pack(*row)
            except (msgspec.DecodeError, RecursionError, struct.error, OverflowError) as error:
                out.append(ItemFault("input_invalid", f"the input doesn't fit the columns: {error}"))
            else:
                out.append(Item(value, work, None if self._batched else object()))
        return out

    def stack(self, items: Sequence[Item]) -> dict[str, np.ndarray]:
        if self._pack is not None:
            packed = b"".join([item.value for item in items])
            return {self._inputs[0]["name"]: np.frombuffer(packed, self._dtype).reshape(len(items), -1)}
        if len(self._inputs) == 1:
            return {self._inputs[0]["name"]: np.array([item.value for item in items], np.object_)}
        columns = zip(*(item.value for item in items), strict=True)
        return {tensor["name"]: np.array(column, DTYPES[tensor["datatype"]]).reshape(-1, 1)
                for tensor, column in zip(self._inputs, columns, strict=True)}

    def sample(self, count: int, size: float) -> list[Item]:  # noqa: ARG002 - every row costs the same
        rng = np.random.default_rng(0)
        made = {"int": 0, "bool": False, "text": ""}
        kinds = [DATATYPES[datatype].kind for datatype in self._datatypes]
        rows = [[made.get(kind, float(rng.random())) for kind in kinds] for _ in range(count)]
        return [Item(row if self._pack is None else self._pack(*row), float(len(row)),
                     None if self._batched else object()) for row in rows]


class TabularKind:
    name = "tabular"

    def inspect(self, manifest: Mapping[str, Any], engine: Engine, folder: Path) -> Signature:
        columns = _columns(manifest, engine)
        found = _result(manifest, engine)
        labels = None
        if found["kind"] == "scores":
            classes = next(spec for spec in engine.outputs if spec.name == found["output"]).shape[1]
            if classes < 0:
                classes = _classes(engine, found, columns)
            labels = inspection.labels(manifest, folder, classes)
        elif manifest.get("labels") is not None:
            raise inspection.rejected(self.name, engine, "labels are given, but its output is a value")
        signature = inspection.signature(manifest, engine, columns=columns, labels=labels, result=found)
        signature = inspection.rehearse(signature, engine, lambda sig: self.make(manifest, sig, folder))
        if found["label"] is not None:
            _refuse_shifted_labels(signature, engine, self.make(manifest, signature, folder))
        return signature

    def make(self, manifest: Mapping[str, Any], signature: Mapping[str, Any], folder: Path) -> Task:  # noqa: ARG002
        return TabularTask(manifest, signature)  # type: ignore[arg-type]


def _columns(manifest: Mapping[str, Any], engine: Engine) -> list[str]:
    given = manifest.get("columns")
    inputs = engine.inputs
    if len(inputs) == 1 and len(inputs[0].shape) == 2:
        width = inputs[0].shape[1]
        if width == -1:
            width = len(given) if given else 0
            if not width:
                raise NetworkRejected("the file leaves the number of columns open: name them with `columns:`")
        columns = list(given) if given else [f"f{at}" for at in range(width)]
        if len(columns) != width:
            raise NetworkRejected(f"`columns:` names {len(columns)}, but the network takes {width}: "
                                  f"{inspection.describe(inputs)}")
        return columns
    if len(inputs) > 1 and all(len(spec.shape) == 2 and spec.shape[1] == 1 for spec in inputs):
        names = [spec.name for spec in inputs]
        if given and list(given) != names:
            raise NetworkRejected("leave `columns:` out, or give the names of the inputs, in order: "
                                  + ", ".join(names))
        return names
    raise inspection.rejected("tabular", engine, _WANTED)


def _result(manifest: Mapping[str, Any], engine: Engine) -> Result:
    pair = _pair(engine)
    if pair is not None and manifest.get("output") in (None, pair[0].name):
        return Result(kind="scores", output=pair[0].name, label=pair[1].name)
    wanted = [("scores", inspection.is_scores), ("value", _is_value)]
    name = manifest.get("output")
    for kind, fits in wanted:
        if any(fits(spec) for spec in engine.outputs if name in (None, spec.name)):
            found = inspection.output(manifest, engine, fits, _WANTED)
            return Result(kind=kind, output=found.name, label=None)
    raise inspection.rejected("tabular", engine, _WANTED if name is None else
                              f"the output {name!r} is missing or no score or value tensor")


def _is_value(spec: TensorSpec) -> bool:
    return (spec.datatype in (*inspection.FLOATS, *inspection.WHOLE)
            and (len(spec.shape) == 1 or (len(spec.shape) == 2 and spec.shape[1] == 1)))


def _pair(engine: Engine) -> tuple[TensorSpec, TensorSpec] | None:
    """skl2onnx's classifier: probabilities [n, k] and a label of whole numbers or names [n]."""
    if len(engine.outputs) != 2:
        return None
    for label, scores in (engine.outputs, engine.outputs[::-1]):
        whole = label.datatype in (*inspection.WHOLE, "BYTES")
        if whole and label.shape and label.shape[1:] in ((), (1,)) and inspection.is_scores(scores):
            return scores, label
    return None


def _rows(engine: Engine, columns: Sequence[str], count: int) -> dict[str, np.ndarray]:
    """Rows spread over several orders of magnitude, so that more than one class has a chance to win."""
    rng = np.random.default_rng(0)
    width = len(columns) if len(engine.inputs) == 1 else 1
    out = {}
    for spec in engine.inputs:
        dtype = np.dtype(DTYPES[spec.datatype])
        rows = 1 if spec.shape[0] == 1 else count
        values = rng.normal(size=(rows, width)) * 10.0 ** rng.integers(-2, 4, (rows, 1))
        if dtype == np.object_:
            out[spec.name] = np.full((rows, width), "", np.object_)
        else:
            out[spec.name] = np.abs(np.clip(values, -100, 100)).astype(dtype) if dtype.kind in "iub" \
                else values.astype(dtype)
    return out


def _classes(engine: Engine, found: Result, columns: Sequence[str]) -> int:
    """The number of classes where the file leaves it open: what a run gives."""
    try:
        (scores,) = engine.run(_rows(engine, columns, 1), [found["output"]])
    except Exception as error:
        raise NetworkRejected(f"it loads, but can't run a made-up input: {error}") from error
    return int(scores.shape[-1])


def _refuse_shifted_labels(signature: Signature, engine: Engine, task: Task) -> None:
    """Whole-number labels are taken as indices of the scores: classes 1…k would all be named one off."""
    if not signature["item_axis"]:
        return
    scores, label = engine.run(_rows(engine, signature["columns"] or [], 64), task.outputs)
    if label.dtype == np.object_:
        return
    shift = np.unique(label.reshape(-1) - scores.argmax(axis=1))
    if len(shift) == 1 and shift[0]:
        raise NetworkRejected(
            f"its labels are class numbers that differ from the index of the highest score by {shift[0]}: "
            "number the classes from 0 (scikit-learn's LabelEncoder), and give their names with `labels:`")
