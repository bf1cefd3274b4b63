"""Sums of weights by key, against the same row by row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import date
from decimal import Decimal
from math import nan, prod
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spillway.decode import compile_streams
from spillway.storage import folder
from spillway.verify import sums
from spillway.verify.arithmetic import PRIMES
from spillway.verify.rows import decoded_schema
from spillway.verify.single import sum_plan
from spillway.verify.sums import (
    BLOCKS,
    buckets_for,
    buckets_of,
    is_damage,
    judged_sums,
    numbered,
    read_files,
    result_names,
    summed_input,
    summed_quarantine,
    summed_results,
)
from spillway.verify.weights import Weigher, mixed, residues_of, words_of
from spillway.verify.workers import TOTALS
from spillway_schemas.query import load_query

PLANS = compile_streams(load_query("symbol"))
SALT = 77


def slow_mix(word: int) -> int:
    """The end of splitmix64, on Python's numbers."""
    word = ((word ^ word >> 30) * 0xBF58476D1CE4E5B9) % 2**64
    word = ((word ^ word >> 27) * 0x94D049BB133111EB) % 2**64
    return word ^ word >> 31


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=9))
def test_words_are_mixed_and_reduced(words: list[int]) -> None:
    given_ = np.array(words, dtype=np.uint64)
    assert mixed(given_).tolist() == [slow_mix(word) for word in words]
    for found, prime in zip(residues_of(given_), PRIMES, strict=True):
        assert found.tolist() == [word % prime for word in words]


KINDS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int64(), [1, 2, -1, None, 2**62]),
    (pa.int32(), [1, 0, -5, None]),
    (pa.float64(), [1.5, 0.0, nan, None, -1.5]),
    (pa.bool_(), [True, False, None]),
    (pa.string(), ["", "a", "b", None, "aa"]),
    (pa.date32(), [date(2026, 1, 5), date(1970, 1, 1), None]),
    (pa.timestamp("us", "UTC"), [1_700_000_000_000_000, 0, None]),
    (pa.decimal128(9, 2), [Decimal("1.00"), Decimal("-1.00"), None]),
]


@pytest.mark.parametrize(("kind", "values"), KINDS, ids=lambda each: str(each)[:20])
def test_each_value_has_a_number_of_its_own_however_it_comes(
    kind: pa.DataType, values: list[Any]
) -> None:
    """In one chunk or several, as a slice, as a dictionary."""
    column = pa.array(values, kind)
    weigher = Weigher(SALT, 1, 1)
    place = pa.array([3] * len(values), pa.int32()), pa.array([9] * len(values))

    def of(column: Any) -> list[tuple[int, int]]:
        first, second = weigher.residues(*place, [column])
        return list(zip(first.tolist(), second.tolist(), strict=True))

    found = of(column)
    assert len(set(found)) == len(values)
    assert of(pa.chunked_array([column.slice(0, 1), column.slice(1)])) == found
    assert of(pa.concat_arrays([column, column]).slice(len(values))) == found
    assert of(column.dictionary_encode()) == found
    assert not {*found} & {
        *zip(*map(list, Weigher(SALT + 1, 1, 1).residues(*place, [column])), strict=True)
    }
    assert not {*found} & {
        *zip(*map(list, Weigher(SALT, 2, 1).residues(*place, [column])), strict=True)
    }


ALIKE = [
    ([1.5, 2.5], [-1.5, -2.5]),
    ([1.0, 2.0], [2.0, 1.0]),
    ([0.0, 2.0], [2.0, 0.0]),
    ([4, 0], [0, 4]),
    ([0, 2**62], [2**62, 0]),
    ([1, -1], [-1, 1]),
]
"""Rows that differ in two columns by the same high bits."""


@pytest.mark.parametrize(("row", "other"), ALIKE)
def test_differences_of_two_columns_do_not_cancel(row: list[Any], other: list[Any]) -> None:
    place = pa.array([3, 3], pa.int32()), pa.array([9, 9])
    columns = [pa.array([x, y]) for x, y in zip(row, other, strict=True)]
    for salt in range(300):
        first, second = Weigher(salt, 1, 2).residues(*place, columns)
        assert first[0] != first[1]
        assert second[0] != second[1]


def test_coordinates_are_not_alike_either() -> None:
    """Offsets and partitions that change places, and that differ by powers of two."""
    partition, offset = (each.reshape(-1) for each in np.meshgrid(np.arange(64), np.arange(64)))
    place = pa.array(partition.astype(np.int32)), pa.array(offset << 40)
    for salt in range(20):
        first, second = Weigher(salt, 0, 0).residues(*place, [])
        assert len(set(zip(first.tolist(), second.tolist(), strict=True))) == 64 * 64


def test_zeros_and_what_is_no_number_are_one_each_and_nulls_lie_in_their_column() -> None:
    words = words_of(pa.array([0.0, -0.0, nan, -nan, float("inf")]), 1)
    assert words[0] == words[1] != words[2] == words[3] != words[4]
    weigher = Weigher(SALT, 0, 2)
    place = pa.array([0, 0], pa.int32()), pa.array([1, 1])
    null = pa.nulls(2, pa.string())
    one, other = pa.array(["x", None]), pa.array([None, "x"])
    first, _ = weigher.residues(*place, [one, other])
    assert first[0] != first[1]
    nothing, _ = weigher.residues(*place, [null, null])
    assert nothing[0] == nothing[1] != first[0]
    assert not len(words_of(pa.array([], pa.string()).dictionary_encode(), 1))
    empty = pa.DictionaryArray.from_arrays(
        pa.array([None, None], pa.int32()), pa.array([], pa.string())
    )
    assert weigher.residues(*place, [empty, empty])[0].tolist() == nothing.tolist()


def test_equal_keys_have_one_number() -> None:
    one = pa.array(["a", "b", "a", "b", "a"])
    two = pa.chunked_array([pa.array([1, 1, 2]), pa.array([1, 1])])
    number, first = numbered([one, two])
    assert number.tolist() == [0, 2, 1, 2, 0]
    assert first.tolist() == [0, 2, 1]
    for column in (one, one.dictionary_encode(), pa.chunked_array([one.slice(0, 2), one.slice(2)])):
        number, first = numbered([column])
        assert (number.tolist(), first.tolist()) == ([0, 1, 0, 1, 0], [0, 1])
    unused = pa.DictionaryArray.from_arrays(pa.array([3, 1, 3]), pa.array(["a", "b", "c", "d"]))
    number, first = numbered([unused])
    assert (number.tolist(), first.tolist()) == ([1, 0, 1], [1, 0])


def test_many_columns_of_a_key_are_numbered_without_overflow() -> None:
    draw = np.random.default_rng(4)
    keys = [pa.array(draw.permutation(256)) for _ in range(9)]
    keys[1] = pa.concat_arrays([keys[1].slice(0, 255), keys[1].slice(0, 1)])
    number, first = numbered(keys)
    assert len(first) == 256
    assert len(set(number.tolist())) == 256
    twice = [pa.concat_arrays([key, key]) for key in keys]
    again, _ = numbered(twice)
    assert again.tolist()[:256] == again.tolist()[256:]


def test_a_key_that_is_null_has_a_number_of_its_own() -> None:
    column = pa.array(["a", None, "b", None])
    for key in (column, column.dictionary_encode()):
        number, first = numbered([key])
        assert (number[1] == number[3], len(set(number.tolist()))) == (True, 3)
        assert key.take(pa.array(first)).null_count == 1


def test_a_key_is_of_one_bucket_whatever_it_comes_with() -> None:
    keys = [pa.array([f"S{i}" for i in range(200)]), pa.array(list(range(200)))]
    found = buckets_of(keys, 7)
    assert set(found.tolist()) == set(range(7))
    assert buckets_of([key.slice(50, 9) for key in keys], 7).tolist() == found[50:59].tolist()
    assert buckets_for(10, 2) == 4
    assert buckets_for(18_000_001, 2) == 10


# --- whole sums


Row = tuple[str, int, int]
"""Key, partition, offset."""


def payload_of(i: int, row: Row) -> list[Any]:
    kinds = [field.type for field in PLANS[i].payload]
    return [
        None
        if (row[2] + n) % 5 == 0
        else f"{row[2] % 7}"
        if pa.types.is_string(kind)
        else row[2] % 3 * 1_000
        for n, kind in enumerate(kinds)
    ]


def decoded(
    i: int, rows: Sequence[Row], rejected: Iterable[tuple[int, int]] = ()
) -> pa.RecordBatch:
    lines = [[row[0], *payload_of(i, row), *row[1:], True] for row in rows]
    width = len(PLANS[i].payload)
    lines += [[None] * (width + 1) + [*place, False] for place in rejected]
    schema = decoded_schema(PLANS[i])
    columns = [pa.array([line[n] for line in lines], f.type) for n, f in enumerate(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def results(made: Sequence[tuple[Row, ...]], phases: Sequence[str]) -> pa.RecordBatch:
    columns: dict[str, Any] = {"symbol": pa.array([rows[0][0] for rows in made], pa.string())}
    for plan in PLANS:
        mine = [rows[plan.index] for rows in made]
        columns[f"{plan.name}_partition"] = pa.array([row[1] for row in mine], pa.int32())
        columns[f"{plan.name}_offset"] = pa.array([row[2] for row in mine], pa.int64())
        values = [payload_of(plan.index, row) for row in mine]
        for n, field in enumerate(plan.payload):
            columns[f"{plan.name}_{field.name}"] = pa.array([v[n] for v in values], field.type)
    columns["phase"] = pa.array(list(phases), pa.string())
    return pa.RecordBatch.from_pydict(columns)


def proof(
    inputs: Sequence[Sequence[Row]],
    made: Sequence[tuple[Row, ...]],
    rejected: Sequence[tuple[int, int]] = (),
    held: Sequence[tuple[int, int]] = (),
    buckets: int = 3,
) -> tuple[defaultdict[str, int], set[str]]:
    """Totals over all keys, and the failing keys."""
    plan = sum_plan(PLANS, SALT, range(buckets))
    blocks: list[pa.RecordBatch] = []
    for i, rows in enumerate(inputs):
        half = len(rows) // 2
        bad = rejected if i == 1 else ()
        parts = [decoded(i, rows[:half]), decoded(i, rows[half:], bad), decoded(i, [])]
        blocks += summed_input(plan, PLANS[i], parts)
    phases = ["cleanup" if n % 3 else "run-time" for n in range(len(made))]
    blocks += summed_results(plan, PLANS, [results(made, phases)])
    topic = PLANS[1].topic
    quarantine = {
        "topic": pa.array([topic] * len(held), pa.string()),
        "partition": pa.array([p for p, _ in held], pa.int32()),
        "offset": pa.array([o for _, o in held], pa.int64()),
    }
    blocks += summed_quarantine(plan, [pa.RecordBatch.from_pydict(quarantine)])
    assert all(block.schema == BLOCKS for block in blocks)
    schema = pa.schema([*plan.keys, *TOTALS])
    totals: dict[str, int] = defaultdict(int)
    failing: set[str] = set()
    for bucket in range(buckets):
        mine = [b for b in blocks if b.column(0)[0].as_py() == bucket]
        for batch in judged_sums(plan, schema, mine):
            for line in batch.to_pylist():
                if line["expected"] is None:
                    failing.add(line["k0"])
                else:
                    for name in TOTALS.names:
                        totals[name] += int(line[name])
    return totals, failing


keys = st.sampled_from(["a", "b", "c"])
days = st.lists(st.lists(keys, max_size=6), min_size=3, max_size=3)


def rows_of(day: list[list[str]]) -> list[list[Row]]:
    return [[(key, n % 2, 10 * i + n) for n, key in enumerate(of)] for i, of in enumerate(day)]


def all_results(inputs: list[list[Row]]) -> list[tuple[Row, ...]]:
    stock, volume, review = inputs
    return [
        (s, v, r) for s in stock for v in volume if v[0] == s[0] for r in review if r[0] == s[0]
    ]


@settings(deadline=None)
@given(days, st.data())
def test_what_is_missing_doubled_or_altered_is_found_in_its_key(
    day: list[list[str]], data: st.DataObject
) -> None:
    inputs = rows_of(day)
    made = all_results(inputs)
    bad = [(0, 90), (1, 91)][: data.draw(st.integers(0, 2))]
    totals, failing = proof(inputs, made, bad, bad)
    seen = {key for of in day for key in of}
    expected = sum(prod(of.count(key) for of in day) for key in seen)
    assert (totals["expected"], totals["run_time"] + totals["cleanup"]) == (expected, expected)
    assert (totals["keys"], totals["failing"], totals["rejected_wrong"]) == (len(seen), 0, 0)
    assert (totals["rejected"], totals["quarantined"], failing) == (len(bad), len(bad), set())
    assert proof(inputs, made, [(0, 90)], [(0, 92)])[0]["rejected_wrong"] == 1
    if not made:
        return
    one = data.draw(st.sampled_from(made))
    without = list(made)
    without.remove(one)
    assert proof(inputs, without)[1] == {one[0][0]}
    assert proof(inputs, [*made, one])[1] == {one[0][0]}
    altered = (*one[:2], (one[0][0], 5, 999))
    assert proof(inputs, [*without, altered])[1] == {one[0][0]}
    others = [each for each in made if each[0][0] == one[0][0] and each != one]
    if others:
        assert proof(inputs, [*without, data.draw(st.sampled_from(others))])[1] == {one[0][0]}


def test_results_without_a_key_or_a_phase_are_found() -> None:
    inputs = rows_of([["a"], ["a"], ["a"]])
    plan = sum_plan(PLANS, SALT, (0,))
    blocks = [
        b for i, rows in enumerate(inputs) for b in summed_input(plan, PLANS[i], [decoded(i, rows)])
    ]
    good = results(all_results(inputs), ["run-time"])
    nameless = good.set_column(0, "symbol", pa.nulls(1, pa.string()))
    unsaid = good.set_column(good.num_columns - 1, "phase", pa.nulls(1, pa.string()))
    schema = pa.schema([*plan.keys, *TOTALS])
    for batch, field, value in ((nameless, "rejected_wrong", 1), (unsaid, "run_time", 1)):
        mine = [*blocks, *summed_results(plan, PLANS, [batch])]
        (found, *_) = judged_sums(plan, schema, mine)
        assert found.to_pylist()[0][field] == value


def test_payload_is_read_as_it_is_decoded() -> None:
    """Whoever rewrites files may write other types."""
    made = all_results(rows_of([["a"], ["a"], ["a"]]))
    batch = results(made, ["run-time"])
    plan = sum_plan(PLANS, SALT, (0,))
    wide = pa.RecordBatch.from_arrays(
        [
            column.cast(pa.large_string())
            if pa.types.is_string(column.type) and name not in ("symbol", "phase")
            else column.cast(pa.timestamp("ns", "UTC"))
            if pa.types.is_timestamp(column.type)
            else column
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ],
        names=batch.schema.names,
    )
    assert wide.schema != batch.schema
    one, other = ([*summed_results(plan, PLANS, [each])] for each in (batch, wide))
    assert one == other


def test_sums_of_many_rows_of_one_key_stay_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces of a few rows, added up again and again."""
    inputs = [[("a", 0, n) for n in range(40)], [("a", 0, 50)], [("a", 1, 60), ("b", 1, 61)]]
    made = all_results(inputs)
    whole = proof(inputs, made)
    assert whole[0]["failing"] == 0
    monkeypatch.setattr(sums, "PIECE_ROWS", 7)
    monkeypatch.setattr(sums, "COLLAPSE_ROWS", 2)
    assert proof(inputs, made) == whole
    assert proof(inputs, made[1:])[1] == {"a"}


def test_files_are_read_with_texts_as_dictionaries(tmp_path: Any) -> None:
    made = all_results(rows_of([["a", "a"], ["a"], ["a", "a"]]))
    batch = results(made, ["run-time"] * len(made))
    names = result_names(PLANS)
    for n in range(3):
        pq.write_table(pa.Table.from_batches([batch]), tmp_path / f"{n}.parquet")
    which = pa.RecordBatch.from_pydict({"id": [1, 0]})
    place = folder(str(tmp_path))
    found = list(read_files(place, [["0.parquet"], ["1.parquet", "2.parquet"]], names, [which]))
    assert len(found) == 3
    assert pa.types.is_dictionary(found[0].schema.field("symbol").type)
    plain = pl.DataFrame(pl.from_arrow(pa.Table.from_batches(found[:1])))
    assert plain.cast({pl.Categorical: pl.String}).equals(
        pl.DataFrame(pl.from_arrow(batch)).select(names)
    )
    plan = sum_plan(PLANS, SALT, (0, 1))
    one, other = (
        b"".join(b.column(1)[0].as_py() for b in summed_results(plan, PLANS, [each]))
        for each in (found[0], batch)
    )
    assert one == other


@pytest.mark.parametrize(
    ("error", "damaged"),
    [
        (OSError("Couldn't deserialize thrift"), True),
        (pa.ArrowInvalid("a page"), True),
        (KeyError("volume_shares"), True),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "no"), True),
        (FileNotFoundError(2, "gone"), True),
        (OSError(24, "too many open files"), False),
        (PermissionError(13, "no"), False),
        (pa.ArrowMemoryError("no memory"), False),
    ],
)
def test_what_is_damage_and_what_is_the_machine(error: Exception, damaged: bool) -> None:
    assert is_damage(error) == damaged
