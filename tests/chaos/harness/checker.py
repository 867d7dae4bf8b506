"""Whether a history keeps the promise: pure, from records to violations. Each rule is one function.

An accepted job ends, once, as it must; a result is that of a direct run, written by who held the job; what was
not certainly answered is unknown and may be either; events are delivered, under one id, and never before.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tests.chaos.harness import deliveries
from tests.chaos.harness.history import Record
from tests.chaos.harness.ledger import Ledger, Request, read

TERMINAL = frozenset({"succeeded", "failed", "canceled", "expired"})
EXACT = 1e-5
CLOCK_SLACK_MS = 50  # two looks at the clock in one transaction
BUSY = {409: {"idempotency_in_progress"}, 429: {"rate_limited", "queue_full", "deadline_unmeetable"}}
MAX_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Violation:
    rule: str
    subject: str
    detail: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.subject}: {self.detail}"


def check(records: Iterable[Record]) -> list[Violation]:
    """Everything that is wrong with a run."""
    ledger = read(records)
    return [Violation(rule.__name__.strip("_"), *found) for rule in RULES for found in rule(ledger)]


Found = Iterator[tuple[str, str]]


def honest_answers(ledger: Ledger) -> Found:
    """Nothing but 503 `unavailable` is said of trouble, and always in JSON."""
    told = [(request.name, each) for request in ledger.requests.values() for each in request.answers]
    told += [(kind, each) for kind in ("polled", "canceled", "listed") for each in ledger.records[kind]]
    for name, each in told:
        if each["status"] >= 500 and (each["status"], each.get("code")) != (503, "unavailable"):
            yield name, f"answered {each['status']} {each.get('code')}: {each.get('detail')}"
        if each["lost"] == "JSONDecodeError" or "odd" in each:
            yield name, f"an answer that is not ours: {each.get('odd')}"


def right_refusals(ledger: Ledger) -> Found:
    """Valid jobs are refused only for a while, invalid ones always, each by itself."""
    for request in ledger.requests.values():
        for answer in request.answers:
            status, code = answer["status"], answer.get("code")
            if answer["lost"] is not None or status >= 500 or code in BUSY.get(status, ()):
                continue
            if request.taken is not None:
                if (status, code) != (422, "idempotency_mismatch"):
                    yield request.name, f"another request under the key of {request.taken} got {status} {code}"
            elif status in (200, 202):
                yield from _entries(request, answer)
            elif request.path.endswith("batch") or request.jobs[0]["kind"] != "invalid":
                yield request.name, f"refused with {status} {code}: {answer.get('detail')}"
            elif code != "input_invalid":
                yield request.name, f"invalid, and refused as {code}"


def _entries(request: Request, answer: Record) -> Found:
    if len(answer["entries"]) != len(request.jobs):
        yield request.name, f"{len(request.jobs)} jobs, {len(answer['entries'])} answers"
        return
    for job, entry in zip(request.jobs, answer["entries"], strict=True):
        if job["kind"] == "invalid":
            if entry.get("code") != "input_invalid":
                yield job["tag"], f"invalid, and answered {entry}"
        elif entry["status"] != 202 and entry.get("code") not in BUSY.get(entry["status"], ()):
            yield job["tag"], f"valid, and answered {entry}"


def one_row_each(ledger: Ledger) -> Found:
    """A job that was accepted has one row, one that was refused none, an unknown one at most one."""
    for request in ledger.requests.values():
        accepted = request.accepted
        ids = [entry.get("id") for entry in accepted["entries"]] if accepted else [None] * len(request.jobs)
        counts = set()
        for job, job_id in zip(request.jobs, ids, strict=False):
            rows = ledger.by_tag.get(job["tag"], [])
            if len(rows) > 1:
                yield job["tag"], f"{len(rows)} rows: {[row['id'] for row in rows]}"
            elif job_id is not None and [row["id"] for row in rows] != [job_id]:
                yield job["tag"], f"accepted as {job_id}, and there is {[row['id'] for row in rows]}"
            elif rows and job_id is None and (accepted or not request.uncertain):
                yield job["tag"], f"refused, and yet there is {rows[0]['id']}"
            if job["kind"] != "invalid":
                counts.add(len(rows))
        if accepted is None and len(counts) > 1:
            yield request.name, "some of its jobs were stored and some were not"
    for tag, rows in ledger.by_tag.items():
        if tag not in ledger.tags:
            yield tag, f"{len(rows)} rows of a job that was never sent"


def one_job_a_key(ledger: Ledger) -> Found:
    """Every answer under one key tells of the same jobs."""
    for request in ledger.requests.values():
        told = {tuple(entry.get("id") for entry in each["entries"])
                for each in request.answers if each["status"] in (200, 202)}
        if len(told) > 1:
            yield request.name, f"its key stands for {len(told)} answers"
    counts = Counter((row["path"], row["key"]) for row in ledger.rows["idempotency_keys"])
    yield from ((key, f"stored {count} times") for (_, key), count in counts.items() if count > 1)


def everything_ends(ledger: Ledger) -> Found:
    for each in ledger.records["overdue"]:
        yield each["what"], f"not within {each['after_s']} s"
    for row in ledger.rows["jobs"]:
        if row["state"] not in TERMINAL:
            yield row["id"], (f"still {row['state']}: waiting={row['waiting']}, attempt={row['attempt']}, "
                              f"incarnation={row['incarnation']}, suspect={row['suspect']}, "
                              f"ticketed_until={row['ticketed_until']}")


def right_ends(ledger: Ledger) -> Found:
    """Valid jobs succeed, unless they were canceled or ran out of time; the others fail as they must."""
    canceled = {each["id"] for each in ledger.records["canceled"]}
    for row in ledger.rows["jobs"]:
        job = ledger.tags.get((row["metadata"] or {}).get("tag", ""))
        if job is None or row["state"] not in TERMINAL:
            continue
        state, code = row["state"], row["error_code"]
        if state == "canceled" and row["id"] in canceled:
            continue
        if state == "expired" and row["deadline_at"] is not None:
            if row["finished_at"] < row["deadline_at"] - CLOCK_SLACK_MS:
                yield row["id"], f"expired {row['deadline_at'] - row['finished_at']} ms before its deadline"
            continue
        wanted = {"not_finite": ("failed", "output_not_finite"), "poison": ("failed", "crashes_exhausted")}.get(
            job["kind"], ("succeeded", None))
        if (state, code) != wanted:
            yield row["id"], f"{job['kind']}, and it ended as {state} {code}: {row['error_message']}"
        elif state == "succeeded" and row["deadline_at"] is not None \
                and row["finished_at"] > row["deadline_at"] + CLOCK_SLACK_MS:
            yield row["id"], f"succeeded {row['finished_at'] - row['deadline_at']} ms after its deadline"


def same(given: Sequence[float] | None, wanted: Sequence[float] | None) -> bool:
    return given is not None and wanted is not None and len(given) == len(wanted) \
        and all(abs(a - b) <= EXACT for a, b in zip(given, wanted, strict=True))


def true_results(ledger: Ledger) -> Found:
    """A result for each success and for nothing else, as a direct run gives it, of the attempt that held the job."""
    results = defaultdict(list)
    for row in ledger.rows["results"]:
        results[row["job_id"]].append(row)
    ended = {row["id"]: row["ended_at"] for row in ledger.rows["incarnations"]}
    for row in ledger.rows["jobs"]:
        found = results.pop(row["id"], [])
        if len(found) != (row["state"] == "succeeded"):
            yield row["id"], f"{row['state']} with {len(found)} results"
        for result in found[:1]:
            if result["attempt"] != row["attempt"]:
                yield row["id"], f"its result is of attempt {result['attempt']}, the job is at {row['attempt']}"
            if not same(result["body"], ledger.expected.get((row["metadata"] or {}).get("tag", ""))):
                yield row["id"], f"its result {result['body']} is not that of a direct run"
            end = ended.get(row["incarnation"], 0)
            if end is not None and result["created_at"] > end:
                yield row["id"], f"written {result['created_at'] - end} ms after {row['incarnation']} was ended"
    yield from ((job_id, "a result without a job") for job_id in results)


def true_answers(ledger: Ledger) -> Found:
    """What a client was told of the end of a job stays so."""
    told = [each for kind in ("polled", "canceled") for each in ledger.records[kind]]
    told += [each for request in ledger.requests.values() for each in request.answers]
    entries = itertools.chain.from_iterable(each.get("entries", ()) for each in told)
    listed = itertools.chain.from_iterable(each["entries"] for each in ledger.records["listed"]
                                           if isinstance(each["entries"], list))
    for entry in itertools.chain(entries, listed):
        row = ledger.jobs.get(entry.get("id", ""))
        if row is None:
            if entry.get("id"):
                yield entry["id"], "told of, and there is no such job"
            continue
        if entry["state"] in TERMINAL and entry["state"] != row["state"]:
            yield entry["id"], f"told to be {entry['state']}, and it is {row['state']}"
        if entry["state"] == "succeeded" and "output" in entry \
                and not same(entry["output"], ledger.expected.get((row["metadata"] or {}).get("tag", ""))):
            yield entry["id"], f"a client was given {entry['output']}"
    for kind in ("polled", "canceled"):
        yield from ((each["id"], f"{kind}: {each['status']} {each.get('code')}") for each in ledger.records[kind]
                    if 400 <= each["status"] < 500 and each["status"] != 429)


def just_crashes(ledger: Ledger) -> Found:
    """Only confirmed deaths count, and only a job that kills alone is parked."""
    deaths = sum(row["kind"] == "worker" and row["end_reason"] == "killed" for row in ledger.rows["incarnations"])
    for row in ledger.rows["jobs"]:
        if not row["crashes_alone"] <= row["crashes"] <= min(deaths, row["attempt"]):
            yield row["id"], (f"{row['crashes']} crashes, {row['crashes_alone']} alone, in {row['attempt']} attempts "
                              f"and {deaths} deaths")
        if row["error_code"] == "crashes_exhausted" and row["crashes_alone"] < MAX_ATTEMPTS:
            yield row["id"], f"parked after {row['crashes_alone']} crashes alone"


def clean_end(ledger: Ledger) -> Found:
    for each in ledger.records["stopped"]:
        if each["code"] != 0:
            yield "headrace up", f"exit code {each['code']}"
    for each in ledger.records["trouble"]:
        yield "run", each["detail"]


RULES: Sequence[Callable[[Ledger], Found]] = (
    honest_answers, right_refusals, one_row_each, one_job_a_key, everything_ends, right_ends, true_results,
    true_answers, just_crashes, deliveries.one_event_each, deliveries.all_delivered, deliveries.nothing_untrue,
    clean_end)
