"""The tables on a real delta-rs: journal, apply once, cleanup's commits, upkeep, repair."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spillway.engine.spill.spillfile import SPILL_COLUMNS
from spillway.engine.wire.datafile import write_data_file
from spillway.protocol.state import begin
from spillway.storage import folder
from spillway.tables import (
    DamagedTable,
    FileMismatch,
    JournalConflict,
    NoWarehouse,
    OutcomeUnknown,
    SessionEvent,
    TableConflict,
    TableReplaced,
    Warehouse,
    WrongTable,
    compaction,
)
from spillway.tables.compaction import BASE_BYTES, FAN_IN, compact, deep_plan, merge
from spillway.tables.damage import is_table
from spillway.tables.definitions import SESSION_DATE
from spillway.tables.numbered import Numbered
from spillway.tables.repair import DAMAGED, repair
from spillway_schemas.filenames import cleanup_name, data_name
from spillway_schemas.journal import Claim, Epoch, FileRecord, Genesis, Offsets, Sealed
from tests.commands import command_of
from tests.new_warehouse import new_warehouse
from tests.racers import race

DAY = "2026-01-05"
GOOD, BAD = "900d900d900d", "bad0bad0bad0"
"""Attempts."""
RESULTS = pa.schema([pa.field("v", pa.int64(), nullable=False), SESSION_DATE])
FILE = pa.schema([RESULTS.field("v")])
OTHER = pa.schema([pa.field("w", pa.string()), pa.field("v", pa.string()), SESSION_DATE])
"""Another query's."""
TIME = "2026-01-05T10:00:00Z"
OFFSETS: Offsets = {"stock": [1]}


def warehouse(root: Path, *, fsync: bool = False) -> Warehouse:
    return new_warehouse(root, RESULTS, fsync=fsync)


def genesis() -> Genesis:
    return Genesis(
        warehouse_id="w",
        cluster_id="c",
        topics=[],
        query="q",
        session=DAY,
        start={},
        start_rule="earliest",
        inputs=3,
        groups=[],
        written_at=TIME,
    )


def claim(n: int, term: int = 1) -> Claim:
    return Claim(n=n, term=term, driver="d", written_at=TIME)


def epoch_entry(n: int, epoch: int, files: list[FileRecord] | None = None, **more: Any) -> Epoch:
    return Epoch(
        n=n,
        term=1,
        epoch=epoch,
        session=DAY,
        end=OFFSETS,
        manifests={},
        files=files or [],
        cuts=[],
        read=[],
        results={},
        slots=[],
        started_at=TIME,
        written_at=TIME,
        **more,
    )


def write(w: Warehouse, name: str, values: list[int], table: str = "results") -> FileRecord:
    rows = pa.table({"v": pa.array(values, pa.int64())}, schema=FILE)
    record = write_data_file(w.folder(table), table, name, FILE, [rows], {"session_date": DAY})
    assert record is not None
    return record


def values(root: Path) -> Counter[int]:
    table = deltalake.DeltaTable(str(root / "results")).to_pyarrow_table(columns=["v"])
    return Counter(table["v"].to_pylist())


# --- opening ---------------------------------------------------------------------------------


def test_all_tables_are_plain_delta(tmp_path: Path) -> None:
    warehouse(tmp_path, fsync=True)
    names = {p.name for p in tmp_path.iterdir()}
    assert names >= {"journal", "results", "spill", "quarantine", "commands", "sessions"}
    for name in names:
        protocol = deltalake.DeltaTable(str(tmp_path / name)).protocol()
        assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)


def test_a_log_makes_a_table(tmp_path: Path) -> None:
    """Torn or whole; with a checkpoint alone as well: `doctor --repair` has something to mend."""
    w, place = warehouse(tmp_path), folder(str(tmp_path)).child("journal")
    assert is_table(place)
    assert not is_table(folder(str(tmp_path)).child("none"))
    w.journal.append(genesis())
    w.table("journal").checkpoint(every=1)
    log = tmp_path / "journal" / "_delta_log"
    for entry in log.glob("*.json"):
        entry.unlink()
    assert is_table(place)
    for checkpoint in log.glob("*.parquet"):
        checkpoint.rename(log / f"{checkpoint.name}.tmp")
    assert not is_table(place)
    (log / f"{0:020d}.json").write_bytes(b"")
    assert is_table(place)


def test_a_reader_needs_no_query_but_a_warehouse(tmp_path: Path) -> None:
    with pytest.raises(NoWarehouse, match="start `spillway stream` once"):
        Warehouse(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    warehouse(tmp_path)
    assert Warehouse(str(tmp_path)).table("results").definition.schema == RESULTS


def test_another_query_is_refused(tmp_path: Path) -> None:
    w = warehouse(tmp_path)
    for entry in (genesis(), claim(1), epoch_entry(2, 0)):
        w.journal.append(entry)
    for refused in (
        lambda: Warehouse(str(tmp_path), OTHER),
        lambda: w.compare_columns(OTHER, SPILL_COLUMNS),
    ):
        with pytest.raises(WrongTable) as it:
            refused()
        assert str(it.value) == (
            f"the query has changed: results at {tmp_path}/results has v as long, and the query as "
            "string. A column keeps its type: leave it out (results.columns), read the stream by "
            'another name ("trade as t"), or use another warehouse.root'
        )
    with pytest.raises(WrongTable, match="results lacks w and has v, which it should not"):
        w.compare_columns(pa.schema([OTHER.field("w"), SESSION_DATE]), SPILL_COLUMNS)
    w.compare_columns(RESULTS, SPILL_COLUMNS)


def test_results_that_nobody_has_used_take_another_query_s_columns(tmp_path: Path) -> None:
    """A start that came to nothing does not tie the place to its query."""
    warehouse(tmp_path)
    Warehouse(str(tmp_path)).compare_columns(OTHER, SPILL_COLUMNS)
    assert Warehouse(str(tmp_path)).table("results").definition.schema == RESULTS, "only a look"
    Warehouse(str(tmp_path), OTHER, fsync=True)
    assert Warehouse(str(tmp_path)).table("results").definition.schema == OTHER
    w = warehouse(tmp_path)
    for entry in (genesis(), claim(1), epoch_entry(2, 0)):
        w.journal.append(entry)
    w.apply("results", 0, [write(w, data_name(0, GOOD, 0, 0), [1, 2])])
    assert values(tmp_path) == Counter([1, 2])
    assert w.check() == []


def test_results_of_a_journal_that_is_gone_are_not_made_anew(tmp_path: Path) -> None:
    w = warehouse(tmp_path)
    w.apply("results", 0, [write(w, data_name(0, GOOD, 0, 0), [1])])
    assert w.journal.last_n() == -1
    for refused in (
        lambda: Warehouse(str(tmp_path), OTHER),
        lambda: w.compare_columns(OTHER, SPILL_COLUMNS),
    ):
        with pytest.raises(WrongTable, match="the query has changed"):
            refused()


def test_results_can_wait_for_their_first_use(tmp_path: Path) -> None:
    w = Warehouse(str(tmp_path), RESULTS, fsync=False, later={"results"})
    w.compare_columns(RESULTS, SPILL_COLUMNS)
    assert not (tmp_path / "results").exists()
    assert w.table("results").files() == []
    assert (tmp_path / "results").exists()


def _open(root: str) -> None:
    Warehouse(root, RESULTS, fsync=False)


@pytest.mark.server
def test_two_processes_may_make_the_warehouse_at_once(tmp_path: Path) -> None:
    race((_open, (str(tmp_path),)), (_open, (str(tmp_path),)))
    assert Warehouse(str(tmp_path)).journal.last_n() == -1


# --- the journal -----------------------------------------------------------------------------


def test_entries_come_back_as_they_went_in(tmp_path: Path) -> None:
    w = warehouse(tmp_path, fsync=True)
    entries = [genesis(), claim(1), epoch_entry(2, 0), epoch_entry(3, 1)]
    for entry in entries:
        w.journal.append(entry)
    assert w.journal.read() == entries
    assert w.journal.read(3) == entries[3:]
    assert w.journal.read(4) == []
    assert w.journal.last_n() == 3
    assert Warehouse(str(tmp_path)).journal.read() == entries
    rows = deltalake.DeltaTable(str(tmp_path / "journal")).to_pyarrow_table().sort_by("n")
    assert rows.select(["n", "kind", "epoch", "term"]).to_pydict() == {
        "n": [0, 1, 2, 3],
        "kind": ["genesis", "claim", "epoch", "epoch"],
        "epoch": [None, None, 0, 1],
        "term": [0, 1, 1, 1],
    }


@pytest.mark.parametrize("n", [0, 1, 3])
def test_only_the_next_number_is_taken(tmp_path: Path, n: int) -> None:
    w = warehouse(tmp_path)
    w.journal.append(genesis())
    w.journal.append(claim(1))
    with pytest.raises(JournalConflict, match="has appended what this one has not read"):
        w.journal.append(claim(n, 2))
    assert w.journal.last_n() == 1


def test_a_driver_that_was_taken_over_cannot_append(tmp_path: Path) -> None:
    first = warehouse(tmp_path)
    first.journal.append(genesis())
    first.journal.append(claim(1))
    second = warehouse(tmp_path)
    second.journal.append(claim(2, 2))
    with pytest.raises(JournalConflict):  # it has not seen the claim
        first.journal.append(epoch_entry(2, 0))
    with pytest.raises(JournalConflict):  # ... nor does the failed try let it through
        first.journal.append(epoch_entry(2, 0))
    first.journal.refresh()
    with pytest.raises(JournalConflict):  # a refresh does not help: the number is gone
        first.journal.append(epoch_entry(2, 0))
    second.journal.append(epoch_entry(3, 0))
    assert [e.n for e in Warehouse(str(tmp_path)).journal.read()] == [0, 1, 2, 3]


def test_compaction_does_not_fence_the_driver(tmp_path: Path) -> None:
    """Another process compacts between the driver's look and its commit: no conflict."""
    driver = warehouse(tmp_path)
    driver.journal.append(genesis())
    for n in range(1, 20):
        driver.journal.append(claim(n, n))
    assert compact(warehouse(tmp_path).table("journal")) == 20
    driver.journal.append(claim(20, 20))
    assert [e.n for e in driver.journal.read()] == list(range(21))
    assert len(driver.table("journal").files()) == 2
    with pytest.raises(JournalConflict):
        driver.journal.append(claim(20, 21))


def test_a_large_entry_among_small_ones_is_read_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small files are merged past it, so row groups of the night's one file overlap.

    Kills: row groups of one file read one after the other.
    """
    monkeypatch.setattr("spillway.tables.compaction.TAIL_BYTES", 8_000)
    w = warehouse(tmp_path)
    w.journal.append(genesis())
    for n in range(1, 40):
        size = 2 * BASE_BYTES if n == 7 else 1_000
        driver = random.Random(n).randbytes(size).hex()
        w.journal.append(claim(n, n).model_copy(update={"driver": driver}))
        w.maintain()
    table = w.table("journal")
    for group in deep_plan(w.files("journal"), None):
        assert merge(table, group) is not None
    assert len(table.files()) == 1
    for after in (0, 5, 8, 39):
        assert [e.n for e in w.journal.read(after)] == list(range(after, 40))


def _race_for_numbers(root: str, me: int, upto: int) -> None:
    """Append as fast as the others let us; a conflict sends us back to reading."""
    w = Warehouse(root, fsync=False)
    won = 0
    while w.journal.last_n() < upto:
        n = w.journal.last_n() + 1
        try:
            w.journal.append(Claim(n=n, term=n, driver=f"{me}", written_at=TIME))
            won += 1
        except JournalConflict:
            w.journal.refresh()
        if me == 0:
            w.maintain()
    Path(root, f"won-{me}").write_text(str(won))


@pytest.mark.server
def test_racing_drivers_take_each_number_once(tmp_path: Path) -> None:
    w = warehouse(tmp_path)
    w.journal.append(genesis())
    upto = 60
    race(*[(_race_for_numbers, (str(tmp_path), me, upto)) for me in range(3)])
    reader = Warehouse(str(tmp_path))
    entries = reader.journal.read()
    last = reader.journal.last_n()
    assert [e.n for e in entries] == list(range(last + 1))
    told = sum(int(Path(tmp_path, f"won-{me}").read_text()) for me in range(3))
    assert told == last  # every append that was told as done is there, and no other
    assert len(reader.table("journal").files()) < last  # it was compacted meanwhile


def test_an_unreadable_log_leaves_the_outcome_unknown(tmp_path: Path) -> None:
    w = warehouse(tmp_path)
    w.journal.append(genesis())
    log = tmp_path / "journal" / "_delta_log"
    log.rename(tmp_path / "away")
    log.write_text("")
    with pytest.raises(OutcomeUnknown):
        w.journal.append(claim(1))
    log.unlink()
    (tmp_path / "away").rename(log)
    assert Warehouse(str(tmp_path)).journal.last_n() == 0


def test_a_commit_that_raised_but_happened_counts_as_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = warehouse(tmp_path)
    w.journal.append(genesis())
    commit = deltalake.DeltaTable.create_write_transaction

    def and_then_fail(*args: Any, **named: Any) -> None:
        commit(*args, **named)
        raise OSError("the store did not answer")

    monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", and_then_fail)
    w.journal.append(claim(1))
    monkeypatch.undo()
    w.journal.append(claim(2, 2))
    assert w.journal.read() == [genesis(), claim(1), claim(2, 2)]


def test_a_commit_into_a_pruned_log_is_not_taken_for_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver frozen inside a commit: delta-rs had found version 2 free, and writes it much later.

    By then others have used version 2, and the log before the checkpoint is pruned.
    """
    monkeypatch.setattr("spillway.tables.log.KEEP_ENTRIES", 0)
    monkeypatch.setattr("spillway.tables.log.KEEP_S", -1.0)
    frozen, other = warehouse(tmp_path), warehouse(tmp_path)
    other.journal.append(genesis())
    frozen.journal.refresh()
    commit = deltalake.DeltaTable.create_write_transaction

    def and_then_wake_up(*args: Any, **named: Any) -> None:
        monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", commit)
        for n in range(1, 6):
            other.journal.append(claim(n, n))
        other.table("journal").checkpoint(every=1)
        other.journal.append(claim(6, 6))
        late = log_file(tmp_path, "journal", 2)
        assert not late.exists()  # pruned: the frozen write finds the name free
        late.write_bytes(log_file(tmp_path, "journal", 6).read_bytes())

    monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", and_then_wake_up)
    with pytest.raises(OutcomeUnknown, match="suspended"):
        frozen.journal.append(claim(1, 9))
    assert [e.n for e in warehouse(tmp_path).journal.read()] == list(range(7))
    frozen.journal.refresh()
    with pytest.raises(JournalConflict):
        frozen.journal.append(claim(2, 9))


def test_a_pruned_log_is_short_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spillway.tables.log.KEEP_ENTRIES", 10)
    monkeypatch.setattr("spillway.tables.log.KEEP_S", -1.0)
    w, stale = warehouse(tmp_path), warehouse(tmp_path)
    w.journal.append(genesis())
    for n in range(1, 60):
        w.journal.append(claim(n, n))
        w.table("journal").checkpoint(every=7)
    assert len(list((tmp_path / "journal" / "_delta_log").glob("*.json"))) < 20
    assert [e.n for e in warehouse(tmp_path).journal.read()] == list(range(60))
    with pytest.raises((JournalConflict, OutcomeUnknown)):
        stale.journal.append(claim(0))
    stale.journal.refresh()
    assert [e.n for e in stale.journal.read()] == list(range(60))
    assert [e.n for e in Warehouse(str(tmp_path)).journal.read(55)] == list(range(55, 60))
    assert repair(str(tmp_path)) == []


def test_a_damaged_checkpoint_is_not_taken_for_a_pruned_log(tmp_path: Path) -> None:
    """To look again would not help. Opening the table does not read what is damaged."""
    w = warehouse(tmp_path)
    w.journal.append(genesis())
    w.table("journal").checkpoint(every=1)
    [checkpoint] = (tmp_path / "journal" / "_delta_log").glob("*.checkpoint.parquet")
    checkpoint.write_bytes(checkpoint.read_bytes().replace(b"version", b"versioM"))
    with pytest.raises(DamagedTable, match=rf"{tmp_path}/journal cannot be read .*doctor --repair"):
        Warehouse(str(tmp_path)).table("journal").transaction("any")


def test_a_checkpoint_that_others_have_pruned_is_not_a_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opened at a checkpoint, or after it, and asked for a transaction only much later."""
    monkeypatch.setattr("spillway.tables.log.KEEP_ENTRIES", 10)
    monkeypatch.setattr("spillway.tables.log.KEEP_S", -1.0)
    w = warehouse(tmp_path)
    w.journal.append(genesis())
    w.table("journal").checkpoint(every=1)
    stale = [Warehouse(str(tmp_path)).table("journal")]
    w.journal.append(claim(1, 1))
    stale.append(Warehouse(str(tmp_path)).table("journal"))
    for n in range(2, 40):
        w.journal.append(claim(n, n))
        w.table("journal").checkpoint(every=7)
    for each in stale:
        with pytest.raises(TableConflict, match="must look again"):
            each.transaction("any")
        each.refresh()
        assert each.transaction("any") == -1


def test_a_table_that_is_behind_what_was_seen_of_it_was_restored(tmp_path: Path) -> None:
    """A process may live through that: it is told to start again, in our words."""
    w = warehouse(tmp_path / "w")
    w.journal.append(genesis())
    shutil.copytree(tmp_path / "w", tmp_path / "backup")
    w.journal.append(claim(1))
    entry = w.table("journal").entry()
    shutil.rmtree(tmp_path / "w")
    shutil.copytree(tmp_path / "backup", tmp_path / "w")
    told = r"restored or replaced .* its log ends at version 1, and version 2 was .* Start it again"
    with pytest.raises(TableReplaced, match=told):
        w.journal.refresh()
    warehouse(tmp_path / "w").journal.append(claim(1))
    with pytest.raises(TableReplaced, match="version 2 is another one than was seen before"):
        w.table("journal").demand_entry(entry)
    w.table("journal").demand_entry(w.table("journal").entry())


def test_what_was_written_lately_is_not_pruned_however_many_entries_came_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader may be in the middle of them."""
    monkeypatch.setattr("spillway.tables.log.KEEP_ENTRIES", 0)
    w = warehouse(tmp_path)
    w.journal.append(genesis())
    for n in range(1, 12):
        w.journal.append(claim(n, n))
        w.table("journal").checkpoint(every=3)
    assert len(list((tmp_path / "journal" / "_delta_log").glob("0*.json"))) >= 12


# --- data tables -----------------------------------------------------------------------------


def test_apply_takes_effect_once(tmp_path: Path) -> None:
    w = warehouse(tmp_path, fsync=True)
    first, second = (
        write(w, data_name(0, "aaaaaaaaaaaa", 0, 0), [1, 2]),
        write(w, data_name(2, "aaaaaaaaaaaa", 0, 0), [3]),
    )
    w.sync_files([first, second])
    assert w.applied("results") == -1
    w.apply("results", 0, [first])
    w.apply("results", 0, [first])
    w.apply("results", 2, [second])
    w.apply("results", 0, [first])
    w.apply("results", 1, [first])  # an older epoch never comes late
    assert w.applied_all()["results"] == 2
    assert values(tmp_path) == Counter([1, 2, 3])


def test_a_stale_handle_applies_nothing_twice(tmp_path: Path) -> None:
    """A zombie that looked before the new driver's redo repeats the same epoch."""
    zombie, driver = warehouse(tmp_path), warehouse(tmp_path)
    record = write(driver, data_name(0, "aaaaaaaaaaaa", 0, 0), [1])
    assert zombie.applied("results") == -1
    driver.apply("results", 0, [record])
    zombie.apply("results", 0, [record])
    assert values(tmp_path) == Counter([1])


def test_files_must_be_as_the_journal_says(tmp_path: Path) -> None:
    w = warehouse(tmp_path)
    record = write(w, data_name(0, "aaaaaaaaaaaa", 0, 0), [1])
    with pytest.raises(FileMismatch, match="is not there"):
        w.apply("results", 0, [record.model_copy(update={"path": "session_date=x/y.parquet"})])
    with pytest.raises(FileMismatch, match="has 255"):
        w.apply("results", 0, [record.model_copy(update={"bytes": 1})])
    with pytest.raises(ValueError, match="is for results, not for spill"):
        w.apply("spill", 0, [record])
    with pytest.raises(ValueError, match="partitioned by"):
        w.apply("results", 0, [record.model_copy(update={"partition": {}})])
    assert w.applied("results") == -1


def test_cleanup_commits_in_order_and_once(tmp_path: Path) -> None:
    w = warehouse(tmp_path)
    one, three = (
        write(w, cleanup_name(DAY, 0, "aaaaaaaaaaaa", 0), [1]),
        write(w, cleanup_name(DAY, 2, "aaaaaaaaaaaa", 0), [3]),
    )
    assert w.cleanup_applied(DAY) == -1
    with pytest.raises(ValueError, match="0 comes first"):
        w.apply_cleanup(DAY, {1: []})
    w.apply_cleanup(DAY, {0: [one]})
    w.apply_cleanup(DAY, {0: [one]})
    w.apply_cleanup(DAY, {1: []})  # a range without missing results
    assert w.cleanup_applied(DAY) == 1
    w.apply_cleanup(DAY, {2: [three]})
    assert w.cleanup_applied("2026-01-06") == -1
    assert values(tmp_path) == Counter([1, 3])


@pytest.mark.parametrize("late", [False, True], ids=["it knows", "it finds out"])
def test_ranges_that_another_cleanup_has_committed_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    w = warehouse(tmp_path)
    mine, other = (
        {n: [write(w, cleanup_name(DAY, n, by * 12, 0), [n])] for n in range(4)} for by in "ab"
    )
    assert w.apply_cleanup(DAY, {0: other[0]}) == -1
    real = w.cleanup_applied
    if late:

        def then_the_other_commits(session: str) -> int:
            found = real(session)
            Warehouse(str(tmp_path), fsync=False).apply_cleanup(DAY, {1: other[1], 2: other[2]})
            return found

        monkeypatch.setattr(w, "cleanup_applied", then_the_other_commits)
    assert w.apply_cleanup(DAY, {n: mine[n] for n in (1, 2, 3)}) == 0
    assert real(DAY) == 3
    assert values(tmp_path) == Counter(range(4))
    table = w.table("results")
    table.refresh()
    others = {file.path for each in other.values() for file in each}
    assert len({file.path for file in table.files()} & others) == (3 if late else 1)
    versions = table.version
    assert w.apply_cleanup(DAY, mine) == 3
    table.refresh()
    assert table.version == versions


def _apply_all(root: str, epochs: int) -> None:
    w = Warehouse(root, fsync=False)
    for epoch in range(epochs):
        # The record is the journal's: every driver applies the same one.
        path = f"session_date={DAY}/{data_name(epoch, 'aaaaaaaaaaaa', 0, 0)}"
        size = w.folder("results").size(path)
        assert size is not None
        w.apply("results", epoch, [_record(path, size)])


def _clean_all(root: str, ranges: int) -> None:
    w = Warehouse(root, fsync=False)
    for n in range(ranges):
        path = f"session_date={DAY}/{cleanup_name(DAY, n, 'aaaaaaaaaaaa', 0)}"
        size = w.folder("results").size(path)
        assert size is not None
        w.apply_cleanup(DAY, {n: [_record(path, size)]})


def _compact_all(root: str, rows: int) -> None:
    table = Warehouse(root, fsync=False).table("results")
    while sum(file.rows for file in table.files()) < rows:
        compact(table, fan_in=4)
    compact(table, fan_in=4)


def _record(path: str, size: int) -> FileRecord:
    stats = '{"numRecords":1}'
    return FileRecord(
        table="results",
        path=path,
        bytes=size,
        rows=1,
        digest="",
        partition={"session_date": DAY},
        stats=stats,
    )


@pytest.mark.server
def test_driver_zombie_cleanup_and_two_compactions_at_once(tmp_path: Path) -> None:
    """Two compactions by delta-rs's own `optimize.compact` would double rows here."""
    w = warehouse(tmp_path)
    epochs, ranges = 40, 20
    for epoch in range(epochs):
        write(w, data_name(epoch, "aaaaaaaaaaaa", 0, 0), [epoch])
    for n in range(ranges):
        write(w, cleanup_name(DAY, n, "aaaaaaaaaaaa", 0), [1000 + n])
    root = str(tmp_path)
    race(
        (_apply_all, (root, epochs)),
        (_apply_all, (root, epochs)),
        (_clean_all, (root, ranges)),
        (_compact_all, (root, epochs + ranges)),
        (_compact_all, (root, epochs + ranges)),
    )
    assert values(tmp_path) == Counter([*range(epochs), *range(1000, 1000 + ranges)])
    after = warehouse(tmp_path)
    assert after.applied("results") == epochs - 1
    assert after.cleanup_applied(DAY) == ranges - 1
    assert len(after.files("results")) < epochs


# --- commands and sessions -------------------------------------------------------------------


def _command(root: str, me: int) -> None:
    w = Warehouse(root, fsync=False)
    for k in range(0, 10, 2):
        two = [command_of("seal", f"{me}-{k + i}", session=DAY) for i in (0, 1)]
        w.commands.append(*two)


def test_commands_of_several_people_are_ordered_and_kept(tmp_path: Path) -> None:
    w = warehouse(tmp_path)
    race(*[(_command, (str(tmp_path), me)) for me in range(2)])
    found = w.commands.read()
    assert [n for n, _ in found] == list(range(20))
    assert Counter(c.id for _, c in found) == Counter(
        f"{me}-{k}" for me in (0, 1) for k in range(10)
    )
    pairs = [(found[i].command.id, found[i + 1].command.id) for i in range(0, 20, 2)]
    assert all(int(b[-1]) == int(a[-1]) + 1 and a[0] == b[0] for a, b in pairs)
    assert w.commands.read(after=17) == found[18:]
    seen = frozenset(found[n].command.id for n in (17, 19))
    state = replace(begin(genesis()), seen=seen, commands_n=17)
    assert list(w.commands.unseen(state)) == [found[18].command], "what is answered is not read"
    other = replace(state, seen=frozenset({found[19].command.id}))
    everything = [each.command for each in found[:19]]
    assert list(w.commands.unseen(other)) == everything, "17 is not the one that was answered"
    assert list(w.commands.unseen(replace(other, commands_n=20))) == everything
    assert w.commands.unanswered(state) == (found[18:], 19)
    assert w.commands.unanswered(replace(state, commands_n=19)) == ([], 19)
    empty = warehouse(tmp_path / "empty").commands
    assert empty.unanswered(state) == ([], -1), "a table that was made anew begins again"
    assert w.commands.read(after=16) == found[17:]  # from the middle of what came together


def test_sessions_remember_what_became_of_a_day(tmp_path: Path) -> None:
    w = warehouse(tmp_path)
    sealed = SessionEvent(session=DAY, event="sealed", run_time=5, written_at=TIME)
    verdict = SessionEvent(
        session=DAY,
        event="verified",
        missing=0,
        complete=True,
        details={"keys": ["A"]},
        seconds=1.5,
    )
    w.sessions.append(sealed)
    w.sessions.append(SessionEvent(session=DAY, event="cleaned", cleanup=2))
    w.sessions.append(verdict)
    events = Warehouse(str(tmp_path)).sessions.read()
    assert [e.event for e in events] == ["sealed", "cleaned", "verified"]
    assert events[0].written_at == "2026-01-05T10:00:00+00:00"
    assert events[2].model_copy(update={"written_at": ""}) == verdict
    assert w.sessions.cleaned() == {DAY}


def test_the_history_of_sessions_says_how_each_ended(tmp_path: Path) -> None:
    w = warehouse(tmp_path)
    said = [("a", "sealed"), ("b", "cleaned"), ("a", "cleaned"), ("c", "verified")]
    for session, event in said:
        complete = {"complete": True} if event == "verified" else {}
        w.sessions.append(SessionEvent(session=session, event=event, **complete))
    history = w.sessions.history()
    w.sessions.append(SessionEvent(session="c", event="verified", complete=False))
    assert history.outcomes() == {
        "b": (True, None, False),
        "a": (True, None, False),
        "c": (False, True, False),
    }
    assert w.sessions.history().outcomes()["c"] == (False, False, False)
    assert [(e.session, e.event) for e in history.events()] == said
    assert [(e.session, e.event) for e in history.events({"a", "c"})] == [
        said[k] for k in (0, 2, 3)
    ]
    assert history.events(()) == []


# --- upkeep ----------------------------------------------------------------------------------


@pytest.mark.server
def test_maintain_keeps_the_journal_fast_to_read(tmp_path: Path) -> None:
    w = warehouse(tmp_path)
    w.journal.append(genesis())
    for n in range(1, 210):
        w.journal.append(claim(n, n))
        w.maintain()
    table = w.table("journal")
    assert len(table.files()) < 40
    assert [e.n for e in Warehouse(str(tmp_path)).journal.read()] == list(range(210))
    # Statistics survive compaction: reading the end opens few files.
    assert sum(file.greatest > 205 for file in table.files()) <= 4
    assert list((tmp_path / "journal" / "_delta_log").glob("*.checkpoint.parquet"))
    assert deltalake.DeltaTable(str(tmp_path / "journal")).transaction_version("journal") == 209


def test_what_one_call_leaves_the_next_one_compacts(tmp_path: Path) -> None:
    """A call is an instalment: nothing has come between, and yet there is more to do."""
    w = warehouse(tmp_path)
    for epoch in range(20):
        w.apply(
            "results", epoch, [write(w, data_name(epoch, "aaaaaaaaaaaa", 0, 0), [epoch, epoch])]
        )
    size = max(file.bytes for file in w.files("results"))
    before, steps = values(tmp_path), []
    while done := w.maintain(most_bytes=3 * size).compacted:
        steps.append(done["results"])
    assert len(steps) > 1
    assert len(w.files("results")) < FAN_IN
    assert values(tmp_path) == before


def test_compaction_keeps_rows_types_and_transactions(tmp_path: Path) -> None:
    w = warehouse(tmp_path)
    for epoch in range(20):
        w.apply(
            "results", epoch, [write(w, data_name(epoch, "aaaaaaaaaaaa", 0, 0), [epoch, epoch])]
        )
    w.apply_cleanup(DAY, {0: [write(w, cleanup_name(DAY, 0, "aaaaaaaaaaaa", 0), [99])]})
    before = values(tmp_path)
    assert w.maintain().compacted == {"results": 21}
    assert len(w.files("results")) == 1
    assert values(tmp_path) == before
    assert w.applied("results") == 19
    assert w.cleanup_applied(DAY) == 0
    w.apply("results", 19, [write(w, data_name(19, "bbbbbbbbbbbb", 0, 0), [5])])
    [file] = w.files("results")
    assert pq.read_schema(str(tmp_path / "results" / file.path)).equals(FILE)


def test_vacuum_beside_a_running_day(tmp_path: Path) -> None:
    w = warehouse(tmp_path)
    w.journal.append(genesis())
    for epoch in range(20):
        good, _abandoned = (write(w, data_name(epoch, a, 0, 0), [epoch]) for a in (GOOD, BAD))
        w.journal.append(epoch_entry(epoch + 1, epoch, [good]))
        w.apply("results", epoch, [good])
    owed = write(w, data_name(20, GOOD, 0, 0), [20])
    w.journal.append(epoch_entry(21, 20, [owed]))  # journaled, not applied: redo owes it
    running = write(w, data_name(21, GOOD, 0, 0), [21])  # not journaled yet
    cleaning = write(w, cleanup_name(DAY, 0, "aaaaaaaaaaaa", 0), [100])
    (tmp_path / "results" / "notes.txt").write_text("mine")

    assert w.vacuum()["results"].delete == []  # all too young
    dry = w.vacuum(min_age_s=0, dry_run=True)["results"]
    found = w.vacuum(min_age_s=0)["results"]
    assert found == dry
    assert {i.name.rsplit("/", 1)[-1] for i in found.delete} == {
        data_name(epoch, BAD, 0, 0) for epoch in range(20)
    }
    assert [i.name for i in found.foreign] == ["notes.txt"]
    # What was kept can still become part of the table.
    w.apply("results", 20, [owed])
    w.journal.append(epoch_entry(22, 21, [running]))
    w.apply("results", 21, [running])
    w.apply_cleanup(DAY, {0: [cleaning]})
    assert values(tmp_path) == Counter([*range(22), 100])


def test_vacuum_with_a_checkpoint_that_names_no_removal(tmp_path: Path) -> None:
    w = warehouse(tmp_path)
    w.journal.append(genesis())
    for epoch in range(20):
        files = [write(w, data_name(epoch, GOOD, 0, 0), [epoch], table="spill")]
        w.journal.append(epoch_entry(epoch + 1, epoch, files))
        w.apply("spill", epoch, files)
    assert w.table("spill").checkpoint(every=20)
    assert list((tmp_path / "spill" / "_delta_log").glob("*.checkpoint.parquet"))
    lost = write(w, data_name(5, BAD, 0, 0), [5], table="spill")
    assert [i.name for i in w.vacuum(min_age_s=0)["spill"].delete] == [lost.path]


def test_vacuum_takes_what_compaction_replaced_but_not_from_readers(tmp_path: Path) -> None:
    w = warehouse(tmp_path)
    w.journal.append(genesis())
    for epoch in range(20):
        record = write(w, data_name(epoch, "aaaaaaaaaaaa", 0, 0), [epoch])
        w.journal.append(epoch_entry(epoch + 1, epoch, [record]))
        w.apply("results", epoch, [record])
    w.maintain()
    old = 10**6
    for path in (tmp_path / "results").rglob("*.parquet"):  # written long ago ...
        os.utime(path, (old, old))
    assert w.vacuum()["results"].delete == []  # ... but replaced just now
    assert len(w.vacuum(min_age_s=0)["results"].delete) == 20
    assert values(tmp_path) == Counter(range(20))
    assert w.check() == []


def test_check_takes_a_stream_that_runs_for_sound(tmp_path: Path) -> None:
    """An epoch that is committed while the tables are looked at is not a lost one."""
    w = warehouse(tmp_path)
    w.journal.append(genesis())
    looking = Warehouse(str(tmp_path))
    record = write(w, data_name(0, "aaaaaaaaaaaa", 0, 0), [1])
    w.journal.append(epoch_entry(1, 0, [record]))
    w.apply("results", 0, [record])
    assert looking.check() == []


def test_check_tells_of_lost_files_and_a_lost_journal(tmp_path: Path) -> None:
    w = warehouse(tmp_path)
    w.journal.append(genesis())
    record = write(w, data_name(0, "aaaaaaaaaaaa", 0, 0), [1])
    w.apply("results", 0, [record])
    (tmp_path / "results" / record.path).unlink()
    problems = w.check()
    assert len(problems) == 2
    assert "journal entries were lost" in problems[0]
    assert "is gone" in problems[1]


# --- after a loss of power -------------------------------------------------------------------


def log_file(root: Path, table: str, version: int) -> Path:
    return root / table / "_delta_log" / f"{version:020d}.json"


def test_a_torn_data_table_is_redone_from_the_journal(tmp_path: Path) -> None:
    w = warehouse(tmp_path)
    w.journal.append(genesis())
    records = [write(w, data_name(epoch, "aaaaaaaaaaaa", 0, 0), [epoch]) for epoch in range(4)]
    for epoch, record in enumerate(records):
        w.journal.append(epoch_entry(epoch + 1, epoch, [record]))
        w.apply("results", epoch, [record])
    log_file(tmp_path, "results", 3).write_bytes(b"")  # epoch 2, and 3 came after it
    with pytest.raises(DamagedTable, match=r"results.*it is empty.*doctor --repair"):
        warehouse(tmp_path)
    done = repair(str(tmp_path))
    assert len(done) == 1
    assert "Took away 2 log entries" in done[0]
    assert repair(str(tmp_path)) == []
    assert len(list((tmp_path / DAMAGED).iterdir())) == 2
    after = warehouse(tmp_path)
    assert after.applied("results") == 1
    for epoch, record in enumerate(records):
        after.apply("results", epoch, [record])
    assert values(tmp_path) == Counter(range(4))


@pytest.mark.parametrize("torn", [b"", b"\0" * 512, b'{"commitInfo":{"time'])
def test_a_torn_journal_entry_never_happened(tmp_path: Path, torn: bytes) -> None:
    w = warehouse(tmp_path)
    w.journal.append(genesis())
    w.journal.append(claim(1))
    record = write(w, data_name(0, "aaaaaaaaaaaa", 0, 0), [0])
    w.journal.append(epoch_entry(2, 0, [record]))
    w.apply("results", 0, [record])
    w.journal.append(epoch_entry(3, 1))
    log_file(tmp_path, "journal", 4).write_bytes(torn)
    with pytest.raises(DamagedTable, match="journal"):
        warehouse(tmp_path)
    assert len(repair(str(tmp_path))) == 1
    after = warehouse(tmp_path)
    assert after.journal.last_n() == 2
    after.journal.append(claim(3, 2))
    assert after.check() == []


def test_a_journal_that_lost_what_a_table_holds_is_not_shortened(tmp_path: Path) -> None:
    w = warehouse(tmp_path)
    w.journal.append(genesis())
    record = write(w, data_name(0, "aaaaaaaaaaaa", 0, 0), [0])
    w.journal.append(epoch_entry(1, 0, [record]))
    w.apply("results", 0, [record])
    log_file(tmp_path, "journal", 2).write_bytes(b"")
    with pytest.raises(DamagedTable, match="'results' already holds epoch 0"):
        repair(str(tmp_path))
    assert log_file(tmp_path, "journal", 2).exists()


def test_a_journal_that_lost_a_seal_that_was_acted_on_is_not_shortened(tmp_path: Path) -> None:
    w = warehouse(tmp_path)
    w.journal.append(genesis())
    sealed = Sealed(
        session=DAY,
        epoch=0,
        start=OFFSETS,
        end=OFFSETS,
        ranges=[],
        results=0,
        spilled_rows=0,
        generations=0,
    )
    w.journal.append(epoch_entry(1, 0, sealed=sealed))
    w.sessions.append(SessionEvent(session=DAY, event="cleaned"))
    log_file(tmp_path, "journal", 2).write_bytes(b"")
    with pytest.raises(DamagedTable, match=f"{DAY}.*sealed by what it held"):
        repair(str(tmp_path))


@pytest.mark.parametrize("what", ["_last_checkpoint", "checkpoint.parquet", "both"])
def test_a_torn_checkpoint_is_made_up_for_by_the_log(tmp_path: Path, what: str) -> None:
    w = warehouse(tmp_path)
    w.journal.append(genesis())
    for n in range(1, 12):
        w.journal.append(claim(n, n))
        w.table("journal").checkpoint(every=5)
    log = tmp_path / "journal" / "_delta_log"
    checkpoints = sorted(log.glob("*.checkpoint.parquet"))
    assert len(checkpoints) == 2
    if what != "checkpoint.parquet":
        (log / "_last_checkpoint").write_bytes(b"")
    if what != "_last_checkpoint":
        checkpoints[-1].write_bytes(checkpoints[-1].read_bytes()[:100])
    with pytest.raises(DamagedTable, match="doctor --repair"):
        warehouse(tmp_path)
    assert repair(str(tmp_path))
    assert [e.n for e in warehouse(tmp_path).journal.read()] == list(range(12))


def test_a_checkpoint_in_which_transactions_alone_are_damaged_is_noticed_and_mended(
    tmp_path: Path,
) -> None:
    """The table opens all the same, for transactions are read when somebody asks for them."""
    w = warehouse(tmp_path)
    w.journal.append(genesis())
    w.journal.append(claim(1))
    assert w.table("journal").checkpoint(every=1)
    [path] = (tmp_path / "journal" / "_delta_log").glob("*.checkpoint.parquet")
    group = pq.read_metadata(path).row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    [at] = [each.data_page_offset for each in columns if each.path_in_schema == "txn.version"]
    content = bytearray(path.read_bytes())
    content[at + 1] ^= 32  # of the page's header, which kind it is
    path.write_bytes(content)
    with pytest.raises(DamagedTable, match=r"log of 'journal'.*doctor --repair"):
        warehouse(tmp_path).journal.append(claim(2, 2))
    assert any("took away a log checkpoint" in each for each in repair(str(tmp_path)))
    mended = warehouse(tmp_path).journal
    mended.append(claim(2, 2))
    assert [e.n for e in mended.read()] == [0, 1, 2]


def test_an_entry_whose_file_is_torn_is_no_entry(tmp_path: Path) -> None:
    """With fsync off the data file may be torn though the log entry is whole."""
    w = warehouse(tmp_path)
    w.journal.append(genesis())
    w.journal.append(claim(1))
    [last] = [f for f in w.table("journal").files() if f.least == 1]
    (tmp_path / "journal" / last.path).write_bytes(b"")
    with pytest.raises(DamagedTable):
        warehouse(tmp_path).journal.read()
    assert repair(str(tmp_path))
    assert warehouse(tmp_path).journal.read() == [genesis()]


def test_conflicts_are_conflicts() -> None:
    assert issubclass(JournalConflict, TableConflict)


def test_statistics_with_a_list_column_are_compacted(tmp_path: Path) -> None:
    w = warehouse(tmp_path)
    schema = w.table("statistics").definition.file_schema
    row = {
        "epoch": 1,
        "session_date": DAY,
        "slot": 0,
        "depth": 9,
        "value": 3,
        "bytes": 100,
        "rows": [1, 2, 3],
        "results": 5,
        "last_used_ms": 7,
        "resident": True,
        "written_at": datetime(2026, 1, 5, tzinfo=UTC),
        "session_results": 50,
        "rate": 0.5,
        "rows_in": 12,
        "generations": 1,
        "spilled_bytes": 300,
        "hot_key": "ACME",
        "hot_rows": 4,
        "expected_loss": 2.5,
        "slot_bytes": 100,
        "slot_budget_bytes": 1000,
        "slot_busy_s": 0.5,
        "slot_idle_s": 1.5,
        "slot_occupancy": 0.25,
        "slot_output_rate": 2.5,
        "slot_skew": 1.0,
    }
    for epoch in range(16):
        rows = pa.Table.from_pylist([{**row, "epoch": epoch}], schema=schema)
        name = data_name(epoch, "aaaaaaaaaaaa", 0, 0)
        record = write_data_file(w.folder("statistics"), "statistics", name, schema, [rows])
        assert record is not None
        w.apply("statistics", epoch, [record])
    assert w.maintain().compacted == {"statistics": 16}
    found = deltalake.DeltaTable(str(tmp_path / "statistics")).to_pyarrow_table().to_pylist()
    assert sorted(found, key=lambda r: r["epoch"]) == [{**row, "epoch": e} for e in range(16)]


# --- numbered tables in parts ------------------------------------------------------------------


def numbers(files: list[tuple[int, ...]]) -> Any:
    """A numbered table of these files, as its reader sees it: no Delta log."""
    schema = pa.schema([pa.field("n", pa.int64())])
    listed = [
        SimpleNamespace(
            path=f"f{i}",
            least=min(rows),
            greatest=max(rows),
            read=lambda _, rows=rows: pa.table({"n": rows}, schema=schema),
        )
        for i, rows in enumerate(files)
    ]
    last = max((n for rows in files for n in rows), default=-1)
    table = SimpleNamespace(
        name="t",
        place=SimpleNamespace(path=lambda: "/w/t"),
        definition=SimpleNamespace(file_schema=schema),
        files=lambda: listed,
        transaction=lambda _: last,
    )
    numbered = Numbered(table)  # type: ignore[arg-type]
    numbered._groups = lambda path: [  # type: ignore[method-assign]
        file for file in listed if file.path == path
    ]
    return numbered


def told(numbered: Any, after: int = -1) -> list[list[int]]:
    return [part["n"].to_pylist() for part in numbered.parts(after)]


def test_files_whose_numbers_lie_apart_are_read_one_after_another() -> None:
    table = numbers([(5, 6), (0, 2), (1, 3, 4), (7,)])
    assert told(table) == [[0, 1, 2, 3, 4], [5, 6], [7]]
    assert told(table, 2) == [[3, 4], [5, 6], [7]]
    assert table.read(2)["n"].to_pylist() == [3, 4, 5, 6, 7]
    assert told(table, 7) == []
    assert (told(numbers([])), numbers([]).read().num_rows) == ([], 0)


def test_a_compacted_file_of_a_numbered_table_has_small_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "TAIL_BYTES", 128)
    w = warehouse(tmp_path)
    for k in range(8):
        w.commands.append(command_of("seal", f"{k}", session=DAY))
    table = w.table("commands")
    merged = compaction.merge(table, table.files())
    assert merged is not None
    metadata = pq.ParquetFile(f"{tmp_path}/commands/{merged.path}").metadata
    sizes = [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)]
    assert (sum(sizes), max(sizes)) == (8, 1)
    assert [each.n for each in w.commands.read()] == list(range(8))


def test_of_a_large_file_only_the_row_groups_that_are_wanted_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The night's compaction makes one file of a journal: a start must not read all of it."""
    w = warehouse(tmp_path)
    for k in range(6):
        w.commands.append(*(command_of("seal", f"{k}-{i}", session=DAY) for i in range(2)))
    table = w.table("commands")
    everything = Numbered(table).read()
    [first, *_] = [f"{tmp_path}/commands/{file.path}" for file in table.files()]
    pq.write_table(everything, first, row_group_size=3, write_statistics=False)
    one = SimpleNamespace(path=Path(first).name, least=0, greatest=11)
    monkeypatch.setattr(table, "files", lambda: [one])
    read: list[int] = []
    original = pq.ParquetFile.read_row_group

    def counted(self: pq.ParquetFile, group: int, *more: Any, **names: Any) -> pa.Table:
        if names["columns"] != ["n"]:  # which numbers it has
            read.append(group)
        return original(self, group, *more, **names)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counted)
    assert Numbered(table).read(7, ["id"])["id"].to_pylist() == ["4-0", "4-1", "5-0", "5-1"]
    assert read == [2, 3]
    parts = list(Numbered(table).parts())
    assert [len(part) for part in parts] == [3, 3, 3, 3], "memory holds one group"
    assert pa.concat_tables(parts) == everything


def test_a_file_whose_numbers_are_not_known_is_read_with_all_others() -> None:
    table = numbers([(2,), (0, 1), (3,)])
    unknown = table._table.files()[1]
    unknown.least = unknown.greatest = None
    assert told(table, 0) == [[1, 2, 3]]


@pytest.mark.parametrize(
    ("files", "whole"),
    [
        ([(0, 1), (3,)], [[0, 1]]),
        ([(0, 1), (1, 2)], []),
        ([(1, 2)], []),
        ([(0,), (1,), (1,)], [[0]]),
    ],
)
def test_a_number_that_is_missing_or_doubled_is_told_where_it_is(
    files: list[tuple[int, ...]], whole: list[list[int]]
) -> None:
    found: list[pa.Table] = []
    with pytest.raises(DamagedTable, match=r"^/w/t should hold the numbers 0 to \d, each once"):
        found.extend(numbers(files).parts())
    assert [part["n"].to_pylist() for part in found] == whole


def test_numbers_that_are_missing_at_the_end_are_told() -> None:
    table = numbers([(0, 1), (2,)])
    table._table.transaction = lambda _: 5
    with pytest.raises(DamagedTable, match="the numbers 0 to 5"):
        told(table)
