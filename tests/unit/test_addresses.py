"""Which targets are refused: the table of addresses, the forms that hide them, and names that lead to them."""

import ipaddress
import socket
import threading

import pytest

from models import addresses
from models.errors import InvalidRequest, SettingsInvalid
from models.settings import Settings
from tests import waiting
from tests.targets import PRIVATE, PUBLIC


@pytest.mark.parametrize("text", PUBLIC)
def test_public_addresses_may_be_sent_to(text):
    assert not addresses.denied(ipaddress.ip_address(text), ())


@pytest.mark.parametrize("text", PRIVATE)
def test_addresses_that_are_not_public_are_refused(text):
    address = ipaddress.ip_address(text)
    assert addresses.denied(address, ())
    host = f"[{text}]" if address.version == 6 else text
    with pytest.raises(InvalidRequest) as caught:
        check(f"https://{host}/hook")
    assert caught.value.faults[0].pointer == "/url"
    assert "HEADRACE_WEBHOOK_ALLOW" in caught.value.faults[0].detail


def check(url, *allow, allow_http=None):
    networks = tuple(map(ipaddress.ip_network, allow))
    return addresses.check_url(url, allow=networks, allow_http=bool(allow) if allow_http is None else allow_http)


@pytest.mark.parametrize(("url", "target"), [
    ("https://example.com/hook?a=1", ("https", "example.com", 443, "/hook?a=1")),
    ("https://EXAMPLE.com.", ("https", "example.com", 443, "/")),
    ("https://example.com:443/", ("https", "example.com", 443, "/")),
    ("https://bücher.example/x", ("https", "xn--bcher-kva.example", 443, "/x")),
    ("https://[2606:4700::1111]/", ("https", "2606:4700::1111", 443, "/")),
    ("https://my_service.example/", ("https", "my_service.example", 443, "/")),
])
def test_a_good_url_comes_apart_into_its_parts(url, target):
    found = check(url)
    assert (found.scheme, found.host, found.port, found.resource) == target


@pytest.mark.parametrize(("url", "rule"), [
    ("http://example.com/", "scheme"), ("ftp://example.com/", "scheme"), ("file:///etc/passwd", "scheme"),
    ("example.com/hook", "scheme"), ("//example.com", "scheme"), ("", "scheme"),
    ("https:///hook", "host"), ("https://", "host"), ("https://.example.com/", "host"), ("https://a..b/", "host"),
    ("https://-a.example/", "host"), ("https://exa%6dple.com/", "host"), ("https://" + "a." * 127 + "aa/", "host"),
    ("https://" + "a" * 64 + ".example/", "host"), ("https://ex!ample.com/", "host"),
    ("https://user@example.com/", "userinfo"), ("https://user:pw@example.com/", "userinfo"),
    ("https://@example.com/", "userinfo"), ("https://example.com@127.0.0.1/", "userinfo"),
    ("https://2130706433/", "host"), ("https://0x7f000001/", "host"), ("https://0x7f.1/", "host"),
    ("https://127.1/", "host"), ("https://0177.0.0.1/", "host"), ("https://017700000001/", "host"),
    ("https://127.0.0.1./", "address"), ("https://127.0.0.0x1/", "host"), ("https://1.2.3.4.5/", "host"),
    ("https://256.1.1.1/", "host"), ("https://\uff11\uff12\uff17.0.0.1/", "address"),
    ("https://127\u30020\u30020\u30021/", "address"), ("https://[fe80::1%25eth0]/", "address"),
    ("https://[::1%251]/", "address"), ("https://[2606:4700::1111%25eth0]/", "address"), ("https://0/", "host"),
    ("https://0x7F000001/", "host"), ("https://0177.1/", "host"), ("https://2130706433./", "host"),
    ("https://[::ffff:7f00:1]/", "address"), ("https://[0:0:0:0:0:ffff:10.0.0.1]/", "address"),
    ("https://[64:ff9b::10.0.0.1]/", "address"), ("https://[v1.x]/", "format"),
    ("https://example.com:8443/", "port"), ("https://example.com:22/", "port"), ("https://8.8.8.8:25/", "port"),
    ("https://example.com:99999/", "format"), ("https://example.com:port/", "format"),
    ("https://exam\tple.com/", "format"), ("https://example.com/a b", "format"), ("https://example.com/\r\nx: y", "format"),
    ("https://example.com\\@127.0.0.1/", "format"), ("https://example.com/#part", "format"),
    ("https://example.com/ü", "format"), ("https://[::1/", "format"), ("https://example.com/" + "a" * 2048, "length"),
    ("https://example.com/\x00", "format"), pytest.param("https://exam\udc80ple.com/", "host", id="surrogate"),
])
def test_a_bad_url_is_refused_with_rule_and_fix(url, rule):
    with pytest.raises(InvalidRequest) as caught:
        check(url)
    fault, = caught.value.faults
    assert (fault.pointer, fault.rule) == ("/url", rule)
    assert fault.detail


def test_a_listed_network_may_be_reached_over_http_and_on_any_port():
    assert check("http://127.0.0.1:8000/x", "127.0.0.0/8").port == 8000
    assert check("http://[::1]:8000/x", "::1/128").authority == "[::1]:8000"
    assert check("http://localhost:8000/x", "127.0.0.0/8").host == "localhost"
    assert check("https://10.1.2.3:8443/", "10.0.0.0/8").origin == "https://10.1.2.3:8443"


@pytest.mark.parametrize("url", ["http://10.0.0.1/", "http://8.8.8.8/", "https://8.8.8.8:8443/", "https://169.254.169.254/"])
def test_a_listed_network_opens_no_other(url):
    with pytest.raises(InvalidRequest):
        check(url, "127.0.0.0/8")


def target_of(url):
    return check(url, "127.0.0.0/8", "::1/128")


LOOPBACK = addresses.LOOPBACK


def test_one_private_answer_among_public_ones_refuses_the_name():
    found = [ipaddress.ip_address("8.8.8.8"), ipaddress.ip_address("10.0.0.1")]
    with pytest.raises(addresses.AddressDenied, match=r"10\.0\.0\.1"):
        addresses.check_addresses(target_of("https://example.com/"), found, LOOPBACK)


def test_a_name_reaches_odd_ports_and_plain_http_only_inside_listed_networks():
    public, local = [ipaddress.ip_address("8.8.8.8")], [ipaddress.ip_address("127.0.0.1")]
    for url in ("http://example.com/", "https://example.com:8443/"):
        assert addresses.check_addresses(target_of(url), local, LOOPBACK) == local[0]
        for found in (public, public + local):
            with pytest.raises(addresses.AddressDenied):
                addresses.check_addresses(target_of(url), found, LOOPBACK)
    assert addresses.check_addresses(target_of("https://example.com/"), public, LOOPBACK) == public[0]


def test_a_name_is_resolved_to_all_its_addresses_once():
    found = addresses.resolve("localhost", 80, 5.0)
    assert ipaddress.ip_address("127.0.0.1") in found
    assert len(found) == len(set(found))
    assert addresses.resolve("10.1.2.3", 80, 0.0) == [ipaddress.ip_address("10.1.2.3")]


def test_a_name_without_an_address_is_not_resolved():
    with pytest.raises(addresses.NotResolved, match=r"nowhere\.invalid"):
        addresses.resolve("nowhere.invalid", 443, 10.0)


def test_a_resolver_that_hangs_costs_its_deadline_only(monkeypatch):
    released = threading.Event()

    def hang(*_arguments, **_named):
        released.wait(30)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    try:
        with pytest.raises(addresses.NotResolved, match="within"):
            addresses.resolve("slow.example", 443, 0.05)
    finally:
        released.set()


def test_a_resolver_that_hangs_is_asked_once_however_many_wait(monkeypatch):
    released, asked = threading.Event(), []

    def hang(host, *_arguments, **_named):
        asked.append(host)
        released.wait(30)
        return [(0, 0, 0, "", ("9.9.9.9", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    try:
        for _ in range(5):
            with pytest.raises(addresses.NotResolved, match="within"):
                addresses.resolve("stuck.example", 443, 0.01)
        assert asked == ["stuck.example"]
    finally:
        released.set()
    waiting.until(lambda: addresses.resolve("stuck.example", 443, 5.0) == [ipaddress.ip_address("9.9.9.9")])


def test_the_policy_is_the_operators_networks_and_loopback_without_keys():
    keyless = addresses.policy(Settings(webhook_allow=("10.0.0.0/8",)))
    keyed = addresses.policy(Settings(webhook_allow=("10.0.0.0/8",), auth="keys"))
    loopback = ipaddress.ip_address("127.0.0.1")
    assert not addresses.denied(loopback, keyless.allow)
    assert addresses.denied(loopback, keyed.allow)
    assert not addresses.denied(ipaddress.ip_address("10.1.1.1"), keyed.allow)
    assert not addresses.policy(Settings(auth="keys")).allow_http


def test_a_network_that_is_none_is_refused_with_its_setting():
    with pytest.raises(SettingsInvalid, match="HEADRACE_WEBHOOK_ALLOW"):
        addresses.policy(Settings(webhook_allow=("10.0.0.1/8",)))
