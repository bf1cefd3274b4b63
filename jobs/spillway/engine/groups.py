"""Partition groups: prefixes of the key hash, and which slot owns each.

Invariant: the prefixes of a `GroupMap` cover every hash exactly once. Depths may differ
(extendible hashing: a hot group is split by one more bit), so a group is found by binary search
in the sorted starts, or by a shift when all depths are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from spillway_schemas.journal import HASH_BITS, Prefix

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
Bool = npt.NDArray[np.bool_]


class GroupMap:
    """The assignment: groups in hash order, each with its slot. Immutable, picklable.

    `prefixes` list[Prefix] (g,), `starts` uint64 (g,) ascending, `slots` int32 (g,).
    """

    def __init__(self, assignment: Iterable[tuple[Prefix, int]]) -> None:
        """Take (prefix, slot) pairs in any order.

        Raises ValueError when the prefixes do not cover every hash exactly once.
        """
        pairs = sorted((Prefix(*prefix), slot) for prefix, slot in assignment)
        pairs.sort(key=lambda pair: pair[0].lo)
        reached = 0
        for prefix, _ in pairs:
            if not (0 <= prefix.depth <= HASH_BITS and 0 <= prefix.value < 1 << prefix.depth):
                raise ValueError(f"{prefix} is not a prefix of a {HASH_BITS}-bit hash")
            if prefix.lo != reached:
                what = "twice" if prefix.lo < reached else "by no group"
                raise ValueError(f"hashes from {min(reached, prefix.lo):#x} are covered {what}")
            reached = prefix.hi
        if reached != 1 << HASH_BITS:
            raise ValueError(f"hashes from {reached:#x} are covered by no group")
        self.prefixes: list[Prefix] = [prefix for prefix, _ in pairs]
        self.starts: U64 = np.array([p.lo for p in self.prefixes], dtype=np.uint64)
        self.slots: I32 = np.array([slot for _, slot in pairs], dtype=np.int32)

    @classmethod
    def initial(cls, groups: int, slots: int, shares: Sequence[float] = ()) -> GroupMap:
        """`groups` equal groups (a power of two) in contiguous shares over `slots` slots.

        `shares`: each slot's weight; none: all alike. Every slot gets a group at least.
        """
        depth = groups.bit_length() - 1
        if groups < 1 or groups != 1 << depth:
            raise ValueError(f"the number of groups must be a power of two, got {groups}")
        if not 1 <= slots <= groups:
            raise ValueError(f"slots must be between 1 and the {groups} groups, got {slots}")
        if not shares:
            return cls((Prefix(depth, v), v * slots // groups) for v in range(groups))
        if len(shares) != slots or min(shares) <= 0:
            raise ValueError(f"{slots} slots need as many positive shares, got {list(shares)}")
        ends = np.round(np.cumsum(shares) / np.sum(shares) * groups).astype(np.int64)
        # Each slot ends a group further than the one before, and leaves one for each after it.
        steps = np.arange(slots)
        ends = np.maximum.accumulate(np.maximum(ends - steps, 1)) + steps
        ends = np.minimum(ends, groups - steps[::-1])
        owner = np.searchsorted(ends, np.arange(groups), side="right").tolist()
        return cls((Prefix(depth, v), slot) for v, slot in enumerate(owner))

    @cached_property
    def depths(self) -> I64:
        """Depth of each group's prefix, int64 (g,)."""
        return np.array([p.depth for p in self.prefixes], dtype=np.int64)

    @cached_property
    def values(self) -> U64:
        """The number that each group's first bits are, uint64 (g,)."""
        return np.array([p.value for p in self.prefixes], dtype=np.uint64)

    def __len__(self) -> int:
        return len(self.prefixes)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, GroupMap) and self.assignment() == other.assignment()
        )

    def __hash__(self) -> int:
        return hash(tuple(self.assignment()))

    def assignment(self) -> list[tuple[Prefix, int]]:
        """The pairs in hash order, as the journal keeps them."""
        return list(zip(self.prefixes, self.slots.tolist(), strict=True))

    @cached_property
    def _uniform_depth(self) -> int:
        depths = {p.depth for p in self.prefixes}
        return depths.pop() if len(depths) == 1 else -1

    def group_of(self, hashes: U64) -> I64:
        """Index of each hash's group, int64 (n,)."""
        depth = self._uniform_depth
        if depth == 0:
            return np.zeros(len(hashes), dtype=np.int64)
        if depth > 0:
            return (hashes >> np.uint64(HASH_BITS - depth)).astype(np.int64)
        return np.searchsorted(self.starts, hashes, side="right") - 1

    def slot_of(self, hashes: U64) -> I32:
        """Slot of each hash, int32 (n,)."""
        return self.slots[self.group_of(hashes)]

    def bounds(self, sorted_hashes: U64) -> I64:
        """Row bounds of every group in ascending hashes: group g is rows [b[g], b[g+1])."""
        inner = np.searchsorted(sorted_hashes, self.starts, side="left")
        return np.append(inner, len(sorted_hashes)).astype(np.int64)

    def groups_of_slot(self, slot: int) -> I64:
        """Indices of the groups that a slot owns, ascending."""
        return np.flatnonzero(self.slots == slot)

    def index(self, prefix: Prefix) -> int:
        """Index of a group. Raises KeyError when no group has exactly this prefix."""
        at = int(np.searchsorted(self.starts, np.uint64(prefix.lo)))
        if at < len(self.prefixes) and self.prefixes[at] == prefix:
            return at
        raise KeyError(f"{prefix} is not a group of this assignment")


def relocations(before: GroupMap, after: GroupMap) -> dict[tuple[int, int], tuple[Prefix, ...]]:
    """Per (slot before, slot after) the ranges that move, disjoint and in hash order.

    Groups may be split and merged in the same change: a range is the finer of the two groups.
    """
    if before == after:
        return {}
    edges = np.union1d(before.starts, after.starts)
    old, new = before.group_of(edges), after.group_of(edges)
    found: dict[tuple[int, int], list[Prefix]] = {}
    for at in np.flatnonzero(before.slots[old] != after.slots[new]).tolist():
        range_ = max(before.prefixes[old[at]], after.prefixes[new[at]])
        pair = int(before.slots[old[at]]), int(after.slots[new[at]])
        found.setdefault(pair, []).append(range_)
    return {pair: tuple(ranges) for pair, ranges in found.items()}


def ranges_mask(hashes: U64, ranges: Sequence[Prefix]) -> Bool:
    """Which hashes (n,) lie in any of the ranges. Ranges may overlap. bool (n,)."""
    disjoint = disjoint_ranges(ranges)
    if not disjoint:
        return np.zeros(len(hashes), dtype=np.bool_)
    inside: Bool = range_index(hashes, disjoint) >= 0
    return inside


def range_index(hashes: U64, disjoint: Sequence[Prefix]) -> I64:
    """Index of the range that each hash (n,) lies in, int64 (n,); -1: none.

    At least one range; they are disjoint and in hash order.
    """
    starts = np.array([p.lo for p in disjoint], dtype=np.uint64)
    lasts = np.array([p.hi - 1 for p in disjoint], dtype=np.uint64)
    at = np.searchsorted(starts, hashes, side="right") - 1
    return np.where((at >= 0) & (hashes <= lasts[np.maximum(at, 0)]), at, -1)


def disjoint_ranges(ranges: Iterable[Prefix]) -> list[Prefix]:
    """The largest of nested ranges, in hash order: together they cover the same hashes."""
    kept: list[Prefix] = []
    for prefix in sorted(set(ranges), key=lambda p: (p.lo, p.depth)):
        if not kept or not kept[-1].covers(prefix):
            kept.append(prefix)
    return kept


class CutIndex:
    """Numbered cuts of hash ranges, in order: of each hash those that cover it. Picklable.

    `cuts`: (range, number) each, any two may be alike; numbers are at least 0 and below `width`.
    """

    def __init__(self, cuts: Sequence[tuple[Prefix, int]], width: int) -> None:
        ends = [prefix.hi for prefix, _ in cuts if prefix.hi < 1 << HASH_BITS]
        lows = [prefix.lo for prefix, _ in cuts]
        self.edges: U64 = np.unique(np.array([0, *lows, *ends], np.uint64))
        self.width = width
        found = [np.zeros(0, np.int64)]
        for prefix, number in cuts:
            first = int(np.searchsorted(self.edges, np.uint64(prefix.lo)))
            stop = int(np.searchsorted(self.edges, np.uint64(prefix.hi - 1), side="right"))
            found.append(np.arange(first, stop) * width + number)
        self.at: I64 = np.unique(np.concatenate(found))
        """place * width + number of each cut of the hashes [edges[place], edges[place + 1])."""

    def begin(self, hashes: U64) -> I64:
        """place * width of each hash, int64 (n,)."""
        place = np.searchsorted(self.edges, hashes, side="right") - 1
        begin: I64 = place.astype(np.int64) * self.width
        return begin

    def since(self, hashes: U64, numbers: I64) -> I64:
        """The first cut of each hash with its number or a greater one, int64 (n,); -1: none."""
        begin = self.begin(hashes)
        at = np.searchsorted(self.at, begin + numbers)
        found = np.append(self.at, -1)[at] - begin
        return np.where((found >= 0) & (found < self.width), found, -1)

    def count(self, hashes: U64, below: I64) -> I64:
        """How many cuts of each hash have a smaller number, int64 (n,)."""
        begin = self.begin(hashes)
        last: I64 = np.searchsorted(self.at, begin + below)
        return last - np.searchsorted(self.at, begin)
