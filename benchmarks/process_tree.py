"""CPU seconds and memory of a tree of processes, from /proc: wall time is noisy on a shared machine."""

import os
import re
import statistics
import time
from pathlib import Path

PARTS = {"database": r"postgres", "broker": r"(valkey|redis)-server", "worker": r" worker\b",
         "housekeep": r" housekeep\b", "api": r" api\b|granian", "up": r" up\b"}
TICK = os.sysconf("SC_CLK_TCK")


def pids(root: int) -> list[int]:
    """The process and everything that descends from it."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rsplit(")", 1)[1].split()[1])
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def cpu_s(root: int) -> dict[int, float]:
    """utime + stime of every live process of the tree, with that of children already reaped."""
    out = {}
    for pid in pids(root):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        out[pid] = sum(map(int, fields[11:15])) / TICK
    return out


def names(root: int) -> dict[int, str]:
    """What each process is: api, worker, housekeep, broker, database, or up."""
    out = {}
    for pid in pids(root):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        out[pid] = _name(line)
    return out


def _name(line: str) -> str:
    for name, pattern in PARTS.items():
        if re.search(pattern, line):
            return name
    return "other"


def memory_mib(root: int) -> float:
    """Proportional set size of the whole tree."""
    total = 0
    for pid in pids(root):
        try:
            found = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
        except OSError:
            continue
        total += int(found[1]) if found else 0
    return round(total / 1024, 1)


def machine_busy_s() -> float:
    """CPU seconds that the whole machine has spent: what is not ours is foreign load, and spoils a figure."""
    values = [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(values) - values[3] - values[4]) / TICK


class Meter:
    """CPU by part between two moments."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._before = cpu_s(root)
        self._busy = machine_busy_s()
        self._own = time.process_time()
        self._at = time.perf_counter()

    def read(self) -> tuple[dict[str, float], float]:
        """CPU seconds of each part since the start, and the cores that others used meanwhile."""
        now, parts = cpu_s(self._root), dict.fromkeys(PARTS, 0.0)
        kinds = names(self._root)
        for pid, seconds in now.items():
            name = kinds.get(pid, "other")
            parts[name] = parts.get(name, 0.0) + seconds - self._before.get(pid, 0.0)
        ours = sum(parts.values()) + time.process_time() - self._own
        foreign = (machine_busy_s() - self._busy - ours) / (time.perf_counter() - self._at)
        return {name: round(seconds, 3) for name, seconds in parts.items() if seconds > 0}, round(foreign, 2)


def fsync_ms(folder: Path, tries: int = 60) -> float:
    """Median time of one 4 KiB append with fdatasync in that folder: the floor of a durable commit there."""
    path, times = folder / "fsync.probe", []
    with path.open("wb", buffering=0) as file:
        for _ in range(tries):
            start = time.perf_counter()
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - start)
    path.unlink()
    return round(statistics.median(times) * 1000, 3)
