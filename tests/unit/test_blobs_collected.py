"""Which blobs are collected: those that no row refers to, once they are old enough. On both databases."""

import os
from pathlib import Path

import pytest

from models import blobs as blobs_of
from models import claim, incarnation, job, network
from models.blobs import Blobs
from models.database import Database, Transaction


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "blobs")


def put_old(blobs: Blobs, data: bytes) -> str:
    name = blobs.put(data)
    os.utime(blobs.path(name), (1, 1))
    return name


def accept_job(tx: Transaction, job_id: str, blob: str | None) -> None:
    job.accept(tx, [job.NewJob(id=job_id, tenant="default", network="digits@1", hardware="cpu", work=1.0,
                               input=None if blob else b"1", input_blob=blob)], 1)


def add_network(tx: Transaction, version: str, blob: str) -> None:
    network.add(tx, name="digits", version=version, task="tensor", digest=version, manifest={"hardware": ["cpu"]},
                files={"model.onnx": {"blob": blob, "size": 1}})


def test_blobs_of_inputs_results_and_networks_stay_and_others_go(database: Database, blobs: Blobs) -> None:
    given, made, artifact, orphan = (put_old(blobs, name.encode()) for name in ("input", "output", "artifact", "orphan"))
    fresh = blobs.put(b"fresh")

    def work(tx: Transaction) -> None:
        incarnation.begin(tx, "inc_1", kind="worker", host="here", pid=1, hardware="cpu")
        accept_job(tx, "job_1", given)
        accept_job(tx, "job_2", None)
        claim.claim(tx, ["job_2"], incarnation="inc_1", hardware="cpu", begun=True)
        claim.settle(tx, [claim.Outcome("job_2", 1, job.SUCCEEDED, output_blob=made)], incarnation="inc_1")
        add_network(tx, "1", artifact)

    database.write(work)
    assert blobs_of.collect(database, blobs, 60) == 1
    assert [blobs.exists(name) for name in (given, made, artifact, orphan, fresh)] == [True, True, True, False, True]


def test_the_files_of_a_retired_network_go_unless_another_has_them(database: Database, blobs: Blobs) -> None:
    own, shared = put_old(blobs, b"own"), put_old(blobs, b"shared")

    def work(tx: Transaction) -> None:
        add_network(tx, "1", own)
        add_network(tx, "2", shared)
        add_network(tx, "3", shared)
        network.withdraw(tx, "digits", "1")
        network.withdraw(tx, "digits", "2")

    database.write(work)
    assert blobs_of.collect(database, blobs, 60) == 1
    assert (blobs.exists(own), blobs.exists(shared)) == (False, True)


def test_a_withdrawn_network_keeps_its_files_while_jobs_of_it_are_live(database: Database, blobs: Blobs) -> None:
    artifact = put_old(blobs, b"artifact")

    def withdraw(tx: Transaction) -> None:
        add_network(tx, "1", artifact)
        accept_job(tx, "job_1", None)
        network.withdraw(tx, "digits", "1")

    database.write(withdraw)
    assert database.write(network.retire_withdrawn) == []
    assert blobs_of.collect(database, blobs, 60) == 0
    database.write(lambda tx: job.cancel(tx, "default", "job_1"))
    assert database.write(network.retire_withdrawn) == ["digits@1"]
    assert blobs_of.collect(database, blobs, 60) == 1


def test_more_orphans_than_one_batch_are_all_collected(database: Database, blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs_of, "BATCH", 3)
    used = put_old(blobs, b"used")
    database.write(lambda tx: accept_job(tx, "job_1", used))
    for number in range(7):
        put_old(blobs, b"%d" % number)
    assert blobs_of.collect(database, blobs, 60) == 7
    assert blobs.exists(used)


def test_collecting_from_a_store_that_was_never_used_finds_nothing(database: Database, blobs: Blobs) -> None:
    assert blobs_of.collect(database, blobs, 60) == 0
    assert not blobs.folder.exists()
