"""The rules that the simulated parts keep, each a small function: what a plant replaces.

The rules of the driver itself are in `jobs.protocol`, and run as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from jobs.protocol.plan import Plan
from jobs.protocol.recovery import Restore, SessionRestore
from jobs.protocol.redo import redo
from jobs.tables.garbage import Settled
from schemas.journal import Epoch, Offsets, Prefix, Sealed

from .world import COMPACTION, Entry, Folder, Identity, Row, World, covers

Parted = tuple[list[Row], list[Row]]
"""Rows that are written, and rows that stay."""


def session_of(plan: Plan, topic: str, partition: int, offset: int) -> str:
    """A row's session is a function of its coordinate: the first whose end lies above it."""
    if plan.seal is not None and offset >= at(plan.seal.end, topic, partition):
        return plan.seal.next_session
    return plan.session


def at(offsets: Offsets, topic: str, partition: int) -> int:
    """An offset; a partition that is not known began at 0."""
    known = offsets.get(topic, [])
    return known[partition] if partition < len(known) else 0


def wanted(restore: Restore, topic: str, partition: int, offset: int, key: int) -> str | None:
    """The session that a value read again belongs to, when it was in memory; None when not."""
    for session in restore.sessions:
        if session.start[topic][partition] <= offset < session.end[topic][partition]:
            return session.session if offset >= since(session, topic, partition, key) else None
    return None


def since(session: SessionRestore, topic: str, partition: int, key: int) -> int:
    """The first offset of a key's current generation: of all cuts that cover it, the last."""
    first = session.start[topic][partition]
    for cut in session.cuts:
        if covers(cut.range, key):
            first = cut.start[topic][partition]
    return first


def load(folder: Folder, manifest: str | None, epoch: int) -> tuple[str, ...] | None:
    """The runs of exactly the manifest that the journal names; None when any of it is missing."""
    if manifest is None:
        return ()
    found = folder.manifests.get(manifest)
    if found is None or any(run not in folder.runs for run in found[1]):
        return None
    return found[1]


def staying(rows: list[tuple[str, Row]], leaving: Sequence[Prefix]) -> list[tuple[str, Row]]:
    """A slot's rows without those of the groups that move away: exactly one owner has a group."""
    return [row for row in rows if not any(covers(prefix, row[1][1]) for prefix in leaving)]


def lacking(slots: list[int]) -> list[int]:
    """Slots whose groups should have come and were not found: the step then reports them."""
    return slots


def beside(folder: Folder, manifest: str | None) -> bool:
    """Whether a host's folder is that of the slot whose state the plan names."""
    return manifest in folder.manifests


def unseen(folder: Folder, handed: list[tuple[int, str]]) -> list[int]:
    """Slots that wrote a run for this one which is not in its folder: the task then fails."""
    return [source for source, run in handed if run not in folder.runs]


def garbage(folder: Folder, manifest: str | None, epoch: int) -> tuple[list[str], list[str]]:
    """Runs and manifests that a task of `epoch` deletes: only what was born at or before
    `epoch - 1` and the manifest of `epoch - 1` does not use."""
    used = folder.manifests.get(manifest, (0, ()))[1] if manifest is not None else ()
    runs = [n for n, (born, _) in folder.runs.items() if born < epoch and n not in used]
    manifests = [n for n, (born, _) in folder.manifests.items() if born < epoch and n != manifest]
    return runs, manifests


def spilled(
    rows: list[Row], ranges: Iterable[Prefix], new: set[Row]
) -> tuple[list[Row], list[Row]]:
    """What a spill of `ranges` writes (rows of the epoch itself included) and what stays."""
    out = [row for row in rows if any(covers(prefix, row[1]) for prefix in ranges)]
    return out, [row for row in rows if not any(covers(prefix, row[1]) for prefix in ranges)]


def flushed(rows: list[Row], ranges: Sequence[Prefix]) -> list[Row]:
    """What a seal writes as the last generation: every row of a range that was ever cut."""
    return [row for row in rows if any(covers(prefix, row[1]) for prefix in ranges)]


def may_clean(entries: Sequence[Entry], applied: dict[str, int], sealed: Sealed) -> bool:
    """Cleanup begins when every table is applied up to the seal."""
    return all(owed.epoch > sealed.epoch for owed in redo(entries, applied))


def units(sealed: Sealed, setting: int) -> list[Prefix]:
    """Cleanup's units: what the sealed entry says, whatever the settings are."""
    return list(sealed.ranges)


def vacuum_limit(entries: Sequence[Entry], applied: dict[str, int]) -> int:
    """The last epoch whose orphans may go: it is applied in every table, and all before it."""
    owed = redo(entries, applied)
    last = max((e.epoch for e in entries if isinstance(e, Epoch)), default=-1)
    return min((apply.epoch for apply in owed), default=last + 1) - 1


def settled(world: World, entries: Sequence[Entry]) -> Settled:
    """What can no longer change: see `jobs.tables.garbage`."""
    return Settled(
        epoch=vacuum_limit(entries, world.applied()),
        cleaned=frozenset(world.cleaned),
        transactions={
            name: {COMPACTION: table.version_of(COMPACTION)} for name, table in world.tables.items()
        },
    )


def cleaned(world: World, sealed: Sealed) -> bool:
    """Whether every unit of a session's cleanup is in the table."""
    done = world.tables["results"].version_of(f"cleanup/{sealed.session}")
    return done >= len(sealed.ranges) - 1


def over(world: World) -> set[str]:
    """Sessions whose spilled rows nobody needs any more."""
    return set(world.cleaned)


def check_then_commit(world: World, table: str, app: str, handle: int) -> int:
    """The handle that a commit uses: the one that the check was made on, not refreshed."""
    return handle


def combinations(
    old: Sequence[Sequence[Row]], new: Sequence[Sequence[Row]], need_old: bool
) -> list[Identity]:
    """Results with at least one new row (and with `need_old` at least one old row), of one key."""
    out: list[Identity] = []
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
                out.append(tuple((row[2], row[3]) for row in rows))
    return out


@dataclass(frozen=True)
class Rules:
    """The rules in force: those of DESIGN.md unless a plant replaces one."""

    session_of: Callable[[Plan, str, int, int], str] = session_of
    wanted: Callable[[Restore, str, int, int, int], str | None] = wanted
    load: Callable[[Folder, str | None, int], tuple[str, ...] | None] = load
    staying: Callable[[list[tuple[str, Row]], Sequence[Prefix]], list[tuple[str, Row]]] = staying
    beside: Callable[[Folder, str | None], bool] = beside
    unseen: Callable[[Folder, list[tuple[int, str]]], list[int]] = unseen
    lacking: Callable[[list[int]], list[int]] = lacking
    garbage: Callable[[Folder, str | None, int], tuple[list[str], list[str]]] = garbage
    spilled: Callable[[list[Row], Iterable[Prefix], set[Row]], Parted] = spilled
    flushed: Callable[[list[Row], Sequence[Prefix]], list[Row]] = flushed
    may_clean: Callable[[Sequence[Entry], dict[str, int], Sealed], bool] = may_clean
    units: Callable[[Sealed, int], list[Prefix]] = units
    settled: Callable[[World, Sequence[Entry]], Settled] = settled
    cleaned: Callable[[World, Sealed], bool] = cleaned
    over: Callable[[World], set[str]] = over
    check_then_commit: Callable[[World, str, str, int], int] = check_then_commit
    journal_accepts: Callable[[World, Entry, int], bool] = lambda world, entry, handle: (
        len(world.journal) == handle == entry.n
    )
    sync_files: bool = True
    """The driver syncs data files before the journal names them."""
    sync_before_vacuum: bool = True
    """Vacuum syncs a table's log before it deletes what that log has removed."""
    sync_before_cleaned: bool = True
    """Cleanup syncs the results' log before it calls the session cleaned."""
    sync_what_is_read: bool = True
    """Who acts on what the journal says syncs it first, whoever wrote it."""
