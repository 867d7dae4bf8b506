"""Settings: read once, all faults together, flags before environment, secrets masked."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from cli import main, parts
from models import settings
from models.errors import SettingsInvalid


def test_every_fault_is_reported_at_once() -> None:
    with pytest.raises(SettingsInvalid) as caught:
        settings.load({"HEADRACE_LEASE_S": "soon", "HEADRACE_PORT": "http", "HEADRACE_AUTH": "maybe",
                       "HEADRACE_SWEEP_S": "-1", "HEADRACE_DATABASE_URL": "mysql://x"})
    assert {fault.pointer for fault in caught.value.faults} == {
        "HEADRACE_LEASE_S", "HEADRACE_PORT", "HEADRACE_AUTH", "HEADRACE_SWEEP_S", "HEADRACE_DATABASE_URL"}


def test_flags_win_over_the_environment_and_absent_flags_do_not() -> None:
    read = settings.load({"HEADRACE_PORT": "1", "HEADRACE_HOST": "::1"}, port=2, host=None)
    assert (read.port, read.host) == (2, "::1")


def test_an_inline_limit_above_the_body_limit_is_refused() -> None:
    with pytest.raises(SettingsInvalid, match="MAX_INLINE_BYTES"):
        settings.load({"HEADRACE_MAX_INLINE_BYTES": "2000", "HEADRACE_MAX_BODY_BYTES": "1000"})


def test_passwords_and_keys_are_masked() -> None:
    shown = settings.load({"HEADRACE_DATABASE_URL": "postgresql://me:secret@db:5433/x", "HEADRACE_KEY": "hr_x",
                           "HEADRACE_BROKER_URL": "redis://:secret@host:6379/0"}).masked()
    assert shown["database_url"] == "postgresql://me:***@db:5433/x"
    assert shown["broker_url"] == "redis://:***@host:6379/0"
    assert shown["key"] == "***"
    assert not any("secret" in value for value in shown.values())


def test_the_defaults_are_the_embedded_stack_in_the_data_folder(tmp_path: Path) -> None:
    read = settings.load({"HEADRACE_DATA_DIR": str(tmp_path)})
    assert read.database == f"sqlite:///{tmp_path}/headrace.db"
    assert read.broker == f"redis+socket://{tmp_path}/broker.sock"
    assert read.blobs == tmp_path / "blobs"


def test_an_operators_hardware_class_stands_beside_the_built_in_ones(tmp_path: Path) -> None:
    (tmp_path / "classes.toml").write_text(
        '[classes.cpu-large]\nproviders = ["CPUExecutionProvider"]\nthreads = 8\n')
    known = settings.load({"HEADRACE_HARDWARE": str(tmp_path / "classes.toml")}).classes()
    assert known["cpu-large"].threads == 8
    assert set(known) == {"cpu", "cuda", "cpu-large"}


@pytest.mark.parametrize("text", ["[classes.x]\nthreads = 1\n", "[classes.x]\nproviders = ['A']\nspeed = 1\n", "]"])
def test_a_wrong_class_file_is_named_with_what_a_class_needs(tmp_path: Path, text: str) -> None:
    path = tmp_path / "classes.toml"
    path.write_text(text)
    with pytest.raises(SettingsInvalid, match=r"classes\.toml"):
        settings.load({"HEADRACE_HARDWARE": str(path)}).classes()


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "example.org"])
def test_without_keys_only_this_machine_may_reach_the_service(host: str) -> None:
    with pytest.raises(SettingsInvalid, match="headrace keys create"):
        parts.check_exposure(settings.load({}, host=host))
    parts.check_exposure(settings.load({"HEADRACE_AUTH": "keys"}, host=host))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_keys(host: str) -> None:
    parts.check_exposure(settings.load({}, host=host))


def test_a_wrong_setting_is_one_line_on_stderr_and_exit_code_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_LEASE_S", "soon")
    done = CliRunner().invoke(main.headrace, ["doctor"])
    assert done.exit_code == 2
    assert done.stderr == "headrace: HEADRACE_LEASE_S: 'soon' is not a number\n"
