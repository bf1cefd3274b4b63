"""How many results a cleanup will add, without making one.

The rows of one hash that every input has give the product of their numbers; what those of one
generation give among themselves was given at run time. So

    missing = sum over hashes of (product of all its rows - sum over its generations of the
              product of theirs)

which needs hashes and epochs alone. It is exact for a join without a window, as far as rows whose
hashes are equal have equal keys. Of an outer join the hashes that lack rows of optional inputs give
the product of the others' numbers (`spillway.engine.spill.unmatched`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from spillway.engine.groups import I64, U64, range_index
from spillway.engine.join.probe import first_of_each
from spillway.engine.join.spec import JoinSpec
from spillway.engine.spill.generations import begins
from spillway.engine.spill.pieces import estimated_weights, packed
from spillway.engine.spill.source import SpillSource, alive
from spillway.engine.spill.unmatched import unmatched_counts
from spillway_schemas.journal import Prefix

PIECE_BYTES = 256 * 2**20
"""Some four million rows, of each of which 24 bytes are held."""
MOST = 2.0**62
"""Products and sums up to this are made in int64, larger ones as Python's integers."""


class ToAdd(NamedTuple):
    """How many results a cleanup will add."""

    missing: int
    """That rows of every input have."""
    unmatched: int
    """Of an outer join, without rows of some optional input."""


def results_to_add(
    source: SpillSource, ranges: Sequence[Prefix], *, piece_bytes: float = PIECE_BYTES
) -> ToAdd:
    """The number of results that disjoint ranges in ascending order will add.

    Ranges are read together as long as they have about `piece_bytes` of rows, as spilled: a row
    group that several pieces share is read for each.
    """
    join = source.spec.joins[source.operator]
    missing, unmatched = 0, 0
    if not ranges:
        return ToAdd(missing, unmatched)
    near = source.touching(ranges[0].lo, ranges[-1].hi)
    for first, last, _ in packed(estimated_weights(near, ranges), piece_bytes):
        window = ranges[first:last]
        hashes, epochs, inputs = _rows(source, window[0].lo, window[-1].hi)
        wanted = range_index(hashes, window) >= 0
        hashes, epochs, inputs = hashes[wanted], epochs[wanted], inputs[wanted]
        missing += missing_of(hashes, epochs, inputs, source.inputs)
        if join.is_outer:
            own = inputs - source.inputs.start
            unmatched += unmatched_of(hashes, own, join, source.doubtful)
    return ToAdd(missing, unmatched)


def _rows(source: SpillSource, lo: int, hi: int) -> tuple[U64, I64, I64]:
    """Hash, epoch and input of the rows with a hash in [lo, hi), (n,) each."""
    parts: list[tuple[U64, I64, I64]] = [
        (np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.int64))
    ]
    columns = ("key_hash", "epoch", "input")
    for _, _, table in source.rows(source.touching(lo, hi), lo, hi, columns):
        if source.voided is not None:
            table = alive(source.voided, table)
        hashes, epochs, inputs = (table[name].to_numpy() for name in columns)
        parts.append((hashes.view(np.uint64), epochs, inputs.astype(np.int64)))
    hashes, epochs, inputs = (np.concatenate(each) for each in zip(*parts, strict=True))
    return hashes, epochs, inputs


def missing_of(hashes: U64, epochs: I64, inputs: I64, of: range) -> int:
    """The number of combinations, one row of each input, of one hash and not of one epoch.

    Rows (n,) in any order.
    """
    if not len(hashes):
        return 0
    order = np.lexsort((epochs, hashes))
    hashes, epochs, inputs = hashes[order], epochs[order], inputs[order]
    whole, apart = (np.flatnonzero(each) for each in begins(hashes, epochs))
    return _combinations(inputs, whole, of) - _combinations(inputs, apart, of)


def unmatched_of(hashes: U64, inputs: I64, join: JoinSpec, doubtful: Collection[int] = ()) -> int:
    """The number of results of an outer join that lack optional rows. Rows (n,) in any order, of
    the join's inputs from 0 on."""
    if not len(hashes):
        return 0
    order = np.argsort(hashes, kind="stable")
    starts = np.flatnonzero(first_of_each(hashes[order]))
    counts = _counted(inputs[order], starts, range(len(join.inputs)))
    return _products(unmatched_counts(join, counts, doubtful))


def _combinations(inputs: I64, starts: I64, of: range) -> int:
    """The sum over stretches of the product of how many rows they have of each input."""
    return _products(_counted(inputs, starts, of))


def _counted(inputs: I64, starts: I64, of: range) -> I64:
    """How many rows each stretch has of each input, (m, k)."""
    return np.stack([np.add.reduceat((inputs == i).astype(np.int64), starts) for i in of])


def _products(counts: I64) -> int:
    """The sum of the products over the inputs of (m, k) counts, whatever its size."""
    if counts.astype(np.float64).prod(axis=0).sum() < MOST:
        return int(counts.prod(axis=0).sum())
    return int(counts.astype(object).prod(axis=0).sum())
