"""The join kernel: a sorted probe that costs O(new rows x log state) plus its output.

Model: rows of each input lie in sorted runs. `probe` finds, by hashes alone, the keys that
produce and the spans of their rows; `boxes` says which combinations count; here rows are
gathered for producing keys only and results leave in batches.

Invariants:

* Every combination of rows (one of each input, equal keys, times that the join's span joins,
  >= 1 new; with `need_old` also >= 1 old) is yielded exactly once; equal rows are different rows.
* Equal hashes with different keys never join, and a batch has about `batch_bytes` bytes at most
  (`spillway.engine.join.batches`). The rows gathered for it are no more than its results per
  input: memory does not depend on the number of results, nor on the rows of a hot key.

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

from spillway.engine.groups import I64, U64
from spillway.engine.join.batches import (
    BATCH_BYTES,
    Gathered,
    Joined,
    ResultBatches,
    groups_of_keys,
    most_results,
)
from spillway.engine.join.boxes import Boxes, boxes_of, pieces
from spillway.engine.join.probe import MatchCandidates, Spans, probe, rows_of_keys
from spillway.engine.join.spec import JoinSpec
from spillway_schemas.windows import Span, slice_us

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
    limit = most_results(batch_bytes, [[run.table for run in runs] for runs in sources])
    making = _Making(sources, found, ResultBatches(spec, batch_bytes, sample_every))
    for first, last, hot in groups_of_keys(boxes, limit):
        some = boxes.of(slice(first, last))
        if not hot:
            yield from making.batches(some)
            continue
        for n in range(len(some.key)):
            key = int(some.key[n])
            for piece in pieces(some.start[:, n].tolist(), some.length[:, n].tolist(), limit):
                yield from making.piece(key, piece)


@dataclass(frozen=True)
class _Making:
    """Gathers the rows of boxes, and turns these into batches."""

    sources: Sequence[Sequence[Rows]]
    found: MatchCandidates
    results: ResultBatches

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
        yield from self.results.of(self.found.hashes[first:last], gathered, own)

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
        yield from self.results.of(self.found.hashes[key : key + 1], gathered, own)


def _gather(runs: Sequence[Rows], spans: Sequence[Spans], counts: I64) -> Gathered:
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
    return Gathered(
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
