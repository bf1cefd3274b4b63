"""Spills keep their rule: when they begin, how much they take, and what leaves for want of room.

Days of one slot, on the real step and with the intake that the policy allows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from jobs.engine.blocks import Coordinates, route
from jobs.engine.groups import GroupMap
from jobs.engine.spec import InputSpec, JoinSpec
from jobs.engine.step import step
from jobs.engine.task import StepTask
from jobs.policy.intake import rows_per_epoch, worth_changing
from jobs.storage import folder
from schemas.journal import SlotTotals
from tests.property.slots import KEY

DAY = "2026-01-05"
THRESHOLD, FRACTION = 0.8, 0.3
GROUPS = GroupMap.initial(64, 1)
SPEC = JoinSpec(
    0,
    pa.schema([pa.field("k", pa.string(), nullable=False)]),
    tuple(InputSpec(name, pa.schema([("v", pa.float64()), ("t", pa.string())])) for name in "ab"),
)


@dataclass(frozen=True)
class Spill:
    """One spill, in bytes."""

    before: int
    took: int
    overflow: int
    largest_group: int


def epochs(
    root: Path, budget: int, number: int, rows: int | None = None, fraction: float = FRACTION
) -> Iterator[SlotTotals]:
    """Epochs of `rows` rows, by default of as many as the policy allows."""
    state, tables = folder(str(root)).child("slot"), folder(str(root)).child("tables")
    draw = np.random.default_rng(5)
    manifest, offset = None, 0
    limit = rows or rows_per_epoch([], budget, 1, THRESHOLD, fraction, 600_000)
    for epoch in range(number):
        each = limit // 2
        blocks = []
        for input_ in (0, 1):
            keys = pa.array([f"key-{k:06d}" for k in draw.integers(0, 100_000, each).tolist()])
            texts = pa.array([f"text of row {i % 97}" for i in range(each)])
            schema = pa.schema([*SPEC.keys, *SPEC.inputs[input_].payload])
            columns = [keys, pa.array(draw.random(each)), texts]
            batch = pa.RecordBatch.from_arrays(columns, schema=schema)
            where = Coordinates(
                np.zeros(each, np.int32),
                np.arange(offset, offset + each),
                np.full(each, epoch * 1000),
            )
            blocks += route(SPEC, input_, GROUPS, batch, where, session=DAY)
        task = StepTask(
            slot=0,
            epoch=epoch,
            attempt=f"{epoch:016x}",
            warehouse_id="w",
            session=DAY,
            manifest=manifest,
            key=KEY,
            groups=GROUPS,
            budget_bytes=budget,
            threshold=THRESHOLD,
            fraction=fraction,
            now_ms=epoch * 1000,
        )
        report = step(SPEC, task, blocks, state, tables.child)
        assert report.totals is not None
        manifest, offset = report.manifest, offset + each
        yield report.totals
        wanted = rows_per_epoch([report.totals], budget, 1, THRESHOLD, fraction, 600_000)
        if rows is None and worth_changing(limit, wanted):
            limit = wanted


def spills(days: Iterator[SlotTotals]) -> list[Spill]:
    found = []
    for totals in days:
        assert totals.folder_bytes <= totals.budget_bytes
        if totals.spilled_bytes:
            before = totals.state_bytes + totals.spilled_bytes
            largest = 3 * before // len(GROUPS)
            found.append(Spill(before, totals.spilled_bytes, totals.overflow_bytes, largest))
    return found


@pytest.mark.parametrize(
    ("budget", "number", "fraction"), [(1 << 20, 50, 0.3), (3 << 20, 52, 0.3), (1 << 20, 75, 0.15)]
)
def test_a_steady_day_spills_above_the_threshold_and_no_more_than_the_rule_says(
    tmp_path: Path, budget: int, number: int, fraction: float
) -> None:
    found = spills(epochs(tmp_path, budget, number, fraction=fraction))
    bound = int(THRESHOLD * budget)
    assert len(found) >= 3
    assert [s for s in found if s.before <= bound] == []
    for spill in found:
        rule = max(fraction * spill.before, spill.before - bound)
        assert rule <= spill.took - spill.overflow <= rule + spill.largest_group
    assert sum(spill.overflow > 0 for spill in found) <= len(found) / 10


def test_what_leaves_for_want_of_room_is_counted(tmp_path: Path) -> None:
    budget = 1 << 20
    rows = budget // 5 // 70  # an intake of a fifth of the budget: rewriting cannot keep up
    found = spills(epochs(tmp_path, budget, 12, rows))
    below = [s for s in found if s.before <= THRESHOLD * budget]
    assert below
    assert all(s.overflow == s.took for s in below), "none of it by the rule"
    assert all(s.overflow < s.took for s in found if s not in below)
