"""The record of a run: everything that was sent, answered, injected and received, a JSON line each.

Only ever appended to, and complete: a checker needs nothing else, so that a run can be judged again later.
"""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Record = dict[str, Any]


class History:
    """Append with `write`; thread-safe. `t`: s since it was opened; `wall_ms`: this machine's clock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("w", encoding="utf-8", buffering=1)
        self._lock = threading.Lock()
        self._begun_s = time.monotonic()

    def write(self, kind: str, **fields: Any) -> None:
        """One record. Also stands for the moment: what happens before the call comes before it in the file."""
        now = {"kind": kind, "t": round(time.monotonic() - self._begun_s, 4), "wall_ms": time.time_ns() // 1_000_000}
        line = json.dumps(now | fields, separators=(",", ":")) + "\n"
        with self._lock:
            if not self._file.closed:  # a receiver's late thread
                self._file.write(line)

    def close(self) -> None:
        with self._lock:
            self._file.close()


def read(path: Path) -> Iterator[Record]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)
