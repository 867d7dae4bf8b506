"""The wheel, installed away from the source, runs by itself."""

import json
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests import embedded

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment that holds the wheel, and borrows what it depends on from ours."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir",
                    folder, ROOT], check=True, cwd=folder)
    venv.create(folder / "environment", with_pip=True)
    programs = folder / "environment" / "bin"
    wheel = next(folder.glob("headrace-*.whl"))
    subprocess.run([programs / "python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel], check=True)
    library = subprocess.run([programs / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
                             check=True, capture_output=True, text=True).stdout.strip()
    # As a plain path entry: its own .pth files, and with them our editable install, are not read.
    (Path(library) / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return programs


def test_the_wheel_holds_its_packages_and_nothing_else_at_the_top(installed: Path) -> None:
    listed = subprocess.run([installed / "python", "-m", "pip", "show", "--files", "headrace"], check=True,
                            capture_output=True, text=True).stdout
    files = listed.partition("Files:")[2].split()
    tops = {each.split("/")[0] for each in files if not each.startswith(("..", "headrace-"))}
    assert tops == {"api", "cli", "migrations", "models", "workers"}


def test_the_wheel_runs_the_whole_service_beside_somebody_elses_models(
        installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "__init__.py").write_text("raise RuntimeError('not ours')\n")
    monkeypatch.setattr(embedded, "COMMAND", str(installed / "headrace"))
    with embedded.up(tmp_path) as started:
        url = started.ready()[1]
        assert str(ROOT / "cli") not in " ".join(started.tree().values())
        network = ROOT / "examples" / "networks" / "tumor"
        assert embedded.run("models", "add", str(network), cwd=tmp_path, url=url).returncode == 0
        done = embedded.run("submit", "tumor", json.dumps([0.1] * 30), "--wait", "--json", cwd=tmp_path, url=url)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["state"] == "succeeded"
        assert started.stop() == 0


def test_a_package_of_that_name_which_comes_first_is_named(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "__init__.py").write_text("")
    program = "import models, sys; sys.argv = ['headrace', 'doctor']; from cli.main import main; main()"
    done = subprocess.run([installed / "python", "-c", program], cwd=tmp_path, capture_output=True, text=True,
                          check=False, env=embedded.environment())
    assert done.returncode == 2
    assert f"`models` of another project was imported first, from {tmp_path / 'models'}" in done.stderr
    on_path = subprocess.run([installed / "headrace", "--version"], cwd=tmp_path, capture_output=True, text=True,
                             check=True, env=embedded.environment() | {"PYTHONPATH": str(tmp_path)})
    assert on_path.stdout.startswith("headrace ")
