"""The database's clock as a worker knows it, whatever its own clock says."""

import time

import pytest

from tests import rows
from workers.lease import Lease


def test_a_wall_clock_that_is_set_does_not_move_deadlines(database, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = Lease(database, rows.worker(database), hardware="cpu", lanes=("interactive",), lease_s=30)
    assert lease.beat(ready=True, holding={})
    for offset_s in (0.0, 3600.0, -3600.0):
        wrong = time.time() + offset_s
        monkeypatch.setattr(time, "time", lambda wrong=wrong: wrong)
        assert abs(lease.now_ms() - database.now()) < 5000
