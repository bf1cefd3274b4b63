"""To which generation a spilled row belongs, where rows leave memory before their generation ends.

Model: a cut ends the generation of its hashes, and what it writes carries its epoch. A row that has
expired leaves memory at some epoch before, and is of the generation that the *next* cut of its hash
ends: the first at its own epoch or later, for what expires in an epoch leaves before what is cut in
it. Where no cut comes, it is of the last generation, which the seal ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spillway.engine.groups import I64, U64
from spillway_schemas.journal import HASH_BITS, Prefix


class GenerationEnds:
    """The cuts of a session by hash. `last`: the seal's epoch. Picklable."""

    def __init__(self, cuts: Sequence[tuple[Prefix, int]], last: int) -> None:
        ends = [prefix.hi for prefix, _ in cuts if prefix.hi < 1 << HASH_BITS]
        lows = [prefix.lo for prefix, _ in cuts]
        self.last = last
        self.edges: U64 = np.unique(np.array([0, *lows, *ends], np.uint64))
        self.width = last + 2
        found = [np.zeros(0, np.int64)]
        for prefix, epoch in cuts:
            first = int(np.searchsorted(self.edges, np.uint64(prefix.lo)))
            stop = int(np.searchsorted(self.edges, np.uint64(prefix.hi - 1), side="right"))
            found.append(np.arange(first, stop) * self.width + epoch)
        self.at: I64 = np.unique(np.concatenate(found))

    def of(self, hashes: U64, epochs: I64) -> I64:
        """The epoch of the cut that ended each row's generation, int64 (n,), by the epochs in which
        they were written; epochs after the seal's (what a cleanup has stored) as they are."""
        place = np.searchsorted(self.edges, hashes, side="right") - 1
        at = np.searchsorted(self.at, place * self.width + np.minimum(epochs, self.last + 1))
        found = np.append(self.at, -1)[at]
        ended = np.where(found // self.width == place, found % self.width, self.last)
        return np.where(epochs > self.last, epochs, ended)
