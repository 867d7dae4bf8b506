"""Pins every package that an install brings, by name and version: what `make upgrade` runs.

Each file holds what its set adds to those it starts with. Hashes and addresses are left out, so that the same
files serve every index and platform.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
# file: (files that it starts with, extra of the project)
SETS: dict[str, tuple[tuple[str, ...], str]] = {
    "base": ((), ""),
    "cpu": (("base",), "cpu"),
    "postgres": (("base",), "postgres"),
    "test": (("base", "cpu", "postgres"), "cpu,postgres"),
}


def main() -> None:
    # The largest set first: what it settles on binds the smaller ones, so that all of them fit together.
    everything = resolve("cpu,postgres", HERE / "test.in")
    pinned: dict[str, dict[str, str]] = {}
    for name, (parents, extra) in SETS.items():
        found = everything if name == "test" else resolve(extra, None, everything)
        inherited = {package for parent in parents for package in pinned[parent]}
        pinned[name] = found
        lines = [f"-r {parent}.txt" for parent in parents]
        lines += [f"{package}=={found[package]}" for package in sorted(found.keys() - inherited)]
        text = "\n".join(["# Made by `make upgrade`: not by hand.", *lines])
        (HERE / f"{name}.txt").write_text(text + "\n")
        sys.stdout.write(f"requirements/{name}.txt: {len(found)} packages\n")


def resolve(extra: str, tools: Path | None, bounds: dict[str, str] | None = None) -> dict[str, str]:
    """Name to version of all that pip would install in an empty environment."""
    with tempfile.TemporaryDirectory() as folder:
        report, constraints = Path(folder, "report.json"), Path(folder, "constraints.txt")
        constraints.write_text("\n".join(f"{name}=={version}" for name, version in (bounds or {}).items()))
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet",
                   "--report", str(report), "--constraint", str(constraints),
                   f"{ROOT}[{extra}]" if extra else str(ROOT)]
        if tools is not None:
            command += ["--requirement", str(tools)]
        subprocess.run(command, check=True)  # noqa: S603  (nothing in it comes from outside)
        installs = json.loads(report.read_text())["install"]
    found = {canonical(each["metadata"]["name"]): each["metadata"]["version"] for each in installs}
    return {name: version for name, version in found.items() if name != "headrace"}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main()
