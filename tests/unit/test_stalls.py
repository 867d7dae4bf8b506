"""Bodies that stop arriving: the read ends, the thread is free again, and nobody else's connection is touched."""

import socket
import threading
from collections.abc import Iterator

import pytest

from api import stalls
from models.errors import RateLimited, RequestTimeout
from tests import waiting


class Pair:
    """A TCP connection to ourselves: `near` reads a body as the server does, until it is whole or over."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.far = socket.create_connection(self.server.getsockname())
        self.near, _ = self.server.accept()

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size and (more := self.near.recv(size - len(data))):
            data += more
        return data

    def close(self) -> None:
        for each in (self.far, self.near, self.server):
            each.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


@pytest.fixture
def watched() -> Iterator[stalls.Stalls]:
    made = stalls.Stalls(piece_s=0.4)
    made.start()
    yield made
    made.stop()


def test_a_body_that_is_there_is_read(watched: stalls.Stalls, pair: Pair) -> None:
    pair.far.sendall(b"hello")
    assert watched.read(pair, 5) == b"hello"


def test_a_body_that_stops_arriving_is_ended(watched: stalls.Stalls, pair: Pair) -> None:
    pair.far.sendall(b"hel")
    with pytest.raises(RequestTimeout, match="within"):
        watched.read(pair, 5)
    pair.near.sendall(b"too late")  # the answer still reaches the client
    assert pair.far.recv(100) == b"too late"


def test_connections_that_this_process_opened_itself_are_left_alone(watched: stalls.Stalls, pair: Pair) -> None:
    with pytest.raises(RequestTimeout):
        watched.read(pair, 5)
    pair.far.setblocking(False)  # `far` idles as a connection to a database does
    with pytest.raises(BlockingIOError):
        pair.far.recv(1)


def test_a_body_that_trickles_is_ended(watched: stalls.Stalls, pair: Pair) -> None:
    over = threading.Event()

    def trickle() -> None:
        while not over.wait(0.05):
            pair.far.sendall(b"x")

    thread = threading.Thread(target=trickle)
    thread.start()
    try:
        with pytest.raises(RequestTimeout):
            watched.read(pair, 100_000)
    finally:
        over.set()
        thread.join()


def test_connections_that_answer_or_take_much_in_are_left_alone(watched: stalls.Stalls, pair: Pair) -> None:
    busy, loading = Pair(), Pair()
    over = threading.Event()

    def work() -> None:
        while not over.wait(0.02):
            busy.near.sendall(b"an answer")
            busy.far.recv(100)
            loading.far.sendall(bytes(stalls.PIECE_BYTES))
            loading.read(stalls.PIECE_BYTES)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        with pytest.raises(RequestTimeout):
            watched.read(pair, 5)
        for each in (busy, loading):
            each.far.settimeout(5)
    finally:
        over.set()
        thread.join()
    for each in (busy, loading):
        each.far.sendall(b"still here")
        assert each.read(10) == b"still here"
        each.close()


def test_only_so_many_bodies_are_read_at_a_time(pair: Pair) -> None:
    narrow = stalls.Stalls(max_reads=1)
    thread = threading.Thread(target=narrow.read, args=(pair, 5))
    thread.start()
    waiting.until(lambda: narrow._reads, what="the first read")
    with pytest.raises(RateLimited):
        narrow.read(pair, 5)
    pair.far.sendall(b"hello")
    thread.join()
    other = Pair()
    other.far.sendall(b"hello")
    assert narrow.read(other, 5) == b"hello"
    other.close()
