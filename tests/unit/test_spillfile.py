"""Spill files: what leaves memory comes back by hash range, whole or with an error."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spillway.engine.join.kernel import Rows
from spillway.engine.join.spec import InputSpec, JoinSpec
from spillway.engine.join.tree import one_join
from spillway.engine.spill import spillfile
from spillway.engine.spill.spillfile import (
    RowGroups,
    SpillDamaged,
    SpillFile,
    quantiles,
    read_rows,
    row_column,
    row_struct,
    spill_schema,
    survey,
    write_spill,
)
from spillway.storage import folder
from tests.two_joins import TWO_JOINS

SPEC = one_join(
    JoinSpec(
        0,
        pa.schema([pa.field("symbol", pa.string(), nullable=False)]),
        (
            InputSpec("stock", pa.schema([("price", pa.float64()), ("key_hash", pa.string())])),
            InputSpec("volume", pa.schema([("shares", pa.int64())])),
        ),
    )
)
EVERYTHING = (0, 2**64)


def run(input_: int, hashes, first_offset: int = 0) -> Rows:
    hashes = np.sort(np.asarray(hashes, np.uint64))
    n = len(hashes)
    keys = [f"k{h}" for h in hashes]
    offsets = list(range(first_offset, first_offset + n))
    payload = (
        [[o / 2 for o in offsets], ["é" * (o % 4) if o % 5 else None for o in offsets]]
        if input_ == 0
        else [offsets]
    )
    schema = SPEC.row_schema(input_)
    columns = [keys, *payload, [input_] * n, offsets]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    return Rows(hashes, pa.Table.from_arrays(arrays, schema=schema))


def expected(inputs, lo=0, hi=2**64):
    """Multiset of (input, hash, row) in a range."""
    found = Counter()
    for i, runs in enumerate(inputs):
        for r in runs:
            rows = zip(*(c.to_pylist() for c in r.table.columns), strict=True)
            for h, row in zip(r.key_hash.tolist(), rows, strict=True):
                if lo <= h < hi:
                    found[(i, h, row)] += 1
    return found


def read_back(place, file, groups, lo=0, hi=2**64):
    found = Counter()
    columns = spill_schema(SPEC).names
    for _, table in read_rows(place, file, groups.group, lo, hi, operator=0, columns=columns):
        inputs = table["input"].unique().to_pylist()
        assert len(inputs) == 1
        i = inputs[0]
        others = [table[row_column(SPEC, k)] for k in range(len(SPEC.inputs)) if k != i]
        assert all(column.null_count == table.num_rows for column in others)
        for h, p, o, row in zip(
            table["key_hash"].to_pylist(),
            table["partition"].to_pylist(),
            table["offset"].to_pylist(),
            table[row_column(SPEC, i)].to_pylist(),
            strict=True,
        ):
            found[(i, h % 2**64, (*row.values(), p, o))] += 1
    return found


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(spillfile, "PIECE_BYTES", 2000)
    monkeypatch.setattr(spillfile, "ROW_GROUP_ROWS", 16)


def spilled(tmp_path, inputs, name="a.parquet"):
    place = folder(str(tmp_path))
    record = write_spill(place, name, SPEC, "2026-01-05", 7, inputs)
    file = SpillFile(record.path, record.bytes, record.digest)
    return place, record, file, survey(place, file, 0)


def some_inputs(rng, n=700):
    spread = rng.integers(0, 2**64, n, dtype=np.uint64)
    few = rng.choice(spread, n)
    return [
        [run(0, spread), run(0, few[: n // 2], n), run(0, few[n // 2 :], 2 * n), run(0, [])],
        [run(1, few)],
    ]


def test_round_trip_by_range(tmp_path, small_pieces):
    rng = np.random.default_rng(1)
    inputs = some_inputs(rng)
    place, record, file, groups = spilled(tmp_path, inputs)
    assert record.path == "session_date=2026-01-05/a.parquet"
    assert record.rows == groups.rows.sum() == sum(expected(inputs).values())
    assert read_back(place, file, groups) == expected(inputs)
    for lo, hi in [(0, 2**63), (2**63, 2**64), (2**62, 2**62 + 2**57), (2**63 - 2**60, 2**63 + 9)]:
        near = groups.touching(lo, hi)
        assert read_back(place, file, near, lo, hi) == expected(inputs, lo, hi)
    # A narrow range touches few row groups: at most two per input and boundary.
    assert len(groups) > 40
    assert len(groups.touching(2**62, 2**62 + 2**55)) <= 6


def test_one_order_over_all_runs(tmp_path, small_pieces):
    place, _, file, groups = spilled(tmp_path, some_inputs(np.random.default_rng(2)))
    table = pq.read_table(place.path(file.path))
    assert table.schema.names == spill_schema(SPEC).names
    keys = list(
        zip(
            table["input"].to_pylist(),
            [h % 2**64 for h in table["key_hash"].to_pylist()],
            strict=True,
        )
    )
    assert keys == sorted(keys)
    assert set(table["epoch"].to_pylist()) == {7}
    assert set(table["operator"].to_pylist()) == {0}
    # Bounds are exact, also around the sign.
    metadata = pq.ParquetFile(place.path(file.path)).metadata
    start = 0
    for g in range(metadata.num_row_groups):
        n = metadata.row_group(g).num_rows
        part = keys[start : start + n]
        assert (groups.lo[g], groups.hi[g]) == (part[0][1], part[-1][1])
        start += n


def test_a_hot_hash_is_written_in_pieces(tmp_path, small_pieces):
    hot = 2**63
    inputs = [[run(0, [hot] * 3000), run(0, [hot - 1, *[hot] * 500], 5000)], [run(1, [hot])]]
    place, _, file, groups = spilled(tmp_path, inputs)
    assert groups.rows.max() <= 16
    assert read_back(place, file, groups) == expected(inputs)


def test_extreme_hashes(tmp_path):
    edges = [0, 1, 2**63 - 1, 2**63, 2**64 - 1]
    inputs = [[run(0, edges)], [run(1, edges)]]
    place, record, file, groups = spilled(tmp_path, inputs)
    assert len(groups) == 4  # two inputs, two signs
    for h in edges:
        near = groups.touching(h, h + 1)
        assert len(near) == 2
        assert read_back(place, file, near, h, h + 1) == expected(inputs, h, h + 1)
    stats = json.loads(record.stats)
    assert stats["minValues"]["key_hash"] == -(2**63)
    assert stats["maxValues"]["key_hash"] == 2**63 - 1


def test_nothing_to_spill(tmp_path):
    place = folder(str(tmp_path))
    assert write_spill(place, "a", SPEC, "2026-01-05", 7, [[], [run(1, [])]]) is None
    assert list(place.list()) == []


def test_reading_does_not_rely_on_order_or_on_one_epoch_a_file(tmp_path, small_pieces):
    """What a compaction of the table could make of the files is still read rightly."""
    inputs = some_inputs(np.random.default_rng(3))
    place, _, file, _ = spilled(tmp_path, inputs)
    table = pq.read_table(place.path(file.path))
    shuffled = table.take(pa.array(np.random.default_rng(4).permutation(table.num_rows)))
    pq.write_table(shuffled, tmp_path / "odd.parquet", row_group_size=50)
    odd = SpillFile("odd.parquet", (tmp_path / "odd.parquet").stat().st_size)
    groups = survey(place, odd, 0)
    assert set(groups.lo.tolist()) == {0}
    lo, hi = 2**62, 2**63 + 2**61
    found = Counter()
    columns = ("input", "offset", "key_hash")
    for _, part in read_rows(place, odd, groups.group, lo, hi, operator=0, columns=columns):
        for i, o, h in zip(
            part["input"].to_pylist(),
            part["offset"].to_pylist(),
            part["key_hash"].to_pylist(),
            strict=True,
        ):
            found[(i, o, h % 2**64)] += 1
    wanted = expected(inputs, lo, hi)
    assert found == Counter({(i, row[-1], h): n for (i, h, row), n in wanted.items()})


def test_rows_of_another_operator_are_left_out(tmp_path):
    place, _, file, groups = spilled(tmp_path, [[run(0, [1, 2])], []])
    columns = ("key_hash",)
    found = read_rows(place, file, groups.group, *EVERYTHING, operator=4, columns=columns)
    assert not list(found)


def of_two(input_: int, numbers: list[int]) -> Rows:
    """Rows of an input of `TWO_JOINS`, whose hashes are their numbers."""
    schema = TWO_JOINS.row_schema(input_)
    columns = [
        pa.array([f"{field.name} {n}" for n in numbers])
        if pa.types.is_string(field.type)
        else pa.array([100 * at + n for n in numbers], field.type)
        for at, field in enumerate(schema)
    ]
    return Rows(np.array(numbers, np.uint64), pa.Table.from_arrays(columns, schema=schema))


def test_rows_of_every_join_of_a_tree_come_back(tmp_path):
    """Each says which join it is for; what a join gave has all its coordinates in its struct."""
    inputs = [[of_two(0, [1, 4])], [of_two(1, [4])], [of_two(2, [2, 3])], [of_two(3, [5])]]
    place = folder(str(tmp_path))
    record = write_spill(place, "a.parquet", TWO_JOINS, "2026-01-05", 7, inputs)
    file = SpillFile(record.path, record.bytes, record.digest)
    groups = survey(place, file, 0)
    assert list(zip(groups.input.tolist(), groups.operator.tolist(), strict=True)) == [
        (0, 0),
        (1, 0),
        (2, 1),
        (3, 1),
    ]
    columns = spill_schema(TWO_JOINS).names
    for operator in (0, 1):
        found = {}
        for _, table in read_rows(
            place, file, groups.group, *EVERYTHING, operator=operator, columns=columns
        ):
            for row in table.to_pylist():
                assert (row["operator"], row["epoch"]) == (operator, 7)
                where = [] if row["offset"] is None else [row["partition"], row["offset"]]
                own = [*row[row_column(TWO_JOINS, row["input"])].values(), *where]
                found.setdefault(row["input"], []).append((row["key_hash"], own))
                others = [i for i in range(4) if i != row["input"]]
                assert all(row[row_column(TWO_JOINS, i)] is None for i in others)
        assert found == {
            i: [
                (int(hash_), list(row.values()))
                for runs in inputs[i]
                for hash_, row in zip(runs.key_hash, runs.table.to_pylist(), strict=True)
            ]
            for i in TWO_JOINS.inputs_of(operator)
        }
    # Of a stream the coordinate stands beside the struct, of a join's rows in it.
    stream, joined = row_struct(TWO_JOINS, 3), row_struct(TWO_JOINS, 2)
    assert [field.name for field in stream] == ["c", "w"]
    assert [field.name for field in joined][-5:] == [
        "a_partition",
        "a_offset",
        "b_partition",
        "b_offset",
        "ab_hash",
    ]
    # With one join each row has its coordinate.
    assert [spill_schema(s).field("offset").nullable for s in (SPEC, TWO_JOINS)] == [False, True]


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda p: p.unlink(), "missing"),
        (lambda p: p.write_bytes(p.read_bytes()[:-1]), "bytes"),
        (lambda p: p.write_bytes(b"x" * p.stat().st_size), "SHA-256"),
    ],
)
def test_damage_names_the_file(tmp_path, damage, what):
    place, record, file, _ = spilled(tmp_path, [[run(0, range(50))], [run(1, range(50))]])
    damage(tmp_path / record.path)
    with pytest.raises(SpillDamaged, match=what) as error:
        survey(place, file, 0)
    assert record.path in str(error.value)


def test_every_flipped_bit_of_the_data_is_noticed_when_reading(tmp_path):
    place, record, file, groups = spilled(tmp_path, [[run(0, range(50))], [run(1, range(50))]])
    path = tmp_path / record.path
    data = path.read_bytes()
    whole = read_back(place, file, groups)
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    noticed = 0
    for at in range(4, footer, 11):
        path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        with pytest.raises(SpillDamaged):
            survey(place, file, 0)
        try:
            # Some bits of a page's header say nothing that reading needs.
            assert read_back(place, file, groups) == whole
        except SpillDamaged:
            noticed += 1
    assert noticed > 20


def test_another_file_of_the_same_size_is_no_spill_file(tmp_path):
    pq.write_table(pa.table({"x": [1]}), tmp_path / "x.parquet")
    file = SpillFile("x.parquet", (tmp_path / "x.parquet").stat().st_size)
    with pytest.raises(SpillDamaged, match="no column"):
        survey(folder(str(tmp_path)), file, 0)


def test_quantiles_cut_evenly():
    rng = np.random.default_rng(5)
    runs = [np.sort(rng.integers(0, 2**64, n, dtype=np.uint64)) for n in (10_000, 50, 3000, 0)]
    bounds = quantiles(runs, 1000)
    every = np.sort(np.concatenate(runs))
    sizes = np.diff([0, *np.searchsorted(every, bounds), len(every)])
    assert sizes.sum() == 13_050
    assert sizes.max() <= 1300
    assert 11 <= len(sizes) <= 16
    assert len(quantiles([np.full(5000, 7, np.uint64)], 100)) <= 1
    assert len(quantiles([], 100)) == 0


def test_estimated_bytes_follow_the_range(tmp_path):
    _, _, _, groups = spilled(tmp_path, some_inputs(np.random.default_rng(6), 5000))
    whole = groups.bytes_within(*EVERYTHING)
    assert whole == pytest.approx(float(groups.bytes.sum()))
    parts = [groups.bytes_within(k << 60, (k + 1) << 60) for k in range(16)]
    assert sum(parts) == pytest.approx(whole)
    assert max(parts) < 2 * min(parts)
    assert RowGroups.concat([]).bytes_within(*EVERYTHING) == 0


@pytest.mark.parametrize("key", [0, 77, 2**63 + 77, 2**64 - 1])
def test_bytes_of_one_hash_are_in_its_range(tmp_path, key):
    _, _, _, groups = spilled(tmp_path, some_inputs(np.random.default_rng(6), 50))
    one = np.full(len(groups), key, np.uint64)
    hot = replace(groups, lo=one, hi=one)
    assert hot.bytes_within(key, key + 1) == hot.bytes_within(*EVERYTHING) == hot.bytes.sum()
    assert key == 0 or hot.bytes_within(0, key) == 0
    wide = replace(hot, lo=np.zeros(len(groups), np.uint64))
    assert wide.bytes_across(key) == (wide.bytes.sum() if key else 0)
    assert key == 2**64 - 1 or wide.bytes_across(key + 1) == 0
