"""`text-embedding` and `text-classification`: a string in; tokenised by the network's own tokenizer.json."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tokenizers import Tokenizer

from models.errors import NetworkRejected
from models.signature import Result, Signature
from workers.engine import DTYPES, Engine, TensorSpec
from workers.tasks import floats, inspection
from workers.tasks.base import Item, ItemFault, Task
from workers.tasks.scores import NOT_FINITE, Scores

_IDS, _MASK, _TYPES = "input_ids", "attention_mask", "token_type_ids"
_PADDING = ("[PAD]", "<pad>", "<|endoftext|>")


class _Embedding:
    """The output side of `text-embedding`."""

    def __init__(self, manifest: Mapping[str, Any], output: str) -> None:
        self.outputs: tuple[str, ...] = (output,)
        self._nulls = bool(manifest.get("allow_null"))

    def split(self, outputs: Sequence[np.ndarray], items: Sequence[Item]) -> list[bytes | ItemFault]:
        values = outputs[0]
        if values.ndim != 2 or len(values) != len(items):
            raise ValueError(f"embeddings have shape {list(values.shape)} for {len(items)} items")
        finite = None if self._nulls else floats.finite_rows(values)
        return [NOT_FINITE if finite is not None and not finite[at] else b'{"embedding":[' + row + b"]}"
                for at, row in enumerate(floats.rows(values))]


class TextTask:
    """An item's value is its token ids (int64 [length]) and types; a batch is padded to its longest."""

    padded = True

    def __init__(self, manifest: Mapping[str, Any], signature: Signature, folder: Path) -> None:
        self._tokenizer = _tokenizer(folder / manifest["tokenizer"], signature["max_tokens"])
        self._inputs = signature["inputs"]
        self._length = self._inputs[0]["shape"][1]
        self._batched = signature["item_axis"]
        self._padding = _padding_id(self._tokenizer)
        self._max_tokens = signature["max_tokens"] or 1
        result = signature["result"]
        self._results = (_Embedding(manifest, result["output"]) if result and result["kind"] == "embedding"
                         else Scores(manifest, signature))
        self.outputs: tuple[str, ...] = self._results.outputs
        self.split = self._results.split

    def decode(self, bodies: Sequence[bytes]) -> list[Item | ItemFault]:
        texts: list[str | ItemFault] = []
        for body in bodies:
            try:
                texts.append(msgspec.json.decode(body, type=str))
            except (msgspec.DecodeError, RecursionError) as error:
                texts.append(ItemFault("input_invalid", f"the input must be a string: {error}"))
        encoded = iter(self._tokenizer.encode_batch_fast([text for text in texts if isinstance(text, str)]))
        return [text if isinstance(text, ItemFault) else self._item(next(encoded)) for text in texts]

    def _item(self, encoding: Any) -> Item:
        value = (np.array(encoding.ids, np.int64), np.array(encoding.type_ids, np.int64))
        return Item(value, float(max(1, len(value[0]))), None if self._batched else object())

    def stack(self, items: Sequence[Item]) -> dict[str, np.ndarray]:
        length = self._length if self._length > 0 else max(1, *(len(item.value[0]) for item in items))
        ids = np.full((len(items), length), self._padding, np.int64)
        types = np.zeros((len(items), length), np.int64)
        mask = np.zeros((len(items), length), np.int64)
        for at, item in enumerate(items):
            many = len(item.value[0])
            ids[at, :many], types[at, :many] = item.value
            mask[at, :many] = 1
        arrays = {_IDS: ids, _MASK: mask, _TYPES: types}
        return {tensor["name"]: arrays[tensor["name"]].astype(DTYPES[tensor["datatype"]], copy=False)
                for tensor in self._inputs}

    def sample(self, count: int, size: float) -> list[Item]:
        many = max(2, min(int(size), self._max_tokens))
        rng = np.random.default_rng(0)
        ids = rng.integers(0, self._tokenizer.get_vocab_size(), (count, many))
        types = np.zeros(many, np.int64)
        return [Item((row, types), float(many), None if self._batched else object()) for row in ids]


class TextKind:
    """Both text tasks; they differ in the output."""

    def __init__(self, name: str) -> None:
        self.name = name

    def inspect(self, manifest: Mapping[str, Any], engine: Engine, folder: Path) -> Signature:
        wanted = ("it must take input_ids and may take attention_mask and token_type_ids, each INT64 or "
                  "INT32 [n, length], and give ")
        names = {spec.name for spec in engine.inputs}
        if _IDS not in names or names - {_IDS, _MASK, _TYPES} or any(
                spec.datatype not in inspection.WHOLE or len(spec.shape) != 2 for spec in engine.inputs):
            raise inspection.rejected(self.name, engine, wanted + "one output")
        _tokenizer(folder / manifest["tokenizer"], manifest["max_tokens"])
        signature = self._signature(manifest, engine, folder, wanted)
        length = engine.inputs[0].shape[1]
        if 0 < length < manifest["max_tokens"]:
            signature["max_tokens"] = length  # the file's own length
        return inspection.rehearse(signature, engine, lambda sig: self.make(manifest, sig, folder))

    def _signature(self, manifest: Mapping[str, Any], engine: Engine, folder: Path, wanted: str) -> Signature:
        if self.name == "text-embedding":
            found = inspection.output(
                manifest, engine, _is_embedding,
                wanted + "an [n, d] embedding; an [n, length, d] output needs pooling added to the graph")
            return inspection.signature(
                manifest, engine, result=Result(kind="embedding", output=found.name, label=None))
        found = inspection.output(manifest, engine, inspection.is_scores, wanted + "an [n, k] score tensor")
        labels = inspection.labels(manifest, folder, found.shape[1])
        return inspection.signature(manifest, engine, labels=labels,
                                    result=Result(kind="scores", output=found.name, label=None))

    def make(self, manifest: Mapping[str, Any], signature: Mapping[str, Any], folder: Path) -> Task:
        return TextTask(manifest, signature, folder)  # type: ignore[arg-type]


def _is_embedding(spec: TensorSpec) -> bool:
    return spec.datatype in inspection.FLOATS and len(spec.shape) == 2


def _tokenizer(path: Path, max_tokens: int | None) -> Any:
    # Its own threads would take every core from the networks that run beside it.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:
        raise NetworkRejected(f"the tokenizer {path.name} can't be read: {error}") from error
    tokenizer.no_padding()  # a batch is padded to its own longest, when it is known
    if max_tokens is not None:
        tokenizer.enable_truncation(max_tokens)
    return tokenizer


def _padding_id(tokenizer: Any) -> int:
    found = (tokenizer.token_to_id(token) for token in _PADDING)
    return next((int(token_id) for token_id in found if token_id is not None), 0)
