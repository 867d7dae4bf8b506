"""Makes networks/digits: a classifier of scikit-learn's bundled 8 x 8 images of handwritten digits.

Needs scikit-learn and skl2onnx. Trained on grey values as they arrive from a PNG: level * 255 / 16, rounded.
"""

from pathlib import Path

import numpy as np
from skl2onnx import convert_sklearn
from skl2onnx.common.data_types import FloatTensorType
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

FOLDER = Path(__file__).parent / "networks" / "digits"
MANIFEST = """\
# Handwritten digits of 8 x 8 grey pixels; larger images are scaled down. Source: examples/README.md.
name: digits
version: "1"
task: image-classification
artifact: model.onnx
hardware: [cuda, cpu]
batching: {max_items: 256}
labels: ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]
image: {mode: L, size: [8, 8], resample: box, scale: 0.00392156862745098}
pinned: true
"""


def pixels() -> np.ndarray:
    """All 1,797 images as the network takes them: FP32 [n, 64], 0 to 1."""
    levels = load_digits().data
    return (np.round(levels * 255 / 16) / 255).astype(np.float32)


def main() -> None:
    classifier = MLPClassifier((64,), max_iter=500, alpha=0.01, random_state=0)
    classifier.fit(pixels(), load_digits().target)
    # Without ZipMap: scores as one tensor; a list of maps is nothing that a batch can be cut from.
    network = convert_sklearn(classifier, "digits", [("pixels", FloatTensorType([None, 64]))],
                              target_opset=18, options={"zipmap": False})
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "model.onnx").write_bytes(network.SerializeToString())
    (FOLDER / "network.yaml").write_text(MANIFEST)
    print(f"{FOLDER}: {classifier.score(pixels(), load_digits().target):.4f} of its own images right")


if __name__ == "__main__":
    main()
