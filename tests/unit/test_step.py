"""What one step of a slot writes and reports, field by field."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spillway.engine.groups import GroupMap
from spillway.engine.spill.spillfile import write_spill
from spillway.engine.state.statefiles import decode_manifest
from spillway.engine.step import step
from spillway.engine.task import StepTask
from spillway.engine.wire.blocks import (
    REJECTED_SCHEMA,
    Block,
    encode_missing,
    encode_rejected,
)
from spillway_schemas.journal import DELAY_EDGES_MS, SlotReport
from tests.property.reference import Row
from tests.property.slots import DAYS, Slots, key_of, narrow, spec_of

SPEC = spec_of(2, composite=False)
PHASES = ["install", "join", "load", "manifest", "merge", "quarantine", "spill", "statistics"]
PHASES += ["store", "write"]
NOT_GIVEN = "groups that come from there were not found"


@pytest.fixture
def slots(tmp_path: Path) -> Slots:
    """One slot without state."""
    options: dict[str, object] = {"threshold": 0.9, "inactive_ms": 1_000}
    return Slots(SPEC, str(tmp_path), GroupMap.initial(8, 1), partial(narrow, 64), options, 10**8)


def did(
    slots: Slots, rows: list[Row], blocks: list[Block] | None = None, **task: Any
) -> SlotReport:
    """The next epoch's step, with these rows and blocks; nothing is journaled."""
    own: StepTask = replace(slots.tasks(slots.plan(rows))[0], **task)
    given = [*slots.blocks(rows, "new"), *(blocks or [])]
    return step(SPEC, own, given, slots.state(0), slots.warehouse.child)


def row(input_: int, number: int, offset: int, day: str = DAYS[0]) -> Row:
    return Row(day, input_, key_of(number, composite=False), 0, offset)


def read(slots: Slots, report: SlotReport, table: str) -> dict[str, list[dict[str, Any]]]:
    """By session what was written into a table (statistics of all of them lie together)."""
    place = slots.warehouse.child(table)
    return {
        file.partition.get("session_date", ""): pq.read_table(
            place.path(file.path), partitioning=None
        ).to_pylist()
        for file in report.files
        if file.table == table
    }


def rejected(day: str, offsets: range) -> Block:
    found = [(f"t{n % 2}", n % 3, n, f"why {n}", b"v%d" % n, 2_000 + n) for n in offsets]
    arrays = [
        pa.array([each[i] for each in found], field.type) for i, field in enumerate(REJECTED_SCHEMA)
    ]
    batch = pa.RecordBatch.from_arrays(arrays, schema=REJECTED_SCHEMA)
    return Block(0, "rejected", 0, 0, encode_rejected(batch, session=day, stream="s"))


def test_rejected_rows_go_into_their_session_s_quarantine(slots: Slots) -> None:
    blocks = [
        rejected(DAYS[1], range(3)),
        rejected(DAYS[0], range(5, 7)),
        rejected(DAYS[1], range(8, 9)),
    ]
    report = did(slots, [row(0, 1, 700)], blocks, written_at_us=1_700_000_000_000_001)
    found = read(slots, report, "quarantine")
    assert {day: [each["offset"] for each in rows] for day, rows in found.items()} == {
        DAYS[0]: [5, 6],
        DAYS[1]: [0, 1, 2, 8],
    }
    last = found[DAYS[1]][-1]
    assert (last["topic"], last["partition"], last["reason"], last["value"]) == (
        "t0",
        2,
        "why 8",
        b"v8",
    )
    assert last["kafka_timestamp"].timestamp() == 2.008
    assert last["epoch"] == 0
    assert round(last["written_at"].timestamp() * 1e6) == 1_700_000_000_000_001
    assert [file.rows for file in report.files] == [2, 4]
    # The newest record that came, be it good or bad.
    assert report.recent_input_ms == 2_008
    assert did(slots, [row(0, 1, 700), row(1, 1, 1_800)], blocks).recent_input_ms == 2_800
    assert did(slots, []).recent_input_ms == 0


def test_the_step_s_time_is_told_by_phase_in_microseconds(slots: Slots) -> None:
    began = time.perf_counter()
    report = did(slots, [row(i % 2, i, i) for i in range(8)], [rejected(DAYS[0], range(2))])
    passed = time.perf_counter() - began
    totals = report.totals
    assert totals is not None
    assert sorted(totals.seconds) == PHASES
    assert all(0 <= s == round(s, 6) for s in totals.seconds.values())
    assert totals.busy_s == round(totals.busy_s, 6) >= max(totals.seconds.values())
    assert sum(totals.seconds.values()) <= totals.busy_s + 1e-5
    assert totals.busy_s <= passed
    assert totals.skew == round(totals.skew, 4) > 0
    # No time is counted twice: 90,000 results are joined while they are written.
    totals = did(slots, [row(i % 2, 1, i) for i in range(600)]).totals
    assert totals is not None
    assert totals.results == 90_000
    assert sum(totals.seconds.values()) <= totals.busy_s + 1e-5


def test_results_carry_their_epoch_and_are_counted_by_session(slots: Slots) -> None:
    slots.run([row(0, 1, 0), row(0, 2, 2)])
    rows = [row(1, 1, 5), row(1, 1, 7), row(1, 2, 9, DAYS[1]), row(0, 2, 8, DAYS[1]), row(0, 3, 10)]
    report = did(slots, rows, written_at_us=1_700_000_000_000_001)
    found = read(slots, report, "results")
    assert {day: len(each) for day, each in found.items()} == {DAYS[0]: 2, DAYS[1]: 1}
    for each in (each for rows_ in found.values() for each in rows_):
        assert (each["epoch"], each["phase"]) == (1, "run-time")
        assert round(each["committed_at"].timestamp() * 1e6) == 1_700_000_000_000_001
    assert report.results == {DAYS[0]: 2, DAYS[1]: 1}
    assert report.totals is not None
    assert (report.totals.results, report.totals.rows) == (3, 7)
    assert report.totals.rows_in == {"s0": 2, "s1": 3}
    assert (report.slot, report.epoch, report.status, report.unfound) == (0, 1, "done", {})
    assert report.manifest in {info.name for info in slots.state(0).list()}
    # Nothing came, nothing is counted.
    report = did(slots, [])
    assert (report.results, report.files) == ({}, [])
    assert report.totals is not None
    assert (report.totals.results, report.totals.rows) == (0, 2)
    assert report.totals.rows_in == {"s0": 0, "s1": 0}
    assert (report.totals.spilled_rows, report.totals.overflow_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("age", "place"),
    [(-5, 0), (0, 0), (10, 0), (11, 1), (20, 1), (21, 2), (10**9, len(DELAY_EDGES_MS))],
)
def test_a_result_s_age_is_counted_up_to_the_edge(slots: Slots, age: int, place: int) -> None:
    """Its newest row came at 1,001 ms."""
    report = did(slots, [row(0, 1, 0), row(1, 1, 1)], written_at_us=(1_001 + age) * 1000 + 999)
    assert report.totals is not None
    counts = report.totals.delay_ms
    assert len(counts) == len(DELAY_EDGES_MS) + 1
    assert {i: n for i, n in enumerate(counts) if n} == {place: 1}


def test_one_result_in_so_many_is_looked_at(slots: Slots) -> None:
    both = [row(i % 2, 1, i) for i in range(2 * 9)]
    report = did(slots, both)
    assert report.totals is not None
    assert (report.totals.results, sum(report.totals.delay_ms)) == (81, 2)


def test_a_step_whose_probe_found_no_state_does_nothing(slots: Slots) -> None:
    """What the joins below the root would have given is lacking: the rest of the epoch, too."""
    blocks = [
        Block(0, "missing", 0, 0, encode_missing({0: "", 3: "no groups came from slot 3"})),
        Block(0, "missing", 0, 0, encode_missing({0: "a manifest is not there", 3: "", 5: ""})),
    ]
    report = did(slots, [row(0, 1, 0)], blocks)
    unfound = {0: "a manifest is not there", 3: "no groups came from slot 3", 5: ""}
    assert (report.status, report.unfound, report.files) == ("missing", unfound, [])
    assert report.manifest is None


def test_a_step_tells_what_probes_and_what_it_did_not_find_at_once(slots: Slots) -> None:
    """Else the next attempt would fail for the second half."""
    blocks = [Block(0, "missing", 0, 0, encode_missing({2: "", 5: "a manifest is not there"}))]
    report = did(slots, [row(0, 1, 0)], blocks, arriving=(2, 3))
    assert report.unfound == {2: NOT_GIVEN, 3: NOT_GIVEN, 5: "a manifest is not there"}


def test_a_step_whose_givers_have_lost_their_state_does_nothing(slots: Slots) -> None:
    report = did(slots, [row(0, 1, 0)], arriving=(2, 3))
    unfound = {2: NOT_GIVEN, 3: NOT_GIVEN}
    assert (report.status, report.unfound, report.files) == ("missing", unfound, [])
    assert (report.slot, report.epoch, report.manifest, report.totals) == (0, 0, None, None)
    slots.run([row(0, 1, 0)])
    report = did(slots, [], manifest="gone")
    assert (report.status, report.epoch) == ("missing", 1)
    assert report.unfound == {0: f"manifest gone is not in {slots.state(0).uri}"}
    attempts = {did(slots, [], manifest="gone").attempt for _ in range(2)}
    assert len(attempts) == 2


def test_rows_that_the_spill_file_lacks_end_the_step(
    slots: Slots, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row(i % 2, 1, i) for i in range(6)]

    def short(*args: Any) -> Any:
        record = write_spill(*args)
        assert record is not None
        return record.model_copy(update={"rows": record.rows - 1})

    for write, written in ((lambda *_: None, 0), (short, 5)):
        monkeypatch.setattr("spillway.engine.step.write_spill", write)
        with pytest.raises(RuntimeError) as caught:
            did(slots, rows, forced_bytes=1)
        assert str(caught.value) == (
            f"slot 0: 6 rows were to be spilled, {written} were written. Nothing was journaled."
        )


def test_what_was_spilled_is_counted(slots: Slots) -> None:
    kept, gone = [row(0, 1, 0), row(1, 1, 1)], [row(i % 2, 2, 10 + i) for i in range(6)]
    assert slots.hash_of(kept[0]) >> 61 != slots.hash_of(gone[0]) >> 61
    report = did(slots, kept + gone, forced_bytes=1, victims="largest", statistics=True)
    assert report.spilled_rows == {DAYS[0]: 6}
    totals = report.totals
    assert totals is not None
    assert (totals.spilled_rows, totals.rows, totals.groups, totals.results) == (6, 2, 1, 10)
    assert totals.spilled_bytes > totals.state_bytes > 0
    assert totals.overflow_bytes == 0
    (cut,) = report.cuts
    assert (cut.session, cut.operator, cut.epoch) == (DAYS[0], 0, 0)
    assert cut.range.lo <= slots.hash_of(gone[0]) < cut.range.hi
    figures = read(slots, report, "statistics")[""]
    held = [(each["resident"], each["rows"]) for each in figures if any(each["rows"])]
    assert held == [(True, [1, 1]), (False, [3, 3])]
    assert [each["hot_rows"] for each in figures if each["hot_rows"]] == [2]
    assert {each["slot_bytes"] for each in figures} == {totals.state_bytes}
    assert {each["epoch"] for each in figures} == {0}


def test_the_manifest_says_when_its_figures_were_counted(slots: Slots) -> None:
    report = did(slots, [row(i % 2, i, i) for i in range(8)], now_ms=7_654)
    assert report.manifest is not None
    manifest = decode_manifest(slots.state(0).map(report.manifest))
    assert (manifest.slot, manifest.epoch) == (0, 0)
    figures = manifest.figures
    assert figures.num_rows > 1
    assert set(figures["at_ms"].to_pylist()) == {7_654}


def test_a_manifest_that_is_damaged_is_told_as_such(slots: Slots) -> None:
    """A step takes these errors for state that is missing; any other would end its worker."""
    report = did(slots, [row(i % 2, i, i) for i in range(8)])
    assert report.manifest is not None
    whole = slots.state(0).map(report.manifest).to_pybytes()
    refused = 0
    for at in range(0, len(whole), 5):
        damaged = whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]
        try:
            decode_manifest(pa.py_buffer(damaged))
        except (ValueError, KeyError, pa.ArrowException):
            refused += 1
    assert refused > len(whole) // 20


def test_counts_of_a_session_go_on_when_all_of_its_rows_were_spilled(slots: Slots) -> None:
    slots.run([row(i % 2, i % 3, i) for i in range(12)], forced_bytes=10**8)
    report = did(slots, [], statistics=True)
    assert report.totals is not None
    assert report.totals.rows == 0
    figures = read(slots, report, "statistics")[""]
    assert {each["session_date"] for each in figures} == {DAYS[0]}
    assert sum(each["session_results"] for each in figures) == 3 * 2 * 2
