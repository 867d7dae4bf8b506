"""The chaos harness in its short form: one seed on each database, both at a time."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import databases, waiting

SEED, SECONDS = 1, 12
KINDS = ("sqlite", "postgres")
HANG_S = 400  # everything together, on a machine that is busy with other things


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, "subprocess.Popen[str]"]]:
    databases._installed()
    started = {}
    for kind in KINDS:
        folder = tmp_path_factory.mktemp(kind)
        command = [sys.executable, "-m", "tests.chaos.harness", "--seed", str(SEED), "--seconds", str(SECONDS),
                   "--database", kind, "--out", str(folder)]
        started[kind] = subprocess.Popen(
            command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=waiting.die_with_parent(signal.SIGTERM))  # noqa: PLW1509 (one C call)
    yield started
    for process in started.values():
        if process.poll() is None:
            process.terminate()  # it takes its stage down with it
            process.wait(60)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_seeded_run_of_faults_keeps_every_promise(runs: dict[str, Any], kind: str, say: Any) -> None:
    out, trouble = runs[kind].communicate(timeout=HANG_S)
    assert runs[kind].returncode == 0, trouble
    figures = json.loads(out.splitlines()[0])
    say(**figures)
    assert figures["jobs"] > 0
    assert figures["kills"] >= 1
