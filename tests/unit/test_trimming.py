"""Files without their dead rows, under the same names: what a step makes of them, and refuses."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from pydantic import SecretBytes

from spillway.engine.groups import GroupMap
from spillway.engine.state import runs
from spillway.engine.state.arrangement import ALL, RunWindow, everything
from spillway.engine.state.loading import Loaded, load
from spillway.engine.state.merging import Shape
from spillway.engine.state.runs import Missing, RunFile, encode_trimmed, joined, map_run
from spillway.engine.step import step
from spillway.engine.task import StepTask
from spillway.engine.upkeep import Room, RunWriter, trim
from spillway_schemas.journal import SlotReport
from tests.property.reference import Row
from tests.property.slots import DAYS, KEY, WAREHOUSE, Slots, key_of, narrow, spec_of

EAGER = Shape(trim_from=0.0, dead_share=0.01, dead_in_budget=0.0, least_file_bytes=100)
"""Whatever is dead is trimmed."""
BUDGET = 10**7


@pytest.fixture
def slots(tmp_path: Path) -> Slots:
    """Two slots of two groups each. Of the first, one group was spilled in the last epoch, so its
    rows are dead in the files of the first one; its manifest says so."""
    groups = GroupMap.initial(4, 2)
    options = {"threshold": 0.9, "inactive_ms": 1_000, "shape": EAGER}
    made = Slots(
        spec_of(2, composite=False), str(tmp_path), groups, partial(narrow, 64), options, BUDGET
    )
    made.run([Row(DAYS[0], i % 2, key_of(i % 40, composite=False), 0, i) for i in range(400)])
    made.run([], forced_bytes=1)
    assert len(made.reports[0].cuts) == 1
    return made


def task_of(slots: Slots, *, groups: GroupMap | None = None, job: int = 1) -> StepTask:
    plan = slots.plan(groups=groups)
    return slots.tasks(plan, job)[0]


def stepped(slots: Slots, task: StepTask) -> SlotReport:
    return step(slots.spec, task, [], slots.state(0), slots.warehouse.child)


def loaded(slots: Slots, key: SecretBytes = KEY) -> Loaded:
    return load(slots.spec, slots.state(0), 0, slots.epoch, slots.manifests[0], key)


def files(slots: Slots) -> list[RunWindow]:
    return [part for s in loaded(slots).sessions.values() for part in s.all_parts()]


def living(slots: Slots) -> Counter[tuple[int, int]]:
    """(Hash, offset) of the rows that live in the manifest that the journal names."""
    found: Counter[tuple[int, int]] = Counter()
    for session in loaded(slots).sessions.values():
        whole = everything(session.drops)
        for part in session.all_parts():
            for rows in whole.slices(part.rows, part.file.born, ALL):
                offsets = rows.table["offset"].to_pylist()
                found.update(zip(rows.key_hash.tolist(), offsets, strict=True))
    return found


def sizes(slots: Slots) -> dict[str, int]:
    named = {part.file.file for part in files(slots)}
    return {i.name: i.bytes for i in slots.state(0).list() if i.name in named}


def test_dead_rows_go_before_an_epoch_is_journaled_and_an_attempt_after_it_sees_the_same(
    slots: Slots,
) -> None:
    before, rows = sizes(slots), living(slots)
    first = stepped(slots, task_of(slots))
    after = sizes(slots)
    assert after.keys() == before.keys()
    assert all(after[name] < before[name] for name in before), "each had rows of both groups"
    assert living(slots) == rows
    assert sum(len(part.rows.key_hash) for part in files(slots)) == rows.total()
    assert all(part.bytes == after[part.file.file] for part in files(slots))
    assert all(part.row_bytes == runs.bytes_of(part.rows) for part in files(slots))
    again = stepped(slots, task_of(slots, job=2))
    assert first.totals is not None
    assert again.totals is not None
    assert first.totals.rows == again.totals.rows == rows.total()
    assert sizes(slots) == after
    slots.run([Row(DAYS[0], 0, key_of(3, composite=False), 0, 1_000)])


def test_rows_that_die_in_the_epoch_itself_stay(slots: Slots) -> None:
    """A group that leaves has its rows here until the journal says that it has left."""
    rows = living(slots)
    mine = [p for p, slot in slots.groups.assignment() if slot == 0]
    held = loaded(slots).sessions[DAYS[0]].drops
    leaving = next(p for p in mine if held.last(np.array([p.lo], np.uint64))[0] < 0)
    moved = GroupMap((p, 1 if p == leaving else s) for p, s in slots.groups.assignment())
    task = task_of(slots, groups=moved)
    assert task.leaving == (leaving,)
    assert stepped(slots, task).status == "done"
    assert sum(len(part.rows.key_hash) for part in files(slots)) == rows.total(), "it has trimmed"
    assert living(slots) == rows


def test_an_earlier_manifest_does_not_take_a_trimmed_file(slots: Slots) -> None:
    stepped(slots, task_of(slots))
    part = files(slots)[0]
    look = partial(map_run, slots.spec, slots.state(0), part.file, KEY)
    for epoch in (slots.epoch, slots.epoch + 5):
        assert look(epoch)[1] == part.trimmed
    with pytest.raises(Missing, match=r"was trimmed after epoch 1, and that of epoch 0 is wanted"):
        look(slots.epoch - 1)


def put(slots: Slots, name: str, data: bytes) -> None:
    slots.state(0).delete(name)
    slots.state(0).write_new(name, data)
    runs._verified.clear()


def test_a_trimmed_file_with_a_bit_that_is_wrong_is_missing(slots: Slots) -> None:
    stepped(slots, task_of(slots))
    name = files(slots)[0].file.file
    whole = slots.state(0).read(name)
    rng = random.Random(2)
    places = [rng.randrange(len(whole)) for _ in range(60)]
    for at in [*places, *range(len(whole) - 56, len(whole))]:
        data = bytearray(whole)
        data[at] ^= 1 << rng.randrange(8)
        put(slots, name, bytes(data))
        with pytest.raises(Missing, match=name):
            loaded(slots)
    for length in (0, 1, 55, 56, 57, len(whole) - 1):
        put(slots, name, whole[:length])
        with pytest.raises(Missing, match=rf"{name} has {length} bytes instead of"):
            loaded(slots)
    put(slots, name, whole)
    assert living(slots)
    runs._verified.clear()
    with pytest.raises(Missing, match="another key"):
        loaded(slots, SecretBytes(b"somebody else's key"))


def test_only_what_was_made_of_a_file_takes_its_place(slots: Slots) -> None:
    """Genuine, but of another file."""
    stepped(slots, task_of(slots))
    one, other = (part.file.file for part in files(slots)[:2])
    put(slots, one, slots.state(0).read(other))
    with pytest.raises(Missing, match=rf"{one} has \d+ bytes instead of"):
        loaded(slots)


def test_a_file_that_this_process_trimmed_is_not_checked_again(
    slots: Slots, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "is_genuine", lambda *_: pytest.fail("checked again"))
    stepped(slots, task_of(slots))
    assert files(slots)[0].trimmed is not None


def test_the_last_word_on_a_file_that_was_checked_is_its_digest(slots: Slots) -> None:
    """What this process knows of the file as it was says nothing of what was trimmed from it."""
    stepped(slots, task_of(slots))
    part = files(slots)[0]
    data = bytearray(slots.state(0).read(part.file.file))
    data[-1] ^= 1
    slots.state(0).delete(part.file.file)
    slots.state(0).write_new(part.file.file, bytes(data))
    with pytest.raises(Missing, match="damaged"):
        loaded(slots)


def shelf_of(slots: Slots, left: int, slack: int = 0) -> RunWriter:
    room = Room(BUDGET, BUDGET - left - slack, reserve_bytes=0, slack_bytes=slack)
    epoch = slots.epoch + 1
    return RunWriter(slots.spec, slots.state(0), WAREHOUSE, epoch, "f" * 16, KEY, room, EAGER)


def live_of(slots: Slots) -> tuple[RunWindow, runs.Rows]:
    session = loaded(slots).sessions[DAYS[0]]
    part = next(session.all_parts())
    whole = everything(session.drops)
    return part, joined(whole.slices(part.rows, part.file.born, ALL))


def test_both_files_have_room_while_one_takes_the_others_place(slots: Slots) -> None:
    part, live = live_of(slots)
    data, trimmed = encode_trimmed(slots.spec, part.file, live, slots.epoch, KEY)
    before = slots.state(0).read(part.file.file)
    for left, slack in ((data.size - 1, 0), (0, data.size - 1)):
        assert shelf_of(slots, left, slack).trim(part, live) is None
    assert slots.state(0).read(part.file.file) == before
    shelf = shelf_of(slots, 0, data.size)
    made = shelf.trim(part, live)
    assert made is not None
    assert (made.file, made.trimmed) == (part.file, trimmed)
    assert shelf.room.used_bytes == BUDGET - part.bytes, "the old one went at once"
    assert slots.state(0).read(part.file.file) == bytes(data)
    assert shelf.trim(made, made.rows) is None, "nothing would be gained"


def test_the_most_worn_file_is_first_and_one_that_found_no_room_is_tried_again(
    slots: Slots,
) -> None:
    asked: list[str] = []

    class Full(RunWriter):
        def trim(self, part: RunWindow, rows: runs.Rows) -> RunWindow | None:
            asked.append(part.file.file)
            return part if len(asked) > 1 else None

    session = loaded(slots).sessions[DAYS[0]]
    whole = everything(session.drops)
    lives = {p.file.file: whole.tally(p.rows, 0)[1][0] / p.row_bytes for p in session.all_parts()}
    shelf = shelf_of(slots, BUDGET // 2)
    shelf = Full(**{each.name: getattr(shelf, each.name) for each in fields(shelf)})
    session.parts.reverse()  # the order of parts says nothing
    for _ in range(2):
        asked.clear()
        trim(shelf, {DAYS[0]: session}, {DAYS[0]: session.drops}, 0)
        first, *others = sorted(lives, key=lambda name: lives[name])
        assert asked == [first, *others, first]
        session.parts.reverse()


def test_there_is_room_for_rows_that_come_from_elsewhere_too(
    slots: Slots, monkeypatch: pytest.MonkeyPatch
) -> None:
    came: list[int] = []
    monkeypatch.setattr("spillway.engine.step.trim", lambda *given: came.append(given[3]))
    slots.run([])
    assert came == [0, 0]
    came.clear()
    slots.run([], lost=frozenset({1}))
    assert [each > 0 for each in came] == [False, True], "it was restored"


def test_a_window_is_what_lies_in_it_of_a_trimmed_file(slots: Slots) -> None:
    part, live = live_of(slots)
    shelf_of(slots, BUDGET // 2).trim(part, live)
    half = int(live.key_hash[len(live.key_hash) // 2])
    window: RunFile = replace_lo(part.file, half)
    rows, _ = map_run(slots.spec, slots.state(0), window, KEY, slots.epoch)
    assert rows.key_hash.tolist() == [h for h in live.key_hash.tolist() if h >= half]


def replace_lo(file: RunFile, lo: int) -> RunFile:
    found = file.from_hash(lo)
    assert found is not None
    return found


def test_without_need_little_is_left_where_it_is(slots: Slots) -> None:
    before = sizes(slots)
    task = task_of(slots)
    stepped(slots, replace(task, shape=Shape()))
    assert sizes(slots) == before, "the folder is nearly empty"
