"""The API as users start it: `headrace api`, a child on a free port, over this test's database and broker."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import urllib3

from models.settings import Settings
from tests import waiting


@contextlib.contextmanager
def api(settings: Settings, **environ: str) -> Iterator[str]:
    """The URL of a running API. `environ`: further settings, by their names in the environment."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    given = {
        "HEADRACE_DATA_DIR": str(settings.data_dir), "HEADRACE_DATABASE_URL": settings.database_url,
        "HEADRACE_BROKER_URL": settings.broker_url, "HEADRACE_PORT": str(port)}
    url = f"http://127.0.0.1:{port}"
    log = Path(settings.data_dir) / "api.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", "from cli.main import main; main()", "api"], env={**os.environ, **given, **environ},
            stdout=output, stderr=subprocess.STDOUT, preexec_fn=waiting.die_with_parent())  # noqa: PLW1509
    try:
        waiting.until(lambda: _answers(url, process, log), what=f"{url}/readyz")
        yield url
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(url: str, process: "subprocess.Popen[bytes]", log: Path) -> bool:
    assert process.poll() is None, log.read_text()
    with contextlib.suppress(urllib3.exceptions.HTTPError):
        return urllib3.request("GET", f"{url}/readyz", retries=False, timeout=5).status == 200
    return False
