"""What `statistics` says of the groups, as deciders and viewers read it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from spillway.decode import tree_spec
from spillway.engine.join.results import result_schema
from spillway.engine.statistics import SLOT_COLUMNS, STATISTICS_SCHEMA
from spillway.engine.wire.datafile import write_data_files
from spillway.readmodel.groups import group_states
from spillway.readmodel.hottest import HotKey, hottest_keys
from spillway.readmodel.model import ReadModel
from spillway.tables import Warehouse
from spillway_schemas.filenames import data_name
from spillway_schemas.journal import Prefix
from spillway_schemas.query import load_query
from tests.new_warehouse import new_warehouse
from tests.report_journal import make_day, model_of

SESSION = "2026-01-05"
RESULTS = result_schema(tree_spec(load_query("symbol")))


def two_slots(epochs: int = 1) -> ReadModel:
    return model_of(make_day(epochs=epochs, slots=2, groups_depth=3).entries)


def write(
    warehouse: Warehouse,
    epoch: int,
    rows: list[tuple[int, int, int, bool]],
    session: str = SESSION,
    hot: str | None = None,
) -> None:
    """Statistics of an epoch: (slot, group of three bits, bytes, resident).

    Epochs are 10 s apart; a group has ten results, and got one row, for each byte.
    """
    table = pa.table(
        {
            "epoch": [epoch] * len(rows),
            "session_date": [session] * len(rows),
            "slot": pa.array([r[0] for r in rows], pa.int32()),
            "depth": pa.array([3] * len(rows), pa.int32()),
            "value": [r[1] for r in rows],
            "bytes": [r[2] for r in rows],
            "rows": [[1, 1]] * len(rows),
            "results": [10 * r[2] for r in rows],
            "last_used_ms": [0] * len(rows),
            "resident": [r[3] for r in rows],
            "written_at": pa.array([epoch * 10**7] * len(rows), pa.timestamp("us", tz="UTC")),
            "session_results": [10 * r[2] for r in rows],
            "rate": [r[2] / 10 for r in rows],
            "rows_in": [r[2] for r in rows],
            "generations": [0] * len(rows),
            "spilled_bytes": [0] * len(rows),
            "hot_key": [hot] * len(rows),
            "hot_rows": pa.array([None if hot is None else 1] * len(rows), pa.int64()),
            "expected_loss": [r[2] / 4 for r in rows],
            **{name: [None] * len(rows) for name in STATISTICS_SCHEMA.names[-SLOT_COLUMNS:]},
        },
        schema=STATISTICS_SCHEMA,
    )
    place = warehouse.folder("statistics")
    files = write_data_files(
        place, "statistics", lambda k: data_name(epoch, "a" * 12, 0, k), STATISTICS_SCHEMA, [table]
    )
    warehouse.apply("statistics", epoch, files)


def test_the_newest_statistics_of_each_slot_count(tmp_path: Path) -> None:
    warehouse = new_warehouse(tmp_path, RESULTS)
    write(warehouse, 1, [(0, 0, 5, True), (0, 1, 6, True), (1, 7, 9, True)])
    write(warehouse, 2, [(0, 0, 50, True), (0, 1, 60, True), (0, 2, 70, False)])
    found = group_states(warehouse, two_slots(), 60)
    assert found.bytes.tolist() == [50, 60, 0, 0, 0, 0, 0, 9]
    assert found.results.tolist() == [500, 600, 0, 0, 0, 0, 0, 90]
    assert found.rate.tolist() == [5, 6, 0, 0, 0, 0, 0, 0.9]
    write(warehouse, 3, [(0, 5, 77, True), (1, 6, 88, True)], session="2025-12-31")
    after = group_states(warehouse, two_slots(), 60)
    assert after.bytes.tolist() == found.bytes.tolist(), "that session is sealed"


def test_a_group_that_moved_has_its_new_slot_s_figures(tmp_path: Path) -> None:
    warehouse = new_warehouse(tmp_path, RESULTS)
    write(warehouse, 1, [(0, 0, 5, True), (0, 1, 6, True), (1, 7, 9, True)])
    # Group 1 has moved to slot 1, whose figures are newer than those of slot 0.
    write(warehouse, 2, [(1, 1, 61, True), (1, 7, 9, True)])
    assert group_states(warehouse, two_slots(), 60).bytes.tolist() == [5, 61, 0, 0, 0, 0, 0, 9]


def test_rows_are_counted_over_the_collection_time(tmp_path: Path) -> None:
    warehouse = new_warehouse(tmp_path, RESULTS)
    for epoch in range(6):
        # Group 0 gets three rows in 10 s; group 7 is at slot 1 from epoch 3 on.
        moved = int(epoch >= 3)
        rows = [(0, 0, 100 + 3 * epoch, True), (moved, 7, 50 + epoch, True), (1, 4, 7, True)]
        write(warehouse, epoch, rows)
    found = group_states(warehouse, two_slots(), 30)
    assert found.processed.tolist() == [9, 0, 0, 0, 0, 0, 0, 3]
    assert found.processed_s.tolist() == [30] * 8
    assert found.came.tolist() == [115, 0, 0, 0, 7, 0, 0, 55]
    # Statistics lie 10 s apart: the time in which rows were counted is known.
    assert group_states(warehouse, two_slots(), 25).processed_s.tolist() == [30] * 8
    all_day = group_states(warehouse, two_slots(), 10**6)
    assert all_day.processed.tolist() == [115, 0, 0, 0, 7, 0, 0, 55]
    assert not all_day.processed_s.any(), "not known"


def test_a_group_that_was_split_has_its_halves_figures(tmp_path: Path) -> None:
    warehouse = new_warehouse(tmp_path, RESULTS)
    write(warehouse, 1, [(0, 0, 10, True), (0, 1, 8, True), (1, 7, 9, True)], hot="ACME")
    model = two_slots()
    halves = ((Prefix(4, 0), 0), (Prefix(4, 1), 0))
    model.state = replace(model.state, groups=(*halves, *model.state.groups[1:]))
    found = group_states(warehouse, model, 60)
    assert found.bytes.tolist() == [5, 5, 8, 0, 0, 0, 0, 0, 9]
    assert found.hot_key[:4] == ("ACME", "ACME", "ACME", "")
    # Rows per input are [1, 1], of which one is of the key.
    assert found.hot_share.tolist() == [0.5, 0.5, 0.5, 0, 0, 0, 0, 0, 0.5]


def test_the_hottest_keys_are_those_with_the_most_rows(tmp_path: Path) -> None:
    warehouse = new_warehouse(tmp_path, RESULTS)
    write(warehouse, 1, [(0, 0, 10, True), (0, 1, 8, True)], hot="ACME")
    write(warehouse, 2, [(1, 7, 9, True)], hot="OTHER")
    model = two_slots()
    found = hottest_keys(model, group_states(warehouse, model, 0), 5)
    one = HotKey(key="ACME", join="join", group="3/0", slot=0, rows=2, share=0.5)
    assert found == [one, HotKey(key="OTHER", join="join", group="3/7", slot=1, rows=1, share=0.5)]
    assert hottest_keys(model, group_states(warehouse, model, 0), 1) == [one]
    halves = ((Prefix(4, 0), 0), (Prefix(4, 1), 0))
    model.state = replace(model.state, groups=(*halves, *model.state.groups[1:]))
    split = hottest_keys(model, group_states(warehouse, model, 0), 5)
    assert [(each.key, each.rows) for each in split] == [("ACME", 1), ("OTHER", 1)]


def test_there_are_no_figures_without_statistics(tmp_path: Path) -> None:
    found = group_states(new_warehouse(tmp_path, RESULTS), two_slots(), 60)
    assert not found.bytes.any()
    assert found.hot_key == ("",) * 8
    assert hottest_keys(two_slots(), found, 5) == []
