"""Uploads and pages through the real server: large, chunked, refused half-way."""

import hashlib
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import urllib3

from models.settings import Settings
from tests import brokers, servers, waiting

MANIFEST = b"name: mill\nversion: '1'\ntask: tensor\nartifact: model.onnx\n"
BOUNDARY = "cut-here"
HEADERS = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
LIMIT = 12 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: Path,
           broker_server: brokers.Broker) -> Iterator[tuple[str, Settings]]:
    folder = tmp_path_factory.mktemp("data")
    shutil.copy(migrated_sqlite, folder / "headrace.db")
    settings = Settings(data_dir=folder, database_url=f"sqlite:///{folder}/headrace.db", broker_url=broker_server.url)
    with servers.api(settings, HEADRACE_MAX_UPLOAD_BYTES=str(LIMIT)) as url:
        yield url, settings


def head(name: str) -> bytes:
    return f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"; filename="{name}"\r\n\r\n'.encode()


def body(content: bytes, name: str = "model.onnx") -> bytes:
    return head("manifest") + MANIFEST + b"\r\n" + head(name) + content + f"\r\n--{BOUNDARY}--\r\n".encode()


def unfinished(settings: Settings) -> list[Path]:
    return [path for path in settings.blobs.rglob("*") if path.parent.name == "incoming"]


def test_a_large_upload_arrives_whole_with_or_without_a_length(server: tuple[str, Settings]) -> None:
    url, settings = server
    content = bytes(range(256)) * 40_000  # 10 MB, with every byte, line ends included
    whole = body(content)
    first = urllib3.request("POST", f"{url}/v1/models", body=whole, headers=HEADERS)
    assert first.status == 201, first.data
    assert first.json()["files"][0]["sha256"] == hashlib.sha256(content).hexdigest()
    pieces = (whole[at:at + 77_777] for at in range(0, len(whole), 77_777))
    again = urllib3.request("POST", f"{url}/v1/models", body=pieces, headers=HEADERS)  # chunked
    assert again.status == 200, again.data
    assert again.json() == first.json()
    assert unfinished(settings) == []


def test_an_upload_above_the_limit_is_refused_before_it_is_read(server: tuple[str, Settings]) -> None:
    url, _ = server
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port or 80), timeout=20) as connection:
        connection.sendall((f"POST /v1/models HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: {LIMIT + 1}\r\n"
                            f"Content-Type: {HEADERS['Content-Type']}\r\n\r\n").encode())
        answer = b""
        while b"payload_too_large" not in answer and (part := connection.recv(65536)):
            answer += part
    assert answer.startswith(b"HTTP/1.1 413"), answer


def test_an_upload_without_a_length_is_refused_when_it_passes_the_limit(server: tuple[str, Settings]) -> None:
    url, settings = server
    whole = body(b"x" * (LIMIT + 1))
    pieces = (whole[at:at + 65536] for at in range(0, len(whole), 65536))
    answer = urllib3.request("POST", f"{url}/v1/models", body=pieces, headers=HEADERS, retries=False)
    assert answer.status == 413
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert unfinished(settings) == []


def test_a_client_that_goes_away_half_way_leaves_nothing(server: tuple[str, Settings]) -> None:
    url, settings = server
    parts = urlsplit(url)
    whole = body(b"x" * 4_000_000)
    with socket.create_connection((parts.hostname, parts.port or 80), timeout=20) as connection:
        connection.sendall((f"POST /v1/models HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: {len(whole)}\r\n"
                            f"Content-Type: {HEADERS['Content-Type']}\r\n\r\n").encode() + whole[:2_000_000])
        waiting.until(lambda: unfinished(settings), what="the upload's beginning")
    waiting.until(lambda: not unfinished(settings), what="the upload's end")


def test_the_page_and_the_document_are_served(server: tuple[str, Settings]) -> None:
    url, _ = server
    page = urllib3.request("GET", f"{url}/docs")
    assert (page.status, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "script-src 'sha256-" in page.headers["Content-Security-Policy"]
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    document = urllib3.request("GET", f"{url}/openapi.json")
    assert document.headers["Content-Type"] == "application/json"
    assert document.json()["openapi"] == "3.1.0"
