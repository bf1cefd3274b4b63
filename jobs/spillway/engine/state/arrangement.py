"""A session's arrangements at one slot: parts of runs, and what was dropped from them.

Model: per input a list of `Part`s, each a mapped run file's window. Dead rows (spilled or moved
away) are not copied out at once: `Drops` keeps for every hash the epoch of its last drop, and a
row of a file born at epoch e is dead when that epoch is >= e. One lookup answers it for a whole
batch of hashes. Files born in the epoch of a drop hold no row of the dropped range that still
counts (the rows of the epoch itself go straight to the spill file; what another slot wrote here is
spilled from its file), so the rule needs no finer clock.

`Segments` cuts the hash space at the edges of groups (or of any ranges) and of drops. Within a
segment all rows of a file share one fate, so sizes and slices of any range are subtractions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from spillway.engine.groups import I64, U64, Bool, GroupMap, disjoint_ranges
from spillway.engine.join.kernel import NEVER_DROPPED, Rows
from spillway.engine.state.runs import RunFile, Trimmed, bytes_before, part_of
from spillway_schemas.journal import HASH_BITS, Prefix


class Drops:
    """For every hash the epoch of its last drop (-1: none). Immutable.

    `edges` uint64 (k,) ascending from 0, `epochs` int64 (k,) of [edges[i], edges[i+1]).
    """

    def __init__(self, edges: Sequence[int] | U64 = (0,), epochs: Sequence[int] | I64 = (-1,)):
        self.edges: U64 = np.array(edges, dtype=np.uint64)
        self.epochs: I64 = np.array(epochs, dtype=np.int64)

    def last(self, hashes: U64) -> I64:
        """Epoch of each hash's last drop, int64 (n,)."""
        if len(self.edges) == 1:
            return np.full(len(hashes), self.epochs[0])
        found: I64 = self.epochs[np.searchsorted(self.edges, hashes, side="right") - 1]
        return found

    def drop(self, ranges: Iterable[Prefix], epoch: int) -> Drops:
        """Also drop these ranges at `epoch` (not before any epoch so far)."""
        disjoint = disjoint_ranges(ranges)
        if not disjoint:
            return self
        ends = [r.hi for r in disjoint if r.hi < 1 << HASH_BITS]
        edges = np.union1d(self.edges, np.array([r.lo for r in disjoint] + ends, dtype=np.uint64))
        epochs = self.last(edges)
        for each in disjoint:
            first = np.searchsorted(edges, np.uint64(each.lo), side="left")
            stop = np.searchsorted(edges, np.uint64(each.hi - 1), side="right")
            epochs[first:stop] = epoch
        return Drops(edges, epochs)._short()

    def since(self, oldest_born: int) -> Drops:
        """Without the drops that no file is old enough for."""
        return Drops(self.edges, np.where(self.epochs >= oldest_born, self.epochs, -1))._short()

    def _short(self) -> Drops:
        kept = np.flatnonzero(np.diff(self.epochs, prepend=-2))
        return Drops(self.edges[kept], self.epochs[kept])

    def to_json(self) -> list[list[int]]:
        """`[[edge, epoch], ...]`."""
        return [list(pair) for pair in zip(self.edges.tolist(), self.epochs.tolist(), strict=True)]

    @classmethod
    def from_json(cls, pairs: Sequence[Sequence[int]]) -> Drops:
        """The inverse of `to_json`."""
        return cls([edge for edge, _ in pairs], [epoch for _, epoch in pairs])


@dataclass(frozen=True)
class RunWindow:
    """What counts of one run file: its entry and the mapped rows of its window."""

    file: RunFile
    rows: Rows
    trimmed: Trimmed | None = None
    """Of a file that is not as it was first written."""

    @property
    def bytes(self) -> int:
        """Bytes of the file as it is."""
        return (self.trimmed or self.file).bytes

    @property
    def row_bytes(self) -> int:
        """Bytes of its rows alone, those outside of the window included."""
        return (self.trimmed or self.file).row_bytes


@dataclass
class SessionState:
    """A session's state at one slot while a step works on it; lists are per input."""

    name: str
    drops: Drops
    parts: list[list[RunWindow]]
    installed: list[list[Rows]] = field(default_factory=list)
    """State and restored rows that came in this epoch: old rows that are in no file yet."""
    new: list[list[Rows]] = field(default_factory=list)
    """The epoch's new rows."""
    carried: list[list[Rows]] = field(default_factory=list)
    """Rows of the session before that come in this epoch; neither old nor new."""

    def all_parts(self) -> Iterator[RunWindow]:
        """What counts of all files, input by input."""
        return chain.from_iterable(self.parts)

    def old(self, inputs: Iterable[int]) -> list[list[Rows]]:
        """Per input the rows that were there before the epoch's new ones."""
        return [[*(part.rows for part in self.parts[i]), *self.installed[i]] for i in inputs]

    def pieces(self, input_: int) -> Iterator[tuple[Rows, int]]:
        """All rows of an input as (sorted rows, epoch in which their file was born)."""
        for part in self.parts[input_]:
            yield part.rows, part.file.born
        for rows in (*self.installed[input_], *self.new[input_]):
            yield rows, NEVER_DROPPED


class Segments:
    """The hash space cut at the edges of some ranges (buckets) and of drops."""

    def __init__(self, edges: U64, bucket: I64, buckets: int, drops: Drops) -> None:
        """`bucket[i]` is where [edges[i], edges[i+1]) belongs; -1: to no bucket."""
        self.edges: U64 = np.union1d(edges, drops.edges)
        self.bucket: I64 = bucket[np.searchsorted(edges, self.edges, side="right") - 1]
        self.last: I64 = drops.last(self.edges)
        self.buckets = buckets

    @classmethod
    def of_groups(cls, groups: GroupMap, drops: Drops) -> Segments:
        """Bucket g is group g."""
        return cls(groups.starts, np.arange(len(groups)), len(groups), drops)

    @classmethod
    def of_ranges(cls, ranges: Sequence[Prefix], drops: Drops) -> Segments:
        """Bucket i is `ranges[i]`; they must be disjoint and in hash order."""
        edges, bucket = [0], [-1]
        for i, each in enumerate(ranges):
            if edges[-1] == each.lo:
                edges.pop(), bucket.pop()
            edges += [each.lo, each.hi]
            bucket += [i, -1]
        if edges[-1] == 1 << HASH_BITS:
            edges.pop(), bucket.pop()
        return cls(np.array(edges, np.uint64), np.array(bucket, np.int64), len(ranges), drops)

    def tally(self, rows: Rows, born: int) -> tuple[I64, I64]:
        """(rows, bytes) that live in each bucket, int64 (buckets,) both."""
        counts = np.zeros(self.buckets, dtype=np.int64)
        sizes = np.zeros(self.buckets, dtype=np.int64)
        if not len(rows.key_hash):
            return counts, sizes
        first, last = self._window(rows)
        bucket = self.bucket[first:last]
        live = ((self.last[first:last] < born) & (bucket >= 0)).nonzero()[0]
        if not len(live):
            return counts, sizes
        at = self._starts(rows, first, last)
        np.add.at(counts, bucket[live], (at[1:] - at[:-1])[live])
        before = bytes_before(rows.table, at) + 8 * at
        np.add.at(sizes, bucket[live], (before[1:] - before[:-1])[live])
        return counts, sizes

    def slices(self, rows: Rows, born: int, wanted: Bool) -> list[Rows]:
        """What lives in the wanted buckets, bool (buckets,), as few slices, zero-copy."""
        if not len(rows.key_hash):
            return []
        first, last = self._window(rows)
        bucket = self.bucket[first:last]
        flags = np.zeros(last - first + 2, dtype=np.bool_)
        flags[1:-1] = (self.last[first:last] < born) & (bucket >= 0) & wanted[bucket]
        turns = (flags[1:] != flags[:-1]).nonzero()[0]
        if not len(turns):
            return []
        bounds = self._starts(rows, first, last)[turns].reshape(-1, 2)
        return [part_of(rows, a, b) for a, b in bounds.tolist() if a < b]

    def _window(self, rows: Rows) -> tuple[int, int]:
        """The segments [first, last) that rows (not none) lie in."""
        ends = self.edges.searchsorted(rows.key_hash[[0, -1]], side="right")
        return int(ends[0]) - 1, int(ends[1])

    def _starts(self, rows: Rows, first: int, last: int) -> I64:
        """Where the rows of segments [first, last) begin, int64 (last - first + 1,), and end."""
        at = np.empty(last - first + 1, dtype=np.int64)
        at[0], at[-1] = 0, len(rows.key_hash)
        at[1:-1] = rows.key_hash.searchsorted(self.edges[first + 1 : last])
        return at


def everything(drops: Drops) -> Segments:
    """One bucket over all hashes: what no drop has killed."""
    return Segments(np.zeros(1, np.uint64), np.zeros(1, np.int64), 1, drops)


ALL = np.ones(1, dtype=np.bool_)
"""The wanted buckets of `everything`."""
