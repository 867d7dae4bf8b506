"""A few hundred mutated requests against the whole stack; `python -m tests.fuzz` is the long form."""

import pytest

from tests.fuzz import __main__ as fuzz

HANG_S = 20.0  # a hang, not a slow machine


def test_no_request_breaks_the_service_or_the_requests_beside_it() -> None:
    report = fuzz.fuzz("sqlite", requests=250, seed=3, hang_s=HANG_S, share=0)
    assert report["violations"] == []
    assert report["good"]


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_no_request_breaks_the_service_over_a_long_time(database: str) -> None:
    report = fuzz.fuzz(database, requests=fuzz.REQUESTS, seed=1, hang_s=HANG_S)
    assert report["violations"] == []
