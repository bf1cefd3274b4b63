"""A follower under random histories of its table: each row once, whatever is done to files.

The table is a list of files of rows, in memory; the reference is the list of all rows that were
ever given. Kills: a range that leaves out or repeats an epoch, a cleanup that is taken before it is
whole or twice, a part that depends on the file, a step that is not repeated after a death.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from copy import copy, deepcopy
from dataclasses import dataclass, field, fields, replace
from itertools import count
from typing import Any, NamedTuple
from zlib import crc32

import pytest
from hypothesis import strategies as st

from spillway.following.position import (
    EndedPhase,
    FollowStep,
    Newest,
    Phase,
    Position,
    Seen,
    UnderWay,
    another_history,
    ended_phases,
    next_step,
    now,
    taken,
)
from spillway.tables import ActiveFile, SessionEvent
from tests.followed import day
from tests.lanes import explored


class Row(NamedTuple):
    name: str
    """What tells it apart from all others, whatever was restored in between."""
    session: str
    phase: str
    epoch: int
    commit: int = 0
    """The same for all rows of an epoch."""
    revision: int = 0


@dataclass
class Table:
    """`results` and `sessions`, as random steps make them."""

    random: random.Random
    files: dict[str, list[Row]] = field(default_factory=dict)
    gone: dict[str, list[Row]] = field(default_factory=dict)
    """Files that the table does not name any more, and that nobody has deleted."""
    events: list[SessionEvent] = field(default_factory=list)
    epoch: int = -1
    applied: int = -1
    session: int = 0
    seals: dict[int, int] = field(default_factory=dict)
    cleanups: dict[int, list[Row]] = field(default_factory=dict)
    revisions: Counter[int] = field(default_factory=Counter)
    """Of sessions that are cleaned."""
    wanted: list[Row] = field(default_factory=list)
    counts: Iterator[int] = field(default_factory=count)
    """One for all histories: no file or commit of two has the same number."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Table:
        mine = {each.name: copy(getattr(self, each.name)) for each in fields(self)}
        mine["cleanups"] = {session: list(rows) for session, rows in self.cleanups.items()}
        return Table(**{**mine, "random": self.random, "counts": self.counts})

    def _result(self, session: int, phase: str, told: int, revision: int = 0) -> list[Row]:
        """All rows that a cleanup or a correction of a session gives: they follow from `told`."""
        name = f"{phase}-{session}-{revision}-{told}"
        drawn = random.Random(name).choice((0, 1, 4, 30))
        epoch = self.seals[session]
        return [Row(f"{name}-{n}", day(session), phase, epoch, 0, revision) for n in range(drawn)]

    def _spilled(self, session: int) -> int:
        """What a session leaves to its cleanup follows from its rows."""
        return crc32(
            repr([row.name for row in self.wanted if row.session == day(session)]).encode()
        )

    def _add(self, rows: list[Row]) -> None:
        if rows:
            self.files[str(next(self.counts))] = rows

    def run_epoch(self) -> None:
        self.epoch += self.random.choice((1, 1, 1, 40))
        commit = next(self.counts)
        for _ in range(self.random.randrange(3)):
            names = [str(next(self.counts)) for _ in range(self.random.choice((0, 1, 3, 12)))]
            rows = [Row(n, day(self.session), "run-time", self.epoch, commit) for n in names]
            self._add(rows)
            self.wanted += rows
            if rows:
                self.applied = self.epoch

    def seal(self) -> None:
        self.run_epoch()
        self.seals[self.session], self.cleanups[self.session] = self.epoch, []
        self.session += 1

    def clean(self) -> None:
        if self.cleanups:
            session = self.random.choice(sorted(self.cleanups))
            there = len(self.cleanups[session])
            rows = self._result(session, "cleanup", self._spilled(session))
            rows = rows[there : there + self.random.choice((1, 4, 30))]
            self._add(rows)
            self.cleanups[session] += rows

    def finish(self) -> None:
        if self.seals:
            session = self.random.choice(sorted(self.seals))
            rows, spilled = [], self._spilled(session)
            if session in self.cleanups:  # a second cleanup finds nothing to do
                rows = self._result(session, "cleanup", spilled)
                self._add(rows[len(self.cleanups.pop(session)) :])
                self.revisions[session] = 0
            counted = self.random.choice((None, len(rows)))
            self.events.append(
                SessionEvent(
                    session=day(session),
                    event="cleaned",
                    cleanup=counted,
                    details={"spilled_rows": spilled},
                )
            )
            self.wanted += rows

    def correct(self) -> None:
        if self.revisions:
            session = self.random.choice(sorted(self.revisions))
            self.revisions[session] += 1
            revision = self.revisions[session]
            late = next(self.counts)  # whatever somebody gives
            rows = self._result(session, "correction", late, revision)
            self._add(rows)
            told = {"revision": revision, "results": len(rows), "digest": str(late)}
            self.events.append(SessionEvent(session=day(session), event="corrected", details=told))
            self.wanted += rows

    def verify(self) -> None:
        self.events.append(SessionEvent(session=day(0), event="verified"))

    def compact(self) -> None:
        session = day(self.random.randrange(self.session + 1))
        mine = [path for path, rows in self.files.items() if rows[0].session == session]
        if len(mine) > 1:
            some = self.random.sample(mine, self.random.randint(2, len(mine)))
            self.gone |= {path: self.files.pop(path) for path in some}
            merged = [row for path in some for row in self.gone[path]]
            self.random.shuffle(merged)
            self._add(merged)

    def vacuum(self) -> None:
        self.gone = {path: [] for path in self.gone}

    def seen(self, *, knows: bool) -> Seen:
        """`knows`: whether files say which epochs they have."""
        files = [
            ActiveFile(
                path=path,
                bytes=40 * len(rows),
                rows=len(rows),
                partition={"session_date": rows[0].session},
                least=min(row.epoch for row in rows) if knows else None,
                greatest=max(row.epoch for row in rows) if knows else None,
                sessions=(rows[0].session, rows[0].session),
            )
            for path, rows in self.files.items()
        ]
        self.random.shuffle(files)
        return Seen(self.applied, files, ended_phases(self.events))

    def agrees(self, position: Position) -> bool:
        newest = position.newest
        rows = [row for rows in self.files.values() for row in rows if row.phase == "run-time"]
        epochs = {(row.epoch, row.commit) for row in rows}
        return newest is None or (
            tuple(newest) in epochs
            and not any(newest.epoch < epoch <= position.epoch for epoch, _ in epochs)
        )

    def read(self, step: FollowStep) -> list[Row] | None:
        """The rows of a step; None when a file is gone."""
        found: list[Row] = []
        for file in step.files:
            rows = self.files.get(file.path) or self.gone.get(file.path)
            if not rows:
                return None
            found += rows
        return [row for row in found if _in(step, row)]


def _in(step: FollowStep, row: Row) -> bool:
    if row.phase != step.phase or crc32(row.name.encode()) % step.parts != step.part:
        return False
    if step.phase != "run-time":
        return (row.session, row.revision) == (step.session, step.revision)
    return step.after < row.epoch <= step.upto


MADE = {"run_epoch": 5, "seal": 1, "clean": 2, "finish": 2, "correct": 1, "verify": 1, "compact": 3}
STEPS = {**MADE, "vacuum": 1, "look": 3, "take": 6, "die": 1}
"""What happens, and how often."""


@explored(
    60,
    160,
    st.randoms(use_true_random=False),
    st.integers(1, 40),
    st.integers(1, 2_000),
    st.booleans(),
)
def test_each_row_is_taken_once(
    choices: random.Random, most_rows: int, most_bytes: int, knows: bool
) -> None:
    table = Table(choices)
    limits = {"most_rows": most_rows, "most_bytes": most_bytes}
    position, seen = Position(), table.seen(knows=knows)
    got: list[Row] = []

    def take() -> bool:
        """One step, if what was seen has one."""
        nonlocal position, seen
        step = next_step(position, seen, **limits)
        rows = None if step is None else table.read(step)
        if step is not None and rows is None:  # vacuumed since: look again
            seen = table.seen(knows=knows)
            step = next_step(position, seen, **limits)
            rows = None if step is None else table.read(step)
        if step is None:
            return False
        assert rows is not None
        got.extend(rows)
        # As it is kept, and read by another process.
        position = Position.model_validate_json(taken(position, step, None).model_dump_json())
        return True

    for name in _some(table, STEPS, table.random.randrange(60)):
        if name == "look":
            seen = table.seen(knows=knows)
        elif name == "take":
            take()
        elif name == "die":  # inside a step: what it has read is nobody's
            seen = table.seen(knows=knows)
        else:
            getattr(table, name)()
    seen = table.seen(knows=knows)
    while take():
        pass
    assert Counter(got) == Counter(table.wanted)
    assert another_history(position, seen, agrees=True) is None


@explored(20, 60, st.randoms(use_true_random=False), st.integers(0, 30))
def test_who_begins_now_takes_what_comes_later(choices: random.Random, before: int) -> None:
    table = Table(choices)
    for name in _some(table, MADE, before):
        getattr(table, name)()
    known = list(table.wanted)
    position = now(table.seen(knows=True))
    for name in _some(table, MADE, 15):
        getattr(table, name)()
    got: list[Row] = []
    while (step := next_step(position, table.seen(knows=True), most_rows=9)) is not None:
        rows = table.read(step)
        assert rows is not None
        got += rows
        position = taken(position, step, None)
    assert Counter(got) == Counter(table.wanted) - Counter(known)


@explored(60, 160, st.randoms(use_true_random=False), st.integers(1, 40))
def test_who_goes_on_in_a_restored_table_has_each_row_once(
    choices: random.Random, most_rows: int
) -> None:
    """Or is told that it is another one. A backup is any state that the table had before.

    Kills: a half of a cleanup that goes on in another's, rows of epochs that were given again, a
    correction of the same number with other rows.
    """
    table, position, got = Table(choices), Position(), list[Row]()
    backup = deepcopy(table)

    def take() -> bool:
        nonlocal position
        step = next_step(position, table.seen(knows=True), most_rows=most_rows)
        if step is None:
            return False
        rows = table.read(step)
        assert rows is not None
        got.extend(rows)
        newest = max(
            [(row.epoch, row.commit) for row in rows if row.phase == "run-time"],
            default=position.newest,
        )
        position = taken(position, step, None if newest is None else Newest(*newest))
        return True

    for name in _some(table, {**MADE, "take": 8, "backup": 2}, choices.randrange(40)):
        if name == "backup":
            backup = deepcopy(table)
        elif name == "take":
            take()
        else:
            getattr(table, name)()
    table = backup
    for name in _some(table, MADE, choices.randrange(20)):
        getattr(table, name)()
    half, newest = position.under_way, position.newest
    begun = position.epoch >= 0 or (half is not None and half.phase == "run-time")
    if begun and newest is None:
        return
    if half is not None and half.phase == "run-time" and newest.epoch <= position.epoch:
        return
    if another_history(position, table.seen(knows=True), table.agrees(position)) is None:
        while take():
            pass
        # By name: what a session without results at run time lacked may be given in another epoch.
        assert Counter(row.name for row in got) == Counter(row.name for row in table.wanted)


def _some(table: Table, steps: Mapping[str, int], count: int) -> list[str]:
    return table.random.choices(list(steps), list(steps.values()), k=count)


def file(path: str, rows: int, least: int, greatest: int) -> ActiveFile:
    return ActiveFile(path, 8 * rows, rows, {}, least, greatest, (day(0), day(0)))


def test_a_file_that_does_not_say_whose_rows_it_has_may_have_those_of_a_cleanup() -> None:
    files = [replace(file("a", 10, 0, 4), sessions=None), file("b", 10, 5, 9)]
    last = EndedPhase(3, day(1), 4)
    step = next_step(Position(epoch=9), Seen(9, files, [last]))
    assert step is not None
    assert [each.path for each in step.files] == ["a"]


def test_a_step_takes_as_many_epochs_as_it_may_hold() -> None:
    files = [file("a", 10, 0, 4), file("b", 10, 5, 9), file("c", 10, 10, 14)]
    seen = Seen(14, files, ())
    cases = {
        30: (14, 1, "abc"),
        29: (9, 1, "ab"),
        10: (4, 1, "a"),
        5: (1, 1, "a"),  # half of the file's epochs, estimated
        1: (0, 10, "a"),  # one epoch, which may have all of them
    }
    for most, (upto, parts, names) in cases.items():
        step = next_step(Position(), seen, most_rows=most)
        assert step is not None
        assert (step.upto, step.parts) == (upto, parts), most
        assert "".join(each.path for each in step.files) == names
    step = next_step(Position(), seen, most_bytes=80)
    assert step is not None
    assert step.upto == 4


def test_a_cleanup_is_cut_by_what_may_be_its_rows() -> None:
    """All rows of its files, where `sessions` does not say how many are its own."""
    seen = Seen(9, [file("a", 25, 0, 9)], ())
    for rows, parts in [(None, 3), (20, 2), (21, 3), (10, 1), (0, 1), (99, 3)]:
        ended = replace(seen, ended=[EndedPhase(3, day(0), rows)])
        step = next_step(Position(epoch=9), ended, most_rows=10)
        assert step is not None
        assert step.parts == parts, rows


def test_an_epoch_is_cut_in_parts_that_fit() -> None:
    for rows, parts in [(11, 2), (20, 2), (21, 3)]:
        step = next_step(Position(), Seen(0, [file("a", rows, 0, 0)], ()), most_rows=10)
        assert step is not None
        assert step.parts == parts, rows


def test_another_history_is_noticed() -> None:
    ended = ended_phases([SessionEvent(session=day(0), event="cleaned")])
    seen = Seen(7, (), ended)
    position = Position(epoch=7, event=0, session=day(0), newest=Newest(7, 1))
    assert another_history(position, seen, agrees=True) is None
    behind = Seen(6, (), ended)
    assert "end at epoch 6, and epoch 7" in str(another_history(position, behind, agrees=True))
    assert "from epoch 7 on it has other rows" in str(another_history(position, seen, agrees=False))
    for events in ((), ended_phases([SessionEvent(session=day(1), event="cleaned")])):
        other = Seen(7, (), events)
        assert "event 0 of sessions" in str(another_history(position, other, agrees=True))


def test_the_same_event_of_another_history_is_noticed() -> None:
    """Where nothing of run time tells: a day that was sealed elsewhere, a correction by others."""

    def history(spilled: int = 5, digest: str = "a", at: str = "") -> list[EndedPhase]:
        told = {"revision": 1, "results": 2, "digest": digest}
        return ended_phases(
            [
                SessionEvent(session=day(0), event="sealed", written_at=at),
                SessionEvent(
                    session=day(0),
                    event="cleaned",
                    run_time=0,
                    cleanup=3,
                    seconds=len(at),
                    details={"spilled_rows": spilled},
                    written_at=at,
                ),
                SessionEvent(session=day(0), event="verified", complete=True, written_at=at),
                SessionEvent(session=day(0), event="corrected", details=told, written_at=at),
            ]
        )

    seen = Seen(4, [file("a", 6, 0, 4)], history())

    def after(position: Position, most_rows: int) -> Position:
        step = next_step(position, seen, most_rows=most_rows)
        assert step is not None
        return taken(position, step, None)

    cleaned = after(Position(epoch=4), 9)
    half_corrected = after(cleaned, 1)
    assert half_corrected.under_way is not None
    corrected = now(seen)
    found = "up to event {} sessions has other cleanups and corrections"
    cases = [
        (history(), None, None),
        (history(at="2026-01-06T00:00:00Z"), None, None),  # noted again after a repair
        (history(digest="b"), None, 3),
        (history(spilled=6), 1, 3),
    ]
    for ended, at_cleanup, at_correction in cases:
        other = replace(seen, ended=ended)
        for position, at in [
            (cleaned, at_cleanup),
            (half_corrected, at_cleanup or at_correction),
            (corrected, at_correction),
        ]:
            told = another_history(position, other, agrees=True)
            assert (told or "").startswith("" if at is None else found.format(at)), (ended, told)
            assert (told is None) == (at is None)


@pytest.mark.parametrize(
    ("phase", "session", "revision", "told"),
    [
        ("cleanup", 0, 0, ""),
        (
            "cleanup",
            1,
            0,
            f"event 2 of sessions is not the end of the cleanup of {day(1)} ",
        ),
        ("correction", 0, 1, "event 2 of sessions is not the end of the correction"),
        ("cleanup", None, 0, ""),  # of version 0.1.0
        (
            "correction",
            None,
            0,
            "event 2 of sessions is not the end of the correction of a s",
        ),
    ],
)
def test_who_is_half_way_through_a_session_goes_on_with_it(
    phase: Phase, session: int | None, revision: int, told: str
) -> None:
    name = "" if session is None else day(session)
    half = UnderWay(phase=phase, upto=2, parts=3, done=1, session=name, revision=revision)
    position = Position(under_way=half)
    ended = EndedPhase(2, day(0), 9)
    found = another_history(position, Seen(0, (), [ended]), agrees=True)
    assert (found or "").startswith(told)
    assert (found is None) == (told == "")
    gone = another_history(position, Seen(0, (), [replace(ended, event=1)]), agrees=True)
    assert "event 2 of sessions is not" in str(gone)


def test_half_an_epoch_is_of_a_table_that_has_the_epoch() -> None:
    half = UnderWay(phase="run-time", upto=7, parts=3, done=1)
    position = Position(epoch=6, under_way=half)
    assert another_history(position, Seen(7, (), ()), agrees=True) is None
    told = another_history(position, Seen(6, (), ()), agrees=True)
    assert "end at epoch 6, and epoch 7" in str(told)
