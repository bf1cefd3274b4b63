"""Combinations of several generations: as one combination at a time, at the cost of one pass."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spillway.engine.join.batches import Joined
from spillway.engine.join.kernel import Rows
from spillway.engine.join.spec import InputSpec, JoinSpec
from spillway.engine.spill import crossing as module
from spillway.engine.spill.crossing import InputGenerations, crossing

Row = tuple[int, int, str]
"""Hash, generation, key."""


def spec(inputs: int) -> JoinSpec:
    return JoinSpec(
        0,
        pa.schema([pa.field("symbol", pa.string())]),
        tuple(InputSpec(f"i{i}", pa.schema([("x", pa.int64())])) for i in range(inputs)),
    )


def given_rows(join: JoinSpec, inputs: Sequence[Sequence[Row]]) -> list[InputGenerations]:
    """Rows in their order; the offset is the position in it."""
    found = []
    for i, rows in enumerate(inputs):
        n = len(rows)
        columns: list[Any] = [[key for *_, key in rows], range(n), [0] * n, range(n)]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, join.row_schema(i), strict=True)]
        table = pa.Table.from_arrays(arrays, schema=join.row_schema(i))
        hashes = np.array([hash_ for hash_, *_ in rows], np.uint64)
        own = np.array([generation for _, generation, _ in rows], np.int64)
        found.append(InputGenerations(Rows(hashes, table), own))
    return found


def told(join: JoinSpec, batches: Iterator[Joined]) -> Counter[tuple[int, ...]]:
    """Each result's hash and offsets."""
    found: Counter[tuple[int, ...]] = Counter()
    for batch in batches:
        hashes = np.repeat(batch.hashes, batch.results).tolist()
        offsets = [batch.table[f"i{i}_offset"].to_pylist() for i in range(len(join.inputs))]
        found.update(zip(hashes, *offsets, strict=True))
    return found


def expected(inputs: Sequence[Sequence[Row]]) -> Counter[tuple[int, ...]]:
    """One combination at a time."""
    found: Counter[tuple[int, ...]] = Counter()
    for some in product(*[enumerate(rows) for rows in inputs]):
        hashes, generations, keys = (set(each) for each in zip(*(r for _, r in some), strict=True))
        if len(hashes) == len(keys) == 1 and len(generations) > 1:
            found[*hashes, *(at for at, _ in some)] += 1
    return found


@st.composite
def drawn(draw: st.DrawFn) -> list[list[Row]]:
    """Rows of two inputs or three, each hash in all of them, one in two generations at least."""
    inputs = draw(st.integers(2, 3))
    greatest = draw(st.sampled_from([1, 2, 4, 8]))
    found: list[list[Row]] = [[] for _ in range(inputs)]
    for hash_ in range(1, 1 + draw(st.integers(1, 3))):
        for rows in found:
            some = st.lists(st.integers(0, greatest), min_size=1, max_size=6)
            keys = st.sampled_from([f"k{hash_}", f"k{hash_}", f"k{hash_}", "collides"])
            rows += [(hash_, generation, draw(keys)) for generation in sorted(draw(some))]
    found[0] = sorted([*found[0], (1, greatest, "k1")], key=lambda row: row[:2])
    return found


@given(
    inputs=drawn(),
    batch_bytes=st.sampled_from([1, 200, 1 << 20]),
    boxed_rows=st.sampled_from([1, 7, 1 << 16]),
)
@example(inputs=[[(1, 1, "k1")], [(1, 0, "k1")]], batch_bytes=1, boxed_rows=1)
def test_against_one_combination_at_a_time(
    inputs: list[list[Row]], batch_bytes: int, boxed_rows: int
) -> None:
    join = spec(len(inputs))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BOXED_ROWS", boxed_rows)
        found = told(join, crossing(join, given_rows(join, inputs), batch_bytes=batch_bytes))
    assert found == expected(inputs)


def test_boxes_are_held_of_some_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of whole hashes, as many as there is room for; of one with more rows all."""
    held = []
    real = module.boxes_of_generations

    def counting(numbers: Sequence[Any], generations: Sequence[Any]) -> Any:
        held.append(sum(len(each) for each in numbers))
        return real(numbers, generations)

    monkeypatch.setattr(module, "boxes_of_generations", counting)
    monkeypatch.setattr(module, "BOXED_ROWS", 10)
    join = spec(2)
    sizes = [2, 2, 3, 8, 2, 2]  # rows of a hash in each input
    rows = [(n, g % 2, f"k{n}") for n, size in enumerate(sizes) for g in sorted(range(size))]
    rows.sort(key=lambda row: row[:2])
    batches = [*crossing(join, given_rows(join, [rows, rows]), batch_bytes=1 << 20)]
    assert held == [8, 6, 16, 8]
    assert sum(batch.table.num_rows for batch in batches) == 2 * (1 + 1 + 2 + 16 + 1 + 1)


def test_a_generation_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are; the first one of a hash, which has nothing before it, never."""
    asked = []
    real = module.boxes_of

    def counting(old: Sequence[Any], new: Sequence[Any], **more: Any) -> Any:
        asked.append(len(old[0]))
        return real(old, new, **more)

    monkeypatch.setattr(module, "boxes_of", counting)
    join = spec(2)
    for generations in (2, 3, 64, 65):
        asked.clear()
        rows = [(1, g, "k1") for g in range(generations)]
        rows += [(2 + n, g, f"k{2 + n}") for n in range(100) for g in (0, 1)]
        batches = crossing(join, given_rows(join, [rows, rows]), batch_bytes=1 << 20)
        found = sum(batch.table.num_rows for batch in batches)
        assert found == generations * (generations - 1) + 200
        assert asked == [generations - 1 + 100]


def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of all inputs, for each batch that is made."""
    found: list[int] = []
    real = module.ResultBatches.of

    def counting(self: Any, hashes: Any, gathered: Any, boxes: Any) -> Iterator[Joined]:
        found.append(sum(each.table.num_rows for each in gathered))
        return real(self, hashes, gathered, boxes)

    monkeypatch.setattr(module.ResultBatches, "of", counting)
    return found


@pytest.mark.parametrize("rows", [1_000, 4_000])
def test_of_a_hot_hash_only_the_rows_of_a_batch_are_looked_at(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, results = looked_at(monkeypatch), 0
    join = spec(2)
    hot = [(7, g, "k7") for g in (0, 1) for _ in range(rows // 2)]
    for batch in crossing(join, given_rows(join, [hot, hot]), batch_bytes=1 << 16):
        results += batch.table.num_rows
        assert set(batch.hashes.tolist()) == {7}
        assert batch.table.nbytes < 2 << 16
    assert results == rows * rows // 2
    assert sum(seen) <= 2 * results


def test_rows_that_give_nothing_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """One hash may have more text than a column holds, and few results."""
    seen = looked_at(monkeypatch)
    join = spec(2)
    one = [(7, 0, "k7")] * 1_000 + [(7, 1, "k7")]
    other = [(7, 0, "k7")]
    batches = [*crossing(join, given_rows(join, [one, other]), batch_bytes=1 << 20)]
    assert [batch.table.num_rows for batch in batches] == [1]
    assert seen == [2]


def test_a_hash_of_many_generations_leaves_in_few_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = looked_at(monkeypatch)
    join = spec(2)
    rows = [(7, g, "k7") for g in range(300)]
    batches = [*crossing(join, given_rows(join, [rows, rows]), batch_bytes=1 << 20)]
    results = sum(batch.table.num_rows for batch in batches)
    assert results == 300 * 299
    assert len(seen) <= 2 * sum(batch.table.nbytes for batch in batches) / (1 << 20) + 1


def test_whole_hashes_share_a_batch() -> None:
    join = spec(2)
    rows = [(n, g, f"k{n}") for n in range(1_000) for g in (0, 1)]
    batches = [*crossing(join, given_rows(join, [rows, rows]), batch_bytes=1 << 20)]
    assert [batch.table.num_rows for batch in batches] == [2_000]
    assert batches[0].hashes.tolist() == [*range(1_000)]
    assert batches[0].results.tolist() == [2] * 1_000
