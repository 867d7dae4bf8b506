"""`tensor`: Open Inference Protocol in and out. Where every first dimension is free, it counts items.

An input of shape [k, …] is one item of k rows; a batch is the rows of its items, one after another.
"""

import struct
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from models.signature import DATATYPES, Signature, TensorShape, tensor_body
from workers.engine import DTYPES, Engine
from workers.tasks import floats, inspection
from workers.tasks.base import Item, ItemFault, Task

_FAULTS = (msgspec.DecodeError, RecursionError, struct.error, OverflowError, ValueError, KeyError, TypeError)


class TensorTask:
    """Any signature: an item's value is one array an input."""

    padded = False

    def __init__(self, manifest: Mapping[str, Any], signature: Signature) -> None:
        self._inputs = signature["inputs"]
        self._outputs = signature["outputs"]
        self._batched = signature["item_axis"]
        self._nulls = bool(manifest.get("allow_null"))
        self.outputs = tuple(tensor["name"] for tensor in self._outputs)

    def decode(self, bodies: Sequence[bytes]) -> list[Item | ItemFault]:
        return [self._decode(body) for body in bodies]

    def _decode(self, body: bytes) -> Item | ItemFault:
        try:
            return self._item(self._arrays(body))
        except _FAULTS as error:
            return ItemFault("input_invalid", f"the input doesn't fit the network's signature: {error}")

    def _arrays(self, body: bytes) -> list[np.ndarray]:
        given = {tensor["name"]: tensor for tensor in msgspec.json.decode(body)["inputs"]}
        return [_array(given[wanted["name"]], wanted) for wanted in self._inputs]

    def _item(self, arrays: list[np.ndarray]) -> Item:
        work = float(sum(array.size for array in arrays))
        if not self._batched:  # a key of its own: nothing may share its batch
            return Item(arrays, work, object())
        if len({len(array) for array in arrays}) > 1:
            raise ValueError("the inputs differ in their first dimension")
        return Item(arrays, work, tuple(array.shape[1:] for array in arrays))

    def stack(self, items: Sequence[Item]) -> dict[str, np.ndarray]:
        columns = zip(*(item.value for item in items), strict=True)
        return {tensor["name"]: parts[0] if len(parts) == 1 else np.concatenate(parts)
                for tensor, parts in zip(self._inputs, columns, strict=True)}

    def _rows(self, items: Sequence[Item]) -> list[int]:
        return [len(item.value[0]) for item in items]

    def split(self, outputs: Sequence[np.ndarray], items: Sequence[Item]) -> list[bytes | ItemFault]:
        if len(items) == 1:  # whatever the shapes are, all of it is this item's
            counts = None
        else:
            counts = self._rows(items)
            for name, values in zip(self.outputs, outputs, strict=True):
                if values.shape[:1] != (sum(counts),):
                    raise ValueError(f"output {name!r} is {list(values.shape)} for {sum(counts)} rows")
        parts = [_rendered(tensor, values, counts)
                 for tensor, values in zip(self._outputs, outputs, strict=True)]
        out: list[bytes | ItemFault] = [b'{"outputs":[' + b",".join(part) + b"]}"
                                        for part in zip(*parts, strict=True)]
        if not self._nulls:
            for name, values in zip(self.outputs, outputs, strict=True):
                _refuse_unfinite(name, values, counts, out)
        return out

    def sample(self, count: int, size: float) -> list[Item]:
        rng = np.random.default_rng(0)
        row = sum(prod(abs(side) for side in self._shape(tensor, 1)) for tensor in self._inputs)
        rows = max(1, round(size / max(row, 1))) if self._batched else 1
        shapes = [(tensor["datatype"], self._shape(tensor, rows)) for tensor in self._inputs]
        return [self._item([_made_up(datatype, shape, rng) for datatype, shape in shapes])
                for _ in range(count)]

    def _shape(self, tensor: TensorShape, rows: int) -> list[int]:
        return [rows if at == 0 and self._batched else abs(side) for at, side in enumerate(tensor["shape"])]


class RowsTask(TensorTask):
    """One numeric input [n, …] whose other dimensions are fixed: an item's value is its rows, packed."""

    def __init__(self, manifest: Mapping[str, Any], signature: Signature) -> None:
        super().__init__(manifest, signature)
        tensor = self._inputs[0]
        self._name, self._sides = tensor["name"], tensor["shape"][1:]
        self._dtype = np.dtype(DTYPES[tensor["datatype"]])
        self._elements = prod(self._sides)
        self._row_bytes = self._elements * self._dtype.itemsize
        self._body = msgspec.json.Decoder(tensor_body(self._inputs)).decode
        self._nested = (msgspec.json.Decoder(tensor_body(self._inputs, nested=True)).decode
                        if len(self._sides) == 1 else None)
        self._one = [1, *self._sides]
        self._code = str(DATATYPES[tensor["datatype"]].code)
        self._pack = struct.Struct(f"={self._elements}{self._code}").pack
        self._work = float(self._elements)

    def decode(self, bodies: Sequence[bytes]) -> list[Item | ItemFault]:
        body_type, pack, one, work = self._body, self._pack, self._one, self._work
        out: list[Item | ItemFault] = []
        for body in bodies:
            try:
                (tensor,) = body_type(body).inputs
                if tensor.shape == one:
                    out.append(Item(pack(*tensor.data), work))
                    continue
                if tensor.shape[1:] == self._sides and len(tensor.data) == prod(tensor.shape) > 0:
                    packed = struct.pack(f"={len(tensor.data)}{self._code}", *tensor.data)
                    out.append(Item(packed, float(len(tensor.data))))
                    continue
            except _FAULTS:
                pass  # nested data, or a fault: the slower ways tell
            out.append(self._matrix(body) or self._decode(body))
        return out

    def _matrix(self, body: bytes) -> Item | None:
        """Data given as a list of rows."""
        if self._nested is None:
            return None
        try:
            (tensor,) = self._nested(body).inputs
            if tensor.shape == [len(tensor.data), *self._sides] and tensor.data:
                packed = [self._pack(*row) for row in tensor.data]
                return Item(b"".join(packed), self._work * len(packed))
        except _FAULTS:
            pass
        return None

    def _item(self, arrays: list[np.ndarray]) -> Item:
        return Item(arrays[0].tobytes(), float(arrays[0].size))

    def stack(self, items: Sequence[Item]) -> dict[str, np.ndarray]:
        packed = items[0].value if len(items) == 1 else b"".join([item.value for item in items])
        return {self._name: np.frombuffer(packed, self._dtype).reshape(-1, *self._sides)}

    def _rows(self, items: Sequence[Item]) -> list[int]:
        return [len(item.value) // self._row_bytes for item in items]


def _array(given: Mapping[str, Any], wanted: TensorShape) -> np.ndarray:
    """One tensor as sent, data flat or nested. Raises ValueError where it doesn't fit."""
    name, datatype, shape = wanted["name"], wanted["datatype"], given["shape"]
    if given["datatype"] != datatype:
        raise ValueError(f"{name!r} must be {datatype}")
    if len(shape) != len(wanted["shape"]) or any(
            side < 1 or side != size != -1 for side, size in zip(shape, wanted["shape"], strict=True)):
        raise ValueError(f"{name!r} must have shape {wanted['shape']}, where -1 is any size above 0")
    if datatype == "BYTES":
        texts = np.array(given["data"], dtype=np.object_).reshape(shape)
        if not all(isinstance(text, str) for text in texts.flat):
            raise ValueError(f"{name!r} holds values that are not strings")
        return texts
    natural = np.array(given["data"])
    kinds = {"b": "b", "f": "iuf", "i": "iu", "u": "iu"}[np.dtype(DTYPES[datatype]).kind]
    if natural.dtype.kind not in kinds:
        raise ValueError(f"{name!r} holds values that are not {datatype}")
    with np.errstate(over="ignore"):
        values = natural.astype(DTYPES[datatype])
    if not (np.isfinite(values).all() if values.dtype.kind == "f" else (values == natural).all()):
        raise ValueError(f"{name!r} holds values out of the range of {datatype}")
    return values.reshape(shape)


def _rendered(tensor: TensorShape, values: np.ndarray, counts: Sequence[int] | None) -> list[bytes]:
    """The JSON object of this output for each item; `counts`: rows of each item, None: one item has all."""
    start = b'{"name":' + floats.encode(tensor["name"]) + b',"shape":'
    middle = b',"datatype":"' + tensor["datatype"].encode() + b'","data":['
    if counts is not None and values.dtype != np.object_ and all(count == 1 for count in counts):
        start += floats.encode([1, *values.shape[1:]]) + middle
        return [start + row + b"]}" for row in floats.rows(values.reshape(len(values), -1))]
    if counts is None:
        pieces = [values]
    else:
        pieces = [values[begin:end] for begin, end in pairwise(accumulate(counts, initial=0))]
    return [start + floats.encode(piece.shape) + middle + _flat(piece) + b"]}" for piece in pieces]


def _flat(values: np.ndarray) -> bytes:
    if values.dtype == np.object_:
        return floats.encode(values.ravel().tolist())[1:-1]
    return floats.rows(values.reshape(1, -1))[0]


def _refuse_unfinite(name: str, values: np.ndarray, counts: Sequence[int] | None,
                     out: list[bytes | ItemFault]) -> None:
    if values.ndim == 0:
        values = values.reshape(1)
    finite = floats.finite_rows(values)
    if finite is None:
        return
    bounds = pairwise(accumulate(counts, initial=0)) if counts is not None else [(0, len(finite))]
    for at, (begin, end) in enumerate(bounds):
        if not finite[begin:end].all():
            out[at] = ItemFault("output_not_finite", f"output {name!r} holds values that are not finite")


def _made_up(datatype: str, shape: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    if datatype == "BYTES":
        return np.full(shape, "", np.object_)
    dtype = np.dtype(DTYPES[datatype])
    # Whole numbers are often indices: 0 is one of the few that always exist.
    return rng.random(shape).astype(dtype) if dtype.kind == "f" else np.zeros(shape, dtype)


class TensorKind:
    name = "tensor"

    def inspect(self, manifest: Mapping[str, Any], engine: Engine, folder: Path) -> Signature:
        if not engine.inputs or not engine.outputs:
            raise inspection.rejected("tensor", engine, "at least one input and one output are needed")
        found = inspection.signature(manifest, engine)
        free = any(-1 in tensor["shape"][1:] for tensor in found["inputs"])
        # Made-up sizes of free dimensions prove nothing: the network may want others.
        return inspection.rehearse(found, engine, lambda signature: self.make(manifest, signature, folder),
                                   strict=not free)

    def make(self, manifest: Mapping[str, Any], signature: Mapping[str, Any], folder: Path) -> Task:  # noqa: ARG002
        inputs = signature["inputs"]
        plain = (signature["item_axis"] and len(inputs) == 1 and inputs[0]["datatype"] != "BYTES"
                 and all(side > 0 for side in inputs[0]["shape"][1:]))
        return (RowsTask if plain else TensorTask)(manifest, signature)  # type: ignore[arg-type]
