"""One frozen object, read once from the environment and flags; all faults are reported together."""

import hashlib
import math
import os
import re
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from models.errors import Fault, SettingsInvalid

PREFIX = "HEADRACE_"
MIB = 1 << 20
_BEFORE_HOST = re.compile(r"(://[^/?#\s:@]*:)[^/\s]*@")  # unescaped `@`, `?` and `#` in the password too
_IN_QUERY = re.compile(r"([?&;][^=&;#\s]*(?:pass|secret|token|key)[^=&;#\s]*=)[^&;#\s]*", re.IGNORECASE)
MAX_SOCKET_PATH = 100  # the kernel's limit is 104 to 108 bytes
_PLAIN = re.compile(r"[\w./-]+\Z", re.ASCII)  # what needs no escaping in a URL, however it is read


@dataclass(frozen=True, slots=True)
class HardwareClass:
    """A named list of ONNX Runtime execution providers with their options."""

    name: str
    providers: tuple[str, ...]
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    threads: int = 1  # intra-op; two 1-thread workers beat one 2-thread session (124 to 100 texts/s)


DEFAULT_CLASSES = {
    "cpu": HardwareClass("cpu", ("CPUExecutionProvider",)),
    "cuda": HardwareClass("cuda", ("CUDAExecutionProvider",)),
}

# The published delays of Standard Webhooks, in seconds, each ±20 %.
WEBHOOK_SCHEDULE = (0, 5, 300, 1800, 7200, 18000, 36000, 50400, 72000, 86400)


@dataclass(frozen=True, slots=True)
class Settings:
    """Values in force. Field `x` is `HEADRACE_X` in the environment."""

    data_dir: Path = Path(".headrace")
    database_url: str = ""  # empty: SQLite in the data folder
    broker_url: str = ""  # empty: the embedded broker's socket in the data folder
    blob_url: str = ""  # empty: a folder in the data folder
    hardware: str = ""  # path of a TOML file of hardware classes
    lease_s: float = 30.0
    max_attempts: int = 3
    sweep_s: float = 2.0
    max_inline_bytes: int = 262_144
    max_body_bytes: int = 8 * MIB
    max_upload_bytes: int = 16 << 30
    result_ttl_s: float = 7 * 86400.0
    max_wait_s: float = 300.0
    max_depth: int = 100_000  # jobs that may wait for a class without a live worker
    source_allow: str = ""
    sqlite_synchronous: str = "full"
    log_format: str = "console"
    webhook_schedule: tuple[float, ...] = WEBHOOK_SCHEDULE
    webhook_allow: tuple[str, ...] = ()  # networks that private webhook targets may lie in
    webhook_breaker_failures: int = 5  # in a row, after which an endpoint's deliveries wait
    webhook_breaker_s: float = 30.0  # for how long at first; twice as long after each try that fails
    webhook_give_up_s: float = 5 * 86400.0  # of nothing but failure, after which an endpoint is disabled
    check_s: float = 120.0  # in which a network that was sent must load and run an input made up for it
    origin_allow: tuple[str, ...] = ()  # origins whose pages may use the service while it runs without keys
    # Of a tenant for which the operator set nothing else; 0: no limit. `default` is spared.
    tenant_max_in_flight: int = 0
    tenant_rate: float = 0.0  # requests a second
    tenant_burst: int = 0
    tenant_max_body_bytes: int = 0
    auth: str = "off"  # "off" (loopback only, tenant `default`) or "keys"
    incarnation: str = ""  # set by a supervisor, so that it can end it when it sees the process die
    host: str = "127.0.0.1"
    port: int = 8080
    url: str = "http://127.0.0.1:8080"
    key: str = ""

    @property
    def database(self) -> str:
        return self.database_url or f"sqlite:///{self.data_dir.resolve()}/headrace.db"

    @property
    def broker(self) -> str:
        return self.broker_url or f"redis+socket://{socket_folder(self.data_dir)}/broker.sock"

    @property
    def blobs(self) -> Path:
        if self.blob_url:
            return Path(urlsplit(self.blob_url).path if "://" in self.blob_url else self.blob_url)
        return self.data_dir / "blobs"

    def classes(self) -> dict[str, HardwareClass]:
        """The hardware classes: the built-in ones, and those of the operator's TOML file."""
        return DEFAULT_CLASSES | (_read_classes(Path(self.hardware)) if self.hardware else {})

    def masked(self) -> dict[str, str]:
        """Every value as text, passwords and keys hidden."""
        out = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name == "key" and value:
                value = "***"
            elif isinstance(value, str) and "://" in value:
                value = mask_url(value)
            out[item.name] = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        return out


def socket_folder(data_dir: Path) -> Path:
    """Where unix sockets of a data folder go: the folder itself, or one with a shorter, plainer name."""
    folder = data_dir.resolve()
    longest = len(os.fsencode(folder)) + len("/postgres.sock/.s.PGSQL.5432")
    if longest <= MAX_SOCKET_PATH and _PLAIN.match(str(folder)):
        return folder
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"headrace-{os.getuid()}-{digest}"


def redis_url(broker: str) -> str:
    """The broker's URL as redis-py spells it (kombu says `redis+socket://`, redis-py `unix://`)."""
    kombu = "redis+socket://"
    return "unix://" + broker.removeprefix(kombu) if broker.startswith(kombu) else broker


def mask_url(url: str) -> str:
    """A URL, or several with anything between, without passwords: before the host, and in the query."""
    return _IN_QUERY.sub(r"\1***", _BEFORE_HOST.sub(r"\1***@", url))


def _read_classes(path: Path) -> dict[str, HardwareClass]:
    try:
        tables = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise SettingsInvalid(f"HEADRACE_HARDWARE={path}: {error}") from error
    out = {}
    for name, table in tables.get("classes", tables).items():
        known = {"providers", "options", "threads"}
        if not isinstance(table, dict) or not table.get("providers") or set(table) - known:
            raise SettingsInvalid(
                f'HEADRACE_HARDWARE={path}: class {name!r} needs `providers = ["…ExecutionProvider"]` '
                f"and may have {sorted(known - {'providers'})}"
            )
        out[name] = HardwareClass(name, tuple(table["providers"]), table.get("options", {}),
                                  int(table.get("threads", 1)))
    return out


def _floats(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(",") if part.strip())


def _words(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


_PARSERS: dict[str, Any] = {
    "data_dir": Path, "lease_s": float, "max_attempts": int, "sweep_s": float, "max_inline_bytes": int,
    "max_body_bytes": int, "max_upload_bytes": int, "result_ttl_s": float, "max_wait_s": float,
    "max_depth": int, "port": int,
    "webhook_schedule": _floats, "webhook_allow": _words, "webhook_breaker_failures": int,
    "webhook_breaker_s": float, "webhook_give_up_s": float, "origin_allow": _words, "check_s": float,
    "tenant_max_in_flight": int, "tenant_rate": float, "tenant_burst": int, "tenant_max_body_bytes": int,
}
_WANTED: dict[Any, str] = {int: "a whole number", float: "a number", _floats: "numbers with commas between"}
_CHOICES = {"sqlite_synchronous": ("full", "normal"), "log_format": ("console", "json"),
            "auth": ("off", "keys")}
_POSITIVE = ("lease_s", "max_attempts", "sweep_s", "max_inline_bytes", "max_body_bytes", "max_upload_bytes",
             "result_ttl_s", "max_wait_s", "max_depth", "webhook_breaker_failures", "webhook_breaker_s",
             "webhook_give_up_s", "check_s")
_NOT_NEGATIVE = ("tenant_max_in_flight", "tenant_rate", "tenant_burst", "tenant_max_body_bytes")


def load(environ: Mapping[str, str] | None = None, **flags: Any) -> Settings:
    """Settings from `environ` (default: the process's), overridden by flags that are not None.

    Raises SettingsInvalid with every fault at once.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    faults: list[Fault] = []
    for item in fields(Settings):
        name = PREFIX + item.name.upper()
        if flags.get(item.name) is not None:
            values[item.name] = flags[item.name]
        elif name in environ:
            text = environ[name]
            try:
                values[item.name] = _PARSERS.get(item.name, str)(text)
            except ValueError:
                wanted = _WANTED[_PARSERS[item.name]]
                faults.append(Fault(name, "type", f"{text!r} is not {wanted}"))
    for name, allowed in _CHOICES.items():
        if name in values and values[name] not in allowed:
            detail = f"{values[name]!r} is not one of {', '.join(allowed)}"
            faults.append(Fault(PREFIX + name.upper(), "choice", detail))
    faults += [Fault(PREFIX + name.upper(), "positive", f"{values[name]} must be above 0")
               for name in _POSITIVE if name in values and not values[name] > 0]
    faults += [Fault(PREFIX + name.upper(), "range", f"{values[name]} must be 0 (no limit) or a number above")
               for name in _NOT_NEGATIVE if name in values and not 0 <= values[name] < math.inf]
    database = values.get("database_url", "")
    if database and urlsplit(database).scheme.split("+")[0] not in ("sqlite", "postgresql", "postgres"):
        faults.append(Fault(PREFIX + "DATABASE_URL", "scheme", "use sqlite:///path or postgresql://…"))
    if values.get("max_inline_bytes", 1) > values.get("max_body_bytes", 8 * MIB):
        faults.append(Fault(PREFIX + "MAX_INLINE_BYTES", "order", "must not exceed HEADRACE_MAX_BODY_BYTES"))
    if faults:
        text = "; ".join(f"{fault.pointer}: {fault.detail}" for fault in faults)
        raise SettingsInvalid(text, faults=tuple(faults))
    return Settings(**values)
