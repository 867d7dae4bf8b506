"""The commands that README.md shows are run as they stand there, against a service of the test's own."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from examples import stack

ROOT = Path(__file__).parents[2]
ADDRESS = "http://127.0.0.1:8080"


def commands() -> list[str]:
    """Every client command of the tour, in order; what follows a line of `# ` is what it answers."""
    tour = (ROOT / "README.md").read_text().partition("In another terminal:")[2].partition("\n| task ")[0]
    text = "\n".join(re.findall(r"^```\n(.*?)^```", tour, re.DOTALL | re.MULTILINE)).replace("\\\n", " ")
    return [line for line in text.splitlines() if line.startswith(("headrace ", "curl "))]


@pytest.mark.skipif(shutil.which("curl") is None and not os.environ.get("CI"), reason="curl is not installed")
def test_the_tour_of_the_readme_works(tmp_path):
    with stack.running(tmp_path) as service:
        answers = []
        for command in commands():
            found = command.replace(ADDRESS, service.url)
            if "job_…" in found:
                found = found.replace("job_…", json.loads(answers[-1])["id"])
            environ = {**service.environ, "PATH": f"{Path(stack.command()).parent}:{os.environ['PATH']}"}
            done = subprocess.run(found, shell=True, cwd=ROOT, env=environ, capture_output=True, text=True,
                                  check=False, timeout=90)
            assert done.returncode == 0, f"{found}\n{done.stderr}"
            answers.append(done.stdout)
    added, output, again, job, finished = answers
    assert added == "tumor@1 is ready\n"
    assert json.loads(output)["label"] == "malignant"
    assert json.loads(again)["state"] == "ready"
    assert json.loads(job)["object"] == "job"
    assert json.loads(finished)["state"] == "succeeded"
    assert json.loads(finished)["output"]["label"] == "malignant"
