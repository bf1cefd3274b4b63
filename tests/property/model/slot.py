"""One task of one slot: the engine's contract, with lists in place of Arrow.

A task is a generator: it yields wherever it could die, hang, or be overtaken. Its host may be
lost in between, which raises `Killed`. It returns the slot's report.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from random import Random

from jobs.engine.groups import GroupMap, relocations
from jobs.protocol.plan import Plan
from jobs.tables.names import data_name
from schemas.journal import Cut, FileRecord, PartitionCount, Prefix, SlotReport

from .rules import Rules, combinations
from .world import Folder, Identity, Killed, Row, Stored, World, covers

Rejected = tuple[int, int, int]
"""Input, partition, offset."""


@dataclass
class Blocks:
    """What the shuffle brings to one slot."""

    new: list[tuple[str, Row]] = field(default_factory=list)
    restored: list[tuple[str, Row]] = field(default_factory=list)
    moved: list[tuple[str, Row]] = field(default_factory=list)
    handed: list[tuple[int, str]] = field(default_factory=list)
    """Runs with moved rows that another slot wrote into this one's folder, and that slot."""
    lacking: list[int] = field(default_factory=list)
    """Slots that should have given groups to this one, and whose state was not found."""
    rejected: list[tuple[str, Rejected]] = field(default_factory=list)
    read: list[PartitionCount] = field(default_factory=list)
    read_again: list[PartitionCount] = field(default_factory=list)


@dataclass(frozen=True)
class Task:
    """What the plan says to one slot, and how eagerly it spills."""

    slot: int
    plan: Plan
    manifest: str | None
    blocks: Blocks
    spill_rate: float


def run(
    world: World, rules: Rules, task: Task, host: int, attempt: str, rng: Random
) -> Generator[None, None, SlotReport]:
    """Load, collect garbage, install, join, spill, write, name the new manifest."""
    life = world.hosts[host].life

    def alive() -> Folder:
        if world.hosts[host].life != life:
            raise Killed
        return world.hosts[host].folder(task.slot)

    plan, epoch = task.plan, task.plan.epoch
    folder = alive()
    runs = rules.load(folder, task.manifest, epoch)
    if runs is None:
        return SlotReport(
            slot=task.slot,
            epoch=epoch,
            attempt=attempt,
            status="missing",
            detail=str(task.manifest),
        )
    if rules.unseen(folder, task.blocks.handed):
        raise Killed
    if rules.lacking(task.blocks.lacking):
        return SlotReport(
            slot=task.slot,
            epoch=epoch,
            attempt=attempt,
            status="missing",
            detail="groups to come",
            lacking=task.blocks.lacking,
        )
    before = rules.staying(
        [row for run in runs for row in folder.runs[run][1]], leaving(plan, task.slot)
    )
    handed = [run for _, run in task.blocks.handed if run in folder.runs]
    given = [row for run in handed for row in folder.runs[run][1]]
    moves = len(before) < sum(len(folder.runs[run][1]) for run in runs)
    yield
    folder = alive()
    old_runs, old_manifests = rules.garbage(folder, task.manifest, epoch)
    for name in old_runs:
        del folder.runs[name]
    for name in old_manifests:
        del folder.manifests[name]
    yield

    files: list[FileRecord] = []

    def write(table: str, session: str, rows: list[tuple[str, int, object]]) -> None:
        path = f"session_date={session}/{data_name(epoch, attempt, task.slot, len(files))}"
        world.store[path] = Stored(table, rows)
        files.append(FileRecord(table=table, path=path, bytes=len(rows), rows=len(rows), digest=""))

    state = by_session([*before, *task.blocks.restored, *task.blocks.moved, *given])
    fresh = by_session(task.blocks.new)
    results: dict[str, int] = {}
    for session, rows in sorted(fresh.items()):
        found = joined(state.get(session, []), rows, plan_inputs(world))
        if found:
            alive()
            write("results", session, [(session, 0, identity) for identity in found])
            results[session] = len(found)
    if task.blocks.rejected:
        for session in sorted({s for s, _ in task.blocks.rejected}):
            bad = [(s, 0, row) for s, row in task.blocks.rejected if s == session]
            write("quarantine", session, list[tuple[str, int, object]](bad))
    yield

    alive()
    cuts: list[Cut] = []
    counts: dict[str, int] = {}
    kept: list[tuple[str, Row]] = []
    dropped = moves
    for session in sorted({*state, *fresh}):
        mine = fresh.get(session, [])
        rows = [*state.get(session, []), *mine]
        ranges = victims(task, rows, rng)
        out, rows = rules.spilled(rows, ranges, set(mine))
        if plan.sealing and session == plan.session:
            last = [*plan.flush, *ranges]
            out, rows = [*out, *rules.flushed(rows, last)], []
            ranges = sorted({r for r in last if any(covers(r, row[1]) for row in out)})
            dropped = True
        if ranges:
            dropped = True
            cuts += [Cut(session=session, operator=0, range=r, epoch=epoch) for r in ranges]
        if out:
            counts[session] = len(out)
            write("spill", session, [(session, epoch, row) for row in out])
        kept += [(session, row) for row in rows]
    yield

    folder = alive()
    run_name = f"r-{epoch}-{attempt}"
    if dropped or rng.random() < 0.3:
        folder.runs[run_name] = (epoch, kept)
        named: tuple[str, ...] = (run_name,)
    else:
        fresh_rows = [*task.blocks.restored, *task.blocks.moved, *task.blocks.new]
        folder.runs[run_name] = (epoch, fresh_rows)
        named = (*runs, *handed, run_name)
    yield

    folder = alive()
    manifest = f"m-{epoch}-{attempt}"
    folder.manifests[manifest] = (epoch, named)
    return SlotReport(
        slot=task.slot,
        epoch=epoch,
        attempt=attempt,
        manifest=manifest,
        files=files,
        cuts=cuts,
        read=task.blocks.read,
        restored=task.blocks.read_again,
        results=results,
        spilled_rows=counts,
    )


def leaving(plan: Plan, slot: int) -> list[Prefix]:
    """Ranges that a slot gives away in this epoch."""
    ranges = relocations(GroupMap(plan.before), GroupMap(plan.groups))
    return [range_ for (source, _), moved in ranges.items() if source == slot for range_ in moved]


def plan_inputs(world: World) -> int:
    """How many inputs the join has."""
    return world.inputs


def by_session(rows: Iterable[tuple[str, Row]]) -> dict[str, list[Row]]:
    """Rows of each session."""
    out: dict[str, list[Row]] = {}
    for session, row in rows:
        out.setdefault(session, []).append(row)
    return out


def by_key(rows: Iterable[Row], inputs: int) -> dict[int, list[list[Row]]]:
    """Per key, the rows of each input."""
    out: dict[int, list[list[Row]]] = {}
    for row in rows:
        if row[1] not in out:
            out[row[1]] = [[] for _ in range(inputs)]
        out[row[1]][row[0]].append(row)
    return out


def joined(
    old: Iterable[Row], new: Iterable[Row], inputs: int, need_old: bool = False
) -> list[Identity]:
    """The results that new rows bring."""
    before = by_key(old, inputs)
    none: list[list[Row]] = [[] for _ in range(inputs)]
    return [
        identity
        for key, rows in by_key(new, inputs).items()
        for identity in combinations(before.get(key, none), rows, need_old)
    ]


def victims(task: Task, rows: list[Row], rng: Random) -> list[Prefix]:
    """Ranges to spill, at random: groups, halves of groups, and pairs of groups of this slot.

    Attempts of an epoch need not agree, and cuts need not be whole groups.
    """
    out: list[Prefix] = []
    forced = task.slot in dict(task.plan.forced)
    for group, slot in task.plan.groups:
        if slot != task.slot or rng.random() >= (0.9 if forced else task.spill_rate):
            continue
        chosen = group
        if rng.random() < 0.2:
            chosen = Prefix(group.depth + 1, group.value * 2 + rng.randint(0, 1))
        elif group.depth and rng.random() < 0.25:
            parent = Prefix(group.depth - 1, group.value >> 1)
            if all(s == slot for g, s in task.plan.groups if g.overlaps(parent)):
                chosen = parent
        if chosen not in out and (
            rng.random() < 0.05 or any(covers(chosen, row[1]) for row in rows)
        ):
            out.append(chosen)
    return out
