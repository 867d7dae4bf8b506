"""How figures are printed: one JSON line each as it is measured, and at the end one table to read."""

import json
import platform
import sys
from collections.abc import Mapping, Sequence
from typing import Any


def emit(figure: str, **values: Any) -> dict[str, Any]:
    """Print one figure as a JSON line on stdout; what was printed."""
    row = {"figure": figure, **values}
    print(json.dumps(row), flush=True)
    return row


def table(rows: Sequence[Mapping[str, Any]], title: str, *, leave: Sequence[str] = ()) -> None:
    """Rows as a Markdown table, ready for docs/performance.md; columns in the order of first appearance.

    `leave`: columns that are left to the JSON lines.
    """
    columns = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in leave]
    cells = [[_text(row.get(name)) for name in columns] for row in rows]
    widths = [max(len(name), *(len(line[i]) for line in cells)) for i, name in enumerate(columns)]
    print(f"\n{title}\n")
    for line in (columns, ["-" * width for width in widths], *cells):
        print("| " + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) + " |")
    sys.stdout.flush()


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(item)}" for name, item in value.items())
    return "-" if value is None else str(value)


def versions(*names: str) -> dict[str, str]:
    """Python's version and those of the packages, for beside the figures."""
    from importlib.metadata import version

    return {"python": platform.python_version(), **{name: version(name) for name in names}}
