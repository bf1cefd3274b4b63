"""One task of one slot: the engine's step, with lists in place of Arrow.

What a step keeps, drops, flushes and deletes, and what it refuses, is said by the functions that
`spillway.engine.step` calls; only the join, the files and the choice of victims are made up.

A task is a generator: it yields wherever it could die, hang, or be overtaken. Its host may be
lost in between, which raises `Killed`. It returns the slot's report.
"""

from __future__ import annotations

from collections.abc import Container, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np
import pyarrow as pa

from spillway.engine.groups import Bool, GroupMap, disjoint_ranges
from spillway.engine.intake import Intake
from spillway.engine.join.kernel import Rows
from spillway.engine.replay import Generations
from spillway.engine.spill.spilling import rows_of
from spillway.engine.state.arrangement import (
    ALL,
    Drops,
    RunWindow,
    Segments,
    SessionState,
    everything,
)
from spillway.engine.state.kept import KeptGenerations
from spillway.engine.state.loading import Loaded
from spillway.engine.state.runs import Missing, RunFile, Trimmed, name_of
from spillway.engine.state.statefiles import FIGURES_SCHEMA, Manifest
from spillway.engine.task import StepTask
from spillway.engine.wire.blocks import Moved
from spillway_schemas.filenames import data_name, turn_of
from spillway_schemas.hash_space import join_of, spaces
from spillway_schemas.journal import Cut, FileRecord, PartitionCount, Prefix, SlotReport

from .rules import Rules, combinations
from .world import (
    WAREHOUSE,
    Folder,
    Identity,
    Killed,
    Row,
    Stored,
    Tree,
    World,
    covers,
    hashes_of,
    packed,
)

Rejected = tuple[int, int, int]
"""Input, partition, offset."""


@dataclass
class Blocks:
    """What the shuffle brings to one slot."""

    new: list[tuple[str, Row]] = field(default_factory=list)
    restored: list[tuple[str, Row]] = field(default_factory=list)
    moved: list[tuple[str, Row]] = field(default_factory=list)
    figures: list[pa.Table] = field(default_factory=list)
    """Of groups that come from other slots."""
    told: dict[tuple[int, int], Moved] = field(default_factory=dict)
    """Per slot that groups come from, what it says it gave (of all joins together)."""
    replayed: list[tuple[str, Row, int]] = field(default_factory=list)
    """For probes: rows of old, each with its interval."""
    unfound: dict[int, str] = field(default_factory=dict)
    """Slots whose state a probe did not find."""
    rejected: list[tuple[str, Rejected]] = field(default_factory=list)
    read: list[PartitionCount] = field(default_factory=list)
    read_again: list[PartitionCount] = field(default_factory=list)


@dataclass(frozen=True)
class Work:
    """One slot's task with its blocks, and how eagerly it spills."""

    task: StepTask
    blocks: Blocks
    spill_rate: float


def run(
    world: World, rules: Rules, work: Work, host: int, attempt: str, rng: Random
) -> Generator[None, None, SlotReport]:
    """Load, collect garbage, install, trim, join, flush, spill, write, name the new manifest."""
    life = world.hosts[host].life
    task, blocks = replace(work.task, attempt=attempt), work.blocks

    def alive() -> Folder:
        if world.hosts[host].life != life:
            raise Killed
        return world.hosts[host].folder(task.slot)

    folder = alive()
    try:
        found = rules.load(folder, task.slot, task.epoch - 1, task.manifest)
    except Missing as lost:
        return missing(task, {task.slot: str(lost)})
    intake = Intake(moved=blocks.told, moved_rows=len(blocks.moved))
    lacking = rules.lacking(intake, task.arriving)
    if unfound := blocks.unfound | dict.fromkeys(lacking, "groups to come"):
        return missing(task, unfound)
    intake.demand_all_moved(task.slot)
    adopt(rules, folder, blocks, found)
    yield
    folder = alive()
    used = {task.manifest, *(run.file for run in found.manifest.runs)} if task.manifest else set()
    turn = turn_of(attempt)
    for name in list(rules.garbage(WAREHOUSE, folder.sizes(), task.born_before, used, turn)):
        folder.delete(name)
    yield

    install(rules, task, blocks, found)
    trim(rules, folder, found, task.epoch - 1, rng)
    yield
    alive()
    files: list[FileRecord] = []

    def write(table: str, session: str, rows: list[tuple[str, int, object]]) -> None:
        path = f"session_date={session}/{data_name(task.epoch, attempt, task.slot, len(files))}"
        world.store[path] = Stored(table, rows)
        files.append(FileRecord(table=table, path=path, bytes=len(rows), rows=len(rows), digest=""))

    results: dict[str, int] = {}
    keys: dict[str, set[int]] = {}
    known = pa.concat_tables([found.manifest.figures, *blocks.figures])
    kept: dict[str, KeptGenerations] = {}
    voided: list[Cut] = []
    for name, session in sorted(found.sessions.items()):
        old, new = listed([*living(session), *session.installed[0]]), listed(session.new[0])
        root = {world.tree.root}
        identities = [identity for _, identity in joined(world.tree, old, new, root)]
        kept[name] = KeptGenerations.known(known, name, task.groups)
        if name not in task.flush:
            wanted = returning(world, rules, work, kept[name], rng)
            back, cuts_back = brought_back(world, task, name, kept[name], wanted)
            kept[name] = kept[name].without_newest(wanted)
            voided += cuts_back
            identities += given_with(world.tree, back, [*old, *new])
            session.installed[0] += [packed(back)] if back else []
            old += back
        keys[name] = {row[1] for row in (*old, *new)}
        if identities:
            alive()
            write("results", name, [(name, 0, identity) for identity in identities])
            results[name] = len(identities)
    for name in sorted({s for s, _ in blocks.rejected}):
        bad = [(s, 0, row) for s, row in blocks.rejected if s == name]
        write("quarantine", name, list[tuple[str, int, object]](bad))
    yield

    alive()
    cuts: list[Cut] = []
    counts: dict[str, int] = {}
    stays: dict[str, list[Rows]] = {}
    for name, session in sorted(found.sessions.items()):
        if name in task.flush:
            ranges = rules.flush_ranges(task.groups, task.slot, task.flush[name])
            segments = Segments.of_ranges(ranges, session.drops)
            written = [
                rows_of(session, segments, np.arange(len(ranges)) == at)[0]
                for at in range(len(ranges))
            ]
            ranges = [each for each, rows in zip(ranges, written, strict=True) if rows]
            out = [rows for pieces in written for rows in pieces]
            del found.sessions[name]
        else:
            ranges = victims(work, keys[name], len(world.tree.joins), rng)
            out, stays[name] = [], [*session.installed[0], *session.new[0]]
            if ranges:
                groups = refined(task.groups, ranges)
                segments = Segments.of_groups(groups, session.drops)
                gone = np.array([each in ranges for each in groups.prefixes])
                out, stays[name] = rules.spilled(session, segments, gone)
                rules.drop_spilled(session, ranges, task.epoch)
        joins = len(world.tree.joins)
        other = [each for each in ranges if each not in task.groups.prefixes]
        kept[name] = kept[name].without(overlapping(task.groups, other))
        cuts += [
            Cut(session=name, operator=join_of(r, joins), range=r, epoch=task.epoch) for r in ranges
        ]
        if rows := listed(out):
            counts[name] = len(rows)
            write("spill", name, [(name, task.epoch, row) for row in rows])
        if whole_ := [each for each in ranges if each in task.groups.prefixes]:
            # A cut of nothing has no file: what it ended cannot come back.
            gone = overlapping(task.groups, whole_)
            kept[name] = (
                kept[name].without(gone)
                if not rows
                else with_cut(kept[name], rows, task.groups, gone, files[-1], task.epoch)
            )
    yield

    folder = alive()
    for name, session in found.sessions.items():
        if rng.random() < 0.3:  # merged, and what is dead left out
            stays[name] += living(session)
            session.parts[0] = []
        if rows := listed(stays[name]):
            file = name_of(WAREHOUSE, task.epoch, attempt, str(len(folder.runs)))
            folder.runs[file] = written_run(file, name, task.epoch, rows)
            session.parts[0].append(folder.runs[file])
    yield

    folder = alive()
    manifest = name_of(WAREHOUSE, task.epoch, attempt, "0", "manifest")
    figures = figures_of(task, {name: kept[name] for name in found.sessions})
    folder.manifests[manifest] = manifest_of(task, found.sessions.values(), figures)
    return SlotReport(
        slot=task.slot,
        epoch=task.epoch,
        attempt=attempt,
        manifest=manifest,
        files=files,
        cuts=cuts,
        voided=voided,
        read=blocks.read,
        restored=blocks.read_again,
        results=results,
        spilled_rows=counts,
    )


def adopt(rules: Rules, folder: Folder, blocks: Blocks, found: Loaded) -> None:
    """Take the runs that other slots wrote here. Raises Killed when one is not there."""
    for sender in sorted(blocks.told):
        if rules.unseen(folder, blocks.told[sender]):
            raise Killed
        for file in blocks.told[sender].files:
            if file.file in folder.runs:
                found.session(file.session).parts[0].append(folder.runs[file.file])


def install(rules: Rules, task: StepTask, blocks: Blocks, found: Loaded) -> None:
    """Drop what leaves, add what came."""
    for session in found.sessions.values():
        rules.leave(session, task)
    for name, rows in by_session([*blocks.restored, *blocks.moved]).items():
        found.session(name).installed[0].append(packed(rows))
    for name, rows in by_session(blocks.new).items():
        found.session(name).new[0].append(packed(rows))


def trim(rules: Rules, folder: Folder, found: Loaded, epoch: int, rng: Random) -> None:
    """Take dead rows out of some files, under their names."""
    for session in found.sessions.values():
        whole = everything(rules.dead_for_good(found.manifest, session))
        for at, part in enumerate(session.parts[0]):
            live = listed(whole.slices(part.rows, part.file.born, ALL))
            if live and part.file.file in folder.runs and rng.random() < 0.5:
                size = len(live)
                now = Trimmed(epoch, size, size, part.file.digest, "")
                rows = replace(packed(live), born=part.file.born)
                session.parts[0][at] = RunWindow(part.file, rows, now)
                folder.runs[part.file.file] = session.parts[0][at]


def probe(
    world: World, rules: Rules, task: StepTask, blocks: Blocks, level: int, host: int
) -> Blocks:
    """What a slot's joins of a level give, for whichever slots own it. Writes nothing.

    Raises Killed when a run that another slot wrote here is not there.
    """
    folder = world.hosts[host].folder(task.slot)
    try:
        found = rules.load(folder, task.slot, task.epoch - 1, task.manifest)
    except Missing as lost:
        return Blocks(unfound={task.slot: str(lost)})
    lacking = rules.lacking(Intake(moved=blocks.told), task.arriving)
    if unfound := dict.fromkeys(lacking, "groups to come") | blocks.unfound:
        return Blocks(unfound=unfound)
    adopt(rules, folder, blocks, found)
    install(rules, task, blocks, found)
    given = Blocks()
    joins = world.tree.at_level(level)
    for name, session in sorted(found.sessions.items()):
        old, new = listed([*living(session), *session.installed[0]]), listed(session.new[0])
        for join, identity in joined(world.tree, old, new, joins):
            given.new.append((name, world.lifted(join, identity)))
    for name, replay in task.replays.items():
        mine = {row: interval for session, row, interval in blocks.replayed if session == name}
        for join in sorted(joins & replay.joins):
            replayed(world, task, name, join, mine, given)
    return given


def replayed(
    world: World,
    task: StepTask,
    session: str,
    join: int,
    rows: Mapping[Row, int],
    given: Blocks,
) -> None:
    """What a join gave of old, as `spillway.engine.replay` makes it again."""
    tree, replay = world.tree, task.replays[session]
    generations = Generations(replay)

    def generation(row: Row, interval: int) -> tuple[int, int]:
        hashes = hashes_of([row[1]])
        of = generations.of(hashes, np.array([interval]))
        return int(of[0]), int(generations.now(hashes)[0])

    apart: dict[int, list[Row]] = {}
    for row, interval in rows.items():
        if tree.join_of(row[1]) == join:
            apart.setdefault(generation(row, interval)[0], []).append(row)
    for together in apart.values():
        for parts in by_parts(tree, [], together, {join}):
            row = world.lifted(join, made_of(parts))
            interval = max(rows[part] for part in parts)
            if tree.parents[join] in replay.joins:
                given.replayed.append((session, row, interval))
            of, now = generation(row, interval)
            lost = int(task.groups.slot_of(hashes_of([row[1]]))[0]) in replay.slots
            if lost and of == now:
                given.restored.append((session, row))


def missing(task: StepTask, unfound: dict[int, str]) -> SlotReport:
    """The report of a step that did nothing."""
    return SlotReport(
        slot=task.slot,
        epoch=task.epoch,
        attempt=task.attempt,
        status="missing",
        unfound=unfound,
    )


def written_run(file: str, session: str, born: int, rows: Sequence[Row]) -> RunWindow:
    """A run file."""
    held = packed(rows)
    entry = RunFile(file, len(rows), 0, "", session, 0, 0, born, len(rows), 0, 0)
    return RunWindow(entry, replace(held, born=born))


def returning(world: World, rules: Rules, work: Work, kept: KeptGenerations, rng: Random) -> Bool:
    """Groups of this slot whose newest spilled generation comes back: at random, of the root."""
    task, joins = work.task, len(world.tree.joins)
    wanted = np.zeros(len(task.groups), dtype=np.bool_)
    for group in sorted(set(kept.group.tolist())):
        of_root = rules.may_return(join_of(task.groups.prefixes[group], joins), world.tree.root)
        own = task.groups.slots[group] == task.slot
        wanted[group] = own and of_root and rng.random() < work.spill_rate
    return wanted


def brought_back(
    world: World, task: StepTask, session: str, kept: KeptGenerations, wanted: Bool
) -> tuple[list[Row], list[Cut]]:
    """What comes back, and the cuts that it takes back.

    `wanted` is cleared where a file is gone.
    """
    rows: list[Row] = []
    cuts: list[Cut] = []
    joins = len(world.tree.joins)
    for each in kept.newest_of(wanted).to_pylist():
        if each["path"] not in world.store:
            wanted[each["group"]] = False
            continue
        range_, epoch = task.groups.prefixes[each["group"]], each["epoch"]
        held = [
            row
            for _, generation, row in world.store[each["path"]].rows
            if generation == epoch and covers(range_, row[1])  # type: ignore[index]
        ]
        assert len(held) == each["rows"], f"{each} has {len(held)} rows of {range_.text}"
        rows += held  # type: ignore[arg-type]
        cuts.append(
            Cut(session=session, operator=join_of(range_, joins), range=range_, epoch=epoch)
        )
    return rows, cuts


def given_with(tree: Tree, back: Iterable[Row], held: Iterable[Row]) -> list[Identity]:
    """The results of rows that come back with those that are there."""
    return [identity for _, identity in joined(tree, back, held, {tree.root}, need_old=True)]


def overlapping(groups: GroupMap, ranges: Sequence[Prefix]) -> Bool:
    """Groups (g,) that share a hash with a range."""
    return np.array([any(p.overlaps(r) for r in ranges) for p in groups.prefixes], dtype=np.bool_)


def with_cut(
    kept: KeptGenerations,
    rows: Sequence[Row],
    groups: GroupMap,
    gone: Bool,
    file: FileRecord,
    epoch: int,
) -> KeptGenerations:
    """With a cut of some groups, by the rows that it wrote."""
    held = np.bincount(groups.group_of(hashes_of([row[1] for row in rows])), minlength=len(groups))
    nothing = np.zeros(len(groups), dtype=np.int64)
    found = kept.with_cut(gone & (held > 0), held, held, nothing, file, epoch=epoch, now_ms=0)
    return found.without(gone & (held == 0))


def figures_of(task: StepTask, kept: Mapping[str, KeptGenerations]) -> pa.Table:
    """What the manifest says of groups: here what may come back, and no figure."""
    tables = [FIGURES_SCHEMA.empty_table()]
    for session, each in kept.items():
        shown = np.unique(each.group)
        shown = shown[task.groups.slots[shown] == task.slot]
        tables.append(
            pa.table(
                [
                    pa.repeat(session, len(shown)),
                    pa.array(task.groups.depths[shown].astype(np.int32)),
                    pa.array(task.groups.values[shown]),
                    *(zeros(len(shown), of.type) for of in list(FIGURES_SCHEMA)[3:-1]),
                    each.column(shown),
                ],
                schema=FIGURES_SCHEMA,
            )
        )
    return pa.concat_tables(tables)


def zeros(n: int, kind: pa.DataType) -> pa.Array:
    """n times nothing."""
    nothing = [0] * kind.list_size if pa.types.is_fixed_size_list(kind) else 0
    return pa.array([nothing] * n, kind)


def manifest_of(task: StepTask, sessions: Iterable[SessionState], figures: pa.Table) -> Manifest:
    """What a step leaves: its runs, and the drops that some run is old enough for."""
    runs: list[RunFile] = []
    drops: dict[str, Drops] = {}
    for session in sessions:
        mine = [part.file for part in session.parts[0]]
        if mine:
            runs += mine
            drops[session.name] = session.drops.since(min(file.born for file in mine))
    return Manifest(task.slot, task.epoch, runs=tuple(runs), drops=drops, figures=figures)


def living(session: SessionState) -> list[Rows]:
    """The rows of a session's files that no drop has killed."""
    if not session.parts[0]:
        return []
    whole = everything(session.drops)
    return [
        rows for part in session.parts[0] for rows in whole.slices(part.rows, part.file.born, ALL)
    ]


def listed(pieces: Iterable[Rows]) -> list[Row]:
    """The rows themselves."""
    return [row for piece in pieces for row in piece.table]


def by_session(rows: Iterable[tuple[str, Row]]) -> dict[str, list[Row]]:
    """Rows of each session."""
    out: dict[str, list[Row]] = {}
    for session, row in rows:
        out.setdefault(session, []).append(row)
    return out


def by_key(rows: Iterable[Row]) -> dict[int, dict[int, list[Row]]]:
    """Per key, the rows of each input."""
    out: dict[int, dict[int, list[Row]]] = {}
    for row in rows:
        out.setdefault(row[1], {}).setdefault(row[0], []).append(row)
    return out


def by_parts(
    tree: Tree,
    old: Iterable[Row],
    new: Iterable[Row],
    joins: Container[int],
    need_old: bool = False,
) -> Iterator[tuple[Row, ...]]:
    """The rows of each result that new rows bring in some of the joins."""
    before = by_key(old)
    for key, rows in by_key(new).items():
        if (join := tree.join_of(key)) in joins:
            olds, news = (
                [each.get(n, []) for n in tree.inputs_of(join)]
                for each in (before.get(key, {}), rows)
            )
            yield from combinations(olds, news, need_old)


def made_of(parts: Iterable[Row]) -> Identity:
    """What a result is made of."""
    return tuple(place for row in parts for place in row[2])


def joined(
    tree: Tree,
    old: Iterable[Row],
    new: Iterable[Row],
    joins: Container[int],
    need_old: bool = False,
) -> list[tuple[int, Identity]]:
    """The results that new rows bring in some of the joins, each with its join."""
    return [
        (tree.join_of(parts[0][1]), made_of(parts))
        for parts in by_parts(tree, old, new, joins, need_old)
    ]


def whole(world: World, rows: Iterable[Row]) -> list[Identity]:
    """All results of the query, by brute force: level after level. `rows`: of leaves."""
    held, tree = list(rows), world.tree
    for level in range(1, max(tree.levels)):
        found = joined(tree, [], held, tree.at_level(level))
        held += [world.lifted(join, identity) for join, identity in found]
    return [identity for _, identity in joined(tree, [], held, {tree.root})]


def victims(work: Work, keys: set[int], joins: int, rng: Random) -> list[Prefix]:
    """Ranges to spill, at random: groups, halves of groups, and pairs of groups of this slot.

    Attempts of an epoch need not agree, and cuts need not be whole groups.
    """
    task = work.task
    rate = 0.9 if task.forced_bytes else work.spill_rate
    owners = task.groups.assignment()
    out: list[Prefix] = []
    for group, slot in owners:
        if slot != task.slot or rng.random() >= rate:
            continue
        chosen = group
        if rng.random() < 0.2:
            chosen = Prefix(group.depth + 1, group.value * 2 + rng.randint(0, 1))
        elif group.depth and rng.random() < 0.25:
            parent = Prefix(group.depth - 1, group.value >> 1)
            if any(space.covers(parent) for space in spaces(joins)) and all(
                s == slot for g, s in owners if g.overlaps(parent)
            ):
                chosen = parent
        if rng.random() < 0.05 or any(covers(chosen, key) for key in keys):
            out.append(chosen)
    return disjoint_ranges(out)


def refined(groups: GroupMap, ranges: Sequence[Prefix]) -> GroupMap:
    """The groups with each of the ranges to spill, which are disjoint, as one of its own."""
    owners: dict[Prefix, int] = {}
    for group, slot in groups.assignment():
        if any(each.covers(group) for each in ranges):
            continue
        halves = [Prefix(group.depth + 1, group.value * 2 + bit) for bit in (0, 1)]
        owners |= dict.fromkeys(halves if not set(halves).isdisjoint(ranges) else [group], slot)
    return GroupMap([*owners.items(), *((each, 0) for each in ranges if each not in owners)])
