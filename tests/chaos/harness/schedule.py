"""Which faults a run injects, and when: a pure function of seed, database and duration."""

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

LEASE_S = 5.0  # of the runs: short enough that a frozen worker loses it within one
FIRST_S = 1.0  # the load has begun by then
QUIET_SHARE = 0.08  # the last part of a run is left to what was broken before
KILLS_PER_S = 1 / 6.0
OTHERS_PER_S = 1 / 4.5
LEAST = 4  # of kills, and of other faults, however short the run
PARTS = ("worker", "api", "housekeep")
KILLED = ("worker",) * 4 + ("api", "housekeep") * 2
CLOCK_S = (-3600.0, -45.0, 20.0, 3600.0)
POSTGRES_ONLY = ("database_fast", "database_immediate", "database_cut", "database_frozen")


@dataclass(frozen=True, slots=True)
class Fault:
    """`at_s` after the start, for `for_s` where it lasts. `target`: a part, or how a receiver behaves.

    `share`: which of several processes, 0 to 1. `value`: seconds of a clock's offset.
    """

    at_s: float
    kind: str
    target: str = ""
    for_s: float = 0.0
    share: float = 0.0
    value: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def schedule(seed: int, seconds: float, *, database: str) -> tuple[Fault, ...]:
    """The faults of a run, in order. The same arguments give the same faults."""
    chance = random.Random(f"{seed}/{database}/{seconds}")
    end_s = seconds * (1 - QUIET_SHARE)
    kills = _kills(chance, _moments(chance, KILLS_PER_S, end_s))
    kinds = _kinds(chance, database, len(moments := _moments(chance, OTHERS_PER_S, end_s)), seconds)
    others = [_other(chance, kind, at_s, end_s) for kind, at_s in zip(kinds, moments, strict=True)]
    return tuple(sorted((*kills, *others), key=lambda fault: fault.at_s))


def _moments(chance: random.Random, per_s: float, end_s: float) -> Sequence[float]:
    """One moment in each of equal stretches, so that no seed has only few."""
    count = max(LEAST, round(per_s * (end_s - FIRST_S)))
    stretch_s = (end_s - FIRST_S) / count
    return [round(FIRST_S + stretch_s * (at + chance.random()), 2) for at in range(count)]


def _kills(chance: random.Random, moments: Sequence[float]) -> list[Fault]:
    """Each part in its share, in an order of the seed's own; now and then `up` itself, and all with it."""
    targets: list[str] = []
    while len(targets) < len(moments):
        targets += chance.sample(KILLED, len(KILLED))
    return [Fault(at_s, "kill", "up" if at_s > 10 and chance.random() < 0.05 else target,
                  share=round(chance.random(), 3)) for at_s, target in zip(moments, targets, strict=False)]


def _kinds(chance: random.Random, database: str, count: int, seconds: float) -> list[str]:
    """Every kind in turn, in an order of the seed's own, until there are enough."""
    pool = ["freeze", "broker_kill", "broker_flush", "broker_frozen", "broker_cut", "disk_full", "clock",
            "tickets", "receiver", "receiver", "freeze"]
    if seconds >= 60:
        pool += ["poison", "freeze_long"]
        if chance.random() < 0.25:
            pool.append("broker_frozen_long")
    if database == "postgres":
        pool += POSTGRES_ONLY
    kinds: list[str] = []
    while len(kinds) < count:
        kinds += chance.sample(pool, len(pool))
    return kinds[:count]


def _other(chance: random.Random, kind: str, at_s: float, end_s: float) -> Fault:
    lasts = {"freeze": (0.5, 3.5), "freeze_long": (2 * LEASE_S, 2.5 * LEASE_S), "broker_kill": (0.2, 4.0),
             "broker_frozen": (1.0, 7.0), "broker_frozen_long": (31.0, 34.0), "disk_full": (1.0, 4.0),
             "clock": (4.0, 12.0), "receiver": (2.0, 8.0), "database_frozen": (1.0, 1.5 * LEASE_S)}
    for_s = round(chance.uniform(*lasts[kind]), 2) if kind in lasts else 0.0
    target, value = "", 0.0
    if kind in ("freeze", "clock"):
        target = chance.choice(PARTS)
    elif kind == "freeze_long":
        target = chance.choice(("worker", "worker", "housekeep"))
    elif kind == "receiver":
        target = chance.choice(("hang", "reset", "500", "redirect"))
    if kind == "clock":
        value = chance.choice(CLOCK_S)
    return Fault(at_s, kind, target, min(for_s, max(0.5, end_s - at_s)), round(chance.random(), 3), value)
