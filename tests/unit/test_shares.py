"""Fair shares between tenants, in estimated seconds of compute."""

from collections import Counter
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from models.contract import Entry
from models.feed import Waiting
from workers.housekeeping.shares import Shares

_numbers = count()


def _jobs(tenant: str, many: int, work: float = 1.0) -> list[Waiting]:
    return [Waiting(Entry(f"job_{next(_numbers):08}", work, 5, None, tenant), "n@1", suspect=False)
            for _ in range(many)]


def _cost(job: Waiting) -> float:
    return job.entry.work


def _merged(shares: Shares, queues: dict[str, list[Waiting]]) -> list[str]:
    shares.enter(queues)
    return [job.entry.tenant for job in shares.turn(_cost).merge(queues)]


def test_equal_tenants_take_turns() -> None:
    order = _merged(Shares(), {"a": _jobs("a", 3), "b": _jobs("b", 3)})
    assert order == ["a", "b"] * 3


def test_shares_are_of_compute_and_not_of_jobs() -> None:
    order = _merged(Shares(), {"long": _jobs("long", 50, 4.0), "short": _jobs("short", 50)})
    assert Counter(order[:25]) == {"long": 5, "short": 20}


def test_a_weight_of_three_gives_three_quarters() -> None:
    order = _merged(Shares({"a": 3.0}), {"a": _jobs("a", 60), "b": _jobs("b", 60)})
    assert abs(Counter(order[:40])["a"] - 30) <= 1


def test_who_comes_late_neither_waits_for_the_others_nor_catches_up() -> None:
    shares = Shares()
    others = {"a": _jobs("a", 200), "c": _jobs("c", 200)}
    shares.enter(others)
    shares.charge([*others["a"][:100], *others["c"][:100]], _cost)
    order = _merged(shares, {"a": others["a"][100:], "b": _jobs("b", 50), "c": others["c"][100:]})
    assert order.index("b") <= 2
    assert all(8 <= Counter(order[:30])[tenant] <= 12 for tenant in "abc")


def test_what_one_had_before_the_others_came_is_no_debt() -> None:
    shares = Shares()
    shares.enter(["a"])
    shares.charge(_jobs("a", 1000), _cost)
    order = _merged(shares, {"a": _jobs("a", 30), "b": _jobs("b", 30)})
    assert abs(Counter(order[:20])["a"] - 10) <= 1


def test_after_a_change_of_leaders_those_go_first_that_had_less() -> None:
    shares = Shares()
    shares.resume({"a": 5.0})
    assert _merged(shares, {"a": _jobs("a", 10), "b": _jobs("b", 10)})[:5] == ["b"] * 5


@given(st.dictionaries(st.sampled_from("abcdef"), st.lists(st.floats(0, 5), max_size=20), min_size=1),
       st.dictionaries(st.sampled_from("abcdef"), st.floats(0.1, 10)))
def test_each_keeps_its_own_order_and_the_seconds_given_stay_within_a_job_of_each_other(
        works: dict[str, list[float]], weights: dict[str, float]) -> None:
    queues = {tenant: [job for work in sizes for job in _jobs(tenant, 1, work)] for tenant, sizes in works.items()}
    shares = Shares(weights)
    shares.enter(queues)
    merged = shares.turn(_cost).merge(queues)
    left = {tenant: len(queue) for tenant, queue in queues.items() if queue}
    given_s = dict.fromkeys(queues, 0.0)
    for job in merged:
        tenant = job.entry.tenant
        behind = {each: given_s[each] for each in left}
        assert behind[tenant] <= min(behind.values()) + 1e-3  # always the one that has had the least
        given_s[tenant] += job.entry.work / weights.get(tenant, 1.0)
        left[tenant] -= 1
        if not left[tenant]:
            del left[tenant]
    for tenant, queue in queues.items():
        assert [job for job in merged if job.entry.tenant == tenant] == queue
