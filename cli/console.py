"""One console for many processes: whole lines, each with the name of the process that said it."""

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import IO, Any

_COLORS = ("36", "33", "32", "35", "34")


class Console:
    """Writes lines of children and of `up` itself to stderr. A reader that went away costs only the lines."""

    def __init__(self, log_format: str, out: IO[str] | None = None) -> None:
        self._json = log_format == "json"
        self._out = sys.stderr if out is None else out
        self.color = not self._json and self._out.isatty()
        self._lock = threading.Lock()
        self._width = len("housekeep")

    def line(self, name: str, text: str) -> None:
        """Write one line that process `name` said."""
        with self._lock:
            self._width = max(self._width, len(name))
            try:
                self._out.write(self._render(name, text) + "\n")
                self._out.flush()
            except (OSError, ValueError):
                return

    def _render(self, name: str, text: str) -> str:
        if self._json:
            return text if text.startswith("{") else json.dumps({"process": name, "event": text})
        label = f"{name:<{self._width}} |"
        if self.color:
            label = f"\033[{_COLORS[sum(name.encode()) % len(_COLORS)]}m{label}\033[0m"
        return f"{label} {text}"


class Stream:
    """A text stream for this process's own logging: it comes out under a name, like a child's lines."""

    def __init__(self, out: Console, name: str) -> None:
        self._out = out
        self._name = name

    def write(self, text: str) -> int:
        for line in text.splitlines():
            self._out.line(self._name, line)
        return len(text)

    def flush(self) -> None:
        """Each line is out already."""

    def isatty(self) -> bool:
        return self._out.color


class Listener:
    """Passes what one child says to the console, from a thread of its own. Lines with `noise` are dropped."""

    def __init__(self, console: Console, name: str, process: "subprocess.Popen[bytes]", *,
                 noise: Sequence[str] = ()) -> None:
        self._console = console
        self._noise = noise
        self._name = name
        self._stream: Any = process.stdout
        self._thread = threading.Thread(target=self._listen, name=f"listen-{name}", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        with self._stream:
            for raw in self._stream:
                text = raw.decode(errors="replace").rstrip()
                if text and not any(phrase in text for phrase in self._noise):
                    self._console.line(self._name, text)

    def join(self, timeout_s: float) -> None:
        """Wait for the child's last line; not for ever, since a grandchild may hold the pipe open."""
        self._thread.join(timeout_s)
