"""State that moves within a host: written into the new owner's folder, or through the shuffle."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from spillway.engine.groups import GroupMap
from spillway.engine.relocation import HandoverLost, Neighbour, _shelf, extract, nobody
from spillway.engine.state.runs import born_of
from spillway.engine.state.statefiles import load_manifest
from spillway.engine.step import step
from spillway.engine.task import StepTask
from spillway.engine.upkeep import Room, RunWriter, manifest_bytes, room_of
from spillway.engine.wire.blocks import (
    Block,
    Moved,
    decode_moved,
    decode_rows,
    decode_table,
    encode_rows,
)
from spillway_schemas.journal import Prefix, SlotReport
from tests.property.reference import Row
from tests.property.slots import DAYS, KEY, WAREHOUSE, Slots, key_of, narrow, spec_of

ROWS = 60
BUDGET = 10**7


@pytest.fixture
def slots(tmp_path: Path) -> Slots:
    """Two slots with rows, at the end of epoch 0."""
    made = Slots(
        spec_of(3, composite=False),
        str(tmp_path),
        GroupMap.initial(8, 2),
        partial(narrow, 64),
        {"threshold": 0.9, "inactive_ms": 1_000},
        BUDGET,
    )
    made.run([Row(DAYS[0], i % 3, key_of(i % 20, composite=False), 0, i) for i in range(ROWS)])
    return made


class Move:
    """All groups go to slot 1 in epoch 1."""

    def __init__(self, slots: Slots, *, budget_bytes: int = BUDGET) -> None:
        self.slots = slots
        self.attempts = itertools.count()
        slots.settings = replace(slots.settings, budget_bytes=budget_bytes)
        slots.groups = GroupMap((p, 1) for p in slots.groups.prefixes)
        self.tasks = slots.tasks(slots.plan(groups=slots.groups))

    def neighbour(self, slot: int) -> tuple[StepTask, object]:
        return self.tasks[slot], self.slots.state(slot)

    def extract(self, neighbour: Neighbour | None = None) -> list[Block]:
        task = replace(self.tasks[0], attempt=f"e{next(self.attempts):015x}")
        place = self.slots.state(0)
        return list(extract(self.slots.spec, task, place, neighbour or self.neighbour))

    def step(self, blocks: list[Block]) -> SlotReport:
        slots = self.slots
        return step(slots.spec, self.tasks[1], blocks, slots.state(1), slots.warehouse.child)


def moved(blocks: list[Block]) -> Moved:
    (said,) = [decode_moved(block) for block in blocks if block.kind == "moved"]
    return said


def test_the_new_owner_names_the_files_and_copies_nothing(slots: Slots) -> None:
    move = Move(slots)
    blocks = move.extract()
    given = moved(blocks)
    assert [block.kind for block in blocks if block.kind == "state"] == []
    assert sum(file.rows for file in given.files) == given.rows > 0
    # Named so that the new owner deletes them, too, when nobody names them any more.
    assert {born_of(WAREHOUSE, file.file)[0] for file in given.files} == {1}
    assert {file.run for file in given.files} == {0}
    before = {info.name for info in slots.state(1).list()}
    report = move.step(blocks)
    assert report.totals is not None
    assert report.totals.rows == ROWS
    sizes = {info.name: info.bytes for info in slots.state(1).list()}
    manifest = load_manifest(slots.state(1), report.manifest, sizes, KEY)
    assert manifest is not None
    assert {file.file for file in given.files} <= {run.file for run in manifest.runs}
    assert sizes.keys() - before == {report.manifest}
    runs = [(r.session, r.input, r.run) for r in manifest.runs]
    assert len(set(runs)) == len(runs), "a sender's files of one input are a run of their own"


def test_what_is_larger_than_the_owner_s_files_is_given_as_several(slots: Slots) -> None:
    move = Move(slots)
    small = replace(move.tasks[1].shape, least_file_bytes=200, most_file_bytes=200)
    move.tasks[1] = replace(move.tasks[1], shape=small)
    blocks = move.extract()
    given = moved(blocks)
    assert len(given.files) > 3
    assert sum(file.rows for file in given.files) == given.rows
    report = move.step(blocks)
    assert report.totals is not None
    assert report.totals.rows == ROWS


@pytest.mark.parametrize("harm", ["gone", "short", "damaged"])
def test_a_file_that_is_not_what_was_written_loses_nothing(slots: Slots, harm: str) -> None:
    move = Move(slots)
    blocks = move.extract()
    path = Path(slots.state(1).path(moved(blocks).files[0].file))
    data = path.read_bytes()
    path.unlink()
    if harm == "short":
        path.write_bytes(data[:-1])
    elif harm == "damaged":
        from spillway.engine.state import runs

        runs._verified.clear()
        path.write_bytes(data[:-200] + bytes([data[-200] ^ 1]) + data[-199:])
    before = {info.name for info in slots.state(1).list()}
    with pytest.raises(HandoverLost, match=path.name) as raised:
        move.step(blocks)
    said = str(raised.value)
    assert said.startswith(f"slot 0 wrote state for slot 1 into {slots.state(1).uri}, but ")
    assert said.endswith("Nothing is lost: the epoch runs again, and sends it through the shuffle.")
    assert {info.name for info in slots.state(1).list()} == before
    assert move.step(move.extract(nobody)).status == "done"


def test_state_crosses_the_shuffle_in_compressed_blocks_of_its_session(slots: Slots) -> None:
    blocks = [block for block in Move(slots).extract(nobody) if block.kind == "state"]
    assert {block.input for block in blocks} == {0, 1, 2}
    for block in blocks:
        session, table = decode_rows(slots.spec, block)
        (batch,) = table.combine_chunks().to_batches()
        names = {"session": session, "stream": f"s{block.input}"}
        assert block.data == encode_rows(batch, **names, compressed=True)
        assert block.data != encode_rows(batch, **names, compressed=False)
        assert (block.slot, block.operator, session) == (1, 0, DAYS[0])


def folder_bytes(slots: Slots) -> int:
    return sum(info.bytes for info in slots.state(1).list())


def given_within(move: Move, budget_bytes: int, arriving: tuple[int, ...] = (0,)) -> list[Block]:
    """What is given when the new owner's budget is so large; earlier tries are removed."""
    for info in list(move.slots.state(1).list()):
        if "-1-e" in info.name:
            move.slots.state(1).delete(info.name)
    move.tasks[1] = replace(move.tasks[1], budget_bytes=budget_bytes, arriving=arriving)
    return move.extract()


def test_without_room_rows_go_through_the_shuffle(slots: Slots) -> None:
    move = Move(slots)
    seen = {}
    for budget in range(folder_bytes(slots), 60_000, 500):
        blocks = given_within(move, budget)
        files = len(moved(blocks).files)
        assert files + [block.kind for block in blocks].count("state") == 3
        if files:
            assert folder_bytes(slots) <= 0.9 * budget
        seen[budget] = files
    assert list(seen.values()) == sorted(seen.values())
    assert set(seen.values()) == {0, 1, 2, 3}
    report = move.step(given_within(move, next(b for b, files in seen.items() if files == 1)))
    assert report.totals is not None
    assert report.totals.rows + report.totals.spilled_rows == ROWS


def test_several_givers_share_the_room(slots: Slots) -> None:
    move = Move(slots)

    def all_files(budget: int, arriving: tuple[int, ...]) -> bool:
        return len(moved(given_within(move, budget, arriving)).files) == 3

    budgets = range(0, 90_000, 500)
    alone, shared = (
        budgets[bisect_left(budgets, True, key=lambda each, a=a: all_files(each, a))]
        for a in ((0,), (0, 2))
    )
    assert shared > alone + 0.8 * sum(f.bytes for f in moved(move.extract()).files)


@pytest.mark.parametrize("threshold", [0.5, 0.99])
def test_a_giver_has_its_share_of_the_room_beside_the_owner_s_manifest(
    slots: Slots, threshold: float
) -> None:
    move = Move(slots)
    sender = move.tasks[0]
    owner = replace(move.tasks[1], budget_bytes=200_001, arriving=(0, 2), threshold=threshold)
    used, files = folder_bytes(slots), len(list(slots.state(1).list()))
    # Twice the files that there are, four for each input; each group before and after.
    reserve = manifest_bytes(2 * files + 4 * 3, 2 * 8)
    slack = room_of(owner.shape, 200_001, used, 0, 0).slack_bytes
    left = min(200_001 - used - reserve - slack, int(threshold * 200_001) - used)
    share = Room(left // 2, used_bytes=0, reserve_bytes=0, slack_bytes=0)
    assert _shelf(slots.spec, sender, owner, slots.state(1)) == RunWriter(
        slots.spec,
        slots.state(1),
        sender.warehouse_id,
        sender.epoch,
        sender.attempt,
        sender.key,
        share,
        owner.shape,
    )


def test_figures_go_with_their_groups(slots: Slots) -> None:
    """Three slots get what slot 0 gives."""
    move = Move(slots)
    prefixes = sorted(move.tasks[0].leaving)
    owners = dict(zip(prefixes, (1, 2, 3, 1), strict=True))
    groups = GroupMap((p, owners.get(p, 1)) for p in slots.groups.prefixes)
    move.tasks[0] = replace(move.tasks[0], groups=groups)
    blocks = move.extract(nobody)
    figures = {
        block.slot: decode_table(block).select(["depth", "value"]).to_pylist()
        for block in blocks
        if block.kind == "figures"
    }
    named = {
        slot: sorted(Prefix(row["depth"], row["value"]) for row in rows)
        for slot, rows in figures.items()
    }
    assert named == {slot: [p for p in prefixes if owners[p] == slot] for slot in (1, 2, 3)}
    told = {block.slot: decode_moved(block) for block in blocks if block.kind == "moved"}
    assert sorted(told) == [1, 2, 3]
    assert all(said.found is True and said.rows > 0 for said in told.values())


@pytest.mark.parametrize("why", ["nobody", "no manifest", "another host"])
def test_between_hosts_rows_go_through_the_shuffle(slots: Slots, why: str) -> None:
    move = Move(slots)
    neighbour: Neighbour = move.neighbour
    if why == "nobody":
        neighbour = nobody
    elif why == "no manifest":
        move.tasks[1] = replace(move.tasks[1], manifest=None)
    else:
        elsewhere = slots.state(7)
        neighbour = lambda slot: (move.tasks[slot], elsewhere)  # noqa: E731
    blocks = move.extract(neighbour)
    assert moved(blocks).files == ()
    assert any(block.kind == "state" for block in blocks)
    assert not list(slots.state(7).list())
