"""The read model: kept and restored at every entry, and found by who looks for the first time."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from spillway.protocol.snapshot import text_digest
from spillway.protocol.state import JournalBroken, replay
from spillway.readmodel import cache
from spillway.readmodel import kept as keeping
from spillway.readmodel.cache import (
    KeptReadCache,
    ReadCache,
    caught_up,
    load,
    memory_file,
    save,
    with_digest,
)
from spillway.readmodel.model import KeptReadModel, ReadModel
from spillway.readmodel.tally import MOST_SEAL_ANSWERS, thinned
from spillway.storage import folder
from spillway.tables import NothingYet, Snapshots, Warehouse
from spillway_schemas.journal import Epoch, entry_from, entry_texts
from tests.commands import outcome_of
from tests.report_journal import DAY, carry_out, fill_journal, make_day, model_of, open_warehouse
from tests.report_journal import withdraw_a_seal as withdrawn

GOLDEN = Path(__file__).parent / "golden" / "readmodel-11.json"


@pytest.fixture(autouse=True)
def own_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPILLWAY_VAR", str(tmp_path / "var"))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the entries that are folded from now on."""
    numbers: list[int] = []
    original = ReadModel.add

    def add(self: ReadModel, text: str, entry: Any) -> None:
        numbers.append(entry.n)
        original(self, text, entry)

    monkeypatch.setattr(ReadModel, "add", add)
    return numbers


def first_look(root: Path) -> ReadModel:
    """What somebody finds who has never looked."""
    return caught_up(Warehouse(str(root)), ReadCache())


def kept_n(root: Path) -> list[int]:
    place = folder(str(root)).child(keeping.FOLDER)
    return [each.n for each in Snapshots(place, KeptReadModel).newest(10**9)]


def test_kept_and_restored_at_every_entry_it_goes_on_alike() -> None:
    for made in (make_day(24, seal_after=15), withdrawn(make_day(16))):
        whole = model_of(made.entries)
        for n in range(len(made.entries)):
            text = model_of(made.entries[: n + 1]).kept().model_dump_json()
            kept = KeptReadModel.model_validate_json(text)
            assert kept.n == n
            model = ReadModel.restored(kept)
            for entry in made.entries[n + 1 :]:
                model.add(entry_texts(entry)[0], entry)
            assert model == whole


def test_it_stands_on_the_protocols_state() -> None:
    made = make_day(24, slots=2, groups_depth=3, seal_after=15)
    for n in range(len(made.entries)):
        model = model_of(made.entries[: n + 1])
        assert model.state == replay(made.entries[: n + 1])
        assert model.entry == text_digest(entry_texts(made.entries[n])[0])


def test_an_entry_that_does_not_follow_is_refused() -> None:
    made = make_day(4)
    with pytest.raises(ValueError, match="begins with a claim, entry 1"):
        model_of(made.entries[1:])
    model = model_of(made.entries[:2])
    with pytest.raises(JournalBroken, match="entry 3"):
        model.add("", made.entries[3])
    assert model == model_of(made.entries[:2]), "nothing of it was taken"


def test_the_layout_is_the_one_of_its_format() -> None:
    """`WRITE_GOLDEN=1` writes the file anew; a change of it raises `FORMAT`."""
    made = make_day(9, slots=2, groups_depth=3, seal_after=6)
    text = model_of(made.entries).kept().model_dump_json(indent=1)
    if os.environ.get("WRITE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_a_first_look_begins_with_what_the_stream_has_kept(tmp_path: Path, read: list[int]) -> None:
    root = tmp_path / "w"
    made = make_day(40, seal_after=30)
    fill_journal(open_warehouse(str(root)), made.entries[:30])
    keeping.keep(Warehouse(str(root)))
    assert kept_n(root) == [29]
    fill_journal(open_warehouse(str(root)), made.entries)
    read.clear()
    whole = first_look(root)
    assert read == [entry.n for entry in made.entries[30:]]
    assert whole == model_of(made.entries)
    read.clear()
    keeping.keep(Warehouse(str(root)))
    assert read == [entry.n for entry in made.entries[30:]]
    assert kept_n(root) == [made.last.n, 29]


def another_days() -> KeptReadModel:
    """Of a journal that was another one from epoch 7 on."""
    other = make_day(12)
    carry_out(other, 7, [], cuts=[])
    return model_of(other.entries[:10]).kept()


@pytest.mark.parametrize("what", ["another journal's", "another entry's", "another format's"])
def test_one_that_does_not_fit_is_passed_over(tmp_path: Path, what: str, read: list[int]) -> None:
    root = tmp_path / "w"
    made = make_day(12)
    fill_journal(open_warehouse(str(root)), made.entries)
    place = Snapshots(folder(str(root)).child(keeping.FOLDER), KeptReadModel)
    fitting = model_of(made.entries[:10]).kept()
    journal = fitting.journal.model_copy(update={"entry": "0" * 64})
    place.write(model_of(made.entries[:5]).kept())
    place.write(
        {
            "another journal's": another_days(),
            "another entry's": fitting.model_copy(update={"journal": journal}),
            "another format's": fitting.model_copy(update={"format": 99}),
        }[what]
    )
    whole = model_of(made.entries)
    read.clear()
    assert first_look(root) == whole
    assert read == [entry.n for entry in made.entries[5:]]


def test_the_stream_is_not_held_up_by_a_long_history(
    tmp_path: Path, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who looks makes up for it."""
    monkeypatch.setattr(keeping, "MOST_ENTRIES", 20)
    monkeypatch.setattr(cache, "MOST_ENTRIES", 20)
    root = tmp_path / "w"
    made = make_day(30)
    fill_journal(open_warehouse(str(root)), made.entries)
    keeping.keep(Warehouse(str(root)))
    assert (read, kept_n(root)) == ([], [])
    first_look(root)
    assert kept_n(root) == [made.last.n]
    read.clear()
    keeping.keep(Warehouse(str(root)))
    assert read == []
    fill_journal(open_warehouse(str(root)), make_day(45).entries)
    first_look(root)
    assert kept_n(root) == [made.last.n], "a look that reads little keeps nothing there"


def test_a_look_needs_no_right_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MOST_ENTRIES", 2)
    root = tmp_path / "w"
    made = make_day(5)
    fill_journal(open_warehouse(str(root)), made.entries)
    (root / keeping.FOLDER).write_text("no folder")
    assert first_look(root) == model_of(made.entries)


def test_an_empty_journal_has_nothing(tmp_path: Path) -> None:
    warehouse = open_warehouse(str(tmp_path / "w"))
    keeping.keep(warehouse)
    assert kept_n(tmp_path / "w") == []
    with pytest.raises(NothingYet):
        caught_up(warehouse, ReadCache())


def test_counts_that_lack_a_figure_are_refused_as_all_that_is_damaged() -> None:
    epoch = make_day(1).last
    head, files = entry_texts(epoch)
    with pytest.raises(ValidationError, match="lack bytes"):
        entry_from(head.replace('"bytes":[', '"octets":['), files)
    with pytest.raises(ValueError, match="names files of"):
        entry_from(head.replace('"tables":[]', '"tables":["spill"]'), files)
    assert entry_from(head, files) == epoch


def test_a_clock_that_was_put_back_leaves_a_sample_of_what_came_since() -> None:
    """Kills: epochs that end in the future count as the last ones, and the span is below zero."""
    entries = list(make_day(40).entries)
    for at, entry in enumerate(entries):
        if isinstance(entry, Epoch) and entry.epoch >= 30:
            hour = timedelta(hours=1)
            times = {
                name: (datetime.fromisoformat(getattr(entry, name)) - hour).isoformat()
                for name in ("started_at", "written_at")
            }
            entries[at] = entry.model_copy(update=times)
    still = model_of(make_day(40).entries).sample(15)
    put_back = model_of(entries).sample(15)
    assert put_back.span_s == still.span_s > 0
    assert put_back.busy_s.tolist() == still.busy_s.tolist()
    assert len(model_of(entries).sample(1000).busy_s) == entries[-1].epoch - 29  # type: ignore[union-attr]


def test_two_that_save_at_once_leave_one_of_both_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: both write to one file, as processes of one number in two containers once did."""
    long, short = (ReadCache(model_of(make_day(n).entries)) for n in (80, 60))
    dump, saving = KeptReadCache.model_dump_json, [long]

    def while_another_saves(self: KeptReadCache) -> str:
        if saving:
            save(saving.pop(), "w")
        return dump(self)

    monkeypatch.setattr(KeptReadCache, "model_dump_json", while_another_saves)
    save(short, "w")
    model = load("w").model
    assert model is not None
    assert short.model is not None
    assert model.state == short.model.state
    assert [path.name for path in memory_file("w").parent.iterdir()] == [memory_file("w").name]


def test_what_another_version_remembered_is_forgotten() -> None:
    memory = ReadCache(model_of(make_day(60).entries), {"a.parquet": {"bad": 2}})
    save(memory, "w")
    assert load("w").reasons == memory.reasons
    path = memory_file("w")
    told = KeptReadCache.model_validate_json(path.read_bytes().partition(b"\n")[2])
    path.write_bytes(with_digest(told.model_dump_json().encode()))
    assert load("w").reasons == memory.reasons
    before = told.model_copy(update={"version": told.version - 1})
    path.write_bytes(with_digest(before.model_dump_json().encode()))
    assert load("w") == ReadCache()


def test_damage_within_a_sealed_session_of_a_memory_is_noticed_at_once() -> None:
    """It is kept as text and parsed later: whoever asks for it could not know what to do."""
    memory = ReadCache(model_of(make_day(60, seal_after=25).entries))
    save(memory, "w")
    path = memory_file("w")
    whole = path.read_bytes()
    model = load("w").model
    assert model is not None
    assert model.tally.sealed_sessions
    at = whole.index(b"sealed_sessions") + 60
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    assert load("w") == ReadCache()


def test_sessions_are_listed_by_date_and_sealed_ones_are_parsed_once() -> None:
    tally = model_of(make_day(60, seal_after=25).entries).tally
    assert list(tally.sessions) == [*tally.sealed_sessions, *tally.open_sessions]
    assert len(tally.sessions) == len(list(tally.sessions)) == 2
    assert list(tally.sessions) == sorted(tally.sessions)
    (sealed,) = tally.sealed_sessions
    assert tally.sessions[sealed] is tally.sessions[sealed]
    assert tally.sessions[sealed].sealed_at is not None


def test_reasons_of_another_journal_are_forgotten(tmp_path: Path) -> None:
    """A warehouse was made anew at the same place."""
    memory = ReadCache(model_of(make_day(40, seed=2).entries), {"a.parquet": {"bad": 2}}, 40)
    warehouse = open_warehouse(str(tmp_path / "w"))
    fill_journal(warehouse, make_day(40).entries)
    caught_up(warehouse, memory)
    assert (memory.reasons, memory.saved_n) == ({}, -1)


def test_a_sealed_session_leaves_no_peak_behind() -> None:
    """Kills: the next session's peaks begin with those of the one before."""
    made = make_day(40, seal_after=25)
    (at,) = (n for n, e in enumerate(made.entries) if isinstance(e, Epoch) and e.sealed)
    before, after = (model_of(made.entries[:n]).tally.slots for n in (at, at + 1))
    assert any(each.peak_folder_bytes > each.folder_bytes for each in before.values())
    for each in after.values():
        assert each.peak_state_bytes == each.state_bytes
        assert each.peak_folder_bytes == each.folder_bytes
        assert (each.spills, each.spilled_bytes, each.moved_in, each.moved_out) == (0, 0, 0, 0)


def test_points_that_are_joined_have_the_last_budget() -> None:
    made = make_day(40).entries
    points = model_of(made).tally.points
    lower = [
        each.model_copy(update={"budget_bytes": dict.fromkeys(each.budget_bytes, each.epoch)})
        for each in points
    ]
    assert [set(each.budget_bytes.values()) for each in thinned(lower)] == [
        {each.epoch} for each in thinned(lower)
    ]


def test_of_many_answers_about_a_session_the_last_and_accepted_losses_are_kept() -> None:
    made = make_day(40)
    refused = {"kind": "seal", "obeyed": False}
    accepted = outcome_of("loss", kind="accept-loss", obeyed=True, reason="gone")
    for at, entry in enumerate(made.entries):
        if isinstance(entry, Epoch):
            asked = [outcome_of(f"{entry.epoch}", reason=f"in {entry.epoch}", **refused)]
            asked += [accepted] * (entry.epoch == 1)
            made.entries[at] = entry.model_copy(update={"commands": asked})
    answers = model_of(made.entries).tally.sessions[DAY].seal_answers
    last = made.last.epoch
    assert [each.reason for each in answers] == [
        "gone",
        *(f"in {n}" for n in range(last - MOST_SEAL_ANSWERS + 1, last + 1)),
    ]


def test_a_session_s_input_time_begins_with_its_first_epoch() -> None:
    """Kills: policies believe that a session has just begun."""
    made = make_day(10)
    stamped = [
        entry.model_copy(update={"recent_input_ms": 5_000 + 100 * entry.epoch})
        if isinstance(entry, Epoch)
        else entry
        for entry in made.entries
    ]
    session = model_of(stamped).tally.sessions[DAY]
    assert session.first_input_ms == 5_000
    assert session.last_input_ms == 5_000 + 100 * made.last.epoch
