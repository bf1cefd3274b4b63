"""What a step refuses of what came, and what becomes of files in the epoch in which they came."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spillway.engine.groups import GroupMap
from spillway.engine.intake import PIECE_BYTES, Intake, merge_bounded, take_in
from spillway.engine.join.kernel import Rows
from spillway.engine.relocation import adopt, extract
from spillway.engine.state.arrangement import Drops, Segments
from spillway.engine.state.loading import load
from spillway.engine.state.runs import bytes_of
from spillway.engine.task import StepTask
from spillway.engine.wire.blocks import (
    GIVEN_SCHEMA,
    Block,
    Moved,
    decode_moved,
    decode_rows,
    encode_counts,
    encode_missing,
    encode_moved,
    encode_rows,
    encode_table,
)
from spillway_schemas.journal import PartitionCount, Prefix
from tests.property.reference import Row
from tests.property.slots import DAYS, Slots, batch_of, key_of, narrow, spec_of
from tests.two_joins import TWO_JOINS

SPEC = spec_of(2, composite=False)
GROUPS = GroupMap.initial(8, 2)


def rows(first: int, number: int, day: str = DAYS[0]) -> list[Row]:
    keys = [key_of(i % 20, composite=False) for i in range(first, first + number)]
    return [Row(day, i % 2, key, 0, i) for i, key in enumerate(keys, first)]


@pytest.fixture
def slots(tmp_path: Path) -> Slots:
    options: dict[str, object] = {"threshold": 0.9, "inactive_ms": 1_000}
    return Slots(SPEC, str(tmp_path), GROUPS, partial(narrow, 64), options, 10**8)


def took(blocks: list[Block], slot: int = 0, groups: GroupMap = GROUPS) -> Intake:
    return take_in(SPEC, groups, slot, blocks, PIECE_BYTES)


def test_a_block_of_another_slot_is_refused(slots: Slots) -> None:
    blocks = slots.blocks(rows(0, 40), "new")
    with pytest.raises(ValueError, match=r"^slot 0 got a block for slot 1$"):
        took(blocks)


def test_a_block_of_another_operator_is_refused(slots: Slots) -> None:
    blocks = [replace(b, operator=3) for b in slots.blocks(rows(0, 40), "new") if b.slot == 0]
    with pytest.raises(ValueError, match=r"^a block of input 0 says that it is for join 3, not 0$"):
        took(blocks)


def test_an_anchor_says_nothing() -> None:
    assert took([Block(0, "anchor", 0, 0, None)]) == Intake()
    # Not even whose it is.
    assert took([Block(5, "anchor", 3, 0, None)], slot=1) == Intake()
    # Nor does it end what comes.
    counts = [PartitionCount(topic="a", partition=0, rows=1, rejected=0, filtered=0, digest=0)]
    read = Block(0, "count", 0, 0, encode_counts(counts))
    assert took([Block(0, "anchor", 0, 0, None), read]).read == counts


def test_everything_that_came_is_in_its_place(slots: Slots) -> None:
    """New rows, restored ones and state of two sessions, each beside the others."""
    other = DAYS[1]
    came = {
        "new": [*rows(0, 40), *rows(100, 40, other)],
        "state": rows(200, 40),
        "restore": rows(300, 40, other),
    }
    blocks = [b for kind, each in came.items() for b in slots.blocks(each, kind) if b.slot == 0]
    moved = sum(decode_rows(SPEC, b)[1].num_rows for b in blocks if b.kind == "state")
    counts = [
        PartitionCount(topic=topic, partition=0, rows=n, rejected=1, filtered=0, digest=n)
        for topic, n in (("t", 3), ("s", 4), ("t", 5))
    ]
    blocks += [Block(0, "count", 0, i, encode_counts(counts[i:])) for i in (0, 1)]
    found = took([*blocks, given(moved)])
    assert found.moved_rows == moved
    assert found.moved == {(1, 0): Moved(True, moved)}
    assert found.sessions() == {*DAYS}
    assert found.lacking([0, 1, 2]) == [0, 2]

    def offsets(pieces: list[list[Rows]]) -> list[list[int]]:
        for each in (each for input_ in pieces for each in input_):
            assert (each.key_hash[1:] >= each.key_hash[:-1]).all()
        return [
            sorted(n for each in input_ for n in each.table["offset"].to_pylist())
            for input_ in pieces
        ]

    def expected(kinds: list[str], day: str) -> list[list[int]]:
        return [
            [
                row.offset
                for kind in kinds
                for row in came[kind]
                if (row.session, row.input) == (day, i)
                and GROUPS.slot_of(np.array([slots.hash_of(row)], np.uint64))[0] == 0
            ]
            for i in (0, 1)
        ]

    assert {day: offsets(each) for day, each in found.new.items()} == {
        day: expected(["new"], day) for day in DAYS
    }
    assert {day: offsets(each) for day, each in found.installed.items()} == {
        DAYS[0]: expected(["state"], DAYS[0]),
        other: expected(["restore"], other),
    }
    for pieces in found.new.values():
        for each in (each for input_ in pieces for each in input_):
            assert each.kafka_ms is not None
            assert each.kafka_ms.tolist() == [1000 + n for n in each.table["offset"].to_pylist()]
    # Of a partition one count: what was read apart from what was read again.
    assert [(c.topic, c.partition, c.rows) for c in found.read] == [("s", 0, 4), ("t", 0, 8)]
    assert [(c.topic, c.partition, c.rows) for c in found.restored] == [("s", 0, 4), ("t", 0, 5)]


def test_a_block_of_another_join_of_the_tree_is_refused() -> None:
    """Its join and its input must agree: rows lie by the input and are probed by the join."""
    groups = GroupMap((space, 0) for space in TWO_JOINS.spaces)
    for input_ in range(len(TWO_JOINS.inputs)):
        schema = TWO_JOINS.state_schema(input_)
        empty = pa.RecordBatch.from_pylist([], schema=schema)
        data = encode_rows(empty, session=DAYS[0], stream=TWO_JOINS.inputs[input_].name)
        own = TWO_JOINS.operators[input_]
        for kind in ("state", "restore"):
            take_in(TWO_JOINS, groups, 0, [Block(0, kind, own, input_, data)], PIECE_BYTES)
            wrong = Block(0, kind, 1 - own, input_, data)
            told = f"^a block of input {input_} says that it is for join {1 - own}, not {own}$"
            with pytest.raises(ValueError, match=told):
                take_in(TWO_JOINS, groups, 0, [wrong], PIECE_BYTES)


def test_what_a_probe_tells_the_step() -> None:
    """What the joins below the root gave, and whose state they did not find."""
    row = {"session": DAYS[0], "group": 3, "results": 7, "downstream_bytes": 1.5}
    counted = pa.Table.from_pylist([row], schema=GIVEN_SCHEMA)
    blocks = [
        Block(0, "given", 0, 0, encode_table(counted)),
        Block(0, "missing", 0, 0, encode_missing({4: "", 6: ""})),
        Block(0, "missing", 0, 0, encode_missing({4: "a manifest is not there"})),
        Block(0, "missing", 0, 0, encode_missing({4: "", 5: "no groups"})),
    ]
    found = took(blocks)
    assert [table.to_pylist() for table in found.given] == [counted.to_pylist()]
    assert found.unfound == {4: "a manifest is not there", 5: "no groups", 6: ""}


def test_a_slot_that_groups_come_from_is_asked_about_each_join() -> None:
    """It lacks what it says nothing of, and what it did not find, in any of the joins."""
    there, gone = Moved(True, 5), Moved(found=False)
    found = Intake(
        moved={
            (1, 0): there,
            (1, 1): gone,
            (2, 0): there,
            (2, 1): there,
            (3, 1): there,
            (5, 0): gone,
            (5, 1): gone,
        }
    )
    assert found.lacking([5, 3, 2, 1, 4], (0, 1)) == [5, 3, 1, 4]
    assert found.lacking([1, 2, 3, 4, 5], (0,)) == [3, 4, 5]
    assert found.lacking([1, 2, 3, 4, 5], (1,)) == [1, 4, 5]
    assert found.lacking([], (0, 1)) == []


def held(hashes: list[int], first: int = 0) -> Rows:
    numbers = pa.array(range(first, first + len(hashes)), pa.int64())
    return Rows(np.array(hashes, np.uint64), pa.table({"n": numbers}))


@pytest.mark.parametrize(
    ("piece_bytes", "expected"),
    [
        (80, [[1, 2, 3, 4, 5, 6, 7, 8, 9, 9]]),
        (79, [[1, 2, 3, 4, 5, 6, 7, 8], [9, 9]]),
        (40, [[1, 2, 3, 4, 5], [6, 7, 8, 9, 9]]),
        (1, [[1], [2], [3], [4], [5], [6], [7], [8], [9, 9]]),
    ],
)
def test_sorted_runs_become_pieces_of_so_many_bytes(
    piece_bytes: int, expected: list[list[int]]
) -> None:
    parts = [held([1, 3, 5, 7, 9]), held([]), held([2, 4, 6, 8, 9], 5)]
    found = merge_bounded(parts, piece_bytes)
    assert [each.key_hash.tolist() for each in found] == expected
    numbers = [n for each in found for n in each.table["n"].to_pylist()]
    assert numbers == [0, 5, 1, 6, 2, 7, 3, 8, 4, 9]
    assert merge_bounded([held([])], piece_bytes) == merge_bounded([], piece_bytes) == []


@pytest.mark.parametrize("kind", ["new", "state", "restore"])
def test_rows_of_groups_that_the_slot_does_not_own_are_refused(slots: Slots, kind: str) -> None:
    blocks = [replace(block, slot=0) for block in slots.blocks(rows(0, 40), kind)]
    with pytest.raises(ValueError, match="slot 0 got rows") as refused:
        took(blocks)
    assert str(refused.value) == (
        "slot 0 got rows of groups that it does not own: blocks were routed with another "
        "assignment than the step's"
    )


@pytest.mark.parametrize("said", [-1, 1])
def test_more_or_fewer_moved_rows_than_were_given_are_refused(slots: Slots, said: int) -> None:
    blocks = [block for block in slots.blocks(rows(0, 40), "state") if block.slot == 0]
    came = sum(decode_rows(SPEC, block)[1].num_rows for block in blocks)
    assert took([*blocks, given(came)]).moved_rows == came
    with pytest.raises(
        ValueError, match=f"slot 0 was given {came + said} rows of groups that moved, {came} came"
    ):
        took([*blocks, given(came + said)])


def given(number: int) -> Block:
    return Block(0, "moved", 0, 1, encode_moved(Moved(True, number)))


def moving(slots: Slots) -> tuple[list[Block], dict[int, StepTask]]:
    """Slot 0 gives all that it has to slot 1, as files; tasks of the epoch."""
    slots.run(rows(0, 60))
    slots.groups = GroupMap((p, 1) for p in GROUPS.prefixes)
    tasks = slots.tasks(slots.plan(groups=slots.groups))
    found = extract(SPEC, tasks[0], slots.state(0), lambda slot: (tasks[slot], slots.state(slot)))
    return list(found), tasks


def test_files_of_rows_are_counted_among_what_came(slots: Slots) -> None:
    blocks, _ = moving(slots)
    (said,) = [decode_moved(block) for block in blocks if block.kind == "moved"]
    assert said.files
    short = replace(said, rows=said.rows + 1)
    other = [b for b in blocks if b.kind != "moved"]
    owner = slots.groups
    took([*other, Block(1, "moved", 0, 0, encode_moved(said))], 1, owner)
    with pytest.raises(ValueError, match=f"was given {short.rows} rows .*, {said.rows} came"):
        took([*other, Block(1, "moved", 0, 0, encode_moved(short))], 1, owner)


def test_a_file_with_groups_that_the_slot_does_not_own_is_refused(slots: Slots) -> None:
    blocks, tasks = moving(slots)
    (said,) = [decode_moved(block) for block in blocks if block.kind == "moved"]
    found = load(SPEC, slots.state(1), 1, 0, tasks[1].manifest, tasks[1].key)
    # A part of what comes is another slot's.
    wrong = replace(tasks[1], groups=GroupMap((p, int(p.value > 0)) for p in GROUPS.prefixes))
    with pytest.raises(ValueError, match="slot 1 got a file of slot 0 with groups that it does"):
        adopt(SPEC, wrong, slots.state(1), found, 0, said.files)


def test_what_is_spilled_of_a_file_in_the_epoch_in_which_it_came_is_gone(slots: Slots) -> None:
    """The file is born in the epoch of the drop: its rows live on in the spill file alone."""
    slots.run(rows(0, 60))
    slots.run(rows(60, 20), groups=GroupMap((p, 1) for p in GROUPS.prefixes), forced_bytes=400)
    assert slots.handed > 0
    assert 0 < len(slots.cuts[DAYS[0]]) < len(GROUPS)
    slots.run(rows(80, 40))
    slots.run([], groups=GROUPS)
    slots.run(rows(120, 20), seal=DAYS[0])


@pytest.mark.parametrize(("born", "live"), [(3, 0), (4, 0), (5, 2)])
def test_rows_of_a_file_are_dead_when_dropped_in_its_epoch_or_later(born: int, live: int) -> None:
    batch, _ = batch_of(SPEC, [r for r in rows(0, 6) if r.input == 0])
    table = pa.Table.from_batches([batch])
    hashes = np.array([1 << 60, 9 << 60, 10 << 60], dtype=np.uint64)
    held = Rows(hashes, table, born=born)
    segments = Segments.of_groups(GroupMap.initial(1, 1), Drops().drop([Prefix(1, 1)], 4))
    slices = segments.slices(held, born, np.ones(1, dtype=np.bool_))
    assert sum(len(each.key_hash) for each in slices) == 1 + live
    counted, sizes = segments.tally(held, born)
    assert counted.tolist() == [1 + live]
    assert (int(sizes[0]) == bytes_of(held)) == bool(live)
