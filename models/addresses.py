"""Which addresses this service may send to: the guard against requests forged through it (SSRF).

A URL is checked when it is given and again at every attempt; its name is resolved once, every answer is
checked, and the sender connects to the very address that was checked. Plain HTTP and other ports than 443
only lead into networks that the operator listed.
"""

import ipaddress
import re
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from models.errors import Fault, InvalidRequest, SettingsInvalid
from models.settings import Settings

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MAX_URL = 2048
MAX_HOST = 253
HTTPS_PORT = 443
LOOPBACK: tuple[Network, ...] = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))
MAX_LOOKUPS = 128  # threads that may hang in the system's resolver at once

# Carrier-grade NAT, protocol assignments, 6to4 relays, and the wire server of Azure's metadata: the standard
# library's `is_global` calls most of them public (measured on 3.11).
_DENIED_V4 = tuple(map(ipaddress.ip_network, (
    "100.64.0.0/10", "192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32")))
# Only 2000::/3 is given out. Out of it: Teredo and protocol assignments, 6to4, two for documentation, AS112.
_GLOBAL_V6 = ipaddress.ip_network("2000::/3")
_DENIED_V6 = tuple(map(ipaddress.ip_network, (
    "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "2620:4f:8000::/48")))

_HOST = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(?:\.(?!-)[a-z0-9_-]{1,63}(?<!-))*\Z")
_NUMBER = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)\Z")
_PRINTABLE = re.compile(r"[\x21-\x7e]*\Z")


class AddressDenied(Exception):
    """The target may not be connected to; the message says why and what would be accepted."""


class NotResolved(Exception):
    """The name has no address now, or the resolver did not answer in time."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Networks that targets may lie in although they are not public, over plain HTTP and on any port."""

    allow: tuple[Network, ...] = ()

    @property
    def allow_http(self) -> bool:
        return bool(self.allow)


@dataclass(frozen=True, slots=True)
class Target:
    """A checked URL: `host` in ASCII lower case, without brackets; `resource` is path and query."""

    scheme: str
    host: str
    port: int
    resource: str

    @property
    def authority(self) -> str:
        """As the Host header spells it: the port only where it isn't the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == {"https": HTTPS_PORT, "http": 80}[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.authority}"


def origin_of(url: str) -> str:
    """Scheme, host and port of a URL that was checked once, whatever the policy says of it now."""
    parts = urlsplit(url)
    port = parts.port or {"https": HTTPS_PORT, "http": 80}[parts.scheme]
    return Target(parts.scheme, _ascii_host(parts.hostname or ""), port, "").origin


def policy(settings: Settings) -> Policy:
    """The operator's networks; with auth off (then the API is bound to loopback) loopback too.

    Raises SettingsInvalid for what isn't a network.
    """
    try:
        allow: tuple[Network, ...] = tuple(ipaddress.ip_network(text) for text in settings.webhook_allow)
    except ValueError as error:
        raise SettingsInvalid(f"HEADRACE_WEBHOOK_ALLOW: {error}; list networks such as 10.0.0.0/8") from error
    return Policy(allow + LOOPBACK if settings.auth == "off" else allow)


def _unwrap(address: Address) -> Address:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped


def is_public(address: Address) -> bool:
    """Whether the address is out in the internet, whatever notation hides it."""
    address = _unwrap(address)
    if isinstance(address, ipaddress.IPv4Address):
        inside = not any(address in network for network in _DENIED_V4)
    else:
        inside = address in _GLOBAL_V6 and not any(address in network for network in _DENIED_V6)
    return inside and address.is_global and not address.is_multicast and not address.is_reserved


def listed(address: Address, allow: Sequence[Network]) -> bool:
    """Whether the address lies in one of the operator's networks."""
    address = _unwrap(address)
    return any(address.version == network.version and address in network for network in allow)


def denied(address: Address, allow: Sequence[Network]) -> bool:
    """Whether nothing may be sent to this address."""
    return not listed(address, allow) and not is_public(address)


def check_url(url: str, *, allow: Sequence[Network], allow_http: bool, pointer: str = "/url") -> Target:
    """The parts of a URL that may be sent to, as far as that shows without asking the resolver.

    Raises InvalidRequest with a fault under `pointer` that names the rule and the fix.
    """
    fault = _form(url)
    if fault is None:
        parts = urlsplit(url)
        host = _ascii_host(parts.hostname or "")
        target = Target(parts.scheme, host, parts.port or {"https": HTTPS_PORT, "http": 80}[parts.scheme],
                        (parts.path or "/") + (f"?{parts.query}" if parts.query else ""))
        fault = _rules(target, allow, allow_http=allow_http)
        if fault is None:
            return target
    raise InvalidRequest(fault[1], faults=(Fault(pointer, *fault),))


def _form(url: str) -> tuple[str, str] | None:
    """What is wrong with the text, before parsing: `urlsplit` drops tabs and line ends in silence."""
    if len(url) > MAX_URL:
        return "length", f"the URL has {len(url)} characters; use at most {MAX_URL}"
    if "\\" in url or any(ord(char) <= 32 or ord(char) == 127 for char in url):
        return "format", "the URL holds blanks, control characters or backslashes; percent-encode them"
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        return "format", f"not a URL ({error}); write https://host/path"
    if parts.scheme not in ("https", "http"):
        return "scheme", "use an https:// URL"
    if "@" in parts.netloc:
        return "userinfo", "leave user name and password out of the URL; signatures prove who sends"
    if parts.fragment or not _PRINTABLE.match(parts.path + parts.query):
        return "format", "leave the fragment out and percent-encode what isn't ASCII after the host"
    if not parts.hostname:
        return "host", "the URL names no host; write https://host/path"
    if "[" in parts.netloc and ":" not in parts.hostname:  # how much urlsplit lets through depends on its age
        return "format", "only an IPv6 address goes into brackets"
    return None


def _ascii_host(host: str) -> str:
    """The host as the resolver would get it, empty where it has no such form."""
    if ":" in host:
        return host  # an IPv6 literal, already out of its brackets
    try:
        text = host.encode("idna").decode().lower() if not host.isascii() else host
    except UnicodeError:
        return ""
    text = text.removesuffix(".")
    return text if len(text) <= MAX_HOST and _HOST.match(text) else ""


def _literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _rules(target: Target, allow: Sequence[Network], *, allow_http: bool) -> tuple[str, str] | None:
    host = target.host
    if not host:
        return "host", "the host is not a valid name; use letters, digits, hyphens and dots"
    address = _literal(host)
    if address is None and (":" in host or _NUMBER.match(host.rsplit(".", 1)[-1])):
        # 2130706433, 0x7f.1 and 127.1 all reach loopback through the system's resolver.
        return "host", "write an IPv4 address as four decimal numbers, or use a name"
    if address is not None and ("%" in host or denied(address, allow)):
        return "address", _not_public(host)
    if target.scheme == "http" and not allow_http:
        return "scheme", _USE_HTTPS
    if address is None and allow:
        return None  # whether the name leads into a listed network shows when it is resolved
    reason = _transport(target, [] if address is None else [address], allow)
    return None if reason is None else ("scheme" if target.scheme == "http" else "port", reason)


_USE_HTTPS = "use https; plain http only leads into networks listed in HEADRACE_WEBHOOK_ALLOW"
_USE_443 = f"use port {HTTPS_PORT}; others only lead into networks listed in HEADRACE_WEBHOOK_ALLOW"


def _not_public(host: str) -> str:
    return (f"{host} is not a public address; use a public one, or ask the operator to list its network in "
            "HEADRACE_WEBHOOK_ALLOW")


def _transport(target: Target, found: Sequence[Address], allow: Sequence[Network]) -> str | None:
    """Plain HTTP and odd ports only lead into listed networks; what to do instead."""
    if found and all(listed(address, allow) for address in found):
        return None
    if target.scheme == "http":
        return _USE_HTTPS
    return None if target.port == HTTPS_PORT else _USE_443


class _Lookup:
    """One question to the system's resolver, in a thread of its own."""

    def __init__(self, host: str, port: int) -> None:
        self._place = host, port
        self.found: list[Address] = []
        self.trouble = "empty answer"
        self._thread = threading.Thread(target=self._ask, name="resolve", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()

    def _ask(self) -> None:
        try:
            answers = socket.getaddrinfo(*self._place, type=socket.SOCK_STREAM)
            self.found.extend(dict.fromkeys(ipaddress.ip_address(str(answer[4][0])) for answer in answers))
        except (OSError, UnicodeError, ValueError) as error:
            self.trouble = str(error)
        finally:
            with _asking:
                _asked.pop(self._place, None)
            _lookups.release()


_lookups = threading.BoundedSemaphore(MAX_LOOKUPS)
_asking = threading.Lock()
_asked: dict[tuple[str, int], _Lookup] = {}  # still without an answer


def resolve(host: str, port: int, deadline_s: float) -> list[Address]:
    """Every address of a name: asked in a thread, since `getaddrinfo` knows no time limit.

    Who asks while the same question is open waits for its answer, so that a name whose servers hang costs one
    thread, however many sends it has. Raises NotResolved when there is no address, or no answer within
    `deadline_s` seconds.
    """
    literal = _literal(host)
    if literal is not None:
        return [literal]
    until = time.monotonic() + deadline_s
    with _asking:
        lookup = _asked.get((host, port))
    if lookup is None:
        if not _lookups.acquire(timeout=max(0.0, deadline_s)):
            raise NotResolved("too many names are being looked up")
        with _asking:
            lookup = _asked.get((host, port))
            if lookup is None:
                lookup = _Lookup(host, port)
                lookup.start()
                _asked[host, port] = lookup
            else:
                _lookups.release()
    if not lookup.wait(until - time.monotonic()):
        raise NotResolved(f"no address of {host} within {deadline_s:.0f} s")
    if not lookup.found:
        raise NotResolved(f"{host} has no address ({lookup.trouble})")
    return lookup.found


def check_addresses(target: Target, found: Sequence[Address], allow: Sequence[Network]) -> Address:
    """The address to connect to, once every answer is fit: one bad one means somebody steers the name.

    Raises AddressDenied.
    """
    for address in found:
        if denied(address, allow):
            raise AddressDenied(_not_public(f"{target.host} ({address})" if str(address) != target.host
                                            else target.host))
    reason = _transport(target, found, allow)
    if reason is not None:
        raise AddressDenied(reason)
    # IPv4 first: hosts without an IPv6 route are common, and only one address is tried an attempt.
    return min(found, key=lambda address: address.version)
