"""Makes networks/magika: Google's classifier of file types, from the wheel of magika.

    python -m examples.make_magika [path of the wheel]

The package itself is not installed: it would bring another ONNX Runtime. The answer is the network's own
label; magika's thresholds and its rules for tiny files are not applied.
"""

import json
import sys
from pathlib import Path

from examples import packages

PACKAGE, VERSION = "magika", "1.0.3"
MODEL = "magika/models/standard_v3_3"
FOLDER = Path(__file__).parent / "networks" / "magika"
MANIFEST = """\
# Google's Magika: file types from the first and last 1,024 bytes. `python -m examples.make_magika`.
name: magika
version: "3.3"
task: bytes-classification
artifact: model.onnx
labels: labels.txt
bytes: {{head: {beg_size}, tail: {end_size}, block: {block_size}, padding: {padding_token}, strip: true}}
hardware: [cuda, cpu]
# Batches make it no faster on a CPU (76 files/s alone, 61 by 16), and move its scores by up to 1e-4.
batching: {{max_items: 1}}
"""


def main(wheel: str | None = None) -> None:
    with packages.given_or(wheel, PACKAGE, VERSION) as archive:
        network = archive.read(f"{MODEL}/model.onnx")
        config = json.loads(archive.read(f"{MODEL}/config.min.json"))
    if config["mid_size"] or config["use_inputs_at_offsets"]:
        raise SystemExit(f"{PACKAGE} {VERSION}: it looks at parts of a file that `bytes:` can't name")
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "model.onnx").write_bytes(network)
    (FOLDER / "labels.txt").write_text("\n".join(config["target_labels_space"]) + "\n")
    (FOLDER / "network.yaml").write_text(MANIFEST.format(**config))
    print(f"{FOLDER}: {len(config['target_labels_space'])} types")


if __name__ == "__main__":
    main(*sys.argv[1:2])
