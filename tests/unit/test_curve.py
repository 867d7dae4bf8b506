import random

import pytest

from workers.curve import BATCH_S, Curve


def learned(seconds, works, *, noise=0.0):
    rng = random.Random(1)
    curve = Curve()
    for _ in range(8):
        for work in works:
            curve.observe(work, seconds(work) * (1 + noise * rng.uniform(-1, 1)))
    return curve


def test_the_line_is_found_through_noise():
    curve = learned(lambda work: 0.004 + 0.0001 * work, [2**n for n in range(11)], noise=0.05)
    assert curve.overhead_s == pytest.approx(0.004, rel=0.15)
    assert curve.per_work_s == pytest.approx(0.0001, rel=0.15)
    assert curve.predict(500) == pytest.approx(0.054, rel=0.15)


def test_a_load_of_one_size_does_not_unlearn_the_slope():
    curve = learned(lambda work: 0.004 + 0.0001 * work, [2**n for n in range(11)])
    for _ in range(2000):
        curve.observe(64, 0.004 + 0.0001 * 64)
    assert curve.overhead_s == pytest.approx(0.004, rel=0.1)
    assert curve.per_work_s == pytest.approx(0.0001, rel=0.1)


def test_a_device_that_slowed_down_is_noticed():
    curve = learned(lambda work: 0.0001 * work, [64, 128, 256])
    for _ in range(300):
        for work in (64, 128, 256):
            curve.observe(work, 0.0003 * work)
    assert curve.predict(200) == pytest.approx(0.06, rel=0.1)


def test_one_stopped_process_teaches_little():
    curve = learned(lambda work: 0.0001 * work, [64, 128, 256])
    curve.observe(128, 60.0)
    assert curve.predict(128) < 0.0128 * 2


def test_where_batching_gains_nothing_the_limit_stays_small():
    # A sentence encoder on a CPU: no gain above some 64 tokens, and slower above 512.
    def seconds(work):
        return 0.002 + 0.00015 * work * (1.5 if work > 512 else 1.0)
    curve = learned(seconds, [32, 64, 128, 256, 512, 1024])
    assert 128 <= curve.limit() <= 1024


def test_where_batching_gains_much_the_limit_grows_with_what_was_tried():
    works = [30 * 2**n for n in range(8)]
    curve = learned(lambda work: 0.002 + 1e-7 * work, works)
    assert curve.limit() > works[-1]


def test_no_batch_takes_longer_than_a_quarter_second():
    curve = learned(lambda work: 0.05 + 0.001 * work, [1, 2, 4, 8, 16, 32, 64, 128])
    assert curve.predict(curve.limit()) <= BATCH_S + 1e-9


def test_one_item_above_the_time_limit_runs_by_itself():
    curve = learned(lambda work: work, [1.0])
    assert curve.limit() == 1.0


def test_what_ran_out_of_memory_is_never_tried_again():
    curve = learned(lambda work: 0.002 + 1e-7 * work, [2**n for n in range(12)])
    curve.halve(512)
    for _ in range(50):
        curve.observe(256, 0.002)
    assert curve.limit() <= 256


def test_an_earlier_process_s_rate_is_a_start():
    curve = Curve()
    curve.seed(0.002, 0.0001, 400)
    assert curve.predict(100) == pytest.approx(0.012, rel=0.01)
    assert 200 <= curve.limit() <= 1024
