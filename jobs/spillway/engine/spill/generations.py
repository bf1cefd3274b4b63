"""To which generation a spilled row belongs.

Model: a cut ends the generation of its hashes, and what it writes carries its epoch.

Where rows leave memory before their generation ends (windows): a row that has expired leaves
memory at some epoch before, and is of the generation that the *next* cut of its hash
ends: the first at its own epoch or later, for what expires in an epoch leaves before what is cut in
it. Where no cut comes, it is of the last generation, which the seal ends.

Where a cut was taken back (reactivation): what it wrote is in memory again, and will be written by
the next cut of its hash; where it lies now it is void.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spillway.engine.groups import I64, U64, Bool
from spillway_schemas.journal import HASH_BITS, Prefix


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


class GenerationEnds:
    """The cuts of a session by hash. `last`: the seal's epoch. Picklable."""

    def __init__(self, cuts: Sequence[tuple[Prefix, int]], last: int) -> None:
        self.last = last
        self.cuts = CutIndex(cuts, last + 2)

    def of(self, hashes: U64, epochs: I64) -> I64:
        """The epoch of the cut that ended each row's generation, int64 (n,), by the epochs in which
        they were written; epochs after the seal's (what a cleanup has stored) as they are."""
        found = self.cuts.since(hashes, np.minimum(epochs, self.last + 1))
        ended = np.where(found >= 0, found, self.last)
        return np.where(epochs > self.last, epochs, ended)


class VoidedCuts:
    """The cuts of a session that were taken back. `last`: the seal's epoch. Picklable."""

    def __init__(self, cuts: Sequence[tuple[Prefix, int]], last: int) -> None:
        self.cuts = CutIndex(cuts, last + 2)

    def hold(self, hashes: U64, epochs: I64) -> Bool:
        """Which rows are void where they lie, bool (n,). `epochs`: in which they were written."""
        epochs = np.minimum(epochs, self.cuts.width - 1)
        void: Bool = self.cuts.since(hashes, epochs) == epochs
        return void
