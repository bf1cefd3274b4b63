"""Cleanup of ranges: pieces stay small, cost stays linear, damage is named."""

import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from math import prod

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spillway.engine.join.kernel import Rows, picked
from spillway.engine.join.spec import InputSpec, JoinSpec
from spillway.engine.join.tree import one_join
from spillway.engine.spill import cleanup, pieces, spillfile
from spillway.engine.spill import source as source_module
from spillway.engine.spill.cleanup import clean_ranges
from spillway.engine.spill.crossing import InputGenerations
from spillway.engine.spill.pieces import cut, estimated_weights, load, loaded, packed, weights
from spillway.engine.spill.source import SpillIndex, SpillSource
from spillway.engine.spill.spillfile import RowGroups, SpillDamaged, SpillFile, survey, write_spill
from spillway.storage import folder
from spillway_schemas.journal import Prefix
from tests.two_joins import TWO_JOINS

SPEC = one_join(
    JoinSpec(
        0,
        pa.schema([pa.field("symbol", pa.string(), nullable=False)]),
        (
            InputSpec("a", pa.schema([("x", pa.int64())])),
            InputSpec("b", pa.schema([("y", pa.string())])),
        ),
    )
)
ALL = Prefix(0, 0)


def rows(input_: int, hashes, first: int = 0) -> Rows:
    hashes = np.sort(np.asarray(hashes, np.uint64))
    n = len(hashes)
    numbers = list(range(first, first + n))
    payload = numbers if input_ == 0 else [f"y{i}" for i in numbers]
    columns = [[f"k{h}" for h in hashes], payload, [input_] * n, numbers]
    schema = SPEC.row_schema(input_)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    return Rows(hashes, pa.Table.from_arrays(arrays, schema=schema))


def spilled(tmp_path, generations) -> SpillSource:
    """`generations[epoch] = (hashes of a, hashes of b)`, a file each."""
    place = folder(str(tmp_path))
    surveyed = []
    for epoch, (a, b) in generations.items():
        record = write_spill(
            place, f"{epoch}.parquet", SPEC, "2026-01-05", epoch, [[rows(0, a)], [rows(1, b)]]
        )
        file = SpillFile(record.path, record.bytes, record.digest)
        surveyed.append((file, survey(place, file, 0)))
    return SpillSource(place, SpillIndex.of(surveyed), SPEC)


def count(source, ranges=(ALL,), **sizes):
    return sum(batch.table.num_rows for _, batch in clean_ranges(source, ranges, **sizes))


def test_nothing_spilled_nothing_missing(tmp_path):
    source = SpillSource(folder(str(tmp_path)), SpillIndex.of([]), SPEC)
    assert list(clean_ranges(source, [ALL])) == []
    assert list(clean_ranges(source, [])) == []


def test_one_generation_is_complete_and_never_joined(tmp_path, monkeypatch):
    source = spilled(tmp_path, {3: ([1, 1, 2], [1, 2, 2])})
    monkeypatch.setattr(cleanup, "rows_of_input", lambda *_: pytest.fail("taken apart"))
    assert count(source) == 0


def test_only_rows_that_can_give_something_are_joined(tmp_path):
    # Hash 1: two generations, both inputs. 2: one generation. 3: one input only.
    source = spilled(tmp_path, {3: ([1, 2, 3], [1, 2]), 5: ([1, 3], [1])})
    assert count(source) == 2 * 2 - 1 - 1
    found = cleanup.generations(source, load(source, 0, 2**64))
    assert [rows.table.num_rows for rows, _ in found] == [2, 2]


def test_generations_are_told_apart_by_hash_not_by_epoch(tmp_path):
    """A hundred epochs, each of another hash: as many steps as one hash has generations."""
    source = spilled(tmp_path, {e: ([e // 2], [e // 2]) for e in range(100)})
    parts = load(source, 0, 2**64)
    assert len({part.epoch for part in parts}) == 100
    assert {g for _, of_row in cleanup.generations(source, parts) for g in of_row} == {0, 1}
    assert count(source) == 50 * 2


@pytest.mark.parametrize("piece_bytes", [500, 3_000, 40_000, 10**6, 10**9])
def test_pieces_are_bounded_and_cover_everything(tmp_path, monkeypatch, piece_bytes):
    monkeypatch.setattr(spillfile, "ROW_GROUP_ROWS", 64)
    rng = np.random.default_rng(1)
    spread = rng.integers(0, 2**64, 300, dtype=np.uint64)
    clustered = np.uint64(5 << 59) + rng.integers(0, 1000, 600, dtype=np.uint64)
    hot = np.full(400, 2**63 + 77, np.uint64)
    hashes = np.concatenate([spread, clustered, hot])
    edges = [0, 2**64 - 1]
    source = spilled(tmp_path, {1: (hashes, spread), 2: ([*hashes[::2].tolist(), *edges], hot)})
    pieces = cut(source, 0, 2**64, piece_bytes)
    assert all(a < b for a, b in pieces)
    assert all(one[1] <= next_[0] for one, next_ in pairwise(pieces))
    loaded = [load(source, lo, hi) for lo, hi in pieces]
    assert sum(len(p.key_hash) for parts in loaded for p in parts) == source.index.groups.rows.sum()
    for parts, (lo, hi) in zip(loaded, pieces, strict=True):
        bytes_ = sum(p.table.nbytes for p in parts)
        # A row's share of a row group is an average, and a small row group has overhead.
        if hi - lo > 1:
            assert bytes_ <= 2 * piece_bytes
    if piece_bytes == 3_000:
        assert (2**63 + 77, 2**63 + 78) in pieces
        assert len(pieces) > 30


def by_hashes(source, ranges):
    return weights(source, source.touching(ranges[0].lo, ranges[-1].hi), ranges)


def test_small_ranges_are_read_together_and_large_ones_alone(tmp_path):
    rng = np.random.default_rng(2)
    few = rng.integers(0, 2**63, 200, dtype=np.uint64)
    many = np.uint64(2**63) + rng.integers(0, 2**60, 20_000, dtype=np.uint64)
    source = spilled(tmp_path, {1: (few, few), 2: (many, many)})
    ranges = [Prefix(4, v) for v in range(16)]
    found = list(packed(by_hashes(source, ranges), 100_000))
    assert found[0][0] == 0
    assert [a for a, *_ in found[1:]] == [b for _, b, _ in found[:-1]]
    assert found[-1][1] == 16
    assert found[0][1] >= 8
    assert len(found) >= 2


def test_a_hot_key_larger_than_a_piece_leaves_in_small_batches(tmp_path):
    hot = [2**40] * 80
    source = spilled(tmp_path, dict.fromkeys((1, 2, 3), (hot, hot)))
    batches = [
        (batch.table.num_rows, batch.table.nbytes)
        for _, batch in clean_ranges(source, [ALL], piece_bytes=1000, batch_bytes=20_000)
    ]
    rows, sizes = zip(*batches, strict=True)
    assert sum(rows) == 240**2 - 3 * 80**2
    assert max(sizes) < 80_000


def test_ranges_give_their_own_results_in_order(tmp_path):
    hashes = [v << 60 for v in range(16)]
    source = spilled(tmp_path, {1: (hashes, hashes), 4: (hashes[3:], hashes[5:])})
    ranges = [Prefix(4, v) for v in (1, 3, 4, 9, 15)]
    for piece_bytes in (1, 400, 10**9):
        found: dict[int, int] = {}
        for position, batch in clean_ranges(source, ranges, piece_bytes=piece_bytes):
            assert position >= max(found, default=0)
            found[position] = found.get(position, 0) + batch.table.num_rows
        assert found == {1: 1, 2: 1, 3: 2, 4: 2}


def test_rows_between_two_hashes_are_one_stretch():
    hashes = [2, 4, 4, 5, 9, 2**63, 2**64 - 1]
    held, of_row = rows(0, hashes), np.arange(7)
    for lo, hi, first, stop in (
        (0, 2**64, 0, 7),
        (4, 5, 1, 3),
        (5, 10, 3, 5),
        (2**63, 2**64, 5, 7),
        (6, 9, 4, 4),
    ):
        found, numbers = cleanup._between(InputGenerations(held, of_row), lo, hi)
        assert found.key_hash.tolist() == hashes[first:stop]
        assert numbers.tolist() == list(range(first, stop))
        assert found.table["offset"].to_pylist() == list(range(first, stop))


@pytest.mark.parametrize("most", [0, 64])
def test_wanted_rows_are_slices_where_they_are_few_stretches(most, monkeypatch):
    monkeypatch.setattr(cleanup, "FEW_STRETCHES", most)
    held = rows(0, [1, 1, 2, 5, 5, 5])
    wanted = np.array([True, False, True, True, False, True])
    found = cleanup._where_true(held, wanted)
    assert [each.key_hash.tolist() for each in found] == (
        [[1], [2, 5], [5]] if most else [[1, 2, 5, 5]]
    )
    offsets = [each.table["offset"].to_pylist() for each in found]
    assert offsets == ([[0], [2, 3], [5]] if most else [[0, 2, 3, 5]])
    assert cleanup._where_true(held, ~wanted | wanted)[0].table["offset"].to_pylist() == [*range(6)]
    nothing = [each for each in cleanup._where_true(held, wanted & ~wanted) if len(each.key_hash)]
    assert nothing == []


def test_each_file_is_asked_for_its_row_groups_of_the_operator(tmp_path, monkeypatch):
    held = {(1, 0): [4], (0, 3): [5], (1, 2): [6]}
    source = rigged(tmp_path, held, [1, 1, 1])
    groups = replace(source.index.groups, input=np.array([3, 2, 3]))
    index = replace(source.index, groups=groups)
    source = SpillSource(source.folder, index, TWO_JOINS, operator=1)
    asked = []
    monkeypatch.setattr(
        source_module,
        "read_rows",
        lambda *args, **more: asked.append((args, more)) or [(8, "rows")],
    )
    found = list(source.rows(source.index.groups, 3, 9, ("x",)))
    assert found == [(0, 8, "rows"), (1, 8, "rows")]
    more = {"operator": 1, "columns": ("x",), "opened": {}}
    files = source.index.files
    assert asked == [
        ((source.folder, files[0], [3], 3, 9), more),
        ((source.folder, files[1], [0, 2], 3, 9), more),
    ]
    # With the rows themselves: of each row group the column of its own input, of a mixed one those
    # of all inputs of the join.
    asked.clear()
    groups = replace(source.index.groups, input=np.array([3, 2, -1]))
    list(source.rows(groups, 3, 9, ("x",), whole=True))
    assert [(args[2], more["columns"]) for args, more in asked] == [
        ([3], ("x", "ab_row")),
        ([2], ("x", "ab_row", "d_row")),
        ([0], ("x", "d_row")),
    ]


@pytest.mark.parametrize("ranges", [[Prefix(1, 1), Prefix(1, 0)], [Prefix(0, 0), Prefix(1, 1)]])
def test_ranges_out_of_order_are_refused(tmp_path, ranges):
    source = SpillSource(folder(str(tmp_path)), SpillIndex.of([]), SPEC)
    with pytest.raises(ValueError, match=r"^the ranges must be disjoint and in ascending order$"):
        list(clean_ranges(source, ranges))


def test_a_task_takes_only_what_its_ranges_need(tmp_path):
    low, high = list(range(50)), [2**63 + i for i in range(50)]
    source = spilled(tmp_path, {1: (low, low), 2: (high, high), 3: (low, high)})
    index = source.index.within([Prefix(1, 1)])
    assert len(index.files) == 2
    own = SpillSource(source.folder, index, SPEC)
    assert len(index.groups) < len(source.index.groups)
    assert count(own, [Prefix(1, 1)]) == count(source, [Prefix(1, 1)]) == 50


def test_reads_grow_with_the_input_not_with_the_generations(tmp_path, monkeypatch):
    """The same rows in 2 and in 40 generations: every row is read once."""
    hashes = np.random.default_rng(3).integers(0, 2**64, 400, dtype=np.uint64)
    read = []
    real = source_module.read_rows

    def counting(*args, **options):
        for group, table in real(*args, **options):
            read.append(table.num_rows)
            yield group, table

    monkeypatch.setattr(source_module, "read_rows", counting)
    for generations in (2, 40):
        read.clear()
        source = spilled(
            tmp_path / str(generations),
            {e: (hashes[e::generations], hashes[e::generations]) for e in range(generations)},
        )
        assert count(source, [Prefix(4, v) for v in range(16)]) == 0
        assert sum(read) == 800


def noted_reads(monkeypatch):
    """(file, row group, whether whole rows were read) of every reading from here on."""
    read = []
    real = source_module.read_rows

    def noting(place, file, groups, *bounds, columns, **more):
        for group, table in real(place, file, groups, *bounds, columns=columns, **more):
            read.append((file.path, group, "offset" in columns))
            yield group, table

    monkeypatch.setattr(source_module, "read_rows", noting)
    return read


def test_row_groups_of_many_ranges_are_read_once(tmp_path, monkeypatch):
    """Nor are their hashes read first to see how many rows each range has."""
    hashes = np.random.default_rng(4).integers(0, 2**64, 20_000, dtype=np.uint64)
    source = spilled(tmp_path, {e: (hashes[e::5], hashes[e::5]) for e in range(5)})
    read = noted_reads(monkeypatch)
    ranges = [Prefix(4, v) for v in range(16)]
    piece_bytes = int(0.7 * source.index.groups.bytes.sum())
    assert len(list(loaded(source, ranges, piece_bytes))) == 2
    assert all(whole for *_, whole in read)
    assert len(read) == len(set(read)) == len(source.index.groups)


@pytest.mark.parametrize("begin", [0, 2**62], ids=["of the first piece", "of another"])
def test_a_piece_with_more_rows_than_thought_is_put_down(tmp_path, monkeypatch, begin):
    """Nine in ten rows of every row group lie in a 64th of it."""
    rng = np.random.default_rng(5)
    generations = {
        e: [
            np.concatenate(
                [
                    rng.integers(0, 2**63, 300, dtype=np.uint64),
                    np.uint64(begin) + rng.integers(0, 2**57, 2_700, dtype=np.uint64),
                ]
            )
            for _ in range(2)
        ]
        for e in range(12)
    }
    source = spilled(tmp_path, generations)
    read = noted_reads(monkeypatch)
    ranges = [Prefix(6, v) for v in range(32)]
    piece_bytes = int(source.index.groups.bytes.sum()) // 6
    found = []
    for first, last, parts in loaded(source, ranges, piece_bytes):
        hashes = np.concatenate([part.key_hash for part in parts])
        assert ranges[first].lo <= hashes.min()
        assert hashes.max() < ranges[last - 1].hi
        found.append(np.sort(hashes))
    every = np.concatenate([each for pair in generations.values() for each in pair])
    assert np.array_equal(np.concatenate(found), np.sort(every))
    assert max(map(len, found)) <= 1.1 * len(every) / 6
    assert any(not whole for *_, whole in read), "no piece was cut by its hashes"


def test_rows_that_are_kept_serve_a_range_that_is_larger_than_a_piece(tmp_path, monkeypatch):
    """Kills: rows that were read beyond the piece before, and read again for it."""
    hashes = np.random.default_rng(4).integers(0, 2**64, 20_000, dtype=np.uint64)
    source = spilled(tmp_path, {e: (hashes[e::5], hashes[e::5]) for e in range(5)})
    read = noted_reads(monkeypatch)
    small, large = Prefix(4, 11), Prefix(2, 3)
    piece_bytes = int(0.2 * source.index.groups.bytes.sum())
    assert len(list(loaded(source, [small, large], piece_bytes))) == 3
    times = Counter((path, group) for path, group, whole in read if whole)
    assert min(times.values()) == 1


def test_once_row_groups_promise_too_much_hashes_are_read(tmp_path, monkeypatch):
    """Nine in ten rows are of one hash, after all others: every row group reaches over every piece,
    and would be read for each of two dozen that are nearly empty."""
    rng = np.random.default_rng(6)
    hot = np.full(54, 2**63 - 5, np.uint64)
    hashes = {
        e: [np.append(rng.integers(0, 2**63, 6, dtype=np.uint64), hot) for _ in range(2)]
        for e in range(30)
    }
    source = spilled(tmp_path, hashes)
    groups = source.index.groups
    read = noted_reads(monkeypatch)
    ranges = [Prefix(6, v) for v in range(32)]
    found = list(loaded(source, ranges, int(groups.bytes.sum()) // 24))
    assert sum(len(part.key_hash) for *_, parts in found for part in parts) == 30 * 2 * 60
    assert len(found) <= 6
    assert sum(whole for *_, whole in read) <= 6 * len(groups)
    assert sum(not whole for *_, whole in read) <= 2 * len(groups)


def test_what_reaches_beyond_a_range_of_several_pieces_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(spillfile, "ROW_GROUP_ROWS", 64)
    hashes = np.random.default_rng(7).integers(0, 2**64, 10_000, dtype=np.uint64)
    source = spilled(tmp_path, {e: (hashes[e::2], hashes[e::2]) for e in range(2)})
    read = noted_reads(monkeypatch)
    piece_bytes = int(source.index.groups.bytes.sum()) // 20
    found = list(loaded(source, [Prefix(2, v) for v in range(4)], piece_bytes))
    assert len(found) > 20
    whole = [each for each in read if each[2]]
    assert len(whole) == len(set(whole)) == len(source.index.groups)


def test_half_as_many_rows_again_as_thought_are_too_many(tmp_path, monkeypatch):
    """Eight in ten rows lie in the first half of every row group."""
    rng = np.random.default_rng(8)
    hashes = np.append(
        rng.integers(0, 2**62, 800, dtype=np.uint64), rng.integers(2**62, 2**63, 200, np.uint64)
    )
    source = spilled(tmp_path, {1: (hashes, hashes)})
    read = noted_reads(monkeypatch)
    piece_bytes = int(0.52 * source.index.groups.bytes.sum())
    found = list(loaded(source, [Prefix(2, 0), Prefix(2, 1)], piece_bytes))
    assert max(sum(len(part.key_hash) for part in parts) for *_, parts in found) <= 1.1 * 1040
    assert any(not whole for *_, whole in read)


def test_what_lies_between_ranges_is_thought_of(tmp_path):
    source = rigged(tmp_path, {(0, 0): [0, 2**63 - 1]}, [80])
    ranges = [Prefix(3, 0), Prefix(3, 3)]
    assert estimated_weights(source.index.groups, ranges).tolist() == [[20, 40], [20, 0]]


def test_rows_that_are_joined_do_not_wait_as_they_were_read(tmp_path, monkeypatch):
    source = spilled(tmp_path, {1: ([1, 2], [1, 2]), 2: ([1, 2], [1, 2])})
    pieces = []
    real = cleanup.loaded

    def noting(*given):
        for each in real(*given):
            pieces.append(each[2])
            yield each

    monkeypatch.setattr(cleanup, "loaded", noting)
    for _ in clean_ranges(source, [ALL]):
        assert pieces == [[]]
    assert pieces == [[]]


def test_a_row_is_joined_as_often_as_the_generations_have_bits(tmp_path, monkeypatch):
    """As rows with windows are: these have none, which only says that all are near."""
    joined = []
    real = cleanup.join_batches

    def counting(join, old, new, **more):
        joined.append(
            sum(len(run.key_hash) for side in (old, new) for runs in side for run in runs)
        )
        return real(join, old, new, **more)

    def in_windows(join, own, *, batch_bytes):
        return cleanup._in_windows(source, join, own, batch_bytes)

    monkeypatch.setattr(cleanup, "join_batches", counting)
    monkeypatch.setattr(cleanup, "crossing", in_windows)
    for generations in (2, 3, 64, 65):
        joined.clear()
        # One hash has all the generations, the others two each.
        hot = {e: [5, 6 + e // 2] for e in range(generations)}
        source = spilled(tmp_path / str(generations), {e: (h, h) for e, h in hot.items()})
        assert count(source) == generations * (generations - 1) + 2 * (generations // 2)
        assert len(joined) == (generations - 1).bit_length()
        assert max(joined) <= 4 * generations


def test_results_have_the_hashes_of_their_rows(tmp_path):
    """Inside they meet by other numbers."""
    hashes = [0, 7, 2**63, 2**64 - 1]
    source = spilled(tmp_path, {e: (hashes[e:], hashes) for e in range(3)})
    found = Counter()
    for _, batch in clean_ranges(source, [Prefix(1, 0), Prefix(1, 1)]):
        for h, n in zip(batch.hashes.tolist(), batch.results.tolist(), strict=True):
            found[h] += n
    assert found == {0: 2, 7: 4, 2**63: 6, 2**64 - 1: 6}


def test_rows_of_another_query_are_named_not_misread(tmp_path):
    source = spilled(tmp_path, {1: ([1], [1]), 2: ([1], [1])})
    other = one_join(
        JoinSpec(
            0,
            SPEC.root.keys,
            (InputSpec("a", pa.schema([("x", pa.string())])), SPEC.inputs[1]),
        )
    )
    with pytest.raises(SpillDamaged, match=r"1\.parquet.*input 0 is not one of this query"):
        list(clean_ranges(replace(source, spec=other), [ALL]))


def test_a_file_that_vanishes_is_named(tmp_path):
    source = spilled(tmp_path, {1: ([1], [1]), 2: ([1], [1])})
    source.folder.delete("session_date=2026-01-05/2.parquet")
    with pytest.raises(SpillDamaged, match=r"2\.parquet: it is missing"):
        list(clean_ranges(source, [ALL]))


class Rigged(SpillSource):
    """Row groups with these hashes: `held[(file, row group)]`; notes what is asked of them."""

    held: dict
    asked: list

    def rows(self, near, lo, hi, columns):
        for file, group in zip(near.file.tolist(), near.group.tolist(), strict=True):
            hashes = [h for h in self.held[(file, group)] if lo <= h < hi]
            self.asked.append((file, group, lo, hi, columns))
            if hashes:
                yield file, group, pa.table({"key_hash": pa.array(hashes, pa.uint64())})


def rigged(tmp_path, held: dict, bytes_: list[int]) -> Rigged:
    number = len(held)
    groups = RowGroups(
        file=np.array([file for file, _ in held]),
        group=np.array([group for _, group in held]),
        operator=np.zeros(number, np.int64),
        input=np.zeros(number, np.int64),
        lo=np.array([min(each) for each in held.values()], np.uint64),
        hi=np.array([max(each) for each in held.values()], np.uint64),
        rows=np.array([len(each) for each in held.values()]),
        bytes=np.array(bytes_),
    )
    files = tuple(SpillFile(str(i), 1) for i in range(number))
    source = Rigged(folder(str(tmp_path)), SpillIndex(files, groups), SPEC)
    object.__setattr__(source, "held", held)
    object.__setattr__(source, "asked", [])
    return source


def test_pieces_end_where_the_next_bucket_does_not_fit(tmp_path):
    """2,049 hashes are looked at in buckets of 3; rows take 10 bytes."""
    lo, hi = 2**63 + 5_000, 2**63 + 7_049
    hashes = [lo, lo + 2, lo + 3, lo + 6, lo + 6, lo + 9, lo + 2_048]
    source = rigged(tmp_path, {(0, 0): hashes[:4], (0, 1): hashes[4:]}, [40, 30])
    assert cut(source, lo, hi, 70) == [(lo, hi)]
    assert source.asked == []
    # 20, 10, 20, 10 and 10 bytes: equal to what a piece may have is not too much.
    assert cut(source, lo, hi, 30) == [(lo, lo + 6), (lo + 6, lo + 2_046), (lo + 2_046, hi)]
    columns = ("key_hash",)
    assert source.asked == [(0, 0, lo, hi, columns), (0, 1, lo, hi, columns)]
    assert cut(source, lo, hi, 60) == [(lo, lo + 2_046), (lo + 2_046, hi)]
    assert cut(source, lo, hi, 20) == [
        (lo, lo + 3),
        (lo + 3, lo + 6),
        (lo + 6, lo + 9),
        (lo + 9, hi),
    ]
    # A row's share of its row group's bytes, also where it is alone.
    alone = rigged(tmp_path, {(0, 0): [lo], (1, 0): [lo + 2_000]}, [10, 10])
    assert cut(alone, lo, hi, 10) == [(lo, lo + 1_998), (lo + 1_998, hi)]
    assert cut(source, 0, lo, 1) == cut(source, hi, hi + 9, 1) == []
    assert cut(source, lo, lo + 1, 1) == [(lo, lo + 1)]


def test_a_bucket_that_is_too_large_is_looked_at_closer(tmp_path):
    """Buckets of 2**10 hashes: the second holds one hash five times, and one neighbour."""
    hi = 2**20
    hot = [1_030] * 5
    source = rigged(tmp_path, {(0, 0): [7, *hot, 1_040, 2_048, 9_000]}, [90])
    assert cut(source, 0, hi, 20) == [(0, 1_024), (1_030, 1_031), (1_040, 1_041), (2_048, hi)]
    assert cut(source, 0, hi, 60) == [(0, 1_024), (1_024, 2_048), (2_048, hi)]
    # Neighbours are told apart, and so is the last hash of all.
    two = rigged(tmp_path, {(0, 0): [*hot, *(h + 1 for h in hot)]}, [100])
    assert cut(two, 0, hi, 20) == [(1_030, 1_031), (1_031, 1_032)]
    last = rigged(tmp_path, {(0, 0): [0, *[2**64 - 1] * 5]}, [60])
    assert cut(last, 0, 2**64, 20) == [(0, 2**64 - 2**54), (2**64 - 1, 2**64)]
    # A bucket of one hash alone needs no further look.
    source = rigged(tmp_path, {(0, 0): [7, *hot]}, [60])
    assert cut(source, 0, hi, 10) == [(0, 1_024), (1_030, 1_031)]
    assert len(source.asked) == 1


def part_rows(part):
    table = part.table
    assert table.column_names == ["partition", "offset", "row"]
    return (
        part.file,
        part.epoch,
        part.input,
        list(zip(part.key_hash.tolist(), table["offset"].to_pylist(), strict=True)),
        table["row"].to_pylist(),
    )


@pytest.mark.parametrize(
    ("inputs", "epochs", "expected"),
    [
        ([1, 1, 1], [4, 4, 4], [(3, 4, 1, [(2**63, 0), (6, 1), (7, 2)])]),
        ([1, 1, 1], [4, 2, 4], [(3, 2, 1, [(6, 1)]), (3, 4, 1, [(2**63, 0), (7, 2)])]),
        ([1, 0, 1], [4, 4, 4], [(3, 4, 0, [(6, 1)]), (3, 4, 1, [(2**63, 0), (7, 2)])]),
        (
            [1, 0, 1],
            [4, 2, 2],
            [(3, 2, 0, [(6, 1)]), (3, 2, 1, [(7, 2)]), (3, 4, 1, [(2**63, 0)])],
        ),
    ],
)
def test_row_groups_of_several_epochs_and_inputs_are_taken_apart(
    tmp_path, monkeypatch, inputs, epochs, expected
):
    table = pa.table(
        {
            "input": pa.array(inputs, pa.int32()),
            "key_hash": pa.array([-(2**63), 6, 7], pa.int64()),
            "epoch": pa.array(epochs, pa.int64()),
            "partition": [0, 0, 0],
            "offset": [0, 1, 2],
            "a_row": ["a0", "a1", "a2"],
            "b_row": ["b0", "b1", "b2"],
        }
    )
    asked = []

    def rows_(self, near, lo, hi, columns, *, whole):
        asked.append((len(near), lo, hi, columns, whole))
        yield 3, 0, table
        yield 5, 1, table.slice(1, 1)

    monkeypatch.setattr(SpillSource, "rows", rows_)
    source = SpillSource(folder(str(tmp_path)), SpillIndex.of([]), SPEC)
    found = [part_rows(part) for part in load(source, 1, 9)]
    of_input = [
        (*each, [f"{'ab'[each[2]]}{offset}" for _, offset in each[3]])
        for each in (*expected, (5, epochs[1], inputs[1], [(6, 1)]))
    ]
    assert found == of_input
    columns = ("input", "key_hash", "epoch", "partition", "offset")
    assert asked == [(0, 1, 9, columns, True)]


def test_row_groups_of_other_operators_are_not_read(tmp_path):
    source = rigged(tmp_path, {(0, k): [10 * k, 10 * k + 5] for k in range(4)}, [1] * 4)
    groups = replace(source.index.groups, operator=np.array([0, 1, -1, 0]))
    source = SpillSource(source.folder, SpillIndex(source.index.files, groups), SPEC)
    assert source.touching(0, 100).group.tolist() == [0, 2, 3]
    assert source.touching(6, 30).group.tolist() == [2]
    assert source.touching(5, 31).group.tolist() == [0, 2, 3]
    assert replace(source, operator=1).touching(0, 100).group.tolist() == [1, 2]


def test_a_task_s_index_counts_its_own_files(tmp_path):
    top = 2**60
    source = rigged(tmp_path, {(k, k % 2): [k * top, k * top + 5] for k in range(4)}, [7, 8, 9, 10])
    index = source.index.within([Prefix(4, 1), Prefix(4, 3)])
    assert index.files == (source.index.files[1], source.index.files[3])
    assert index.groups.file.tolist() == [0, 1]
    assert index.groups.file.dtype == np.int64
    assert index.groups.bytes.tolist() == [8, 10]
    assert source.index.within([]).files == ()
    both = SpillIndex.of([(SpillFile("x", 1), index.groups), (SpillFile("y", 1), index.groups)])
    assert both.groups.file.tolist() == [0, 0, 1, 1]
    assert [file.path for file in both.files] == ["x", "y"]


def test_windows_are_as_large_as_a_piece_may_be(tmp_path):
    top = 2**60
    source = rigged(tmp_path, {(0, k): [k * top, k * top + 5] for k in range(16)}, [10] * 16)
    ranges = [Prefix(4, v) for v in (0, 1, 2, 5, 6, 7)]
    # What lies between the ranges counts, too: it is read with them.
    assert list(packed(by_hashes(source, ranges), 30)) == [(0, 3, 30), (3, 6, 30)]
    assert list(packed(by_hashes(source, ranges), 29)) == [
        (0, 2, 20),
        (2, 3, 10),
        (3, 5, 20),
        (5, 6, 10),
    ]
    assert list(packed(by_hashes(source, ranges), 9)) == [(i, i + 1, 10) for i in range(6)]
    assert list(packed(by_hashes(source, ranges), 80)) == [(0, 6, 80)]
    assert list(clean_ranges(source, [])) == []


def test_an_empty_range_is_not_read_with_a_large_one(tmp_path):
    top = 2**63
    source = rigged(tmp_path, {(0, 0): [top, top + 5], (0, 1): [top + 9]}, [100, 100])
    halves = [Prefix(1, 0), Prefix(1, 1)]
    assert list(packed(by_hashes(source, halves), 150)) == [(0, 1, 0), (1, 2, 200)]
    # Nor is what lies between an empty range and another.
    source = rigged(tmp_path, {(0, 0): [top, top + 5], (0, 1): [2**64 - 1]}, [100, 100])
    assert list(packed(by_hashes(source, [Prefix(2, 0), Prefix(2, 3)]), 150)) == [
        (0, 1, 0),
        (1, 2, 100),
    ]


def test_only_row_groups_that_reach_over_an_edge_are_read_for_weights(tmp_path):
    top = 2**62
    hashes = {
        (0, 0): [0, 1],  # before the first range
        (0, 1): [top - 1, top, top + 1],  # reaches into it
        (0, 2): [top + 2, 2 * top - 1],
        (0, 3): [2 * top - 1, 2 * top, 2 * top + 1],  # ends in the hole after it
        (0, 4): [2 * top + 2],
        (0, 5): [3 * top, 4 * top - 1],
    }
    source = rigged(tmp_path, hashes, [20, 30, 40, 60, 70, 80])
    ranges = [Prefix(2, 1), Prefix(2, 3)]
    found = pieces.weights(source, source.touching(top, 4 * top), ranges).tolist()
    assert found == [[20 + 40 + 20, 40 + 70], [80, 0]]
    assert [group for _, group, *_ in source.asked] == [1, 3]


def test_one_file_is_open_at_a_time(tmp_path, monkeypatch):
    at_once = []
    real = spillfile._open

    def opening(folder, file):
        found = real(folder, file)
        at_once.append(found)
        assert sum(not each.is_closed for each in kept) == 0
        kept.append(Watched(found))
        return kept[-1]

    class Watched:
        def __init__(self, file):
            self.file, self.is_closed = file, False

        def __getattr__(self, name):
            return getattr(self.file, name)

        def close(self):
            self.is_closed = True
            self.file.close()

    kept = []
    source = spilled(tmp_path, {e: ([1, 2, 3], [1, 2, 3]) for e in range(5)})
    monkeypatch.setattr(spillfile, "_open", opening)
    assert len(load(source, 0, 2**64)) == 10
    assert len(kept) == 5


@given(
    rows=st.lists(st.tuples(*[st.integers(0, n) for n in (4, 3, 2)]), max_size=40),
    inputs=st.integers(1, 3),
)
@example(rows=[], inputs=2)
@example(rows=[(0, 7, 0), (9, 7, 1)], inputs=2)
def test_productive_against_one_hash_at_a_time(rows, inputs):
    rows = sorted((epoch, hash_, i % inputs) for epoch, hash_, i in rows)
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    hashes = columns[1].astype(np.uint64)
    found = cleanup.productive(hashes, columns[0], columns[2], range(inputs))
    expected = [([], []) for _ in range(inputs)]
    for hash_ in sorted({h for _, h, _ in rows}):
        mine = [(n, epoch, i) for n, (epoch, h, i) in enumerate(rows) if h == hash_]
        epochs = sorted({epoch for _, epoch, _ in mine})
        if len(epochs) < 2 or {i for *_, i in mine} != set(range(inputs)):
            continue
        for n, epoch, i in mine:
            expected[i][0].append(n)
            expected[i][1].append(epochs.index(epoch))
    assert [(at.tolist(), of.tolist()) for at, of in found] == expected


@pytest.mark.parametrize("most", [0, 300, 10**9])
@pytest.mark.parametrize("width", [2**60, 2**62])
def test_a_row_group_that_several_pieces_share_is_read_once(tmp_path, monkeypatch, most, width):
    """As far as what reaches beyond a piece may be kept."""
    hashes = np.random.default_rng(5).integers(0, 2**64, 300, dtype=np.uint64)
    source = spilled(tmp_path, {e: (hashes[e::3], hashes[e::3]) for e in range(3)})
    read = Counter()
    real = source_module.read_rows

    def counting(folder, file, groups, *args, **options):
        read.update((file.path, group) for group in groups)
        return real(folder, file, groups, *args, **options)

    monkeypatch.setattr(source_module, "read_rows", counting)
    straddling = pieces.Straddling(most)
    found = Counter()
    for lo in range(0, 2**64, width):
        parts = load(source, lo, lo + width, straddling)
        alone = load(source, lo, lo + width)
        told = [
            Counter(
                (part.file, part.epoch, part.input, h, o)
                for part in some
                for h, o in zip(
                    part.key_hash.tolist(), part.table["offset"].to_pylist(), strict=True
                )
            )
            for some in (parts, alone)
        ]
        assert told[0] == told[1]
        found += told[0]
    assert found.total() == 600
    kept = straddling._bytes
    assert kept == 0 == len(straddling._rows)
    read.clear()
    straddling = pieces.Straddling(most)
    for lo in range(0, 2**64, width):
        load(source, lo, lo + width, straddling)
        assert straddling._bytes <= most
        kept = straddling._rows.values()
        assert straddling._bytes == sum(rows.get_total_buffer_size() for rows in kept)
    often = set(read.values())
    assert often == {1} if most == 10**9 else max(often) > 1


@given(hashes=st.lists(st.integers(0, 9), min_size=1, max_size=12))
@example(hashes=[5, 1, 8, 2])
@example(hashes=[8, 5])
def test_rows_of_a_piece_in_any_order(hashes):
    """A file that another has put together is in no order."""
    table = pa.table({"key_hash": pa.array(hashes, pa.int64()), "n": range(len(hashes))})
    for most in (0, 10**9):
        straddling = pieces.Straddling(most)
        found = [*pieces._within([(0, 3, table)], 3, 7, straddling)]
        told = [n for file, group, some in found for n in some["n"].to_pylist()]
        assert told == [n for n, hash_ in enumerate(hashes) if 3 <= hash_ < 7]
        kept = straddling._rows.get((0, 3))
        after = [n for n, hash_ in enumerate(hashes) if hash_ >= 7]
        assert (kept["n"].to_pylist() if kept else []) == (after if most else [])


def test_generations_of_a_hash_are_in_the_order_of_their_epochs(tmp_path):
    source = spilled(tmp_path, {5: ([1, 2], [2, 3, 7]), 3: ([2, 3, 7, 7], [1]), 9: ([3], [3, 7])})
    found = cleanup.generations(source, load(source, 0, 2**64))
    (one, of_one), (other, of_other) = found
    assert one.key_hash.tolist() == [1, 2, 2, 3, 3, 7, 7]
    assert of_one.tolist() == [1, 0, 1, 0, 2, 0, 0]
    assert other.key_hash.tolist() == [1, 2, 3, 3, 7, 7]
    assert of_other.tolist() == [0, 1, 1, 2, 1, 2]
    assert one.table["symbol"].to_pylist() == ["k1", "k2", "k2", "k3", "k3", "k7", "k7"]
    assert one.table.schema == SPEC.row_schema(0)
    assert cleanup.generations(source, []) is None


def test_rows_of_a_hot_key_stay_in_their_order():
    """Nothing is copied for it: see `picked`."""
    table = rows(0, [7] * 500).table
    assert picked(table, np.arange(500)) is table
    assert picked(table, np.arange(500)[::-1])["offset"].to_pylist() == [*range(499, -1, -1)]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (pa.array(["?"]), "it has string instead of struct<symbol: string, y: string>"),
        (pa.array([{"symbol": "k1", "x": 1}]), "it has struct<symbol: string, x: int64> instead"),
        (pa.nulls(1, spillfile.row_struct(SPEC, 1)), "it is not there"),
        (pa.array([{"symbol": None, "y": "y"}], spillfile.row_struct(SPEC, 1)), "has no symbol"),
    ],
)
def test_a_file_whose_rows_are_not_the_query_s_is_named(tmp_path, row, why):
    source = spilled(tmp_path, {e: ([1], [1]) for e in range(3)})
    parts = load(source, 0, 2**64)
    good = [part for part in parts if part.input == 1]
    assert source_module.rows_of_input(source, good, 1).num_rows == 3
    bad = replace(good[1], table=good[1].table.set_column(2, "row", row))
    told = rf"1\.parquet.*a row of input 1 is not one of this query: .*{re.escape(why)}"
    with pytest.raises(SpillDamaged, match=told):
        source_module.rows_of_input(source, [good[0], bad, good[2]], 1)


def test_a_file_of_another_query_is_named(tmp_path):
    source = spilled(tmp_path, {e: ([1], [1]) for e in range(2)})
    inputs = (SPEC.inputs[0], replace(SPEC.inputs[1], name="c"))
    other = one_join(replace(SPEC.root, inputs=inputs))
    told = r"0\.parquet.*it has no column c_row, which this query's files have"
    with pytest.raises(SpillDamaged, match=told):
        load(replace(source, spec=other), 0, 2**64)


def test_counts_of_many_inputs(tmp_path):
    """Generations of sizes a_g, b_g: all combinations less those within one generation."""
    rng = np.random.default_rng(7)
    sizes = {e: (int(x), int(y)) for e, (x, y) in enumerate(rng.integers(0, 9, (12, 2)))}
    source = spilled(tmp_path, {e: ([9] * x, [9] * y) for e, (x, y) in sizes.items() if x + y})
    everything = prod(np.sum(list(sizes.values()), axis=0).tolist())
    assert count(source) == everything - sum(x * y for x, y in sizes.values())
