"""Slices: rows of windowed joins apart by time, so that what has expired leaves by whole files.

Model: rows of a piece or a file of a windowed join have their least times in one slice
(`spillway_schemas.windows`). Rows are cut into slices when they come to a slot, and stay in theirs
through merges, spills and moves. So a file expires as a whole, with the last time of its slice, and
what is in memory follows from the rows and the watermark alone: it is the same in whatever order
rows came, and for rows that were restored.

Known limitation: an epoch that brings rows of many windows, as after a pause, makes files for each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from spillway.engine.groups import I64, Bool
from spillway.engine.join.kernel import Rows
from spillway.engine.join.tree import TreeSpec
from spillway_schemas.windows import BEGINNING_US, expired, last_us, slice_us


def least_of(spec: TreeSpec, input_: int, table: pa.Table) -> I64:
    """The least time of rows of an input that has times, in us since 1970, int64 (n,)."""
    found: I64 = table.column(-len(spec.inputs[input_].times)).to_numpy()
    return found


def greatest_of(table: pa.Table) -> I64:
    """The greatest time of rows of an input that has times, int64 (n,)."""
    found: I64 = table.column(-1).to_numpy()
    return found


def sliced(spec: TreeSpec, input_: int, rows: Rows) -> list[Rows]:
    """Rows of an input apart by slices, in the order of time; those of a join without a window as
    they are."""
    span = spec.join_of_input(input_).span
    if span is None or not len(rows.key_hash):
        return [rows]
    number = least_of(spec, input_, rows.table) // slice_us(span)
    slices = np.unique(number).tolist()
    if len(slices) == 1:
        return [replace(rows, slice=slices[0])]
    order = np.argsort(number, kind="stable")  # within a slice by hash, as before
    bounds = np.searchsorted(number[order], [*slices, slices[-1] + 1]).tolist()
    return [
        replace(taken(rows, order[first:last]), slice=slice_)
        for slice_, (first, last) in zip(slices, pairwise(bounds), strict=True)
    ]


def taken(rows: Rows, at: I64 | Bool) -> Rows:
    """Some rows, by ascending positions or flags."""
    stamps = None if rows.kafka_ms is None else rows.kafka_ms[at]
    index = np.flatnonzero(at) if at.dtype == np.bool_ else at
    return replace(
        rows,
        key_hash=rows.key_hash[at],
        table=rows.table.take(pa.array(index)),
        kafka_ms=stamps,
    )


def by_slice(pieces: Iterable[Rows]) -> list[list[Rows]]:
    """Pieces of one input apart by slices, in the order of time."""
    found: dict[int, list[Rows]] = {}
    for rows in pieces:
        found.setdefault(0 if rows.slice is None else rows.slice, []).append(rows)
    return [some for _, some in sorted(found.items())]


def is_over(spec: TreeSpec, input_: int, slice_: int | None, watermark_us: int) -> bool:
    """Whether all rows of a slice have expired."""
    span = spec.join_of_input(input_).span
    if span is None or slice_ is None:
        return False
    return bool(expired(last_us(slice_, slice_us(span)), _horizon(spec, input_), watermark_us))


def are_over(spec: TreeSpec, input_: int, least_us: I64, watermark_us: int) -> Bool:
    """Which rows lie in a slice of which all have expired, bool (n,), by their least times."""
    span = spec.join_of_input(input_).span
    if span is None or watermark_us == BEGINNING_US:
        return np.zeros(len(least_us), dtype=np.bool_)
    size = slice_us(span)
    found = expired((least_us // size + 1) * size - 1, _horizon(spec, input_), watermark_us)
    return np.asarray(found, dtype=np.bool_)


def _horizon(spec: TreeSpec, input_: int) -> int:
    join = spec.operators[input_]
    span = spec.joins[join].span
    assert span is not None, "it has a window"
    return span.horizons_us[input_ - spec.inputs_of(join).start]
