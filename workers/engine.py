"""An engine is a loaded network on a device, ready to run. The only import of ONNX Runtime."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A named tensor: Open Inference Protocol datatype (FP32, INT64, BYTES …); -1 marks a free dimension."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class Engine(Protocol):
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    providers: tuple[str, ...]

    def run(self, feeds: Mapping[str, np.ndarray], outputs: Sequence[str]) -> list[np.ndarray]: ...

    def close(self) -> None: ...
