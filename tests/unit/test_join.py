"""The join kernel's small parts, at their edges: what goes into one batch, and what a row takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from spillway.engine.groups import I64, U64
from spillway.engine.join.batches import (
    Gathered,
    Joined,
    ResultBatches,
    _row_bytes,
    groups_of_keys,
    most_results,
)
from spillway.engine.join.boxes import Boxes
from spillway.engine.join.kernel import (
    Rows,
    _gather,
    expand,
    join_batches,
)
from spillway.engine.join.probe import Spans
from spillway.engine.join.spec import InputSpec, JoinSpec

KEYS = pa.schema(
    [
        pa.field("symbol", pa.string(), nullable=False),
        pa.field("minute", pa.int64(), nullable=False),
    ]
)
SPEC = JoinSpec(
    0,
    KEYS,
    (
        InputSpec("a", pa.schema([("x", pa.int64())])),
        InputSpec("b", pa.schema([("y", pa.string())])),
    ),
)


def boxes(*sizes: tuple[int, int]) -> Boxes:
    """A box for each (key, results)."""
    key = np.array([key for key, _ in sizes], np.int64)
    nothing = np.zeros((2, len(sizes)), np.int64)
    return Boxes(key, nothing, nothing, np.array([size for _, size in sizes], np.int64))


def test_whole_keys_share_a_batch_and_a_hot_one_stands_alone() -> None:
    # By key: 7 and 3 fill a batch of 10 to the last result, 11 is more than one may have.
    sizes = [(0, 4), (0, 3), (1, 3), (2, 1), (2, 10), (3, 10), (4, 1), (5, 9), (6, 1)]
    assert list(groups_of_keys(boxes(*sizes), 10)) == [
        (0, 3, False),
        (3, 5, True),
        (5, 6, False),
        (6, 8, False),
        (8, 9, False),
    ]
    assert list(groups_of_keys(boxes((0, 10), (1, 1)), 10)) == [(0, 1, False), (1, 2, False)]
    assert list(groups_of_keys(boxes((1, 2), (1, 3), (4, 6)), 5)) == [(0, 2, False), (2, 3, True)]
    assert list(groups_of_keys(boxes(), 10)) == []
    # All results together may be more than an int64 counts.
    most = [(0, 2**62), (1, 2**62), (2, 2**62), (3, 5)]
    hot = [(i, i + 1, True) for i in range(3)]
    assert list(groups_of_keys(boxes(*most), 10)) == [*hot, (3, 4, False)]


def gathered(table: pa.Table) -> Gathered:
    number = np.zeros(table.num_rows, np.int64)
    return Gathered(table, None, np.zeros(1, np.int64), number, None)


def cut(widths: list[int], batch_bytes: int) -> list[tuple[int, int]]:
    """Where results of these bytes are cut: 8 of each are the first input's."""
    sides = [
        gathered(pa.table({"x": pa.array([1], pa.int64())})),
        gathered(pa.table({"y": ["." * (width - 8 - 4) for width in widths]})),
    ]
    picks: list[I64] = [np.zeros(len(widths), np.int64), np.arange(len(widths))]
    return list(ResultBatches(SPEC, batch_bytes)._cut_by_bytes(sides, picks))


@pytest.mark.parametrize(
    ("widths", "batch_bytes", "expected"),
    [
        # By the widest row: up to twice what a batch should have stays whole.
        ([16, 16, 16], 24, [(0, 3)]),
        ([16, 16, 17], 24, [(0, 1), (1, 2), (2, 3)]),
        ([16] * 5, 32, [(0, 2), (2, 4), (4, 5)]),
        ([16, 17, 16, 16, 16], 32, [(0, 1), (1, 2), (2, 4), (4, 5)]),
        ([12, 12, 99, 12, 12, 12, 99], 36, [(0, 2), (2, 3), (3, 6), (6, 7)]),
    ],
)
def test_wide_rows_are_cut_into_more_batches(
    widths: list[int], batch_bytes: int, expected: list[tuple[int, int]]
) -> None:
    assert cut(widths, batch_bytes) == expected


def test_no_results_are_no_batch() -> None:
    sides = [gathered(pa.table({"x": [1]})), gathered(pa.table({"y": ["."]}))]
    assert list(ResultBatches(SPEC, 1)._cut_by_bytes(sides, [np.zeros(0, np.int64)] * 2)) == []


def test_bytes_of_rows_are_those_of_their_values() -> None:
    table = pa.table(
        {
            "int": pa.array([1, None, 3], pa.int64()),
            "bool": [True, False, None],
            "day": pa.array([0, 1, None], pa.date32()),
            "price": pa.array([Decimal(1), None, Decimal(3)], pa.decimal128(10, 2)),
            "text": pa.chunked_array([["", None], ["four"]]),
        }
    )
    assert _row_bytes(table).tolist() == [8 + 1 + 4 + 16 + 4 + n for n in (0, 0, 4)]


def test_bytes_of_a_result_are_those_of_an_average_row_of_each_input() -> None:
    def table(*values: int) -> pa.Table:
        return pa.table({"x": pa.array(values, pa.int64())})

    assert most_results(170, [[table(1, 2, 3), table(4)], [table(5)]]) == 170 // (1 + 8 + 8)
    assert most_results(170, [[table()], []]) == 170
    assert most_results(1, [[table(1)]]) == 1


def test_spans_become_rows() -> None:
    start, count = np.array([3, 10, 0]), np.array([2, 1, 3])
    assert expand(start, count).tolist() == [3, 4, 10, 0, 1, 2]
    assert expand(start, np.ones(3, np.int64)).tolist() == [3, 10, 0]


def rows(
    input_: int, found: list[tuple[int, str, int]], first: int, stamps: list[int] | None = None
) -> Rows:
    """Rows of (hash, symbol, minute), numbered from `first` on."""
    numbers = list(range(first, first + len(found)))
    columns = [
        [symbol for _, symbol, _ in found],
        [minute for _, _, minute in found],
        [f"y{n}" for n in numbers] if input_ else numbers,
        [input_] * len(found),
        numbers,
    ]
    schema = SPEC.row_schema(input_)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    kafka_ms = None if stamps is None else np.array(stamps, np.int64)
    hashes = np.array([h for h, _, _ in found], np.uint64)
    return Rows(hashes, pa.Table.from_arrays(arrays, schema=schema), kafka_ms)


def pairs(batches: list[Joined]) -> list[tuple[int, int]]:
    return [
        pair
        for batch in batches
        for pair in zip(
            batch.table["a_offset"].to_pylist(), batch.table["b_offset"].to_pylist(), strict=True
        )
    ]


@pytest.mark.parametrize("batch_bytes", [1, 150, 1 << 20])
def test_equal_hashes_of_other_keys_join_nothing(batch_bytes: int) -> None:
    """Hash 5 has three keys that differ in the first column, the second, or both."""
    a = rows(0, [(5, "S", 1), (5, "T", 1), (5, "S", 2), (7, "S", 3), (9, "S", 4)], 10)
    b = rows(1, [(5, "S", 2), (5, "T", 2), (5, "T", 1), (7, "S", 3), (9, "S", 5)], 20)
    batches = list(join_batches(SPEC, [[], []], [[a], [b]], batch_bytes=batch_bytes))
    assert sorted(pairs(batches)) == [(11, 22), (12, 20), (13, 23)]
    counted = {5: 0, 7: 0, 9: 0}
    for batch in batches:
        for hash_, number in zip(batch.hashes.tolist(), batch.results.tolist(), strict=True):
            counted[hash_] += number
        assert set(batch.table["symbol"].to_pylist()) <= {"S", "T"}
    assert counted == {5: 2, 7: 1, 9: 0}


@pytest.mark.parametrize("batch_bytes", [1, 1 << 20])
def test_a_result_is_as_old_as_its_newest_row(batch_bytes: int) -> None:
    old = rows(0, [(3, "S", 1), (8, "T", 1)], 0)
    a = rows(0, [(3, "S", 1), (3, "S", 1)], 10, [700, 100])
    b = rows(1, [(3, "S", 1), (8, "T", 1)], 20, [300, 0])
    batches = list(
        join_batches(SPEC, [[old], []], [[a], [b]], batch_bytes=batch_bytes, sample_every=1)
    )
    ages = [age for batch in batches for age in batch.newest_ms.tolist()]
    assert dict(zip(pairs(batches), ages, strict=True)) == {
        (0, 20): 300,
        (10, 20): 700,
        (11, 20): 300,
        (1, 21): 0,
    }
    # One in three of each batch, from its first on; none when none are asked for.
    some = list(join_batches(SPEC, [[old], []], [[a], [b]], sample_every=3))
    assert [len(batch.newest_ms) for batch in some] == [2]
    none = list(join_batches(SPEC, [[old], []], [[a], [b]]))
    plain = rows(1, [(3, "S", 1), (8, "T", 1)], 20)
    none += join_batches(SPEC, [[old], []], [[], [plain]], sample_every=1)
    assert [len(batch.newest_ms) for batch in none] == [0, 0]
    assert {batch.newest_ms.dtype for batch in (*batches, *some, *none)} == {np.dtype(np.int64)}


def test_batches_of_one_result_when_no_more_fits() -> None:
    """Hot keys and cold ones in turn: none ends the others."""
    old = rows(0, [(1, "S", 1), (2, "S", 2), (4, "S", 4)], 0)
    a = rows(0, [(2, "S", 2), (3, "S", 3)], 10)
    b = rows(1, [(h, "S", h) for h in (1, 1, 2, 3, 3, 4)], 20)
    expected = [(0, 20), (0, 21), (1, 22), (2, 25), (10, 22), (11, 23), (11, 24)]
    for batch_bytes, most in ((0, 1), (1, 1), (10**6, 7)):
        batches = list(join_batches(SPEC, [[old], []], [[a], [b]], batch_bytes=batch_bytes))
        assert sorted(pairs(batches)) == expected
        assert max(batch.table.num_rows for batch in batches) == most


@pytest.mark.parametrize("batch_bytes", [1, 10**6])
def test_an_old_row_may_be_asked_for_as_well(
    batch_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hash 1 has new rows only, hash 3 no row of the other input, hash 9 old ones only."""

    def watched(runs: Sequence[Rows], spans: Sequence[Spans], counts: I64) -> Gathered:
        found = _gather(runs, spans, counts)
        assert found.table.num_rows == counts.sum(), "no more rows than a batch needs"
        return found

    monkeypatch.setattr("spillway.engine.join.kernel._gather", watched)
    runs = [rows(0, [(2, "S", 2), (9, "S", 9)], 0), rows(0, [(2, "S", 2)], 2)]
    other = rows(1, [(5, "S", 5), (5, "S", 5), (9, "S", 9)], 30)
    a = rows(0, [(1, "S", 1), (2, "S", 2), (3, "S", 3), (5, "S", 5)], 10)
    b = rows(1, [(1, "S", 1), (2, "S", 2), (5, "S", 5)], 20)
    old, new = [runs, [other]], [[a], [b]]
    expected = [(0, 21), (2, 21), (13, 30), (13, 31)]
    for need_old, more in ((True, []), (False, [(10, 20), (11, 21), (13, 22)])):
        batches = list(
            join_batches(SPEC, old, new, need_old=need_old, batch_bytes=batch_bytes, sample_every=1)
        )
        assert sorted(pairs(batches)) == sorted(expected + more)
        given: Counter[int] = Counter()
        for batch in batches:
            given.update(dict(zip(batch.hashes.tolist(), batch.results.tolist(), strict=True)))
        assert given == ({2: 2, 5: 2} if need_old else {1: 1, 2: 3, 5: 3})
    (whole,) = join_batches(SPEC, old, new)
    assert whole.table.num_rows == 7
    assert list(join_batches(SPEC, [[], []], new, need_old=True)) == []


def test_rows_that_were_dropped_do_not_count() -> None:
    run = rows(0, [(1, "S", 1), (2, "S", 2)], 0)
    old = [[Rows(run.key_hash, run.table, born=born) for born in (3, 4)], []]
    new = [[], [rows(1, [(1, "S", 1), (2, "S", 2)], 20)]]

    def last_drop(hashes: U64) -> I64:
        return np.where(hashes == 1, 3, -1)

    found = pairs(list(join_batches(SPEC, old, new, last_drop=last_drop)))
    assert sorted(found) == [(0, 20), (1, 21), (1, 21)]


def test_a_result_has_the_columns_of_its_rows() -> None:
    a, b = rows(0, [(1, "S", 1), (2, "T", 2)], 10), rows(1, [(1, "S", 1), (2, "T", 2)], 20)
    (batch,) = join_batches(SPEC, [[], []], [[a], [b]])
    table = batch.table
    assert table.schema == SPEC.joined_schema
    assert table.to_pylist() == [
        {
            "symbol": symbol,
            "minute": 1 + n,
            "a_x": 10 + n,
            "b_y": f"y{20 + n}",
            "a_partition": 0,
            "a_offset": 10 + n,
            "b_partition": 1,
            "b_offset": 20 + n,
        }
        for n, symbol in enumerate("ST")
    ]
