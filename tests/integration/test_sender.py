"""One send to receivers that behave and misbehave, over real sockets."""

import ipaddress
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from time import time

import pytest

from models import addresses
from tests import receivers, waiting
from tests.targets import PRIVATE
from workers.housekeeping.sender import KEPT, Sender

HEADERS = {"webhook-id": "evt_1", "webhook-timestamp": "1", "webhook-signature": "v1,x"}
LOCAL = addresses.Policy(addresses.LOOPBACK)


@pytest.fixture
def sender():
    with Sender(LOCAL, connect_s=2.0, total_s=10.0) as running:
        yield running


@pytest.fixture
def hasty():
    """A sender that gives up soon, where giving up is what the test is about."""
    with Sender(LOCAL, connect_s=0.5, total_s=0.6) as running:
        yield running


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_any_2xx_is_success(receiver, sender, status):
    answer = sender.send(receiver.on("/ok", status), HEADERS, b'{"a": 1}')
    assert (answer.status, answer.error) == (status, None)
    assert answer.latency_ms > 0


def test_body_and_headers_arrive_as_given(receiver, sender):
    sender.send(receiver.on("/a?b=c", 200), HEADERS, b'{"text": "\xc3\xbc"}')
    got, = receiver.received
    assert got.body == b'{"text": "\xc3\xbc"}'
    assert {name: got.headers[name] for name in HEADERS} == HEADERS
    assert got.headers["content-type"] == "application/json"
    assert got.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert got.headers["user-agent"].startswith("headrace/")


@pytest.mark.parametrize("status", [400, 404, 410, 429, 500, 503])
def test_any_other_status_is_failure(receiver, sender, status):
    answer = sender.send(receiver.on("/no", (status, {}, b"why")), HEADERS, b"{}")
    assert (answer.status, answer.error, answer.response) == (status, f"status: {status}", b"why")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_failure_and_not_followed(receiver, sender, status):
    elsewhere = receiver.on("/elsewhere", 200)
    answer = sender.send(receiver.on("/moved", (status, {"Location": elsewhere}, b"")), HEADERS, b"{}")
    assert answer.status == status
    assert answer.error.startswith("redirect:")
    assert receiver.at("/elsewhere") == []


def test_environment_proxies_are_not_used(receiver, sender, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert sender.send(receiver.on("/direct", 200), HEADERS, b"{}").error is None


@pytest.mark.parametrize(("given", "wanted"), [("120", 120.0), ("0", 0.0), ("999999999999", 86_400.0), ("soon", None),
                                               ("-5", None), ("", None)])
def test_retry_after_is_read_in_seconds_and_capped_at_a_day(receiver, sender, given, wanted):
    answer = sender.send(receiver.on("/busy", (503, {"Retry-After": given}, b"")), HEADERS, b"{}")
    assert answer.retry_after_s == wanted


def test_retry_after_is_read_as_a_date(receiver, sender):
    when = formatdate(time() + 3600, usegmt=True)
    answer = sender.send(receiver.on("/busy", (429, {"Retry-After": when}, b"")), HEADERS, b"{}")
    assert 3500 < answer.retry_after_s <= 3600


def test_of_a_large_answer_the_first_kb_is_kept_and_the_rest_not_read(receiver, sender):
    answer = sender.send(receiver.on("/large", (200, {}, b"x" * 10_000_000)), HEADERS, b"{}")
    assert answer.error is None
    assert answer.response == b"x" * KEPT


def test_a_body_that_breaks_off_leaves_the_status_as_it_was(receiver, sender):
    broken = receivers.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
    answer = sender.send(receiver.on("/half", broken), HEADERS, b"{}")
    assert (answer.status, answer.error) == (200, None)


@pytest.mark.parametrize("data", [b"", b"\x00\xff\xfe nonsense\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1 99 \r\n\r\n",
                                  b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
                                  b"HTTP/1.1 200 " + b"a" * 70_000 + b"\r\n\r\n", b"SSH-2.0-OpenSSH_9.6\r\n"])
def test_an_answer_that_is_not_http_is_failure_in_printable_words(receiver, sender, data):
    answer = sender.send(receiver.on("/odd", receivers.raw(data)), HEADERS, b"{}")
    assert answer.status is None
    assert answer.error.isprintable()
    assert len(answer.error) <= 300


def test_a_reset_connection_is_failure(receiver, sender):
    answer = sender.send(receiver.on("/reset", receivers.reset), HEADERS, b"{}")
    assert answer.error.startswith("connection:")


def test_a_receiver_that_hangs_costs_the_total_time_only(receiver, hasty):
    assert hasty.send(receiver.on("/hang", receivers.hang), HEADERS, b"{}").error.startswith("timeout:")


def test_a_receiver_that_drips_bytes_costs_the_total_time_only(receiver, hasty):
    assert hasty.send(receiver.on("/drip", receivers.drip), HEADERS, b"{}").error.startswith("timeout:")


def test_interim_answers_without_end_cost_the_total_time_only(receiver, hasty):
    answer = hasty.send(receiver.on("/continue", receivers.endless_headers), HEADERS, b"{}")
    assert answer.error.startswith("timeout:")


def test_of_a_body_without_end_the_first_part_is_read(receiver, sender):
    answer = sender.send(receiver.on("/endless", receivers.endless), HEADERS, b"{}")
    assert (answer.status, answer.error, answer.response) == (200, None, b"x" * KEPT)


def test_a_port_that_nobody_listens_on_is_failure(sender):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        answer = sender.send(f"http://127.0.0.1:{unused.getsockname()[1]}/", HEADERS, b"{}")
    assert answer.error.startswith("connect:")


def test_a_target_that_is_not_public_is_refused_before_anything_is_sent(receiver):
    with Sender(addresses.Policy()) as strict:
        for url in (receiver.url("/x"), "https://127.0.0.1/x", "https://169.254.169.254/latest/meta-data"):
            answer = strict.send(url, HEADERS, b"{}")
            assert answer.error.startswith("address:")
    assert receiver.received == []


def test_a_name_that_leads_to_a_private_address_is_refused(monkeypatch):
    monkeypatch.setattr(addresses, "resolve", lambda *_: [ipaddress.ip_address("10.0.0.7")])
    with Sender(LOCAL) as strict:
        assert "10.0.0.7" in strict.send("https://rebound.example/", HEADERS, b"{}").error


@pytest.fixture
def resolver(monkeypatch):
    """Answers for names under `.test`, one after the other; everything else is asked as ever."""
    answers, asked, real = {}, [], socket.getaddrinfo

    def look_up(host, port, *arguments, **named):
        if host not in answers:
            return real(host, port, *arguments, **named)
        asked.append(host)
        found = answers[host].pop(0) if len(answers[host]) > 1 else answers[host][0]
        return [item for address in found for item in real(address, port, *arguments, **named)]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return answers, asked


def test_a_name_is_asked_once_and_what_was_checked_is_what_is_connected_to(receiver, resolver):
    answers, asked = resolver
    with receivers.Receiver(host="127.0.0.2", port=receiver.port) as inside:
        answers["rebind.test"] = [["127.0.0.1"], ["127.0.0.2"]]
        allowed = addresses.Policy((ipaddress.ip_network("127.0.0.1/32"),))
        with Sender(allowed) as careful:
            url = f"http://rebind.test:{receiver.port}/x"
            first = careful.send(url, HEADERS, b"{}")
            assert (first.status, first.error) == (204, None)
            assert asked == ["rebind.test"]
            # An idle connection to the good address doesn't spare the name a look.
            second = careful.send(url, HEADERS, b"{}")
        assert second.error.startswith("address:")
        assert "127.0.0.2" in second.error
        assert asked == ["rebind.test"] * 2
        assert len(receiver.received) == 1
        assert receiver.received[0].headers["host"] == f"rebind.test:{receiver.port}"
        assert inside.received == []


@pytest.mark.parametrize("found", [["169.254.169.254"], ["127.0.0.1", "10.0.0.1"], ["0.0.0.0"], ["::ffff:10.0.0.1"],
                                   ["64:ff9b::a9fe:a9fe"], ["2002:7f00:1::"], ["fe80::1"], ["168.63.129.16"]])
def test_a_name_with_one_address_inside_is_refused_before_anything_is_sent(receiver, resolver, found):
    answers, _ = resolver
    answers["inside.test"] = [found]
    with Sender(LOCAL) as careful:
        answer = careful.send(f"http://inside.test:{receiver.port}/x", HEADERS, b"{}")
    assert answer.error.startswith("address:")
    assert receiver.received == []


def test_every_address_that_is_not_public_is_refused_at_the_attempt_too():
    with Sender(addresses.Policy()) as strict:
        for text in PRIVATE:
            host = f"[{text}]" if ":" in text else text
            assert strict.send(f"https://{host}/x", HEADERS, b"{}").error.startswith("address:"), text


def test_a_redirect_to_an_address_inside_is_not_followed(receiver, sender):
    with receivers.Receiver(host="127.0.0.2") as inside:
        there = f"http://127.0.0.2:{inside.port}/latest/meta-data"
        answer = sender.send(receiver.on("/moved", (307, {"Location": there}, b"")), HEADERS, b"{}")
        assert answer.error.startswith("redirect:")
        assert inside.received == []


def test_a_name_without_an_address_is_failure(sender):
    assert sender.send("https://nowhere.invalid/", HEADERS, b"{}").error.startswith("dns:")


def test_connections_are_used_again(receiver, sender):
    for _ in range(5):
        assert sender.send(receiver.on("/again", (200, {}, b"ok")), HEADERS, b"{}").error is None
    assert len({item.client for item in receiver.received}) == 1


def test_a_connection_closed_while_idle_costs_no_attempt(receiver, sender):
    closing = receivers.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")  # says keep-alive, then closes
    for _ in range(3):
        assert sender.send(receiver.on("/close", closing), HEADERS, b"{}").error is None


def test_many_threads_may_send_at_once(receiver, sender):
    url = receiver.on("/many", (200, {}, b"ok"))
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: sender.send(url, HEADERS, b"{}"), range(100)))
    assert all(answer.error is None for answer in answers)
    assert len(receiver.received) == 100


def test_abort_ends_a_send_that_hangs(receiver):
    with Sender(LOCAL) as sender:
        answers = []
        url = receiver.on("/hang", receivers.hang)
        thread = threading.Thread(target=lambda: answers.append(sender.send(url, HEADERS, b"{}")))
        thread.start()
        waiting.until(lambda: receiver.at("/hang"), what="the request")
        sender.abort()
        thread.join(10)
    assert answers[0].error.startswith("stopped")
    receiver.released.set()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate for receiver.test alone, signed by itself."""
    folder = tmp_path_factory.mktemp("tls")
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=receiver.test",
         "-addext", "subjectAltName=DNS:receiver.test", "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
        capture_output=True, check=False)
    assert made.returncode == 0, made.stderr
    return folder / "cert.pem", folder / "key.pem"


@pytest.fixture
def secure(certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    monkeypatch.setattr(addresses, "resolve", lambda *_: [ipaddress.ip_address("127.0.0.1")])
    with receivers.Receiver(tls=certificate) as running:
        yield running


def test_https_goes_to_the_checked_address_under_the_hosts_name(secure, sender):
    with Sender(LOCAL) as trusting:
        answer = trusting.send(f"https://receiver.test:{secure.port}/x", HEADERS, b"{}")
    assert (answer.status, answer.error) == (204, None)
    assert secure.names == ["receiver.test"]
    assert secure.received[0].headers["host"] == f"receiver.test:{secure.port}"


def test_a_certificate_for_another_name_is_refused(secure):
    with Sender(LOCAL) as trusting:
        answer = trusting.send(f"https://other.test:{secure.port}/x", HEADERS, b"{}")
    assert answer.error.startswith("tls:")
    assert secure.received == []


def test_a_certificate_that_nobody_signed_is_refused(secure, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE")
    with Sender(LOCAL) as careful:
        answer = careful.send(f"https://receiver.test:{secure.port}/x", HEADERS, b"{}")
    assert answer.error.startswith("tls:")
