"""The page at /docs in a real browser: it shows every call, and loads nothing from elsewhere."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import urllib3

from models.settings import Settings
from tests import servers

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
QUIET = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
         "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
         "--virtual-time-budget=10000", "--enable-logging=stderr")


@pytest.fixture
def browser() -> str:
    # No test of the service itself depends on it, so one that isn't there is no failure anywhere.
    found = next((path for name in (os.environ.get("BROWSER", ""), *NAMES) if name and (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser is installed ({', '.join(NAMES)})")
    return found


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_page_shows_every_call_and_its_console_stays_empty(
        settings: Settings, tmp_path: Path, browser: str) -> None:
    with servers.api(settings) as url:
        document = urllib3.request("GET", f"{url}/openapi.json").json()
        done = subprocess.run([browser, *QUIET, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", f"{url}/docs"],
                              capture_output=True, text=True, check=True, timeout=120)
    calls = {each["operationId"] for path in document["paths"].values() for each in path.values()}
    assert set(re.findall(r'<details class="call" id="(\w+)">', done.stdout)) == calls
    assert document["info"]["summary"] in done.stdout
    assert "CONSOLE" not in done.stderr  # a script's error, or something that the page's policy forbids
    text = re.sub(r"<script>.*?</script>|<textarea.*?</textarea>|<pre.*?</pre>", "", done.stdout, flags=re.DOTALL)
    assert "`" not in text
    assert "undefined" not in text
    assert "[object" not in text

