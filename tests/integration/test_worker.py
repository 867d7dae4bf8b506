"""The worker process as it is installed: results, signals, kills, leases, refusals."""

import json
import os
import signal

import numpy as np
import pytest

from models import incarnation, network
from models.errors import NetworkRejected
from tests import graphs, waiting
from tests.stations import Station
from workers import artifacts


@pytest.fixture
def station(settings, broker):
    with Station(settings, broker) as built:
        built.upload("tumor")
        yield built


@pytest.fixture(scope="module")
def served():
    from models import manifest
    folder = graphs.EXAMPLES / "tumor"
    return graphs.serve(folder / "model.onnx", manifest.parse((folder / "network.yaml").read_bytes()))


def made_up(count, seed=0):
    rng = np.random.default_rng(seed)
    return [[round(float(value), 4) for value in row] for row in rng.uniform(0, 30, (count, 30))]


def bodies(values):
    return [json.dumps(value).encode() for value in values]


def check(station, served, names, values):
    assert station.ended(names) == ["succeeded"] * len(names)
    for got, wanted in zip(station.outputs(names), served.run(values), strict=True):
        assert got["label"] == wanted["label"]
        # Made-up rows far from the training data: the order of sums in a batch of another size shows by then.
        assert got["probabilities"] == pytest.approx(wanted["probabilities"], abs=1e-3)


def test_results_equal_those_of_onnx_runtime_called_directly(station, served):
    process, name = station.begin()
    assert station.network("tumor").state == network.READY
    values = made_up(200)
    names = station.accept(bodies(values))
    station.push(names)
    check(station, served, names, values)
    assert max(station.column("batch_size", names)) > 1
    assert set(station.column("incarnation", names)) == {name}
    assert station.stop(process) == 0
    assert station.reason(name) == incarnation.EXITED


def test_nothing_stays_with_the_broker_once_jobs_are_done(station):
    station.begin()
    names = station.accept(bodies(made_up(100)))
    station.push(names)
    station.push(names)  # twice: the second claims nothing
    assert station.ended(names) == ["succeeded"] * 100
    client = station.broker.client()
    waiting.until(lambda: client.hlen("unacked") == 0 and client.llen("infer.cpu.interactive") == 0)
    client.close()
    assert station.column("attempt", names) == [1] * 100


def test_sigterm_under_load_settles_what_runs_and_gives_back_the_rest_at_once(station, served):
    process, name = station.begin()
    values = made_up(3000)
    names = station.accept(bodies(values))
    station.push(names)
    waiting.until(lambda: station.count("succeeded") > 200)
    assert station.stop(process) == 0
    assert station.count("running") == 0
    assert station.reason(name) == incarnation.EXITED
    assert station.count("succeeded") + station.count("queued") == 3000
    left = [each for each, state in zip(names, station.column("state", names), strict=True) if state == "queued"]
    assert set(station.column("ticketed_until", left)) <= {None}
    assert set(station.column("crashes", names)) == {0}
    station.begin()
    station.push(left)
    check(station, served, names, values)


def test_a_killed_worker_s_jobs_are_run_by_the_next_one(station, served):
    process, name = station.begin()
    values = made_up(2000)
    names = station.accept(bodies(values))
    station.push(names)
    waiting.until(lambda: station.count("succeeded") > 100)
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    station.database.write(lambda tx: incarnation.end(tx, name, incarnation.KILLED, max_attempts=3))
    station.begin()
    states = station.column("state", names)
    suspects = station.column("suspect", names)
    station.push([each for each, state, suspect in zip(names, states, suspects, strict=True)
                  if state in ("queued", "running") and not suspect])
    for each, suspect in zip(names, suspects, strict=True):
        if suspect:
            station.push([each], alone=True)
    check(station, served, names, values)


def test_a_worker_whose_incarnation_was_ended_leaves_with_1(station):
    process, name = station.begin()
    station.database.write(lambda tx: incarnation.end(tx, name, incarnation.LOST, max_attempts=3))
    assert process.wait(30) == 1


def test_a_class_that_this_machine_lacks_is_refused_with_4_and_a_reason(station, tmp_path):
    classes = tmp_path / "classes.toml"
    classes.write_text('[classes.npu]\nproviders = ["NoSuchExecutionProvider"]\n')
    process = station.start(of_class="npu", hardware=str(classes))
    assert process.wait(30) == 4
    text = station.log.read_text()
    assert "NoSuchExecutionProvider" in text
    assert "Traceback" not in text


def test_a_broken_network_is_rejected_with_the_reason_and_harms_nobody(station, tmp_path):
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "network.yaml").write_text("name: broken\nversion: '1'\ntask: tensor\nartifact: model.onnx\n")
    (folder / "model.onnx").write_bytes(b"not an ONNX file")
    process, _ = station.begin()
    station.upload("broken", folder)
    waiting.until(lambda: station.network("broken").state == network.REJECTED)
    assert station.network("broken").reason
    assert process.poll() is None


def test_what_killed_three_processes_is_refused_before_it_kills_a_fourth(station):
    # What three dead processes in a row leave behind; a real one would need a file that crashes ONNX Runtime.
    cache = station.settings.data_dir / "cache"
    files = artifacts.Artifacts(cache, station.blobs)
    found = station.network("tumor")
    cache.mkdir(exist_ok=True)
    for number in range(4_194_300, 4_194_300 + artifacts.DEATHS):  # above any process number here
        (cache / f"{artifacts._name(found)}.opening-{number}").touch()
    with pytest.raises(NetworkRejected, match="died while loading"), files.opening(found):
        pytest.fail("it was opened")
    with files.opening(found):  # told once, it may be tried again: a machine out of memory kills the innocent too
        assert [each.name for each in cache.glob("*.opening-*")] == [f"{artifacts._name(found)}.opening-{os.getpid()}"]
    assert not list(cache.glob("*.opening-*"))


def test_two_workers_share_the_work_without_doing_any_of_it_twice(station, served):
    station.begin()
    station.begin()
    values = made_up(1500)
    names = station.accept(bodies(values))
    station.push(names)
    check(station, served, names, values)
    assert set(station.column("attempt", names)) == {1}
