"""`headrace tenants`: who uses the service, and what each may have, set straight in the database."""

import dataclasses
import json
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from cli import keys
from models import database, quota
from models import settings as settings_module
from models.errors import NotFound
from models.quota import Own

AS_SETTINGS, UNLIMITED = "default", "unlimited"
MAX_LIMIT = 1 << 31  # of what the columns hold


class Limit(click.ParamType):  # type: ignore[type-arg] # generic from click 8.3 on
    """A number above 0, `unlimited` (kept as 0), or `default` (None): what the settings say."""

    name = "limit"

    def __init__(self, kind: type[int] | type[float]) -> None:
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None,
                ctx: click.Context | None) -> tuple[float | None]:
        if value in (AS_SETTINGS, UNLIMITED):
            return (None if value == AS_SETTINGS else self._kind(0),)
        try:
            number = self._kind(value)
        except ValueError:
            number = self._kind(0)
        if not 0 < number < MAX_LIMIT:
            self.fail(f"{value!r} is neither a {'whole ' if self._kind is int else ''}number above 0, nor "
                      f"{UNLIMITED}, nor {AS_SETTINGS}", param, ctx)
        return (number,)


@click.group()
def tenants() -> None:
    """Create and list tenants, and set what each may have.

    A running API sees a change within about a second. Keys are made for a tenant by `headrace keys create`.
    """


@tenants.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
def list_tenants(*, as_json: bool) -> None:
    """List all tenants with the limits in force."""
    with keys.connected().read() as tx:
        found = quota.every(tx)
    _show(found, as_json=as_json, many=True)


@tenants.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def create(*, name: str, as_json: bool) -> None:
    """Add a tenant. A key that is made for a new one adds it too."""
    if not name.strip() or len(name) > keys.MAX_NAME or not name.isprintable():
        raise click.BadParameter(f"1 to {keys.MAX_NAME} printable characters", param_hint="NAME")
    connected = keys.connected()
    if not connected.write(lambda tx: quota.create(tx, name)):
        raise click.ClickException(f"there is a tenant {name} already: `headrace tenants set` changes it")
    _show([_found(connected, name)], as_json=as_json)


@tenants.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def show(*, name: str, as_json: bool) -> None:
    """Show the limits in force for a tenant."""
    _show([_found(keys.connected(), name)], as_json=as_json)


@tenants.command("set")
@click.argument("name")
@click.option("--max-in-flight", type=Limit(int), help="Jobs that may wait or run at a time.")
@click.option("--rate", type=Limit(float), help="Requests a second, in the long run.")
@click.option("--burst", type=Limit(int), help="Requests at once, before the rate holds them back.")
@click.option("--max-body-bytes", type=Limit(int), help="Of a request's body, but for uploads of files.")
@click.option("--weight", type=Limit(float), help="Its part of the compute where several tenants wait.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def set_limits(*, name: str, as_json: bool, **given: tuple[float | None] | None) -> None:
    """Set limits of a tenant.

    Each is a number, `unlimited`, or `default`: what HEADRACE_TENANT_… says.
    """
    limits = {field: value[0] for field, value in given.items() if value is not None}
    if not limits:
        raise click.UsageError("name at least one limit to set")
    if limits.get("weight") == 0:
        raise click.BadParameter("a number above 0, or default, which is 1", param_hint="--weight")
    connected = keys.connected()
    _found(connected, name)
    connected.write(lambda tx: quota.change(tx, name, **limits))
    _show([_found(connected, name)], as_json=as_json)


def _found(connected: database.Database, name: str) -> Own:
    with connected.read() as tx:
        found = quota.get(tx, name)
    if found is None:
        raise NotFound(f"there is no tenant {name}: `headrace tenants list` shows them")
    return found


def _cell(value: Any) -> str:
    if value is None:
        return UNLIMITED
    return f"{value:g}" if isinstance(value, float) else str(value)


def _show(found: list[Own], *, as_json: bool, many: bool = False) -> None:
    settings = settings_module.load()
    rows = [{"tenant": own.tenant, **dataclasses.asdict(quota.in_force(own, settings))} for own in found]
    if as_json:
        click.echo(json.dumps(rows if many else rows[0]))
        return
    table = Table(box=None, pad_edge=False)
    for title in ("tenant", *quota.LIMITS):
        table.add_column(title.replace("_", " "), no_wrap=True, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    console = Console()
    Console(width=console.width if console.is_terminal else keys.WIDE).print(table)
