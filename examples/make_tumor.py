"""Makes networks/tumor: a classifier of scikit-learn's bundled breast cancer measurements, 30 columns.

Needs scikit-learn and skl2onnx.
"""

from pathlib import Path

import numpy as np
from skl2onnx import convert_sklearn
from skl2onnx.common.data_types import FloatTensorType
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

FOLDER = Path(__file__).parent / "networks" / "tumor"
MANIFEST = """\
# 30 measurements of cell nuclei: shows how rows are scored, not for medicine. Source: examples/README.md.
name: tumor
version: "1"
task: tabular
artifact: model.onnx
hardware: [cpu, cuda]
batching: {{max_items: 1024}}
labels: [{labels}]
columns:
{columns}
pinned: true
"""


def main() -> None:
    data = load_breast_cancer()
    rows = data.data.astype(np.float32)
    classifier = make_pipeline(StandardScaler(), LogisticRegression(C=0.5, max_iter=1000))
    classifier.fit(rows, data.target)
    network = convert_sklearn(classifier, "tumor", [("measurements", FloatTensorType([None, 30]))],
                              target_opset=18, options={id(classifier): {"zipmap": False}})
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "model.onnx").write_bytes(network.SerializeToString())
    names = [str(name).replace(" ", "_") for name in data.feature_names]
    (FOLDER / "network.yaml").write_text(MANIFEST.format(
        labels=", ".join(str(name) for name in data.target_names),
        columns="\n".join(f"  - {name}" for name in names)))
    print(f"{FOLDER}: {classifier.score(rows, data.target):.4f} of its own rows right")


if __name__ == "__main__":
    main()
