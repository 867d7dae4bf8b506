"""The second look at a refused input: collecting its faults, and reading JSON that msgspec refuses."""

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from models.errors import Fault, InputInvalid

POINTER = "/input"
_MOST = 32  # of a million wrong numbers the first few say it all
_LONE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|"
                   rb"(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}")


class Collector:
    """The faults of one input, in the order found."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self._more = 0

    def add(self, pointer: str, rule: str, detail: str) -> None:
        if len(self.faults) < _MOST:
            self.faults.append(Fault(pointer, rule, detail))
        else:
            self._more += 1

    @property
    def full(self) -> bool:
        """Further faults would only be counted: long data need not be gone through to its end."""
        return len(self.faults) >= _MOST

    def fields(self, pointer: str, given: Mapping[str, Any], known: Iterable[str]) -> None:
        """Each known field must be there, and no other."""
        known = list(known)
        for name in given:
            if name not in known:
                self.add(f"{pointer}/{escape(name)}", "unknown_field", unknown(name, known))
        for name in known:
            if name not in given:
                self.add(f"{pointer}/{escape(name)}", "required", "is missing: add it")

    def stop(self) -> None:
        """Raise what was found, if anything."""
        if self.faults:
            if self._more:
                self.faults.append(Fault(POINTER, "more", f"{self._more} or more others are not listed"))
            raise invalid(*self.faults)


def invalid(*faults: Fault) -> InputInvalid:
    return InputInvalid("The input does not fit the network's signature: "
                        + "; ".join(f"{fault.pointer} {fault.detail}" for fault in faults[:3])
                        + ("; …" if len(faults) > 3 else ""), faults=faults)


def parse(body: bytes) -> Any:
    """The JSON value of an input that the typed decode refused. Raises InputInvalid if it can't be read."""
    try:
        return msgspec.json.decode(body)
    except RecursionError:
        fault = Fault(POINTER, "depth", "is nested too deeply: flatten it")
    except msgspec.ValidationError as error:
        fault = Fault(POINTER, "range", f"holds a number that no datatype holds ({error}): make it smaller")
    except msgspec.DecodeError as error:
        if _LONE.search(body):
            fault = Fault(POINTER, "surrogate",
                          "holds half of a surrogate pair (\\ud800 to \\udfff): send the whole character")
        else:
            fault = Fault(POINTER, "json", f"is not valid JSON in UTF-8: {error}")
    raise invalid(fault)


def unknown(name: str, known: Iterable[str]) -> str:
    """The detail for a name that doesn't exist: the nearest that does, else all."""
    known = list(known)
    near = difflib.get_close_matches(name[:100], known, 1)
    if near:
        return f"is not known; did you mean {shown(near[0])}?"
    listed = ", ".join(shown(text) for text in known[:20])
    return f"is not known: use {listed}" + (" …" if len(known) > 20 else "")


def shown(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:59] + "…"


def escape(name: str) -> str:
    """A name as a part of a JSON pointer."""
    return name[:100].replace("~", "~0").replace("/", "~1")
