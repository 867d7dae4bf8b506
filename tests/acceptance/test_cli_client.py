"""The installed client commands against a running `headrace up`: exit codes, output for people and for scripts."""

import base64
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples import samples, stack
from tests import waiting

NETWORKS = Path(__file__).parents[2] / "examples" / "networks"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[stack.Stack]:
    with stack.running(tmp_path_factory.mktemp("cli")) as running:
        for name in ("tumor", "digits"):
            running.run("models", "add", str(NETWORKS / name))
        yield running


def headrace(service: stack.Stack, *arguments: str, stdin: bytes = b"", **environ: str) -> subprocess.CompletedProcess:
    return subprocess.run([stack.command(), *arguments], env={**service.environ, **environ}, input=stdin,
                          capture_output=True, check=False, timeout=60)


def test_add_says_that_the_network_is_ready_and_adding_it_again_changes_nothing(service):
    done = headrace(service, "models", "add", str(NETWORKS / "tumor"))
    assert done.returncode == 0
    assert done.stdout == b"tumor@1 is ready\n"


def test_networks_are_listed_and_shown(service):
    listed = headrace(service, "models", "list").stdout.decode()
    assert "tumor@1" in listed
    assert "image-classification" in listed
    shown = json.loads(headrace(service, "models", "show", "tumor", "--json").stdout)
    assert shown["state"] == "ready"
    assert len(shown["signature"]["columns"]) == 30


def test_a_network_that_does_not_load_is_rejected_with_the_reason_and_exit_code_1(service, tmp_path):
    (tmp_path / "network.yaml").write_text("name: broken\nversion: '1'\ntask: tensor\nartifact: model.onnx\n"
                                           "hardware: [cpu]\n")
    (tmp_path / "model.onnx").write_bytes(b"not a network")
    done = headrace(service, "models", "add", str(tmp_path))
    assert done.returncode == 1
    assert b"broken@1 was rejected: " in done.stderr


def test_a_network_that_no_live_worker_can_check_says_so(service, tmp_path):
    (tmp_path / "network.yaml").write_text("name: elsewhere\nversion: '1'\ntask: tensor\nartifact: model.onnx\n"
                                           "hardware: [cuda]\n")
    (tmp_path / "model.onnx").write_bytes((NETWORKS / "tumor" / "model.onnx").read_bytes())
    done = headrace(service, "models", "add", str(tmp_path), "--timeout", "1")
    assert done.returncode == 1
    assert b"no worker of class cuda is alive to check it (alive: cpu)" in done.stderr


@pytest.mark.parametrize("text", ["name: [", "name: Bad Name\nversion: '1'\n", ""])
def test_a_manifest_with_faults_is_wrong_use_and_nothing_is_sent(service, tmp_path, text):
    (tmp_path / "network.yaml").write_text(text)
    done = headrace(service, "models", "add", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith(b"headrace: network.yaml: ")


def test_a_row_is_submitted_and_its_output_printed(service):
    sample = samples.tumor(1)[0]
    done = headrace(service, "submit", "tumor", json.dumps(sample.input), "--wait")
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout)
    assert output["label"] == sample.expected
    assert abs(sum(output["probabilities"].values()) - 1) < 1e-5


def test_an_image_file_is_submitted_as_it_is(service, tmp_path):
    sample = samples.digits(1)[0]
    image = tmp_path / "digit.png"
    image.write_bytes(base64.b64decode(sample.input["base64"]))
    done = headrace(service, "submit", "digits@1", str(image), "--wait", "--json")
    assert done.returncode == 0, done.stderr
    job = json.loads(done.stdout)
    assert job["state"] == "succeeded"
    assert job["output"]["label"] == sample.expected


def test_an_image_comes_from_standard_input(service):
    sample = samples.digits(2)[1]
    done = headrace(service, "submit", "digits", "-", "--wait", stdin=base64.b64decode(sample.input["base64"]))
    assert json.loads(done.stdout)["label"] == sample.expected


def test_jobs_are_submitted_shown_listed_canceled_and_not_retried_unless_they_failed(service):
    row = json.dumps(samples.tumor(1)[0].input)
    done = headrace(service, "submit", "tumor", row, "--metadata", "who=me", "--json")
    job = json.loads(done.stdout)
    waiting.until(lambda: json.loads(headrace(service, "jobs", "show", job["id"], "--json").stdout)["output"])
    assert json.loads(headrace(service, "jobs", "show", job["id"]).stdout)["metadata"] == {"who": "me"}
    assert job["id"].encode() in headrace(service, "jobs", "list", "--state", "succeeded", "--model", "tumor").stdout
    canceled = headrace(service, "jobs", "cancel", job["id"])
    assert canceled.stdout == f"{job['id']} succeeded\n".encode()
    assert headrace(service, "jobs", "retry", job["id"]).returncode in (1, 2)


def test_an_input_against_the_signature_names_every_fault(service):
    done = headrace(service, "submit", "tumor", "[1, 2]")
    assert done.returncode == 2
    assert b"/input" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_an_unknown_network_is_wrong_use(service):
    done = headrace(service, "submit", "tumour", "[1]")
    assert done.returncode == 2
    assert b"[model_not_found]" in done.stderr


def test_a_promoted_version_is_the_default_and_a_removed_one_is_gone(service, tmp_path):
    text = (NETWORKS / "tumor" / "network.yaml").read_text()
    for path in (NETWORKS / "tumor").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "network.yaml").write_text(text.replace('version: "1"', 'version: "2"'))
    assert headrace(service, "models", "add", str(tmp_path)).returncode == 0
    assert json.loads(headrace(service, "models", "show", "tumor", "--json").stdout)["version"] == "1"
    assert headrace(service, "models", "promote", "tumor@2").returncode == 0
    assert json.loads(headrace(service, "models", "show", "tumor", "--json").stdout)["version"] == "2"
    assert headrace(service, "models", "promote", "tumor@1").returncode == 0
    assert headrace(service, "models", "remove", "tumor@2").returncode == 0
    refused = headrace(service, "submit", "tumor@2", json.dumps(samples.tumor(1)[0].input))
    assert refused.returncode in (1, 2)


def test_out_of_reach_is_exit_code_3(service):
    done = headrace(service, "jobs", "list", HEADRACE_URL=f"http://127.0.0.1:{stack.free_port()}")
    assert done.returncode == 3
    assert done.stderr.count(b"\n") == 1


def test_the_wait_for_a_job_ends_with_its_time_out_while_the_job_goes_on(service):
    row = json.dumps(samples.tumor(1)[0].input)
    done = headrace(service, "submit", "tumor", row, "--hardware", "cuda", "--wait", "--timeout", "0.5", "--json")
    assert done.returncode == 1
    job = json.loads(done.stdout)
    assert job["state"] == "queued"
    assert headrace(service, "jobs", "cancel", job["id"]).stdout == f"{job['id']} canceled\n".encode()
