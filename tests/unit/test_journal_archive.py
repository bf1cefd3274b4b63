"""Archived journal entries: what moves, in which order, and who needs them afterwards."""

from __future__ import annotations

import hashlib
import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from spillway import cli
from spillway.maintenance import ATTEMPTS, Report, maintain, shown
from spillway.protocol.seal import not_sealed
from spillway.protocol.state import fold, replay
from spillway.readmodel.cache import ReadCache, caught_up
from spillway.storage import LocalFolder
from spillway.tables import DamagedArchive, DamagedTable, SessionEvent, Warehouse
from spillway.tables.archive import Archive
from spillway.tables.compaction import cut, merge
from spillway.tables.log import Table
from spillway.tables.repair import repair
from spillway_schemas.filenames import archive_name, archive_origin
from spillway_schemas.journal import Claim, Epoch
from tests.archived_journal import DAYS, filled, journal_of, prove, seals, settle
from tests.protocol_entries import file
from tests.report_journal import model_of

ENTRIES = journal_of(["eexfc", "fee", "eoe", "cef", "eec"])
ENDS = seals(ENTRIES)
LAST = ENDS[DAYS[2]]
"""Entry of the last seal that may be archived: there are four, and the last stays."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four sessions that are proved, and an open one."""
    root = tmp_path_factory.mktemp("made") / "w"
    prove(filled(root, ENTRIES), DAYS[:4])
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "w"))


def opened(root: Path) -> Warehouse:
    return Warehouse(str(root), fsync=False)


def tidy(root: Path, **more: Any) -> Report:
    given: dict[str, Any] = {"keep_spilled_days": 0, "keep_statistics_days": 0}
    return maintain(opened(root), **{**given, "archive_journal_days": 0, **more})


def journal_of_report(report: Report) -> Any:
    return next(each for each in report.tables if each.table == "journal")


def archives(root: Path) -> dict[str, Path]:
    """The files of the archive, by session."""
    found = {archive_origin(path.name): path for path in (root / "archive").glob("*")}
    assert None not in found
    return {each.session: path for each, path in found.items() if each}


def without_caches(root: Path) -> Warehouse:
    for name in ("snapshots", "readmodels"):
        shutil.rmtree(root / name, ignore_errors=True)
    return opened(root)


def contents(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


# --- what moves ------------------------------------------------------------------------------


def test_sessions_that_are_proved_move_to_a_file_each_and_the_last_stays(root: Path) -> None:
    """Kills: the last sealed session moves too, all sessions in one file."""
    done = journal_of_report(tidy(root))
    assert done.sessions == sorted(archives(root)) == DAYS[:3]
    assert done.archived_rows == LAST + 1
    sizes = [path.stat().st_size for path in archives(root).values()]
    assert (done.archived.files, done.archived.bytes) == (3, sum(sizes))
    assert opened(root).journal.first_n() == LAST + 1
    assert without_caches(root).journal.read() == ENTRIES
    again = journal_of_report(tidy(root))
    assert (again.archived.files, again.archived_rows, again.sessions) == (0, 0, [])
    assert len(archives(root)) == 3


def test_never_is_never(root: Path) -> None:
    """The default: no run touches the journal's rows."""
    report = maintain(opened(root), keep_spilled_days=0, keep_statistics_days=0)
    assert report.archive_journal_days == "never"
    assert not (root / "archive").exists()
    assert opened(root).journal.first_n() == 0


def test_days_count_from_the_cleanup(root: Path) -> None:
    assert journal_of_report(tidy(root, archive_journal_days=1)).archived_rows == 0
    assert opened(root).journal.first_n() == 0


@pytest.mark.parametrize(
    ("events", "moved", "noted"),
    [
        ([("cleaned", None)], [], False),
        ([("verified", True)], [], False),
        ([("verified", False)], [], True),
    ],
    ids=["nothing is proved", "nothing is cleaned", "one in the middle is not complete"],
)
def test_a_session_that_is_not_proved_keeps_the_later_ones(
    tmp_path: Path, events: list[tuple[Any, bool | None]], moved: list[str], noted: bool
) -> None:
    """What stays in the table is the end of the journal. Kills: each proved session moves."""
    warehouse = filled(tmp_path / "w", ENTRIES)
    if noted:
        prove(warehouse, DAYS[:4])
    for event, complete in events:
        for day in DAYS[1:2] if noted else DAYS[:4]:
            told = SessionEvent(session=day, event=event, complete=complete)
            warehouse.sessions.append(told)
    report = tidy(tmp_path / "w")
    assert journal_of_report(report).sessions == moved
    notes = [note for note in report.notes if note.startswith(f"journal: {DAYS[1]} is not proved")]
    assert len(notes) == len(report.notes) == noted


def test_what_an_open_session_carries_is_kept(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restore reads the epochs of rows that are carried over from days before. Kills: a session
    moves that is proved, and still read."""
    epochs = [each for each in ENTRIES if isinstance(each, Epoch)]
    [first] = [each.epoch for each in epochs if each.sealed and each.sealed.session == DAYS[0]]
    monkeypatch.setattr("spillway.maintenance.history_begins", lambda state: first)
    assert journal_of_report(tidy(root)).sessions == DAYS[:1]


def test_what_a_table_lacks_may_be_redone_from_the_journal(tmp_path: Path) -> None:
    """Kills: entries move before all tables have what they name."""
    warehouse = filled(tmp_path / "w", ENTRIES)
    prove(warehouse, DAYS[:4])
    n = ENDS[DAYS[1]]
    entry = ENTRIES[n]
    assert isinstance(entry, Epoch)
    owed = ENTRIES[: n + 1]
    files = [file("results", entry.epoch)]
    owed[n] = entry.model_copy(update={"files": files})
    behind = filled(tmp_path / "behind", [*owed, *ENTRIES[n + 1 :]])
    prove(behind, DAYS[:4])
    shutil.rmtree(tmp_path / "behind" / "results")
    shutil.copytree(tmp_path / "w" / "results", tmp_path / "behind" / "results")
    table = opened(tmp_path / "behind").table("results")
    log = Path(table.place.path()) / "_delta_log"
    sorted(log.glob("*.json"))[-1].unlink()  # the transaction of the last epoch
    assert opened(tmp_path / "behind").applied("results") == -1
    report = tidy(tmp_path / "behind")
    assert journal_of_report(report).sessions == []
    (note,) = report.notes
    assert f"the entries from {DAYS[0]} on stay, since tables lack what they name" in note
    settle(opened(tmp_path / "behind"), ENTRIES)
    assert journal_of_report(tidy(tmp_path / "behind")).sessions == DAYS[:3]


def test_a_dry_run_says_what_a_run_does_and_changes_nothing(root: Path) -> None:
    before = contents(root)
    would = tidy(root, dry_run=True)
    assert contents(root) == before
    done = tidy(root)
    one, other = journal_of_report(would), journal_of_report(done)
    assert (one.sessions, one.archived_rows) == (other.sessions, other.archived_rows)
    assert one.archived.files == other.archived.files == 3
    assert one.archived.bytes == 0


def test_the_command_shows_what_moves(root: Path) -> None:
    def command(*more: str) -> str:
        given = ["--set", f"warehouse.root={root}", "maintain", *more]
        found = CliRunner().invoke(cli.app, given)
        assert found.exit_code == 0, found.output
        return found.output

    entries = f"{LAST + 1} entries of {DAYS[0]} to {DAYS[2]}"
    assert "archived" in command("--dry-run", "--archive-journal-days", "0")
    assert "archived" not in command("--dry-run")
    assert entries in cells(tidy(root, dry_run=True)), "without bytes, which nobody knows yet"
    would = json.loads(command("--dry-run", "--json", "--archive-journal-days", "0"))
    assert would["archive_journal_days"] == 0
    [journal] = [each for each in would["tables"] if each["table"] == "journal"]
    assert journal["archived_rows"] == LAST + 1
    assert any(cell.startswith(f"{entries} into 3 files, ") for cell in cells(tidy(root)))


def cells(report: Report) -> list[str]:
    return [str(cell) for column in shown(report).columns for cell in column.cells]


# --- the order, and interruptions --------------------------------------------------------------


class Killed(BaseException):
    pass


def test_an_archive_is_durable_before_an_entry_leaves_the_table(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with `warehouse.fsync` off. Kills: the cut first, an archive that is not synced."""
    synced: list[str] = []
    cuts: list[list[str]] = []
    sync, commit = LocalFolder.sync, Table.commit

    def seen(self: LocalFolder, names: Any) -> None:
        names = list(names)
        for archived in filter(None, map(archive_origin, names)):
            data = self.read(archive_name(archived))
            assert hashlib.sha256(data).hexdigest() == archived.digest
        sync(self, names)
        synced.extend(names)

    def committed(self: Table, *given: Any, **more: Any) -> None:
        if self.name == "journal" and more.get("removes"):
            cuts.append([name for name in synced if archive_origin(name)])
        commit(self, *given, **more)

    monkeypatch.setattr(LocalFolder, "sync", seen)
    monkeypatch.setattr(Table, "commit", committed)
    tidy(root)
    assert [archive_origin(name).session for name in cuts[0]] == DAYS[:3]  # type: ignore[union-attr]
    assert set(cuts[0]) == {path.name for path in archives(root).values()}


@pytest.mark.server  # it takes long
def test_killed_anywhere_an_entry_is_in_both_places_or_in_the_archive(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after each write, sync and commit in turn, and in the middle of a write."""
    left = [0]

    def step() -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Killed

    def counted(work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **more: Any) -> Any:
            step()
            found = work(*given, **more)
            step()
            return found

        return run

    write = LocalFolder.write_new

    def cut_short(self: LocalFolder, name: str, data: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            write(self, name, bytes(data)[:-9])
            raise Killed
        write(self, name, data)

    monkeypatch.setattr(LocalFolder, "write_new", counted(cut_short))
    monkeypatch.setattr(LocalFolder, "sync", counted(LocalFolder.sync))
    monkeypatch.setattr(Table, "commit", counted(Table.commit))
    places = []
    for point in range(1, 100):
        left[0] = point
        copy = Path(shutil.copytree(root, root.parent / f"w{point}"))
        died = False
        try:
            tidy(copy)
        except Killed:
            died = True
        left[0] = 0
        assert without_caches(copy).journal.read() == ENTRIES
        assert opened(copy).check() == []
        places.append(opened(copy).journal.first_n())
        tidy(copy)
        assert without_caches(copy).journal.read() == ENTRIES
        assert opened(copy).journal.first_n() == LAST + 1
        shutil.rmtree(copy)
        if not died or places[-1]:
            break
    assert places.count(0) > 10
    assert places[-1] == LAST + 1


def test_one_that_was_cut_short_is_written_again_and_passed_over(root: Path) -> None:
    """Kills: an archive is taken by its name alone."""
    journal = opened(root).journal
    parts = journal.held(
        [entry.sealed for entry in ENTRIES if isinstance(entry, Epoch) and entry.sealed][:1]
    )
    archive = Archive(LocalFolder(str(root / "archive")))
    archive.keep(*parts[0], lambda: journal._up_to(parts[0]))
    [path] = archives(root).values()
    path.write_bytes(path.read_bytes()[:-1])
    tidy(root)
    assert len(list((root / "archive").iterdir())) == 4
    assert without_caches(root).journal.read() == ENTRIES


def test_a_run_that_was_killed_is_not_written_twice(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("spillway.tables.journal.cut", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            tidy(root)
    before = set(archives(root).values())
    tidy(root)
    assert set((root / "archive").iterdir()) == before


def test_a_torn_cut_is_taken_back_by_repair(root: Path) -> None:
    """A power loss without `warehouse.fsync` may take the commit: then both places have them."""
    tidy(root)
    log = root / "journal" / "_delta_log"
    while opened(root).journal.first_n():
        sorted(log.glob("*.json"))[-1].write_bytes(b"")
        assert repair(str(root))
    assert without_caches(root).journal.read() == ENTRIES
    tidy(root)
    assert without_caches(root).journal.read() == ENTRIES
    assert opened(root).journal.first_n() == LAST + 1


@pytest.mark.parametrize("caches", [True, False])
def test_repair_knows_the_archived_sessions(root: Path, caches: bool) -> None:
    """A torn entry may go: the sessions that `sessions` knows are in the archive.

    Kills: repair reads the table alone.
    """
    tidy(root)
    warehouse = opened(root) if caches else without_caches(root)
    warehouse.journal.append(_next())
    sorted((root / "journal" / "_delta_log").glob("*.json"))[-1].write_bytes(b"")
    assert repair(str(root))
    assert without_caches(root).journal.read() == ENTRIES


def _next() -> Claim:
    last = ENTRIES[-1]
    return Claim(n=last.n + 1, term=99, driver="d", written_at="2026-01-05T20:00:00+00:00")


# --- damage ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["changed", "gone"])
def test_a_damaged_archive_is_named_to_who_needs_it_and_to_nobody_else(
    root: Path, how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Kills: entries of a damaged archive are believed; a start, a look that reads all."""
    monkeypatch.setenv("SPILLWAY_VAR", str(tmp_path / "var"))
    tidy(root)
    path = archives(root)[DAYS[1]]
    if how == "gone":
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    warehouse = opened(root)
    known, rest = warehouse.journal.read_on(warehouse.applied_all())
    assert known is not None
    assert replay_on(known, rest) == replay(ENTRIES)
    assert caught_up(warehouse, ReadCache()).state == replay(ENTRIES)
    assert warehouse.check(thorough=False) == []
    warehouse.journal.append(_next())
    said = str(path) if how == "changed" else f"has no file with entry {ENDS[DAYS[0]] + 1}"
    [first, second, *_] = [e.sealed for e in ENTRIES if isinstance(e, Epoch) and e.sealed]
    for needs in (
        warehouse.check,
        warehouse.journal.read,
        lambda: warehouse.journal.read_session(second),
    ):
        with pytest.raises(DamagedArchive, match="Restore it from a backup") as caught:
            needs()
        assert said in str(caught.value)
    whole = without_caches(root)
    with pytest.raises(DamagedArchive):
        whole.journal.state()
    assert first.session == DAYS[0]


def test_a_bit_that_is_wrong_anywhere_in_an_archive_is_told(root: Path) -> None:
    tidy(root)
    journal, rng = opened(root).journal, random.Random(60)
    paths = list(archives(root).values())
    for _ in range(60):
        path = rng.choice(paths)
        whole = path.read_bytes()
        data = bytearray(whole)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        with pytest.raises(DamagedArchive, match=re.escape(str(path))):
            journal.read()
        path.write_bytes(whole)
    assert journal.read() == ENTRIES


def replay_on(state: Any, entries: Any) -> Any:
    for entry in entries:
        state = fold(state, entry)
    return state


def test_of_several_files_a_whole_one_is_read(root: Path) -> None:
    tidy(root)
    path = archives(root)[DAYS[0]]
    made = archive_origin(path.name)
    assert made is not None
    for attempt in ("0" * 12, "f" * 12):  # one of them comes before it
        path.with_name(archive_name(made._replace(attempt=attempt))).write_bytes(b"no")
    assert without_caches(root).journal.read() == ENTRIES


@pytest.mark.parametrize("steps", [["eexfc", "fee"], ["eexf", "feec"]])
def test_files_of_another_history_are_not_taken_for_the_journals(
    steps: list[str], root: Path, tmp_path: Path
) -> None:
    """Kills: a file is known by its numbers alone. A backup was restored over the warehouse: the
    days after it were made again, and their entries have the numbers of those in the archive."""
    tidy(root)
    mine = journal_of([*steps, "eoe", "cef", "eec"], seed=5)
    restored = tmp_path / "restored"
    prove(filled(restored, mine), DAYS[:4])
    shutil.copytree(root / "archive", restored / "archive")
    with pytest.raises(DamagedArchive, match=r"has other entries than the journal's .* Move it to"):
        tidy(restored)
    assert without_caches(restored).journal.read() == mine
    for path in (restored / "archive").iterdir():
        path.rename(tmp_path / path.name)
    tidy(restored)
    assert without_caches(restored).journal.read() == mine
    assert sorted(archives(restored)) == DAYS[:3]


def test_numbers_that_neither_place_has_are_missed(root: Path) -> None:
    """Kills: the archive's rows are not counted."""
    tidy(root)
    table = opened(root).table("journal")
    assert cut(table, LAST + 3)
    with pytest.raises((DamagedArchive, DamagedTable)):
        without_caches(root).journal.read()


def test_caches_are_made_before_entries_leave(root: Path, tmp_path: Path) -> None:
    """Kills: entries move though a start would need them. They have been lost before."""
    without_caches(root)
    tidy(root)
    shutil.rmtree(root / "archive")
    warehouse = opened(root)
    assert warehouse.journal.state() == replay(ENTRIES)
    assert caught_up(warehouse, ReadCache()) is not None


# --- who reads what ----------------------------------------------------------------------------


def test_who_reads_the_end_opens_no_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: the archive is listed by every reader; a session moves before the next is proved."""
    root = tmp_path / "w"
    prove(filled(root, ENTRIES), DAYS[:3])
    assert journal_of_report(tidy(root)).sessions == DAYS[:2]
    long_ago = ReadCache(model_of(ENTRIES[:3]))

    def opens(*_: Any) -> None:
        pytest.fail("an archive is opened")

    monkeypatch.setattr(Archive, "known", opens)
    warehouse = opened(root)
    state = warehouse.journal.state()
    assert state == replay(ENTRIES)
    assert warehouse.journal.read_on(warehouse.applied_all())[0] is not None
    assert warehouse.journal.read(LAST + 1) == ENTRIES[LAST + 1 :]
    assert len(list(warehouse.journal.heads(LAST + 1))) == len(ENTRIES) - LAST - 1
    assert warehouse.journal.last_epoch() == state.epoch
    warehouse.journal.keep(state)
    assert not_sealed(state, DAYS[0], warehouse.commands.unseen(state)) == ""
    [*_, last] = [e.sealed for e in ENTRIES if isinstance(e, Epoch) and e.sealed]
    assert last.base < ENTRIES[LAST].epoch, "its first rows were read before the last seal"
    assert warehouse.journal.read_session(last)[-1] == ENTRIES[-1]
    assert warehouse.settled().epoch == state.epoch
    assert warehouse.check(thorough=False) == []
    # A machine that has not looked for so long begins with what the warehouse keeps.
    assert caught_up(warehouse, long_ago).state == state
    tidy(root)


# --- others at the same time -------------------------------------------------------------------


def test_a_driver_that_looked_before_is_not_refused(root: Path) -> None:
    """It would take that for another driver, and end itself. Kills: the cut counts as a drop."""
    driver, other = opened(root), opened(root)
    assert driver.journal.last_n() == ENTRIES[-1].n
    tidy(root)
    driver.journal.append(_next())
    assert driver.journal.read() == [*ENTRIES, _next()]
    assert other.journal.read() == ENTRIES, "what it has seen stays for a day"


def test_the_stream_compacts_between_look_and_commit(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cut is refused, and made again of what there is then; no file is written twice."""
    commit = Table.commit
    rivals: list[int] = []

    def first_the_other(table: Table, *given: Any, **more: Any) -> None:
        if more.get("removes") and table.name == "journal" and not rivals:
            rivals.append(0)
            with monkeypatch.context() as patch:
                patch.setattr(Table, "commit", commit)
                rival = opened(root).table("journal")
                rivals.append(merge(rival, rival.files()) is not None)
        commit(table, *given, **more)

    monkeypatch.setattr(Table, "commit", first_the_other)
    report = tidy(root)
    assert rivals[-1]
    assert report.notes == []
    assert journal_of_report(report).sessions == DAYS[:3]
    assert len(list((root / "archive").iterdir())) == 3
    assert without_caches(root).journal.read() == ENTRIES


def test_two_runs_at_once_move_everything_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each writes files of its own; of the two cuts one is refused and finds nothing left."""
    keep = Archive.keep
    others: list[Report] = []

    def first_the_other(self: Archive, *given: Any) -> int:
        size = keep(self, *given)
        if not others:
            with monkeypatch.context() as patch:
                patch.setattr(Archive, "keep", keep)
                others.append(tidy(root))
        return size

    monkeypatch.setattr(Archive, "keep", first_the_other)
    report = tidy(root)
    assert journal_of_report(others[0]).sessions == DAYS[:3]
    assert journal_of_report(report).sessions == []
    assert report.notes == []
    assert without_caches(root).journal.read() == ENTRIES


def test_the_journal_is_left_to_others_in_the_end(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    def refused(*_: Any) -> bool:
        tries.append(1)
        return False

    monkeypatch.setattr("spillway.tables.journal.cut", refused)
    report = tidy(root)
    assert len(tries) == ATTEMPTS
    assert [note.split(":")[0] for note in report.notes] == ["journal"]
    assert opened(root).journal.first_n() == 0
    assert without_caches(root).journal.read() == ENTRIES
