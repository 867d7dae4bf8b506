"""`headrace keys`: API keys, made, listed and revoked straight in the database. A key is shown once."""

import dataclasses
import datetime as dt
import json
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from models import database
from models import keys as keys_module
from models import settings as settings_module
from models import tenant as tenants
from models.errors import NotFound, Unavailable

MAX_NAME = 128
WIDE = 250  # columns, where nobody looks at a terminal


def connected() -> database.Database:
    """The database of the settings, up to date. Raises Unavailable with what to do."""
    from migrations import upgrade
    url = settings_module.load().database
    if url.startswith("sqlite") and not Path(database.sqlite_path(url)).exists():
        raise Unavailable(f"there is no database at {database.sqlite_path(url)}: `headrace up` or "
                          "`headrace db upgrade` makes it; HEADRACE_DATA_DIR or HEADRACE_DATABASE_URL names "
                          "another one")
    differences = upgrade.check(url)
    if differences:
        raise Unavailable(f"{settings_module.mask_url(url)}: {'; '.join(differences)}")
    return database.connect(url, pool_size=1)


def _scopes(_ctx: click.Context, _param: click.Parameter, value: str) -> tuple[str, ...]:
    chosen = tuple(dict.fromkeys(value.replace(",", " ").split()))
    if chosen == ("all",):
        return tenants.SCOPES
    unknown = [scope for scope in chosen if scope not in tenants.SCOPES]
    if unknown or not chosen:
        raise click.BadParameter(f"{', '.join(unknown) or 'nothing'} is no scope; choose among "
                                 f"{', '.join(tenants.SCOPES)}, or all")
    return chosen


@click.group()
def keys() -> None:
    """Create, list and revoke API keys."""


@keys.command()
@click.option("--tenant", default=tenants.DEFAULT, show_default=True, help="Whose key it is.")
@click.option("--name", required=True, help="What it is for.")
@click.option("--scopes", required=True, callback=_scopes,
              help=f"What it may do: {', '.join(tenants.SCOPES)}; comma-separated, or all of them: all.")
@click.option("--expires-days", type=click.FloatRange(min=0, min_open=True), help="Days until it ends.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def create(*, tenant: str, name: str, scopes: Sequence[str], expires_days: float | None,
           as_json: bool) -> None:
    """Make a key and show it, this once."""
    for field, value in (("--tenant", tenant), ("--name", name)):
        if not value.strip() or len(value) > MAX_NAME or not value.isprintable():
            raise click.BadParameter(f"1 to {MAX_NAME} printable characters", param_hint=field)
    key = keys_module.mint()

    def work(tx: database.Transaction) -> keys_module.ApiKey:
        tenants.ensure(tx, tenant)
        return keys_module.create(tx, tenant=tenant, name=name, scopes=scopes, key=key,
                                  expires_days=expires_days)

    made = connected().write(work)
    if as_json:
        click.echo(json.dumps({"key": key, **_plain(made)}))
        return
    click.echo(key)
    click.echo(f"{made.id} for tenant {tenant}; scopes: {' '.join(scopes)}. It is not shown again.", err=True)


@keys.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
def list_keys(*, as_json: bool) -> None:
    """List all keys; of each only its last four characters are known."""
    with connected().read() as tx:
        found = keys_module.listing(tx)
    if as_json:
        click.echo(json.dumps([_plain(each) for each in found]))
        return
    table = Table(box=None, pad_edge=False)
    for title in ("id", "tenant", "name", "key", "state", "created", "expires", "last used", "scopes"):
        table.add_column(title, no_wrap=title != "scopes", overflow="fold")
    for each in found:
        table.add_row(each.id, each.tenant, each.name, f"hr_…{each.hint}",
                      "revoked" if each.revoked_at else "live", _when(each.created_at),
                      _when(each.expires_at), _when(each.last_used_at), " ".join(each.scopes))
    console = Console()
    Console(width=console.width if console.is_terminal else WIDE).print(table)


@keys.command()
@click.argument("key_id", metavar="ID")
def revoke(key_id: str) -> None:
    """End a key. A running API may take it for up to half a minute more."""
    done = connected().write(lambda tx: keys_module.revoke(tx, key_id))
    if done is None:
        raise NotFound(f"there is no key {key_id}: `headrace keys list` shows them")
    click.echo(f"{key_id} is revoked" if done else f"{key_id} was revoked before")


def _plain(key: keys_module.ApiKey) -> dict[str, object]:
    return {name: _when(value) or None if name.endswith("_at") else value
            for name, value in dataclasses.asdict(key).items()}


def _when(at: int | None) -> str:
    if at is None:
        return ""
    moment = dt.datetime.fromtimestamp(at / 1000, tz=dt.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
