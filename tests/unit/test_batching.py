import math

from hypothesis import given
from hypothesis import strategies as st

from workers import batching
from workers.tasks.base import Item

WORKS = st.lists(st.floats(0.5, 600), min_size=1, max_size=60)


def test_cost_counts_padding_where_there_is_padding():
    assert batching.cost([1, 2, 6], padded=False) == 9
    assert batching.cost([1, 2, 6], padded=True) == 18
    assert batching.cost([], padded=True) == 0


@given(WORKS, st.integers(1, 20), st.floats(1, 1000))
def test_a_prefix_is_as_long_as_the_limits_allow(works, max_items, max_work):
    count = batching.prefix(works, max_items=max_items, max_work=max_work)
    assert 1 <= count <= min(len(works), max_items)
    assert count == 1 or math.fsum(works[:count]) <= max_work * (1 + 1e-9)
    if count < min(len(works), max_items):
        assert math.fsum(works[:count + 1]) > max_work * (1 - 1e-9)


@given(WORKS, st.data(), st.integers(1, 20), st.floats(1, 1000))
def test_a_padded_batch_holds_the_one_whose_turn_it_is(works, data, max_items, max_work):
    must = data.draw(st.integers(0, len(works) - 1))
    chosen = batching.around(works, must, max_items=max_items, max_work=max_work)
    assert must in chosen
    assert len(set(chosen)) == len(chosen) <= max_items
    assert len(chosen) == 1 or batching.cost([works[at] for at in chosen], padded=True) <= max_work * (1 + 1e-9)


def test_neighbours_of_like_length_are_chosen_not_those_that_came_next():
    works = [10.0, 100.0, 11.0, 100.0, 9.0, 100.0, 10.0]
    assert sorted(batching.around(works, 0, max_items=8, max_work=60)) == [0, 2, 4, 6]


@given(st.lists(st.tuples(st.floats(0.5, 600), st.sampled_from("ab")), max_size=60), st.booleans(),
       st.integers(1, 20), st.floats(1, 1000))
def test_runs_keep_every_item_once_and_never_mix_keys(given_items, padded, max_items, max_work):
    items = [Item(None, work, key) for work, key in given_items]
    runs = batching.runs(items, padded=padded, max_items=max_items, max_work=max_work)
    assert sorted(at for run in runs for at in run) == list(range(len(items)))
    for run in runs:
        assert len({items[at].key for at in run}) == 1
        assert len(run) <= max_items
        assert len(run) == 1 or batching.cost([items[at].work for at in run], padded=padded) <= max_work * (1 + 1e-9)
