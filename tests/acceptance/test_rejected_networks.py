"""Networks that can't be served end as `rejected` with the reason, and the worker that looked at them works on."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import pytest
import urllib3

from tests import embedded, graphs, waiting

TUMOR = graphs.EXAMPLES / "tumor"
FLOAT = graphs.FLOAT


@dataclass
class Service:
    url: str

    def upload(self, manifest: str, files: dict[str, bytes]) -> tuple[int, Any]:
        fields = {"manifest": ("network.yaml", manifest.encode()), **{name: (name, data) for name, data in files.items()}}
        reply = urllib3.request("POST", f"{self.url}/v1/models", fields=fields, timeout=30)
        return reply.status, reply.json()

    def checked(self, reference: str) -> dict[str, Any]:
        """The network once a worker has looked at it."""
        def shown() -> dict[str, Any] | None:
            found: dict[str, Any] = urllib3.request("GET", f"{self.url}/v1/models/{reference}", timeout=30).json()
            return found if found.get("state") != "checking" else None

        found = waiting.until(shown, 60, what=reference)
        assert found is not None
        return found

    def runs_jobs(self) -> bool:
        reply = urllib3.request("POST", f"{self.url}/v1/jobs", json={"model": "tumor", "input": [0.1] * 30},
                                headers={"Prefer": "wait=30"}, timeout=60)
        return bool(reply.json()["state"] == "succeeded")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("rejected")
    with embedded.up(folder) as started:
        url = started.ready()[1]
        added = embedded.run("models", "add", str(TUMOR), cwd=folder, url=url)
        assert added.returncode == 0, added.stderr
        pids = started.pids(" worker ")
        yield Service(url)
        assert started.pids(" worker ") == pids, "a worker died"
        assert "Traceback" not in started.log
        assert started.stop() == 0


def network(folder: Path, takes: list[Any], gives: list[Any], *, change: Callable[[onnx.ModelProto], None] | None = None,
            ) -> bytes:
    path = graphs.save(folder, [graphs.node("Add", [takes[0][0], takes[0][0]], [gives[0][0]])], takes, gives)
    found = onnx.load(path)
    if change is not None:
        change(found)
    return found.SerializeToString()


def of_two(folder: Path, **more: Any) -> bytes:
    return network(folder, [("x", FLOAT, ["n", 2])], [("y", FLOAT, ["n", 2])], **more)


def outside(found: onnx.ModelProto) -> None:
    """Weights that lie in a file of the machine."""
    weight = found.graph.initializer.add(name="w", data_type=FLOAT, dims=[2])
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="../../../../../../etc/passwd")
    found.graph.node[0].input[1] = "w"


def in_a_missing_file(found: onnx.ModelProto) -> None:
    outside(found)
    found.graph.initializer[0].external_data[0].value = "weights.bin"


def opset(version: int) -> Callable[[onnx.ModelProto], None]:
    def change(found: onnx.ModelProto) -> None:
        found.opset_import[0].version = version

    return change


def unknown_operator(found: onnx.ModelProto) -> None:
    found.graph.node[0].op_type = "NoSuchOperator"


CASES: dict[str, tuple[str, Callable[[Path], bytes], str]] = {
    "garbage": ("tensor", lambda _: b"hello" * 1000, "model.onnx"),
    "nothing": ("tensor", lambda _: b"", "model.onnx"),
    "a truncated file": ("tabular", lambda _: (TUMOR / "model.onnx").read_bytes()[:-200], "model.onnx"),
    "half a file": ("tabular", lambda _: (TUMOR / "model.onnx").read_bytes()[:500], "model.onnx"),
    "a picture": ("tensor", lambda _: b"\x89PNG\r\n\x1a\n" + bytes(100), "model.onnx"),
    "an opset from the future": ("tensor", lambda folder: of_two(folder, change=opset(9999)), "opset"),
    "an unknown operator": ("tensor", lambda folder: of_two(folder, change=unknown_operator), "NoSuchOperator"),
    "weights outside its folder": ("tensor", lambda folder: of_two(folder, change=outside), "etc/passwd"),
    "weights that were not sent": ("tensor", lambda folder: of_two(folder, change=in_a_missing_file), "weights.bin"),
    "the signature of another task": ("image-classification\nimage: {mode: RGB, size: [8, 8]}", of_two,
                                      "pixels"),
    "too few labels": ("tabular\nlabels: [only]", of_two, "label"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_network_that_can_not_be_served_is_rejected_with_the_reason(
        service: Service, tmp_path: Path, case: str) -> None:
    task, made, word = CASES[case]
    name = case.replace(" ", "-")
    status, sent = service.upload(f'name: {name}\nversion: "1"\nartifact: model.onnx\ntask: {task}\n',
                                  {"model.onnx": made(tmp_path)})
    assert (status, sent["state"]) == (201, "checking"), sent
    found = service.checked(f"{name}@1")
    assert found["state"] == "rejected"
    assert word in found["reason"], found["reason"]
    assert "Traceback" not in found["reason"]
    assert service.runs_jobs()
    refused = urllib3.request("POST", f"{service.url}/v1/jobs", json={"model": f"{name}@1", "input": 1}, timeout=30)
    assert (refused.status, refused.json()["code"]) == (409, "model_not_ready")
    assert found["reason"] in refused.json()["detail"]
    assert refused.headers["x-should-retry"] == "false"


def test_the_command_that_adds_one_says_why_and_fails(service: Service, tmp_path: Path) -> None:
    (tmp_path / "network.yaml").write_text('{name: broken, version: "1", task: tensor, artifact: model.onnx}\n')
    (tmp_path / "model.onnx").write_bytes(b"hello")
    done = embedded.run("models", "add", str(tmp_path), cwd=tmp_path, url=service.url)
    assert done.returncode == 1
    assert "broken@1" in done.stderr
    assert "rejected" in done.stderr
    assert "Traceback" not in done.stderr


MANIFEST = {"name": "m", "version": "1", "task": "tensor", "artifact": "model.onnx"}


@pytest.mark.parametrize(("manifest", "pointer"), [
    ("", "/manifest"), ("[1]", "/manifest"), ("{", "/manifest"), ("a: &a [*a]", "/manifest"), ("\x00", "/manifest"),
    ("[" * 5000, "/manifest"), (json.dumps({**MANIFEST, "task": "poetry"}), "/manifest/task"),
    (json.dumps({**MANIFEST, "name": "Not A Name"}), "/manifest/name"),
    (json.dumps({**MANIFEST, "colour": 1}), "/manifest/colour"),
    (json.dumps({**MANIFEST, "artifact": "../model.onnx"}), "/manifest/artifact"),
    (json.dumps({**MANIFEST, "artifact": "/etc/passwd"}), "/manifest/artifact"),
    (json.dumps({**MANIFEST, "task": "tabular", "labels": "labels.txt"}), "/labels.txt"),
    (json.dumps({**MANIFEST, "batching": {"max_items": 0}}), "/manifest/batching/max_items"),
])
def test_a_manifest_that_is_wrong_in_itself_is_refused_at_once(service: Service, manifest: str, pointer: str) -> None:
    status, told = service.upload(manifest, {"model.onnx": b"x"})
    assert status == 422, told
    assert pointer in [each["pointer"] for each in told["errors"]], told
    assert urllib3.request("GET", f"{service.url}/v1/models/m@1", timeout=30).status == 404


def test_a_billion_laughs_are_no_manifest(service: Service) -> None:
    lines = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 10)}]" for at in range(1, 12)]
    status, told = service.upload("\n".join(lines), {"model.onnx": b"x"})
    assert (status, told["code"]) == (422, "invalid_request")
    assert len(json.dumps(told)) < 20_000
