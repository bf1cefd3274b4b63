"""Phase 1 of the join: which hashes produce, and where their rows lie. Hashes only, no rows.

Model: an input's *sources* are its sorted runs, old ones first, then the epoch's new ones. A
*span* is the stretch of one source that holds one hash. A key's rows in an input are counted
through its spans in the order of the sources: rank 0 .. old-1 are old, old .. old+new-1 new.

A key's old rows in input i matter only when another input has a new row of that key: with new
rows in i alone every result takes a new row of i. So a new row probes the m-1 other inputs.

Cost: one search a source, with sorted needles (several times faster than unsorted ones), and
in the direction in which there is less to look up. Needles that cannot produce any more are
left out from input to input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from spillway.engine.groups import I64, U64, Bool

REVERSE = 4
"""A source this many times smaller than the needles is looked up in them instead."""


class Spans(NamedTuple):
    """The spans of one source: keys (s,) ascending, first rows (s,), numbers of rows (s,)."""

    key: I64
    start: I64
    size: I64


@dataclass(frozen=True)
class Side:
    """One input's part: spans for each source, rows that count per key: `old` (k,), `new` (k,)."""

    spans: list[Spans]
    old: I64
    new: I64


@dataclass(frozen=True)
class MatchCandidates:
    """Hashes (k,) that have rows in every input, ascending, and their rows in each."""

    hashes: U64
    sides: list[Side]

    def only(self, wanted: Bool) -> MatchCandidates:
        """The candidates with the flag, bool (k,)."""
        number = np.cumsum(wanted) - 1
        sides = [
            Side([_keep(s, wanted, number) for s in side.spans], side.old[wanted], side.new[wanted])
            for side in self.sides
        ]
        return MatchCandidates(self.hashes[wanted], sides)


def probe(
    old: Sequence[Sequence[tuple[U64, int]]],
    new: Sequence[Sequence[U64]],
    last_drop: Callable[[U64], I64] | None = None,
) -> MatchCandidates:
    """Find the hashes of new rows that have rows in every input.

    Sources are sorted hashes; an old one comes with the epoch in which it was born: it counts
    only for hashes whose last drop is older.
    """
    hashes = distinct([run for runs in new for run in runs])
    found = [[_find(run, hashes) for run in runs] for runs in new]
    counts_new = [rows_of_keys(spans, len(hashes)) for spans in found]
    any_new = np.sum([counts > 0 for counts in counts_new], axis=0)
    alive: Bool = np.ones(len(hashes), dtype=np.bool_)
    spans_old: list[list[Spans]] = []
    counts_old: list[I64] = []
    dropped = None if last_drop is None else last_drop(hashes)
    newest_drop = -1 if dropped is None else int(dropped.max(initial=-1))
    for runs, counts in zip(old, counts_new, strict=True):
        asked = np.flatnonzero(alive & (any_new > (counts > 0)))
        needles = hashes if len(asked) == len(hashes) else hashes[asked]
        spans = []
        for run, born in runs:
            found_here = _find(run, needles)
            key = asked[found_here.key]
            here = Spans(key, found_here.start, found_here.size)
            if dropped is not None and born <= newest_drop:
                live = np.flatnonzero(dropped[key] < born)
                here = Spans(*(column[live] for column in here))
            spans.append(here)
        spans_old.append(spans)
        counts_old.append(rows_of_keys(spans, len(hashes)))
        alive &= (counts_old[-1] + counts) > 0
    sides = [
        Side([*olds, *news], n_old, n_new)
        for olds, news, n_old, n_new in zip(spans_old, found, counts_old, counts_new, strict=True)
    ]
    return MatchCandidates(hashes, sides).only(alive)


def distinct(runs: Sequence[U64]) -> U64:
    """The distinct hashes of sorted runs, ascending."""
    if not runs:
        return np.zeros(0, dtype=np.uint64)
    merged = runs[0] if len(runs) == 1 else np.sort(np.concatenate(runs))
    return merged[first_of_each(merged)]


def first_of_each(sorted_: U64 | I64) -> Bool:
    """Which elements of a sorted array differ from the one before, bool (n,)."""
    flags = np.ones(len(sorted_), dtype=np.bool_)
    np.not_equal(sorted_[1:], sorted_[:-1], out=flags[1:])
    return flags


def _find(run: U64, needles: U64) -> Spans:
    """Spans of ascending distinct needles in a sorted run; key = index of the needle."""
    if not len(run) or not len(needles):
        nothing = np.zeros(0, dtype=np.int64)
        return Spans(nothing, nothing, nothing)
    first = int(np.searchsorted(needles, run[0], side="left"))
    last = int(np.searchsorted(needles, run[-1], side="right"))
    needles = needles[first:last]
    if len(run) * REVERSE < len(needles):
        start = np.flatnonzero(first_of_each(run))
        count = np.diff(start, append=len(run))
        key = np.searchsorted(needles, run[start])
        hit = needles[np.minimum(key, len(needles) - 1)] == run[start]
        return Spans(key[hit] + first, start[hit], count[hit])
    left = np.searchsorted(run, needles)  # < len(run): no needle is beyond the last hash
    hit = np.flatnonzero(run[left] == needles)
    start, needles = left[hit], needles[hit]
    end = start + 1
    more = np.flatnonzero(run[np.minimum(end, len(run) - 1)] == needles)
    more = more[end[more] < len(run)]
    if len(more):
        end[more] = np.searchsorted(run, needles[more], side="right")
    return Spans(hit + first, start, end - start)


def rows_of_keys(spans: Sequence[Spans], keys: int) -> I64:
    """The rows of each key in all spans, int64 (keys,)."""
    totals = np.zeros(keys, dtype=np.int64)
    for each in spans:
        totals[each.key] += each.size
    return totals


def _keep(spans: Spans, alive: Bool, number: I64) -> Spans:
    kept = np.flatnonzero(alive[spans.key])
    if len(kept) == len(spans.key):
        return Spans(number[spans.key], spans.start, spans.size)
    return Spans(number[spans.key[kept]], spans.start[kept], spans.size[kept])
