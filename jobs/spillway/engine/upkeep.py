"""Writing runs, advancing merges and trimming files, within the room of the folder.

Invariant: the bytes of all files in the slot's folder (those of the manifest before, files of other
tasks of the same job, everything written now) stay within the budget. `Room` is asked before
every write; a merge or a trimming that does not fit waits, new rows that do not fit are spilled.
A little room is kept for trimming alone (`slack`), or a full folder could never recover.

Trimming comes first in a step, before anything is written: rows that were dead in the manifest that
the step begins from are dead for good, and a file without them takes the place of the old one at
once (see `state.runs`). Rows that die in this step must stay in their files until it is journaled.

Room to work. What a merge copies frees its sources one epoch later, so merging lives on the room
that the new rows leave. With little of it small files pile up, and each takes room of its own. So
room for work is kept. A merge that cannot end in this step leaves it free, and the next intake's.
When new rows would eat into it, `Room.to_spill` says how much leaves, by value as ever: as much as
came, so that the state does not grow, and the shortfall. This may begin below `spill.threshold`,
and is counted as what leaves for want of room.

Known limitation: the manifest is written whether it fits or not. Room is set aside for it, so
this matters only for small budgets, or where Spark runs a slot's task again within a job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pydantic import SecretBytes

from spillway.engine.join.kernel import Rows
from spillway.engine.join.tree import TreeSpec
from spillway.engine.spill.spillfile import quantiles
from spillway.engine.state.arrangement import (
    ALL,
    Drops,
    RunWindow,
    Segments,
    SessionState,
    everything,
)
from spillway.engine.state.digests import keyed_digest
from spillway.engine.state.merging import FileLiveness, RunSize, Shape, due_merges, to_trim
from spillway.engine.state.runs import (
    RunFile,
    bytes_of,
    encode_run,
    encode_trimmed,
    joined,
    map_run,
    merge,
    name_of,
    note_verified,
    part_of,
)
from spillway.engine.state.statefiles import Merging
from spillway.storage import StateFolder

WORK_INTAKES = 0.5
WORK_IN_BUDGET = 0.2
"""Room that merging needs, in intakes of an epoch, and at most, as a part of the budget: measured
(decision 15)."""
RunKey = tuple[str, int, int]
"""Session, input and number of a logical run."""
MANIFEST_RUN_BYTES = 320
MANIFEST_GROUP_BYTES = 136
MANIFEST_BASE_BYTES = 4096
"""Generous estimates of a manifest's size, from which room is set aside."""
SLACK_PARTS = 16
"""At most 1 / SLACK_PARTS of the budget is kept for trimming alone."""


@dataclass
class Room:
    """Bytes in the folder against the budget."""

    budget_bytes: int
    used_bytes: int
    reserve_bytes: int
    """For the manifest."""
    slack_bytes: int
    """For trimming only."""

    def left(self, *, trimming: bool = False) -> int:
        """Bytes that may still be written (negative: none)."""
        slack = 0 if trimming else self.slack_bytes
        return self.budget_bytes - self.used_bytes - self.reserve_bytes - slack

    def for_work(self, intake_bytes: int) -> int:
        """Bytes that merging needs beside an epoch's intake."""
        return int(min(WORK_INTAKES * intake_bytes, WORK_IN_BUDGET * self.budget_bytes))

    def to_spill(self, intake_bytes: int, held_bytes: int) -> int:
        """Bytes to spill so that there is room for work once an epoch's intake is stored.

        `held_bytes`: of files that the next step still needs. The others go when it begins.
        """
        going = self.used_bytes - held_bytes
        work = min(self.for_work(intake_bytes), held_bytes)  # what is not there is not merged
        short = intake_bytes + work - self.left() - going
        return intake_bytes + short if intake_bytes and short > 0 else 0


def room_of(
    shape: Shape,
    budget_bytes: int,
    used_bytes: int,
    files: int,
    groups: int,
    manifest_before: int = 0,
) -> Room:
    """The room at the start of a step. `manifest_before`: bytes of the one of the epoch before;
    generations that may come back make it larger than its files and groups alone."""
    least = max(manifest_bytes(files, groups), manifest_before + manifest_before // 4)
    reserve = min(least, budget_bytes // 4)
    slack = min(shape.file_bytes(budget_bytes), budget_bytes // SLACK_PARTS)
    return Room(budget_bytes, used_bytes, reserve, slack)


def manifest_bytes(files: int, groups: int) -> int:
    """What is set aside for the manifest of so many run files and groups."""
    return MANIFEST_BASE_BYTES + MANIFEST_RUN_BYTES * files + MANIFEST_GROUP_BYTES * groups


@dataclass
class RunWriter:
    """The slot's folder as one attempt of one epoch writes to it."""

    spec: TreeSpec
    folder: StateFolder
    warehouse_id: str
    epoch: int
    attempt: str
    key: SecretBytes
    room: Room
    shape: Shape
    files: int = 0

    def encode(
        self, session: str, input_: int, run: int, rows: Rows
    ) -> tuple[RunWindow, pa.Buffer]:
        """A file of rows (not empty) that is not written yet."""
        data = encode_run(self.spec, input_, rows)
        file = RunFile(
            file=self._name(),
            bytes=data.size,
            row_bytes=bytes_of(rows),
            digest=keyed_digest(self.key, data),
            session=session,
            input=input_,
            run=run,
            born=self.epoch,
            rows=len(rows.key_hash),
            lo=int(rows.key_hash[0]),
            hi=int(rows.key_hash[-1]),
            slice=rows.slice,
        )
        kept = Rows(rows.key_hash, rows.table, born=self.epoch, slice=rows.slice)
        return RunWindow(file, kept), data

    def write(self, part: RunWindow, data: pa.Buffer) -> None:
        """Write an encoded file."""
        self.folder.write_new(part.file.file, data)
        note_verified(self.folder.path(part.file.file))
        self.room.used_bytes += data.size

    def trim(self, part: RunWindow, rows: Rows) -> RunWindow | None:
        """Put a file with `rows` alone, which are not dead, in a part's place; None when there is
        no room for both, or nothing is gained."""
        epoch = self.epoch - 1
        data, trimmed = encode_trimmed(self.spec, part.file, rows, epoch, self.key)
        if not data.size <= min(self.room.left(trimming=True), part.bytes - 1):
            return None
        name = self._name()
        self.folder.write_new(name, data)
        self.folder.replace(part.file.file, name)
        note_verified(self.folder.path(part.file.file), trimmed)
        self.room.used_bytes += data.size - part.bytes
        return RunWindow(part.file, *map_run(self.spec, self.folder, part.file, self.key, epoch))

    def _name(self) -> str:
        self.files += 1
        return name_of(self.warehouse_id, self.epoch, self.attempt, f"{self.files - 1:05d}")

    def write_if_room(
        self,
        session: str,
        input_: int,
        run: int,
        rows: Rows,
        *,
        kept_free: int = 0,
    ) -> RunWindow | None:
        """Write a file of rows; None when that would not leave `kept_free` bytes of room."""
        room = self.room.left() - kept_free
        if bytes_of(rows) > room:
            return None
        part, data = self.encode(session, input_, run, rows)
        if data.size > room:
            return None
        self.write(part, data)
        return part


def trim(
    shelf: RunWriter,
    sessions: Mapping[str, SessionState],
    drops: Mapping[str, Drops],
    came_bytes: int,
) -> None:
    """Trim files, in the sessions' lists of parts, to have room for what came in this epoch.

    `drops`: those of the manifest that the step begins from, and no later ones.
    """
    room, shape = shelf.room, shelf.shape
    short = came_bytes + room.for_work(came_bytes) - room.left()
    if short <= 0 and room.used_bytes < shape.trim_from * room.budget_bytes:
        return
    dead = {name: everything(drops.get(name, Drops())) for name in sessions}
    worn: list[FileLiveness] = []
    where: dict[str, tuple[SessionState, list[RunWindow], int]] = {}
    for session in sessions.values():
        for parts in session.parts:
            for at, part in enumerate(parts):
                live = _live(part, dead[session.name])[1]
                worn.append(FileLiveness(part.file.file, part.row_bytes, live))
                where[part.file.file] = session, parts, at
    wanted = to_trim(
        shape,
        worn,
        folder_bytes=room.used_bytes,
        budget_bytes=room.budget_bytes,
        short_bytes=short,
        fuel=shape.fuel_bytes(came_bytes, room.budget_bytes),
    )
    late = []
    for name in wanted:
        session, parts, at = where[name]
        rows = joined(dead[session.name].slices(parts[at].rows, parts[at].file.born, ALL))
        if made := shelf.trim(parts[at], rows):
            parts[at] = made
        else:
            late.append((parts, at, rows))
    for parts, at, rows in late:  # there may be room by now
        parts[at] = shelf.trim(parts[at], rows) or parts[at]


@dataclass(frozen=True)
class Upkeep:
    """What upkeep leaves behind for the manifest."""

    merges: tuple[Merging, ...]
    next_run: int


def upkeep(
    shelf: RunWriter,
    sessions: dict[str, SessionState],
    under_way: Sequence[Merging],
    next_run: int,
    intake_bytes: int,
) -> Upkeep:
    """Drop what is dead, and advance merges. Changes the sessions' lists of parts."""
    budget = shelf.room.budget_bytes
    live: dict[str, tuple[int, int]] = {}
    _weigh(sessions, live)
    sizes: dict[RunKey, int] = {}
    slices: dict[RunKey, int | None] = {}
    for session, part in _all(sessions):
        key = _run_of(session, part)
        sizes[key] = sizes.get(key, 0) + live[part.file.file][0]
        slices[key] = part.file.slice
    kept = [m for m in under_way if any((m.session, m.input, s) in sizes for s in m.sources)]
    due, next_run = due_merges(
        shelf.shape,
        [RunSize(*key, rows, slices[key]) for key, rows in sizes.items()],
        kept,
        next_run,
    )
    fuel = shelf.shape.fuel_bytes(intake_bytes, budget)
    # What a merge has begun and not finished takes room twice.
    kept_free = intake_bytes + shelf.room.for_work(intake_bytes)
    merged, left = 0, []
    for merging in due:
        copied, done = _advance(shelf, sessions[merging.session], merging, fuel - merged, kept_free)
        merged += copied
        if not done:
            left.append(merging)
    # Of what a merge has left of its sources nothing may live any more.
    busy = {(m.session, m.input, s) for m in left for s in m.sources}
    for session in sessions.values():
        whole = everything(session.drops)
        for parts in session.parts:
            parts[:] = [p for p in parts if _run_of(session, p) not in busy or _live(p, whole)[0]]
    return Upkeep(tuple(left), next_run)


def _weigh(sessions: Mapping[str, SessionState], live: dict[str, tuple[int, int]]) -> None:
    """Note what lives of all files, and let go of those that are dead."""
    for session in sessions.values():
        whole = everything(session.drops)
        for part in session.all_parts():
            live[part.file.file] = _live(part, whole)
        for parts in session.parts:
            parts[:] = [p for p in parts if live[p.file.file][0]]


def _all(sessions: Mapping[str, SessionState]) -> Iterator[tuple[SessionState, RunWindow]]:
    for session in sessions.values():
        for part in session.all_parts():
            yield session, part


def _run_of(session: SessionState, part: RunWindow) -> RunKey:
    return session.name, part.file.input, part.file.run


def _live(part: RunWindow, whole: Segments) -> tuple[int, int]:
    """(rows, bytes) of a part that are not dead."""
    rows, sizes = whole.tally(part.rows, part.file.born)
    return int(rows[0]), int(sizes[0])


def _advance(
    shelf: RunWriter, session: SessionState, merging: Merging, fuel: int, kept_free: int
) -> tuple[int, bool]:
    """Work on a merge: (bytes written, whether it is done)."""
    parts = session.parts[merging.input]
    sources = [p for p in parts if p.file.run in merging.sources]
    hashes = [p.rows.key_hash for p in sources]
    rows = sum(len(h) for h in hashes)
    size = sum(bytes_of(p.rows) for p in sources)
    if size <= min(fuel, shelf.room.left()):
        kept_free = 0  # it ends in this step, and its sources go before the next intake comes
    aim = shelf.shape.file_bytes(shelf.room.budget_bytes)
    bounds: list[int] = []
    if size > aim + aim // 4:
        bounds = quantiles(hashes, max(1, rows * aim // size)).tolist()
    copied = 0
    whole = everything(session.drops)
    for bound in [*bounds, None]:
        if copied >= fuel:
            return copied, False
        stretch = []
        for part in sources:
            end = len(part.rows.key_hash)
            if bound is not None:
                end = int(np.searchsorted(part.rows.key_hash, np.uint64(bound)))
            stretch += whole.slices(part_of(part.rows, 0, end), part.file.born, ALL)
        made = None
        if stretch:
            rows_out = merge(stretch)
            made = shelf.write_if_room(
                session.name, merging.input, merging.target, rows_out, kept_free=kept_free
            )
            if made is None:
                return copied, False
            copied += made.file.bytes
        gone = {p.file.file for p in sources}
        sources = [] if bound is None else [q for p in sources if (q := _from(p, bound))]
        parts[:] = [
            *(p for p in parts if p.file.file not in gone),
            *sources,
            *([made] if made else []),
        ]
    return copied, True


def _from(part: RunWindow, bound: int) -> RunWindow | None:
    """A part with its window begun at `bound`; None when nothing is left."""
    file = part.file.from_hash(bound)
    first = int(np.searchsorted(part.rows.key_hash, np.uint64(bound)))
    if file is None or first == len(part.rows.key_hash):
        return None
    return RunWindow(file, part_of(part.rows, first, len(part.rows.key_hash)), part.trimmed)
