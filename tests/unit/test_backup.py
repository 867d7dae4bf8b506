"""A backup goes to an empty place only, and nobody else can read it."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cli import backup
from migrations import upgrade
from models.errors import SettingsInvalid
from models.settings import Settings


@pytest.fixture
def made(tmp_path: Path) -> Iterator[tuple[Settings, Path]]:
    """Settings of a service, and a folder, which others may read, with a backup of it."""
    settings = Settings(data_dir=tmp_path / "data", database_url=f"sqlite:///{tmp_path}/data/headrace.db")
    settings.data_dir.mkdir()
    upgrade.upgrade(settings.database)
    folder = tmp_path / "backup"
    folder.mkdir(mode=0o755)
    before = os.umask(0o022)
    try:
        backup.backup(settings, folder)
        yield settings, folder
    finally:
        os.umask(before)


def test_only_its_owner_can_read_a_backup_wherever_it_lies(made: tuple[Settings, Path]) -> None:
    assert (made[1] / backup.SQLITE_FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("left", ["headrace.db", "headrace.db-wal", "headrace.db-journal"])
def test_what_another_database_left_is_not_mixed_into_a_restored_one(
        made: tuple[Settings, Path], tmp_path: Path, left: str) -> None:
    settings, folder = made
    place = tmp_path / "new"
    place.mkdir()
    (place / left).touch()
    with pytest.raises(SettingsInvalid, match=f"{left} exists"):
        backup.restore(replace(settings, data_dir=place, database_url=f"sqlite:///{place}/headrace.db"), folder)
    (place / left).unlink()
    backup.restore(replace(settings, data_dir=place, database_url=f"sqlite:///{place}/headrace.db"), folder)
    assert upgrade.check(f"sqlite:///{place}/headrace.db") == []
