"""To which generation a spilled row belongs.

Model: a cut ends the generation of its hashes, and what it writes carries its epoch.

Where rows leave memory before their generation ends (windows): a row that has expired leaves
memory at some epoch before, and is of the generation that the *next* cut of its hash
ends: the first at its own epoch or later, for what expires in an epoch leaves before what is cut in
it. Where no cut comes, it is of the last generation, which the seal ends.

Where a cut is by reference (`recovery.mode = defer`): no file has what it ended. A cleanup reads
those rows again in Kafka, and knows of each only between which of the session's cuts it came.

Where a cut was taken back (reactivation): what it wrote is in memory again, and will be written by
the next cut of its hash; where it lies now it is void.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from spillway.engine.groups import I64, U64, Bool, CutIndex
from spillway.engine.join.probe import first_of_each
from spillway_schemas.journal import HASH_BITS, Prefix


def begins(hashes: U64, epochs: I64) -> tuple[Bool, Bool]:
    """Where the rows of a hash begin, and where those of one of its generations do, bool (n,) each.

    Rows (n,) come in the order of hashes, then epochs.
    """
    of_hash = first_of_each(hashes)
    return of_hash, of_hash | first_of_each(epochs)


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

    @cached_property
    def _by_epoch(self) -> tuple[I64, U64, U64]:
        """Of each stretch of hashes with a cut, (n,): its epoch, ascending, and the least and the
        greatest hash, ascending within an epoch."""
        place, epoch = np.divmod(self.cuts.at, self.cuts.width)
        order = np.argsort(epoch, kind="stable")
        ends = np.append(self.cuts.edges[1:] - np.uint64(1), np.uint64((1 << HASH_BITS) - 1))
        return epoch[order], self.cuts.edges[place[order]], ends[place[order]]

    def stretches(self, hashes: U64, epoch: int) -> list[tuple[int, int]]:
        """As `hold`, of rows of one epoch whose hashes (n,) ascend: the stretches [first, end) of
        rows that are void, ascending; none is empty."""
        epochs, least, greatest = self._by_epoch
        own = slice(*np.searchsorted(epochs, [epoch, epoch + 1]))
        first = np.searchsorted(hashes, least[own])
        end = np.searchsorted(hashes, greatest[own], side="right")
        pairs = zip(first.tolist(), end.tolist(), strict=True)
        return [(a, b) for a, b in pairs if a < b]

    def hold(self, hashes: U64, epochs: I64) -> Bool:
        """Which rows are void where they lie, bool (n,). `epochs`: in which they were written."""
        epochs = np.minimum(epochs, self.cuts.width - 1)
        void: Bool = self.cuts.since(hashes, epochs) == epochs
        return void


class DeferredGenerations:
    """The generations of a session that lie in no file. Picklable.

    `spilled`, `deferred`: the cuts that hold, of which files have the rows, and those by reference.
    """

    def __init__(
        self, spilled: Sequence[tuple[Prefix, int]], deferred: Sequence[tuple[Prefix, int]]
    ) -> None:
        width = max(epoch for _, epoch in [*spilled, *deferred]) + 2
        self.every = CutIndex([*spilled, *deferred], width)
        self.spilled = CutIndex(spilled, width)
        self.deferred = CutIndex(deferred, width)

    def of(self, hashes: U64, epochs: I64) -> I64:
        """The epoch of the cut by reference that ended each row's generation, int64 (n,); -1: no
        such cut did. `epochs`: of each row the first epoch with a cut, of whatever hashes, by whose
        end it had come."""
        ended = self.every.since(hashes, np.minimum(epochs, self.every.width - 1))
        at = np.maximum(ended, 0)
        deferred = self.deferred.since(hashes, at) == ended
        # What was spilled in that very epoch was in memory no more when the slot was lost.
        spilled = self.spilled.since(hashes, at) == ended
        return np.where(deferred & ~spilled, ended, -1)
