"""When a breaker opens, for how long, what closes it, and when an endpoint is given up."""

import pytest

from models import breaker
from models.breaker import Breaker, Outcome, Rules

RULES = Rules(failures=5, pause_s=30.0, give_up_s=5 * 86_400.0)
BAD, GOOD = Outcome(ok=False), Outcome(ok=True)
NOW = 1_000_000_000


def run(state, outcomes, now=NOW):
    for outcome in outcomes:
        state = breaker.after(state, outcome, now, RULES)
    return state


def test_failures_in_a_row_open_it_and_a_success_between_does_not_count():
    assert run(Breaker(), [BAD] * 4).closed
    assert run(Breaker(), [BAD] * 4 + [GOOD] + [BAD] * 4).paused_until is None
    opened = run(Breaker(), [BAD] * 5)
    assert (opened.paused_until, opened.failures, opened.failing_since) == (NOW + 30_000, 5, NOW)


def test_what_was_under_way_when_it_opened_makes_the_pause_no_longer():
    opened = run(Breaker(), [BAD] * 5)
    late = run(opened, [BAD] * 3, NOW + 5_000)
    assert (late.paused_until, late.failures) == (opened.paused_until, 8)


def test_each_try_that_fails_doubles_the_pause_up_to_a_limit():
    state, pauses = run(Breaker(), [BAD] * 5), []
    for _ in range(8):
        state = run(state, [Outcome(ok=False, probe=True)])
        pauses.append((state.paused_until - NOW) / 1000)
    assert pauses == [60, 120, 240, 480, 960, 960, 960, 960]


def test_many_trips_do_not_overflow():
    state = Breaker(failures=5, failing_since=1, trips=10_000, open_until=1)
    assert run(state, [Outcome(ok=False, probe=True)]).paused_until == NOW + 960_000


@pytest.mark.parametrize("outcome", [GOOD, Outcome(ok=True, probe=True)])
def test_any_success_closes_it_and_leaves_a_mark_for_what_waits(outcome):
    closed = run(run(Breaker(), [BAD] * 5), [outcome])
    assert (closed.closed, closed.failures, closed.failing_since, closed.trips) == (True, 0, None, 0)
    assert closed.open_until == 0
    assert run(Breaker(failures=2, failing_since=1), [GOOD]) == Breaker()


def test_a_receiver_that_asks_for_time_gets_it_at_once_and_at_most_an_hour():
    assert run(Breaker(), [Outcome(ok=False, throttle_s=90.0)]).paused_until == NOW + 90_000
    assert run(Breaker(), [Outcome(ok=False, throttle_s=80_000.0)]).paused_until == NOW + 3_600_000
    longer = run(run(Breaker(), [Outcome(ok=False, throttle_s=90.0)]), [Outcome(ok=False, throttle_s=10.0)])
    assert longer.paused_until == NOW + 90_000


def test_it_is_given_up_after_days_of_nothing_but_failure():
    day_ms = 86_400_000
    first = run(Breaker(), [BAD] * 4)
    assert not breaker.given_up(first, NOW + 6 * day_ms, RULES)  # too few to judge
    later = run(first, [BAD], NOW + 4 * day_ms)
    assert not breaker.given_up(later, NOW + 4 * day_ms, RULES)
    assert breaker.given_up(later, NOW + 5 * day_ms, RULES)
    assert not breaker.given_up(run(later, [GOOD]), NOW + 9 * day_ms, RULES)
