"""Figures per group: what a day of steps counts, against counts of its rows one by one."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spillway.engine.groups import GroupMap
from spillway.engine.state.statefiles import load_manifest
from spillway.engine.statistics import (
    HALF_LIFE_MS,
    Counters,
    carried,
    figures_table,
    shares_of,
    skew,
)
from spillway.engine.statistics import Figures as GroupFigures
from spillway.policy.sampling import SlotFigures
from spillway_schemas.journal import Prefix
from tests.property.reference import Row
from tests.property.slots import DAYS, KEY, Slots, key_of, narrow, spec_of

GROUPS = GroupMap([(Prefix(1, 0), 0), (Prefix(2, 2), 0), (Prefix(3, 6), 0), (Prefix(3, 7), 1)])


def table_of(groups: GroupMap, slot: int, now_ms: int, **columns: list[float]) -> pa.Table:
    counters = Counters.zeros(len(groups))
    for name, values in columns.items():
        setattr(counters, name, np.array(values, dtype=getattr(counters, name).dtype))
    none = np.zeros(len(groups), dtype=np.int64)
    figures = GroupFigures(
        np.zeros((2, len(groups)), np.int64), none, none, counters, np.zeros(len(groups))
    )
    return figures_table(groups, slot, {DAYS[0]: figures}, now_ms)


def test_counters_come_back_as_they_were() -> None:
    first = table_of(GROUPS, 0, 5, rows_in=[5, 0, 7, 9], last_used_ms=[1, 2, 3, 4])
    found = carried(first, DAYS[0], GROUPS, 5)
    assert found.rows_in.tolist() == [5, 0, 7, 0], "the last group is another slot's"
    assert found.last_used_ms.tolist() == [1, 0, 3, 0], "nothing was counted of the second group"
    assert not carried(first, DAYS[1], GROUPS, 5).rows_in.any()


def test_results_count_half_after_the_half_life() -> None:
    table = table_of(GROUPS, 0, 1_000, rows_in=[1, 1, 1, 0], recent_results=[8, 4, 2, 0])
    later = carried(table, DAYS[0], GROUPS, 1_000 + 2 * HALF_LIFE_MS)
    assert later.recent_results.tolist() == [2, 1, 0.5, 0]
    # A clock that has not begun, or goes back, takes nothing away.
    assert carried(table, DAYS[0], GROUPS, 0).recent_results.tolist() == [8, 4, 2, 0]


def test_a_split_shares_out_and_a_merge_adds_up() -> None:
    whole = GroupMap([(Prefix(0, 0), 0)])
    table = table_of(whole, 0, 1, rows_in=[16], generations=[3], last_used_ms=[77])
    found = carried(table, DAYS[0], GROUPS, 1)
    assert found.rows_in.tolist() == [8, 4, 2, 2]
    assert found.generations.tolist() == [3, 3, 3, 3]
    assert found.last_used_ms.tolist() == [77] * 4
    fine = table_of(GROUPS, 0, 1, rows_in=[8, 4, 3, 0], generations=[1, 2, 0, 0])
    found = carried(fine, DAYS[0], whole, 1)
    assert found.rows_in.tolist() == [15]
    assert found.generations.tolist() == [2]


def test_every_prefix_finds_its_place() -> None:
    depth = np.array([2, 2, 1, 0, 5])
    value = np.array([0, 1, 1, 0, 31], dtype=np.uint64)
    rows, at, share = shares_of(depth, value, GROUPS)
    found = sorted(zip(rows.tolist(), at.tolist(), share.tolist(), strict=True))
    assert found == [
        (0, 0, 1),
        (1, 0, 1),
        (2, 1, 0.5),
        (2, 2, 0.25),
        (2, 3, 0.25),
        (3, 0, 0.5),
        (3, 1, 0.25),
        (3, 2, 0.125),
        (3, 3, 0.125),
        (4, 3, 1),
    ]


def test_skew_is_the_largest_share() -> None:
    assert skew(np.array([1, 6, 1])) == 0.75
    assert skew(np.zeros(3, dtype=np.int64)) == 0


@pytest.mark.parametrize("policy", ["productivity", "largest"])
def test_a_day_is_counted_row_by_row(policy: str) -> None:
    """Rows, results and spills of every group over a day in which groups move and spill."""
    spec = spec_of(2, composite=False)
    rng = np.random.default_rng(3)
    first = GroupMap([(Prefix(2, v), v % 2) for v in range(4)])
    second = GroupMap([(Prefix(2, v), (v + 1) // 2 % 2) for v in range(4)])
    with tempfile.TemporaryDirectory() as root:
        did = SlotFigures(busy_s=1.5, idle_s=3.5, occupancy=0.25, output_rate=7.0, skew=0.5)
        options = {"victims": policy, "statistics": True, "recent": did}
        slots = Slots(spec, root, first, partial(narrow, 64), options, budget_bytes=1 << 20)
        came: Counter[int] = Counter()
        keys: dict[int, Counter[str]] = {group: Counter() for group in range(4)}
        spilled: Counter[int] = Counter()
        made: Counter[int] = Counter()
        resident: list[tuple[int, Row]] = []
        for epoch in range(6):
            numbers = np.minimum(rng.integers(0, 30, 40), rng.integers(0, 30, 40)).tolist()
            rows = [
                Row(DAYS[0], i % 2, key_of(number, composite=False), 0, 40 * epoch + i)
                for i, number in enumerate(numbers)
            ]
            forced = 600 if epoch == 2 else 0
            slots.run(rows, groups=second if epoch == 4 else None, forced_bytes=forced)
            for row in rows:
                came[group_of(slots, row)] += 1
                resident.append((group_of(slots, row), row))
            for old, new in pairs(resident, epoch):
                made[old] += new
            for each in (each for each in statistics_of(root, slots) if not each["resident"]):
                spilled[each["value"]] += 1
                resident = [pair for pair in resident if pair[0] != each["value"]]
        for group, row in resident:
            keys[group][str(row.key[0])] += 1
        found = newest(root, slots)
        for each in statistics_of(root, slots):
            totals = next(t for r in slots.reports if (t := r.totals) and t.slot == each["slot"])
            own = {name: value for name, value in each.items() if name.startswith("slot_")}
            assert own == {
                "slot_bytes": totals.state_bytes,
                "slot_budget_bytes": 1 << 20,
                **{f"slot_{name}": value for name, value in asdict(did).items()},
            }
        assert {g: found[g]["rows_in"] for g in found} == dict(came)
        assert {g: found[g]["session_results"] for g in found} == {g: made[g] for g in found}
        assert {g: found[g]["generations"] for g in found} == {g: spilled[g] for g in found}
        assert sum(spilled.values()) > 0, "nothing was spilled: the test shows nothing"
        for group, each in found.items():
            assert sum(each["rows"]) == sum(keys[group].values())
            if keys[group]:
                most = max(keys[group].values())
                assert each["hot_rows"] == most
                assert keys[group][each["hot_key"]] == most
            assert (each["spilled_bytes"] > 0) == (spilled[group] > 0)


def group_of(slots: Slots, row: Row) -> int:
    return slots.hash_of(row) >> 62


def pairs(resident: list[tuple[int, Row]], epoch: int) -> list[tuple[int, int]]:
    """(group, 1) for each result that the epoch's rows have with what is in memory."""
    found = []
    for group, one in resident:
        for _, other in resident:
            new = max(one.offset, other.offset) >= 40 * epoch
            if one.input < other.input and one.key == other.key and new:
                found.append((group, 1))
    return found


def statistics_of(root: str, slots: Slots) -> list[dict[str, Any]]:
    """The last epoch's rows of `statistics`."""
    files = [f.path for r in slots.reports for f in r.files if f.table == "statistics"]
    tables = [pq.ParquetFile(f"{root}/warehouse/statistics/{path}").read() for path in files]
    return [each for table in tables for each in table.to_pylist()]


def newest(root: str, slots: Slots) -> dict[int, dict[str, Any]]:
    """Each group's figures in the last epoch's statistics; those of the manifests agree."""
    last = [each for each in statistics_of(root, slots) if each["resident"]]
    manifests = {}
    for slot, name in slots.manifests.items():
        state = slots.state(slot)
        sizes = {info.name: info.bytes for info in state.list()}
        loaded = load_manifest(state, name, sizes, KEY)
        assert loaded is not None
        for each in loaded.figures.to_pylist():
            manifests[each["value"]] = each["rows_in"]
    found = {each["value"]: each for each in last}
    assert len(found) == len(last)
    assert manifests == {g: each["rows_in"] for g, each in found.items()}
    return found


def test_a_step_learns_how_rows_come_and_spills_by_it() -> None:
    """One group has given most, and falls silent for good; the other gets all rows since. By
    productivity the second would leave."""
    spec = spec_of(2, composite=False)
    groups = GroupMap([(Prefix(1, 0), 0), (Prefix(1, 1), 0)])
    begin_ms = 1_767_623_400_000
    with tempfile.TemporaryDirectory() as root:
        options: dict[str, Any] = {"victims": "expected-loss", "statistics": True}
        slots = Slots(spec, root, groups, partial(narrow, 64), options, budget_bytes=1 << 20)
        of_group: dict[int, list[int]] = {0: [], 1: []}
        for number in range(200):
            row = Row(DAYS[0], 0, key_of(number, composite=False), 0, 0)
            of_group[slots.hash_of(row) >> 63].append(number)
        for epoch in range(40):
            # The clock is that of the epoch before, and in the first one another day's.
            before_ms = begin_ms + (epoch - 1) * 60_000
            options["now_ms"] = before_ms if epoch else begin_ms - 60_000_000
            options["left_ms"] = {DAYS[0]: begin_ms + 6 * 3_600_000 - options["now_ms"]}
            keys = of_group[0][:2] if epoch < 20 else of_group[1][:4]
            rows = [
                Row(DAYS[0], i % 2, key_of(keys[i // 2], composite=False), 0, 10 * epoch + i)
                for i in range(2 * len(keys))
            ]
            slots.run(rows, forced_bytes=1 if epoch == 39 else 0)
        told = {each["value"]: each for each in statistics_of(root, slots) if each["resident"]}
        [gone] = [each["value"] for each in statistics_of(root, slots) if not each["resident"]]
        state = slots.state(0)
        sizes = {info.name: info.bytes for info in state.list()}
        loaded = load_manifest(state, slots.manifests[0], sizes, KEY)
        assert loaded is not None
    assert gone == 0
    assert told[0]["expected_loss"] == 0, "nothing of it is in memory"
    assert told[1]["expected_loss"] > 1_000
    seen = [squares > 0 for squares, _ in loaded.evidence[DAYS[0]]]
    assert seen == [True, True, True, False], "40 minutes"
    firsts = {each["value"]: each["first_ms"] for each in loaded.figures.to_pylist()}
    assert firsts == {0: begin_ms, 1: begin_ms + 19 * 60_000}
