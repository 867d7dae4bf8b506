"""network.yaml: how a network is to be served, parsed into a plain JSON-able dict; all faults at once."""

import re
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

import yaml

from models.errors import Fault, InvalidRequest

TASKS = ("tensor", "tabular", "text-embedding", "text-classification", "image-classification",
         "bytes-classification")
MAX_BYTES = 1 << 20  # a manifest with a long list of labels; larger ones belong in a file
MAX_ITEMS = 1024  # the limit on a batch where the manifest gives none

_TEXT = ("text-embedding", "text-classification")
_CLASSES = ("tabular", "text-classification", "image-classification", "bytes-classification")
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?\Z")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_HARDWARE = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}\Z")
_OUTSIDE = re.compile(r"^/|\\|^[A-Za-z]:")

_PRINTABLE = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,256}\Z")

Check = Callable[["_Reader", str, Any], Any]


class _Reader:
    """Collects the faults of one manifest."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []

    def fault(self, pointer: str, rule: str, detail: str) -> None:
        self.faults.append(Fault(pointer, rule, detail))

    def section(self, pointer: str, given: Any, fields: Mapping[str, tuple[Check, Any]]) -> dict[str, Any]:
        """The checked values of `fields`, with their defaults; unknown names are faults."""
        if not isinstance(given, dict):
            self.fault(pointer or "/", "type", f"must be a mapping of {', '.join(fields)}")
            return {name: default for name, (_, default) in fields.items()}
        for name in given:
            if name not in fields:
                self.fault(f"{pointer}/{name}", "unknown_field",
                           f"no such field; known are {', '.join(fields)}")
        out = {}
        for name, (check, default) in fields.items():
            value = given.get(name)
            if value is not None:
                out[name] = check(self, f"{pointer}/{name}", value)
            elif default is _REQUIRED:
                self.fault(f"{pointer}/{name}", "required", "is missing")
            else:
                out[name] = default
        return out


class _Loader(yaml.SafeLoader):
    """Safe YAML without aliases (a few expand to gigabytes) and repeated keys (the last would win)."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not allowed: write the value out")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value]
        for name in names:
            if names.count(name) > 1:
                raise yaml.YAMLError(f"the key {name!r} is given more than once")
        return super().construct_mapping(node, deep)


_REQUIRED: Any = object()


def _text(pattern: re.Pattern[str], rule: str) -> Check:
    def check(reader: _Reader, pointer: str, value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            reader.fault(pointer, "type", f"{value!r} must be text: put it in quotes")
        elif not pattern.match(value):
            reader.fault(pointer, "pattern", f"{value!r} must be {rule}")
        return value
    return check


def _choice(*allowed: str) -> Check:
    def check(reader: _Reader, pointer: str, value: Any) -> Any:
        if value not in allowed:
            reader.fault(pointer, "choice", f"{value!r} must be one of {', '.join(allowed)}")
        return value
    return check


def _whole(least: int, most: int) -> Check:
    def check(reader: _Reader, pointer: str, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            reader.fault(pointer, "range", f"{value!r} must be a whole number from {least} to {most}")
        return value
    return check


def _number(least: float, most: float) -> Check:
    def check(reader: _Reader, pointer: str, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            reader.fault(pointer, "range", f"{value!r} must be a number from {least:g} to {most:g}")
        return value
    return check


def _flag(reader: _Reader, pointer: str, value: Any) -> Any:
    if not isinstance(value, bool):
        reader.fault(pointer, "type", f"{value!r} must be true or false")
    return value


def _path(reader: _Reader, pointer: str, value: Any) -> Any:
    """A relative path that stays inside the network's folder."""
    if not isinstance(value, str) or not _PRINTABLE.match(value):
        reader.fault(pointer, "type", f"{value!r} must be a relative path")
    elif "://" in value:
        reader.fault(pointer, "not_built", f"{value!r}: files by URL aren't built yet; put it in the folder")
    elif _OUTSIDE.search(value) or ".." in PurePosixPath(value).parts:
        reader.fault(pointer, "path",
                     f"{value!r} must be relative, with forward slashes, and stay inside the folder")
    else:
        return str(PurePosixPath(value))
    return value


def _several(check: Check, *, unique: bool = True, least: int = 1) -> Check:
    def several(reader: _Reader, pointer: str, value: Any) -> Any:
        if not isinstance(value, list) or len(value) < least:
            reader.fault(pointer, "type", f"must be a list of {least} or more")
            return value
        out = [check(reader, f"{pointer}/{at}", item) for at, item in enumerate(value)]
        if unique and len({str(item) for item in out}) != len(out):
            reader.fault(pointer, "unique", "holds a name twice: each may come once")
        return out
    return several


_word = _text(_PRINTABLE, "1 to 256 printable characters")


def _labels(reader: _Reader, pointer: str, value: Any) -> Any:
    check = _path if isinstance(value, str) else _several(_word)
    return check(reader, pointer, value)


def _image(reader: _Reader, pointer: str, value: Any) -> Any:
    channels = _several(_number(-1e6, 1e6), unique=False)
    out = reader.section(pointer, value, IMAGE)
    for name in ("mean", "std"):
        if out.get(name) is not None:
            channels(reader, f"{pointer}/{name}", out[name])
    if isinstance(out.get("std"), list) and 0 in out["std"]:
        reader.fault(f"{pointer}/std", "range", "must not hold 0: pixels are divided by it")
    return out


def _batching(reader: _Reader, pointer: str, value: Any) -> Any:
    return reader.section(pointer, value, BATCHING)


def _bytes(reader: _Reader, pointer: str, value: Any) -> Any:
    out = reader.section(pointer, value, BYTES)
    if all(isinstance(out.get(name), int) for name in ("head", "tail", "block")):
        if not out["head"] + out["tail"]:
            reader.fault(pointer, "range", "head and tail must not both be 0")
        if out["block"] < max(out["head"], out["tail"]):
            reader.fault(f"{pointer}/block", "range", "must be at least as large as head and tail")
    return out


def _as_given(_reader: _Reader, _pointer: str, value: Any) -> Any:
    return value


BATCHING: Mapping[str, tuple[Check, Any]] = {
    "max_items": (_whole(1, 1 << 20), None),  # None: learned by the engine, up to MAX_ITEMS
    "max_delay_ms": (_number(0, 60_000), 0),
    "max_work": (_number(1, 1e12), None),
    "item_ms": (_number(0.001, 3.6e6), None),  # one item's time, for estimates before a worker measured it
}
# value = (pixel * scale - mean) / std, by channel; pixels are 0 to 255.
IMAGE: Mapping[str, tuple[Check, Any]] = {
    "mode": (_choice("L", "RGB", "BGR"), None),  # None: by the number of channels
    # [height, width], where the network leaves it open
    "size": (_several(_whole(1, 8192), unique=False, least=2), None),
    "resample": (_choice("nearest", "box", "bilinear", "bicubic", "lanczos"), "bilinear"),
    "scale": (_number(-1e6, 1e6), 1 / 255),
    "mean": (_as_given, None),
    "std": (_as_given, None),
}
# The first `head` bytes and the last `tail`, each taken from a block at its end of the file.
BYTES: Mapping[str, tuple[Check, Any]] = {
    "head": (_whole(0, 1 << 20), 1024),
    "tail": (_whole(0, 1 << 20), 1024),
    "block": (_whole(1, 1 << 24), 4096),
    "padding": (_whole(-(1 << 31), (1 << 31) - 1), 256),
    "strip": (_flag, True),  # white space at the outer ends of the blocks is dropped
}
FIELDS: Mapping[str, tuple[Check, Any]] = {
    "name": (_text(_NAME, "1 to 64 lower-case letters, digits and inner hyphens"), _REQUIRED),
    "version": (_text(_VERSION, "1 to 64 letters, digits, '.', '_' and '-'"), _REQUIRED),
    "task": (_choice(*TASKS), _REQUIRED),
    "artifact": (_path, _REQUIRED),
    "hardware": (_several(_text(_HARDWARE, "the name of a hardware class")), ["cpu"]),
    "batching": (_batching, {name: default for name, (_, default) in BATCHING.items()}),
    "labels": (_labels, None),
    "pinned": (_flag, False),
    "columns": (_several(_word), None),
    "files": (_several(_path), []),  # others that the artifact needs: external data
    "output": (_word, None),  # which output to take, where the network has several
    "allow_null": (_flag, False),  # outputs that aren't finite become null instead of failing their item
    "tokenizer": (_path, "tokenizer.json"),
    "max_tokens": (_whole(2, 1 << 20), 512),
    "image": (_image, {name: default for name, (_, default) in IMAGE.items()}),
    "bytes": (_bytes, {name: default for name, (_, default) in BYTES.items()}),
}
_ONLY_FOR = {"labels": _CLASSES, "columns": ("tabular",), "tokenizer": _TEXT, "max_tokens": _TEXT,
             "image": ("image-classification",), "bytes": ("bytes-classification",),
             "output": (*_CLASSES, "text-embedding")}


def parse(text: bytes) -> dict[str, Any]:
    """The manifest in `text` with defaults filled in: every name of FIELDS that concerns its task.

    Raises InvalidRequest with every fault: where (JSON pointer into the manifest), which rule, and the fix.
    """
    given = _load(text)
    reader = _Reader()
    out = reader.section("", given, FIELDS)
    task = out.get("task")
    for name, tasks in _ONLY_FOR.items():
        if task in TASKS and task not in tasks:
            if isinstance(given, dict) and given.get(name) is not None:
                reader.fault(f"/{name}", "task",
                             f"has no meaning for {task}, only for {', '.join(tasks)}: remove it")
            out.pop(name, None)
    batching = out.get("batching")
    if isinstance(batching, dict) and batching.get("item_ms") is None:
        batching = {name: value for name, value in batching.items() if name != "item_ms"}
        out["batching"] = batching  # a default that came later must not change what a network is known by
    if reader.faults:
        detail = "; ".join(f"{fault.pointer} {fault.detail}" for fault in reader.faults)
        raise InvalidRequest(f"network.yaml: {detail}", faults=tuple(reader.faults))
    return out


def files(manifest: Mapping[str, Any]) -> list[str]:
    """The relative paths of the files that a parsed manifest needs, its artifact first."""
    names = [manifest["artifact"], *manifest["files"]]
    names += [manifest[name] for name in ("labels", "tokenizer") if isinstance(manifest.get(name), str)]
    return list(dict.fromkeys(names))


def _load(text: bytes) -> Any:
    if len(text) > MAX_BYTES:
        raise _unreadable("size", f"larger than {MAX_BYTES} bytes: put labels in a file of their own")
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a subclass of SafeLoader
    except RecursionError:
        raise _unreadable("yaml", "network.yaml is nested too deeply") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        raise _unreadable("yaml", "not valid YAML: " + " ".join(str(error).split())) from error


def _unreadable(rule: str, detail: str) -> InvalidRequest:
    return InvalidRequest(f"network.yaml: {detail}", faults=(Fault("/", rule, detail),))
