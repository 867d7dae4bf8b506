"""Inputs of text tasks: a string. Work: characters / 4, about its tokens, up to what the network looks at."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from api.inputs import faults
from models.errors import Fault

_decode = msgspec.json.Decoder(str).decode


def checker(signature: Mapping[str, Any]) -> Callable[[bytes], float]:
    most = float(signature["max_tokens"] or 1e9)

    def check(body: bytes) -> float:
        try:
            text = _decode(body)
        except (msgspec.DecodeError, RecursionError):
            value = faults.parse(body)
            detail = f"{faults.shown(value)} must be a string; one job takes one text"
            raise faults.invalid(Fault(faults.POINTER, "type", detail)) from None
        if "\0" in text:
            raise faults.invalid(Fault(faults.POINTER, "nul", "contains \\u0000: remove it"))
        return min(max(1.0, len(text) / 4), most)

    return check
