"""Drops and segments against a look at every hash by itself, at all edges."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from spillway.engine.groups import GroupMap
from spillway.engine.join.kernel import NEVER_DROPPED, Rows
from spillway.engine.state.arrangement import (
    ALL,
    Drops,
    RunWindow,
    Segments,
    SessionState,
    everything,
)
from spillway.engine.state.runs import bytes_of, part_of, row_bytes
from spillway_schemas.journal import Prefix

TOP = 2**64
History = list[tuple[list[Prefix], int]]


def prefixes(draw: random.Random, most: int, depth: int = 5) -> list[Prefix]:
    """Disjoint ranges in hash order."""
    found: list[Prefix] = []
    for _ in range(draw.randrange(most + 1)):
        bits = draw.randrange(depth + 1)
        each = Prefix(bits, draw.randrange(2**bits))
        if all(each.hi <= other.lo or other.hi <= each.lo for other in found):
            found.append(each)
    return sorted(found, key=lambda p: p.lo)


def edges_of(ranges: Sequence[Prefix]) -> list[int]:
    """Hashes at and beside every edge."""
    near = {0, 1, TOP - 1, 2**63}
    for each in ranges:
        near |= {each.lo - 1, each.lo, each.lo + 1, each.hi - 2, each.hi - 1, each.hi, each.hi + 1}
    return sorted(hash_ for hash_ in near if 0 <= hash_ < TOP)


def last(history: History, hash_: int) -> int:
    """Epoch of the last drop of a hash."""
    return max((e for ranges, e in history for p in ranges if p.lo <= hash_ < p.hi), default=-1)


def dropped(draw: random.Random) -> tuple[Drops, History]:
    drops, history = Drops(), list[tuple[list[Prefix], int]]()
    for epoch in range(draw.randrange(6)):
        ranges = prefixes(draw, 3)
        drops = drops.drop(ranges, epoch)
        history.append((ranges, epoch))
    return drops, history


def hashes(values: Sequence[int]) -> np.ndarray:
    return np.array(values, dtype=np.uint64)


@pytest.mark.parametrize("seed", range(30))
def test_the_last_drop_of_every_hash(seed: int) -> None:
    drops, history = dropped(random.Random(seed))
    tried = edges_of([p for ranges, _ in history for p in ranges])
    found = drops.last(hashes(tried))
    assert found.dtype == np.int64
    assert found.tolist() == [last(history, hash_) for hash_ in tried]
    # Kept as short as can be: no edge without a change.
    assert drops.edges[0] == 0
    assert (drops.edges.dtype, drops.epochs.dtype) == (np.uint64, np.int64)
    assert (np.diff(drops.epochs) != 0).all()
    assert (drops.edges[1:] > drops.edges[:-1]).all()
    again = Drops.from_json(drops.to_json())
    assert (
        again.to_json()
        == drops.to_json()
        == [[int(edge), int(epoch)] for edge, epoch in zip(drops.edges, drops.epochs, strict=True)]
    )
    assert again.last(hashes(tried)).tolist() == found.tolist()
    for oldest in range(7):
        since = drops.since(oldest)
        assert since.last(hashes(tried)).tolist() == [
            epoch if epoch >= oldest else -1 for epoch in found.tolist()
        ]
        assert (np.diff(since.epochs) != 0).all()


def test_nothing_dropped_is_the_same_drops() -> None:
    drops = Drops()
    assert drops.drop([], 7) is drops
    assert drops.to_json() == [[0, -1]]
    whole = drops.drop([Prefix(0, 0)], 7)
    assert whole.to_json() == [[0, 7]]
    assert whole.last(hashes([0, TOP - 1])).tolist() == [7, 7]


def rows(values: Sequence[int]) -> Rows:
    """Rows of some width, in hash order."""
    ordered = sorted(values)
    text = pa.array(["x" * (i % 7) for i in range(len(ordered))], pa.string())
    table = pa.table({"s": text, "offset": pa.array(range(len(ordered)), pa.int64())})
    return Rows(hashes(ordered), table)


def cut_up(draw: random.Random, buckets: list[tuple[int, int]], history: History) -> Rows:
    near = edges_of([p for ranges, _ in history for p in ranges])
    near += [edge for pair in buckets for edge in pair if edge < TOP]
    near += [edge - 1 for pair in buckets for edge in pair if edge]
    some = [draw.choice(near) for _ in range(draw.randrange(1, 40))]
    return rows(some)


def compare(
    segments: Segments, buckets: list[tuple[int, int]], history: History, draw: random.Random
) -> None:
    """Counts and slices by a look at each row."""
    assert segments.buckets == len(buckets)
    for born in range(-1, 7):
        held = cut_up(draw, buckets, history)
        values = held.key_hash.tolist()
        bucket = [
            next((b for b, (lo, hi) in enumerate(buckets) if lo <= v < hi), -1) for v in values
        ]
        alive = [b >= 0 and last(history, v) < born for b, v in zip(bucket, values, strict=True)]
        counts, sizes = segments.tally(held, born)
        assert (counts.dtype, sizes.dtype) == (np.int64, np.int64)
        for b in range(len(buckets)):
            mine = [i for i, at in enumerate(bucket) if at == b and alive[i]]
            assert counts[b] == len(mine)
            # 8 for the hash, 8 for the offset, 4 for where a text begins.
            assert sizes[b] == sum(20 + i % 7 for i in mine)
        wanted = np.array([draw.random() < 0.5 for _ in buckets], dtype=np.bool_)
        slices = segments.slices(held, born, wanted)
        assert all(len(each.key_hash) for each in slices), "no slice of nothing"
        found = [n for each in slices for n in each.table["offset"].to_pylist()]
        assert found == [i for i, b in enumerate(bucket) if alive[i] and wanted[b]]
        assert [h for each in slices for h in each.key_hash.tolist()] == [values[i] for i in found]


@pytest.mark.parametrize("seed", range(30))
def test_segments_of_groups(seed: int) -> None:
    draw = random.Random(seed)
    drops, history = dropped(draw)
    groups = GroupMap.initial(draw.choice([1, 4, 8]), 1)
    buckets = [(p.lo, p.hi) for p in groups.prefixes]
    compare(Segments.of_groups(groups, drops), buckets, history, draw)


@pytest.mark.parametrize("seed", range(40))
def test_segments_of_ranges(seed: int) -> None:
    draw = random.Random(seed)
    drops, history = dropped(draw)
    ranges = prefixes(draw, 4) or [Prefix(3, draw.randrange(8))]
    segments = Segments.of_ranges(ranges, drops)
    assert segments.edges.dtype == np.uint64
    compare(segments, [(p.lo, p.hi) for p in ranges], history, draw)


@pytest.mark.parametrize("seed", range(10))
def test_everything_is_one_bucket(seed: int) -> None:
    draw = random.Random(seed)
    drops, history = dropped(draw)
    compare(everything(drops), [(0, TOP)], history, draw)
    held = rows([1, 2, TOP - 1])
    [whole] = everything(Drops()).slices(held, 0, ALL)
    assert whole.key_hash.tolist() == held.key_hash.tolist()


def test_no_rows_are_counted_as_none() -> None:
    counts, sizes = everything(Drops()).tally(rows([]), 3)
    assert (counts.tolist(), sizes.tolist()) == ([0], [0])
    assert (counts.dtype, sizes.dtype) == (np.int64, np.int64)
    assert everything(Drops()).slices(rows([]), 3, ALL) == []


def test_what_lives_has_the_bytes_of_its_rows() -> None:
    held = rows(range(10))
    assert everything(Drops()).tally(held, 0)[1].tolist() == [bytes_of(held)]


def test_a_sessions_pieces_are_its_files_and_what_has_just_come() -> None:
    one, two, three = rows([1]), rows([2]), rows([3])
    part = RunWindow(SimpleNamespace(born=4), one)  # type: ignore[arg-type]
    session = SessionState("d", Drops(), [[], [part]], [[], [two]], [[], [three]])
    assert list(session.pieces(0)) == []
    assert list(session.pieces(1)) == [(one, 4), (two, NEVER_DROPPED), (three, NEVER_DROPPED)]


def test_each_row_has_its_own_bytes() -> None:
    """A text of 1,000 characters does not make its neighbours large."""
    table = pa.table({"text": ["x" * 10, "y" * 1_000, ""], "number": [1, 2, 3]})
    found = Rows(np.arange(3, dtype=np.uint64), table)
    assert row_bytes(found).tolist() == [8 + 10 + 4 + 8, 8 + 1_000 + 4 + 8, 8 + 0 + 4 + 8]
    assert row_bytes(found).sum() == bytes_of(found)


@pytest.mark.parametrize("type_", [pa.string(), pa.large_binary()])
def test_rows_from_the_middle_have_the_bytes_of_their_own_values(type_: pa.DataType) -> None:
    values = pa.array([b"x" * n for n in (10, 1_000, 0, 7)], pa.binary()).cast(type_)
    found = Rows(np.arange(4, dtype=np.uint64), pa.table({"value": values}))
    each = row_bytes(found).tolist()
    for first in range(4):
        for last in range(first, 5):
            assert bytes_of(part_of(found, first, last)) == sum(each[first:last])


def test_where_a_value_is_null_each_row_has_a_bit_for_it() -> None:
    hashes = np.arange(16, dtype=np.uint64)
    for values, size in (([1.0] * 16, 16 * 16), ([None, *[1.0] * 15], 16 * 16 + 2)):
        held = Rows(hashes, pa.table({"value": pa.array(values, pa.float64())}))
        assert bytes_of(held) == size
