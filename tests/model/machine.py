"""The protocol of jobs, leases and tickets as a state machine: each rule is one step of the real SQL and the
same step of the reference, in orders that load never produces. After each step both must say the same.

The database's clock runs as it does; `time_passes` moves every stored time into the past instead. Deadlines and
marks lie at least ten seconds from the virtual now, so that no pause of the machine it runs on matters.
"""

import contextlib
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from models import claim, feed, ids, incarnation, job, turn
from models.claim import Outcome
from models.contract import INTERACTIVE
from models.database import Database
from models.job import NewJob
from tests.model import reference, statements
from tests.model.reference import Ending, Reference
from tests.rows import NETWORK, TENANT
from workers.housekeeping import fan_out

CLASS = "cpu"
SLOTS, JOBS, DRAWN = 3, 12, 6
STEP_S = 20  # deadlines and marks lie between two steps
WEBHOOK = b'{"url": "http://hook.test/"}'

_one = st.integers(0, DRAWN - 1)
_some = st.lists(_one, min_size=1, max_size=DRAWN)
_slot = st.integers(0, SLOTS - 1)
_life = st.integers(0, 2 * SLOTS - 1)


class PowerCut(Exception):
    """Nothing of a transaction is left."""


class Protocol(RuleBasedStateMachine):
    """Up to JOBS jobs, SLOTS workers at once; the lives that were ended go on trying to work."""

    database: ClassVar[Database]

    def __init__(self) -> None:
        super().__init__()
        self.expected = Reference()
        self.order: list[str] = []  # job ids, by which a drawn number means a job
        self.slots: list[str] = []  # the live ones
        self.lives: list[str] = []  # all, the dead too
        self.claims: dict[str, list[tuple[str, int]]] = {}  # what each life believes that it holds
        self.tickets: list[tuple[list[str], bool]] = []
        self.ended: dict[str, Any] = {}  # rows of ended jobs, which may not change any more
        self.epoch_ms = 0

    @initialize()
    def begin(self) -> None:
        self._write(lambda tx: [tx.run(each) for each in statements.EMPTY])
        self.epoch_ms = self.database.now()
        self._write(lambda tx: feed.is_open(tx, CLASS, INTERACTIVE))
        for _ in range(SLOTS):
            self.slots.append(self._begin_life())
        self.accept(count=3, priority=5, wait_s=None, webhook=True, room=False, arrives=False)
        self.accept(count=3, priority=5, wait_s=50, webhook=False, room=False, arrives=False)

    # Clients

    @precondition(lambda self: len(self.order) < JOBS)
    @rule(count=st.integers(1, 3), priority=st.sampled_from([0, 5]), wait_s=st.sampled_from([None, None, 10, 50]),
          webhook=st.booleans(), room=st.booleans(), arrives=st.booleans())
    def accept(self, count: int, priority: int, wait_s: int | None, webhook: bool, room: bool, arrives: bool) -> None:
        """As the API does: an open lane with room gets a ticket, which may be lost; else the lane closes."""
        new = [NewJob(id=ids.new(ids.JOB), tenant=TENANT, network=NETWORK, hardware=CLASS, work=1.0, input=b"[1]",
                      priority=priority, deadline_s=wait_s, webhook=WEBHOOK if webhook else None)
               for _ in range(min(count, JOBS - len(self.order)))]

        def work(tx: Any) -> bool:
            is_open = feed.is_open(tx, CLASS, INTERACTIVE, to_close=not room)
            if is_open and not room:
                feed.close(tx, CLASS, INTERACTIVE)
            job.accept(tx, new, self.epoch_ms, ticketed={each.id for each in new} if is_open and room else ())
            return is_open

        was_open = self._write(work)
        assert was_open == self.expected.open
        ticketed = was_open and room
        self.expected.open = was_open and room
        now_s = self.expected.now_s
        for each in new:
            self.expected.accept(reference.Job(
                each.id, priority, webhook, None if wait_s is None else now_s + wait_s,
                now_s + reference.TICKET_S if ticketed else None))
        self.order += [each.id for each in new]
        if ticketed and arrives:
            self.tickets.append(([each.id for each in new], False))

    @rule(which=_one)
    def cancel(self, which: int) -> None:
        name = self._job(which)
        before = self._write(lambda tx: job.cancel(tx, TENANT, name))
        assert before == self.expected.cancel(self.expected.jobs[name])

    @rule(which=_one, steps=st.sampled_from([0, 3]))
    def retry(self, which: int, steps: int) -> None:
        name = self._job(which, "failed")
        if steps:
            self.time_passes(steps)
        before = self._write(lambda tx: job.retry(tx, TENANT, name))
        if before == "failed":
            self.ended.pop(name, None)
        assert before == self.expected.retry(self.expected.jobs[name])

    @rule(listens=st.booleans(), fans_out=st.booleans())
    def endpoint(self, listens: bool, fans_out: bool) -> None:
        """A tenant's endpoint comes or goes; deliveries are made of the events there are."""
        self._write(lambda tx: tx.run(statements.LISTEN, tenant=TENANT) if listens else tx.run(statements.MUTE))
        self.expected.endpoint = listens
        if fans_out:
            fan_out.fan_out(self.database, first_delay_s=0.0)

    # The broker

    @precondition(lambda self: self.tickets)
    @rule(which=_one, slot=_slot, begun=st.booleans(), again=st.booleans())
    def deliver(self, which: int, slot: int, begun: bool, again: bool) -> None:
        """A worker takes a ticket, which may be delivered again later."""
        names, alone = self.tickets[which % len(self.tickets)]
        if not again:
            self.tickets.pop(which % len(self.tickets))
        self._claim(self.slots[slot], names, begun=begun or alone, alone=alone)

    @precondition(lambda self: self.tickets)
    @rule(which=_one, all_of_them=st.booleans())
    def lose(self, which: int, all_of_them: bool) -> None:
        if all_of_them:
            self.tickets.clear()
        else:
            self.tickets.pop(which % len(self.tickets))

    # Workers: also those that were ended and do not know it yet

    @rule(life=_life, which=_some, begun=st.booleans(), alone=st.booleans())
    def claim(self, life: int, which: list[int], begun: bool, alone: bool) -> None:
        self._claim(self._life(life), [self._job(each, "waiting") for each in which], begun=begun, alone=alone)

    @rule(slot=_slot, which=_some)
    def claim_that_a_power_cut_takes_back(self, slot: int, which: list[int]) -> None:
        """Claims wait for no disk: the database may forget one that its worker, elsewhere, goes on with."""
        name, names, claimed = self.slots[slot], [self._job(each, "waiting") for each in which], []

        def work(tx: Any) -> None:
            claimed.extend(claim.claim(tx, names, incarnation=name, hardware=CLASS, begun=True))
            raise PowerCut

        with contextlib.suppress(PowerCut):
            self._write(work)
        self.claims[name] += [(each.id, each.attempt) for each in claimed]

    @rule(slot=_slot, which=_one, reason=st.sampled_from(["killed", "killed", "lost"]),
          times=st.sampled_from([1, 2, 3, 4] * 5 + [31]), beside=st.one_of(st.none(), _one))
    def die_of(self, slot: int, which: int, reason: str, times: int, beside: int | None) -> None:
        """A job kills its worker again and again; beside it is what that one held before, or claims ahead."""
        name = self._job(which, "waiting")
        for _ in range(times):
            if beside is not None:
                self._claim(self.slots[slot], [self._job(beside, "waiting")], begun=False, alone=False)
            self._claim(self.slots[slot], [name], begun=True, alone=True)
            self.end(slot, reason)

    @rule(slot=_slot, which=_some, states=st.sampled_from([["succeeded"], ["failed"], ["failed", "succeeded"]]),
          steps=st.sampled_from([0, 0, 3]))
    def run(self, slot: int, which: list[int], states: list[str], steps: int) -> None:
        """What load mostly produces: claimed, run, settled."""
        self._claim(self.slots[slot], [self._job(each, "waiting") for each in which], begun=True, alone=True)
        if self.claims[self.slots[slot]]:
            held = len(self.expected.held(self.slots[slot])) or 1
            self._settle(self.slots[slot], list(range(held)), [], states * DRAWN * 2, 0, steps)

    @precondition(lambda self: any(self.claims.values()))
    @rule(life=_life, which=_some, begin=_some, states=st.lists(
        st.sampled_from(["succeeded", "failed"]), min_size=DRAWN, max_size=DRAWN),
        off_by=st.sampled_from([0, 0, 0, 0, 1, -1]), steps=st.sampled_from([0, 0, 0, 3]))
    def settle(self, life: int, which: list[int], begin: list[int], states: list[str], off_by: int,
               steps: int) -> None:
        """Outcomes of what this life ever claimed, some of it no longer its own; perhaps after a long run."""
        self._settle(self._claimer(life), which, begin, states, off_by, steps)

    def _settle(self, name: str, which: list[int], begin: list[int], states: list[str], off_by: int,
                steps: int) -> None:
        if steps:
            self.time_passes(steps)
        claims = self._claims(name)
        chosen = dict(claims[each % len(claims)] for each in which)
        endings = [Ending(job_id, attempt + off_by, state)
                   for (job_id, attempt), state in zip(chosen.items(), states, strict=False)]
        begun = sorted({claims[each % len(claims)][0] for each in begin} - chosen.keys())
        settled = self._write(lambda tx: claim.settle(tx, [
            Outcome(each.id, each.attempt, each.state, output=b"{}" if each.state == "succeeded" else None,
                    error_code="inference_failed" if each.state == "failed" else None) for each in endings],
            incarnation=name, begin=begun))
        assert settled == self.expected.settle(name, endings, begun)

    @precondition(lambda self: any(self.claims.values()))
    @rule(life=_life, which=_some)
    def give_back(self, life: int, which: list[int]) -> None:
        name = self._claimer(life)
        claims = self._claims(name)
        names = [claims[each % len(claims)][0] for each in which]
        given = self._write(lambda tx: claim.give_back(tx, names, incarnation=name))
        assert given == self.expected.give_back(name, names)

    @rule(which=_some, marks=st.booleans())
    def mark(self, which: list[int], marks: bool) -> None:
        """Tickets made or given up for whatever jobs."""
        names = [self._job(each) for each in which]
        self._write(lambda tx: feed.mark(tx, names) if marks else claim.unmark(tx, names))
        (self.expected.mark if marks else self.expected.unmark)(names)

    # The ends of lives

    @rule(slot=_slot, reason=st.sampled_from(["killed", "killed", "lost", "exited"]))
    def end(self, slot: int, reason: str) -> None:
        """A worker dies, and another begins."""
        self._end(self.slots[slot], reason)
        self.slots[slot] = self._begin_life()

    @precondition(lambda self: len(self.lives) > SLOTS)
    @rule(slot=_slot, life=_life)
    def end_in_vain(self, slot: int, life: int) -> None:
        """Nobody ends twice, nor after a beat that whoever saw the beats stand still did not see."""
        dead = self._dead()
        self._end(dead[life % len(dead)], "killed")
        name = self.slots[slot]
        assert self._write(lambda tx: incarnation.beat(tx, name, ready=True, holding={}))
        assert self._write(lambda tx: incarnation.end(
            tx, name, "lost", max_attempts=reference.MAX_ATTEMPTS, beats=0)) is None

    @precondition(lambda self: len(self.lives) > SLOTS)
    @rule(life=_life, which=_some, begun=st.booleans())
    def claim_in_the_moment_of_its_end(self, life: int, which: list[int], begun: bool) -> None:
        dead = self._dead()
        name, names = dead[life % len(dead)], [self._job(each, "waiting") for each in which]
        reason, self.expected.lives[name] = self.expected.lives[name], None
        self._write(lambda tx: tx.run(statements.REVIVE, id=name))
        self._claim(name, names, begun=begun, alone=False)
        self._write(lambda tx: tx.run(statements.BURY, id=name))
        self.expected.lives[name] = reason

    @precondition(lambda self: self.expected.abandoned())
    @rule()
    def release_abandoned(self) -> None:
        def work(tx: Any) -> set[str]:
            found = incarnation.abandoned(tx)
            for each in found:
                assert not claim.release(tx, each, confirmed=False, max_attempts=reference.MAX_ATTEMPTS)
            return set(found)

        assert self._write(work) == self.expected.abandoned()
        for each in self.expected.abandoned():
            self.expected.release(each, confirmed=False)

    # Housekeeping

    @rule(steps=st.integers(1, 2))
    def time_passes(self, steps: int) -> None:
        self._write(lambda tx: tx.run(statements.PASS, ms=steps * STEP_S * 1000))
        self.expected.now_s += steps * STEP_S

    @rule()
    def expire(self) -> None:
        assert set(self._write(job.expire)) == self.expected.expire(1000)

    @rule(limit=st.integers(1, JOBS), arrives=st.booleans())
    def feed(self, limit: int, arrives: bool) -> None:
        """Pick, mark, commit, publish; suspects by themselves."""
        def work(tx: Any) -> list[feed.Waiting]:
            picked = turn.pick(tx, CLASS, limit=limit)
            feed.mark(tx, [each.entry.id for each in picked])
            suspects = [each.entry.id for each in picked if each.suspect]
            assert feed.companies(tx, suspects) == self.expected.companies(suspects)
            return picked

        picked = self._write(work)
        names = [each.entry.id for each in picked]
        assert names == [each.id for each in self.expected.pickable()][:limit]
        self.expected.mark(names)
        if arrives:
            self.tickets += [([each.entry.id], True) for each in picked if each.suspect]
            plain = [each.entry.id for each in picked if not each.suspect]
            self.tickets += [(plain, False)] if plain else []

    @rule(lost=st.booleans())
    def look_at_the_lane(self, lost: bool) -> None:
        """Open it if nothing waits without a ticket; where tickets were `lost`, forget them and close it."""
        if lost:
            self._write(lambda tx: (feed.clear_marks(tx, CLASS), feed.close(tx, CLASS, INTERACTIVE)))
            self.expected.clear_marks()
            self.expected.open = False
        else:
            is_open = self._write(lambda tx: feed.reopen(tx, CLASS, INTERACTIVE))
            self.expected.reopen()
            assert is_open == self.expected.open

    # What must hold after every step

    @invariant()
    def the_database_says_what_the_reference_says(self) -> None:
        if not self.slots:
            return
        with self.database.read() as tx:
            rows, results = tx.all(statements.ROWS), tx.all(statements.RESULTS)
            events, deliveries = tx.all(statements.EVENTS), tx.all(statements.DELIVERIES)
            lanes, left, abandoned = feed.states(tx), feed.left(tx, CLASS), incarnation.abandoned(tx)
            waiting, running = feed.waiting(tx), feed.running(tx)
            live = {each.id for each in incarnation.live(tx)}
            assert dict(tx.all(statements.SUSPECTS)) == self.expected.unconfirmed
        expected = self.expected
        assert [row[0] for row in rows] == sorted(self.order)
        for row in rows:
            each = expected.jobs[row[0]]
            assert row[1:] == (
                each.state, each.waiting, each.suspect, row[4], each.attempt, each.crashes, each.crashes_alone,
                each.holder, each.error, expected.marked(each), row[11], each.deadline_s is None,
                each.state not in reference.LIVE, each.priority), each
            if each.state in reference.LIVE:
                assert (row[4], row[11]) == (each.begun, expected.due(each)), each
            else:
                assert self.ended.setdefault(each.id, row[:10]) == row[:10], each
        assert len({row[0] for row in results}) == len(results)
        told: dict[str, list[str]] = {}
        for subject, kind in events:
            told.setdefault(subject, []).append(kind)
        expected.check(dict(results), told)
        assert all(row[3] == 1 for row in deliveries), deliveries
        assert lanes == [(CLASS, INTERACTIVE, expected.open)]
        assert left == bool(expected.pickable())
        assert set(abandoned) == expected.abandoned()
        assert live == {life for life, reason in expected.lives.items() if reason is None}
        assert sum(each.count for each in waiting) == sum(each.waiting for each in expected.jobs.values())
        assert sum(each.count for each in running) == sum(
            each.state == "running" and not each.waiting for each in expected.jobs.values())

    @invariant()
    def no_waiting_job_is_out_of_reach(self) -> None:
        """It has a mark that runs out, or the feeder finds it, or the sweep ends it."""
        if not self.slots:
            return
        picked = self._write(lambda tx: [each.entry.id for each in turn.pick(tx, CLASS, limit=2 * JOBS)])
        assert picked == [each.id for each in self.expected.pickable()]

    def _write(self, work: Any) -> Any:
        return self.database.write(work, durable=False)

    def _job(self, which: int, rather: str = "") -> str:
        """A drawn number's job: mostly one for which the step means something."""
        def fits(name: str) -> bool:
            each = self.expected.jobs[name]
            return each.state == rather or getattr(each, rather, False)

        apt = [name for name in self.order if fits(name)] if rather and which < DRAWN - 1 else []
        return (apt or self.order)[which % len(apt or self.order)]

    def _dead(self) -> list[str]:
        """Those first that ran something when they were lost."""
        dead = [each for each in self.lives if each not in self.slots]
        return sorted(dead, key=lambda each: each not in self.expected.unconfirmed)

    def _life(self, which: int) -> str:
        lives = self.slots + self._dead()[::-1]
        return lives[which % len(lives)]

    def _claimer(self, which: int) -> str:
        """A life that holds, or believes that it holds: the live ones first."""
        able = sorted((each for each in self.slots + self._dead() if self.claims[each]),
                      key=lambda each: not self.expected.held(each))
        return able[which % len(able)]

    def _claims(self, life: str) -> list[tuple[str, int]]:
        """What it believes that it holds: first what it does hold."""
        return sorted(self.claims[life], key=lambda each: (
            not self.expected.jobs[each[0]].held_by(life), self.expected.jobs[each[0]].attempt != each[1]))

    def _begin_life(self) -> str:
        name = ids.new(ids.INCARNATION)
        self._write(lambda tx: incarnation.begin(tx, name, kind=incarnation.WORKER, host="h", pid=1, hardware=CLASS,
                                                 lanes=INTERACTIVE))
        self.expected.lives[name] = None
        self.lives.append(name)
        self.claims[name] = []
        return name

    def _end(self, name: str, reason: str) -> None:
        parked = self._write(lambda tx: incarnation.end(tx, name, reason, max_attempts=reference.MAX_ATTEMPTS))
        assert parked == self.expected.end(name, reason)

    def _claim(self, life: str, names: list[str], *, begun: bool, alone: bool) -> None:
        taken = self._write(lambda tx: claim.claim(tx, names, incarnation=life, hardware=CLASS, begun=begun,
                                                   alone=alone))
        assert {each.id: each.attempt for each in taken} == self.expected.claim(life, names, begun=begun, alone=alone)
        assert len(taken) == len({each.id for each in taken})
        self.claims[life] += [(each.id, each.attempt) for each in taken]
