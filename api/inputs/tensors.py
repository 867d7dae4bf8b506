"""Inputs of `tensor`: Open Inference Protocol tensors, `data` flat or nested. Work: elements."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import msgspec

from api.inputs import faults
from models import signature as signatures

_FIELDS = ("name", "shape", "datatype", "data")


def checker(signature: Mapping[str, Any]) -> Callable[[bytes], float]:
    inputs: list[signatures.TensorShape] = signature["inputs"]
    fixed = inputs[0]["shape"][1:]
    # The usual network by far: one input [n, …] of fixed rows. The typed decode lacks UINT64's upper bound.
    usual = (len(inputs) == 1 and signature["item_axis"] and inputs[0]["datatype"] != "UINT64"
             and all(side > 0 for side in fixed))
    if not usual:
        return lambda body: _explain(faults.parse(body), inputs, batched=signature["item_axis"])
    decode = msgspec.json.Decoder(signatures.tensor_body(inputs)).decode
    nested = None
    if len(fixed) == 1:
        nested = msgspec.json.Decoder(signatures.tensor_body(inputs, nested=True)).decode
    one, many = [1, *fixed], prod(fixed)
    work = float(many)

    def check(body: bytes) -> float:
        try:
            (tensor,) = decode(body).inputs
            if tensor.shape == one and len(tensor.data) == many:
                return work
            if tensor.shape[1:] == fixed and 0 < tensor.shape[0] * many == len(tensor.data):
                return float(len(tensor.data))
        except (msgspec.DecodeError, RecursionError, ValueError):
            work_nested = _nested(nested, body, fixed) if nested is not None else None
            if work_nested is not None:
                return work_nested
        return _explain(faults.parse(body), inputs, batched=True)

    return check


def _nested(decode: Callable[[bytes], Any], body: bytes, fixed: list[int]) -> float | None:
    """The work of one matrix given as a list of rows; None where it isn't one that fits."""
    try:
        (tensor,) = decode(body).inputs
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None
    rows = tensor.data
    fits = tensor.shape == [len(rows), *fixed] and rows and all(len(row) == fixed[0] for row in rows)
    return float(len(rows) * fixed[0]) if fits else None


def _explain(value: Any, inputs: Sequence[signatures.TensorShape], *, batched: bool) -> float:
    """The work of a parsed input. Raises InputInvalid with all faults."""
    found = faults.Collector()
    work = 0
    rows: dict[str, int] = {}
    given = _tensors(value, inputs, found)
    for name, (pointer, tensor) in given.items():
        wanted = next(one for one in inputs if one["name"] == name)
        shape = tensor.get("shape")
        if "datatype" in tensor and tensor["datatype"] != wanted["datatype"]:
            found.add(f"{pointer}/datatype", "datatype",
                      f"{faults.shown(tensor['datatype'])} must be {faults.shown(wanted['datatype'])}")
        if "shape" in tensor and not _shape(shape, wanted["shape"]):
            found.add(f"{pointer}/shape", "shape",
                      f"{faults.shown(shape)} must be {_described(shape, wanted['shape'])}")
            shape = None
        if "data" in tensor:
            work += _data(f"{pointer}/data", tensor["data"], shape, wanted["datatype"], found)
        if batched and shape:
            rows[name] = shape[0]
    if len(set(rows.values())) > 1:
        found.add(f"{faults.POINTER}/inputs", "rows",
                  f"the first dimensions differ ({faults.shown(rows)}): each counts the same items")
    found.stop()
    return float(work)


def _tensors(value: Any, inputs: Sequence[signatures.TensorShape],
             found: faults.Collector) -> dict[str, tuple[str, dict[str, Any]]]:
    """The tensors with a known name, each with its pointer."""
    pointer = faults.POINTER
    if not isinstance(value, dict):
        found.add(pointer, "type", f"{faults.shown(value)} must be an object whose `inputs` list tensors: "
                                   f"{', '.join(_FIELDS)}")
        return {}
    found.fields(pointer, value, ("inputs",))
    tensors = value.get("inputs", [])
    if not isinstance(tensors, list):
        found.add(f"{pointer}/inputs", "type", f"{faults.shown(tensors)} must be a list of tensors")
        return {}
    names = [tensor["name"] for tensor in inputs]
    out: dict[str, tuple[str, dict[str, Any]]] = {}
    for at, tensor in enumerate(tensors):
        pointer = f"{faults.POINTER}/inputs/{at}"
        if not isinstance(tensor, dict):
            found.add(pointer, "type", f"{faults.shown(tensor)} must be an object of {', '.join(_FIELDS)}")
            continue
        found.fields(pointer, tensor, _FIELDS)
        name = tensor.get("name")
        if isinstance(name, str) and name in names:
            if name in out:
                found.add(f"{pointer}/name", "unique", f"{faults.shown(name)} is given twice: remove one")
            out[name] = (pointer, tensor)
        elif "name" in tensor:
            found.add(f"{pointer}/name", "name", f"{faults.shown(name)} " + faults.unknown(str(name), names))
    if "inputs" in value:
        for name in names:
            if name not in out:
                found.add(f"{faults.POINTER}/inputs", "required",
                          f"the tensor {faults.shown(name)} is missing: add it")
    return out


def _shape(given: Any, wanted: Sequence[int]) -> bool:
    return (isinstance(given, list) and len(given) == len(wanted)
            and all(type(side) is int and 0 < side < 1 << 31 and size in (-1, side)
                    for side, size in zip(given, wanted, strict=True)))


def _described(given: Any, wanted: Sequence[int]) -> str:
    text = f"[{', '.join('n' if size < 0 else str(size) for size in wanted)}]"
    if -1 in wanted:
        text += ", n being any size above 0"
    if isinstance(given, list) and _shape([1, *given], wanted):
        text += f": for one item send {[1, *given]}"
    return text


def _data(pointer: str, data: Any, shape: Sequence[int] | None, datatype: str,
          found: faults.Collector) -> int:
    """How many elements; checks each, and that they are flat or nested as the shape says."""
    if not isinstance(data, list):
        found.add(pointer, "type", f"{faults.shown(data)} must be a list of {datatype} values")
        return 0
    nested = bool(data) and isinstance(data[0], list)
    if shape is not None and not nested and len(data) != prod(shape):
        found.add(pointer, "length", f"has {len(data)} values: shape {list(shape)} needs {prod(shape)}")
    sides = list(shape) if nested and shape is not None else None
    return _elements(pointer, data, sides, datatype, found)


def _elements(pointer: str, data: list[Any], sides: list[int] | None, datatype: str,
              found: faults.Collector) -> int:
    if sides is not None and len(data) != sides[0]:
        found.add(pointer, "length", f"has {len(data)} entries: the shape needs {sides[0]}")
    inner = sides[1:] if sides is not None else None
    many = 0
    for at, value in enumerate(data):
        if found.full:
            break
        if isinstance(value, list) and (inner or sides is None):
            many += _elements(f"{pointer}/{at}", value, inner, datatype, found)
            continue
        many += 1
        if inner:
            found.add(f"{pointer}/{at}", "nesting",
                      f"{faults.shown(value)} must be a list of {inner[0]} entries")
            continue
        wrong = signatures.fits(value, datatype)
        if wrong:
            found.add(f"{pointer}/{at}", "value", f"{wrong}: the tensor is {datatype}")
    return many
