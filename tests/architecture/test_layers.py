"""Who may know whom, what each side loads, and what the base install holds."""

import importlib.metadata
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import api
import models

ROOT = Path(__file__).resolve().parents[2]
NUMBERS = ("numpy", "onnxruntime", "PIL", "tokenizers")


def loaded_by(*modules: str) -> set[str]:
    """The top-level packages that a fresh interpreter holds after importing these."""
    program = f"import sys, {', '.join(modules)}; print(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def modules_of(package) -> list[str]:
    return [found.name for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]


def test_the_contracts_of_who_imports_whom_are_kept() -> None:
    done = subprocess.run([Path(sys.executable).with_name("lint-imports")], cwd=ROOT, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stdout


def test_the_api_loads_no_numbers_and_no_worker_framework() -> None:
    # Click is not asked for here: Flask itself loads it.
    assert loaded_by(*modules_of(api)).isdisjoint({*NUMBERS, "celery", "kombu", "workers", "cli"})


def test_models_load_no_framework_and_no_numbers() -> None:
    assert loaded_by(*modules_of(models)).isdisjoint(
        {*NUMBERS, "flask", "celery", "kombu", "redis", "click", "api", "workers", "cli"})


def test_the_ticket_needs_only_the_standard_library() -> None:
    foreign = loaded_by("models.contract") - set(sys.stdlib_module_names) - {"models", "__main__", "__mp_main__"}
    # What the interpreter itself loads at its start (editable installs, hooks) isn't ours.
    assert foreign <= loaded_by("sys")


def test_help_loads_neither_side() -> None:
    assert loaded_by("cli.main").isdisjoint({*NUMBERS, "api", "workers", "flask", "celery", "sqlalchemy", "rich"})


def requirements(distribution: str, extras: frozenset[str] = frozenset()) -> set[str]:
    """What an install of it brings, itself included: from the metadata of what is installed here."""
    found, todo = set(), [(distribution, extras)]
    while todo:
        name, wanted = todo.pop()
        if (name, wanted) in found:
            continue
        found.add((name, wanted))
        try:
            lines = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # for another platform
        for line in lines:
            match = re.match(r"([\w.-]+)(?:\[([\w,-]+)\])?", line)
            assert match
            marker = line.partition(";")[2]
            extra = re.search(r"extra == ['\"]([\w-]+)['\"]", marker)
            if extra is None or extra[1] in wanted:
                todo.append((canonical(match[1]), frozenset((match[2] or "").split(",")) - {""}))
    return {name for name, _ in found}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_base_install_has_neither_numpy_nor_onnx_runtime() -> None:
    heavy = {"numpy", "onnxruntime", "onnxruntime-gpu", "pillow", "tokenizers", "scipy"}
    assert requirements("headrace").isdisjoint(heavy)
    assert heavy & requirements("headrace", frozenset({"cpu"})) == {"numpy", "onnxruntime", "pillow", "tokenizers"}


def test_the_pins_cover_what_an_install_brings_and_nothing_has_an_address() -> None:
    for name, extras in (("base", frozenset()), ("cpu", frozenset({"cpu"})), ("postgres", frozenset({"postgres"}))):
        pinned = pins(name)
        needed = {each for each in requirements("headrace", extras) - {"headrace"} if installed(each)}
        assert needed <= pinned.keys(), name
        assert all(re.fullmatch(r"[\w.!+]+", version) for version in pinned.values())


def pins(name: str) -> dict[str, str]:
    out = {}
    for line in (ROOT / "requirements" / f"{name}.txt").read_text().splitlines():
        if line.startswith("-r "):
            out |= pins(line.removeprefix("-r ").removesuffix(".txt"))
        elif line and not line.startswith("#"):
            package, _, version = line.partition("==")
            out[package] = version
    return out


def installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


@pytest.mark.parametrize("folder", ["api", "cli", "migrations", "models", "workers"])
def test_no_file_of_ours_is_longer_than_300_lines(folder: str) -> None:
    long = {str(path.relative_to(ROOT)): count for path in (ROOT / folder).rglob("*.py")
            if path.parent.name != "versions" and (count := len(path.read_text().splitlines())) > 300}
    assert not long


def test_no_test_file_is_longer_than_400_lines() -> None:
    assert not [str(path) for path in (ROOT / "tests").rglob("*.py") if len(path.read_text().splitlines()) > 400]
