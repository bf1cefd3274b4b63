"""Which groups move when the number of slots changes. Pure: groups and sizes in, moves out.

Slots are numbered 0, 1, 2, ... without gaps, at every moment of a change that takes many epochs:
new slots begin in ascending order, and old ones end in descending order.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterable, Mapping

from spillway_schemas.journal import Move, Prefix

Held = dict[int, list[tuple[int, Prefix]]]
"""Each slot's groups with their bytes, the smallest first."""


def rearranged(
    groups: Iterable[tuple[Prefix, int]], sizes: Mapping[Prefix, int], slots: int
) -> list[Move]:
    """Moves that bring the groups to `slots` slots, in the order in which they must happen.

    A new slot takes its even share of the bytes from the fullest slots, larger groups first; the
    groups of a slot that ends go to the emptiest ones. `sizes`: bytes in state; a group that is
    not named has none. Raises ValueError when there are fewer groups than slots.
    """
    owned = list(groups)
    held: Held = {slot: [] for slot in range(1 + max((slot for _, slot in owned), default=-1))}
    for group, slot in owned:
        held[slot].append((sizes.get(group, 0), group))
    number = sum(map(len, held.values()))
    if not 1 <= slots <= number:
        raise ValueError(f"slots must be between 1 and the {number} groups, got {slots}")
    for mine in held.values():
        mine.sort()
    if slots <= len(held):
        return _fewer(held, slots)
    # A later new slot may have taken a group from an earlier one: it moves once.
    last = {move.group: move for move in _more(held, slots, number)}
    return sorted(last.values(), key=lambda move: move.to)


def _bytes(mine: Iterable[tuple[int, Prefix]]) -> int:
    return sum(size for size, _ in mine)


def _fewer(held: Held, slots: int) -> list[Move]:
    moves = []
    emptiest = [(_bytes(held[s]), len(held[s]), s) for s in range(slots)]
    heapq.heapify(emptiest)
    for source in range(max(held), slots - 1, -1):
        for size, group in sorted(held[source], key=lambda each: (-each[0], each[1])):
            whole, count, to = emptiest[0]
            heapq.heapreplace(emptiest, (whole + size, count + 1, to))
            moves.append(Move(group=group, to=to, bytes=size))
    return moves


def _more(held: Held, slots: int, number: int) -> list[Move]:
    moves = []
    whole = {slot: _bytes(mine) for slot, mine in held.items()}
    share = sum(whole.values()) / slots, number / slots
    fullest = [(-whole[s], -len(held[s]), s) for s in held]
    heapq.heapify(fullest)
    for target in range(max(held) + 1, slots):
        got: list[tuple[int, Prefix]] = []
        whole[target] = 0
        while not got or (whole[target], len(got)) < share:
            while fullest and len(held[fullest[0][2]]) < 2:
                heapq.heappop(fullest)
            if not fullest:
                break
            donor = fullest[0][2]
            mine = held[donor]
            # The largest that fits into the share; the smallest where a slot has nothing yet.
            room = share[0] - whole[target]
            fitting = bisect.bisect_right(mine, room, key=lambda each: each[0])
            if not fitting and got:
                break
            size, group = mine.pop(max(fitting - 1, 0))
            got.append((size, group))
            whole[target] += size
            whole[donor] -= size
            heapq.heapreplace(fullest, (-whole[donor], -len(mine), donor))
            moves.append(Move(group=group, to=target, bytes=size))
        held[target] = sorted(got)
        heapq.heappush(fullest, (-whole[target], -len(got), target))
    return moves
