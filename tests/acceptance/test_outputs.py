"""What comes back over HTTP is what ONNX Runtime gives when it is called directly on the same input."""

import base64
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import urllib3
from sklearn.datasets import load_breast_cancer, load_digits
from tokenizers import Tokenizer

from examples import samples
from tests import embedded, graphs, waiting

NETWORKS = ("digits", "tumor", "minilm", "magika")
WORDS = ("the", "water", "wheel", "turns", "slowly", "Größe", "日本語", "1,797", "e-mail", "antidisestablishmentarianism")


class Service:
    """A running `headrace up`, asked over HTTP alone."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._pool = urllib3.PoolManager(retries=False, timeout=60)

    def ended(self, model: str, inputs: Sequence[Any]) -> list[dict[str, Any]]:
        """The jobs of these inputs, submitted at once, each polled until it has ended."""
        accepted = [entry["job"]["id"] for at in range(0, len(inputs), 1000)
                    for entry in self._post({"jobs": [{"model": model, "input": each} for each in inputs[at:at + 1000]]})]
        return [self._end(job_id) for job_id in accepted]

    def _post(self, body: object) -> list[dict[str, Any]]:
        reply = self._pool.request("POST", f"{self.url}/v1/jobs/batch", json=body)
        entries: list[dict[str, Any]] = reply.json()["data"]
        assert {entry["status"] for entry in entries} == {202}, entries[0]
        return entries

    def _end(self, job_id: str) -> dict[str, Any]:
        def ended() -> dict[str, Any] | None:
            job: dict[str, Any] = self._pool.request("GET", f"{self.url}/v1/jobs/{job_id}?wait=30").json()
            return job if job["finished_at"] else None

        job = waiting.until(ended, 120, what=job_id)
        assert job is not None
        assert job["state"] == "succeeded", job
        return job


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("outputs")
    with embedded.up(folder) as started:
        url = started.ready()[1]
        for name in NETWORKS:
            if (graphs.EXAMPLES / name / "model.onnx").is_file():
                added = embedded.run("models", "add", str(graphs.EXAMPLES / name), cwd=folder, url=url)
                assert added.returncode == 0, added.stderr
        yield Service(url)
        assert started.stop() == 0


def direct(name: str) -> onnxruntime.InferenceSession:
    path = graphs.EXAMPLES / name / "model.onnx"
    if not path.is_file():
        if os.environ.get("CI"):
            pytest.fail(f"{name} is not made: python -m examples.make_packages")
        pytest.skip(f"{name} is not made: python -m examples.make_packages")
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def encoded(content: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(content).decode()}


def test_all_digits_get_the_label_of_the_direct_run(service: Service) -> None:
    session = direct("digits")
    levels = load_digits().data
    jobs = service.ended("digits", [encoded(samples.image([int(level) for level in row])) for row in levels])
    labels = session.run(None, {"pixels": (levels / 16).astype(np.float32)})[0]
    assert len(jobs) == 1797
    assert [job["output"]["label"] for job in jobs] == [str(label) for label in labels]
    assert max(job["timings"]["batch_size"] for job in jobs) > 1


def test_all_tumors_get_the_label_and_probabilities_of_the_direct_run(service: Service) -> None:
    rows = load_breast_cancer().data
    jobs = service.ended("tumor", rows.tolist())
    _, scores = direct("tumor").run(None, {"measurements": rows.astype(np.float32)})
    found = np.array([list(job["output"]["probabilities"].values()) for job in jobs])
    np.testing.assert_allclose(found, scores, atol=1e-6)


def texts() -> list[str]:
    """Texts of 0 to 400 words in no order of length; the longest are cut at the network's 256 tokens."""
    rng = np.random.default_rng(7)
    lengths = [0, 1, 2, 400, 3, 300, *rng.integers(1, 60, 58).tolist()]
    return [" ".join(rng.choice(WORDS, length)) for length in lengths]


def test_embeddings_batched_with_texts_of_other_lengths_equal_direct_runs_one_by_one(service: Service) -> None:
    session = direct("minilm")
    tokenizer = Tokenizer.from_file(str(graphs.EXAMPLES / "minilm" / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)
    jobs = service.ended("minilm", texts())
    assert len(jobs) == 64
    assert sum(job["timings"]["batch_size"] > 1 for job in jobs) > 32
    for text, job in zip(texts(), jobs, strict=True):
        tokens = tokenizer.encode(text)
        feeds = {"input_ids": tokens.ids, "attention_mask": [1] * len(tokens.ids), "token_type_ids": tokens.type_ids}
        wanted = {each.name for each in session.get_inputs()}
        alone = session.run(None, {name: np.array([value], np.int64) for name, value in feeds.items() if name in wanted})
        np.testing.assert_allclose(job["output"]["embedding"], alone[0][0], atol=1e-5, rtol=0)


def test_file_types_are_those_of_the_direct_run(service: Service) -> None:
    session = direct("magika")
    labels = (graphs.EXAMPLES / "magika" / "labels.txt").read_text().splitlines()
    here = Path(__file__).resolve()
    files = [here.read_bytes(), (graphs.EXAMPLES / "tumor" / "model.onnx").read_bytes(), samples.image([8] * 64),
             b"<html><head><title>t</title></head><body>hello</body></html>\n" * 40,
             json.dumps({"a": list(range(2000))}).encode()]
    for content, job in zip(files, service.ended("magika", [encoded(each) for each in files]), strict=True):
        # As its publisher says: 1,024 bytes from either end, without the white space around them.
        features = np.full((1, 2048), 256, np.int32)
        head, tail = content[:4096].lstrip()[:1024], content[-4096:].rstrip()[-1024:]
        features[0, :len(head)], features[0, 2048 - len(tail):] = list(head), list(tail)
        scores = session.run(None, {"bytes": features})[0][0]
        assert job["output"]["label"] == labels[int(scores.argmax())]
        np.testing.assert_allclose(list(job["output"]["scores"].values()), scores, atol=1e-6)
