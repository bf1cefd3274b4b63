"""What the simulated parts lean on: the product's own functions where there are any, and where it
is an edge that keeps a rule (a commit, a file system, Kafka) a small function in its place.

A plant replaces one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from spillway.cleanup.plan import owed, stages
from spillway.cleanup.task import generation_of
from spillway.engine.groups import I64, U64, Bool, GroupMap
from spillway.engine.intake import Intake
from spillway.engine.join.kernel import Rows
from spillway.engine.relocation import lies_in
from spillway.engine.spill.spilling import flush_ranges, rows_of, spared
from spillway.engine.state.arrangement import Drops, Segments, SessionState
from spillway.engine.state.loading import Loaded
from spillway.engine.state.runs import Missing
from spillway.engine.state.statefiles import Manifest, demand, garbage
from spillway.engine.task import StepTask
from spillway.engine.wire.blocks import Moved
from spillway.protocol.recovery import SessionRestore
from spillway.protocol.redo import settled_epoch
from spillway.stream.decoding import DecodeTask, _by_session, were_held
from spillway.tables.garbage import Settled
from spillway_schemas.journal import Offsets, Prefix, Sealed

from .world import COMPACTION, SPEC, Entry, Folder, Row, World

Sliced = tuple[list[Rows], list[Rows]]
"""Rows that are written, and rows that came in the epoch and stay."""


def at(offsets: Offsets, topic: str, partition: int) -> int:
    """An offset; a partition that is not known began at 0."""
    known = offsets.get(topic, [])
    return known[partition] if partition < len(known) else 0


def load(folder: Folder, slot: int, epoch: int, manifest: str | None) -> Loaded:
    """Exactly the state that the journal names, as `spillway.engine.state.loading.load` maps it.

    Raises Missing when anything of it is not there.
    """
    sizes = folder.sizes()
    if manifest is None:
        return Loaded(SPEC, Manifest(slot, epoch), sizes, 0)
    if manifest not in sizes:
        raise Missing(manifest)
    named = folder.manifests[manifest]
    demand(manifest, {run.file: run.bytes for run in named.runs}, sizes)
    found = Loaded(SPEC, named, sizes, 0)
    for run in named.runs:
        part = folder.runs[run.file]
        if part.trimmed and part.trimmed.epoch > epoch:
            raise Missing(f"{run.file} was trimmed after epoch {part.trimmed.epoch}")
        found.session(run.session).parts[0].append(part)
    return found


def dead_for_good(manifest: Manifest, session: SessionState) -> Drops:
    """The drops by which a session's files are trimmed: what the journal says, and no more."""
    return manifest.drops.get(session.name, Drops())


def leave(session: SessionState, task: StepTask) -> None:
    """Drop the groups that move away: exactly one owner has a group."""
    session.drops = session.drops.drop(task.leaving, task.epoch)


def unseen(folder: Folder, moved: Moved) -> bool:
    """Whether a run that another slot wrote for this one is not in its folder: the task fails."""
    return any(file.file not in folder.runs for file in moved.files)


def spilled(session: SessionState, segments: Segments, gone: Bool) -> Sliced:
    """What a spill writes (rows of the epoch itself included), and what of that stays."""
    fresh = [*session.installed[0], *session.new[0]]
    written = [rows for pieces in rows_of(session, segments, gone) for rows in pieces]
    return written, [rows for slices in spared(fresh, segments, gone) for rows in slices]


def drop_spilled(session: SessionState, ranges: Sequence[Prefix], epoch: int) -> None:
    """Leave what was spilled out of the files that stay."""
    session.drops = session.drops.drop(ranges, epoch)


def may_clean(entries: Sequence[Entry], applied: dict[str, int], sealed: Sealed) -> bool:
    """Cleanup begins when every table is applied up to the seal."""
    return not owed(entries, applied, sealed.epoch)


def units(sealed: Sealed, setting: int) -> list[Prefix]:
    """Cleanup's units: what the sealed entry says, whatever the settings are."""
    return list(sealed.ranges)


def settled(world: World, entries: Sequence[Entry]) -> Settled:
    """What can no longer change, as `Warehouse.settled` gathers it."""
    return Settled(
        epoch=settled_epoch(entries, world.applied()),
        cleaned=frozenset(world.cleaned),
        transactions={
            name: {COMPACTION: table.version_of(COMPACTION)} for name, table in world.tables.items()
        },
    )


def cleaned(world: World, sealed: Sealed) -> bool:
    """Whether every unit of a session's cleanup is in the table."""
    return cleaned_to(world, sealed.session) >= len(sealed.ranges) - 1


def cleaned_to(world: World, session: str) -> int:
    """The last unit of a session's cleanup that is in a table."""
    return max(world.tables[name].version_of(f"cleanup/{session}") for name in ("results", "spill"))


def over(world: World) -> set[str]:
    """Sessions whose spilled rows nobody needs any more."""
    return set(world.cleaned)


def told_of_unfound(slot: int, slots: Iterable[int]) -> Iterable[int]:
    """The slots, of all that there are, that hear of it when a slot's probe found nothing."""
    return slots


def check_then_commit(world: World, table: str, app: str, handle: int) -> int:
    """The handle that a commit uses: the one that the check was made on, not refreshed."""
    return handle


def combinations(
    old: Sequence[Sequence[Row]], new: Sequence[Sequence[Row]], need_old: bool
) -> list[tuple[Row, ...]]:
    """Results with at least one new row (and with `need_old` at least one old row), of one key."""
    out: list[tuple[Row, ...]] = []
    for first, mine in enumerate(new):
        if not mine:
            continue
        parts = [
            *old[:first],
            mine,
            *([*o, *n] for o, n in zip(old[first + 1 :], new[first + 1 :], strict=True)),
        ]
        for rows in product(*parts):
            if not need_old or any(row in old[i] for i, row in enumerate(rows)):
                out.append(rows)
    return out


def may_return(join: int, root: int) -> bool:
    """Whether a spilled generation of a join may come back: what it lacked must not be input of
    another join."""
    return join == root


@dataclass(frozen=True)
class Rules:
    """The rules in force: the product's unless a plant replaces one."""

    by_session: Callable[[DecodeTask, int | None, I64], Iterator[tuple[str, Bool | None]]] = (
        _by_session
    )
    were_held: Callable[[DecodeTask, SessionRestore, str, int, I64, U64], Bool] = were_held
    load: Callable[[Folder, int, int, str | None], Loaded] = load
    leave: Callable[[SessionState, StepTask], None] = leave
    beside: Callable[[Container[str], str | None], bool] = lies_in
    unseen: Callable[[Folder, Moved], bool] = unseen
    lacking: Callable[[Intake, Iterable[int]], list[int]] = Intake.lacking
    told_of_unfound: Callable[[int, Iterable[int]], Iterable[int]] = told_of_unfound
    generation_of: Callable[[int, int], int] = generation_of
    may_return: Callable[[int, int], bool] = may_return
    stages: Callable[[Sequence[Prefix], Sequence[int]], list[list[int]]] = stages
    garbage: Callable[[str, Iterable[str], int, Collection[str | None], str], Iterable[str]] = (
        garbage
    )
    dead_for_good: Callable[[Manifest, SessionState], Drops] = dead_for_good
    spilled: Callable[[SessionState, Segments, Bool], Sliced] = spilled
    drop_spilled: Callable[[SessionState, Sequence[Prefix], int], None] = drop_spilled
    flush_ranges: Callable[[GroupMap, int, Sequence[Prefix]], list[Prefix]] = flush_ranges
    may_clean: Callable[[Sequence[Entry], dict[str, int], Sealed], bool] = may_clean
    units: Callable[[Sealed, int], list[Prefix]] = units
    settled: Callable[[World, Sequence[Entry]], Settled] = settled
    cleaned: Callable[[World, Sealed], bool] = cleaned
    over: Callable[[World], set[str]] = over
    check_then_commit: Callable[[World, str, str, int], int] = check_then_commit
    journal_accepts: Callable[[World, Entry, int], bool] = lambda world, entry, handle: (
        len(world.journal) == handle == entry.n
    )
    fails_on_data_loss: bool = True
    """A read of rows that Kafka holds no more fails."""
    sync_files: bool = True
    """The driver syncs data files before the journal names them."""
    sync_before_vacuum: bool = True
    """Vacuum syncs a table's log before it deletes what that log has removed."""
    sync_before_cleaned: bool = True
    """Cleanup syncs the results' log before it calls the session cleaned."""
    sync_between_stages: bool = True
    """Cleanup syncs what joins below lacked before a join above it is cleaned with that."""
    sync_what_is_read: bool = True
    """Who acts on what the journal says syncs it first, whoever wrote it."""
