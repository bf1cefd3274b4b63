"""The windowed join by slices, and the generations of rows that were spilled early, against slow
references."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from spillway.engine.groups import U64
from spillway.engine.join.kernel import Rows, join_batches
from spillway.engine.join.spec import InputSpec, JoinSpec
from spillway.engine.spill.generations import GenerationEnds
from spillway_schemas.journal import Prefix
from spillway_schemas.windows import LEAST_SLICE_US, Span, slice_us
from tests.lanes import explored

KEYS = pa.schema([pa.field("k", pa.int64(), False)])


class Row(NamedTuple):
    """A row of an input: its offset tells it from all others."""

    input: int
    key: int
    time: int
    offset: int
    old: bool


def spec_of(span: Span) -> JoinSpec:
    inputs = tuple(InputSpec(f"s{n}", pa.schema([]), timed=True) for n in range(span.inputs))
    return JoinSpec(0, KEYS, inputs, span)


def runs(spec: JoinSpec, input_: int, rows: Sequence[Row], size: int) -> list[Rows]:
    """Rows of one input in sorted runs of one slice each; keys 0 and 1 share a hash."""
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row.time // size, []).append(row)
    made = []
    for slice_, some in found.items():
        some.sort(key=lambda row: row.key // 2)
        hashes = np.array([row.key // 2 for row in some], np.uint64)
        columns = [
            [row.key for row in some],
            [0] * len(some),
            [row.offset for row in some],
            [row.time for row in some],
        ]
        schema = spec.row_schema(input_)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
        table = pa.Table.from_arrays(arrays, schema=schema)
        made.append(Rows(hashes, table, slice=slice_))
    return made


def in_time(span: Span, rows: Sequence[Row]) -> bool:
    times = [row.time for row in rows]
    if span.bands_us is None:
        return max(times) - min(times) <= span.width_us
    bands = span.bands_us[1:]
    return all(low <= t - times[0] <= high for t, (low, high) in zip(times[1:], bands, strict=True))


SECONDS = st.integers(-3, 6).map(lambda n: n * LEAST_SLICE_US // 2)
SPANS = st.one_of(
    st.builds(Span.within, st.integers(2, 3), SECONDS.map(abs)),
    st.lists(
        st.tuples(SECONDS, SECONDS.map(abs)).map(lambda b: (b[0], b[0] + b[1])),
        min_size=1,
        max_size=2,
    ).map(Span.around),
)


@explored(30, 400, SPANS, st.data(), st.sampled_from((1, 10**6)), st.booleans())
def test_slices_give_what_all_combinations_give(
    span: Span, data: st.DataObject, batch_bytes: int, need_old: bool
) -> None:
    drawn = data.draw(
        st.lists(
            st.tuples(
                st.integers(0, span.inputs - 1),
                st.integers(0, 3),
                st.integers(-8, 24).map(lambda n: n * LEAST_SLICE_US // 3),
                st.booleans(),
            ),
            max_size=12,
        )
    )
    rows = [Row(i, key, time, n, old) for n, (i, key, time, old) in enumerate(drawn)]
    spec = spec_of(span)
    apart = [[row for row in rows if row.input == i] for i in range(span.inputs)]
    expected = Counter(
        tuple(row.offset for row in each)
        for each in itertools.product(*apart)
        if len({row.key for row in each}) == 1
        and not all(row.old for row in each)
        and (not need_old or any(row.old for row in each))
        and in_time(span, each)
    )
    size = slice_us(span)
    old, new = (
        [runs(spec, i, [r for r in mine if r.old == old], size) for i, mine in enumerate(apart)]
        for old in (True, False)
    )
    unknown = [[replace(run, slice=None) for run in mine] for mine in new]
    for fresh in (new, unknown):
        found: Counter[tuple[int, ...]] = Counter()
        for batch in join_batches(spec, old, fresh, need_old=need_old, batch_bytes=batch_bytes):
            names = [f"s{i}_offset" for i in range(span.inputs)]
            found.update(zip(*(batch.table[name].to_pylist() for name in names), strict=True))
            assert int(batch.results.sum()) == batch.table.num_rows
        assert found == expected


CUTS = st.lists(
    st.tuples(
        st.integers(0, 3).flatmap(
            lambda depth: st.integers(0, 2**depth - 1).map(lambda value: Prefix(depth, value))
        ),
        st.integers(0, 9),
    ),
    max_size=8,
)
SPILLED = st.lists(st.tuples(st.integers(0, 15), st.integers(0, 12)), min_size=1, max_size=9)


@explored(30, 400, CUTS, SPILLED)
def test_a_row_is_of_the_generation_that_the_next_cut_of_its_hash_ends(
    cuts: list[tuple[Prefix, int]], rows: list[tuple[int, int]]
) -> None:
    last = 10
    hashes: U64 = np.array([n << 60 for n, _ in rows], np.uint64)
    epochs = np.array([epoch for _, epoch in rows], np.int64)
    found = GenerationEnds(cuts, last).of(hashes, epochs).tolist()
    for (n, epoch), ended in zip(rows, found, strict=True):
        mine = [at for prefix, at in cuts if prefix.lo <= n << 60 < prefix.hi and at >= epoch]
        assert ended == (epoch if epoch > last else min(mine, default=last))
