"""`headrace db`: upgrade the database, say how it differs from this version's, back up and restore."""

from pathlib import Path

import click

from cli import codes
from models import settings as settings_module


@click.group()
def db() -> None:
    """Upgrade, check, back up and restore the database."""


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


@db.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
def backup(folder: Path) -> None:
    """Write the database and the blobs to FOLDER, while the service runs.

    The next backup to the same folder copies only new blobs. It holds signing secrets: keep it as one.
    """
    from cli import backup as backups
    settings = settings_module.load()
    copied = backups.backup(settings, folder)
    click.echo(f"{settings_module.mask_url(settings.database)} is in {folder}, with {copied} new blobs")


@db.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False, exists=True))
def restore(folder: Path) -> None:
    """Bring the backup in FOLDER to an empty place, and to this version's schema.

    Start the service afterwards: jobs that ran when the backup was made are run once more.
    """
    from cli import backup as backups
    from migrations import upgrade as migration
    settings = settings_module.load()
    copied = backups.restore(settings, folder)
    migration.upgrade(settings.database)
    click.echo(f"{settings_module.mask_url(settings.database)} is as in {folder}, with {copied} blobs")
