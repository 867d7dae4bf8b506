"""What a task is: how a network's inputs become arrays, and arrays become outputs. One file a task."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from models.signature import Signature
from workers.engine import Engine


class Item(NamedTuple):
    """One decoded input. Items with the same `key` may share a batch; `work` is what it really costs.

    A tuple since one is made for each job: 0.3 us where a frozen dataclass takes 1.
    """

    value: Any
    work: float
    key: Hashable = None


@dataclass(frozen=True, slots=True)
class ItemFault:
    """Why one item fails by itself: a failure code of `models.job.FAILURES` and a message for its owner."""

    code: str
    message: str


class Task(Protocol):
    """What one network version takes and gives. Made once per loaded network; used from several threads."""

    outputs: tuple[str, ...]
    """Names of the network's outputs to fetch."""

    padded: bool
    """Whether a batch is padded to its longest item, so that its cost is items x longest."""

    def decode(self, bodies: Sequence[bytes]) -> list[Item | ItemFault]:
        """One result per JSON input, in order."""
        ...

    def stack(self, items: Sequence[Item]) -> dict[str, np.ndarray]:
        """Feeds for one run. All items have the same key."""
        ...

    def split(self, outputs: Sequence[np.ndarray], items: Sequence[Item]) -> list[bytes | ItemFault]:
        """One JSON output (or fault: not finite) per item, in order. `outputs` are in `self.outputs`' order.

        Raises ValueError where the arrays don't have one entry an item.
        """
        ...

    def sample(self, count: int, size: float) -> list[Item]:
        """`count` made-up items of about `size` work each, for warming up and measuring."""
        ...


class TaskKind(Protocol):
    """A task by name: checks a network against it, and makes the Task for a checked one."""

    name: str

    def inspect(self, manifest: Mapping[str, Any], engine: Engine, folder: Path) -> Signature:
        """The signature (JSON-able) that API and workers share. Raises NetworkRejected with the reason."""
        ...

    def make(self, manifest: Mapping[str, Any], signature: Mapping[str, Any], folder: Path) -> Task: ...
