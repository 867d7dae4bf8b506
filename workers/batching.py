"""Cutting work into batches by cost, shape and length (pure).

The cost of a batch is the sum of its works, or items x longest where the task pads to the longest item.
"""

import math
from collections.abc import Hashable, Sequence

from workers.tasks.base import Item


def cost(works: Sequence[float], *, padded: bool) -> float:
    """What a batch of these items costs."""
    if not works:
        return 0.0
    return len(works) * max(works) if padded else math.fsum(works)


def prefix(works: Sequence[float], *, max_items: int, max_work: float) -> int:
    """How many of these items, taken in order, make one batch: at least one."""
    total = 0.0
    for count, work in enumerate(works[:max_items]):
        total += work
        if total > max_work and count:
            return count
    return min(len(works), max_items)


def around(works: Sequence[float], must: int, *, max_items: int, max_work: float) -> list[int]:
    """The padded batch with the most real work in it that holds item `must`: indices, shortest item first.

    Sorted by length, neighbours waste the least padding; `must` is the item whose turn it is.
    """
    order = sorted(range(len(works)), key=works.__getitem__)
    place = order.index(must)
    sums = [0.0]
    for index in order:
        sums.append(sums[-1] + works[index])
    best, best_work = (place, place + 1), -1.0
    for last in range(place, len(order)):
        longest = works[order[last]]
        room = max_items if longest <= 0 else int(min(max_items, max_work // longest))
        first = max(0, last + 1 - max(room, 1))
        if first > place:
            break  # longer items would push out the one that must be in it
        if sums[last + 1] - sums[first] > best_work:
            best, best_work = (first, last + 1), sums[last + 1] - sums[first]
    return order[best[0]:best[1]]


def runs(items: Sequence[Item], *, padded: bool, max_items: int, max_work: float) -> list[list[int]]:
    """Decoded items as runs on the device: indices that share a key, each run within the limits.

    An item above the work limit runs by itself.
    """
    groups: dict[Hashable, list[int]] = {}
    for index, item in enumerate(items):
        groups.setdefault(item.key, []).append(index)
    out: list[list[int]] = []
    for group in groups.values():
        if padded:
            group.sort(key=lambda index: items[index].work)
        out.extend(_cut(group, items, padded=padded, max_items=max_items, max_work=max_work))
    return out


def _cut(group: list[int], items: Sequence[Item], *, padded: bool, max_items: int,
         max_work: float) -> list[list[int]]:
    out: list[list[int]] = []
    current: list[int] = []
    total = 0.0
    for index in group:
        work = items[index].work
        after = (len(current) + 1) * work if padded else total + work  # sorted: the last one is the longest
        if current and (len(current) >= max_items or after > max_work):
            out.append(current)
            current, after = [], work
        current.append(index)
        total = after
    out.append(current)
    return out
