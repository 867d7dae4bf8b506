"""Migrations on both databases: what they make equals the tables, from any folder, twice, and at once."""

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from migrations import upgrade
from models import errors
from tests import databases


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/new/folder/headrace.db"
    return databases.create(request.getfixturevalue("postgres_server"), "migrations")


def test_an_upgraded_database_equals_the_tables(empty_url: str) -> None:
    upgrade.upgrade(empty_url)
    assert upgrade.check(empty_url) == []


def test_a_database_that_was_never_upgraded_is_told_what_to_run(empty_url: str, tmp_path: Path) -> None:
    (tmp_path / "new" / "folder").mkdir(parents=True)
    (line,) = upgrade.check(empty_url)
    assert "headrace db upgrade" in line


def test_upgrading_again_and_at_once_changes_nothing(empty_url: str) -> None:
    code = f"from migrations import upgrade; upgrade.upgrade({empty_url!r})"
    started = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    assert [process.wait(60) for process in started] == [0, 0, 0]
    upgrade.upgrade(empty_url)
    assert upgrade.check(empty_url) == []


def test_an_index_that_could_not_be_finished_is_built_anew(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if empty_url.startswith("sqlite"):
        pytest.skip("SQLite builds an index in one transaction")
    upgrade.upgrade(empty_url, "0001")
    monkeypatch.setattr(upgrade, "LOCK_TIMEOUT_MS", 200)
    with psycopg.connect(empty_url) as holder:
        holder.execute("LOCK TABLE jobs IN ROW EXCLUSIVE MODE")
        with pytest.raises(errors.Unavailable):
            upgrade.upgrade(empty_url)
        holder.rollback()
    upgrade.upgrade(empty_url)
    with psycopg.connect(empty_url) as connection:
        assert connection.execute("SELECT indexrelid::regclass FROM pg_index WHERE NOT indisvalid").fetchall() == []
        assert upgrade.check(empty_url) == []


def test_check_names_each_difference(empty_url: str) -> None:
    upgrade.upgrade(empty_url)
    for statement in ("ALTER TABLE api_keys ADD COLUMN colour text", "DROP INDEX ix_jobs_tenant_id",
                      "DROP INDEX ix_jobs_running", "CREATE INDEX ix_jobs_running ON jobs (incarnation)",
                      "DROP TABLE rates", "CREATE TABLE strays (id text)"):
        _execute(empty_url, statement)
    assert sorted(upgrade.check(empty_url)) == [
        "column api_keys.colour is not in the tables",
        "index jobs.ix_jobs_running must be partial",
        "index jobs.ix_jobs_tenant_id is missing",
        "table rates is missing",
        "table strays is not in the tables",
    ]


def test_check_names_a_lost_constraint(empty_url: str) -> None:
    if empty_url.startswith("sqlite"):
        pytest.skip("SQLite can't drop a constraint")
    upgrade.upgrade(empty_url)
    _execute(empty_url, "ALTER TABLE jobs DROP CONSTRAINT ck_jobs_waiting")
    assert upgrade.check(empty_url) == ["check constraint ck_jobs_waiting is missing"]


def test_a_database_out_of_reach_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(errors.Unavailable):
        upgrade.upgrade(f"postgresql://nobody@/x?host={tmp_path}")


def test_an_installed_copy_upgrades_from_any_folder(tmp_path: Path) -> None:
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    root = Path(upgrade.__file__).parent.parent
    for package in ("migrations", "models"):
        shutil.copytree(root / package, site / package, ignore=shutil.ignore_patterns("__pycache__"))
    (elsewhere / "migrations").mkdir(parents=True)  # another project's, in the current folder
    (elsewhere / "alembic.ini").write_text("[alembic]\nscript_location = nowhere\n")
    code = f"from migrations import upgrade as u; u.upgrade('sqlite:///{tmp_path}/a.db'); print(u.__file__)"
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=elsewhere, env={"PYTHONPATH": str(site)},
                          capture_output=True, text=True, check=True)
    assert done.stdout.strip().startswith(str(site))
    assert upgrade.check(f"sqlite:///{tmp_path}/a.db") == []


def test_a_revision_imports_nothing_of_ours() -> None:
    for path in (Path(upgrade.__file__).parent / "versions").glob("*.py"):
        text = path.read_text()
        assert not any(f"{verb} {name}" in text for verb in ("from", "import")
                       for name in ("models", "api", "workers", "cli", "migrations")), path


def _execute(url: str, statement: str) -> None:
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            connection.execute(statement)
        connection.close()
    else:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(statement)
