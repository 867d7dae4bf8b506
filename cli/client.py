"""The service as the command line sees it: HTTP calls to `HEADRACE_URL`, one readable line when one fails.

Commands that use it know nothing of databases or brokers. Exit codes are part of the public contract.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any
from urllib.parse import quote, urlencode, urlsplit

import click
import urllib3

from cli import codes
from models import settings as settings_module
from models.errors import SettingsInvalid

CONNECT_S = 5.0
READ_S = 60.0  # above the longest long poll (30 s)
UPLOAD_S = 3600.0
_PERMANENT = frozenset({400, 401, 403, 404, 405, 409, 410, 413, 415, 422})
_GATEWAY = frozenset({502, 503, 504})


class CommandFailed(click.ClickException):
    """Ends a command with one line on stderr and an exit code of the contract."""

    def __init__(self, message: str, exit_code: int = codes.FAILED) -> None:
        super().__init__(_one_line(message))
        self.exit_code = exit_code  # type: ignore[misc]  # click means it as a constant of the class

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"headrace: {self.message}", file=file, err=file is None)


class Unreachable(CommandFailed):
    """Nobody answers at the URL, or what answers says that the service behind it is away."""

    def __init__(self, url: str, reason: str) -> None:
        hint = "Start it with `headrace up`, or set HEADRACE_URL."
        super().__init__(f"{url} is out of reach: {reason}. {hint}", codes.OUT_OF_REACH)


class Refused(CommandFailed):
    """The service answered with an error: its detail, and every fault with its pointer."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.problem = problem
        self.code = str(problem.get("code", f"http_{status}"))
        text = str(problem.get("detail") or problem.get("title") or f"HTTP {status}").rstrip(".")
        faults = [fault for fault in problem.get("errors") or () if isinstance(fault, dict)]
        if not all(str(fault.get("detail")).rstrip(".") in text for fault in faults):
            text = f"{text}: {'; '.join(_fault_line(fault) for fault in faults)}"
        if self.code == "unauthenticated":
            text = f"{text}. Set HEADRACE_KEY to a key; `headrace keys create` makes one"
        retryable = self.code in {"model_not_ready", "idempotency_in_progress", "result_not_ready"}
        permanent = status in _PERMANENT and not retryable
        super().__init__(f"{text} [{self.code}]", codes.WRONG_USE if permanent else codes.FAILED)


def _fault_line(fault: Mapping[str, Any]) -> str:
    pointer = fault.get("pointer")
    return f"{pointer}: {fault.get('detail')}" if pointer else str(fault.get("detail"))


def _one_line(text: str) -> str:
    """Control characters out: what a server or a file says must not move the cursor of a terminal."""
    return "".join(c if c.isprintable() else " " for c in text).strip()


@dataclass(frozen=True, slots=True)
class Answer:
    """A successful answer: the decoded JSON body, and the headers in lower case."""

    status: int
    body: Any
    headers: Mapping[str, str]

    @property
    def retry_after_s(self) -> float:
        """What the service asks to wait before the next try, 0 where it asks for nothing."""
        text = self.headers.get("retry-after", "0")
        return float(text) if text.replace(".", "", 1).isdigit() else 0.0


class Client:
    """Calls to one service, from any thread, over kept-alive connections. None is opened before the first."""

    def __init__(self, url: str, key: str = "") -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise CommandFailed(f"HEADRACE_URL={url!r} is not a URL: use http://host:port or https://host",
                                codes.WRONG_USE)
        if not (key.isascii() and key.isprintable()):
            raise CommandFailed("HEADRACE_KEY holds characters that no key has", codes.WRONG_USE)
        self.url = url.rstrip("/")
        self._headers = {"Accept": "application/json", "User-Agent": "headrace-cli"}
        if key.strip():
            self._headers["Authorization"] = f"Bearer {key.strip()}"
        self._pool = urllib3.PoolManager(maxsize=32, retries=False)

    def get(self, path: str, query: Mapping[str, Any] | None = None) -> Answer:
        """GET a JSON object; tried twice, since a kept-alive connection may have been closed meanwhile."""
        return self.call("GET", path, query=query, tries=2)

    def post(self, path: str, body: Any = None, *, idempotency_key: str | None = None) -> Answer:
        """POST a JSON body. With an idempotency key a lost answer is asked for again; without, never."""
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        data = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        if data is not None:
            headers["Content-Type"] = "application/json"
        return self.call("POST", path, body=data, headers=headers, tries=3 if idempotency_key else 1)

    def call(self, method: str, path: str, *, query: Mapping[str, Any] | None = None,
             body: bytes | Iterable[bytes] | None = None, headers: Mapping[str, str] | None = None,
             tries: int = 1, read_s: float = READ_S) -> Answer:
        """One call. Raises Unreachable (exit 3) or Refused (exit 1 or 2); only successes come back."""
        given = {name: value for name, value in (query or {}).items() if value is not None}
        url = f"{self.url}{path}" + (f"?{urlencode(given)}" if given else "")
        for attempt in range(tries):
            try:
                reply = self._pool.request(
                    method, url, body=body, headers={**self._headers, **(headers or {})}, redirect=False,
                    timeout=urllib3.Timeout(connect=CONNECT_S, read=read_s))
                break
            except urllib3.exceptions.LocationValueError as error:
                message = f"HEADRACE_URL={self.url!r} is not a URL: {error}"
                raise CommandFailed(message, codes.WRONG_USE) from error
            except (urllib3.exceptions.NewConnectionError, urllib3.exceptions.NameResolutionError,
                    urllib3.exceptions.ConnectTimeoutError) as error:
                raise Unreachable(self.url, _reason(error)) from error
            except (urllib3.exceptions.HTTPError, OSError) as error:
                if attempt == tries - 1:
                    raise Unreachable(self.url, _reason(error)) from error
        return self._answer(reply)

    def _answer(self, reply: urllib3.BaseHTTPResponse) -> Answer:
        try:
            body = json.loads(reply.data) if reply.data else None
        except ValueError:
            body = None
        if reply.status < 300 and (body is not None or not reply.data):
            return Answer(reply.status, body, {name.lower(): value for name, value in reply.headers.items()})
        if not isinstance(body, dict) or "code" not in body:
            raise Unreachable(
                self.url, f"HTTP {reply.status}, and not a Headrace answer; is this its address?")
        if reply.status in _GATEWAY:
            raise Unreachable(self.url, str(body.get("detail") or body["code"]).rstrip("."))
        raise Refused(reply.status, body)

    def pages(self, path: str, query: Mapping[str, Any], limit: int) -> Iterator[Any]:
        """Up to `limit` objects of a list, page by page."""
        after: str | None = None
        while limit > 0:
            page = self.get(path, {**query, "limit": min(limit, 100), "after": after}).body
            yield from page["data"]
            limit -= len(page["data"])
            after = page.get("last_id")
            if not page.get("has_more") or after is None:
                return


def _reason(error: BaseException) -> str:
    """The cause in words: urllib3 wraps the socket's error in its own object's repr."""
    cause = error.__cause__ or error.__context__
    text = str(cause if isinstance(cause, OSError) and cause.args else error)
    return text.rsplit(": ", 1)[-1].strip() or type(error).__name__


def from_environment() -> Client:
    """The client for `HEADRACE_URL` and `HEADRACE_KEY`."""
    try:
        settings = settings_module.load()
    except SettingsInvalid as error:
        raise CommandFailed(error.detail, codes.WRONG_USE) from error
    return Client(settings.url, settings.key)


def segment(text: str) -> str:
    """Text as one segment of a path."""
    return quote(text, safe="@._-")


def print_json(value: Any) -> None:
    """For scripts: one JSON document on stdout."""
    click.echo(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
