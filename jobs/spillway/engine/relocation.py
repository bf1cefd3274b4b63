"""Groups that change their slot: what the old owner gives, and how the new one takes it.

Model: the old owner's state is read from the manifest of the epoch before, so an extract may run
any number of times; it says to every new owner what it gave, or that it found nothing. Rows take
one of two ways, piece by piece:

* As a *file*, when the new owner's state lies on this host: a run file is written into that
  slot's own folder, and only its entry (name, size, keyed digest) crosses the shuffle. The new
  owner names it in its manifest and copies nothing.
* As a *block* through the shuffle otherwise, or when the new owner has no room.

Whether a folder is the new owner's is seen from the manifest that the plan names for it: where
that is, the owner's step runs, or else finds its state missing and the epoch is thrown away.

Invariants:

* Such a file is born in the epoch of the move under a name that nobody used before, so the rule
  for garbage (see `statefiles`) keeps it for every attempt of this epoch and deletes it after
  that, unless the journal named a manifest with it.
* A file that is not there, or not what was written, fails the job, and its next attempt sends
  everything through the shuffle. The state that it was made from is whole, so it must not be
  reported as lost.
* What is given leaves the slot's folder below `threshold` x budget, and below what the slot's own
  step would fill: each of several slots that give takes at most an even share of the room that
  it sees. (Attempts at the same time may see the same room; the step then finds less.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from spillway.engine.intake import merge_bounded
from spillway.engine.join.kernel import Rows
from spillway.engine.join.tree import TreeSpec
from spillway.engine.spill.spilling import rows_of
from spillway.engine.state.arrangement import RunWindow, Segments
from spillway.engine.state.loading import Loaded, load
from spillway.engine.state.runs import Missing, RunFile, joined, map_run, part_of
from spillway.engine.state.slices import by_slice
from spillway.engine.statistics import range_of
from spillway.engine.task import StepTask
from spillway.engine.upkeep import Room, RunWriter, room_of
from spillway.engine.wire.blocks import (
    Block,
    Moved,
    encode_moved,
    encode_rows,
    encode_table,
    spans_by_slot,
)
from spillway.storage import Folder, StateFolder

Neighbour = Callable[[int], tuple[StepTask, StateFolder] | None]
"""Another slot's task in this epoch and its folder as this host would name it."""


class HandoverLost(RuntimeError):
    """A file that a slot wrote into this one's folder is gone or damaged. Says which."""


def nobody(_: int) -> None:
    """A `Neighbour` that shares no folder: every row goes through the shuffle."""


def extract(
    spec: TreeSpec, task: StepTask, state: Folder, neighbour: Neighbour = nobody
) -> Iterator[Block]:
    """Blocks for the new owners of the ranges in `task.leaving` (`task.groups` names them).

    Reads the manifest of the epoch before, and writes only into the folders that `neighbour`
    knows. Tells every slot that shall get something what it gets, or that the state was not
    found: it reports that, even if this slot's own step finds it again (on the host where it
    lies, say), so nothing of it is journaled.
    """
    ranges = sorted(task.leaving, key=lambda p: p.lo)
    owners = task.groups.slot_of(np.array([p.lo for p in ranges], dtype=np.uint64))
    giving = {}
    for owner in sorted(set(owners.tolist())):
        beside = neighbour(owner)
        shelf, most = None, task.piece_bytes
        if beside is not None and (shelf := _shelf(spec, task, *beside)):
            # As the owner's step would cut them: a file that is large for its budget is hard to
            # trim.
            most = shelf.shape.new_file_bytes(beside[0].budget_bytes)
        giving[owner] = _Giving(spec, task, owner, shelf, most)
    try:
        found = load(spec, state, task.slot, task.epoch - 1, task.manifest, task.key)
    except Missing:
        for each in giving.values():
            for join in range(len(spec.joins)):
                yield each.block("moved", encode_moved(Moved(found=False)), join)
        return
    for session in found.sessions.values():
        segments = Segments.of_ranges(ranges, session.drops)
        wanted = np.ones(len(ranges), dtype=np.bool_)
        for input_, pieces in enumerate(rows_of(session, segments, wanted)):
            merged = [merge_bounded(some, task.piece_bytes) for some in by_slice(pieces)]
            for rows in (rows for some in merged for rows in some):
                for owner, spans in spans_by_slot(task.groups, rows.key_hash).items():
                    mine = joined([part_of(rows, a, b) for a, b in spans])
                    yield from giving[owner].give(session.name, input_, mine)
    at = range_of(found.manifest.figures, ranges)
    for owner, each in giving.items():
        theirs = (at >= 0) & (owners[np.maximum(at, 0)] == owner)
        if theirs.any():
            figures = found.manifest.figures.filter(pa.array(theirs))
            yield each.block("figures", encode_table(figures), spec.root.operator)
        for join in range(len(spec.joins)):
            files = tuple(f for f in each.files if spec.operators[f.input] == join)
            yield each.block("moved", encode_moved(Moved(True, each.rows[join], files)), join)


def _shelf(
    spec: TreeSpec, task: StepTask, theirs: StepTask, folder: StateFolder
) -> RunWriter | None:
    """The new owner's folder with this slot's share of its room; None: it is not on this host."""
    sizes = {info.name: info.bytes for info in folder.list()}
    if not lies_in(sizes, theirs.manifest):
        return None
    used = sum(sizes.values())
    files = 2 * len(sizes) + 4 * len(spec.inputs)
    left = room_of(theirs.shape, theirs.budget_bytes, used, files, 2 * len(theirs.groups)).left()
    left = min(left, int(theirs.threshold * theirs.budget_bytes) - used)
    share = Room(left // len(theirs.arriving), used_bytes=0, reserve_bytes=0, slack_bytes=0)
    return RunWriter(
        spec, folder, task.warehouse_id, task.epoch, task.attempt, task.key, share, theirs.shape
    )


def lies_in(names: Container[str], manifest: str | None) -> bool:
    """Whether a folder with these files is that of the slot whose state is `manifest`."""
    return manifest is not None and manifest in names


@dataclass
class _Giving:
    """What one slot gives to another."""

    spec: TreeSpec
    task: StepTask
    owner: int
    shelf: RunWriter | None
    most_bytes: int
    """Of one piece."""
    rows: Counter[int] = field(default_factory=Counter)
    """By join."""
    files: list[RunFile] = field(default_factory=list)

    def give(self, session: str, input_: int, rows: Rows) -> Iterator[Block]:
        """Write the sorted rows as files, and give blocks of what finds no room."""
        self.rows[self.spec.operators[input_]] += len(rows.key_hash)
        for piece in merge_bounded([rows], self.most_bytes):
            part = self.shelf.write_if_room(session, input_, 0, piece) if self.shelf else None
            if part is not None:
                self.files.append(part.file)
                continue
            arrays = [pa.array(piece.key_hash), *piece.table.combine_chunks().columns]
            table = pa.Table.from_arrays(arrays, schema=self.spec.state_schema(input_))
            # State comes in large blocks, which whatever carries them copies some times.
            data = encode_rows(
                table.combine_chunks().to_batches()[0],
                session=session,
                stream=self.spec.inputs[input_].name,
                compressed=True,
            )
            yield Block(self.owner, "state", self.spec.operators[input_], input_, data)

    def block(self, kind: str, data: object, join: int) -> Block:
        """A block that says which slot it comes from."""
        return Block(self.owner, kind, join, self.task.slot, data)


def adopt(
    spec: TreeSpec,
    task: StepTask,
    state: Folder,
    found: Loaded,
    sender: int,
    files: Sequence[RunFile],
) -> None:
    """Take the files that `sender` wrote into this slot's folder among the slot's runs.

    Raises HandoverLost when one is not there or not what was written; ValueError for rows of
    groups that the slot does not own.
    """
    # Runs of different sessions and inputs never meet: one number a slice serves all.
    slices = sorted({file.slice or 0 for file in files})
    first = found.next_run
    found.next_run += len(slices)
    for file in files:
        named = file._replace(run=first + slices.index(file.slice or 0))
        try:
            rows, _ = map_run(spec, state, named, task.key, task.epoch)
        except Missing as lost:
            raise HandoverLost(
                f"slot {sender} wrote state for slot {task.slot} into {state.uri}, but {lost}. "
                "Nothing is lost: the epoch runs again, and sends it through the shuffle."
            ) from lost
        if (task.groups.slot_of(rows.key_hash) != task.slot).any():
            raise ValueError(
                f"slot {task.slot} got a file of slot {sender} with groups that it does not own"
            )
        found.session(file.session).parts[file.input].append(RunWindow(named, rows))
