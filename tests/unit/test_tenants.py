"""`headrace tenants`: what the operator sets, and what is in force then."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli import main
from migrations import upgrade

FREE = {"max_in_flight": None, "rate": None, "burst": None, "max_body_bytes": None, "weight": 1.0}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    url = f"sqlite:///{tmp_path}/headrace.db"
    upgrade.upgrade(url)
    monkeypatch.setenv("HEADRACE_DATABASE_URL", url)

    def call(*arguments: str):
        return CliRunner().invoke(main.headrace, ["tenants", *arguments])

    return call


def _shown(run, name: str) -> dict[str, object]:
    return json.loads(run("show", name, "--json").output)


def test_a_new_tenant_has_no_limits_and_what_is_set_is_in_force(run) -> None:
    assert json.loads(run("create", "acme", "--json").output) == {"tenant": "acme", **FREE}
    done = run("set", "acme", "--max-in-flight", "100", "--rate", "2.5", "--burst", "10", "--max-body-bytes", "1000",
               "--weight", "2")
    assert done.exit_code == 0
    wanted = {"max_in_flight": 100, "rate": 2.5, "burst": 10, "max_body_bytes": 1000, "weight": 2.0}
    assert _shown(run, "acme") == {"tenant": "acme", **wanted}
    run("set", "acme", "--rate", "unlimited", "--weight", "default")
    assert _shown(run, "acme") == {"tenant": "acme", **wanted, "rate": None, "weight": 1.0}
    assert "acme" in run("list").output


def test_without_a_limit_of_its_own_a_tenant_has_that_of_the_settings(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_TENANT_RATE", "5")
    for name in ("acme", "free", "default"):
        run("create", name)
    run("set", "free", "--rate", "unlimited")
    found = {each["tenant"]: each["rate"] for each in json.loads(run("list", "--json").output)}
    assert found == {"acme": 5.0, "free": None, "default": None}
    run("set", "free", "--rate", "default")
    assert _shown(run, "free")["rate"] == 5.0


@pytest.mark.parametrize("arguments", [
    ("set", "acme"), ("set", "acme", "--rate", "0"), ("set", "acme", "--rate", "-1"), ("set", "acme", "--rate", "nan"),
    ("set", "acme", "--rate", "inf"), ("set", "acme", "--burst", "1.5"), ("set", "acme", "--max-in-flight", "many"),
    ("set", "acme", "--weight", "unlimited"), ("set", "acme", "--burst", "2147483648"), ("create", " "), ("create", "a\nb"), ("show",)])
def test_wrong_use_is_said_and_changes_nothing(run, arguments: tuple[str, ...]) -> None:
    run("create", "acme")
    assert run(*arguments).exit_code == 2
    assert _shown(run, "acme") == {"tenant": "acme", **FREE}


def test_an_unknown_tenant_is_named_and_a_known_one_is_not_made_again(run) -> None:
    done = run("set", "nobody", "--rate", "1")
    assert done.exit_code == 1
    assert "there is no tenant nobody" in done.output
    run("create", "acme")
    assert run("create", "acme").exit_code == 1


@pytest.mark.parametrize("rate", ["-1", "nan", "inf"])
def test_the_command_names_all_of_its_faults_in_the_settings(run, monkeypatch: pytest.MonkeyPatch, rate: str) -> None:
    monkeypatch.setenv("HEADRACE_TENANT_RATE", rate)
    done = run("list")
    assert done.exit_code == 2
    assert "HEADRACE_TENANT_RATE" in done.output
