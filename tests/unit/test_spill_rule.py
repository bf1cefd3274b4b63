"""Spills keep their rule: when they begin, how much they take, and what leaves for want of room.

Days of one slot, on the real step and with the intake that the policy allows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spillway.engine import step as step_module
from spillway.engine.groups import I64, GroupMap
from spillway.engine.join.kernel import Rows
from spillway.engine.join.spec import InputSpec, JoinSpec
from spillway.engine.join.tree import one_join
from spillway.engine.spill.spilling import (
    Limits,
    Victims,
    choose_victims,
    flush_ranges,
    rows_of,
    staying,
)
from spillway.engine.state.arrangement import Drops, RunWindow, Segments, SessionState
from spillway.engine.state.merging import DEFAULT_SHAPE, Shape
from spillway.engine.state.statefiles import Merging
from spillway.engine.statistics import Counters, Figures
from spillway.engine.step import step
from spillway.engine.task import StepTask
from spillway.engine.upkeep import Room, RunWriter, room_of, upkeep
from spillway.engine.wire.blocks import Block, Coordinates, route
from spillway.policy.forecast import Forecast
from spillway.policy.intake import KEPT_FOR_TRIMMING, rows_per_epoch
from spillway.policy.victims import (
    DEFAULT_VICTIMS,
    POLICIES,
    GroupFigures,
    VictimContext,
    global_productivity,
    penalised_productivity,
    productivity,
    victim_order,
)
from spillway.storage import folder
from spillway_schemas.filenames import turn
from spillway_schemas.journal import Prefix, SlotTotals
from tests.property.slots import KEY

DAY = "2026-01-05"
THRESHOLD, FRACTION = 0.8, 0.3
GROUPS = GroupMap.initial(64, 1)
SPEC = one_join(
    JoinSpec(
        0,
        pa.schema([pa.field("k", pa.string(), nullable=False)]),
        tuple(
            InputSpec(name, pa.schema([("v", pa.float64()), ("t", pa.string())])) for name in "ab"
        ),
    )
)


@dataclass(frozen=True)
class Spill:
    """One spill, in bytes."""

    before: int
    took: int
    overflow: int
    intake: int


def blocks_of(
    draw: np.random.Generator, number: int, offset: int, epoch: int, kind: str = "new"
) -> list[Block]:
    """So many rows of each input."""
    blocks = []
    for input_ in (0, 1):
        keys = pa.array([f"key-{k:06d}" for k in draw.integers(0, 100_000, number).tolist()])
        texts = pa.array([f"text of row {i % 97}" for i in range(number)])
        schema = pa.schema([*SPEC.root.keys, *SPEC.inputs[input_].payload])
        columns = [keys, pa.array(draw.random(number)), texts]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        where = Coordinates(
            np.zeros(number, np.int32),
            np.arange(offset, offset + number),
            np.full(number, epoch * 1000),
        )
        blocks += route(SPEC, input_, GROUPS, batch, where, session=DAY, kind=kind)
    return blocks


def epochs(
    root: Path,
    budget: int,
    number: int,
    rows: int | None = None,
    fraction: float = FRACTION,
    threshold: float = THRESHOLD,
    halved_at: int | None = None,
    repeated_at: int | None = None,
    **options: Any,
) -> Iterator[SlotTotals]:
    """Epochs of `rows` rows, by default of as many as the policy allows. `halved_at`: the epoch
    from which on the budget is half; `repeated_at`: of which two jobs' reports are thrown away;
    `options`: more of each step's task."""
    state, tables = folder(str(root)).child("slot"), folder(str(root)).child("tables")
    draw = np.random.default_rng(5)
    manifest, offset = None, 0
    limit = rows or rows_per_epoch([], budget, 1, threshold, 600_000)
    for epoch in range(number):
        each = limit // 2
        blocks = blocks_of(draw, each, offset, epoch)
        task = StepTask(
            slot=0,
            epoch=epoch,
            attempt="",
            warehouse_id="w",
            session=DAY,
            manifest=manifest,
            key=KEY,
            groups=GROUPS,
            budget_bytes=budget if halved_at is None or epoch < halved_at else budget // 2,
            threshold=threshold,
            fraction=fraction,
            now_ms=epoch * 1000,
            **options,
        )
        for job in range(1, 4 if epoch == repeated_at else 2):
            named = replace(task, attempt=f"{turn(1, job)}{epoch:09x}")
            report = step(SPEC, named, blocks, state, tables.child)
        assert report.totals is not None
        manifest, offset = report.manifest, offset + each
        yield report.totals
        if rows is None:
            limit = rows_per_epoch([report.totals], budget, 1, threshold, 600_000)


def spills(days: Iterator[SlotTotals]) -> list[Spill]:
    found = []
    for totals in days:
        assert totals.folder_bytes <= totals.budget_bytes
        if totals.spilled_bytes:
            before = totals.state_bytes + totals.spilled_bytes
            row_bytes = before / (totals.rows + totals.spilled_rows)
            intake = int(row_bytes * sum(totals.rows_in.values()))
            found.append(Spill(before, totals.spilled_bytes, totals.overflow_bytes, intake))
    return found


@pytest.mark.parametrize(
    ("budget", "number", "fraction"),
    [
        # Of 1 MiB manifests take so much that spills may begin below the threshold.
        (2 << 20, 50, 0.3),
        (3 << 20, 50, 0.05),
        pytest.param(3 << 20, 52, 0.3, marks=pytest.mark.server),
        pytest.param(9 << 20, 80, 0.02, marks=pytest.mark.server),
        pytest.param(8 << 20, 60, 0.3, marks=pytest.mark.server),
    ],
)
def test_a_steady_day_spills_above_the_threshold_and_no_more_than_the_rule_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: int, number: int, fraction: float
) -> None:
    largest = [0]

    def watched(figures: GroupFigures, context: VictimContext) -> I64:
        largest[0] = max(largest[0], int(figures.bytes.max()))
        return POLICIES[DEFAULT_VICTIMS](figures, context)

    monkeypatch.setitem(POLICIES, "watched", watched)
    found = []
    for totals in epochs(tmp_path, budget, number, fraction=fraction, victims="watched"):
        found += [(spill, largest[0]) for spill in spills(iter([totals]))]
    bound = int(THRESHOLD * budget)
    assert len(found) >= 3
    assert [spill for spill, _ in found if spill.before <= bound] == []
    for spill, largest_group in found:
        rule = max(fraction * spill.before, spill.before - bound, spill.intake)
        # The intake is known by the mean size of rows.
        assert 0.98 * rule <= spill.took - spill.overflow <= 1.05 * rule + largest_group
    lost = sum(spill.overflow for spill, _ in found)
    assert lost <= 0.05 * sum(spill.took for spill, _ in found)


@pytest.mark.server
def test_a_higher_threshold_leaves_less_room_for_dead_rows(tmp_path: Path) -> None:
    found = spills(epochs(tmp_path, 16 << 20, 110, fraction=0.05, threshold=0.9))
    assert len(found) > 9
    assert sum(spill.overflow for spill in found) <= 0.45 * sum(spill.took for spill in found)


@pytest.mark.parametrize(
    ("rows", "number", "returns", "least"),
    [
        (1870, 30, "off", 0.5),
        (1400, 60, "expected-gain", 0.6),
        pytest.param(None, 80, "expected-gain", 0.65, marks=pytest.mark.server),
    ],
)
def test_a_slot_spills_before_its_folder_has_no_room_to_work(
    tmp_path: Path, rows: int | None, number: int, returns: str, least: float
) -> None:
    """A sixteenth of the budget an epoch to a ninth: spills begin a quarter below the threshold
    at most, and the slot never loses most of what it holds."""
    budget = 1 << 20
    more = {"reactivation": returns, "left_ms": {DAY: 60_000.0}}
    days = list(epochs(tmp_path, budget, number, rows, fraction=0.05, **more))
    found = spills(iter(days))
    first = next(i for i, each in enumerate(days) if each.spilled_bytes)
    assert min(each.state_bytes for each in days[first:]) >= 0.4 * budget
    mean = sum(each.state_bytes for each in days[number // 2 :]) / (number - number // 2)
    assert mean >= least * budget
    assert min(spill.before for spill in found) >= 0.75 * THRESHOLD * budget
    for spill in found:
        assert spill.took < 0.3 * budget
        assert spill.overflow > 0 or spill.before > THRESHOLD * budget, "and it is counted"


def test_room_for_work() -> None:
    room = Room(budget_bytes=1_000, used_bytes=700, reserve_bytes=40, slack_bytes=10)
    assert (room.left(), room.left(trimming=True)) == (250, 260)
    assert (room.for_work(40), room.to_spill(40, 700)) == (20, 0)
    assert (room.for_work(166), room.to_spill(166, 700)) == (83, 0), "just enough"
    assert room.to_spill(168, 700) == 168 + 2
    assert (room.for_work(450), room.to_spill(450, 700)) == (200, 450 + 400), "a fifth at most"
    assert room.to_spill(168, 699) == 168 + 1, "one byte goes by itself"
    assert room.to_spill(168, 698) == 0
    full = replace(room, used_bytes=990)
    assert full.to_spill(0, 990) == 0, "nothing came"
    assert full.to_spill(2, 990) == 2 + 43
    clean = replace(room, used_bytes=9)
    assert [clean.to_spill(n, 9) for n in (932, 933)] == [0, 933 + 1], "there is little to merge"


def test_room_is_set_aside_for_a_manifest_a_quarter_larger_than_the_last_one() -> None:
    known = 4096 + 320 * 10 + 136 * 64
    for before, reserve in ((0, known), (16_000, 20_000), (12_000, known), (1 << 20, 1 << 18)):
        room = room_of(DEFAULT_SHAPE, 1 << 20, 5, 10, 64, before)
        assert (room.budget_bytes, room.used_bytes) == (1 << 20, 5)
        assert room.reserve_bytes == reserve, "a quarter of the budget at most"
        assert room.slack_bytes == (1 << 20) // 16, "less than two files"


def test_a_first_epoch_that_fits_stays(tmp_path: Path) -> None:
    [first] = epochs(tmp_path, 1 << 20, 1, 13_000)
    assert first.state_bytes > 0.7 * (1 << 20)
    assert (first.spilled_bytes, first.overflow_bytes) == (0, 0)


def test_a_repeated_epoch_has_the_room_of_the_first_attempt(tmp_path: Path) -> None:
    """Another slot's host is lost, so this one's report is thrown away. With the files of that
    attempt in its folder it lost all that it held."""
    once, again = (
        list(epochs(tmp_path / name, 1 << 20, 10, 1870, repeated_at=at))
        for name, at in (("once", None), ("again", 8))
    )
    same = {"busy_s": 0.0, "seconds": {}}
    of_both = [[each.model_copy(update=same) for each in days] for days in (once, again)]
    assert of_both[0] == of_both[1]
    assert once[8].folder_bytes > 0.85 * (1 << 20), "a second one would not fit"


def test_what_a_step_asks_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that nothing names go by themselves; the last manifest is needed. What comes back
    leaves the room to work free."""
    asked: list[tuple[Room, int, int]] = []
    left: list[int] = []
    to_spill, choose_returns = Room.to_spill, step_module.choose_returns

    def asking(room: Room, intake_bytes: int, held_bytes: int) -> int:
        asked.append((replace(room), intake_bytes, held_bytes))
        return to_spill(room, intake_bytes, held_bytes)

    def returning(figures: Any, limits: Limits, *more: Any, **named: Any) -> Any:
        left.append(limits.room_bytes)
        return choose_returns(figures, limits, *more, **named)

    monkeypatch.setattr(Room, "to_spill", asking)
    monkeypatch.setattr(step_module, "choose_returns", returning)
    days = epochs(tmp_path, 1 << 20, 2, 400)
    first = next(days)
    (tmp_path / "slot" / "foreign").write_bytes(bytes(1_000))
    second = next(days)
    (_, came, _), (room, then, held) = asked
    assert (came, then) == (first.state_bytes, second.state_bytes - first.state_bytes)
    assert room.used_bytes == held + 1_000 == first.folder_bytes + 1_000
    assert left[1] == room.left() - room.for_work(then) > 0


def test_what_is_restored_is_no_intake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times as much as comes: neither is room kept for so much once more, nor merged more."""
    asked: list[int] = []
    to_spill, true = Room.to_spill, step_module.upkeep

    def asking(room: Room, intake_bytes: int, held_bytes: int) -> int:
        asked.append(intake_bytes)
        return to_spill(room, intake_bytes, held_bytes)

    def keeping(shelf: RunWriter, *more: Any) -> Any:
        asked.append(more[-1])
        asked.append(shelf.room.used_bytes)
        return true(shelf, *more)

    monkeypatch.setattr(Room, "to_spill", asking)
    monkeypatch.setattr(step_module, "upkeep", keeping)
    draw, place = np.random.default_rng(5), folder(str(tmp_path))
    task = StepTask(
        slot=0,
        epoch=0,
        attempt="0" * 16,
        warehouse_id="w",
        session=DAY,
        manifest=None,
        key=KEY,
        groups=GROUPS,
        budget_bytes=1 << 20,
        threshold=THRESHOLD,
    )
    blocks = [*blocks_of(draw, 400, 0, 0, "restore"), *blocks_of(draw, 100, 400, 0)]
    report = step(SPEC, task, blocks, place.child("slot"), place.child("tables").child)
    assert report.totals is not None
    came, stays, written = asked
    assert came == pytest.approx(report.totals.state_bytes / 5, rel=0.02)
    assert stays == pytest.approx(written / 5, rel=0.02)


def test_what_leaves_for_want_of_room_is_counted(tmp_path: Path) -> None:
    """A budget that is halved: the folder is over it, so nothing that comes finds room."""
    days = list(epochs(tmp_path, 1 << 20, 19, halved_at=18))
    assert [each.overflow_bytes for each in days[:18]] == [0] * 18
    assert 0 < days[18].overflow_bytes < days[18].spilled_bytes


def victims(sizes: list[int], intake: list[int], limits: Limits) -> tuple[list[int], int]:
    """The groups that leave, the largest first, and what of it is for want of room."""
    size = np.array(sizes, np.int64)
    figures = Figures(
        size[None], size, np.array(intake, np.int64), Counters.zeros(len(sizes)), size * 0.0
    )
    found = choose_victims({DAY: figures}, limits, "largest", VictimContext(0, 0, 0))
    assert found.groups[DAY].dtype == np.bool_
    return np.flatnonzero(found.groups[DAY]).tolist(), found.overflow_bytes


def test_what_is_forced_is_no_more_than_what_the_rule_takes_anyway() -> None:
    sizes = [400, 300, 200, 100]
    rule = Limits(budget_bytes=1_000, threshold=0.8, fraction=0.3, room_bytes=1_000)
    assert victims(sizes, [0] * 4, rule) == ([0], 0)
    for forced, leave in ((300, [0]), (400, [0]), (401, [0, 1])):
        limits = Limits(1_000, 0.8, 0.3, 1_000, forced_bytes=forced)
        assert victims(sizes, [0] * 4, limits) == (leave, 0)
    below = Limits(10_000, 0.8, 0.3, 1_000, forced_bytes=1)
    assert victims(sizes, [0] * 4, below) == ([0], 0)


def test_for_want_of_room_only_what_has_just_come_leaves() -> None:
    sizes, intake = [400, 300, 200, 100], [0, 50, 0, 60]
    for room, leave, overflow in (
        (110, [], 0),
        (109, [1], 300),
        (60, [1], 300),
        (59, [1, 3], 400),
        (-5, [1, 3], 400),
    ):
        limits = Limits(budget_bytes=10_000, threshold=0.8, fraction=0.3, room_bytes=room)
        assert victims(sizes, intake, limits) == (leave, overflow)


def test_for_room_to_work_the_first_leave_and_what_the_rule_takes_counts() -> None:
    sizes = [400, 300, 200, 100]
    for short, leave, overflow in ((1, [0], 400), (400, [0], 400), (401, [0, 1], 700)):
        limits = Limits(10_000, 0.8, 0.3, 1_000, short_bytes=short)
        assert victims(sizes, [0] * 4, limits) == (leave, overflow)
    # The rule takes 300, and a whole group for it.
    for short, leave, overflow in ((400, [0], 0), (401, [0, 1], 300), (9_999, [0, 1, 2, 3], 600)):
        limits = Limits(1_000, 0.8, 0.3, 1_000, short_bytes=short)
        assert victims(sizes, [0] * 4, limits) == (leave, overflow)


def test_a_single_byte_and_groups_without_any() -> None:
    limits = Limits(budget_bytes=10_000, threshold=0.8, fraction=0.3, room_bytes=0)
    assert victims([9, 8, 7], [0, 1, 0], limits) == ([1], 8)
    assert victims([9, 0, 7], [0, 1, 0], limits) == ([], 0), "no rows, nothing to gain"
    forced = Limits(10_000, 0.8, 0.3, 1_000, forced_bytes=17)
    assert victims([9, 1, 7], [0] * 3, forced) == ([0, 1, 2], 0)
    one = Limits(10_000, 0.8, 0.3, 1_000, forced_bytes=1)
    assert victims([1, 1], [0] * 2, one)[0] == [0]


def test_the_rule_begins_above_the_threshold_and_takes_at_least_what_is_above_it() -> None:
    at = Limits(budget_bytes=1_000, threshold=0.8, fraction=0.1, room_bytes=1_000)
    assert victims([500, 300], [0] * 2, at) == ([], 0)
    assert victims([1] * 801, [0] * 801, at) == (list(range(80)), 0)
    assert victims([1] * 950, [0] * 950, at) == (list(range(150)), 0)
    # By the rule first; what then still does not fit is counted apart.
    full = Limits(budget_bytes=1_000, threshold=0.8, fraction=0.3, room_bytes=10)
    assert victims([400, 300, 200, 100], [5, 6, 7, 8], full) == ([0, 1, 2], 500)


@pytest.mark.parametrize(
    ("came", "leave"),
    # 88 of 100 bytes are in memory, 8 more than may be.
    [(0, 8), (6, 8), (12, 12), (40, 40)],
)
def test_a_spill_takes_at_least_what_the_epoch_brought(came: int, leave: int) -> None:
    limits = Limits(100, 0.8, 0.01, 1_000, brought_bytes=came)
    # What was installed is no intake, however much it is.
    assert victims([1] * 88, [1] * 88, limits) == (list(range(leave)), 0)
    assert victims([1] * 88, [1] * 88, replace(limits, budget_bytes=110)) == ([], 0)


def test_groups_of_all_sessions_are_victims_alike() -> None:
    def figures(*sizes: int) -> Figures:
        size = np.array(sizes, np.int64)
        return Figures(size[None], size, np.zeros(3, np.int64), Counters.zeros(3), size * 0.0)

    days = {"d1": figures(5, 90, 0), "d2": figures(80, 1, 95), "d3": figures(0, 0, 2)}
    limits = Limits(10_000, 0.8, 0.3, 1_000, forced_bytes=186)
    found = choose_victims(days, limits, "largest", VictimContext(0, 0, 0))
    chosen = {day: each.tolist() for day, each in found.groups.items()}
    assert chosen == {
        "d1": [False, True, False],
        "d2": [True, False, True],
        "d3": [False, False, False],
    }
    assert found.overflow_bytes == 0
    # By the time that they are idle: only one of the second day is above a second.
    for each in days.values():
        each.counters.last_used_ms[:] = 2_000
    days["d2"].counters.last_used_ms[1] = 999
    days["d1"].counters.results[1] = days["d2"].counters.results[2] = 10_000
    limits = Limits(10_000, 0.8, 0.3, 1_000, forced_bytes=2)
    policy = "inactive-then-productivity"
    found = choose_victims(days, limits, policy, VictimContext(2_000, 1_000, 0))
    # One byte of the idle group; then of those without results the largest.
    assert {day: np.flatnonzero(each).tolist() for day, each in found.groups.items()} == {
        "d1": [],
        "d2": [0, 1],
        "d3": [],
    }
    assert choose_victims({}, limits, "largest", VictimContext(0, 0, 0)) == Victims({})


def test_rows_leave_by_group_and_the_others_stay() -> None:
    """Two groups; what was dropped at the end of epoch 3 is dead in a file born by then."""
    groups = GroupMap.initial(2, 1)
    segments = Segments.of_groups(groups, Drops().drop([Prefix(1, 1)], 3))

    def rows(*hashes: int) -> Rows:
        table = pa.table({"n": pa.array(range(len(hashes)), pa.int64())})
        return Rows(np.array(hashes, np.uint64), table)

    half = 1 << 63
    parts = [RunWindow(SimpleNamespace(born=b), rows(1, half, half + 1)) for b in (3, 4)]  # type: ignore[arg-type]
    session = SessionState(DAY, Drops(), [parts, []], [[], []], [[], [rows(2, half + 2)]])

    def found(wanted: list[bool]) -> list[list[list[int]]]:
        slices = rows_of(session, segments, np.array(wanted))
        return [[each.key_hash.tolist() for each in of_input] for of_input in slices]

    assert found([True, False]) == [[[1], [1]], [[2]]]
    assert found([False, True]) == [[[half, half + 1]], [[half + 2]]]
    assert found([False, False]) == [[], []]
    fresh = [rows(5, half + 5), rows(half + 6), rows(4)]
    for victims_, stay in (
        ([False, False], [[5, half + 5], [half + 6], [4]]),
        ([False, True], [[5], [4]]),
        ([True, False], [[half + 5], [half + 6]]),
        ([True, True], []),
    ):
        kept = staying(fresh, segments, np.array(victims_))
        assert [each.key_hash.tolist() for each in kept] == stay


def test_ranges_are_flushed_by_the_slot_s_own_groups() -> None:
    """Sixteen groups of two slots in turn: ranges at their edges, within them and over several."""
    groups = GroupMap.initial(16, 2)
    mine = [groups.prefixes[g] for g in groups.groups_of_slot(1).tolist()]
    assert flush_ranges(groups, 1, [Prefix(0, 0)]) == mine
    assert flush_ranges(groups, 1, []) == []
    for at in range(16):
        group, below, above = Prefix(4, at), Prefix(6, 4 * at), Prefix(6, 4 * at + 3)
        own = group in mine
        assert flush_ranges(groups, 1, [group]) == [group] * own
        assert flush_ranges(groups, 1, [above, below]) == [below, above] * own
    for at in range(8):
        wide = Prefix(3, at)
        assert flush_ranges(groups, 1, [wide]) == [p for p in mine if wide.covers(p)]
    narrow = Prefix(6, mine[0].value * 4)
    assert flush_ranges(groups, 1, [mine[-1], narrow]) == [narrow, mine[-1]], "in hash order"
    assert flush_ranges(groups, 1, [mine[-1], mine[0], narrow]) == [
        mine[0],
        mine[-1],
    ]


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        # Idle for 900 and 600 ms; 500 is no more than may be. Of the others 0.1, 0.5 and 2 results
        # a byte, and of two alike the larger first.
        ("inactive-then-productivity", [3, 1, 4, 5, 2, 0]),
        ("productivity", [4, 5, 2, 0, 1, 3]),
        # Of what they would give up 3, 0.05, 0.05, 5, 1 and 0.05 for each byte.
        ("expected-loss", [5, 1, 2, 4, 0, 3]),
        ("most-productive", [3, 1, 0, 5, 2, 4]),
        ("largest", [4, 5, 1, 0, 2, 3]),
    ],
)
def test_which_group_is_spilled_first(policy: str, order: list[int]) -> None:
    figures = GroupFigures(
        bytes=np.array([50, 60, 40, 10, 100, 80]),
        results=np.array([100, 300, 20, 900, 10, 40]),
        last_used_ms=np.array([1_500, 1_400, 1_900, 1_100, 1_600, 2_000]),
        loss=np.array([150.0, 3.0, 2.0, 50.0, 100.0, 4.0]),
    )
    assert victim_order(policy, figures, VictimContext(2_000, 500, 7)).tolist() == order


def test_a_group_without_bytes_yields_nothing_and_a_seed_gives_one_order() -> None:
    figures = GroupFigures(np.array([0, 9, 5]), np.array([0, 9, 1]), np.array([0, 0, 0]))
    assert victim_order("productivity", figures, VictimContext(0, 0, 0)).tolist() == [0, 2, 1]
    one = GroupFigures(np.array([0, 1, 4]), np.array([0, 3, 4]), np.zeros(3, dtype=np.int64))
    assert productivity(one).tolist() == [0, 3, 1]
    orders = {
        tuple(victim_order("random", figures, VictimContext(0, 0, s)).tolist()) for s in range(40)
    }
    assert len(orders) == 6
    again = [victim_order("random", figures, VictimContext(5, 1, 3)).tolist() for _ in range(2)]
    assert again[0] == again[1]
    with pytest.raises(ValueError, match=f"unknown policy 'x': use one of {', '.join(POLICIES)}"):
        victim_order("x", figures, VictimContext(0, 0, 0))


OF_A_TREE = GroupFigures(
    bytes=np.array([50, 60, 40, 10, 100, 80]),
    results=np.array([100, 300, 20, 900, 10, 40]),
    last_used_ms=np.zeros(6, dtype=np.int64),
    level=np.array([0, 2, 1, 2, 0, 1]),
    final_results=np.array([100.0, 30.0, 20.0, 2.5, 10.0, 0.0]),
    downstream_bytes=np.array([0.0, 240.0, 0.0, 0.0, 0.0, 400.0]),
)


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        # What each join gives for a byte: 2, 5, 0.5, 90, 0.1, 0.5; of two alike the larger first.
        ("local-output", [4, 5, 2, 0, 1, 3]),
        # Final results for a byte: 2, 0.5, 0.5, 0.25, 0.1, 0.
        ("global-output", [5, 4, 3, 1, 2, 0]),
        # With what is kept further up: 2, 0.1, 0.5, 0.25, 0.1, 0; of two alike what frees more.
        ("global-output-penalty", [5, 1, 4, 3, 2, 0]),
        # The rule of one join goes over the groups of all joins.
        ("inactive-then-productivity", [4, 5, 2, 0, 1, 3]),
    ],
)
def test_groups_of_all_joins_of_a_tree_are_victims_alike(policy: str, order: list[int]) -> None:
    assert victim_order(policy, OF_A_TREE, VictimContext(0, 0, 7)).tolist() == order


def test_bottom_up_takes_the_level_furthest_from_the_root_by_chance_then_the_next() -> None:
    orders = {
        tuple(victim_order("bottom-up", OF_A_TREE, VictimContext(0, 0, seed)).tolist())
        for seed in range(100)
    }
    of_level = [{1, 3}, {2, 5}, {0, 4}]
    assert all([{*o[:2]}, {*o[2:4]}, {*o[4:]}] == of_level for o in orders)
    assert len(orders) == 8, "two orders of each of three levels"
    again = [victim_order("bottom-up", OF_A_TREE, VictimContext(5, 1, 3)).tolist() for _ in "ab"]
    assert again[0] == again[1]


def test_intermediate_results_count_against_a_group() -> None:
    """SIGMOD 2006, Figure 10: two groups of size 10 and output 20. A row of the one makes 2 rows
    for the next operator, one of the other 20; so the second is the victim."""
    figures = GroupFigures(
        bytes=np.array([10, 10]),
        results=np.array([20, 200]),
        last_used_ms=np.zeros(2, dtype=np.int64),
        level=np.array([1, 1]),
        final_results=np.array([20.0, 20.0]),
        downstream_bytes=np.array([20.0, 200.0]),
    )
    assert global_productivity(figures).tolist() == [2, 2]
    assert penalised_productivity(figures).tolist() == [20 / 30, 20 / 210]
    of_both = ("local-output", "global-output-penalty")
    first = {each: int(victim_order(each, figures, VictimContext(0, 0, 0))[0]) for each in of_both}
    assert first["local-output"] == 0, "what gives most to the next operator is kept"
    assert first["global-output-penalty"] == 1


@pytest.mark.parametrize("seed", range(5))
def test_a_single_join_is_a_tree_of_one_level(seed: int) -> None:
    draw = np.random.default_rng(seed)
    plain = GroupFigures(
        *(draw.integers(0, 9, 40) for _ in range(3)), loss=draw.integers(0, 9, 40) * 1.0
    )
    told = replace(
        plain,
        level=np.zeros(40, dtype=np.int64),
        final_results=plain.results.astype(np.float64),
        downstream_bytes=np.zeros(40),
    )
    context = VictimContext(9, 4, seed)
    for policy in POLICIES:
        order = victim_order(policy, plain, context).tolist()
        assert victim_order(policy, told, context).tolist() == order
        assert sorted(order) == list(range(40))
    same = {"local-output": "productivity", "bottom-up": "random"}
    same |= dict.fromkeys(("global-output", "global-output-penalty"), "productivity")
    for policy, as_ in same.items():
        expected = victim_order(as_, plain, context).tolist()
        assert victim_order(policy, plain, context).tolist() == expected


def totals_of(slot: int, rows: int, size: int, *came: int) -> SlotTotals:
    rows_in = {str(i): number for i, number in enumerate(came)}
    of_memory = {"budget_bytes": 1, "state_bytes": size, "folder_bytes": 0}
    return SlotTotals(slot=slot, rows=rows, rows_in=rows_in, **of_memory)


def test_rows_that_an_epoch_may_bring() -> None:
    assert 1 / DEFAULT_SHAPE.files_in_budget == KEPT_FOR_TRIMMING
    # Of 4 MB three tenths of a quarter less a 32nd: 262,500 bytes, in rows of 80 bytes.
    asked = (4_000_000, 3, 0.75)
    assert rows_per_epoch([], *asked, most=10**6) == 3 * 3_281
    assert rows_per_epoch([], *asked, most=9_843 - 1) == 9_843 - 1
    # Of 100 bytes a row, and evenly.
    even = [totals_of(s, 10, 1_000, 3, 2) for s in range(3)]
    assert rows_per_epoch(even, *asked, most=10**6) == 3 * 2_625
    # One slot gets half of the rows; it is 1.5 times as much as its share.
    skewed = [totals_of(0, 10, 1_000, 6, 4), *even[1:]]
    assert rows_per_epoch(skewed, *asked, most=10**6) == 3 * 1_750
    # A row is not taken to be less than 8 bytes.
    tiny = [totals_of(s, 10, 10) for s in range(3)]
    assert rows_per_epoch(tiny, *asked, most=10**6) == 3 * 32_812
    # Of a tree: three slots took in 12 rows of streams, and 36 that a join had made of them.
    made = [each.model_copy(update={"rows_in": {"a": 3, "b": 1, "ab": 12}}) for each in even]
    assert rows_per_epoch(made, *asked, most=10**6, joins=["ab", "abc"]) == 3 * 656
    # One slot has the join above to itself: of 10 rows of streams it gets none, and 36 new rows.
    apart = [made[0].model_copy(update={"rows_in": {"ab": 36}}), *even[1:]]
    assert rows_per_epoch(apart, *asked, most=10**6, joins=["ab"]) == 3 * 243
    # From 4 MiB on it is eight tenths of that room, whatever the threshold.
    assert rows_per_epoch([], 8_000_000, 3, 0.75, most=10**6) == 3 * 17_500
    assert rows_per_epoch([], 4 << 20, 1, 0.5, most=10**6) == 19_660
    assert rows_per_epoch([], 8_000_000, 1, 0.9, most=10**6) == 5_500 - 1
    # As if there were a hundredth of the budget.
    assert rows_per_epoch([], 80_000_000, 1, 1.0, most=10**6) == 8_000
    # However little would fit.
    assert rows_per_epoch([], 1, 3, 0.8, most=10**6) == 250
    assert rows_per_epoch([], 1, 3, 0.8, most=249) == 249


def shelf_of(root: Path, shape: Shape) -> RunWriter:
    room = room_of(shape, 1 << 30, 0, 10, 10)
    return RunWriter(SPEC, folder(str(root)).child("slot"), "w", 1, "a" * 16, KEY, room, shape)


def run_of(shelf: RunWriter, session: SessionState, input_: int, run: int, rows: int) -> None:
    """A run of one file, written."""
    hashes = np.sort(np.random.default_rng(run).integers(0, 2**63, rows).astype(np.uint64))
    schema = SPEC.row_schema(input_)
    columns = [["k"] * rows, [0.5] * rows, ["t"] * rows, [0] * rows, list(range(rows))]
    arrays = [pa.array(each, f.type) for each, f in zip(columns, schema, strict=True)]
    part, data = shelf.encode(
        session.name, input_, run, Rows(hashes, pa.table(arrays, schema=schema))
    )
    shelf.write(part, data)
    session.parts[input_].append(part)


def test_a_merge_of_a_session_that_has_gone_is_forgotten(tmp_path: Path) -> None:
    shelf = shelf_of(tmp_path, Shape())
    session = SessionState(DAY, Drops(), [[], []])
    run_of(shelf, session, 0, 5, 10)
    old = [Merging("2026-01-02", 0, (1, 2), 3), Merging(DAY, 0, (1, 2), 4)]
    kept = upkeep(shelf, {DAY: session}, old, 6, 0)
    assert (kept.merges, kept.next_run) == ((), 6)


def test_merges_of_one_epoch_share_their_fuel(tmp_path: Path) -> None:
    shape = Shape(fan_in=2, least_file_bytes=4 << 10, most_file_bytes=4 << 10, fuel_files=1)
    shelf = shelf_of(tmp_path, shape)
    session = SessionState(DAY, Drops(), [[], []])
    for input_ in (0, 1):
        for run in (1, 2):
            run_of(shelf, session, input_, run, 500)
    sizes = [sum(p.file.row_bytes for p in parts) for parts in session.parts]
    assert min(sizes) > 3 * (4 << 10)
    kept = upkeep(shelf, {DAY: session}, [], 3, 0)
    assert len(kept.merges) == 2, "neither could end"
    touched = [any(p.file.run not in (1, 2) for p in parts) for parts in session.parts]
    assert touched == [True, False], "the first took all of it"
    rest = list(kept.merges)
    for _ in range(100):
        if not rest:
            break
        rest = list(upkeep(shelf, {DAY: session}, rest, 5, 0).merges)
    assert rest == []
    assert [sum(len(p.rows.key_hash) for p in parts) for parts in session.parts] == [1_000, 1_000]


def test_a_merge_that_cannot_end_leaves_room_for_the_next_epoch(tmp_path: Path) -> None:
    """For its rows, and for the work on them; all else it takes."""
    shape = Shape(fan_in=2, least_file_bytes=4 << 10, most_file_bytes=4 << 10, fuel_files=40)
    shelf = shelf_of(tmp_path, shape)
    session = SessionState(DAY, Drops(), [[], []])
    for run in (1, 2):
        run_of(shelf, session, 0, run, 1_000)
    written = shelf.room.used_bytes
    intake = written // 8
    shelf.room = Room(int(1.9 * written), written, reserve_bytes=0, slack_bytes=0)
    kept_free = intake + shelf.room.for_work(intake)
    kept = upkeep(shelf, {DAY: session}, [], 3, intake)
    assert len(kept.merges) == 1
    assert kept_free <= shelf.room.left() < kept_free + (8 << 10)


def test_a_merge_has_passed_all_that_lived_of_a_file(tmp_path: Path) -> None:
    """The upper half of all hashes is dead. A merge has fuel for the other one, and the rest
    of its sources is let go, though it has not come to the end."""
    shape = Shape(fan_in=2, least_file_bytes=4 << 10, most_file_bytes=4 << 10, fuel_files=6)
    shelf = shelf_of(tmp_path, shape)
    session = SessionState(DAY, Drops().drop([Prefix(2, 1)], 1), [[], []])
    for run in (1, 2):
        run_of(shelf, session, 0, run, 500)
    assert {p.file.born for p in session.parts[0]} == {1}
    kept = upkeep(shelf, {DAY: session}, [], 3, 0)
    assert len(kept.merges) == 1
    held = [(p.file.run, len(p.rows.key_hash)) for p in session.parts[0]]
    assert [run for run, _ in held if run in (1, 2)] == []
    assert 470 < sum(rows for _, rows in held) < 530


def test_a_step_is_given_what_is_expected_of_its_own_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a session before says of another slot's groups would count in its trust and level."""
    given: list[Any] = []
    true = step_module.growth_of

    def noted(*arguments: Any) -> Any:
        given.append(true(*arguments))
        return given[-1]

    monkeypatch.setattr(step_module, "growth_of", noted)
    groups = GroupMap([(Prefix(1, 0), 0), (Prefix(1, 1), 1)])
    whole = Forecast(np.array([5.0, 7.0]), np.array([0.1, 0.2]), np.array([0.3, 0.4]), 60.0, 90.0)
    place = folder(str(tmp_path))
    task = StepTask(
        slot=1,
        epoch=0,
        attempt="0" * 16,
        warehouse_id="w",
        session=DAY,
        manifest=None,
        key=KEY,
        groups=groups,
        budget_bytes=1 << 20,
        threshold=THRESHOLD,
        fraction=FRACTION,
        now_ms=1000,
        left_ms={DAY: 90.0},
        forecasts={DAY: whole},
    )
    keys = pa.array([f"key-{k}" for k in range(8)])
    schema = pa.schema([*SPEC.root.keys, *SPEC.inputs[0].payload])
    rows = pa.RecordBatch.from_arrays([keys, pa.array(np.zeros(8)), keys], schema=schema)
    where = Coordinates(np.zeros(8, np.int32), np.arange(8), np.full(8, 1000))
    blocks = [b for b in route(SPEC, 0, groups, rows, where, session=DAY) if b.slot == 1]
    step(SPEC, task, blocks, place.child("slot"), place.child("tables").child)
    (growth,) = given
    assert growth.rows.tolist() == [4], "of other slots' groups nothing is reckoned"
    found = growth.forecast
    assert [each.tolist() for each in (found.to_come, found.present, found.usual)] == [
        [7],
        [0.2],
        [0.4],
    ]
    assert (found.known_ms, found.left_ms) == (60.0, 90.0)
