"""Combinations of rows of several generations, where the rows of all lie in one order.

Model: a combination is given with the latest generation that it has a row of, so once; one within a
single generation never. Rows lie in the order of hashes, then generations, so those of a generation
are a stretch of each input, and so is all that is before it of that hash. Nothing is looked up or
copied: a generation is boxes over stretches (`spillway.engine.join.boxes`), and the boxes of all
become results together.

Cost is linear in the rows and in the results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spillway.engine.groups import I64
from spillway.engine.join.batches import (
    Gathered,
    Joined,
    ResultBatches,
    groups_of_keys,
    most_results,
)
from spillway.engine.join.boxes import Boxes, boxes_of, pieces
from spillway.engine.join.kernel import Rows
from spillway.engine.join.probe import distinct, first_of_each
from spillway.engine.join.spec import JoinSpec


class InputGenerations(NamedTuple):
    """Rows of an input, in the order of hashes, then generations."""

    rows: Rows
    of_row: I64
    """The generation of each, int64 (n,), counted for each hash by itself: its first one is 0."""


def crossing(
    spec: JoinSpec, inputs: Sequence[InputGenerations], *, batch_bytes: int
) -> Iterator[Joined]:
    """Yield the combinations whose rows are not all of one generation, in the order of hashes.

    Every hash has rows of every input, and one has two generations at least. The join has no
    window.
    """
    hashes = distinct([inputs[0][0].key_hash])
    numbers: list[I64] = [np.cumsum(first_of_each(rows.key_hash)) - 1 for rows, _ in inputs]
    begins = [np.flatnonzero(first_of_each(rows.key_hash)) for rows, _ in inputs]
    boxes = boxes_of_generations(numbers, [generation for _, generation in inputs])
    tables = [rows.table for rows, _ in inputs]
    results = ResultBatches(spec, batch_bytes)
    limit = most_results(batch_bytes, [[table] for table in tables])
    for first, last, hot in groups_of_keys(boxes, limit):
        some = boxes.of(slice(first, last))
        low, high = int(some.key[0]), int(some.key[-1]) + 1
        if not hot:
            gathered = [
                _rows_of_keys(table, number, begin, low, high)
                for table, number, begin in zip(tables, numbers, begins, strict=True)
            ]
            begin_of = np.stack([begin[some.key] for begin in begins])
            own = Boxes(some.key - low, some.start - begin_of, some.length, some.size)
            yield from results.of(hashes[low:high], gathered, own)
            continue
        for n in range(len(some.key)):
            for piece in pieces(some.start[:, n].tolist(), some.length[:, n].tolist(), limit):
                where = zip(tables, piece.start[:, 0], piece.length[:, 0], strict=True)
                gathered = [_stretch(table, int(at), int(rows)) for table, at, rows in where]
                own = Boxes(piece.key, piece.start * 0, piece.length, piece.size)
                yield from results.of(hashes[low:high], gathered, own)


def boxes_of_generations(numbers: Sequence[I64], generations: Sequence[I64]) -> Boxes:
    """The boxes of all generations, in the order of hashes; a start is a row's position in its
    input.

    Of each input the number of each row's hash, which becomes the box's key, and its generation,
    int64 (n,) each.
    """
    bits = max(int(each.max(initial=0)) for each in generations).bit_length()
    codes = [((n << bits) | g).view(np.uint64) for n, g in zip(numbers, generations, strict=True)]
    begins = [np.flatnonzero(first_of_each(each)) for each in codes]
    own = [each[begin] for each, begin in zip(codes, begins, strict=True)]
    every = distinct(own)
    rows = np.zeros((len(codes), len(every)), np.int64)
    for mine, code, found, begin in zip(rows, codes, own, begins, strict=True):
        mine[np.searchsorted(every, found)] = np.diff(begin, append=len(code))
    start = np.cumsum(rows, axis=1) - rows
    key = (every >> np.uint64(bits)).view(np.int64)
    of_hash = first_of_each(key)
    first = start[:, np.flatnonzero(of_hash)[np.cumsum(of_hash) - 1]]
    earlier = start - first
    at = np.flatnonzero(~of_hash & (earlier + rows).all(axis=0))
    boxes = boxes_of(list(earlier[:, at]), list(rows[:, at]), need_old=True)
    of_box = at[boxes.key]
    return Boxes(key[of_box], boxes.start + first[:, of_box], boxes.length, boxes.size)


def _rows_of_keys(table: pa.Table, number: I64, begin: I64, low: int, high: int) -> Gathered:
    """The rows of hashes low .. high-1."""
    first = int(begin[low])
    last = int(begin[high]) if high < len(begin) else len(number)
    return Gathered(
        table.slice(first, last - first),
        None,
        begin[low:high] - first,
        number[first:last] - low,
        None,
    )


def _stretch(table: pa.Table, first: int, rows: int) -> Gathered:
    """Rows of one hash."""
    none = np.zeros(1, np.int64)
    return Gathered(table.slice(first, rows), None, none, np.zeros(rows, np.int64), None)
