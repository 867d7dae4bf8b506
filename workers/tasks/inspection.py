"""How every task checks a network: signature, labels, the output to read, and a run on made-up input."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from models.errors import NetworkRejected
from models.signature import Result, Signature, TensorShape
from workers.engine import Engine, EngineFailed, TensorSpec
from workers.tasks.base import Task

FLOATS = ("FP32", "FP16", "FP64")
WHOLE = ("INT64", "INT32")
MAX_CLASSES = 100_000


def describe(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{spec.name} {spec.datatype}[{_sides(spec)}]" for spec in specs) or "none"


def _sides(spec: TensorSpec) -> str:
    return ", ".join("n" if size < 0 else str(size) for size in spec.shape)


def rejected(task: str, engine: Engine, wanted: str) -> NetworkRejected:
    """The reason that says what the network has and what would fit."""
    return NetworkRejected(f"not a {task} network: it takes {describe(engine.inputs)} and gives "
                           f"{describe(engine.outputs)}; {wanted}")


def signature(manifest: Mapping[str, Any], engine: Engine, *, columns: list[str] | None = None,
              labels: list[str] | None = None, result: Result | None = None) -> Signature:
    return Signature(task=manifest["task"], inputs=[_plain(spec) for spec in engine.inputs],
                     outputs=[_plain(spec) for spec in engine.outputs], item_axis=has_item_axis(engine),
                     columns=columns, labels=labels, max_tokens=manifest.get("max_tokens"), result=result)


def _plain(spec: TensorSpec) -> TensorShape:
    return TensorShape(name=spec.name, datatype=spec.datatype, shape=list(spec.shape))


def has_item_axis(engine: Engine) -> bool:
    """Whether the first dimension of every tensor is free. `rehearse` proves that it counts items."""
    return bool(engine.inputs) and all(spec.shape and spec.shape[0] == -1
                                       for spec in (*engine.inputs, *engine.outputs))


def output(manifest: Mapping[str, Any], engine: Engine, fits: Callable[[TensorSpec], bool],
           wanted: str) -> TensorSpec:
    """The output that the manifest names, else the only one that fits."""
    task, name = manifest["task"], manifest.get("output")
    found = [spec for spec in engine.outputs if (spec.name == name if name else fits(spec))]
    if name and not found:
        raise rejected(task, engine, f"the manifest's output {name!r} is not among them")
    if not found or (name and not fits(found[0])):
        raise rejected(task, engine, wanted)
    if len(found) > 1:
        names = ", ".join(spec.name for spec in found)
        raise rejected(task, engine, f"several outputs would do ({names}): name one with `output:`")
    return found[0]


def is_scores(spec: TensorSpec) -> bool:
    return spec.datatype in FLOATS and len(spec.shape) == 2 and spec.shape[1] not in (0, 1)


def labels(manifest: Mapping[str, Any], folder: Path, classes: int) -> list[str]:
    """The name of each class: by the manifest's list or file, else its index. `classes` -1: all named."""
    given = manifest.get("labels")
    if given is None:
        return [str(at) for at in range(max(classes, 0))]
    if isinstance(given, str):
        try:
            text = (folder / given).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise NetworkRejected(f"the labels file {given} can't be read: {error}") from error
        given = [line.strip() for line in text.splitlines() if line.strip()]
    if classes >= 0 and len(given) != classes:
        raise NetworkRejected(f"the network has {classes} classes, but {len(given)} labels are given: each "
                              "class needs one, in the order of the network's output")
    if len(set(given)) != len(given) or not 0 < len(given) <= MAX_CLASSES or "\0" in "".join(given):
        raise NetworkRejected(f"labels must be 1 to {MAX_CLASSES} different names without \\u0000")
    return [str(name) for name in given]


def rehearse(found: Signature, engine: Engine, make: Callable[[Signature], Task], *,
             strict: bool = True) -> Signature:
    """Run three made-up items, else one; the signature, with `item_axis` false where three don't go together.

    `strict`: that not even one runs is a reason to reject. Else the file's names of first dimensions decide.
    """
    failure: Exception | None = None
    for count in (3, 1) if found["item_axis"] else (1,):
        candidate = Signature(**{**found, "item_axis": count > 1})
        task = make(candidate)
        items = task.sample(count, 16.0)
        try:
            results = engine.run(task.stack(items), task.outputs)
            if len(task.split(results, items)) == len(items):
                return candidate
        except (EngineFailed, ValueError) as error:
            failure = error
    if strict:
        raise NetworkRejected(f"it loads, but can't run a made-up input: {failure}") from failure
    names = {spec.axis for spec in (*engine.inputs, *engine.outputs) if spec.axis is not None}
    return Signature(**{**found, "item_axis": found["item_axis"] and len(names) <= 1})
