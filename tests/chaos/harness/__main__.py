"""`python -m tests.chaos.harness`: fault runs from seeds, on one database or both.

    python -m tests.chaos.harness --seed 7 --seconds 120 --database sqlite
    python -m tests.chaos.harness --seeds 8 --seconds 120
    python -m tests.chaos.harness --check FOLDER/history.jsonl
"""

import argparse
import json
import signal
import sys
from pathlib import Path

from tests.chaos.harness import figures, history, run

DATABASES = ("sqlite", "postgres")


def main() -> int:
    """The exit code: 0 if no run has a violation."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.harness", description="Fault runs from seeds.")
    parser.add_argument("--seed", type=int, default=1, help="the first, or only, seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many, one after the other")
    parser.add_argument("--seconds", type=float, default=120.0, help="of faults, in each run")
    parser.add_argument("--database", choices=DATABASES, action="append", help="default: both")
    parser.add_argument("--check", type=Path, help="judge a history that is there already")
    parser.add_argument("--out", type=Path, help="keep histories and logs in this folder")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the stage is taken down all the same
    if given.check is not None:
        print(json.dumps(figures.figures(history.read(given.check))))
        found = run.judge(given.check)
        for each in found:
            print(f"  {each}")
        return int(bool(found))
    outcomes = []
    for seed in range(given.seed, given.seed + given.seeds):
        for database in given.database or DATABASES:
            folder = given.out / f"{database}-{seed}" if given.out else None
            outcomes.append(run.run(seed, database=database, seconds=given.seconds, folder=folder))
            run.tell(outcomes[-1], keep=given.out is not None)
    if len(outcomes) > 1:
        print(json.dumps({"runs": len(outcomes), "violations": sum(len(each.violations) for each in outcomes),
                          "jobs": sum(each.figures["jobs"] for each in outcomes),
                          "kills": sum(each.figures["kills"] for each in outcomes)}), flush=True)
    return int(any(each.violations for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())
