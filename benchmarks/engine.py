"""What a worker adds to ONNX Runtime: decode, stack, run and split of a batch, beside the bare loop.

`python -m benchmarks.engine [--network mlp|big | --folder examples/networks/digits --input file.json]`
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import figures, networks
from models import manifest as manifests
from models.settings import DEFAULT_CLASSES
from workers.engine import open_engine
from workers.tasks import KINDS
from workers.tasks.base import ItemFault

SIZES = (1, 8, 64, 256, 1024)


def best_s(action: Callable[[], object], seconds: float) -> float:
    """The median time of one call in the fastest third of a second-long run: noise only ever adds."""
    action()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    times.sort()
    return statistics.median(times[: max(1, len(times) // 3)])


def inputs(count: int, sample: Any) -> list[bytes]:
    """JSON inputs as the API stores them: those of network A, all different, or the given one repeated."""
    if sample is not None:
        return [json.dumps(sample).encode()] * count
    rng = random.Random(5)
    return [json.dumps({"inputs": [{
        "name": "X", "shape": [1, 30], "datatype": "FP32",
        "data": [round(rng.gauss(0, 1), 5) for _ in range(30)]}]}).encode() for _ in range(count)]


def measure(folder: Path, sizes: Sequence[int], seconds: float, sample: Any) -> list[dict[str, Any]]:
    manifest = manifests.parse((folder / "network.yaml").read_bytes())
    engine = open_engine(folder / manifest["artifact"], DEFAULT_CLASSES["cpu"])
    kind = KINDS[manifest["task"]]
    task = kind.make(manifest, kind.inspect(manifest, engine, folder), folder)
    rows = []
    for size in sizes:
        bodies = inputs(size, sample)
        items = task.decode(bodies)
        faults = [item for item in items if isinstance(item, ItemFault)]
        if faults:
            raise SystemExit(f"the input does not fit: {faults[0].message}")
        good = [item for item in items if not isinstance(item, ItemFault)]
        feeds = task.stack(good)
        outputs = engine.run(feeds, task.outputs)
        steps = {
            "decode": best_s(lambda: task.decode(bodies), seconds),  # noqa: B023 (called in this round only)
            "stack": best_s(lambda: task.stack(good), seconds),  # noqa: B023
            "run": best_s(lambda: engine.run(feeds, task.outputs), seconds),  # noqa: B023
            "split": best_s(lambda: task.split(outputs, good), seconds)}  # noqa: B023
        total = sum(steps.values())
        rows.append(figures.emit(
            "engine", network=manifest["name"], batch=size,
            **{f"{name}_us": round(value / size * 1e6, 2) for name, value in steps.items()},
            bare_items_s=round(size / steps["run"]), path_items_s=round(size / total),
            share_of_bare=round(steps["run"] / total, 3)))
    engine.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=tuple(networks.SIZES), default="mlp")
    parser.add_argument("--folder", type=Path, help="another network's folder; needs --input")
    parser.add_argument("--input", type=Path, help="a JSON file with one input for it")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--seconds", type=float, default=0.4, help="time for each step at each size")
    arguments = parser.parse_args()
    if (arguments.folder is None) != (arguments.input is None):
        parser.error("--folder and --input go together")
    sample = json.loads(arguments.input.read_text()) if arguments.input else None
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as scratch:
        folder = arguments.folder or networks.make(Path(scratch), arguments.network)
        rows = measure(folder, arguments.sizes, arguments.seconds, sample)
    figures.emit("versions", **figures.versions("headrace", "onnxruntime", "numpy"))
    figures.table(rows, "A worker's path per item, one thread (the bare loop is `run` alone)")


if __name__ == "__main__":
    main()
