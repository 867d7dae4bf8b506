"""One run: stage up, load on, faults in their time, then quiet, a dump, and the judgement."""

import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.harness import checker, dump, examples, history, schedule
from tests.chaos.harness.faults import Injector
from tests.chaos.harness.figures import figures
from tests.chaos.harness.stage import Stage
from tests.chaos.harness.traffic import Traffic

END_S = 120.0  # for all jobs to end, and then for all deliveries, once everything is mended
LIVE = "SELECT 1 FROM jobs WHERE state IN ('queued', 'running') LIMIT 1"
UNTOLD = "SELECT 1 FROM events WHERE fanned_at IS NULL UNION ALL SELECT 1 FROM deliveries WHERE state = 'pending' LIMIT 1"


@dataclass(frozen=True, slots=True)
class Outcome:
    """`folder` holds the history and the service's log; it is kept where something is wrong."""

    violations: Sequence[checker.Violation]
    figures: dict[str, Any]
    folder: Path


def run(seed: int, *, database: str, seconds: float, folder: Path | None = None) -> Outcome:
    """Run one seed on one database and judge it."""
    begun_s = time.monotonic()
    folder = folder or Path(tempfile.mkdtemp(prefix=f"hr-chaos-{database}-{seed}-"))
    folder.mkdir(parents=True, exist_ok=True)
    written = history.History(folder / "history.jsonl")
    faults = schedule.schedule(seed, seconds, database=database)
    written.write("begin", seed=seed, database=database, seconds=seconds, faults=[each.as_dict() for each in faults])
    stage = Stage(database, written)
    try:
        with stage:
            _act(stage, seed, seconds, faults)
    except BaseException as error:
        written.write("trouble", detail=f"the run ended: {error!r}")
        if isinstance(error, KeyboardInterrupt | SystemExit):  # a condition that never came true is neither
            raise
    finally:
        written.close()
    found = judge(written.path)
    outcome = Outcome(found, figures(history.read(written.path)), folder)
    outcome.figures.update(seed=seed, database=database, seconds=seconds, violations=len(found),
                           took_s=round(time.monotonic() - begun_s, 1))
    return outcome


def judge(path: Path) -> list[checker.Violation]:
    """The violations of a history."""
    return checker.check(history.read(path))


def _act(stage: Stage, seed: int, seconds: float, faults: Sequence[schedule.Fault]) -> None:
    written = stage.history
    try:
        with Traffic(stage, seed=seed) as traffic:
            injector = Injector(stage, traffic, seed)
            injector.run(faults, seconds, threading.Event())
            injector.mend()
            written.write("calm")
        for each in traffic.faults:
            written.write("trouble", detail=each)
        stage.settled(END_S, "the end of all jobs", LIVE)
        stage.settled(END_S, "the end of all deliveries", UNTOLD)
        for table, row in dump.rows(stage):
            written.write("row", table=table, row=row)
        written.write("expected", outputs=examples.expected(stage.network, traffic.sent))
        written.write("stopped", code=stage.stop())
    finally:
        (written.path.parent / "up.log").write_text(stage.up.log)


def tell(outcome: Outcome, *, keep: bool = False) -> None:
    """The figures as one JSON line; what is wrong, where it is written down, and how to see it again."""
    print(json.dumps(outcome.figures), flush=True)
    if not outcome.violations:
        if not keep:
            shutil.rmtree(outcome.folder, ignore_errors=True)
        return
    seed, database, seconds = (outcome.figures[name] for name in ("seed", "database", "seconds"))
    for each in outcome.violations[:20]:
        print(f"  {each}", file=sys.stderr)
    print(f"{len(outcome.violations)} violations; the history is in {outcome.folder}; again: python -m "
          f"tests.chaos.harness --seed {seed} --database {database} --seconds {seconds:g}", file=sys.stderr, flush=True)
