"""The blob store: whole or not at all, once, and nowhere else."""

import contextlib
import hashlib
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.blobs import BlobMissing, Blobs, StorageUnavailable


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "blobs")


def files_of(blobs: Blobs) -> list[str]:
    return sorted(path.name for path in blobs.folder.rglob("*") if path.is_file() and path.name != "lock")


def age(blobs: Blobs, name: str, seconds: float) -> None:
    at = blobs.path(name).stat().st_mtime - seconds
    os.utime(blobs.path(name), (at, at))


def test_what_was_put_is_read_back_under_the_name_of_its_content(blobs: Blobs) -> None:
    name = blobs.put(b"a river")
    assert name == f"sha256-{hashlib.sha256(b'a river').hexdigest()}"
    assert blobs.read(name) == b"a river"
    assert blobs.size(name) == 7
    assert blobs.exists(name)
    with blobs.open(name) as file:
        assert file.read(2) == b"a "
    assert blobs.path(name).parent.parent == blobs.folder


def test_the_same_content_is_stored_once(blobs: Blobs) -> None:
    assert blobs.put(b"twice") == blobs.put(b"twice")
    with blobs.writer() as writer:
        writer.write(b"twi")
        writer.write(b"ce")
        assert writer.commit() == blobs.put(b"twice")
    assert len(files_of(blobs)) == 1


def test_a_stream_is_stored_as_its_pieces_joined(blobs: Blobs) -> None:
    with blobs.writer() as writer:
        for piece in (b"one", b"", memoryview(b"two"), bytearray(b"three")):
            writer.write(piece)
        assert writer.size == 11
        name = writer.commit()
    assert blobs.read(name) == b"onetwothree"


def test_an_abandoned_writer_leaves_nothing(blobs: Blobs) -> None:
    with blobs.writer() as writer:
        writer.write(b"never mind")
    with contextlib.suppress(RuntimeError), blobs.writer() as writer:
        writer.write(b"half")
        raise RuntimeError
    assert files_of(blobs) == []


def test_a_full_disk_stores_nothing_and_says_so(blobs: Blobs) -> None:
    writer = blobs.writer()
    writer._file.close()
    with Path("/dev/full").open("wb", buffering=0) as full:  # every write to it fails as on a full disk
        writer._file = full
        with pytest.raises(StorageUnavailable, match="full"), writer:
            writer.write(b"too much")
    assert files_of(blobs) == []


@pytest.mark.parametrize("name", [
    "", "../../etc/passwd", "/etc/passwd", "sha256-..", "sha256-" + "g" * 64, "sha256-" + "a" * 63,
    "sha256-" + "a" * 64 + "\n", "SHA256-" + "a" * 64, "sha256-" + "a" * 62 + "/.",
])
def test_a_name_that_is_no_blob_leads_nowhere(blobs: Blobs, name: str) -> None:
    assert not blobs.exists(name)
    for call in (blobs.path, blobs.read, blobs.open, blobs.size, blobs.delete):
        with pytest.raises(BlobMissing):
            call(name)


def test_a_blob_that_is_gone_is_missing(blobs: Blobs) -> None:
    name = blobs.put(b"short life")
    blobs.delete(name)
    blobs.delete(name)
    assert not blobs.exists(name)
    assert not blobs.keep(name)
    for call in (blobs.read, blobs.open, blobs.size):
        with pytest.raises(BlobMissing, match="gone"):
            call(name)


def test_only_old_blobs_are_discarded_and_keeping_one_makes_it_young(blobs: Blobs) -> None:
    old, kept, young = blobs.put(b"old"), blobs.put(b"kept"), blobs.put(b"young")
    age(blobs, old, 100)
    age(blobs, kept, 100)
    assert set(blobs.older_than(60)) == {old, kept}
    assert blobs.keep(kept)
    assert blobs.discard([old, kept, young], 60) == 1
    assert (blobs.exists(old), blobs.exists(kept), blobs.exists(young)) == (False, True, True)


def test_putting_the_content_of_an_old_blob_again_makes_it_young(blobs: Blobs) -> None:
    name = blobs.put(b"again")
    age(blobs, name, 100)
    assert blobs.put(b"again") == name
    assert blobs.discard([name], 60) == 0


def test_what_a_killed_process_left_is_discarded_when_it_is_stale(blobs: Blobs) -> None:
    writer = blobs.writer()
    writer.write(b"half")
    assert blobs.discard_unfinished(60) == 0
    os.utime(writer._path, (1, 1))
    assert blobs.discard_unfinished(60) == 1
    writer.close()


def test_many_threads_put_the_same_content_at_once(blobs: Blobs) -> None:
    names: list[str] = []
    start = threading.Barrier(8)

    def put() -> None:
        start.wait()
        names.append(blobs.put(b"shared" * 1000))

    threads = [threading.Thread(target=put) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(names) == 8
    assert len(set(names)) == 1
    assert len(files_of(blobs)) == 1


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_any_pieces_make_the_blob_of_their_whole(tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]) -> None:
    blobs = Blobs(tmp_path_factory.mktemp("blobs"))
    with blobs.writer() as writer:
        for piece in pieces:
            writer.write(piece)
        name = writer.commit()
    assert blobs.read(name) == b"".join(pieces)
    assert blobs.put(b"".join(pieces)) == name
