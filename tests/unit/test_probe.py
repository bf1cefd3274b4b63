"""Scenes of a probe: what joins below the root give, and what is said when state is gone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spillway.engine.groups import GroupMap
from spillway.engine.probe import probe
from spillway.engine.step import step
from spillway.engine.task import StepTask
from spillway.engine.wire.blocks import (
    PROBED,
    Block,
    decode_missing,
    decode_rows,
    decode_table,
)
from spillway.storage import folder
from spillway.stream.tasks import decode_task, step_tasks
from spillway_schemas.query import query_of
from spillway_schemas.tomlfile import parse_toml
from tests.property.tree_slots import TreeSlots

TREE = """
[streams.a]
fields = { x = "int", y = "int" }
[streams.b]
fields = { x = "int" }
[streams.c]
fields = { y = "int" }
[join.ab]
inputs = ["a", "b"]
on = ["x"]
[join.abc]
inputs = ["ab", "c"]
on = [{ name = "y", columns = { ab = "a.y", c = "y" } }]
"""
AB, ABC = 0, 1


@pytest.fixture
def day(tmp_path: Path) -> TreeSlots:
    """Two rows of `a` and one of `b` that meet, two epochs long."""
    made = TreeSlots(query_of(parse_toml(TREE, Path("q.toml"))), str(tmp_path), slots=1)
    made.epoch([("a", 0, {"x": 1, "y": 5}), ("a", 1, {"x": 1, "y": 6})])
    return made


def the_next_epoch(day: TreeSlots) -> tuple[StepTask, list[Block]]:
    """The task of the only slot in an epoch in which a row of `b` comes, and its blocks."""
    day.kafka["b", 0] = [b'{"x": 1}']
    plan = day._plan(None, 0, seal=False)
    groups = GroupMap(plan.groups)
    [task] = step_tasks(day.settings, plan, groups, now_ms=0).values()
    task = replace(task, attempt="f" * 16, written_at_us=1)
    return task, day._decoded(decode_task(day.settings, plan, groups, (0,)), plan.start, plan.end)


def of_level_1(blocks: list[Block]) -> list[Block]:
    return [block for block in blocks if block.kind in PROBED and block.operator == AB]


def test_what_a_join_gives_are_new_rows_of_the_join_above(day: TreeSlots) -> None:
    task, blocks = the_next_epoch(day)
    given = list(probe(day.spec, task, 1, of_level_1(blocks), day.folder_of(0)))
    assert [(block.kind, block.operator) for block in given] == [("new", ABC), ("given", AB)]
    [rows] = [decode_rows(day.spec, block)[1] for block in given if block.kind == "new"]
    assert sorted(rows["y"].to_pylist()) == [5, 6]
    assert rows["a_offset"].to_pylist() == rows["b_offset"].to_pylist() == [0, 0]
    [counted] = [decode_table(block) for block in given if block.kind == "given"]
    assert counted["results"].to_pylist() == [2]


def test_a_probe_writes_nothing_and_says_the_same_again(day: TreeSlots) -> None:
    task, blocks = the_next_epoch(day)
    before = {info.name for info in day.folder_of(0).list()}
    found = [list(probe(day.spec, task, 1, of_level_1(blocks), day.folder_of(0))) for _ in "12"]
    assert found[0] == found[1]
    assert {info.name for info in day.folder_of(0).list()} == before


def test_state_that_a_probe_does_not_find_is_told_by_the_step_though_it_finds_it(
    day: TreeSlots, tmp_path: Path
) -> None:
    """A host that answers again a moment later: the rows of the join above are not there."""
    task, blocks = the_next_epoch(day)
    nothing = folder(str(tmp_path / "elsewhere"))
    [said] = probe(day.spec, task, 1, of_level_1(blocks), nothing)
    assert (said.kind, said.slot, said.input) == ("missing", 0, 0)
    assert set(decode_missing(said)) == {0}
    report = step(day.spec, task, [*blocks, said], day.folder_of(0), day.warehouse.child)
    assert (report.status, report.unfound, report.files) == ("missing", decode_missing(said), [])
    assert "is not in" in report.unfound[0]


def test_every_slot_and_level_above_is_told_what_was_not_found(tmp_path: Path) -> None:
    """Each may have got rows before that host was lost, and others read afterwards."""
    text = TREE + "[streams.d]\nfields = { x = 'int' }\n[join.top]\ninputs = ['abc', 'd']\n"
    text += "on = [{ name = 'x', columns = { abc = 'a.x', d = 'x' } }]\n"
    made = TreeSlots(query_of(parse_toml(text, Path("q.toml"))), str(tmp_path), slots=2)
    made.epoch([("a", 0, {"x": 1, "y": 5})])
    plan = made._plan(None, 0, seal=False)
    tasks = step_tasks(made.settings, plan, GroupMap(plan.groups), now_ms=0)
    nothing = folder(str(tmp_path / "elsewhere"))
    said = list(probe(made.spec, tasks[1], 1, [], nothing))
    assert [list(decode_missing(each)) for each in said] == [[1]] * 4
    above = {(slot, join) for slot in (0, 1) for join in (1, 2)}
    assert {(b.slot, b.operator) for b in said} == above
    # The probe above finds its own state, and gives nothing all the same.
    [heard] = [b for b in said if (b.slot, b.operator) == (0, 1)]
    passed_on = list(probe(made.spec, tasks[0], 2, [heard], made.folder_of(0)))
    assert [(b.kind, b.slot, b.operator) for b in passed_on] == [
        ("missing", slot, 2) for slot in (0, 1)
    ]
    # Slots are passed on, reasons not: the probe that looked has sent those to everyone.
    assert "is not in" in decode_missing(heard)[1]
    assert [decode_missing(each) for each in passed_on] == [{1: ""}] * 2


def test_groups_that_did_not_come_are_told_by_their_slot(day: TreeSlots) -> None:
    task, blocks = the_next_epoch(day)
    waiting = replace(task, arriving=(3,))
    [said] = probe(day.spec, waiting, 1, of_level_1(blocks), day.folder_of(0))
    assert (said.kind, list(decode_missing(said))) == ("missing", [3])
