"""From boxes to batches: rows that were gathered for some keys become results.

Invariants:

* Equal hashes with different keys never join: the gathered rows of a hash are compared with
  the first of them, and only when one differs the batch's results are filtered by real keys.
* A batch has about `batch_bytes` bytes at most (one result at least).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spillway.engine.groups import I64, U64, Bool
from spillway.engine.join.boxes import Boxes
from spillway.engine.join.spec import JoinSpec

BATCH_BYTES = 16 << 20
"""Default bound of a result batch."""


@dataclass(frozen=True)
class Joined:
    """One batch of results.

    `table` has `spec.joined_schema`. `hashes` (k,) are the hashes that gave them, `results`
    (k,) how many each. `newest_ms` (s,) is, for a systematic sample of the results, the
    greatest `kafka_ms` among a result's new rows.
    """

    table: pa.Table
    hashes: U64
    results: I64
    newest_ms: I64


@dataclass(frozen=True)
class Gathered:
    """Rows of one input for the keys of a batch.

    `where` (n,) maps a rank in key order to the row of `table`; key number k (of the batch)
    begins at `base[k]`. `number` (n,) is each row of `table`'s key number.
    """

    table: pa.Table
    where: I64 | None
    base: I64
    number: I64
    kafka_ms: I64 | None


@dataclass(frozen=True)
class ResultBatches:
    """Turns boxes, and the rows that were gathered for their keys, into batches."""

    spec: JoinSpec
    batch_bytes: int
    sample_every: int = 0

    def of(self, hashes: U64, gathered: list[Gathered], boxes: Boxes) -> Iterator[Joined]:
        """The boxes' results. `hashes` (k,) are those of the keys that `boxes.key` numbers."""
        box, ranks = boxes.ranks()
        number = boxes.key[box]
        picks = []
        for each, rank in zip(gathered, ranks, strict=True):
            pick = each.base[number] + rank
            picks.append(pick if each.where is None else each.where[pick])
        if (wanted := self._in_time(gathered, picks)) is not None:
            picks, number = [pick[wanted] for pick in picks], number[wanted]
        if (wanted := self._equal_keys(gathered, picks, len(hashes))) is not None:
            picks, number = [pick[wanted] for pick in picks], number[wanted]
        for a, b in self._cut_by_bytes(gathered, picks):
            some = [pick[a:b] for pick in picks]
            results = np.bincount(number[a:b], minlength=len(hashes))
            newest = self._newest(gathered, some)
            yield Joined(self._table(gathered, some), hashes, results, newest)

    def _in_time(self, gathered: list[Gathered], picks: list[I64]) -> Bool | None:
        """Which results have times that join (n,); None: the join has no window."""
        if self.spec.span is None:
            return None
        least, greatest = self._times(gathered, picks)
        return self.spec.span.joins(least, greatest)

    def _times(self, gathered: list[Gathered], picks: list[I64]) -> tuple[list[I64], list[I64]]:
        """The least and the greatest time of each input's rows, int64 (n,) each."""
        least, greatest = [], []
        for each, input_, pick in zip(gathered, self.spec.inputs, picks, strict=True):
            least.append(_numbers(each.table.column(-len(input_.times)))[pick])
            last = each.table.column(-1)
            greatest.append(_numbers(last)[pick] if len(input_.times) > 1 else least[-1])
        return least, greatest

    def _equal_keys(self, gathered: list[Gathered], picks: list[I64], keys: int) -> Bool | None:
        """Which results have equal keys (n,); None when all have, as nearly always."""
        columns = range(len(self.spec.keys))
        first = np.zeros(keys, dtype=np.int64)
        first[gathered[0].number[::-1]] = np.arange(len(gathered[0].number))[::-1]
        for column in columns:
            reference = gathered[0].table.column(column).take(pa.array(first))
            for each in gathered:
                whole = len(each.number) == keys and each.where is None
                expected = reference if whole else reference.take(pa.array(each.number))
                if not pc.all(pc.equal(each.table.column(column), expected)).as_py():
                    break
            else:
                continue
            break
        else:
            return None
        equal: Bool = np.ones(len(picks[0]), dtype=np.bool_)
        for column in columns:
            reference = gathered[0].table.column(column).take(pa.array(picks[0]))
            for each, pick in zip(gathered[1:], picks[1:], strict=True):
                same = pc.equal(each.table.column(column).take(pa.array(pick)), reference)
                equal &= same.combine_chunks().to_numpy(zero_copy_only=False)
        return equal

    def _cut_by_bytes(
        self, gathered: list[Gathered], picks: list[I64]
    ) -> Iterator[tuple[int, int]]:
        """Bounds of batches: one, unless the rows are much wider than the average."""
        total = len(picks[0])
        if not total:
            return
        widths = [_row_bytes(each.table) for each in gathered]
        if sum(int(w.max()) for w in widths) * total <= 2 * self.batch_bytes:
            yield 0, total
            return
        until = np.cumsum(sum(w[pick] for w, pick in zip(widths, picks, strict=True)))
        at = 0
        while at < total:
            done = int(until[at - 1]) if at else 0
            stop = int(np.searchsorted(until, done + self.batch_bytes, side="right"))
            yield at, max(stop, at + 1)
            at = max(stop, at + 1)

    def _newest(self, gathered: list[Gathered], picks: list[I64]) -> I64:
        if not self.sample_every:
            return np.zeros(0, dtype=np.int64)
        ages = [
            each.kafka_ms[pick[:: self.sample_every]]
            for each, pick in zip(gathered, picks, strict=True)
            if each.kafka_ms is not None
        ]
        newest: I64 = np.maximum.reduce(ages) if ages else np.zeros(0, dtype=np.int64)
        return newest

    def _table(self, gathered: list[Gathered], picks: list[I64]) -> pa.Table:
        keys = len(self.spec.keys)
        payloads: list[pa.ChunkedArray] = []
        identities: list[pa.ChunkedArray] = []
        for i, (each, pick) in enumerate(zip(gathered, picks, strict=True)):
            index = pa.array(pick)
            input_ = self.spec.inputs[i]
            width = each.table.num_columns - len(input_.times)
            columns = each.table.columns[0 if i == 0 else keys : width]
            taken = [column.take(index) for column in columns]
            own = len(taken) - len(input_.identity)
            payloads.extend(taken[:own])
            identities.extend(taken[own:])
        arrays = [*payloads, *identities]
        if self.spec.timed:
            least, greatest = self._times(gathered, picks)
            arrays += [pa.array(np.minimum.reduce(least)), pa.array(np.maximum.reduce(greatest))]
        return pa.Table.from_arrays(arrays, schema=self.spec.joined_schema)


def most_results(batch_bytes: int, inputs: Iterable[Sequence[pa.Table]]) -> int:
    """How many results a batch has at most; of each input the tables that have its rows.

    A result's bytes are estimated: the average rows of all inputs together.
    """
    size = 1
    for tables in inputs:
        rows = sum(table.num_rows for table in tables)
        size += sum(table.nbytes for table in tables) // max(rows, 1)
    return max(1, batch_bytes // size)


def groups_of_keys(boxes: Boxes, limit: int) -> Iterator[tuple[int, int, bool]]:
    """Cut the boxes, whole keys together, into (first, last, whether it is one hot key)."""
    starts = np.flatnonzero(np.diff(boxes.key, prepend=-1))
    ends = np.append(starts[1:], len(boxes.key))[: len(starts)]
    until = np.cumsum(boxes.size, dtype=np.float64)[ends - 1]
    at = 0
    while at < len(starts):
        done = until[at - 1] if at else 0.0
        stop = int(np.searchsorted(until, done + limit, side="right"))
        hot = stop == at
        stop = max(stop, at + 1)
        yield int(starts[at]), int(ends[stop - 1]), hot
        at = stop


def _numbers(column: pa.ChunkedArray) -> I64:
    """A column of int64 without nulls, (n,)."""
    found: I64 = column.to_numpy()
    return found


def _row_bytes(table: pa.Table) -> I64:
    """Bytes of every row, int64 (n,)."""
    widths = np.zeros(table.num_rows, dtype=np.int64)
    for column in table.columns:
        type_ = column.type
        if pa.types.is_primitive(type_) or pa.types.is_decimal(type_):
            widths += max(type_.bit_width // 8, 1)
        else:
            lengths = pc.binary_length(column).fill_null(0).combine_chunks()
            widths += lengths.to_numpy() + 4
    return widths
