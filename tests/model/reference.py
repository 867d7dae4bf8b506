"""What the protocol of jobs, leases and tickets is meant to do: plain Python, written without looking at its SQL.

Times are virtual seconds. Whatever the database shows after a step must be what is here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

LIVE = ("queued", "running")
TICKET_S = 30
MAX_ATTEMPTS = 3
UNCONFIRMED_ATTEMPTS = 30


@dataclass
class Job:
    id: str
    priority: int
    webhook: bool
    deadline_s: int | None
    marked_until_s: int | None
    state: str = "queued"
    waiting: bool = True
    suspect: bool = False
    begun: bool = False
    attempt: int = 0
    crashes: int = 0
    crashes_alone: int = 0
    holder: str | None = None
    error: str | None = None
    result_attempt: int | None = None
    events: list[str] = field(default_factory=list)

    def held_by(self, life: str) -> bool:
        return self.state == "running" and not self.waiting and self.holder == life


@dataclass(frozen=True)
class Ending:
    """How a worker says that one attempt ended."""

    id: str
    attempt: int
    state: str


class Reference:
    """All jobs of one class, its lane, and the lives that work on it."""

    def __init__(self) -> None:
        self.now_s = 0
        self.jobs: dict[str, Job] = {}
        self.lives: dict[str, str | None] = {}  # to the reason of its end
        self.unconfirmed: dict[str, int] = {}  # life to the jobs it was running, where nobody saw it die
        self.endpoint = False
        self.open = True

    # What may be asked of it

    def due(self, job: Job) -> bool:
        return job.deadline_s is not None and job.deadline_s <= self.now_s

    def marked(self, job: Job) -> bool:
        return job.marked_until_s is not None and job.marked_until_s > self.now_s

    def pickable(self) -> list[Job]:
        """Who may get a ticket, in their turn: by priority, deadlines first, then by age."""
        free = [job for job in self.jobs.values() if job.waiting and not self.marked(job) and not self.due(job)]
        return sorted(free, key=lambda job: (
            job.priority, job.deadline_s is None, job.deadline_s or 0, job.id))

    def held(self, life: str) -> list[Job]:
        return [job for job in self.jobs.values() if job.held_by(life)]

    def abandoned(self) -> set[str]:
        return {life for life, reason in self.lives.items() if reason is not None and self.held(life)}

    def companies(self, ids: Iterable[str]) -> dict[str, tuple[str, int]]:
        """Suspects that need not run one by one: whose they were, and how many may run together."""
        found = {}
        for job in map(self.jobs.__getitem__, ids):
            if job.suspect and not job.crashes and job.holder in self.unconfirmed:
                found[job.id] = job.holder, max(1, self.unconfirmed[job.holder] // 8)
        return found

    # A client's side

    def accept(self, job: Job) -> None:
        self.jobs[job.id] = job

    def cancel(self, job: Job) -> str:
        before = job.state
        if before in LIVE:
            self._finish(job, "canceled")
        return before

    def retry(self, job: Job) -> str:
        before = job.state
        if before == "failed":
            job.state, job.waiting, job.suspect, job.begun = "queued", True, False, False
            job.crashes = job.crashes_alone = 0
            job.holder = job.error = job.marked_until_s = None
            if self.due(job):
                job.deadline_s = None
        return before

    # A worker's side

    def claim(self, life: str, ids: Iterable[str], *, begun: bool, alone: bool) -> dict[str, int]:
        """Job to its new attempt, of those that came to be held."""
        taken = {}
        for job in [self.jobs[each] for each in dict.fromkeys(ids)]:
            if (self.lives[life] is None and job.waiting and not self.due(job) and (alone or not job.suspect)):
                job.state, job.waiting, job.marked_until_s = "running", False, None
                job.holder, job.begun, job.attempt = life, begun, job.attempt + 1
                taken[job.id] = job.attempt
        return taken

    def settle(self, life: str, endings: Sequence[Ending], begin: Iterable[str]) -> dict[str, str]:
        """Job to its state, of those that were still held by that very attempt."""
        settled = {}
        for ending in endings:
            job = self.jobs[ending.id]
            if not job.held_by(life) or job.attempt != ending.attempt:
                continue
            state = "expired" if self.due(job) else ending.state
            job.error = "inference_failed" if ending.state == "failed" else None
            if state == "succeeded":
                job.result_attempt = job.attempt
            self._finish(job, state)
            settled[job.id] = state
        for each in begin:
            if self.jobs[each].held_by(life):
                self.jobs[each].begun = True
        return settled

    def give_back(self, life: str, ids: Iterable[str]) -> int:
        held = [job for job in map(self.jobs.__getitem__, dict.fromkeys(ids)) if job.held_by(life)]
        for job in held:
            job.state, job.waiting, job.begun, job.holder, job.marked_until_s = "queued", True, False, None, None
        return len(held)

    # The ends of lives

    def end(self, life: str, reason: str) -> list[str] | None:
        """The jobs that were parked; None if that life was over."""
        if self.lives[life] is not None:
            return None
        self.lives[life] = reason
        parked = self.release(life, confirmed=reason == "killed")
        self.clear_marks()
        if self.pickable():
            self.open = False
        return parked

    def release(self, life: str, *, confirmed: bool) -> list[str]:
        held = self.held(life)
        begun = [job for job in held if job.begun]
        for job in held:
            job.waiting, job.begun, job.marked_until_s = True, False, None
        for job in begun:
            job.suspect = True
            job.crashes += confirmed
            if confirmed and len(held) == 1:
                job.crashes_alone += 1
        if begun and not confirmed:
            self.unconfirmed[life] = self.unconfirmed.get(life, 0) + len(begun)
        # Where nobody ever confirms a death, the number of attempts must do instead.
        worn = not confirmed and len(held) == 1 and held[0].attempt >= UNCONFIRMED_ATTEMPTS
        parked = [job for job in begun if job.crashes_alone >= MAX_ATTEMPTS or worn]
        for job in parked:
            job.error = "crashes_exhausted"
            self._finish(job, "failed")
        return [job.id for job in parked]

    # Housekeeping's side

    def expire(self, limit: int) -> set[str]:
        due = sorted((job for job in self.jobs.values() if job.state in LIVE and self.due(job)),
                     key=lambda job: job.deadline_s or 0)[:limit]
        for job in due:
            self._finish(job, "expired")
        return {job.id for job in due}

    def mark(self, ids: Iterable[str]) -> None:
        for job in map(self.jobs.__getitem__, ids):
            if job.waiting:
                job.marked_until_s = self.now_s + TICKET_S

    def unmark(self, ids: Iterable[str]) -> None:
        for job in map(self.jobs.__getitem__, ids):
            if job.waiting:
                job.marked_until_s = None

    def clear_marks(self) -> None:
        self.unmark(self.jobs)

    def reopen(self) -> None:
        self.open = self.open or not self.pickable()

    def _finish(self, job: Job, state: str) -> None:
        job.state, job.waiting, job.marked_until_s = state, False, None
        if job.webhook or self.endpoint:
            job.events.append(f"job.{state}")

    # What must hold of every state that this can reach, whoever wrote it down

    def check(self, results: Mapping[str, int], events: Mapping[str, Sequence[str]]) -> None:
        """`results`: job to the attempt that wrote it. `events`: job to the types of its events."""
        for job in self.jobs.values():
            assert (job.id in results) == (job.state == "succeeded"), job
            assert results.get(job.id) == job.result_attempt, job
            assert sorted(events.get(job.id, ())) == sorted(job.events), job
            assert not (job.waiting and job.state not in LIVE), job
            assert job.state != "queued" or (job.waiting and job.holder is None), job
            assert job.crashes_alone <= job.crashes, job
            if job.state == "running" and not job.waiting:
                assert job.holder in self.lives, job
                assert self.lives[job.holder] is None or job.holder in self.abandoned(), job
