"""`headrace db`: bring the database to this version's schema, and say how it differs from it."""

import click

from cli import codes
from models import settings as settings_module


@click.group()
def db() -> None:
    """Upgrade and check the database."""


@db.command()
def upgrade() -> None:
    """Bring the database to this version's schema."""
    from migrations import upgrade as migration
    settings = settings_module.load()
    migration.upgrade(settings.database)
    click.echo(f"{settings_module.mask_url(settings.database)} is up to date")


@db.command()
@click.pass_context
def check(ctx: click.Context) -> None:
    """Compare the database with this version's schema.

    Prints how it differs; exit code 1 if it does.
    """
    from migrations import upgrade as migration
    settings = settings_module.load()
    differences = migration.check(settings.database)
    for line in differences:
        click.echo(line, err=True)
    if differences:
        ctx.exit(codes.FAILED)
    click.echo(f"{settings_module.mask_url(settings.database)} is as this version needs it")
