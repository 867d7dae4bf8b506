"""`python -m tests.fuzz --requests 20000`: the long form, on both databases; exits 1 if anything was wrong."""

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

import hypothesis

from tests.fuzz import campaign, mutations

REQUESTS = 20_000
SHARE = 0.25  # of all requests, by schemathesis
OPERATIONS = 28  # about that many requests for each of schemathesis's examples


def fuzz(database: str, *, requests: int, seed: int, hang_s: float, share: float = SHARE) -> dict[str, object]:
    """One run: what was sent, what came back, and what was wrong."""
    folder = Path(tempfile.mkdtemp(prefix="hr-fuzz-"))
    folder.chmod(0o711)  # PostgreSQL runs as another user where this runs as root
    began_s = time.monotonic()
    try:
        run = campaign.Campaign(folder, database, keyed=database == "postgres", limit_s=hang_s)
        try:
            made = run.schemathesis(max(1, int(requests * share / OPERATIONS)), seed) if share else 0
            send(run, requests - made, seed)
        finally:
            violations = run.end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {"database": database, "seed": seed, "requests": made + sum(run.statuses.values()), "schemathesis": made,
            "statuses": dict(sorted(run.statuses.items())), "p50_ms": round(campaign.percentile(run.took_s, 0.5) * 1e3, 1),
            "p99_ms": round(campaign.percentile(run.took_s, 0.99) * 1e3, 1),
            "max_ms": round(campaign.percentile(run.took_s, 1) * 1e3, 1), "good": len(run.neighbour.accepted),
            "took_s": round(time.monotonic() - began_s), "violations": violations}


def send(run: campaign.Campaign, requests: int, seed: int) -> None:
    """That many raw requests."""
    @hypothesis.seed(seed)
    @hypothesis.settings(max_examples=max(1, requests), database=None, deadline=None, phases=[hypothesis.Phase.generate],
                         suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(run.making().requests())
    def each(sent: mutations.Sent) -> None:
        run.send(sent)

    each()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--requests", type=int, default=REQUESTS, help="on each database")
    parser.add_argument("--database", choices=("sqlite", "postgres"), action="append", help="default: both")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hang", type=float, default=2.0, help="seconds that no answer may take")
    given = parser.parse_args()
    failed = False
    for database in given.database or ["sqlite", "postgres"]:
        report = fuzz(database, requests=given.requests, seed=given.seed, hang_s=given.hang)
        violations = report.pop("violations")
        assert isinstance(violations, list)
        print(json.dumps({**report, "violations": len(violations)}))
        for each in violations[:20]:
            print(each[:3000], file=sys.stderr)
        failed = failed or bool(violations)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
