"""Bodies of the job routes: their shapes, and how all that is wrong with one is found.

The fast path is one typed decode; only what fails it is looked at field by field.
"""

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from models.errors import Fault, HeadraceError, InvalidJson, InvalidRequest
from models.event import JOB_TYPES

MAX_JOBS = 1000
MAX_METADATA = 16
MAX_DEADLINE_S = 10 * 365 * 86400.0

Priority = Annotated[int, Meta(ge=0, le=9, description="0 goes first")]
Deadline = Annotated[float, Meta(gt=0, le=MAX_DEADLINE_S, description="seconds from acceptance")]
Class = Annotated[str, Meta(min_length=1, max_length=64)]
Classes = Annotated[list[Class], Meta(min_length=1, max_length=16)]
Metadata = Annotated[
    dict[Annotated[str, Meta(min_length=1, max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=MAX_METADATA)]
EventType = Literal["job.succeeded", "job.failed", "job.canceled", "job.expired"]


class Webhook(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Where the end of this one job is told. `events`: which ends; all of them if left out."""

    url: Annotated[str, Meta(min_length=1, max_length=2048)]
    events: Annotated[list[EventType], Meta(min_length=1, max_length=len(JOB_TYPES))] | None = None


class JobBody(Struct, forbid_unknown_fields=True):
    """One job to run. `model`: `name` or `name@version`."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    input: Raw
    priority: Priority | None = None
    deadline_s: Deadline | None = None
    hardware: Classes | None = None
    webhook: Webhook | None = None
    metadata: Metadata | None = None


class BatchBody(Struct, forbid_unknown_fields=True):
    """Jobs to run; each is accepted or refused by itself."""

    jobs: Annotated[list[Raw], Meta(min_length=1, max_length=MAX_JOBS)]


_JOB = msgspec.json.Decoder(JobBody)
_BATCH = msgspec.json.Decoder(BatchBody)
_ANY = msgspec.json.Decoder()
_OBJECT = msgspec.json.Decoder(dict[str, Raw])
_FIELDS: Mapping[str, msgspec.json.Decoder[Any]] = {
    item.name: msgspec.json.Decoder(item.type) for item in msgspec.structs.fields(JobBody)}
_REQUIRED = ("model", "input")

# Of \u escapes that aren't themselves escaped: NUL, which PostgreSQL's text can't hold, and halves of
# surrogate pairs, which are no characters.
_BAD_ESCAPE = re.compile(
    rb"\\u(?:0000|[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..\\u)[dD][c-fC-F])")


def decode_job(raw: bytes) -> JobBody:
    """The body of one job. Raises msgspec.ValidationError if it does not fit, InvalidJson if it is none."""
    try:
        return _JOB.decode(raw)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, RecursionError) as error:
        raise not_json(raw, error) from error


def decode_batch(raw: bytes) -> list[bytes]:
    """The JSON of each entry of a batch. Raises InvalidRequest or InvalidJson."""
    check_text(raw)
    try:
        return [bytes(entry) for entry in _BATCH.decode(raw).jobs]
    except msgspec.ValidationError as error:
        raise invalid((fault_of(error),)) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise not_json(raw, error) from error


def check_text(raw: bytes) -> None:
    """Raise unless these are UTF-8 without NUL or halves of surrogate pairs, escaped or not."""
    if not raw.isascii():
        try:
            raw.decode()
        except UnicodeDecodeError as error:
            raise InvalidJson(f"the body is not UTF-8: byte {error.start} can't be decoded; "
                              "encode it as UTF-8") from error
    if b"\\u" in raw and _BAD_ESCAPE.search(raw.replace(b"\\\\", b"__")):
        pointer = _bad_text(raw)
        raise invalid((Fault(pointer, "text", "holds \\u0000 or half a surrogate pair: send characters"),))


def _bad_text(raw: bytes) -> str:
    try:
        return _walk(json.loads(raw), "") or ""
    except (ValueError, RecursionError):
        return ""


def _walk(value: object, pointer: str) -> str | None:
    if isinstance(value, str):
        bad = "\0" in value or any("\ud800" <= c <= "\udfff" for c in value)
        return pointer if bad else None
    if isinstance(value, dict):
        for key, item in value.items():
            found = _walk(key, pointer) if not key.isprintable() else None
            found = _walk(item, f"{pointer}/{escape(key)}") if found is None else found
            if found is not None:
                return found
    elif isinstance(value, list):
        for index, item in enumerate(value):
            found = _walk(item, f"{pointer}/{index}")
            if found is not None:
                return found
    return None


_HINTS = {
    b"NaN": "; JSON has no NaN: send a finite number",
    b"Infinity": "; JSON has no Infinity: send a finite number",
    b"\xef\xbb\xbf": "; send UTF-8 without a byte order mark",
}


def not_json(raw: bytes, error: Exception) -> HeadraceError:
    if not raw:
        return InvalidJson("the body is empty; send a JSON object")
    if isinstance(error, RecursionError):
        return InvalidJson("the JSON is nested too deeply: no input of a network needs that many levels")
    hint = next((text for mark, text in _HINTS.items() if mark in raw), "")
    return InvalidJson(f"the body is not JSON: {error}{hint}")


def invalid(faults: tuple[Fault, ...]) -> InvalidRequest:
    text = "; ".join(f"{fault.pointer or 'the body'}: {fault.detail}" for fault in faults[:3])
    more = f"; and {len(faults) - 3} more" if len(faults) > 3 else ""
    return InvalidRequest(text + more, faults=faults)


def faults_of(raw: bytes) -> tuple[list[Fault], dict[str, Any]]:
    """Everything wrong with the shape of a job, and the fields that are right.

    Raises InvalidJson where only this second look shows that it is none: behind a first wrong field.
    """
    try:
        return _faults_of(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise not_json(raw, error) from error


def _faults_of(raw: bytes) -> tuple[list[Fault], dict[str, Any]]:
    try:
        members = _OBJECT.decode(raw)
    except msgspec.ValidationError as error:
        return [fault_of(error)], {}
    faults = [Fault(f"/{name}", "required", f"add {name!r}") for name in _REQUIRED if name not in members]
    values = {}
    for name, part in members.items():
        decoder = _FIELDS.get(name)
        if decoder is None:
            faults.append(Fault(f"/{escape(name)}", "unknown", f"a job has {', '.join(_FIELDS)}"))
        elif name == "metadata":
            faults += _metadata_faults(part)
        else:
            try:
                values[name] = decoder.decode(part)
            except msgspec.ValidationError as error:
                faults.append(fault_of(error, f"/{name}"))
    return faults, values


_METADATA = msgspec.json.Decoder(Metadata)
_PAIR = msgspec.json.Decoder(dict[str, Raw])


def _metadata_faults(raw: bytes) -> list[Fault]:
    """Each pair's own fault, since the typed decode stops at the first and does not name the key."""
    try:
        _FIELDS["metadata"].decode(raw)
    except msgspec.ValidationError as error:
        first = fault_of(error, "/metadata")
    else:
        return []
    try:
        pairs = _PAIR.decode(raw)
    except msgspec.ValidationError:
        return [first]
    faults = []
    for key, part in pairs.items():
        try:
            _METADATA.decode(b"{" + msgspec.json.encode(key) + b":" + bytes(part) + b"}")
        except msgspec.ValidationError as error:
            faults.append(Fault(f"/metadata/{escape(key)}", *_rule(error)))
    return faults or [first]


_AT = re.compile(r" - at `(?:key` in `)?\$(?P<path>[^`]*)`\Z")
_MISSING = re.compile(r"Object missing required field `(?P<name>.*)`\Z")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`\Z")
_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<index>\d+)\]|\[\.\.\.\]")


def fault_of(error: msgspec.ValidationError, under: str = "") -> Fault:
    """What msgspec says, as a fault with a JSON pointer."""
    text = str(error)
    at = _AT.search(text)
    pointer = under
    if at is not None:
        pointer += "".join(f"/{escape(step['name'] or step['index'])}" for step in _STEP.finditer(at["path"])
                           if step["name"] or step["index"])
        text = text[: at.start()]
    for pattern, rule, detail in ((_MISSING, "required", "add it"), (_UNKNOWN, "unknown", "remove it")):
        found = pattern.match(text)
        if found is not None:
            return Fault(f"{pointer}/{escape(found['name'])}", rule, detail)
    return Fault(pointer, *_rule(error))


def _rule(error: msgspec.ValidationError) -> tuple[str, str]:
    text = _AT.sub("", str(error)).replace("`", "")
    if ">=" in text or "<=" in text or "> 0" in text:
        return "range", text[:1].lower() + text[1:]
    return ("value" if text.startswith("Invalid") else "type"), text[:1].lower() + text[1:]


def escape(name: str) -> str:
    """One step of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")
