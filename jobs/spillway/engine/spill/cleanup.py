"""Cleanup of hash ranges: the results that spilling has left out, each once.

Model: what was spilled of a hash range lies there in *generations* (the epoch of the cut says
which; of rows that had expired before it, `spillway.engine.spill.generations` does). Combinations
within one generation were given at run time; missing are those whose rows are not all of one
generation.

Without a window each is given with its latest generation (`spillway.engine.spill.crossing`). With
one, rows meet slice by slice (`spillway.engine.state.slices`), and would be sought again for every
later generation of their hash. So the generations of a hash, numbered from 0, are the leaves of a
binary tree. At level l those join that have the same number without its last l + 1 bits: the side
on which bit l is 0 with the other. A combination is given at the lowest level at which all its rows
are together. All pairs of a level are joined at a time: rows meet by a number that their hash and
pair have together.

Invariants:

* Every missing combination of a range is yielded exactly once, whatever the sizes below; of an
  outer join every result that lacks optional rows, too (`spillway.engine.spill.unmatched`).
* Bounded memory: rows are loaded in pieces (`spillway.engine.spill.pieces`). Those of one single
  hash are held, and their results leave in batches of `batch_bytes`.
* Cost is linear in the rows spilled (with a window, times the logarithm of the generations of a
  hash) and in the results missing.

Failure paths: a spill file that is missing or damaged raises `SpillDamaged`, which names it;
results that were yielded before are right, but not all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from spillway.engine.groups import I64, U64, Bool
from spillway.engine.join.batches import BATCH_BYTES, Joined
from spillway.engine.join.kernel import Rows, join_batches, picked
from spillway.engine.join.probe import distinct
from spillway.engine.join.spec import JoinSpec
from spillway.engine.spill.crossing import InputGenerations, crossing
from spillway.engine.spill.generations import begins
from spillway.engine.spill.pieces import PIECE_BYTES, loaded
from spillway.engine.spill.source import SpilledRows, SpillSource, rows_of_input
from spillway.engine.spill.unmatched import UnmatchedRows, unmatched_rows
from spillway.engine.state.slices import sliced
from spillway_schemas.journal import Prefix


def clean_ranges(
    source: SpillSource,
    ranges: Sequence[Prefix],
    *,
    piece_bytes: int = PIECE_BYTES,
    batch_bytes: int = BATCH_BYTES,
) -> Iterator[tuple[int, Joined]]:
    """Yield (position of the range, missing results) for disjoint ranges in ascending order.

    Batches are of the source's join and have about `batch_bytes` bytes at most; a range without
    missing results yields nothing. Raises `SpillDamaged`; ValueError for ranges out of order.
    """
    if any(a.hi > b.lo for a, b in pairwise(ranges)):
        raise ValueError("the ranges must be disjoint and in ascending order")
    for first, last, parts in loaded(source, ranges, piece_bytes):
        spilled = generations(source, parts)
        unmatched = without_optional(source, parts)
        parts.clear()  # what is not needed any more does not wait in memory for the next piece
        for i, prefix in enumerate(ranges[first:last], first):
            for batch in missing(source, spilled, prefix.lo, prefix.hi, batch_bytes=batch_bytes):
                yield i, batch
            if unmatched is not None:
                for batch in unmatched.between(prefix.lo, prefix.hi, batch_bytes):
                    yield i, batch


def generations(source: SpillSource, parts: Sequence[SpilledRows]) -> list[InputGenerations] | None:
    """Of each input the rows that can give a result; None: there are none."""
    # In this order, so that the rows of one single hash need no sorting.
    parts = sorted((part for part in parts if len(part.key_hash)), key=lambda part: part.epoch)
    if not parts:
        return None
    hashes = np.concatenate([part.key_hash for part in parts])
    lengths = [len(part.key_hash) for part in parts]
    epoch = np.repeat([part.epoch for part in parts], lengths)
    input_ = np.repeat([part.input for part in parts], lengths)
    found = productive(hashes, epoch, input_, source.inputs)
    if not len(found[0][0]):
        return None
    inputs = []
    for i, (at, generation) in zip(source.inputs, found, strict=True):
        table = rows_of_input(source, [part for part in parts if part.input == i], i)
        place = np.cumsum(input_ == i)[at] - 1  # of a row among those of its input
        inputs.append(InputGenerations(Rows(hashes[at], picked(table, place)), generation))
    return inputs


def without_optional(source: SpillSource, parts: Sequence[SpilledRows]) -> UnmatchedRows | None:
    """The rows of an outer join that give results without all of its inputs; None: there are none,
    or the join is an inner one."""
    join = source.spec.joins[source.operator]
    if not join.is_outer:
        return None
    inputs = []
    for i in source.inputs:
        mine = [part for part in parts if part.input == i]
        hashes = [np.zeros(0, np.uint64), *(part.key_hash for part in mine)]
        rows = rows_of_input(source, mine, i) if mine else source.spec.row_schema(i).empty_table()
        inputs.append((np.concatenate(hashes), rows))
    return unmatched_rows(join, inputs, source.doubtful)


def productive(hashes: U64, epochs: I64, input_: I64, inputs: range) -> list[tuple[I64, I64]]:
    """Of each input its rows of hashes that have rows of every input, and rows of two generations;
    in the order of hashes, then generations: positions (n,) and each row's generation (n,).

    Rows (r,) come in the order of their epochs. One sort by hash, then linear passes: within a hash
    the next generation begins where the epoch changes.
    """
    order = np.argsort(hashes, kind="stable")
    hashes, epochs, input_ = hashes[order], epochs[order], input_[order]
    of_hash, of_generation = begins(hashes, epochs)
    starts = np.flatnonzero(of_hash)
    lengths = np.append(starts[1:], len(hashes)) - starts
    number = np.cumsum(of_generation)
    generation: I64 = number - np.repeat(number[starts], lengths)
    gives: Bool = generation[starts + lengths - 1] > 0
    for i in inputs:
        gives &= np.logical_or.reduceat(input_ == i, starts)
    wanted = np.repeat(gives, lengths)
    found = []
    for i in inputs:
        at = np.flatnonzero(wanted & (input_ == i))
        found.append((order[at], generation[at]))
    return found


def missing(
    source: SpillSource,
    spilled: Sequence[InputGenerations] | None,
    lo: int,
    hi: int,
    *,
    batch_bytes: int = BATCH_BYTES,
) -> Iterator[Joined]:
    """Yield the combinations with a hash in [lo, hi) that are not all of one generation."""
    if spilled is None:
        return
    join = source.spec.joins[source.operator]
    own = [_between(each, lo, hi) for each in spilled]
    if not len(own[0].of_row):
        return
    if join.span is None:
        yield from crossing(join, own, batch_bytes=batch_bytes)
    else:
        yield from _in_windows(source, join, own, batch_bytes)


def _in_windows(
    source: SpillSource, join: JoinSpec, own: Sequence[InputGenerations], batch_bytes: int
) -> Iterator[Joined]:
    """As `crossing`, level after level: rows meet slice by slice, so that the cost is that of rows
    which can join."""
    hashes = distinct([own[0].rows.key_hash])  # every input has each
    levels = max(int(of_row.max(initial=0)) for _, of_row in own).bit_length()
    ranks = [each.numbers().astype(np.uint64) << np.uint64(levels) for each in own]
    for level in range(levels):
        sides: list[list[list[Rows]]] = [[], []]
        for input_, (rows, of_row), rank in zip(source.inputs, own, ranks, strict=True):
            met = Rows(rank | (of_row >> (level + 1)).astype(np.uint64), rows.table)
            side = (of_row >> level) & 1
            for each, mine in enumerate(sides):
                runs = _where_true(met, side == each)
                mine.append([part for run in runs for part in sliced(source.spec, input_, run)])
        old, new = sides
        if not (any(old) and any(new)):
            continue
        for batch in join_batches(join, old, new, need_old=True, batch_bytes=batch_bytes):
            at = (batch.hashes >> np.uint64(levels)).astype(np.int64)
            yield replace(batch, hashes=hashes[at])


def _between(spilled: InputGenerations, lo: int, hi: int) -> InputGenerations:
    """The rows with a hash in [lo, hi)."""
    rows, of_row = spilled
    start = int(np.searchsorted(rows.key_hash, np.uint64(lo)))
    end = int(np.searchsorted(rows.key_hash, np.uint64(hi - 1), side="right"))
    found = Rows(rows.key_hash[start:end], rows.table.slice(start, end - start))
    return InputGenerations(found, of_row[start:end])


FEW_STRETCHES = 64

MOST_COPIED_BYTES = 1 << 30
"""A column of text holds at most 2 GiB in one piece; only one hash alone may have so much."""


def _where_true(rows: Rows, wanted: Bool) -> list[Rows]:
    """The wanted rows, as sorted runs: copied to one where they are many stretches."""
    edges = np.flatnonzero(np.diff(wanted, prepend=False, append=False)).reshape(-1, 2)
    if len(edges) <= FEW_STRETCHES or rows.table.nbytes > MOST_COPIED_BYTES:
        return [
            Rows(rows.key_hash[start:end], rows.table.slice(start, end - start))
            for start, end in edges.tolist()
        ]
    at = np.flatnonzero(wanted)
    return [Rows(rows.key_hash[at], rows.table.take(pa.array(at)))]
