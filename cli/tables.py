"""What people see on a terminal: tables and objects, without markup from the outside taking effect."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 240  # a pipe has no width: ids and names must stay whole for grep and awk


def show(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, empty: str) -> None:
    """A table on stdout; `empty` on stderr when there are no rows."""
    if not rows:
        click.echo(empty, err=True)
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, overflow="fold", no_wrap=name == columns[0])
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    console.print(table)


def show_object(value: Mapping[str, Any]) -> None:
    """An object of the API as indented JSON."""
    click.echo(json.dumps(value, ensure_ascii=False, indent=2))


def _cell(value: Any) -> Text:
    return Text("" if value is None else str(value))
