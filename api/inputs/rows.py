"""Inputs of `tabular`: an object of columns, or a list of values in the signature's order. Work: columns."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from api.inputs import faults
from models import signature as signatures
from models.errors import Fault


def checker(signature: Mapping[str, Any]) -> Callable[[bytes], float]:
    named, plain = signatures.row_types(signature)
    decode = msgspec.json.Decoder(named | plain).decode
    columns = list(signature["columns"])
    datatypes = signatures.column_datatypes(signature)
    work = float(len(columns))
    exact = "UINT64" not in datatypes

    def check(body: bytes) -> float:
        try:
            decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            _explain(faults.parse(body), columns, datatypes)
            raise faults.invalid(Fault(faults.POINTER, "type", str(error))) from None
        if not exact:  # the typed decode knows no bound above 2⁶³
            _explain(faults.parse(body), columns, datatypes)
        return work

    return check


def _explain(value: Any, columns: list[str], datatypes: list[str]) -> None:
    """Raise InputInvalid with all faults of a parsed input."""
    found = faults.Collector()
    if isinstance(value, dict):
        found.fields(faults.POINTER, value, columns)
        pairs = [(faults.escape(name), value[name], datatype)
                 for name, datatype in zip(columns, datatypes, strict=True) if name in value]
    elif isinstance(value, list):
        if len(value) != len(columns):
            order = ", ".join(columns[:8]) + (" …" if len(columns) > 8 else "")
            found.add(faults.POINTER, "length",
                      f"has {len(value)} values: {len(columns)} are needed, in the order {order}")
        pairs = [(str(at), item, datatype)
                 for at, (item, datatype) in enumerate(zip(value, datatypes, strict=False))]
    else:
        pairs = []
        found.add(faults.POINTER, "type",
                  f"{faults.shown(value)} must be an object of columns or a list of values")
    for name, item, datatype in pairs:
        wrong = signatures.fits(item, datatype)
        if wrong:
            found.add(f"{faults.POINTER}/{name}", "value", f"{wrong}: the column is {datatype}")
    found.stop()
