"""`bytes-classification`: any file in; the network sees the first and the last of its bytes, as numbers."""

import binascii
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from models.signature import Encoded, Result, Signature
from workers.engine import DTYPES, Engine
from workers.tasks import inspection
from workers.tasks.base import Item, ItemFault, Task
from workers.tasks.scores import Scores


class BinaryTask(Scores):
    """An item's value is its features [head + tail]; its work is the length of the file in bytes."""

    padded = False

    def __init__(self, manifest: Mapping[str, Any], signature: Signature) -> None:
        super().__init__(manifest, signature)
        tensor = signature["inputs"][0]
        self._name = tensor["name"]
        self._dtype = np.dtype(DTYPES[tensor["datatype"]])
        self._batched = signature["item_axis"]
        self._options = manifest["bytes"]
        self._body = msgspec.json.Decoder(Encoded).decode

    def decode(self, bodies: Sequence[bytes]) -> list[Item | ItemFault]:
        out: list[Item | ItemFault] = []
        for body in bodies:
            try:
                content = binascii.a2b_base64(self._body(body).base64, strict_mode=True)
            except (msgspec.DecodeError, RecursionError, ValueError) as error:
                out.append(ItemFault("input_invalid", f"the input must be {{base64}}: {error}"))
            else:
                out.append(self._item(content))
        return out

    def _item(self, content: bytes) -> Item:
        return Item(self._features(content), float(max(1, len(content))), None if self._batched else object())

    def _features(self, content: bytes) -> np.ndarray:
        head_size, tail_size, block = (self._options[name] for name in ("head", "tail", "block"))
        out = np.full(head_size + tail_size, self._options["padding"], self._dtype)
        head, tail = content[:block], content[-block:]
        if self._options["strip"]:
            head, tail = head.lstrip(), tail.rstrip()
        head, tail = head[:head_size], tail[-tail_size:] if tail_size else b""
        out[:len(head)] = np.frombuffer(head, np.uint8)
        out[len(out) - len(tail):] = np.frombuffer(tail, np.uint8)
        return out

    def stack(self, items: Sequence[Item]) -> dict[str, np.ndarray]:
        return {self._name: np.stack([item.value for item in items])}

    def sample(self, count: int, size: float) -> list[Item]:
        rng = np.random.default_rng(0)
        return [self._item(rng.bytes(max(1, int(size)))) for _ in range(count)]


class BinaryKind:
    name = "bytes-classification"

    def inspect(self, manifest: Mapping[str, Any], engine: Engine, folder: Path) -> Signature:
        options = manifest["bytes"]
        features = options["head"] + options["tail"]
        inputs = engine.inputs
        wanted = (f"it must take one [n, {features}] tensor (head + tail of the manifest's `bytes:`) of "
                  "INT32, INT64 or FP32, and give one [n, k] score tensor")
        if (len(inputs) != 1 or len(inputs[0].shape) != 2 or inputs[0].shape[1] not in (-1, features)
                or inputs[0].datatype not in ("INT32", "INT64", "FP32")):
            raise inspection.rejected(self.name, engine, wanted)
        scores = inspection.output(manifest, engine, inspection.is_scores, wanted)
        signature = inspection.signature(
            manifest, engine, labels=inspection.labels(manifest, folder, scores.shape[1]),
            result=Result(kind="scores", output=scores.name, label=None))
        return inspection.rehearse(signature, engine, lambda sig: self.make(manifest, sig, folder))

    def make(self, manifest: Mapping[str, Any], signature: Mapping[str, Any], folder: Path) -> Task:  # noqa: ARG002
        return BinaryTask(manifest, signature)  # type: ignore[arg-type]
