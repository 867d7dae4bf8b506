"""`make demo` on this machine: everything right, the last line counts it, and nothing is left running."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_demo_succeeds_and_its_last_line_counts(tmp_path):
    done = subprocess.run([sys.executable, "-m", "examples.demo"], cwd=ROOT, capture_output=True, text=True,
                          check=False, timeout=180, env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)})
    assert done.returncode == 0, done.stdout + done.stderr
    counted = re.fullmatch(r"demo: jobs=(\d+) succeeded=(\d+) webhooks_verified=(\d+)",
                           done.stdout.splitlines()[-1])
    assert counted
    jobs, succeeded, verified = map(int, counted.groups())
    assert jobs >= 500
    assert jobs == succeeded == verified
    assert list(tmp_path.glob("headrace-demo-*")) == []
