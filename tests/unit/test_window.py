"""How much may lie in the broker, and how jobs are packed into tickets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.contract import MAX_ENTRIES, Entry
from models.feed import Waiting
from workers.housekeeping.window import Limit, Window, pack

_jobs = st.lists(st.builds(
    lambda number, work, network, suspect: Waiting(Entry(f"job_{number}", work, 5, None, "t"), network, suspect),
    st.integers(0, 10**9), st.floats(0, 100), st.sampled_from(["a@1", "b@1"]), st.sampled_from([False] * 9 + [True]),
), max_size=300, unique_by=lambda job: job.entry.id)
_limits = st.builds(Limit, st.integers(1, 2048), st.floats(1, 1000))


def test_an_empty_queue_takes_a_batch_a_worker_and_a_ticket_without_any() -> None:
    assert Window().room(0, 3) == 3.0
    assert 0 < Window().room(0, 0) < 1e-6


def test_an_unknown_ticket_counts_as_a_batch() -> None:
    assert Window().room(1, 1) == 0.0
    assert Window().room(1, 0) == 0.0
    assert Window().room(1, 3) == 2.0


def test_known_tickets_count_as_what_they_hold() -> None:
    window = Window()
    window.published([0.25] * 8)
    assert window.room(2, 1) == 0.5
    assert window.room(4, 1) == 0.0


def test_a_sliver_of_room_waits_until_a_whole_ticket_fits() -> None:
    window = Window()
    window.published([0.4, 0.4])
    assert window.room(2, 1) == 0.0


@given(_jobs, _limits, st.floats(1e-9, 8))
def test_packing_keeps_the_rules_whatever_waits(jobs: list[Waiting], limit: Limit, room: float) -> None:
    packed = pack(jobs, lambda _: limit, room)
    by_id = {job.entry.id: job for job in jobs}
    seen = [entry.id for each in packed for entry in each.ticket.entries]
    assert len(seen) == len(set(seen))
    assert bool(packed) == bool(jobs)
    for each in packed:
        entries = each.ticket.entries
        assert 1 <= len(entries) <= MAX_ENTRIES
        assert {by_id[entry.id].network for entry in entries} == {each.ticket.network}
        if each.ticket.alone:
            assert len(entries) == 1
            assert by_id[entries[0].id].suspect
        else:
            assert not any(by_id[entry.id].suspect for entry in entries)
            if len(entries) > 1:
                assert len(entries) <= limit.items
                assert sum(entry.work for entry in entries) <= limit.work * (1 + 1e-6)
    taken = [index for index, job in enumerate(jobs) if job.entry.id in set(seen)]
    assert taken == list(range(len(taken)))  # a prefix: nobody is passed over


@pytest.mark.parametrize("items", [1, 49, 64, 1000])
def test_a_whole_batch_fits_however_its_shares_round(items: int) -> None:
    jobs = [Waiting(Entry(f"job_{n}", 1.0, 5, None, "t"), "a@1", False) for n in range(3000)]
    packed = pack(jobs, lambda _: Limit(items, float("inf")), 2.0)
    assert 2 * items <= sum(len(each.ticket.entries) for each in packed) < 2 * items + MAX_ENTRIES


def test_suspects_of_one_lost_life_share_tickets_up_to_their_number_and_no_others_join() -> None:
    def suspects(begin: int, count: int, company: tuple[str, int] | None) -> list[Waiting]:
        return [Waiting(Entry(f"job_{begin + n:03}", 1.0, 5, None, "t"), "a@1", suspect=True, company=company)
                for n in range(count)]

    jobs = [*suspects(0, 10, ("inc_a", 4)), *suspects(10, 3, ("inc_b", 4)), *suspects(13, 2, ("inc_c", 1)),
            *suspects(15, 2, None), Waiting(Entry("job_900", 1.0, 5, None, "t"), "a@1", suspect=False)]
    packed = pack(jobs, lambda _: Limit(64), 100.0)
    assert [(each.ticket.alone, len(each.ticket.entries)) for each in packed] == [
        (True, 4), (True, 4), (True, 2), (True, 3), (True, 1), (True, 1), (True, 1), (True, 1), (False, 1)]
