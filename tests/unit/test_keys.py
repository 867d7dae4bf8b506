"""API keys: their shape, their checksum, and the command that makes them."""

import hashlib
import json
import string
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from cli import main
from migrations import upgrade
from models import database as databases_of
from models import keys, tenant


def test_a_new_key_is_well_formed_and_unlike_any_other() -> None:
    made = {keys.mint() for _ in range(200)}
    assert len(made) == 200
    assert all(keys.well_formed(key) and key.startswith("hr_") and len(key) == 39 for key in made)


@given(st.integers(3, 38), st.sampled_from(string.ascii_letters + string.digits))
def test_a_key_with_one_wrong_character_is_told_without_a_look_at_the_database(place: int, char: str) -> None:
    key = keys.mint()
    wrong = key[:place] + char + key[place + 1:]
    assert keys.well_formed(wrong) == (wrong == key)


@given(st.text(max_size=60))
def test_any_text_can_be_judged(text: str) -> None:
    assert keys.well_formed(text) is False
    assert len(keys.digest(text)) == 64


@pytest.mark.parametrize("change", [
    lambda key: key[:-1], lambda key: key + "0", lambda key: key.upper(), lambda key: key[3:], lambda key: key + "\n",
    lambda key: " " + key, lambda key: key.replace(key[10], "é")])
def test_a_cut_off_or_changed_key_is_not_well_formed(change: object) -> None:
    assert not keys.well_formed(change(keys.mint()))  # type: ignore[operator]


def test_only_the_sha_256_of_a_key_is_stored(database: databases_of.Database) -> None:
    key = keys.mint()

    def work(tx: databases_of.Transaction) -> keys.ApiKey:
        return keys.create(tx, tenant="acme", name="test", scopes=["jobs:read"], key=key, expires_days=1.5)

    made = database.write(work)
    with database.read() as tx:
        stored = tx.all(databases_of.Statement("SELECT * FROM api_keys"))
        assert keys.listing(tx) == [made]
    assert hashlib.sha256(key.encode()).hexdigest() in stored[0]
    assert key not in stored[0]
    assert made.hint == key[-4:]
    assert made.expires_at == made.created_at + 36 * 3600 * 1000


def test_a_revoked_key_stays_revoked(database: databases_of.Database) -> None:
    made = database.write(lambda tx: keys.create(tx, tenant="acme", name="t", scopes=["admin"], key=keys.mint()))
    assert database.write(lambda tx: keys.revoke(tx, made.id)) is True
    assert database.write(lambda tx: keys.revoke(tx, made.id)) is False
    assert database.write(lambda tx: keys.revoke(tx, "key_" + "0" * 32)) is None


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    url = f"sqlite:///{tmp_path}/headrace.db"
    upgrade.upgrade(url)
    monkeypatch.setenv("HEADRACE_DATABASE_URL", url)

    def call(*arguments: str):
        return CliRunner().invoke(main.headrace, ["keys", *arguments])

    return call


def test_the_command_shows_a_key_once_and_lists_it_without(run) -> None:
    made = json.loads(run("create", "--tenant", "acme", "--name", "ci", "--scopes", "jobs:read,jobs:write", "--json").output)
    assert keys.well_formed(made["key"])
    listed = json.loads(run("list", "--json").output)
    assert [each["id"] for each in listed] == [made["id"]]
    assert listed[0]["scopes"] == ["jobs:read", "jobs:write"]
    assert made["key"] not in run("list").output
    assert made["id"] in run("list").output
    assert run("revoke", made["id"]).exit_code == 0
    assert json.loads(run("list", "--json").output)[0]["revoked_at"]


def test_all_means_every_scope(run) -> None:
    made = json.loads(run("create", "--name", "root", "--scopes", "all", "--json").output)
    assert made["scopes"] == list(tenant.SCOPES)


@pytest.mark.parametrize("arguments", [
    ("create", "--name", "x"), ("create", "--name", "x", "--scopes", "jobs:fly"), ("create", "--name", "x", "--scopes", ","),
    ("create", "--name", " ", "--scopes", "admin"), ("create", "--name", "a\nb", "--scopes", "admin"),
    ("create", "--name", "x", "--scopes", "admin", "--expires-days", "0"), ("revoke",)])
def test_wrong_use_is_said_and_makes_no_key(run, arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == 2
    assert json.loads(run("list", "--json").output) == []


def test_revoking_an_unknown_key_fails(run) -> None:
    done = run("revoke", "key_nothing")
    assert done.exit_code == 1
    assert "there is no key key_nothing" in done.output
