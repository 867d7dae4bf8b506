"""Makes `examples/samples`: the inputs of the demo, with the labels that ONNX Runtime by itself gives them.

`python -m examples.make_samples`, after the networks were made. Needs scikit-learn for its bundled data.
"""

import csv
import gzip
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import yaml
from sklearn import datasets

from examples.samples import FOLDER, WHITE

NETWORKS = Path(__file__).parent / "networks"


def labels_of(name: str, rows: np.ndarray) -> list[str]:
    """The label of each row, from the network alone: none of the service's code takes part."""
    folder = NETWORKS / name
    manifest = yaml.safe_load((folder / "network.yaml").read_text())
    session = onnxruntime.InferenceSession(folder / manifest["artifact"], providers=["CPUExecutionProvider"])
    scores = session.run(["probabilities"], {session.get_inputs()[0].name: rows.astype(np.float32)})[0]
    return [str(manifest["labels"][index]) for index in scores.argmax(axis=1)]


def write(name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], labels: Sequence[str]) -> None:
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*columns, "label"])
    table.writerows([*row, label] for row, label in zip(rows, labels, strict=True))
    # No time and no name inside: the same rows make the same file.
    (FOLDER / f"{name}.csv.gz").write_bytes(gzip.compress(text.getvalue().encode(), 9, mtime=0))


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    levels = datasets.load_digits().data.astype(int)
    pixels = np.round(levels * 255 / WHITE).astype(np.uint8)
    write("digits", [f"pixel_{i}" for i in range(64)], levels.tolist(),
          labels_of("digits", pixels.astype(np.float32) / np.float32(255)))
    cells = datasets.load_breast_cancer()
    columns = [name.replace(" ", "_") for name in cells.feature_names]
    write("tumor", columns, cells.data.tolist(), labels_of("tumor", cells.data))
    (FOLDER / "tumor.json").write_text(json.dumps(cells.data[0].tolist()) + "\n")


if __name__ == "__main__":
    main()
