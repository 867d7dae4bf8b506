"""Class scores on their way out: `{label, scores: {label: p}}`, whatever the network looked at."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from models.signature import Signature
from workers.tasks import floats
from workers.tasks.base import Item, ItemFault

NOT_FINITE = ItemFault("output_not_finite", "the network's output holds values that are not finite")


class Scores:
    """The output side of the classifying tasks. `field` is what the scores are called in the output."""

    def __init__(self, manifest: Mapping[str, Any], signature: Signature, field: str = "scores") -> None:
        result = signature["result"]
        if result is None:
            raise ValueError("the signature names no result: check the network again")
        self._names = signature["labels"] or []
        self._field = field
        self._nulls = bool(manifest.get("allow_null"))
        own = () if result["label"] is None else (result["label"],)
        self.outputs: tuple[str, ...] = (result["output"], *own)

    def split(self, outputs: Sequence[np.ndarray], items: Sequence[Item]) -> list[bytes | ItemFault]:
        scores = outputs[0]
        if scores.shape != (len(items), len(self._names)):
            raise ValueError(f"scores have shape {list(scores.shape)} for {len(items)} items of "
                             f"{len(self._names)} classes")
        best = self._best(scores, outputs[1].reshape(-1) if len(outputs) > 1 else None)
        out: list[bytes | ItemFault] = [
            floats.encode({"label": label, self._field: dict(zip(self._names, row, strict=True))})
            for label, row in zip(best, floats.shortened(scores).tolist(), strict=True)]
        finite = None if self._nulls else floats.finite_rows(scores)
        if finite is not None:
            for at in np.flatnonzero(~finite):
                out[at] = NOT_FINITE
        return out

    def _best(self, scores: np.ndarray, own: np.ndarray | None) -> list[str]:
        """The class of the highest score. The network's own label decides ties, and where it is a name."""
        if own is not None and own.dtype == np.object_:
            return [str(name) for name in own]
        best = scores.argmax(axis=1)
        if own is not None:
            at = np.clip(own, 0, scores.shape[1] - 1)
            ties = scores[np.arange(len(at)), at] == scores.max(axis=1)
            best = np.where(ties & (at == own), at, best)
        return [self._names[at] for at in best]
