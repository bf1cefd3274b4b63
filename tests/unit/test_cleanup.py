"""Cleanup of ranges: pieces stay small, cost stays linear, damage is named."""

from itertools import pairwise
from math import prod

import numpy as np
import pyarrow as pa
import pytest

from jobs.engine import cleanup, spillfile
from jobs.engine.cleanup import Source, SpillIndex, clean_ranges, cut, load, windows
from jobs.engine.join import Rows
from jobs.engine.spec import InputSpec, JoinSpec
from jobs.engine.spillfile import SpillDamaged, SpillFile, survey, write_spill
from jobs.storage import folder
from schemas.journal import Prefix

SPEC = JoinSpec(
    0,
    pa.schema([pa.field("symbol", pa.string(), nullable=False)]),
    (
        InputSpec("a", pa.schema([("x", pa.int64())])),
        InputSpec("b", pa.schema([("y", pa.string())])),
    ),
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


def spilled(tmp_path, generations) -> Source:
    """`generations[epoch] = (hashes of a, hashes of b)`, a file each."""
    place = folder(str(tmp_path))
    surveyed = []
    for epoch, (a, b) in generations.items():
        record = write_spill(
            place, f"{epoch}.parquet", SPEC, "2026-01-05", epoch, [[rows(0, a)], [rows(1, b)]]
        )
        file = SpillFile(record.path, record.bytes, record.digest)
        surveyed.append((file, survey(place, file, 0)))
    return Source(place, SpillIndex.of(surveyed), 0)


def count(source, ranges=(ALL,), **sizes):
    return sum(table.num_rows for _, table in clean_ranges(SPEC, source, ranges, **sizes))


def test_nothing_spilled_nothing_missing(tmp_path):
    source = Source(folder(str(tmp_path)), SpillIndex.of([]), 0)
    assert list(clean_ranges(SPEC, source, [ALL])) == []
    assert list(clean_ranges(SPEC, source, [])) == []


def test_one_generation_is_complete_and_never_decoded(tmp_path, monkeypatch):
    source = spilled(tmp_path, {3: ([1, 1, 2], [1, 2, 2])})
    monkeypatch.setattr(cleanup, "decode_rows", lambda *_: pytest.fail("decoded"))
    assert count(source) == 0


def test_only_rows_that_can_give_something_are_decoded(tmp_path, monkeypatch):
    # Hash 1: two generations, both inputs. 2: one generation. 3: one input only.
    source = spilled(tmp_path, {3: ([1, 2, 3], [1, 2]), 5: ([1, 3], [1])})
    decoded = []
    real = cleanup.decode_rows
    monkeypatch.setattr(
        cleanup, "decode_rows", lambda r, schema: decoded.append(len(r)) or real(r, schema)
    )
    assert count(source) == 2 * 2 - 1 - 1
    assert decoded == [2, 2]


def test_generations_are_told_apart_by_hash_not_by_epoch(tmp_path):
    """A hundred epochs, each of another hash: as many steps as one hash has generations."""
    source = spilled(tmp_path, {e: ([e // 2], [e // 2]) for e in range(100)})
    parts = load(source, 0, 2**64)
    assert len({part.epoch for part in parts}) == 100
    assert len(cleanup.generations(SPEC, source, parts)) == 2
    assert count(source) == 50 * 2


@pytest.mark.parametrize("piece_bytes", [500, 3_000, 40_000, 10**6, 10**9])
def test_pieces_are_bounded_and_cover_everything(tmp_path, monkeypatch, piece_bytes):
    monkeypatch.setattr(spillfile, "ROW_GROUP_ROWS", 64)
    rng = np.random.default_rng(1)
    spread = rng.integers(0, 2**64, 800, dtype=np.uint64)
    clustered = np.uint64(5 << 59) + rng.integers(0, 1000, 1500, dtype=np.uint64)
    hot = np.full(900, 2**63 + 77, np.uint64)
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


def test_small_ranges_are_read_together_and_large_ones_alone(tmp_path):
    rng = np.random.default_rng(2)
    few = rng.integers(0, 2**63, 200, dtype=np.uint64)
    many = np.uint64(2**63) + rng.integers(0, 2**60, 20_000, dtype=np.uint64)
    source = spilled(tmp_path, {1: (few, few), 2: (many, many)})
    ranges = [Prefix(4, v) for v in range(16)]
    found = list(windows(source, ranges, 100_000))
    assert found[0][0] == 0
    assert [a for a, _ in found[1:]] == [b for _, b in found[:-1]]
    assert found[-1][1] == 16
    assert found[0][1] >= 8
    assert len(found) >= 2


def test_a_hot_key_larger_than_a_piece_leaves_in_small_batches(tmp_path):
    hot = [2**40] * 150
    source = spilled(tmp_path, dict.fromkeys((1, 2, 3), (hot, hot)))
    batches = [
        table.nbytes
        for _, table in clean_ranges(SPEC, source, [ALL], piece_bytes=1000, batch_bytes=20_000)
    ]
    assert count(source, piece_bytes=1000, batch_bytes=20_000) == 450**2 - 3 * 150**2
    assert max(batches) < 80_000


def test_ranges_give_their_own_results_in_order(tmp_path):
    hashes = [v << 60 for v in range(16)]
    source = spilled(tmp_path, {1: (hashes, hashes), 4: (hashes[3:], hashes[5:])})
    ranges = [Prefix(4, v) for v in (1, 3, 4, 9, 15)]
    found: dict[int, int] = {}
    for position, table in clean_ranges(SPEC, source, ranges):
        assert position >= max(found, default=0)
        found[position] = found.get(position, 0) + table.num_rows
    assert found == {1: 1, 2: 1, 3: 2, 4: 2}


@pytest.mark.parametrize("ranges", [[Prefix(1, 1), Prefix(1, 0)], [Prefix(0, 0), Prefix(1, 1)]])
def test_ranges_out_of_order_are_refused(tmp_path, ranges):
    source = Source(folder(str(tmp_path)), SpillIndex.of([]), 0)
    with pytest.raises(ValueError, match="ascending"):
        list(clean_ranges(SPEC, source, ranges))


def test_a_task_takes_only_what_its_ranges_need(tmp_path):
    low, high = list(range(50)), [2**63 + i for i in range(50)]
    source = spilled(tmp_path, {1: (low, low), 2: (high, high), 3: (low, high)})
    index = source.index.within([Prefix(1, 1)])
    assert len(index.files) == 2
    own = Source(source.folder, index, 0)
    assert len(index.groups) < len(source.index.groups)
    assert count(own, [Prefix(1, 1)]) == count(source, [Prefix(1, 1)]) == 50


def test_reads_grow_with_the_input_not_with_the_generations(tmp_path, monkeypatch):
    """The same rows in 2 and in 40 generations: every row is read once."""
    hashes = np.random.default_rng(3).integers(0, 2**64, 400, dtype=np.uint64)
    read = []
    real = cleanup.read_rows

    def counting(*args, **options):
        for group, table in real(*args, **options):
            read.append(table.num_rows)
            yield group, table

    monkeypatch.setattr(cleanup, "read_rows", counting)
    for generations in (2, 40):
        read.clear()
        source = spilled(
            tmp_path / str(generations),
            {e: (hashes[e::generations], hashes[e::generations]) for e in range(generations)},
        )
        assert count(source, [Prefix(4, v) for v in range(16)]) == 0
        assert sum(read) == 800


def test_the_merged_base_is_kept_in_few_runs(tmp_path, monkeypatch):
    hot = [2**20]
    copied = []
    real = cleanup._permuted
    monkeypatch.setattr(
        cleanup, "_permuted", lambda t, order: copied.append(t.num_rows) or real(t, order)
    )
    generations = 128
    source = spilled(tmp_path, dict.fromkeys(range(generations), (hot, hot)))
    assert count(source) == generations**2 - generations
    # n log n, where merging into one run each time would copy n^2 / 2 = 8,000 rows an input.
    assert sum(copied) <= 2 * (generations + generations * 8)


def test_rows_of_another_query_are_named_not_misread(tmp_path):
    source = spilled(tmp_path, {1: ([1], [1]), 2: ([1], [1])})
    other = JoinSpec(
        0,
        SPEC.keys,
        (InputSpec("a", pa.schema([("x", pa.string())])), SPEC.inputs[1]),
    )
    with pytest.raises(SpillDamaged, match=r"1\.parquet.*input 0 is not one of this query"):
        list(clean_ranges(other, source, [ALL]))


def test_a_file_that_vanishes_is_named(tmp_path):
    source = spilled(tmp_path, {1: ([1], [1]), 2: ([1], [1])})
    source.folder.delete("session_date=2026-01-05/2.parquet")
    with pytest.raises(SpillDamaged, match=r"2\.parquet: it is missing"):
        list(clean_ranges(SPEC, source, [ALL]))


def test_counts_of_many_inputs(tmp_path):
    """Generations of sizes a_g, b_g: all combinations less those within one generation."""
    rng = np.random.default_rng(7)
    sizes = {e: (int(x), int(y)) for e, (x, y) in enumerate(rng.integers(0, 9, (12, 2)))}
    source = spilled(tmp_path, {e: ([9] * x, [9] * y) for e, (x, y) in sizes.items() if x + y})
    everything = prod(np.sum(list(sizes.values()), axis=0).tolist())
    assert count(source) == everything - sum(x * y for x, y in sizes.values())
