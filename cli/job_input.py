"""What a user typed as INPUT, as the JSON value that the network's task takes."""

import base64
import json
import sys
from pathlib import Path
from typing import Any

from cli import client, codes

BINARY = frozenset({"image-classification", "bytes-classification"})
TEXT = frozenset({"text-embedding", "text-classification"})


def read(text: str, task: str | None) -> Any:
    """The input of one job from JSON text, `@file`, `-` (standard input) or a file's path.

    Tasks on bytes take any file and send it as base64; tasks on text take plain text. What can't be read ends
    the command with exit code 2 and the reason.
    """
    if text == "-":
        return _interpret(sys.stdin.buffer.read(), task, "standard input", is_json=False)
    if text.startswith("@"):
        return _interpret(_contents(Path(text[1:])), task, text[1:], is_json=text.endswith(".json"))
    if task in BINARY and not text.lstrip().startswith("{"):
        return _interpret(_contents(Path(text)), task, text, is_json=False)
    return _interpret(text.encode("utf-8", "surrogateescape"), task, "INPUT", is_json=False)


def _interpret(data: bytes, task: str | None, origin: str, *, is_json: bool) -> Any:
    if task in BINARY and not is_json:
        ready = _maybe_json(data) if data[:64].lstrip().startswith(b"{") else None
        if isinstance(ready, dict) and set(ready) == {"base64"}:
            return ready
        return {"base64": base64.b64encode(data).decode()}
    if task in TEXT and not is_json:
        # Plain text stands for itself, so that 42 and [draft] are texts; a quoted JSON string is unquoted.
        ready = _maybe_json(data) if data.lstrip().startswith(b'"') else None
        return ready if isinstance(ready, str) else _decode(data, origin)
    try:
        return json.loads(_decode(data, origin), parse_constant=_refuse_constant)
    except RecursionError:
        raise client.CommandFailed(f"{origin} is nested too deeply", codes.WRONG_USE) from None
    except ValueError as error:
        hint = "Write JSON, @file.json, or - for standard input"
        raise client.CommandFailed(f"{origin} is not JSON: {error}. {hint}", codes.WRONG_USE) from error


def _maybe_json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _decode(data: bytes, origin: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise client.CommandFailed(f"{origin} is not UTF-8 text: byte {error.start} cannot be read",
                                   codes.WRONG_USE) from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _contents(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise client.CommandFailed(f"{path}: {error.strerror}", codes.WRONG_USE) from error
