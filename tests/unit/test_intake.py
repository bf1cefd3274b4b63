"""What a step refuses of what came, and what becomes of files in the epoch in which they came."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from jobs.engine.arrangement import Drops, Segments
from jobs.engine.blocks import Block, Moved, decode_moved, decode_rows, encode_moved
from jobs.engine.groups import GroupMap
from jobs.engine.intake import PIECE_BYTES, Intake, take_in
from jobs.engine.join import Rows
from jobs.engine.loading import load
from jobs.engine.relocation import adopt, extract
from jobs.engine.runs import bytes_of
from jobs.engine.task import StepTask
from schemas.journal import Prefix
from tests.property.reference import Row
from tests.property.slots import DAYS, Slots, batch_of, key_of, narrow, spec_of

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
    with pytest.raises(ValueError, match="slot 0 of operator 0 got a block for slot 1"):
        took(blocks)


def test_a_block_of_another_operator_is_refused(slots: Slots) -> None:
    blocks = [replace(b, operator=3) for b in slots.blocks(rows(0, 40), "new") if b.slot == 0]
    with pytest.raises(ValueError, match="got a block for slot 0 of operator 3"):
        took(blocks)


@pytest.mark.parametrize("kind", ["new", "state", "restore"])
def test_rows_of_groups_that_the_slot_does_not_own_are_refused(slots: Slots, kind: str) -> None:
    blocks = [replace(block, slot=0) for block in slots.blocks(rows(0, 40), kind)]
    with pytest.raises(ValueError, match="slot 0 got rows of groups that it does not own"):
        took(blocks)


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
