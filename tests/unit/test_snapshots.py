"""Snapshots of the journal: inverse, found by name, compared with the journal, and only a cache."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from spillway.protocol.driver import JournalRead, start, step
from spillway.protocol.snapshot import (
    EVERY,
    chosen,
    is_due,
    is_settled,
    snapshot_of,
    state_of,
    text_digest,
)
from spillway.protocol.state import JournalState, fold, replay
from spillway.storage import folder
from spillway.tables import DamagedTable
from spillway.tables.snapshots import KEPT, Snapshots
from spillway_schemas.filenames import snapshot_name, snapshot_origin
from spillway_schemas.journal import Claim, Epoch, Genesis, entry_texts
from spillway_schemas.snapshot import JournalSnapshot
from tests.protocol_entries import TOPICS, file
from tests.report_journal import fill_journal, make_day, open_warehouse

Entry = Genesis | Claim | Epoch
GOLDEN = Path(__file__).parent / "golden" / "snapshot-10.json"


def with_files(entry: Entry) -> Entry:
    """Now and then an epoch has rows for a table."""
    if not isinstance(entry, Epoch):
        return entry
    tables = {"results": 2, "spill": 7}
    files = [file(table, entry.epoch) for table, every in tables.items() if entry.epoch % every]
    return entry.model_copy(update={"files": files})


ENTRIES = [with_files(entry) for entry in make_day(40, seal_after=25).entries]


def digest(n: int) -> str:
    return text_digest(entry_texts(ENTRIES[n])[0])


def at(n: int) -> JournalState:
    state = replay(ENTRIES[: n + 1])
    assert state is not None
    return state


def snapshot(n: int) -> JournalSnapshot:
    return snapshot_of(at(n), digest(n))


def test_a_snapshot_and_the_rest_are_the_whole_at_every_entry() -> None:
    whole = at(len(ENTRIES) - 1)
    for n in range(len(ENTRIES)):
        text = snapshot(n).model_dump_json()
        state = state_of(JournalSnapshot.model_validate_json(text))
        assert state == at(n)
        for entry in ENTRIES[n + 1 :]:
            state = fold(state, entry)
        assert state == whole
        assert snapshot_of(at(n), digest(n)).model_dump_json() == text, "equal states, equal texts"


def test_the_layout_is_the_one_of_its_format() -> None:
    """A change of it is a new format: files of the old one would be read as something else.

    `WRITE_GOLDEN=1` writes the file anew.
    """
    text = snapshot(30).model_dump_json(indent=1)
    if os.environ.get("WRITE_GOLDEN"):
        GOLDEN.write_text(text)
    assert JournalSnapshot.model_validate_json(GOLDEN.read_bytes()) == snapshot(30)
    assert text == GOLDEN.read_text()


def test_the_newest_that_holds_is_chosen() -> None:
    three = [snapshot(n) for n in (30, 20, 10)]
    found = chosen(three, digest)
    assert found is not None
    assert found.n == 30
    lost = chosen(three, lambda n: "another" if n == 30 else None if n == 20 else digest(n))
    assert lost is not None
    assert lost.n == 10
    assert chosen(three, lambda n: None) is None
    assert chosen([], digest) is None


def test_a_snapshot_that_hides_what_a_table_lacks_is_not_chosen() -> None:
    three = [snapshot(n) for n in (30, 20, 10)]
    named = at(20).named
    assert named
    assert is_settled(at(20), named)
    found = chosen(three, digest, named)
    assert found is not None
    assert found.n in (10, 20)
    for table in named:
        assert not is_settled(at(20), {**named, table: named[table] - 1})
    assert chosen(three, digest, {}) is None


def test_a_driver_takes_no_snapshot_that_hides_what_is_owed() -> None:
    state = at(20)
    driver, _ = start("host/2", "now")
    with pytest.raises(ValueError, match="tables lack commits"):
        step(driver, JournalRead([], {}, TOPICS, snapshot=state))


def test_when_one_is_written() -> None:
    state = at(30)
    assert is_due(state, -1, sealed=True)
    assert not is_due(state, 31 - EVERY, sealed=False)
    assert is_due(state, 30 - EVERY, sealed=False)


def test_names() -> None:
    name = snapshot_name(7, "ab" * 32)
    assert snapshot_origin(name) == (7, "ab" * 32)
    for other in (name.replace("7-", "07-"), f"x{name}", name[:-1], "7-ab.snapshot"):
        assert snapshot_origin(other) is None
    with pytest.raises(ValueError, match="64 hexadecimal digits"):
        snapshot_name(7, "ab")


def test_the_newest_few_are_kept(tmp_path: Path) -> None:
    kept = Snapshots(folder(str(tmp_path / "s")), JournalSnapshot)
    assert list(kept.newest(99)) == []
    for n in (5, 10, 15, 20, 20):
        kept.write(snapshot(n))
    assert [each.n for each in kept.newest(99)] == [20, 15, 10]
    assert [each.n for each in kept.newest(17)] == [15, 10]
    assert len(list((tmp_path / "s").iterdir())) == KEPT


def test_one_that_a_crash_has_cut_short_is_written_again(tmp_path: Path) -> None:
    kept = Snapshots(folder(str(tmp_path)), JournalSnapshot)
    kept.write(snapshot(5))
    [path] = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:9])
    assert list(kept.newest(99)) == []
    kept.write(snapshot(5))
    assert [each.n for each in kept.newest(99)] == [5]


def test_those_above_the_journal_s_end_go_with_the_next_one(tmp_path: Path) -> None:
    """A repair has taken entries away: of them nothing will ever hold again."""
    kept = Snapshots(folder(str(tmp_path)), JournalSnapshot)
    for n in (10, 20, 30):
        kept.write(snapshot(n))
    kept.write(snapshot(15))
    assert [each.n for each in kept.newest(99)] == [15, 10]
    kept.write(snapshot_of(at(15), "0" * 64))
    assert [each.n for each in kept.newest(99)] == [15, 10]
    assert next(kept.newest(99)).entry == "0" * 64


def test_what_is_not_whole_is_passed_over(tmp_path: Path) -> None:
    kept = Snapshots(folder(str(tmp_path)), JournalSnapshot)
    for n in (5, 10, 15):
        kept.write(snapshot(n))
    [newest] = tmp_path.glob("15-*")
    newest.write_bytes(newest.read_bytes()[:-1])
    [middle] = tmp_path.glob("10-*")
    middle.rename(tmp_path / snapshot_name(10, hashlib.sha256(b"no").hexdigest()))
    for data in (b"no", b"x\x9cno"):
        (tmp_path / snapshot_name(11, hashlib.sha256(data).hexdigest())).write_bytes(data)
    (tmp_path / "notes.txt").write_text("somebody's")
    kept.write(snapshot(5))
    [oldest] = tmp_path.glob("5-*")
    (tmp_path / oldest.name.replace("5-", "4-", 1)).write_bytes(oldest.read_bytes())
    assert list(kept.newest(4)) == [], "one of an entry that the journal lacks, under another name"
    assert [each.n for each in kept.newest(99)] == [5]


def test_one_that_is_taken_away_meanwhile_is_passed_over(tmp_path: Path) -> None:
    """By another process, between the listing and the reading."""
    for n in (5, 10):
        Snapshots(folder(str(tmp_path)), JournalSnapshot).write(snapshot(n))
    found = Snapshots(folder(str(tmp_path)), JournalSnapshot).newest(99)
    [newest] = tmp_path.glob("10-*")
    listed = Snapshots._known

    def gone(self: Snapshots) -> list[tuple[int, str]]:
        names = listed(self)
        newest.unlink(missing_ok=True)
        return names

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Snapshots, "_known", gone)
        assert [each.n for each in found] == [5]


def test_a_journal_is_read_from_its_snapshot_on(tmp_path: Path) -> None:
    root = str(tmp_path / "w")
    warehouse = open_warehouse(root)
    fill_journal(warehouse, ENTRIES[:-1])
    journal = warehouse.journal
    journal.refresh()
    journal.append(ENTRIES[-1])
    whole = at(len(ENTRIES) - 1)
    assert journal.read_on() == (None, ENTRIES)
    assert journal.state() == whole
    journal.keep(whole)
    assert next(Snapshots(folder(root).child("snapshots"), JournalSnapshot).newest(99)).n == whole.n
    assert journal.read_on() == (whole, [])
    assert journal.last_epoch() == whole.epoch
    assert journal.read_on({}) == (None, ENTRIES), "tables lack what is to be redone"
    assert journal.state() == whole
    place = Snapshots(folder(root).child("snapshots"), JournalSnapshot)
    place.write(snapshot_of(at(12), "0" * 64))
    for path in (tmp_path / "w" / "snapshots").glob(f"{whole.n}-*"):
        path.unlink()
    assert journal.read_on()[0] is None, "of an entry that nobody has"
    place.write(snapshot(12))
    state, rest = open_warehouse(root).journal.read_on()
    assert (state, rest) == (at(12), ENTRIES[13:])


def test_a_state_is_kept_although_another_driver_s_entry_is_seen_behind_it(tmp_path: Path) -> None:
    """A commit of maintenance looks at the log again, and may meet the claim of a newcomer."""
    warehouse = open_warehouse(str(tmp_path / "w"))
    fill_journal(warehouse, ENTRIES)
    warehouse.journal.keep(at(12))
    state, rest = warehouse.journal.read_on()
    assert (state, rest) == (at(12), ENTRIES[13:])


def test_what_a_snapshot_stands_for_is_read_by_a_thorough_check(tmp_path: Path) -> None:
    root = tmp_path / "w"
    entries = make_day(40).entries
    fill_journal(open_warehouse(str(root)), entries[:20])
    fill_journal(open_warehouse(str(root)), entries)
    warehouse = open_warehouse(str(root))
    state = warehouse.journal.state()
    assert state is not None
    warehouse.journal.keep(state)
    assert warehouse.check() == []
    oldest = min(warehouse.table("journal").files(), key=lambda file: file.least or 0)
    path = root / "journal" / oldest.path
    whole = path.read_bytes()
    path.write_bytes(b"x" * len(whole))
    assert open_warehouse(str(root)).check(thorough=False) == []
    with pytest.raises(DamagedTable, match="cannot be read"):
        open_warehouse(str(root)).check()
    path.write_bytes(whole[:-1])
    [problem] = open_warehouse(str(root)).check(thorough=False)
    assert problem.startswith(f"journal: {oldest.path} should have {len(whole)} bytes and has")
    path.unlink()
    [problem] = open_warehouse(str(root)).check(thorough=False)
    assert "bytes and is gone" in problem


def test_a_session_s_entries_are_read_from_its_first_epoch_on(tmp_path: Path) -> None:
    warehouse = open_warehouse(str(tmp_path / "w"))
    fill_journal(warehouse, ENTRIES)
    journal = warehouse.journal
    [sealed] = at(len(ENTRIES) - 1).sealed.values()
    assert journal.read_session(sealed)[0].n == 1, "in entries from before it was kept: all"
    later = journal.read_session(sealed.model_copy(update={"base": 7}))
    epochs = [entry.epoch for entry in later if isinstance(entry, Epoch)]
    assert set(range(8, 40)) <= set(epochs)
    assert min(epochs) >= 7
