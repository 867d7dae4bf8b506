"""A network's signature, and the msgspec types of the JSON inputs that fit it: what both sides must agree on.

A signature is JSON, see `Signature`. Datatypes are Open Inference Protocol names; -1 in a shape marks a free
dimension.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict, Union

import msgspec


class TensorShape(TypedDict):
    """One tensor of a signature."""

    name: str
    datatype: str
    shape: list[int]


class Result(TypedDict):
    """Which outputs a task reads; `tensor` has None: it gives all. `label` is skl2onnx's label output."""

    kind: str  # scores, value or embedding
    output: str
    label: str | None


class Signature(TypedDict):
    """What a worker found in the file. `item_axis`: the first dimension of every tensor counts items."""

    task: str
    inputs: list[TensorShape]
    outputs: list[TensorShape]
    item_axis: bool
    columns: list[str] | None
    labels: list[str] | None
    max_tokens: int | None
    result: Result | None


@dataclass(frozen=True, slots=True)
class Datatype:
    """How JSON values of a tensor are checked and packed. `code` is struct's, None for strings (BYTES)."""

    kind: Literal["float", "int", "bool", "text"]
    code: str | None
    least: float | int | None = None
    most: float | int | None = None


# The largest doubles that still round to a finite FP32 and FP16.
_FP32_MOST = float.fromhex("0x1.fffffefffffffp+127")
_FP16_MOST = 65519.99999999999

DATATYPES: Mapping[str, Datatype] = {
    "BOOL": Datatype("bool", "?"),
    "INT8": Datatype("int", "b", -(1 << 7), (1 << 7) - 1),
    "INT16": Datatype("int", "h", -(1 << 15), (1 << 15) - 1),
    "INT32": Datatype("int", "i", -(1 << 31), (1 << 31) - 1),
    "INT64": Datatype("int", "q", -(1 << 63), (1 << 63) - 1),
    "UINT8": Datatype("int", "B", 0, (1 << 8) - 1),
    "UINT16": Datatype("int", "H", 0, (1 << 16) - 1),
    "UINT32": Datatype("int", "I", 0, (1 << 32) - 1),
    "UINT64": Datatype("int", "Q", 0, (1 << 64) - 1),
    "FP16": Datatype("float", "e", -_FP16_MOST, _FP16_MOST),
    "FP32": Datatype("float", "f", -_FP32_MOST, _FP32_MOST),
    "FP64": Datatype("float", "d"),
    "BYTES": Datatype("text", None),
}


def fits(value: object, datatype: str) -> str | None:
    """None if a JSON value is right for the datatype, else what is wrong with it."""
    kind = DATATYPES[datatype]
    if kind.kind == "text":
        if not isinstance(value, str):
            return f"{_shown(value)} is not a string"
        return "it contains \\u0000: remove it" if "\0" in value else None
    if kind.kind == "bool":
        return None if isinstance(value, bool) else f"{_shown(value)} is not true or false"
    if isinstance(value, bool) or not isinstance(value, int | (float if kind.kind == "float" else int)):
        return f"{_shown(value)} is not {'a number' if kind.kind == 'float' else 'a whole number'}"
    if kind.least is not None and kind.most is not None and not kind.least <= value <= kind.most:
        return f"{_shown(value)} is out of the range of {datatype}"
    return None


def element(datatype: str) -> Any:
    """The msgspec type of one element: its kind and range. UINT64's upper bound is left to the packing."""
    kind = DATATYPES[datatype]
    if kind.kind == "text":
        return Annotated[str, msgspec.Meta(pattern=r"^[^\x00]*\Z")]
    if kind.kind == "bool":
        return bool
    plain = float if kind.kind == "float" else int
    if kind.least is None:
        return plain
    if datatype == "UINT64":  # msgspec takes bounds up to 2⁶³ only
        return Annotated[int, msgspec.Meta(ge=0)]
    return Annotated[plain, msgspec.Meta(ge=kind.least, le=kind.most)]


def tensor_body(inputs: Sequence[TensorShape], *, nested: bool = False) -> type[Any]:
    """The type of a `tensor` input `{inputs: [{name, shape, datatype, data}]}`, with `data` flat or nested.

    The name tells which tensor, hence the type of its elements; that each comes once is left to the caller.
    """
    types: list[Any] = []
    for at, tensor in enumerate(inputs):
        data: Any = element(tensor["datatype"])
        for _ in range(len(tensor["shape"]) if nested else 1):
            data = list[data]
        types.append(msgspec.defstruct(
            f"Input{at}", [("shape", list[int]), ("datatype", Literal[tensor["datatype"]]), ("data", data)],
            tag_field="name", tag=tensor["name"], forbid_unknown_fields=True, gc=False))
    return msgspec.defstruct("TensorBody", [("inputs", list[Union[tuple(types)]])],  # type: ignore[misc] # noqa: UP007
                             forbid_unknown_fields=True, gc=False)


def row_types(signature: Mapping[str, Any]) -> tuple[type[Any], Any]:
    """The types of a `tabular` input: an object of columns (fields in the signature's order), and a list."""
    datatypes = column_datatypes(signature)
    columns = signature["columns"]
    fields = [(f"c{at}", element(datatype)) for at, datatype in enumerate(datatypes)]
    named = msgspec.defstruct("Row", fields, forbid_unknown_fields=True, gc=False,
                              rename={f"c{at}": column for at, column in enumerate(columns)})
    if len(set(datatypes)) == 1:  # a list of fixed length decodes faster than a tuple of types
        many = len(datatypes)
        return named, Annotated[list[fields[0][1]],  # type: ignore[misc]
                                msgspec.Meta(min_length=many, max_length=many)]
    return named, tuple[tuple(kind for _, kind in fields)]  # type: ignore[misc]


def column_datatypes(signature: Mapping[str, Any]) -> list[str]:
    """The datatype of each column: one [n, f] tensor gives all, else one [n, 1] tensor a column."""
    inputs = signature["inputs"]
    if len(inputs) == 1:
        return [inputs[0]["datatype"]] * len(signature["columns"])
    return [tensor["datatype"] for tensor in inputs]


class Encoded(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """An input of bytes: `{base64}`."""

    base64: str


def _shown(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 40 else text[:37] + "…"
