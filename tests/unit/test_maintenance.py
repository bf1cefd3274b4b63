"""`spillway maintain` on real tables: whole sets of rows before and after, whatever comes between.

The warehouse holds one real day (spilled, cleaned by the real cleanup, called complete) and the
day after it, which is open: its epochs are written as the stream writes them.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from spillway import cli
from spillway.cleanup import work as cleanup_work
from spillway.cleanup.job import run_cleanup
from spillway.engine.join.results import file_schema
from spillway.engine.spill.spillfile import write_spill
from spillway.engine.wire.datafile import write_data_file
from spillway.maintenance import ATTEMPTS, LOG_ENTRIES, Report, maintain, shown
from spillway.protocol.redo import applies_of, redo
from spillway.storage import LocalFolder, folder
from spillway.tables import SessionEvent, Warehouse
from spillway.tables.compaction import FAN_IN, compact, deep_plan, drop, merge
from spillway.tables.damage import last_checkpoint
from spillway.tables.definitions import DATA_TABLES, NUMBERED_NAMES
from spillway.tables.log import Table
from spillway.tables.repair import repair
from spillway_schemas.filenames import cleanup_name, data_name
from spillway_schemas.journal import Epoch, FileRecord
from tests.integration.spilled_day import (
    DAY,
    NEXT,
    SPEC,
    Here,
    make_day,
    random_rows,
    rows_of,
)
from tests.racers import race

TABLES = ("journal", "commands", "sessions", "spill", "quarantine", "statistics", "results")
LATER_S = datetime(2036, 1, 1, tzinfo=UTC).timestamp()
"""When everything is old enough."""


def opened(root: Path) -> Warehouse:
    return Warehouse(str(root), fsync=False)


def record(w: Warehouse, table: str, epoch: int, session: str, name: str = "") -> FileRecord:
    """A file of one row (of one for each input, in `spill`), as a step writes it."""
    name = name or data_name(epoch, "aaaaaaaaaaaa", 0, 0)
    if table == "spill":
        rows = [rows_of([(epoch, (i, f"k{epoch}", epoch))], i) for i in range(3)]
        record = write_spill(w.folder("spill"), name, SPEC, session, epoch, [[r] for r in rows])
        assert record is not None
        return record
    at = datetime(2026, 1, 6, 15, tzinfo=UTC) + timedelta(seconds=epoch)
    row: dict[str, Any] = {"epoch": epoch, "written_at": at, "committed_at": at}
    if table == "results":
        row |= {f"{each.name}_{what}": epoch for each in SPEC.inputs for what in PLACE}
        row |= {"symbol": f"k{epoch}", "phase": "run-time"}
    elif table == "quarantine":
        row |= {"topic": "t", "partition": 0, "offset": epoch, "reason": "", "kafka_timestamp": at}
    else:
        row |= {"session_date": session, "slot": 0, "depth": 4, "value": 3, "bytes": 100}
        row |= {"rows": [1, 2, 3], "results": 5, "last_used_ms": 7, "resident": True}
    schema = file_schema(SPEC) if table == "results" else w.table(table).definition.file_schema
    rows = [pa.Table.from_pylist([{k: v for k, v in row.items() if k in schema.names}], schema)]
    partition = None if table == "statistics" else {"session_date": session}
    found = write_data_file(w.folder(table), table, name, schema, rows, partition)
    assert found is not None
    return found


PLACE = ("partition", "offset")


def run_epochs(w: Warehouse, count: int, *, apply: bool = True, upkeep: bool = False) -> None:
    """Epochs of the open day, committed as the driver commits them."""
    w.journal.refresh()
    last = w.journal.read()[-1]
    assert isinstance(last, Epoch)
    for n in range(1, count + 1):
        epoch = last.epoch + n
        files = [record(w, table, epoch, NEXT) for table in DATA_TABLES]
        w.sync_files(files)
        news = {"n": last.n + n, "epoch": epoch, "files": files, "cuts": [], "results": {NEXT: 1}}
        ended = {"seal": None, "sealed": None, "session": NEXT, "spilled_rows": {NEXT: 3}}
        entry = last.model_copy(update={**news, **ended})
        w.journal.append(entry)
        for each in applies_of(entry) if apply else ():
            w.apply(each.table, each.epoch, each.files)
        if upkeep:
            w.maintain()


def prove(w: Warehouse, *, complete: bool = True, days_ago: int = 0) -> None:
    """Calls the day cleaned (unless it is) and verified."""
    at = (datetime.now(UTC) - timedelta(days=days_ago)).isoformat()
    if DAY not in w.sessions.cleaned():
        w.sessions.append(SessionEvent(session=DAY, event="cleaned", written_at=at))
    w.sessions.append(SessionEvent(session=DAY, event="verified", complete=complete))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One finished day and some epochs of the next; every table has a few files."""
    place = tmp_path_factory.mktemp("made") / "w"
    day = make_day(str(place), random_rows(7, 150, 30, 3), depth=3)
    w = opened(place)
    w.sessions.append(SessionEvent(session=DAY, event="sealed"))
    statistics = [record(w, "statistics", epoch, DAY) for epoch in range(3)]
    for k, each in enumerate(statistics):  # as if the day's epochs had named them
        w.table("statistics").refresh()
        w.table("statistics").commit([each], "test", k)
    run_epochs(w, 4)
    assert run_cleanup(Here, day.warehouse(), SPEC, DAY).cleanup > 0
    prove(w)
    return place


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(made, tmp_path / "w"))


def contents(root: Path) -> dict[str, Counter[str]]:
    """Every row of every table."""
    found = {}
    for name in TABLES:
        files = pa.table(deltalake.DeltaTable(str(root / name)).get_add_actions()).to_pylist()
        found[name] = sum(
            (rows_in(root / name / f["path"], f.get("partition", {})) for f in files), Counter()
        )
    return found


KNOWN: dict[tuple[Path, int, int], Counter[str]] = {}
"""Rows of files that were read before: each test looks at most of them many times."""


def rows_in(path: Path, partition: dict[str, str]) -> Counter[str]:
    now = path.stat()
    key = (path, now.st_ino, now.st_size)
    if key not in KNOWN:
        rows = pq.ParquetFile(path).read().to_pylist()
        KNOWN[key] = Counter(repr(sorted({**row, **partition}.items())) for row in rows)
    return KNOWN[key]


def transactions(root: Path) -> dict[str, list[int | None]]:
    """What the protocol goes by."""
    apps = ("spillway", f"cleanup/{DAY}", *TABLES)
    tables = {name: deltalake.DeltaTable(str(root / name)) for name in TABLES}
    return {name: [table.transaction_version(a) for a in apps] for name, table in tables.items()}


def of_day(rows: Counter[str], day: str) -> Counter[str]:
    return Counter({row: n for row, n in rows.items() if f"('session_date', '{day}')" in row})


def without(before: dict[str, Counter[str]], day: str, *tables: str) -> dict[str, Counter[str]]:
    """What must be there when these tables have lost a day."""
    return {n: rows - of_day(rows, day) if n in tables else rows for n, rows in before.items()}


def tidy(root: Path, **more: Any) -> Report:
    """A run in which a proved day is old enough for everything, though files are not."""
    given = {"keep_spilled_days": 0, "keep_statistics_days": 0, **more}
    return maintain(opened(root), **given)


def on_disk(root: Path) -> dict[str, int]:
    return {str(p.relative_to(root)): p.stat().st_size for p in root.rglob("*") if p.is_file()}


def amounts(report: Report) -> dict[str, tuple[Any, ...]]:
    return {
        t.table: (t.dropped, t.dropped_rows, t.sessions, t.merged, t.into, t.deleted)
        for t in report.tables
    }


# --- what goes and what stays ----------------------------------------------------------------


def test_a_proved_day_loses_its_spilled_rows_and_figures_and_nothing_else(root: Path) -> None:
    before, at = contents(root), transactions(root)
    assert of_day(before["spill"], DAY)
    assert of_day(before["spill"], NEXT)
    assert of_day(before["statistics"], DAY)
    done = {each.table: each for each in tidy(root).tables}
    assert contents(root) == without(before, DAY, "spill", "statistics")
    assert transactions(root) == at
    assert done["spill"].sessions == done["statistics"].sessions == [DAY]
    assert done["spill"].dropped_rows == of_day(before["spill"], DAY).total() == 150
    assert done["results"].merged.files > done["results"].into == 1
    assert {name for name, each in done.items() if each.dropped.files} == {"spill", "statistics"}
    # The open day's files were left to the stream; what grows by the row is one file now.
    w = opened(root)
    assert Counter(f.sessions for f in w.files("results")) == {(DAY, DAY): 1, (NEXT, NEXT): 4}
    assert [len(w.files(name)) for name in sorted(NUMBERED_NAMES - {"commands"})] == [1, 1]
    assert w.check() == []
    assert w.journal.read(3) == w.journal.read()[3:]


def test_a_second_run_finds_nothing_to_do(root: Path) -> None:
    tidy(root)
    before = {name: opened(root).table(name).version for name in TABLES}
    again = tidy(root)
    assert all(not (t.dropped.files or t.merged.files or t.deleted.files) for t in again.tables)
    assert {name: opened(root).table(name).version for name in TABLES} == before


def test_cleanup_and_the_stream_go_on_afterwards(root: Path) -> None:
    tidy(root)
    tidy(root, now_s=LATER_S)  # vacuum has taken the files
    before = contents(root)
    again = run_cleanup(lambda: pytest.fail("there is nothing to compute"), opened(root), SPEC, DAY)
    assert again.already
    assert again.cleanup > 0
    w = opened(root)
    assert redo(w.journal.read(), w.applied_all()) == ()
    run_epochs(w, 2, upkeep=True)
    after = contents(root)
    for name in DATA_TABLES:
        assert before[name] <= after[name]
        assert (after[name] - before[name]).total() == 2 * (3 if name == "spill" else 1)


UNPROVED: dict[str, list[dict[str, Any]]] = {
    "not cleaned": [{"event": "verified", "complete": True}],
    "not verified": [{"event": "cleaned"}],
    "not complete": [{"event": "cleaned"}, {"event": "verified", "complete": False}],
    "verified before it was cleaned": [
        {"event": "verified", "complete": True},
        {"event": "cleaned"},
    ],
    "found wanting later": [
        {"event": "cleaned"},
        {"event": "verified", "complete": True},
        {"event": "verified", "complete": False},
    ],
}


@pytest.mark.parametrize("events", UNPROVED.values(), ids=UNPROVED)
def test_a_day_that_is_not_proved_keeps_everything(
    tmp_path: Path, events: list[dict[str, Any]]
) -> None:
    make_day(str(tmp_path), random_rows(7, 60, 9, 2), depth=3)
    w = opened(tmp_path)
    for each in events:
        w.sessions.append(SessionEvent(session=DAY, **each))
    before = contents(tmp_path)
    assert of_day(before["spill"], DAY)
    tidy(tmp_path)
    tidy(tmp_path, now_s=LATER_S)
    assert contents(tmp_path) == before
    # Nothing but what these events are: a cleanup is said to be done, and none was.
    cleaned = any(each["event"] == "cleaned" for each in events)
    assert ["which is cleaned" in each for each in opened(tmp_path).check()] == [True] * cleaned


def test_days_count_from_the_cleanup(tmp_path: Path) -> None:
    make_day(str(tmp_path), random_rows(7, 60, 9, 2), depth=3)
    w = opened(tmp_path)
    prove(w, days_ago=5)
    before = contents(tmp_path)
    tidy(tmp_path, keep_spilled_days=6)
    assert contents(tmp_path) == before
    tidy(tmp_path, keep_spilled_days=5)
    assert contents(tmp_path) == without(before, DAY, "spill")


def test_a_dry_run_changes_nothing_and_says_what_a_run_does(root: Path) -> None:
    old = opened(root)
    record(
        old, "results", 1, DAY, name=data_name(1, "105710571057", 0, 0)
    )  # an attempt that nobody names
    for path in root.rglob("*-105710571057-*"):
        os.utime(path, (0, 0))
    before = on_disk(root)
    would = tidy(root, dry_run=True)
    assert on_disk(root) == before
    done = tidy(root)
    assert amounts(would) == amounts(done)
    assert done.tables[-1].deleted.files == 1


@pytest.mark.server
def test_each_file_of_statistics_is_of_one_day(root: Path) -> None:
    w = opened(root)
    run_epochs(w, FAN_IN)
    assert compact(w.table("statistics")) > FAN_IN
    assert {file.sessions for file in w.files("statistics")} == {(DAY, DAY), (NEXT, NEXT)}
    before = contents(root)
    tidy(root)
    assert contents(root) == without(before, DAY, "spill", "statistics")


# --- files -----------------------------------------------------------------------------------


def test_dropped_files_stay_for_readers_until_they_are_old(root: Path) -> None:
    w = opened(root)
    reader = deltalake.DeltaTable(str(root / "spill"))
    rows = pa.table(reader.to_pyarrow_table()).num_rows
    for path in root.rglob("*.parquet"):
        os.utime(path, (0, 0))  # written long ago, removed now
    done = {each.table: each for each in tidy(root).tables}
    assert done["spill"].waiting.files == done["spill"].dropped.files > 0
    assert done["spill"].deleted.files == 0
    assert pa.table(reader.to_pyarrow_table()).num_rows == rows
    assert w.check() == []
    later = {each.table: each for each in tidy(root, now_s=LATER_S).tables}
    assert later["spill"].deleted == done["spill"].dropped
    assert later["results"].deleted == done["results"].merged
    for name in TABLES:
        named = {file.path for file in opened(root).files(name)}
        found = {str(p.relative_to(root / name)) for p in (root / name).rglob("*.parquet")}
        assert {p for p in found if "_delta_log" not in p} == named


@pytest.mark.server
@pytest.mark.parametrize("kept", [False, True])
def test_a_log_of_many_entries_or_removals_gets_a_checkpoint(root: Path, kept: bool) -> None:
    """Kills: a night after which each start reads all that was merged. `kept`: just before it."""
    run_epochs(opened(root), LOG_ENTRIES)
    prove(opened(root))
    w = opened(root)
    for name in TABLES if kept else ():
        w.table(name).checkpoint(1)
    before = contents(root)
    first = checkpoints(root)
    tidy(root, dry_run=True)
    assert checkpoints(root) == first
    report = tidy(root)
    versions = {name: deltalake.DeltaTable(str(root / name)).version() for name in TABLES}
    lost = {t.table for t in report.tables if t.dropped.files + t.merged.files >= LOG_ENTRIES}
    grown = {name for name in TABLES if versions[name] - max(first[name], 0) >= LOG_ENTRIES}
    assert "journal" in lost
    assert (grown == set()) == kept
    for name in TABLES:
        wanted = versions[name] if name in lost | grown else first[name]
        assert checkpoints(root)[name] == wanted, name
    assert "commands" not in lost | grown
    assert contents(root) == without(before, DAY, "spill", "statistics")
    assert opened(root).check() == []
    assert repair(str(root)) == []
    gone = {each.table: each.deleted.files for each in tidy(root, now_s=LATER_S).tables}
    assert gone["journal"] >= LOG_ENTRIES  # the checkpoint says when they were merged


def checkpoints(root: Path) -> dict[str, int]:
    return {name: last_checkpoint(folder(str(root / name))) for name in TABLES}


def test_what_may_still_be_committed_is_not_deleted(root: Path) -> None:
    w = opened(root)
    run_epochs(w, 1, apply=False)  # journaled and owed to every table
    last = w.journal.read()[-1]
    assert isinstance(last, Epoch)
    running = record(w, "results", last.epoch + 1, NEXT)  # not journaled yet
    cleaning = record(w, "results", last.epoch, NEXT, name=cleanup_name(NEXT, 0, "aaaaaaaaaaaa", 0))
    (root / "results" / "notes.txt").write_text("mine")
    report = tidy(root, now_s=LATER_S)
    assert report.tables[-1].foreign == ["notes.txt"]
    assert "results/notes.txt" in str(shown(report).caption)
    w.journal.refresh()
    for each in redo(w.journal.read(), w.applied_all()):
        w.apply(each.table, each.epoch, each.files)
    news = {"n": last.n + 1, "epoch": last.epoch + 1, "files": [running]}
    w.journal.append(last.model_copy(update=news))
    w.apply("results", last.epoch + 1, [running])
    w.apply_cleanup(NEXT, {0: [cleaning]})
    assert opened(root).check() == []


# --- interruptions ---------------------------------------------------------------------------


class Killed(BaseException):
    pass


@pytest.mark.server
def test_killed_anywhere_and_run_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dies before and after each commit and each deletion in turn, on one warehouse."""
    before, at = contents(root), transactions(root)
    commit, delete = Table.commit, LocalFolder.delete
    left = [0]

    def counted(work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **more: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise Killed
            found = work(*given, **more)
            left[0] -= 1
            if left[0] == 0:
                raise Killed
            return found

        return run

    monkeypatch.setattr(Table, "commit", counted(commit))
    monkeypatch.setattr(LocalFolder, "delete", counted(delete))
    wanted = without(before, DAY, "spill", "statistics")
    deaths = 0
    for point in (1, 2, 3, 4, 1, 2, 1, 2, 3, 1, 2, 4):
        left[0] = point
        try:
            tidy(root, now_s=LATER_S, min_age_s=0)
        except Killed:
            deaths += 1
        now = contents(root)
        assert transactions(root) == at
        assert {n: rows for n, rows in now.items() if n not in ("spill", "statistics")} == {
            n: rows for n, rows in before.items() if n not in ("spill", "statistics")
        }
        for name in ("spill", "statistics"):  # a day is there, or it is not
            assert now[name] in (before[name], wanted[name])
        assert opened(root).check() == []
    assert deaths > 6
    monkeypatch.undo()
    tidy(root, now_s=LATER_S)
    assert contents(root) == wanted
    assert redo(opened(root).journal.read(), opened(root).applied_all()) == ()


def test_a_torn_removal_is_made_again(root: Path) -> None:
    """A power loss may take the end of a table's log: the removal, then the epoch before it."""
    before = contents(root)
    tidy(root)
    log = root / "spill" / "_delta_log"
    for entries in (1, 2):
        for path in sorted(log.glob("*.json"))[-entries:]:
            path.write_bytes(b"")
        assert repair(str(root))
        w = opened(root)
        for each in redo(w.journal.read(), w.applied_all()):
            w.apply(each.table, each.epoch, each.files)
        assert contents(root)["spill"] == before["spill"]
        tidy(root)
        assert contents(root) == without(before, DAY, "spill", "statistics")
        assert opened(root).check() == []


# --- others at the same time -----------------------------------------------------------------


def between(monkeypatch: pytest.MonkeyPatch, do: Callable[[], None]) -> list[str]:
    """Does something between the look and the commit of everything that removes files."""
    met: list[str] = []
    commit = Table.commit

    def first_the_other(table: Table, *given: Any, **more: Any) -> None:
        if more.get("removes"):
            met.append(table.name)
            with monkeypatch.context() as patch:
                patch.setattr(Table, "commit", commit)
                do()
        commit(table, *given, **more)

    monkeypatch.setattr(Table, "commit", first_the_other)
    return met


def test_the_stream_commits_between_look_and_commit(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, before = opened(root), contents(root)
    met = between(monkeypatch, lambda: run_epochs(stream, 1))
    report = tidy(root)
    assert report.notes == []
    assert {"spill", "statistics", "results", "journal"} <= set(met)
    monkeypatch.undo()
    wanted = without(before, DAY, "spill", "statistics")
    after = contents(root)
    for name in DATA_TABLES:
        assert wanted[name] <= after[name]
        assert (after[name] - wanted[name]).total() == len(met) * (3 if name == "spill" else 1)
    assert [e.n for e in stream.journal.read()] == list(range(stream.journal.last_n() + 1))


def test_a_run_comes_between_the_stream_s_look_and_its_commit(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """delta-rs refuses an append after a removal that it has not seen: the stream looks again."""
    stream, before = opened(root), contents(root)
    commits: Counter[str] = Counter()
    commit = Table.commit

    def after_a_run(table: Table, files: Any, app: str, *given: Any, **more: Any) -> None:
        commits[table.name] += 1
        if commits.total() == 1:
            with monkeypatch.context() as patch:
                patch.setattr(Table, "commit", commit)
                tidy(root)
        commit(table, files, app, *given, **more)

    for table in DATA_TABLES:  # the first of these is journaled; each apply meets a run
        wanted = without(contents(root), DAY, "spill", "statistics")
        run_epochs(stream, 1, apply=False)
        last = stream.journal.read()[-1]
        assert isinstance(last, Epoch)
        commits.clear()
        with monkeypatch.context() as patch:
            patch.setattr(Table, "commit", after_a_run)
            for each in sorted(applies_of(last), key=lambda each: each.table != table):
                stream.apply(each.table, each.epoch, each.files)
        after = contents(root)
        for name in DATA_TABLES:
            assert wanted[name] <= after[name]
            assert (after[name] - wanted[name]).total() == (3 if name == "spill" else 1)
        if table == "spill":  # the first run dropped something
            assert commits == Counter({"spill": 2, **dict.fromkeys(DATA_TABLES[1:], 1)})
    assert of_day(before["spill"], DAY)
    assert [e.n for e in stream.journal.read()] == list(range(stream.journal.last_n() + 1))


def test_the_journal_s_driver_is_not_refused(root: Path) -> None:
    """It would take that for another driver, and end itself: only merging touches the journal."""
    driver = opened(root)
    last = driver.journal.read()[-1]
    assert isinstance(last, Epoch)
    assert [each.merged.files for each in tidy(root).tables if each.table == "journal"] == [10]
    driver.journal.append(last.model_copy(update={"n": last.n + 1, "epoch": last.epoch + 1}))
    with pytest.raises(ValueError, match="journal"):
        drop(driver.table("journal"), driver.files("journal"))


def test_the_stream_compacts_between_look_and_commit(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The night's commit is refused, looks again and goes on; every row is there once."""
    before = contents(root)
    others: list[int] = []

    def rival() -> None:
        table = opened(root).table("results")
        if len(others) < 2:
            others.append(compact(table, fan_in=2))

    between(monkeypatch, rival)
    report = tidy(root)
    monkeypatch.undo()
    assert sum(others) > 0
    assert report.notes == []
    assert contents(root) == without(before, DAY, "spill", "statistics")


def test_a_table_is_left_to_others_in_the_end(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(root)
    tries = []

    def refused(table: Table, files: Any) -> bool:
        tries.append(table.name)
        return False

    monkeypatch.setattr("spillway.maintenance.drop", refused)
    report = tidy(root)
    assert Counter(tries) == {"spill": ATTEMPTS, "statistics": ATTEMPTS}
    assert [note.split(":")[0] for note in report.notes] == ["spill", "statistics"]
    assert contents(root) == before


@pytest.mark.parametrize("second", [merge, drop])
def test_files_that_somebody_has_removed_are_not_removed_again(
    root: Path, second: Callable[..., Any]
) -> None:
    """Seen before, gone now: with a newer view the commit itself would conflict with nothing."""
    before = contents(root)
    table = opened(root).table("results")
    [group] = deep_plan(table.files(), {DAY})
    assert merge(opened(root).table("results"), group) is not None
    table.refresh()
    assert not second(table, group)
    assert contents(root) == before


@pytest.mark.parametrize(("first", "second"), [(merge, drop), (drop, merge)])
def test_dropping_and_merging_the_same_files_at_once(
    root: Path, first: Callable[..., Any], second: Callable[..., Any]
) -> None:
    """The stream compacts what the night drops: of the two that saw the same, one is refused."""
    before = contents(root)["statistics"]
    one, other = (opened(root).table("statistics") for _ in range(2))
    files = [file for file in one.files() if file.sessions == (DAY, DAY)]
    assert first(one, files)
    assert not second(other, files)
    gone = of_day(before, DAY) if first is drop else Counter()
    assert contents(root)["statistics"] == before - gone


def _tidy(root: str, rounds: int) -> None:
    for _ in range(rounds):
        maintain(Warehouse(root, fsync=False), keep_spilled_days=0, keep_statistics_days=0)


def _stream(root: str, epochs: int) -> None:
    """A stream beside it, with its own upkeep: nothing may make it fail."""
    run_epochs(Warehouse(root, fsync=False), epochs, upkeep=True)


@pytest.mark.server
def test_two_runs_and_a_stream_at_once(root: Path) -> None:
    before, at = contents(root), transactions(root)
    epochs = 24
    where = str(root)
    race((_tidy, (where, 3)), (_tidy, (where, 3)), (_stream, (where, epochs)))
    after, wanted = contents(root), without(before, DAY, "spill", "statistics")
    w = opened(root)
    assert w.journal.last_n() == at["journal"][TABLES.index("journal") + 2] + epochs  # type: ignore[operator]
    for name in DATA_TABLES:
        assert wanted[name] <= after[name]
        assert (after[name] - wanted[name]).total() == epochs * (3 if name == "spill" else 1)
        assert w.applied(name) == w.journal.read()[-1].epoch  # type: ignore[union-attr]
    assert w.cleanup_applied(DAY) == at["results"][1]
    assert w.check() == []


def test_a_cleanup_that_another_has_overtaken_asks_for_no_spilled_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked before; the other has finished, the day is proved and its rows are dropped."""
    day = make_day(str(tmp_path), random_rows(7, 60, 9, 2), depth=3)
    wait = cleanup_work._wait_for_tables

    def overtaken(*given: Any) -> None:
        monkeypatch.setattr(cleanup_work, "_wait_for_tables", wait)
        wait(*given)
        run_cleanup(Here, day.warehouse(), SPEC, DAY)
        prove(opened(tmp_path))
        tidy(tmp_path)

    monkeypatch.setattr(cleanup_work, "_wait_for_tables", overtaken)
    assert run_cleanup(Here, day.warehouse(), SPEC, DAY).already
    assert not opened(tmp_path).files("spill")


# --- the command line ------------------------------------------------------------------------


def command(root: Path, *arguments: str) -> Any:
    given = ["--set", f"warehouse.root={root}", "--set", "warehouse.fsync=false", "maintain"]
    done = CliRunner().invoke(cli.app, [*given, *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_command_says_what_it_does(root: Path) -> None:
    before = on_disk(root)
    would = json.loads(command(root, "--json", "--dry-run", "--keep-spilled-days", "0"))
    assert on_disk(root) == before
    assert would["dry_run"] is True
    assert (would["keep_spilled_days"], would["keep_statistics_days"]) == (0, 30)
    tables = {each["table"]: each for each in would["tables"]}
    assert tables["spill"]["sessions"] == [DAY]
    assert tables["statistics"]["dropped"] == {"files": 0, "bytes": 0}
    kept = json.loads(command(root, "--json"))  # as the settings say: a week
    assert kept["keep_spilled_days"] == 7
    assert not any(each["dropped"]["files"] for each in kept["tables"])
    text = command(root, "--keep-spilled-days", "0")
    assert "This was done" in text
    assert f"of {DAY}" in text
