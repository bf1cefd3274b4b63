"""The join kernel: a sorted probe that costs O(new rows x log state) plus its output.

Model: rows of each input lie in sorted runs. `probe` finds, by hashes alone, the keys that
produce and the spans of their rows; `boxes` says which combinations count; here rows are
gathered for producing keys only and results leave in batches.

Invariants:

* Every combination of rows (one of each input, equal keys, times that the join's span joins,
  >= 1 new; with `need_old` also >= 1 old) is yielded exactly once; equal rows are different rows.
* Equal hashes with different keys never join: the gathered rows of a hash are compared with
  the first of them, and only when one differs the batch's results are filtered by real keys.
* A batch has about `batch_bytes` bytes at most (one result at least), and the rows gathered
  for it are no more than its results per input: memory does not depend on the number of
  results, nor on the rows of a hot key.

Known limitations: a NaN key equals nothing (decoding refuses NaN). Keys whose hashes collide
on 64 bits cost the product of all their rows, not of each key's. One row's values must fit
into an Arrow string column (2 GiB).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spillway.engine.groups import I64, U64, Bool
from spillway.engine.join.boxes import Boxes, boxes_of, pieces
from spillway.engine.join.probe import MatchCandidates, Spans, probe, rows_of_keys
from spillway.engine.join.spec import JoinSpec
from spillway_schemas.windows import Span, slice_us

BATCH_BYTES = 16 << 20
"""Default bound of a result batch."""

NEVER_DROPPED = 1 << 62
"""`born` of rows that no drop can cover."""


@dataclass(frozen=True)
class Rows:
    """Rows of one input sorted by unsigned hash.

    `key_hash` uint64 (n,) ascending; `table` has the input's row schema (keys, payload,
    identity), n rows, in one chunk or more. `kafka_ms` int64 (n,) is given for new
    rows whose delay is to be measured. Rows of a run with dead rows in it carry the epoch in
    which it was `born`: see `last_drop` of `join_batches`.
    """

    key_hash: U64
    table: pa.Table
    kafka_ms: I64 | None = None
    born: int = NEVER_DROPPED
    slice: int | None = None
    """Of a windowed join, the stretch of time that all least times lie in; None: not known."""


class Step(NamedTuple):
    """What is joined at a time, in runs by input."""

    old: Sequence[Sequence[Rows]]
    new: Sequence[Sequence[Rows]]
    proper: Sequence[int]
    """How many of the old runs, the first ones, are old; the others are new rows that were joined
    in a step before."""


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


def join_batches(
    spec: JoinSpec,
    old: Sequence[Sequence[Rows]],
    new: Sequence[Sequence[Rows]],
    *,
    need_old: bool = False,
    batch_bytes: int = BATCH_BYTES,
    sample_every: int = 0,
    last_drop: Callable[[U64], I64] | None = None,
) -> Iterator[Joined]:
    """Yield all combinations, one row of each input with equal keys, with >= 1 new row.

    `old[i]` and `new[i]` are the sorted runs of input i (any number of runs, each `Rows`; the
    runs of one input may overlap). With `need_old` also >= 1 old row is asked for. Each yielded
    table has `spec.joined_schema`, and about `batch_bytes` bytes at most. `sample_every` 0: no
    sample of ages.

    `last_drop` gives for hashes (n,) the epochs of their last drop (n,): old rows of a run born
    at or before it do not count.

    Of a windowed join the runs are joined slice by slice, each with those that are near it, so that
    the cost is that of rows which can join, however much time an epoch brings.
    """
    known = all(rows.slice is not None for runs in new for rows in runs)
    steps: Iterable[Step] = [Step(old, new, [len(runs) for runs in old])]
    if spec.span is not None and known:
        steps = _by_slices(spec.span, old, new)
    for step in steps:
        yield from _joined(
            spec,
            step,
            need_old=need_old,
            batch_bytes=batch_bytes,
            sample_every=sample_every,
            last_drop=last_drop,
        )


def _by_slices(
    span: Span, old: Sequence[Sequence[Rows]], new: Sequence[Sequence[Rows]]
) -> Iterator[Step]:
    """For each slice of new rows, in the order of time: what is near and was there before, new rows
    of earlier slices behind it; and the slice's own rows."""
    size, width_us = slice_us(span), span.width_us
    for slice_ in sorted({rows.slice for runs in new for rows in runs if rows.slice is not None}):
        begin = slice_ * size
        first, last = (begin - width_us) // size, (begin + size - 1 + width_us) // size
        near = [[r for r in runs if r.slice is None or first <= r.slice <= last] for runs in old]
        before = [
            [r for r in runs if r.slice is not None and first <= r.slice < slice_] for runs in new
        ]
        yield Step(
            [[*olds, *news] for olds, news in zip(near, before, strict=True)],
            [[rows for rows in runs if rows.slice == slice_] for runs in new],
            [len(runs) for runs in near],
        )


def _joined(
    spec: JoinSpec,
    step: Step,
    *,
    need_old: bool,
    batch_bytes: int,
    sample_every: int,
    last_drop: Callable[[U64], I64] | None,
) -> Iterator[Joined]:
    old, new = step.old, step.new
    found = probe(
        [[(run.key_hash, run.born) for run in runs] for runs in old],
        [[run.key_hash for run in runs] for runs in new],
        last_drop,
    )
    if not len(found.hashes):
        return
    sources = [[*olds, *news] for olds, news in zip(old, new, strict=True)]
    proper = None
    if need_old and any(len(r) > n for r, n in zip(old, step.proper, strict=True)):
        proper = [
            rows_of_keys(side.spans[:runs], len(found.hashes))
            for side, runs in zip(found.sides, step.proper, strict=True)
        ]
    there, fresh = [s.old for s in found.sides], [s.new for s in found.sides]
    boxes = boxes_of(there, fresh, proper=proper, need_old=need_old)
    if need_old:  # keys whose rows are all new were candidates too
        produces = np.zeros(len(found.hashes), dtype=np.bool_)
        produces[boxes.key] = True
        found = found.only(produces)
        boxes = replace(boxes, key=(np.cumsum(produces) - 1)[boxes.key])
    limit = max(1, batch_bytes // _result_bytes(sources))
    making = _Making(spec, sources, found, batch_bytes, sample_every)
    for first, last, hot in _groups_of_keys(boxes, limit):
        some = boxes.of(slice(first, last))
        if not hot:
            yield from making.batches(some)
            continue
        for n in range(len(some.key)):
            key = int(some.key[n])
            for piece in pieces(some.start[:, n].tolist(), some.length[:, n].tolist(), limit):
                yield from making.piece(key, piece)


def _result_bytes(sources: Sequence[Sequence[Rows]]) -> int:
    """Estimate of a result's bytes: the average rows of all inputs together."""
    total = 1
    for runs in sources:
        rows = sum(run.table.num_rows for run in runs)
        total += sum(run.table.nbytes for run in runs) // max(rows, 1)
    return total


def _groups_of_keys(boxes: Boxes, limit: int) -> Iterator[tuple[int, int, bool]]:
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


@dataclass(frozen=True)
class _Gathered:
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
class _Making:
    """Turns boxes into batches."""

    spec: JoinSpec
    sources: Sequence[Sequence[Rows]]
    found: MatchCandidates
    batch_bytes: int
    sample_every: int

    def batches(self, boxes: Boxes) -> Iterator[Joined]:
        """Results of whole keys, which lie side by side."""
        first, last = int(boxes.key[0]), int(boxes.key[-1]) + 1
        gathered = []
        for side, runs in zip(self.found.sides, self.sources, strict=True):
            spans = []
            for each in side.spans:
                a, b = np.searchsorted(each.key, [first, last])
                spans.append(Spans(each.key[a:b] - first, each.start[a:b], each.size[a:b]))
            gathered.append(_gather(runs, spans, (side.old + side.new)[first:last]))
        own = Boxes(boxes.key - first, boxes.start, boxes.length, boxes.size)
        yield from self._results(self.found.hashes[first:last], gathered, own)

    def piece(self, key: int, box: Boxes) -> Iterator[Joined]:
        """Results of a part of one hot key: only the rows of that part are gathered."""
        gathered = []
        for i, (side, runs) in enumerate(zip(self.found.sides, self.sources, strict=True)):
            begin, wanted = int(box.start[i, 0]), int(box.length[i, 0])
            spans, rank = [], 0
            for each in side.spans:
                at = int(np.searchsorted(each.key, key))
                here = at < len(each.key) and int(each.key[at]) == key
                start, count = (int(each.start[at]), int(each.size[at])) if here else (0, 0)
                low = min(max(begin - rank, 0), count)
                high = min(max(begin + wanted - rank, 0), count)
                spans.append(
                    Spans(np.zeros(1, np.int64), np.array([start + low]), np.array([high - low]))
                )
                rank += count
            gathered.append(_gather(runs, spans, np.array([wanted])))
        own = Boxes(box.key * 0, box.start * 0, box.length, box.size)
        yield from self._results(self.found.hashes[key : key + 1], gathered, own)

    def _results(self, hashes: U64, gathered: list[_Gathered], boxes: Boxes) -> Iterator[Joined]:
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

    def _in_time(self, gathered: list[_Gathered], picks: list[I64]) -> Bool | None:
        """Which results have times that join (n,); None: the join has no window."""
        if self.spec.span is None:
            return None
        least, greatest = self._times(gathered, picks)
        return self.spec.span.joins(least, greatest)

    def _times(self, gathered: list[_Gathered], picks: list[I64]) -> tuple[list[I64], list[I64]]:
        """The least and the greatest time of each input's rows, int64 (n,) each."""
        least, greatest = [], []
        for each, input_, pick in zip(gathered, self.spec.inputs, picks, strict=True):
            least.append(_numbers(each.table.column(-len(input_.times)))[pick])
            last = each.table.column(-1)
            greatest.append(_numbers(last)[pick] if len(input_.times) > 1 else least[-1])
        return least, greatest

    def _equal_keys(self, gathered: list[_Gathered], picks: list[I64], keys: int) -> Bool | None:
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
        self, gathered: list[_Gathered], picks: list[I64]
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

    def _newest(self, gathered: list[_Gathered], picks: list[I64]) -> I64:
        if not self.sample_every:
            return np.zeros(0, dtype=np.int64)
        ages = [
            each.kafka_ms[pick[:: self.sample_every]]
            for each, pick in zip(gathered, picks, strict=True)
            if each.kafka_ms is not None
        ]
        newest: I64 = np.maximum.reduce(ages) if ages else np.zeros(0, dtype=np.int64)
        return newest

    def _table(self, gathered: list[_Gathered], picks: list[I64]) -> pa.Table:
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


def _gather(runs: Sequence[Rows], spans: Sequence[Spans], counts: I64) -> _Gathered:
    """Take the spans' rows; `counts` (k,) are the rows of each key over all its spans."""
    base = np.cumsum(counts) - counts
    filled = base.copy()
    tables, wheres, numbers, stamps = [], [], [], []
    stamped = any(run.kafka_ms is not None for run in runs)
    for run, (key, start, count) in zip(runs, spans, strict=True):
        rows = int(count.sum())
        if not rows:
            continue
        index = expand(start, count)
        tables.append(run.table.take(pa.array(index)))
        wheres.append(expand(filled[key], count))
        filled[key] += count
        numbers.append(np.repeat(key, count))
        if stamped:
            none = np.full(rows, -1, np.int64)
            stamps.append(none if run.kafka_ms is None else run.kafka_ms[index])
    table = tables[0] if len(tables) == 1 else pa.concat_tables(tables).combine_chunks()
    where = None
    if len(tables) > 1:
        where = np.empty(table.num_rows, dtype=np.int64)
        where[np.concatenate(wheres)] = np.arange(table.num_rows)
    return _Gathered(
        table,
        where,
        base,
        numbers[0] if len(numbers) == 1 else np.concatenate(numbers),
        np.concatenate(stamps) if stamped else None,
    )


def expand(start: I64, count: I64) -> I64:
    """Rows start[i], start[i]+1, ... start[i]+count[i]-1 of every span, one after the other."""
    total = int(count.sum())
    if total == len(count):  # every span is one row (a span without rows does not occur here)
        return start
    rows: I64 = np.arange(total) + np.repeat(start - (np.cumsum(count) - count), count)
    return rows


def picked(table: pa.Table, at: I64) -> pa.Table:
    """These rows; nothing is copied when they are all, in their order (`take` of one hot hash
    could overflow the 2 GiB of a string column)."""
    if len(at) == table.num_rows and (at[1:] > at[:-1]).all():
        return table
    return table.take(pa.array(at))


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
