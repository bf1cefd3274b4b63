"""How many results a cleanup will add, without making one.

The rows of one hash that every input has give the product of their numbers; what those of one
generation give among themselves was given at run time. So

    missing = sum over hashes of (product of all its rows - sum over its generations of the
              product of theirs)

which needs hashes and epochs alone. It is exact for a join without a window, as far as rows whose
hashes are equal have equal keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from spillway.engine.groups import I64, U64, Bool
from spillway.engine.spill.cleanup import SpillSource, alive
from spillway_schemas.journal import Prefix

MOST = 2.0**62
"""Products and sums up to this are made in int64, larger ones as Python's integers."""


def missing_results(source: SpillSource, ranges: Sequence[Prefix]) -> Iterator[int]:
    """The number of missing results of each range. Holds 24 bytes a row of one range."""
    for each in ranges:
        hashes, epochs, inputs = _rows(source, each.lo, each.hi)
        yield missing_of(hashes, epochs, inputs, source.inputs)


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
    other: Bool = np.ones(len(hashes), dtype=np.bool_)
    other[1:] = hashes[1:] != hashes[:-1]
    both = other.copy()
    both[1:] |= epochs[1:] != epochs[:-1]
    return _combinations(inputs, np.flatnonzero(other), of) - _combinations(
        inputs, np.flatnonzero(both), of
    )


def _combinations(inputs: I64, starts: I64, of: range) -> int:
    """The sum over stretches of the product of how many rows they have of each input."""
    counts = np.stack([np.add.reduceat((inputs == i).astype(np.int64), starts) for i in of])
    if counts.astype(np.float64).prod(axis=0).sum() < MOST:
        return int(counts.prod(axis=0).sum())
    return int(counts.astype(object).prod(axis=0).sum())
