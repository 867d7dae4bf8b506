"""The figures of a run, from its history: what was done, what was broken, how long it took to recover."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from tests.chaos.harness.history import Record
from tests.chaos.harness.ledger import Ledger, read


def percentile(values: Sequence[float], share: float) -> float | None:
    found = sorted(values)
    return round(found[min(len(found) - 1, int(share * len(found)))], 3) if found else None


def recoveries(ledger: Ledger) -> list[float]:
    """Seconds from each kill of a worker to the end of each job that it was running."""
    out = []
    for each in ledger.records["injected"]:
        for job_id in each.get("held", ()):
            finished = ledger.jobs.get(job_id, {}).get("finished_at")
            if finished is not None:
                out.append((finished - each["killed_ms"]) / 1000)
    return out


def figures(records: Iterable[Record]) -> dict[str, Any]:
    """One JSON-able object."""
    ledger = read(records)
    injected = ledger.records["injected"]
    jobs = ledger.rows["jobs"]
    recovered = recoveries(ledger)
    unknown = [each for each in ledger.requests.values() if each.accepted is None and each.uncertain]
    lost: Counter[str] = Counter()
    for request in ledger.requests.values():
        for answer in request.answers:
            if answer["lost"] is not None or answer["status"] >= 429:
                lost[answer["lost"] or f"{answer['status']} {answer.get('code')}"] += 1
    received = Counter((each["place"], each["event"]) for each in ledger.records["received"]
                       if each["answered"] == "ok")
    return {
        "jobs": len(jobs), "states": dict(Counter(row["state"] for row in jobs)),
        "faults": dict(Counter(each["fault"] for each in injected)),
        "kills": sum(each["fault"] == "kill" for each in injected),
        "skipped": dict(Counter(each["fault"] for each in ledger.records["skipped"])),
        "attempts": sum(row["attempt"] for row in jobs), "crashes": sum(row["crashes"] for row in jobs),
        "attempts_max": max((row["attempt"] for row in jobs), default=0),
        "deaths": sum(row["end_reason"] == "killed" for row in ledger.rows["incarnations"]),
        "unknown": len(unknown), "unknown_stored": sum(bool(ledger.by_tag.get(each.name)) for each in unknown),
        "trouble": dict(lost), "webhooks": len(received),
        "webhooks_repeated": sum(received.values()) - len(received),
        "recovery": {"jobs": len(recovered), "p50_s": percentile(recovered, 0.5), "p99_s": percentile(recovered, 0.99),
                     "max_s": percentile(recovered, 1.0)},
    }
