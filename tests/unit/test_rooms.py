"""Who may be sent to next while others hang."""

from workers.housekeeping.rooms import PER_RECEIVER, RESERVED, SLOW, SLOW_S, THREADS, YOUNG, Rooms


def fill(rooms, names, now, *, times=1):
    """Start what is admitted; how many of each."""
    booking = rooms.booking(now)
    started = {}
    for name in names:
        for _ in range(times):
            if booking.admits(name):
                started[name] = started.get(name, 0) + 1
                rooms.begin(f"{name}-{now}-{started[name]}", name, now)
    return started


def prove(rooms, name, now):
    rooms.begin(f"{name}-first", name, now)
    rooms.end(f"{name}-first", now + 0.1, ok=True)


def test_an_unknown_receiver_gets_one_and_a_prompt_one_a_few():
    rooms = Rooms()
    assert fill(rooms, ["new"], 0.0, times=9) == {"new": 1}
    prove(rooms, "known", 0.0)
    assert fill(rooms, ["known"], 1.0, times=9) == {"known": PER_RECEIVER}
    assert rooms.booking(1.0).busy() == ["known", "new"]


def test_a_receiver_that_begins_to_hang_gets_no_more():
    rooms = Rooms()
    prove(rooms, "known", 0.0)
    assert fill(rooms, ["known"], 1.0) == {"known": 1}
    assert fill(rooms, ["known"], 1.0 + SLOW_S) == {}
    assert "known" in rooms.booking(1.0 + SLOW_S).busy()


def test_a_slow_receiver_that_answers_keeps_its_few_and_one_that_fails_gets_one():
    rooms = Rooms()
    for name, ok in (("slow", True), ("dead", False)):
        rooms.begin(name, name, 0.0)
        rooms.end(name, SLOW_S + 1, ok=ok)
    assert fill(rooms, ["slow", "dead"], 10.0, times=9) == {"slow": PER_RECEIVER, "dead": 1}


def test_hundreds_that_hang_leave_room_for_one_that_answers():
    rooms = Rooms()
    prove(rooms, "good", 0.0)
    hanging = [f"bad{number}" for number in range(500)]
    now, started = 0.0, 0
    for _ in range(20):
        batch = fill(rooms, [name for name in hanging if f"{name}" not in rooms.booking(now).busy()], now)
        started += len(batch)
        now += SLOW_S
        assert len(batch) <= YOUNG
        assert len(rooms) <= THREADS - RESERVED
        assert rooms.booking(now).admits("good")
    assert started == THREADS - RESERVED


def test_receivers_known_to_be_slow_share_a_part():
    rooms = Rooms()
    names = [f"slow{number}" for number in range(100)]
    for name in names:
        rooms.begin(name, name, 0.0)
        rooms.end(name, 15.0, ok=False)
    assert len(fill(rooms, names, 20.0)) == SLOW
    assert fill(rooms, ["new"], 20.0) == {"new": 1}


def test_what_is_only_booked_takes_no_room():
    rooms = Rooms()
    assert rooms.booking(0.0).admits("a")
    assert rooms.booking(0.0).admits("a")
    assert len(rooms) == 0
