"""Who may be sent to next, so that receivers that hang don't hold up the others. Pure: times are passed in.

A send that is waited for costs a thread and nothing else, so there are many; what counts is that there is
always one for a receiver that answers. Three kinds: *proven* (its last answer was prompt), *unknown* (no
answer seen by this process) and *slow*. Only the proven may use the last threads; the slow share a few.
"""

from collections import Counter, OrderedDict
from dataclasses import dataclass

THREADS = 128
RESERVED = 32  # for the proven alone
YOUNG = 48  # sends within their first seconds: these are the ones that use the processor
SLOW = 32  # to receivers that are known to be slow
PER_RECEIVER = 4
SLOW_S = 2.0
REMEMBERED = 10_000  # receivers


@dataclass(frozen=True, slots=True)
class _Send:
    receiver: str
    began: float
    slow: bool


@dataclass(frozen=True, slots=True)
class _Seen:
    prompt: bool
    ok: bool


class Rooms:
    """The sends under way, by key, and what is known of receivers. For one thread."""

    def __init__(self) -> None:
        self._sends: dict[str, _Send] = {}
        self._seen: OrderedDict[str, _Seen] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sends)

    def begin(self, key: str, receiver: str, now: float) -> None:
        seen = self._seen.get(receiver)
        self._sends[key] = _Send(receiver, now, seen is not None and not seen.prompt)

    def end(self, key: str, now: float, *, ok: bool) -> None:
        send = self._sends.pop(key)
        self._seen[send.receiver] = _Seen(now - send.began < SLOW_S, ok)
        self._seen.move_to_end(send.receiver)
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)

    def booking(self, now: float) -> "Booking":
        """What may start now; a transaction that is tried again takes a new one."""
        sends = self._sends.values()
        slow = sum(send.slow for send in sends)
        young = sum(not send.slow and now - send.began < SLOW_S for send in sends)
        late = {send.receiver for send in sends if now - send.began >= SLOW_S}
        return Booking(Counter(send.receiver for send in sends), self._seen, late, slow=slow, young=young)


class Booking:
    """Counts on from what is under way with what is being chosen."""

    def __init__(self, active: Counter[str], seen: "OrderedDict[str, _Seen]", late: set[str], *, slow: int,
                 young: int) -> None:
        self._active = active
        self._seen = seen
        self._late = late
        self._total = active.total()
        self._slow = slow
        self._young = young

    @property
    def room(self) -> int:
        """How many sends may start at most."""
        return THREADS - self._total

    def _limit(self, receiver: str) -> int:
        seen = self._seen.get(receiver)
        if seen is None:
            return 1
        if seen.prompt:
            # One of its sends hangs: more of them wait until it is known what of.
            return self._active[receiver] if receiver in self._late else PER_RECEIVER
        return PER_RECEIVER if seen.ok else 1

    def busy(self) -> list[str]:
        """The receivers that get no more now, whatever else is free."""
        return sorted(name for name, count in self._active.items() if count >= self._limit(name))

    def admits(self, receiver: str) -> bool:
        """Whether one more may start to this receiver; if so, it is counted."""
        seen = self._seen.get(receiver)
        slow = seen is not None and not seen.prompt
        free = THREADS - self._total - (0 if seen is not None and seen.prompt else RESERVED)
        if free <= 0 or self._active[receiver] >= self._limit(receiver):
            return False
        if self._slow >= SLOW if slow else self._young >= YOUNG:
            return False
        self._active[receiver] += 1
        self._total += 1
        self._slow += slow
        self._young += not slow
        return True
