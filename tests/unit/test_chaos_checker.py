"""The chaos harness's own judgement: planted violations in hand-made histories are each found, and nothing else."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.harness import checker, figures, schedule

WORKER = "inc_1"
OUTPUT = [0.25, -0.5]


def _row(tag: str, **changes: Any) -> dict[str, Any]:
    return {"id": f"job_{tag}", "state": "succeeded", "waiting": False, "attempt": 1, "crashes": 0, "crashes_alone": 0,
            "incarnation": WORKER, "created_at": 1000, "started_at": 1100, "finished_at": 1200, "deadline_at": None,
            "error_code": None, "error_message": None, "metadata": {"tag": tag}, "webhook": None,
            "ticketed_until": None, "suspect": False, "begun": True} | changes


class Story:
    """A run in which nothing went wrong: one job of each way to end, and a request whose answer was lost."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = [{"kind": "endpoint", "place": "main", "id": "whe_1", "types": []}]
        self.outputs: dict[str, list[float]] = {}
        for table, row in (("incarnations", {"id": WORKER, "kind": "worker", "pid": 1, "started_at": 1, "ended_at": 5000,
                                             "end_reason": "killed"}),
                           ("webhook_endpoints", {"id": "whe_1", "state": "enabled", "reason": None})):
            self.row(table, row)
        self.job("a")
        self.job("late", deadline_at=1150, state="expired")
        self.job("stop", state="canceled")
        self.records.append({"kind": "canceled", "id": "job_stop", "status": 200, "lost": None,
                             "entries": [{"status": 202, "id": "job_stop", "state": "canceled"}]})
        self.job("nan", kind="not_finite", state="failed", error_code="output_not_finite")
        self.job("poison", kind="poison", state="failed", error_code="crashes_exhausted", attempt=4, crashes=4,
                 crashes_alone=3)
        for number in range(3):
            self.row("incarnations", {"id": f"inc_x{number}", "kind": "worker", "pid": 2, "started_at": 1,
                                      "ended_at": 900, "end_reason": "killed"})
        self.sent("bad", "invalid", {"status": 422, "code": "input_invalid", "lost": None})
        self.sent("lost", "valid", {"status": 0, "lost": "RemoteDisconnected"}, key=None)
        self.records.append({"kind": "expected", "outputs": self.outputs})
        self.records.append({"kind": "stopped", "code": 0})

    def row(self, table: str, row: dict[str, Any]) -> None:
        self.records.append({"kind": "row", "table": table, "row": row})

    def sent(self, tag: str, kind: str, *answers: dict[str, Any], key: str | None = "k") -> None:
        self.records.append({"kind": "sent", "request": tag, "path": "/v1/jobs", "jobs": [{"tag": tag, "kind": kind}],
                             "key": None if key is None else key + tag})
        self.records.extend({"kind": "answered", "request": tag, **each} for each in answers)

    def job(self, tag: str, *, kind: str = "valid", **changes: Any) -> None:
        row = _row(tag, **changes)
        told = {"status": 202, "lost": None, "entries": [{"status": 202, "id": row["id"], "state": "queued"}]}
        self.sent(tag, kind, {"status": 503, "code": "unavailable", "may_have_been_accepted": True, "lost": None}, told,
                  told)
        self.row("jobs", row)
        self.outputs[tag] = OUTPUT
        if row["state"] == "succeeded":
            self.row("results", {"job_id": row["id"], "attempt": 1, "body": OUTPUT, "blob": None, "created_at": 1200})
        event = f"evt_{tag}"
        self.row("events", {"id": event, "type": f"job.{row['state']}", "subject": row["id"], "created_at": 1200,
                            "fanned_at": 1201})
        self.row("deliveries", {"id": f"dlv_{tag}", "event_id": event, "event_type": f"job.{row['state']}",
                                "subject": row["id"], "endpoint_id": "whe_1", "url": "u", "state": "delivered",
                                "attempt": 1, "last_error": None})
        self.records.append({"kind": "received", "place": "main", "path": "/", "event": event, "body_id": event,
                             "type": f"job.{row['state']}", "subject": row["id"], "state": row["state"],
                             "answered": "ok", "fault": None, "wall_ms": 1210})

    def of(self, kind: str, **wanted: Any) -> dict[str, Any]:
        """The first record of a kind, or row of a table, with these values."""
        for each in self.records:
            found = each["row"] if each["kind"] == "row" and each["table"] == kind else each
            if (each["kind"] == kind or found is not each) and all(found.get(k) == v for k, v in wanted.items()):
                return found
        raise AssertionError((kind, wanted))

    def drop(self, kind: str, **wanted: Any) -> None:
        found = self.of(kind, **wanted)
        self.records = [each for each in self.records if each is not found and each.get("row") is not found]


def test_a_run_without_fault_has_no_violation() -> None:
    assert checker.check(Story().records) == []


def _set(kind: str, where: dict[str, Any], **changes: Any) -> Callable[[Story], None]:
    return lambda story: story.of(kind, **where).update(changes)


def _drop(kind: str, **where: Any) -> Callable[[Story], None]:
    return lambda story: story.drop(kind, **where)


def _again(kind: str, where: dict[str, Any], **changes: Any) -> Callable[[Story], None]:
    def plant(story: Story) -> None:
        found = copy.deepcopy(story.of(kind, **where)) | changes
        if kind in ("answered", "received"):
            story.records.append(found)
        else:
            story.row(kind, found)
    return plant


A, EVENT = {"id": "job_a"}, {"event": "evt_a"}
ACCEPTED = {"request": "a", "status": 202}
PLANTED = [
    ("honest_answers", _again("answered", ACCEPTED, status=500, code="internal", entries=[])),
    ("honest_answers", _again("answered", ACCEPTED, status=503, code="blob_missing", entries=[])),
    ("right_refusals", _again("answered", ACCEPTED, status=422, code="input_invalid", entries=[])),
    ("right_refusals", _set("answered", {"request": "bad"}, status=202, entries=[
        {"status": 202, "id": "job_bad", "state": "queued"}])),
    ("one_row_each", _drop("jobs", **A)),
    ("one_row_each", _again("jobs", A, id="job_b")),
    ("one_row_each", _again("jobs", A, id="job_bad", metadata={"tag": "bad"})),
    ("one_row_each", _again("jobs", A, id="job_z", metadata={"tag": "never sent"})),
    ("one_job_a_key", _again("answered", ACCEPTED, entries=[{"status": 202, "id": "job_b", "state": "queued"}])),
    ("everything_ends", _set("jobs", A, state="running")),
    ("everything_ends", lambda story: story.records.append({"kind": "overdue", "what": "jobs", "after_s": 1})),
    ("right_ends", _set("jobs", A, state="failed", error_code="inference_failed")),
    ("right_ends", _set("jobs", A, state="canceled")),
    ("right_ends", _set("jobs", A, state="expired")),
    ("right_ends", _set("jobs", {"id": "job_late"}, deadline_at=9000)),
    ("right_ends", _set("jobs", A, deadline_at=1100)),
    ("right_ends", _set("jobs", {"id": "job_nan"}, state="succeeded", error_code=None)),
    ("right_ends", _set("jobs", {"id": "job_poison"}, error_code="inference_failed")),
    ("true_results", _drop("results", job_id="job_a")),
    ("true_results", _again("results", {"job_id": "job_a"})),
    ("true_results", _set("results", {"job_id": "job_a"}, attempt=2)),
    ("true_results", _set("results", {"job_id": "job_a"}, body=[0.25, -0.6])),
    ("true_results", _set("results", {"job_id": "job_a"}, created_at=6000)),
    ("true_results", _again("results", {"job_id": "job_a"}, job_id="job_nan")),
    ("true_answers", _again("answered", ACCEPTED, entries=[{"status": 202, "id": "job_a", "state": "canceled"}])),
    ("true_answers", _again("answered", ACCEPTED, entries=[
        {"status": 202, "id": "job_a", "state": "succeeded", "output": [1.0, 1.0]}])),
    ("true_answers", lambda story: story.records.append(
        {"kind": "polled", "id": "job_a", "status": 404, "code": "not_found", "lost": None})),
    ("just_crashes", _set("jobs", A, crashes=2)),
    ("just_crashes", _set("jobs", {"id": "job_poison"}, crashes_alone=2)),
    ("one_event_each", _drop("events", id="evt_a")),
    ("one_event_each", _again("events", {"id": "evt_a"}, id="evt_b")),
    ("one_event_each", _set("events", {"id": "evt_a"}, type="job.failed")),
    ("all_delivered", _drop("received", **EVENT)),
    ("all_delivered", _set("received", EVENT, answered="500")),
    ("all_delivered", _set("deliveries", {"event_id": "evt_a"}, state="failed")),
    ("all_delivered", _set("webhook_endpoints", {"id": "whe_1"}, state="disabled")),
    ("nothing_untrue", _again("received", EVENT, event="evt_never", body_id="evt_never")),
    ("nothing_untrue", _again("received", EVENT, state="failed")),
    ("nothing_untrue", _again("received", EVENT, fault="no signature fits")),
    ("nothing_untrue", _again("received", EVENT, path="/trap")),
    ("nothing_untrue", _again("received", EVENT, wall_ms=1100)),
    ("nothing_untrue", _again("received", EVENT, body_id="evt_other")),
    ("clean_end", _set("stopped", {}, code=1)),
    ("clean_end", lambda story: story.records.append({"kind": "trouble", "detail": "a client ended"})),
]


@pytest.mark.parametrize(("rule", "plant"), PLANTED, ids=[f"{rule}-{at}" for at, (rule, _) in enumerate(PLANTED)])
def test_a_planted_violation_is_found_by_its_rule(rule: str, plant: Callable[[Story], None]) -> None:
    story = Story()
    plant(story)
    assert rule in {each.rule for each in checker.check(story.records)}


def test_every_rule_has_a_planted_violation() -> None:
    assert {rule.__name__ for rule in checker.RULES} == {rule for rule, _ in PLANTED}


def test_figures_count_what_is_unknown_and_how_long_killed_jobs_took() -> None:
    story = Story()
    story.records.append({"kind": "injected", "fault": "kill", "target": "worker", "held": ["job_a"], "killed_ms": 700})
    found = figures.figures(story.records)
    assert (found["jobs"], found["unknown"], found["unknown_stored"], found["kills"]) == (5, 1, 0, 1)
    assert found["recovery"] == {"jobs": 1, "p50_s": 0.5, "p99_s": 0.5, "max_s": 0.5}


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_a_seed_replays_its_schedule_and_another_differs(database: str) -> None:
    first = schedule.schedule(5, 120, database=database)
    assert first == schedule.schedule(5, 120, database=database)
    assert first != schedule.schedule(6, 120, database=database)


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_a_run_of_two_minutes_has_at_least_13_kills_and_every_part_is_hit(database: str) -> None:
    for seed in range(1, 21):
        faults = schedule.schedule(seed, 120, database=database)
        killed = [fault.target for fault in faults if fault.kind == "kill"]
        assert len(killed) >= 13
        assert set(schedule.PARTS) <= set(killed)
        assert all(0 < fault.at_s < 120 for fault in faults)
        assert list(faults) == sorted(faults, key=lambda fault: fault.at_s)
