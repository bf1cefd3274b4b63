"""Combinations of rows of several generations, where the rows of all lie in one order.

Model: a combination is given with the latest generation that it has a row of, so once; one within a
single generation never. Rows lie in the order of hashes, then generations, so those of a generation
are a stretch of each input, and so is all that is before it of that hash. Rows are neither searched
nor copied: a generation is boxes over stretches (`spillway.engine.join.boxes`), and the boxes of
many become results together.

Cost is a sort of the generations, then linear in the rows and in the results. Memory: the boxes of
`BOXED_ROWS` rows, and of a hash that is a batch of its own only rows between those that give its
results; these are never more than the results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
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

BOXED_ROWS = 1 << 16
"""Rows, of whole hashes, whose boxes are made at a time. Of five inputs that takes 43 MiB at most
while they are made, and then 9; of eight 65 and 15 (measured)."""


class InputGenerations(NamedTuple):
    """Rows of an input, in the order of hashes, then generations."""

    rows: Rows
    of_row: I64
    """The generation of each, int64 (n,), counted for each hash by itself: its first one is 0."""

    def numbers(self) -> I64:
        """The number of each row's hash, int64 (n,), from 0."""
        found: I64 = np.cumsum(first_of_each(self.rows.key_hash)) - 1
        return found


def crossing(
    spec: JoinSpec, inputs: Sequence[InputGenerations], *, batch_bytes: int
) -> Iterator[Joined]:
    """Yield the combinations whose rows are not all of one generation, in the order of hashes.

    Every hash has rows of every input, and one has two generations at least. The join has no
    window.
    """
    numbers = [each.numbers() for each in inputs]
    generations = [of_row for _, of_row in inputs]
    # Where the rows of each hash begin, and those of the last one end: (m, h + 1).
    begins = np.stack([np.flatnonzero(np.diff(each, prepend=-1, append=-1)) for each in numbers])
    hashes = inputs[0].rows.key_hash[begins[0, :-1]]
    tables = [rows.table for rows, _ in inputs]
    results = ResultBatches(spec, batch_bytes)
    limit = most_results(batch_bytes, [[table] for table in tables])
    for boxes in _boxes(numbers, generations, begins):
        for first, last, _ in groups_of_keys(boxes, limit):
            some = boxes.of(slice(first, last))
            low, high = int(some.key[0]), int(some.key[-1]) + 1
            if high - low > 1:
                gathered = [
                    _rows_of_keys(table, number, begin[low : high + 1], low)
                    for table, number, begin in zip(tables, numbers, begins, strict=True)
                ]
                start = some.start - begins[:, some.key]
                own = Boxes(some.key - low, start, some.length, some.size)
                yield from results.of(hashes[low:high], gathered, own)
                continue
            # Of one hash only rows that its boxes name are looked at: it may have any number.
            for part in _parts(some, limit):
                first_row, last_row = part.start.min(axis=1), (part.start + part.length).max(axis=1)
                gathered = [
                    _stretch(table, int(at), int(rows))
                    for table, at, rows in zip(tables, first_row, last_row - first_row, strict=True)
                ]
                start = part.start - first_row[:, None]
                own = Boxes(part.key * 0, start, part.length, part.size)
                yield from results.of(hashes[low:high], gathered, own)


def _parts(boxes: Boxes, limit: int) -> Iterator[Boxes]:
    """The boxes of one hash, as many at a time as a batch has room for; a larger one in pieces."""
    each = replace(boxes, key=np.arange(len(boxes.key)))
    for first, last, is_large in groups_of_keys(each, limit):
        if is_large:
            start, length = boxes.start[:, first].tolist(), boxes.length[:, first].tolist()
            yield from pieces(start, length, limit)
        else:
            yield boxes.of(slice(first, last))


def _boxes(numbers: Sequence[I64], generations: Sequence[I64], begins: I64) -> Iterator[Boxes]:
    """The boxes of all hashes, those of about `BOXED_ROWS` rows at a time."""
    until = begins[:, 1:].sum(axis=0)
    low = 0
    while low < len(until):
        done = int(until[low - 1]) if low else 0
        high = max(low + 1, int(np.searchsorted(until, done + BOXED_ROWS, side="right")))
        stretches = [slice(first, last) for first, last in begins[:, [low, high]].tolist()]
        boxes = boxes_of_generations(
            [number[at] for number, at in zip(numbers, stretches, strict=True)],
            [of_row[at] for of_row, at in zip(generations, stretches, strict=True)],
        )
        yield replace(boxes, start=boxes.start + begins[:, low, None])
        low = high


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


def _rows_of_keys(table: pa.Table, number: I64, begin: I64, low: int) -> Gathered:
    """The rows of the hashes from `low` on, which begin at these places; the last is an end."""
    first, last = int(begin[0]), int(begin[-1])
    rows = table.slice(first, last - first)
    return Gathered(rows, None, begin[:-1] - first, number[first:last] - low, None)


def _stretch(table: pa.Table, first: int, rows: int) -> Gathered:
    """Rows of one hash."""
    none = np.zeros(1, np.int64)
    return Gathered(table.slice(first, rows), None, none, np.zeros(rows, np.int64), None)
