import random

from models import contract
from workers.scheduler import Profile, Scheduler

CHEAP = Profile(max_items=4, max_work=1e9)


class Buffer:
    """A scheduler with a clock in hand."""

    def __init__(self, **profiles):
        self.profiles = {name.replace("_", "@"): profile for name, profile in profiles.items()}
        self.scheduler = Scheduler()
        self.count = 0

    def add(self, network, *entries, alone=False, lane=contract.INTERACTIVE, at_s=0.0):
        rows = []
        for given in entries:
            self.count += 1
            rows.append(contract.Entry(given.get("id", f"job_{self.count:03}"), given.get("work", 1.0),
                                       given.get("priority", 5), given.get("deadline_at"), "default"))
        self.scheduler.add(contract.Ticket(network, lane, rows, alone), f"ticket {self.count}", at_s)
        return [row.id for row in rows]

    def take(self, *, only_full=False, now_s=0.0, now_ms=0):
        batch = self.scheduler.take(self.profiles.get, now_s=now_s, now_ms=now_ms, only_full=only_full)
        return None if batch is None else batch.ids

    def hungry(self, refused=()):
        return self.scheduler.hungry(self.profiles.get, lambda name: name in refused)


def test_an_idle_device_runs_what_is_there():
    buffer = Buffer(a_1=CHEAP)
    ids = buffer.add("a@1", {})
    assert buffer.take() == ids
    assert buffer.take() is None


def test_a_busy_device_is_given_full_batches_only():
    buffer = Buffer(a_1=CHEAP)
    ids = buffer.add("a@1", {}, {}, {})
    assert buffer.take(only_full=True) is None
    assert not buffer.scheduler.ready(buffer.profiles.get, only_full=True)
    ids += buffer.add("a@1", {})
    assert buffer.scheduler.ready(buffer.profiles.get, only_full=True)
    assert buffer.take(only_full=True) == ids


def test_work_fills_a_batch_as_well_as_a_count():
    buffer = Buffer(a_1=Profile(max_items=100, max_work=10))
    ids = buffer.add("a@1", *[{"work": 4.0}] * 5)
    assert buffer.take(only_full=True) == ids[:2]
    assert buffer.take(only_full=True) == ids[2:4]
    assert buffer.take(only_full=True) is None
    assert buffer.take() == ids[4:]


def test_priority_goes_before_deadline_and_deadline_before_age():
    buffer = Buffer(a_1=Profile(max_items=1, max_work=1e9))
    old, due_late, due_soon, urgent = buffer.add(
        "a@1", {}, {"deadline_at": 9000}, {"deadline_at": 8000}, {"priority": 0})
    assert [buffer.take() for _ in range(4)] == [[urgent], [due_soon], [due_late], [old]]


def test_the_most_urgent_network_goes_first_and_batches_hold_one_network():
    buffer = Buffer(a_1=CHEAP, b_1=CHEAP)
    first = buffer.add("a@1", {}, {})
    urgent = buffer.add("b@1", {"priority": 1})
    assert buffer.take() == urgent
    assert buffer.take() == first


def test_interactive_work_goes_before_bulk_work():
    buffer = Buffer(a_1=CHEAP)
    bulk = buffer.add("a@1", {"priority": 0}, {}, {}, {}, lane=contract.BULK)
    single = buffer.add("a@1", {"priority": 9})
    assert buffer.take() == [*single, *bulk[:3]]


def test_a_suspect_waits_until_nothing_else_is_claimed_and_runs_by_itself():
    buffer = Buffer(a_1=CHEAP)
    suspect = buffer.add("a@1", {"id": "job_000"}, alone=True)
    others = buffer.add("a@1", {}, {}, {}, {})
    assert buffer.take(only_full=True) is None  # nothing overtakes it either
    assert buffer.take() == suspect
    assert buffer.take() == others


def test_expired_entries_take_no_place():
    buffer = Buffer(a_1=CHEAP)
    late, alive = buffer.add("a@1", {"deadline_at": 1000}, {"deadline_at": 3000})
    assert buffer.take(now_ms=2000) == [alive]
    assert [each.entry.id for each in buffer.scheduler.expired] == [late]


def test_what_can_not_be_met_is_dropped_in_a_crowd_and_tried_when_idle():
    profile = Profile(max_items=2, max_work=1e9, overhead_s=1.0)
    buffer = Buffer(a_1=profile)
    tight = buffer.add("a@1", {"deadline_at": 500})
    assert buffer.take(now_ms=0) == tight
    tight = buffer.add("a@1", {"deadline_at": 500})
    others = buffer.add("a@1", {}, {})
    assert buffer.take(now_ms=0) == others
    assert [each.entry.id for each in buffer.scheduler.expired] == tight


def test_a_wait_window_applies_only_where_it_is_asked_for():
    buffer = Buffer(a_1=Profile(max_items=4, max_work=1e9, max_delay_s=0.02), b_1=CHEAP)
    waits = buffer.add("a@1", {}, at_s=1.0)
    assert buffer.take(now_s=1.0) is None
    assert buffer.scheduler.wake_s == 1.02
    other = buffer.add("b@1", {"priority": 9}, at_s=1.0)
    assert buffer.take(now_s=1.01) == other
    assert buffer.take(now_s=1.02) == waits


def test_entries_of_an_unloaded_network_wait_without_keeping_others_out():
    buffer = Buffer(b_1=CHEAP)
    buffer.add("a@1", {"priority": 0})
    other = buffer.add("b@1", {})
    assert buffer.take() == other
    assert buffer.take() is None
    assert buffer.scheduler.networks() == {"a@1"}


def test_the_buffer_holds_two_short_batches_or_one_long_one():
    buffer = Buffer(a_1=CHEAP)
    assert buffer.hungry()
    buffer.add("a@1", *[{}] * 7)
    assert buffer.hungry()
    buffer.add("a@1", {})
    assert not buffer.hungry()
    slow = Buffer(a_1=Profile(max_items=4, max_work=1e9, overhead_s=0.2))
    slow.add("a@1", *[{}] * 3)
    assert slow.hungry()
    slow.add("a@1", {})
    assert not slow.hungry()


def test_what_is_loading_or_refused_leaves_room_for_others():
    buffer = Buffer()
    buffer.add("a@1", *[{}] * 64)
    assert buffer.hungry()
    buffer.profiles["b@1"] = CHEAP
    buffer.add("b@1", *[{}] * 4)
    assert not buffer.hungry()
    assert buffer.hungry(refused=["a@1"])


def test_two_tickets_for_one_job_make_one_id():
    buffer = Buffer(a_1=CHEAP)
    buffer.add("a@1", {"id": "job_x"})
    buffer.add("a@1", {"id": "job_x"})
    assert buffer.take() == ["job_x"]


def test_put_back_entries_come_again_in_their_order():
    buffer = Buffer(a_1=CHEAP)
    ids = buffer.add("a@1", *[{}] * 3)
    batch = buffer.scheduler.take(buffer.profiles.get, now_s=0, now_ms=0, only_full=False)
    later = buffer.add("a@1", {})
    buffer.scheduler.put_back(batch.pending)
    assert buffer.take() == ids + later


def test_removing_leaves_the_rest():
    buffer = Buffer(a_1=CHEAP, b_1=CHEAP)
    buffer.add("a@1", {}, {})
    kept = buffer.add("b@1", {})
    assert len(buffer.scheduler.remove(lambda each: each.network == "a@1")) == 2
    assert len(buffer.scheduler) == 1
    assert buffer.take() == kept


def test_padded_batches_waste_less_than_arrival_order_and_starve_nobody():
    rng = random.Random(3)
    profile = Profile(max_items=64, max_work=400, padded=True)
    buffer = Buffer(a_1=profile)
    lengths = {}
    for _ in range(6):
        entries = [{"work": float(rng.choice([8, 16, 30, 100, 200]))} for _ in range(40)]
        for name, entry in zip(buffer.add("a@1", *entries), entries, strict=True):
            lengths[name] = entry["work"]
    padded = taken = 0
    waiting = sorted(lengths)
    while (ids := buffer.take()) is not None:
        assert waiting[0] in ids  # the oldest is in each batch
        waiting = [each for each in waiting if each not in ids]
        padded += len(ids) * max(lengths[each] for each in ids)
        taken += len(ids)
    assert taken == len(lengths)
    assert padded < 1.3 * sum(lengths.values())


def test_suspects_of_one_ticket_run_together_and_with_nobody_else():
    buffer = Buffer(a_1=CHEAP)
    first, second = buffer.add("a@1", *[{}] * 6, alone=True), buffer.add("a@1", {}, alone=True)
    others = buffer.add("a@1", {}, {})
    assert buffer.take(only_full=True) is None
    assert buffer.take() == first[:4]  # one batch of its network
    assert buffer.take() == first[4:]
    assert buffer.take() == second
    assert buffer.take() == others


def test_a_ticket_of_suspects_counts_as_one_batch_towards_hunger():
    buffer = Buffer(a_1=CHEAP)
    buffer.add("a@1", *[{}] * 6, alone=True)
    assert buffer.hungry()
    buffer.add("a@1", {}, alone=True)
    assert not buffer.hungry()
