"""The example networks give what ONNX Runtime gives when it is called directly."""

import base64
import io
import os

import numpy as np
import onnxruntime
import pytest
from PIL import Image
from sklearn.datasets import load_breast_cancer, load_digits

from models import manifest
from tests import graphs


def served(name: str) -> tuple[graphs.Served, onnxruntime.InferenceSession]:
    folder = graphs.EXAMPLES / name
    found = manifest.parse((folder / "network.yaml").read_bytes())
    if not all((folder / file).is_file() for file in manifest.files(found)):
        if os.environ.get("CI"):
            pytest.fail(f"{name} is not made: python -m examples.make_packages")
        pytest.skip(f"{name} is not made: python -m examples.make_packages")
    path = folder / found["artifact"]
    return graphs.serve(path, found), onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def encoded(content: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(content).decode()}


def png(levels: np.ndarray) -> dict[str, str]:
    out = io.BytesIO()
    Image.fromarray(np.round(levels * 255 / 16).astype(np.uint8).reshape(8, 8)).save(out, "PNG")
    return encoded(out.getvalue())


def test_all_digits_have_the_label_of_the_direct_run():
    network, direct = served("digits")
    levels = load_digits().data
    pictures = [png(row) for row in levels]
    found = [out for at in range(0, len(levels), 128) for out in network.run(pictures[at:at + 128])]
    # Both as a PNG carries the levels and as scikit-learn gives them.
    for pixels in (np.round(levels * 255 / 16) / 255, levels / 16):
        labels, scores = direct.run(None, {"pixels": pixels.astype(np.float32)})
        assert [out["label"] for out in found] == [str(label) for label in labels]
    assert len(found) == 1797
    scores = direct.run(["probabilities"], {"pixels": (np.round(levels * 255 / 16) / 255).astype(np.float32)})[0]
    np.testing.assert_allclose([list(out["scores"].values()) for out in found], scores, atol=1e-6)


@pytest.mark.parametrize(("size", "mode", "format_"), [
    (8, "RGB", "PNG"), (64, "L", "JPEG"), (64, "RGBA", "WEBP"), (32, "P", "PNG"), (16, "1", "PNG"), (64, "I;16", "PNG"),
])
def test_any_image_is_brought_to_the_networks_size_and_mode(size, mode, format_):
    network, _ = served("digits")
    plain = Image.fromarray(np.round(load_digits().data[0] * 255 / 16).astype(np.uint8).reshape(8, 8))
    picture = plain.resize((size, size), Image.Resampling.NEAREST)
    if mode == "I;16":
        picture = Image.fromarray(np.asarray(picture).astype(np.uint16) * 257)
    else:
        picture = picture.convert(mode)
    out = io.BytesIO()
    picture.save(out, format_)
    assert network.run([encoded(out.getvalue())])[0]["label"] == "0"


def test_all_tumors_have_the_label_of_the_direct_run():
    network, direct = served("tumor")
    rows = load_breast_cancer().data
    found = network.run([row.tolist() for row in rows])
    labels, scores = direct.run(None, {"measurements": rows.astype(np.float32)})
    names = network.signature["labels"]
    assert [out["label"] for out in found] == [names[label] for label in labels]
    np.testing.assert_allclose([list(out["probabilities"].values()) for out in found], scores, atol=1e-6)
    named = dict(zip(network.signature["columns"], rows[0].tolist(), strict=True))
    assert network.run([named]) == found[:1]


def test_embeddings_do_not_depend_on_what_they_are_batched_with():
    network, direct = served("minilm")
    texts = ["A man is eating food.", "A man is eating a piece of bread.", "x", "", "Große Größe " * 100, "日本語"]
    together = np.array([out["embedding"] for out in network.run(texts)])
    alone = np.array([network.run([text])[0]["embedding"] for text in texts])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)
    assert together[0] @ together[1] == pytest.approx(0.755, abs=0.01)  # as published
    for text, row in zip(texts, together, strict=True):
        feeds = network.task.stack(network.task.decode([f'"{text}"'.encode()]))
        np.testing.assert_allclose(row, direct.run(None, feeds)[0][0], atol=1e-5)


def test_long_texts_are_cut_at_max_tokens():
    network, _ = served("minilm")
    item = network.task.decode([b'"' + b"word " * 5000 + b'"'])[0]
    assert item.work == network.signature["max_tokens"] == 256


def test_file_types_are_those_of_the_direct_run():
    network, direct = served("magika")
    files = [b"<html><head><title>t</title></head><body>hello</body></html>\n" * 3,
             b"import os\n\n\ndef f(x):\n    pass\n" * 20,
             (graphs.EXAMPLES / "tumor" / "model.onnx").read_bytes()]
    # One by one, as its manifest asks: ONNX Runtime's own result moves by 1e-4 with the batch.
    found = [network.run([encoded(content)])[0] for content in files]
    assert [out["label"] for out in found] == ["html", "python", "onnx"]
    features = np.full((1, 2048), 256, np.int32)  # by hand, as the publisher describes it
    features[0, :len(files[0])] = list(files[0].lstrip())[:1024]
    tail = list(files[0].rstrip())[-1024:]
    features[0, 2048 - len(tail):] = tail
    scores = direct.run(None, {"bytes": features})[0][0]
    np.testing.assert_allclose(list(found[0]["scores"].values()), scores, atol=1e-6)
