"""Sums of weights by key, against the same row by row."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from decimal import Decimal
from math import nan, prod
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spillway.decode import compile_streams
from spillway.sealed_input.decoding import decoded_schema
from spillway.storage import folder
from spillway.verify import sums
from spillway.verify.arithmetic import PRIMES
from spillway.verify.sums import (
    Counted,
    RowsApart,
    Spool,
    SpooledRows,
    Summing,
    SumPlan,
    added,
    bucket_of,
    buckets_for,
    judged_bucket,
)
from spillway.verify.tasks import (
    ResultsDamaged,
    TableFiles,
    distinct,
    file_rows,
    is_damage,
    read_files,
)
from spillway.verify.weights import RowHash, Weigher, mixed, residues_of, words_of
from spillway_schemas.query import load_query
from tests.property.outer_reference import outer_joined

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


KEYS = [pa.array(["a", "b", "a", None, "aa"]), pa.array([1, 1, 2, 1, None])]


def test_a_key_has_one_hash_however_it_comes() -> None:
    """In chunks, as a slice, as a dictionary: a null is a value of its own."""
    found = RowHash(SALT, 9, 2).words(KEYS)
    assert len(set(found.tolist())) == 5
    chunked = [pa.chunked_array([key.slice(0, 2), key.slice(2)]) for key in KEYS]
    coded = [KEYS[0].dictionary_encode(), KEYS[1]]
    for other in (chunked, coded):
        assert RowHash(SALT, 9, 2).words(other).tolist() == found.tolist()
    assert RowHash(SALT, 9, 2).words([k.slice(3, 2) for k in KEYS]).tolist() == found[3:].tolist()
    assert RowHash(SALT, 9, 2).words(KEYS[::-1]).tolist() != found.tolist()
    assert RowHash(SALT + 1, 9, 2).words(KEYS).tolist() != found.tolist()


def test_hashes_are_spread_over_buckets() -> None:
    found = bucket_of(RowHash(SALT, 9, 1).words([pa.array(range(70_000))]), 7)
    assert np.bincount(found).min() > 9_500
    assert bucket_of(np.array([0, 2**64 - 1], np.uint64), 7).tolist() == [0, 6]
    assert buckets_for(10, 2) == 4
    assert buckets_for(18_000_001, 2) == 10


# --- whole sums


Row = tuple[str, int, int]
"""Key, partition, offset."""
Result = tuple[Row | None, ...]
"""None: it lacks the row of an optional stream."""


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


def key_of(result: Result) -> str:
    return next(row[0] for row in result if row is not None)


def results(made: Sequence[Result], phases: Sequence[str]) -> pa.RecordBatch:
    columns: dict[str, Any] = {"symbol": pa.array([key_of(rows) for rows in made], pa.string())}
    for plan in PLANS:
        mine = [rows[plan.index] for rows in made]
        places = [(None, None) if row is None else row[1:] for row in mine]
        columns[f"{plan.name}_partition"] = pa.array([p for p, _ in places], pa.int32())
        columns[f"{plan.name}_offset"] = pa.array([offset for _, offset in places], pa.int64())
        nothing = [None for _ in plan.payload]
        values = [nothing if row is None else payload_of(plan.index, row) for row in mine]
        for n, field in enumerate(plan.payload):
            columns[f"{plan.name}_{field.name}"] = pa.array([v[n] for v in values], field.type)
    columns["phase"] = pa.array(list(phases), pa.string())
    return pa.RecordBatch.from_pydict(columns)


def quarantined(held: Sequence[tuple[int, int]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "topic": pa.array([PLANS[1].topic] * len(held), pa.string()),
            "partition": pa.array([p for p, _ in held], pa.int32()),
            "offset": pa.array([o for _, o in held], pa.int64()),
        }
    )


def proof(
    inputs: Sequence[Sequence[Row]],
    made: Sequence[Result],
    rejected: Sequence[tuple[int, int]] = (),
    held: Sequence[tuple[int, int]] = (),
    buckets: int = 3,
    optional: Sequence[str] = (),
    changed: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda found: found,
) -> tuple[dict[str, int], set[str]]:
    """Totals over all keys, and the failing keys. Two tasks, as of two processes."""
    with tempfile.TemporaryDirectory() as place:
        plan = SumPlan(tuple(PLANS), SALT, buckets, tuple(optional))
        one, other = (Summing(plan, Spool(Path(place), buckets)) for _ in range(2))
        for i, rows in enumerate(inputs):
            half = len(rows) // 2
            one.add_input(PLANS[i], decoded(i, rows[:half]))
            other.add_input(PLANS[i], decoded(i, rows[half:], rejected if i == 1 else ()))
            other.add_input(PLANS[i], decoded(i, []))
        phases = ["cleanup" if n % 3 else "run-time" for n in range(len(made))]
        one.add_results(changed(results(made, phases)))
        other.add_quarantine(quarantined(held))
        for each in (one, other):
            each._spool.flush()
        found = [judged_bucket(plan, Path(place), bucket) for bucket in range(buckets)]
        counted = one.counted.plus(other.counted)
        names = sorted({row[0] for rows in inputs for row in rows} | set(map(key_of, made)))
        hashes = dict(zip(one.hashes([pa.array(names, pa.string())]).tolist(), names, strict=True))
        failing = {hashes[h] for each in found for h in each.hashes.tolist()}
        assert len(failing) == sum(each.failing for each in found)
        totals = {
            "expected": sum(each.expected for each in found),
            "unmatched": sum(each.unmatched for each in found),
            "run_time": counted.run_time,
            "cleanup": counted.cleanup,
            "keys": sum(each.keys for each in found),
            "failing": len(failing),
            "rejected": counted.rejected.rows,
            "quarantined": counted.quarantined.rows,
            "rejected_wrong": int(counted.rejected != counted.quarantined),
        }
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


@pytest.mark.server
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


@settings(deadline=None)
@given(days, st.sets(st.sampled_from([plan.name for plan in PLANS]), min_size=1), st.data())
def test_of_an_outer_join_rows_that_results_lack_are_proved_as_well(
    day: list[list[str]], optional: set[str], data: st.DataObject
) -> None:
    inputs = rows_of(day)
    may_lack = [plan.index for plan in PLANS if plan.name in optional]
    whole = outer_joined([[(row[0], row) for row in rows] for rows in inputs], may_lack)
    made: list[Result] = [rows for (_, *rows), n in whole.items() for _ in range(n)]
    totals, failing = proof(inputs, made, optional=sorted(optional))
    assert (totals["expected"], failing) == (len(made), set())
    assert totals["unmatched"] == sum(None in each for each in made)
    lacking = [each for each in made if None in each]
    if not lacking:
        return
    one = data.draw(st.sampled_from(lacking))
    key, at = key_of(one), one.index(None)

    def fails(wrong: Sequence[Result], **more: Any) -> bool:
        return proof(inputs, wrong, optional=sorted(optional), **more)[1] == {key}

    without = list(made)
    without.remove(one)
    assert fails(without)
    assert fails([*made, one])
    assert fails([*without, (*one[:at], (key, 0, 77), *one[at + 1 :])])
    # What a result says of a row that it lacks is nothing.
    field = PLANS[at].payload[0]
    name = f"{PLANS[at].name}_{field.name}"

    def says(batch: pa.RecordBatch) -> pa.RecordBatch:
        values = batch[name].to_pylist()
        values[made.index(one)] = "x" if pa.types.is_string(field.type) else 7
        column = pa.array(values, field.type)
        return batch.set_column(batch.schema.get_field_index(name), name, column)

    assert fails(made, changed=says)


def test_a_result_that_lacks_every_row_is_of_none() -> None:
    nowhere = results([(("a", 0, 0), None, None)], ["cleanup"])
    for name in ("stock_partition", "stock_offset"):
        at, kind = nowhere.schema.get_field_index(name), nowhere.schema.field(name).type
        nowhere = nowhere.set_column(at, name, pa.nulls(1, kind))
    every = [plan.name for plan in PLANS]
    made: list[Result] = [(("a", 0, 0), None, None)]
    totals, failing = proof([[], [], []], made, optional=every, changed=lambda _: nowhere)
    assert (totals["expected"], failing) == (0, {"a"})


def summed(*batches: pa.RecordBatch) -> tuple[Counted, list[SpooledRows]]:
    """What is counted and spooled of results."""
    with tempfile.TemporaryDirectory() as place:
        summing = Summing(SumPlan(tuple(PLANS), SALT, 1), Spool(Path(place), 1))
        for batch in batches:
            summing.add_results(batch)
        summing._spool.flush()
        files = sorted(Path(place).iterdir())
        return summing.counted, [rows for path in files for _, rows in sums._blocks(path)]


def test_a_result_without_a_key_fails_and_one_without_a_phase_is_of_run_time() -> None:
    inputs = rows_of([["a"], ["a"], ["a"]])
    good = results(all_results(inputs), ["run-time"])
    nameless = good.set_column(0, "symbol", pa.nulls(1, pa.string()))
    unsaid = good.set_column(good.num_columns - 1, "phase", pa.nulls(1, pa.string()))
    assert summed(unsaid)[0] == Counted(run_time=1)
    with tempfile.TemporaryDirectory() as place:
        plan = SumPlan(tuple(PLANS), SALT, 1)
        summing = Summing(plan, Spool(Path(place), 1))
        for i, rows in enumerate(inputs):
            summing.add_input(PLANS[i], decoded(i, rows))
        summing.add_results(nameless)
        summing._spool.flush()
        assert judged_bucket(plan, Path(place), 0).failing == 2  # its own, and that without


def test_what_is_read_is_of_the_types_that_it_is_decoded_to() -> None:
    """Whoever rewrites files may write other types."""
    made = all_results(rows_of([["a"], ["a"], ["a"]]))
    batch = results(made, ["run-time"])
    wide = pa.RecordBatch.from_arrays(
        [
            column.cast(pa.large_string())
            if pa.types.is_string(column.type) and name != "phase"
            else column.cast(pa.timestamp("ns", "UTC"))
            if pa.types.is_timestamp(column.type)
            else column
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ],
        names=batch.schema.names,
    )
    assert wide.schema != batch.schema
    assert same(summed(batch)[1], summed(wide)[1])


def same(one: list[SpooledRows], other: list[SpooledRows]) -> bool:
    return [[c.tolist() for c in rows] for rows in one] == [
        [c.tolist() for c in rows] for rows in other
    ]


def test_sums_of_many_rows_of_one_key_stay_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written in blocks of a few rows, added up before and after."""
    inputs = [[("a", 0, n) for n in range(40)], [("a", 0, 50)], [("a", 1, 60), ("b", 1, 61)]]
    made = all_results(inputs)
    whole = proof(inputs, made)
    assert whole[0]["failing"] == 0
    monkeypatch.setattr(sums, "SPOOLED_ROWS", 7)
    monkeypatch.setattr(sums, "EXACT_ROWS", 5)
    assert proof(inputs, made) == whole
    assert proof(inputs, made[1:])[1] == {"a"}


def test_rows_of_few_keys_are_added_up_before_they_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draw = np.random.default_rng(5)
    monkeypatch.setattr(sums, "SPOOLED_ROWS", 1_000)
    a, b = draw.integers(0, min(PRIMES), (2, 1_000))
    for keys, rows in ((3, 3), (900_000, 1_000)):
        hashes = mixed(draw.integers(0, keys, 1_000).astype(np.uint64))
        monkeypatch.setattr(sums, "CELLS_BITS", 6)
        found = sums._collapsed(hashes, a.astype(np.uint32), b.astype(np.uint32))
        assert (len(found.keys), int(found.rows.sum())) == (rows, 1_000)
        for column, values, prime in ((found.a, a, PRIMES[0]), (found.b, b, PRIMES[1])):
            slow = dict.fromkeys(hashes.tolist(), 0)
            for key, value in zip(hashes.tolist(), values.tolist(), strict=True):
                slow[key] = (slow[key] + value) % prime
            if keys == 3:
                assert dict(zip(found.keys.tolist(), column.tolist(), strict=True)) == slow


def test_a_key_that_has_half_of_the_rows_is_added_up_and_the_others_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draw = np.random.default_rng(6)
    monkeypatch.setattr(sums, "CELLS_BITS", 6)
    hashes = mixed(np.where(np.arange(1_000) % 2, 7, np.arange(1_000)).astype(np.uint64))
    a, b = draw.integers(0, min(PRIMES), (2, 1_000)).astype(np.uint32)
    found = sums._collapsed(hashes, a, b)
    assert len(found.keys) < 520
    for column, values, prime in ((found.a, a, PRIMES[0]), (found.b, b, PRIMES[1])):
        for key in set(hashes.tolist()):
            kept, given_ = found.keys == key, hashes == key
            assert int(column[kept].sum(dtype=np.int64)) % prime == (
                int(values[given_].sum(dtype=np.int64)) % prime
            )
            assert found.rows[kept].sum() == given_.sum()


def test_a_spool_that_cannot_be_written_names_its_folder(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "none", 2)
    spool.add(0, np.arange(3, dtype=np.uint64), np.arange(3), np.arange(3))
    with pytest.raises(sums.SpoolUnwritable, match=r"none: No such file.*TMPDIR"):
        spool.flush()


def test_the_largest_residues_are_added_exactly() -> None:
    most = np.full(9, 2**31 - 2, np.uint32)
    assert added(np.array([0, 1] * 4 + [0]), most, 2).tolist() == [5 * (2**31 - 2), 4 * (2**31 - 2)]
    places = RowsApart()
    places.add(np.array([PRIMES[0] - 1, 5]), np.array([PRIMES[1] - 1, 7]))
    assert (places.rows, places.a, places.b) == (2, 4, 6)
    assert places.plus(places) == RowsApart(4, 8, 12)


def test_a_bucket_without_rows_has_no_keys(tmp_path: Path) -> None:
    found = judged_bucket(SumPlan(tuple(PLANS), SALT, 1), tmp_path, 0)
    assert (found.expected, found.keys, found.failing, len(found.hashes)) == (0, 0, 0, 0)


def test_files_are_read_with_texts_as_dictionaries(tmp_path: Any) -> None:
    made = all_results(rows_of([["a", "a"], ["a"], ["a", "a"]]))
    batch = results(made, ["run-time"] * len(made))
    names = SumPlan(tuple(PLANS), SALT, 1).result_names
    for n in range(3):
        pq.write_table(pa.Table.from_batches([batch]), tmp_path / f"{n}.parquet")
    place = folder(str(tmp_path))
    found = list(read_files(place, ["0.parquet", "1.parquet", "2.parquet"], names))
    assert len(found) == 3
    assert pa.types.is_dictionary(found[0].schema.field("symbol").type)
    plain = pl.DataFrame(pl.from_arrow(pa.Table.from_batches(found[:1])))
    assert plain.cast({pl.Categorical: pl.String}).equals(
        pl.DataFrame(pl.from_arrow(batch)).select(names)
    )
    assert same(summed(found[0])[1], summed(batch)[1])


def test_columns_that_came_later_are_null_and_others_are_damage(tmp_path: Path) -> None:
    """A session's files have the columns of its query; the table has those of later ones, too."""
    old = pa.table({"k": ["a", "a"], "x_price": [1.5, None]})
    both = old.append_column("y_size", pa.array([7, 8]))
    for name, rows in (("0", old), ("1", both)):
        pq.write_table(rows, tmp_path / f"{name}.parquet")
    key = pa.field("k", pa.string(), nullable=False)
    later = [pa.field("x_price", pa.float64()), pa.field("y_size", pa.int64())]
    place, paths = folder(str(tmp_path)), ["0.parquet", "1.parquet"]
    part = pa.record_batch({"id": [0]})
    files = TableFiles(place, pa.schema([key, *later]), paths)
    found = pa.Table.from_batches(list(file_rows(files, 1, [part])))
    assert found.schema == files.nullable
    assert found.column("y_size").to_pylist() == [None, None, 7, 8]
    assert found.select(["k", "x_price"]).equals(pa.concat_tables([old, old]))
    needed = TableFiles(place, pa.schema([key, later[0], later[1].with_nullable(False)]), paths)
    with pytest.raises(ResultsDamaged):
        list(file_rows(needed, 1, [part]))


def test_each_key_is_named_once() -> None:
    table = pa.table({"k0": ["a", "b", "a"], "k1": [1, 1, 1]})
    assert sorted(map(str, distinct(table).to_pylist())) == sorted(
        map(str, table.slice(0, 2).to_pylist())
    )


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
