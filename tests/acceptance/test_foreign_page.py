"""A page of somebody else's, in a real browser, can't drive the service that runs here without keys."""

import http.server
import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3

from models.settings import Settings
from tests import servers
from tests.acceptance.test_docs_page import QUIET, browser

__all__ = ["browser"]
PAGE = """<!doctype html><meta charset="utf-8"><body><pre id="out">…</pre><script>
const url = "%s", out = {};
const attempt = async (name, path, options) => {
  try { const reply = await fetch(url + path, options); out[name] = reply.type + " " + reply.status; }
  catch (error) { out[name] = "blocked"; }
};
(async () => {
  await attempt("read", "/v1/jobs", {});
  await attempt("opaque read", "/v1/jobs", {mode: "no-cors"});
  await attempt("simple post", "/v1/webhook_endpoints", {method: "POST", mode: "no-cors", headers: {"Content-Type": "text/plain"},
    body: JSON.stringify({name: "stolen", url: "http://127.0.0.1:9/", event_types: ["job.succeeded"]})});
  await attempt("json post", "/v1/webhook_endpoints", {method: "POST", headers: {"Content-Type": "application/json"},
    body: JSON.stringify({name: "stolen", url: "http://127.0.0.1:9/", event_types: ["job.succeeded"]})});
  await attempt("empty post", "/v1/jobs/job_%s/cancel", {method: "POST", mode: "no-cors"});
  await attempt("delete", "/v1/models/a@1", {method: "DELETE"});
  document.getElementById("out").textContent = JSON.stringify(out);
})();
</script><img src="%s/v1/jobs"><iframe src="%s/docs"></iframe>"""


@pytest.fixture
def stranger() -> Iterator[tuple[str, dict[str, str]]]:
    """A web server on another port: its URL, and the pages that it serves."""
    pages: dict[str, str] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = pages.get(self.path, "").encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", pages
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_page_of_another_origin_is_refused(
        settings: Settings, tmp_path: Path, browser: str, stranger: tuple[str, dict[str, str]]) -> None:
    with servers.api(settings) as url:
        theirs, pages = stranger
        # Once as it is, once under a name of the stranger's that was made to point here.
        for number, target in enumerate((url, url.replace("127.0.0.1", "evil.example"))):
            pages["/"] = PAGE % (target, "0" * 32, target, target)
            done = subprocess.run(
                [browser, *QUIET, "--host-resolver-rules=MAP evil.example 127.0.0.1",
                 f"--user-data-dir={tmp_path / f'profile{number}'}", "--dump-dom", theirs],
                capture_output=True, text=True, check=True, timeout=120)
            told = json.loads(done.stdout.partition('<pre id="out">')[2].partition("</pre>")[0])
            assert {told[name] for name in ("read", "json post", "delete")} == {"blocked"}, told
            assert told["simple post"] in ("opaque 0", "blocked")
        assert urllib3.request("GET", f"{url}/v1/webhook_endpoints").json()["data"] == []
        figures = urllib3.request("GET", f"{url}/metrics").data.decode()
    calls = [line for line in figures.splitlines() if line.startswith("headrace_http_request_duration_seconds_count")
             and ("/v1/webhook_endpoints" in line or "/cancel" in line)]
    assert calls, figures
    assert all('status="403"' in line or 'method="GET"' in line for line in calls), calls
