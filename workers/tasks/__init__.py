"""The tasks by name. What a task is stands in `base`; the names are those of `models.manifest.TASKS`."""

from collections.abc import Mapping

from workers.tasks.base import TaskKind
from workers.tasks.binary import BinaryKind
from workers.tasks.image import ImageKind
from workers.tasks.tabular import TabularKind
from workers.tasks.tensor import TensorKind
from workers.tasks.text import TextKind

KINDS: Mapping[str, TaskKind] = {kind.name: kind for kind in (
    TensorKind(), TabularKind(), TextKind("text-embedding"), TextKind("text-classification"), ImageKind(),
    BinaryKind())}
