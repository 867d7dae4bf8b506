"""A history read into what the checker asks about: requests, jobs, rows, deliveries."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.chaos.harness.history import Record

REFUSED = "refused"


@dataclass(slots=True)
class Request:
    """One request that submits, with every answer that it got. `taken`: its key is another request's."""

    name: str
    path: str
    key: str | None
    jobs: list[Record]
    taken: str | None
    answers: list[Record] = field(default_factory=list)

    @property
    def accepted(self) -> Record | None:
        """The first answer that says so."""
        return next((each for each in self.answers if each["status"] in (200, 202)), None)

    @property
    def uncertain(self) -> bool:
        """Whether any answer leaves it open whether something was accepted."""
        return any(_uncertain(each) for each in self.answers) or not self.answers


def _uncertain(answer: Record) -> bool:
    if answer["lost"] is not None:
        return bool(answer["lost"] != REFUSED)
    return answer["status"] >= 500 and answer.get("may_have_been_accepted", True)


@dataclass(slots=True)
class Ledger:
    """`rows`: table name to rows. `by_tag`: rows of `jobs` by the tag in their metadata."""

    requests: dict[str, Request] = field(default_factory=dict)
    records: dict[str, list[Record]] = field(default_factory=lambda: defaultdict(list))
    rows: dict[str, list[Record]] = field(default_factory=lambda: defaultdict(list))
    expected: dict[str, list[float]] = field(default_factory=dict)
    jobs: dict[str, Record] = field(default_factory=dict)
    by_tag: dict[str, list[Record]] = field(default_factory=lambda: defaultdict(list))
    tags: dict[str, Record] = field(default_factory=dict)  # what was sent, by tag


def read(records: Iterable[Record]) -> Ledger:
    ledger = Ledger()
    for each in records:
        kind = each["kind"]
        if kind == "sent":
            ledger.requests[each["request"]] = Request(
                each["request"], each["path"], each["key"], each["jobs"], each.get("taken"))
            ledger.tags |= {job["tag"]: job for job in each["jobs"]}
        elif kind == "answered":
            ledger.requests[each["request"]].answers.append(each)
        elif kind == "row":
            ledger.rows[each["table"]].append(each["row"])
        elif kind == "expected":
            ledger.expected |= each["outputs"]
        else:
            ledger.records[kind].append(each)
    for row in ledger.rows["jobs"]:
        ledger.jobs[row["id"]] = row
        ledger.by_tag[(row["metadata"] or {}).get("tag", "")].append(row)
    return ledger
