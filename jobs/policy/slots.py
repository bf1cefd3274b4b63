"""Which groups move when the number of slots changes. Pure: groups and sizes in, moves out.

Slots are numbered 0, 1, 2, ... without gaps, at every moment of a change that takes many epochs:
new slots begin in ascending order, and old ones end in descending order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from schemas.journal import Move, Prefix


def rearranged(
    groups: Iterable[tuple[Prefix, int]], sizes: Mapping[Prefix, int], slots: int
) -> list[Move]:
    """Moves that bring the groups to `slots` slots, in the order in which they must happen.

    A new slot takes its even share of the bytes from the fullest slots, larger groups first; the
    groups of a slot that ends go to the emptiest ones. `sizes`: bytes in state; a group that is
    not named has none. Raises ValueError when there are fewer groups than slots.
    """
    held: dict[int, list[Prefix]] = {}
    for group, slot in sorted(groups):
        held.setdefault(slot, []).append(group)
    number = sum(map(len, held.values()))
    if not 1 <= slots <= number:
        raise ValueError(f"slots must be between 1 and the {number} groups, got {slots}")
    moves: list[Move] = []
    old = set(held)

    def size(group: Prefix) -> int:
        return sizes.get(group, 0)

    def load(slot: int) -> tuple[int, int]:
        return sum(map(size, held[slot])), len(held[slot])

    def move(group: Prefix, source: int, target: int) -> None:
        held[source].remove(group)
        held.setdefault(target, []).append(group)
        moves.append(Move(group=group, to=target, bytes=size(group)))

    for source in range(max(held), slots - 1, -1):
        for group in sorted(held[source], key=lambda g: (-size(g), g)):
            move(group, source, min(range(slots), key=lambda s: (load(s), s)))
        del held[source]
    share = sum(load(s)[0] for s in held) / slots, number / slots
    for target in range(max(held) + 1, slots):
        held[target] = []
        while not held[target] or load(target) < share:
            donors = [s for s in held if s != target and len(held[s]) > 1]
            if not donors:
                break
            fullest = max(donors, key=lambda s: (load(s), -s))
            fitting = [g for g in held[fullest] if load(target)[0] + size(g) <= share[0]]
            if not fitting and held[target]:
                break
            candidates = fitting or held[fullest]
            best = max if fitting else min
            move(best(candidates, key=lambda g: (size(g), g)), fullest, target)
    # A later new slot may have taken a group from an earlier one: it moves once.
    last = {move.group: move for move in moves}
    return sorted(last.values(), key=lambda m: m.to) if slots > len(old) else moves
