"""Inputs of bytes: `{base64}`. Work: pixels of an image, bytes of any other file."""

import binascii
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from api.inputs import faults, pictures
from models.errors import Fault
from models.signature import Encoded

_POINTER = f"{faults.POINTER}/base64"
_decode = msgspec.json.Decoder(Encoded).decode


def image_checker(_signature: Mapping[str, Any]) -> Callable[[bytes], float]:
    def check(body: bytes) -> float:
        try:
            width, height = pictures.size(_content(body))
        except pictures.PictureInvalid as error:
            raise faults.invalid(Fault(_POINTER, error.rule, str(error))) from None
        return float(width * height)

    return check


def bytes_checker(_signature: Mapping[str, Any]) -> Callable[[bytes], float]:
    def check(body: bytes) -> float:
        return float(len(_content(body)))

    return check


def _content(body: bytes) -> bytes:
    try:
        text = _decode(body).base64
    except (msgspec.DecodeError, RecursionError) as error:
        _explain(faults.parse(body))
        raise faults.invalid(Fault(faults.POINTER, "type", str(error))) from None
    try:
        content = binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:  # also for characters outside ASCII
        detail = f"is not standard base64 with padding and without line breaks: {str(error).lower()}"
        raise faults.invalid(Fault(_POINTER, "base64", detail)) from None
    if not content:
        raise faults.invalid(Fault(_POINTER, "empty", "is empty: send the bytes of a file"))
    return content


def _explain(value: Any) -> None:
    """Raise InputInvalid with all faults of a parsed input."""
    found = faults.Collector()
    if isinstance(value, dict):
        found.fields(faults.POINTER, value, ("base64",))
        if "base64" in value and not isinstance(value["base64"], str):
            found.add(_POINTER, "type", f"{faults.shown(value['base64'])} must be a string of base64")
    else:
        found.add(faults.POINTER, "type", f'{faults.shown(value)} must be an object: {{"base64": "…"}}')
    found.stop()
