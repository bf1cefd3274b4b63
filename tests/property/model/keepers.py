"""Cleanup, vacuum, compaction, dropping: processes beside the stream, several at once, killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator

import numpy as np

from spillway.cleanup.plan import generations_of
from spillway.engine.spill.generations import DeferredGenerations, VoidedCuts
from spillway.protocol.deferral import UNREADABLE, deferred_rows
from spillway.protocol.losses import loss_of, without_lost
from spillway.protocol.recovery import Restore, check_restored
from spillway.protocol.state import genesis_of, replay
from spillway.storage import FileInfo
from spillway.stream.decoding import cut_epochs
from spillway.tables.garbage import sort_orphans
from spillway_schemas.filenames import cleanup_name, compact_name
from spillway_schemas.hash_space import join_of
from spillway_schemas.journal import PartitionCount, Prefix, Sealed

from .rules import cleaned_to
from .shell import Context, counted, values_of
from .slot import joined
from .world import (
    COMPACTION,
    REJECTED,
    TABLES,
    Commit,
    Conflict,
    DeferredRow,
    Identity,
    Row,
    Stored,
    World,
    covers,
    date,
    hashes_of,
)

DROPPING = COMPACTION
"""What removes files is guarded by one transaction, whatever it does."""


def cleanup(context: Context, sealed: Sealed, name: str) -> Generator[None, None, None]:
    """Append the results of a sealed session that are still missing, unit by unit, in order."""
    world, rules = context.world, context.rules
    app = f"cleanup/{sealed.session}"
    tree = world.tree
    opened(context)
    if sealed.session in world.cleaned:
        return
    ranges = rules.units(sealed, context.rng.randint(1, 4))
    yield
    if not rules.may_clean(tuple(world.journal), world.applied(), sealed):
        world.say(f"{name}: tables are behind the seal of {sealed.session}, comes again later")
        return
    yield from write_deferred(context, sealed, name)
    numbered = [(join_of(unit, len(tree.joins)), n, unit) for n, unit in enumerate(ranges)]
    stages = rules.stages(ranges, tree.parents)
    ahead: dict[int, dict[int, list[Identity]]] = {}
    for join, n, _ in numbered:
        if cleaned_to(world, sealed.session) >= n:
            continue
        # Joins of one stage are computed at the same time, from what is there when it begins.
        at = next(at for at, stage in enumerate(stages) if join in stage)
        if at not in ahead:
            if rules.sync_between_stages:
                world.tables["spill"].durable = len(world.tables["spill"].log)
            together = [each for each in numbered if each[0] in stages[at] and each[1] >= n]
            ahead[at] = {m: missing(world, sealed, each, of) for of, m, each in together}
        found = ahead[at][n]
        name_ = "results" if join == tree.root else "spill"
        table = world.tables[name_]
        paths: tuple[str, ...] = ()
        if found:
            file = cleanup_name(sealed.session, n, f"{world.fresh():012x}", 0)
            paths = (f"session_date={sealed.session}/{file}",)
            generation = 0
            rows: list[object] = [*found]
            if join != tree.root:
                generation = rules.generation_of(sealed.epoch, join)
                rows = [world.lifted(join, identity) for identity in found]
            stored = [(sealed.session, generation, each) for each in rows]
            world.store[paths[0]] = Stored(name_, stored)
            yield
            if paths[0] in world.store:
                world.store[paths[0]].synced = True
        while True:
            handle = table.snapshot()
            if table.version_of(app, handle) >= n:
                break
            if found:
                yield
            handle = rules.check_then_commit(world, name_, app, handle)
            unknown = context.flip(context.faults.outcome_unknown)
            try:
                table.commit(handle, Commit(app, n, paths))
            except Conflict:
                world.say(f"{name}: unit {n} of {sealed.session} conflicts")
                continue
            if found:
                world.say(f"{name}: unit {n} of {sealed.session}: {len(found)} results")
            if not unknown:
                break
    yield
    if rules.sync_before_cleaned:
        for each in ("results", "spill"):
            world.tables[each].durable = len(world.tables[each].log)
    world.cleaned.add(sealed.session)
    world.say(f"{name}: {sealed.session} is cleaned")


def write_deferred(context: Context, sealed: Sealed, name: str) -> Generator[None, None, None]:
    """Write what slots had in memory when they were lost as spilled rows, once."""
    world, rules = context.world, context.rules
    app, table = f"deferred/{sealed.session}", world.tables["spill"]
    state = replay(world.journal)
    assert state is not None
    genesis = genesis_of(state, sealed)
    again = deferred_rows(genesis, sealed, world.journal)
    if again is None or table.version_of(app) >= 0:
        return
    loss = loss_of(genesis, sealed, world.journal)
    lost = [*(loss.ranges if loss else ()), *world.accepted.get(sealed.session, ())]
    again = without_lost(again, lost)
    rows, counts = read_again(context, again)
    check_restored(again, counts, UNREADABLE)
    yield
    file = cleanup_name(sealed.session, 0, f"{world.fresh():012x}", 0)
    path = f"session_date={sealed.session}/{file}"
    world.store[path] = Stored("spill", [(sealed.session, epoch, row) for epoch, row in rows])
    yield
    if path in world.store:
        world.store[path].synced = True
    while True:
        handle = table.snapshot()
        if table.version_of(app, handle) >= 0:
            return
        yield
        handle = rules.check_then_commit(world, "spill", app, handle)
        unknown = context.flip(context.faults.outcome_unknown)
        try:
            table.commit(handle, Commit(app, 0, (path,)))
        except Conflict:
            continue
        world.say(f"{name}: {len(rows)} rows of {sealed.session} that slots had lost")
        if not unknown:
            return


def read_again(
    context: Context, again: Restore
) -> tuple[list[tuple[int, DeferredRow]], list[PartitionCount]]:
    """The rows with the generation of each, and what was read for them."""
    world, (session,) = context.world, again.sessions
    deferred = session.deferred
    assert deferred is not None
    generations = DeferredGenerations(deferred.spilled, deferred.deferred)
    found, counts = [], []
    for i, p, offsets, values in values_of(world, context.rules, again.read_from, again.read_to):
        counts.append(counted(world, i, p, offsets, values))
        topic = world.topic(i)
        epochs = cut_epochs(deferred, topic, p, np.array(offsets, dtype=np.int64))
        for offset, value, epoch in zip(offsets, values, epochs.tolist(), strict=True):
            if value == REJECTED or not session.start[topic][p] <= offset < session.end[topic][p]:
                continue
            row = world.row(i, value, p, offset)
            of = int(generations.of(hashes_of([row[1]]), np.array([epoch]))[0])
            if of >= 0:
                found.append((of, DeferredRow(row)))
    return found, counts


def missing(world: World, sealed: Sealed, unit: Prefix, join: int) -> list[Identity]:
    """Results of a hash range, of a join, that are not all of one generation, merged one by one."""
    void = void_of(world, sealed)
    generations: dict[int, list[Row]] = {}
    for path, times in world.tables["spill"].files().items():
        file = world.store.get(path)
        for _ in range(times if file is not None else 0):
            assert file is not None
            for session, generation, row in file.rows:
                if session == sealed.session and covers(unit, row[1]):  # type: ignore[index]
                    hashes = hashes_of([row[1]])  # type: ignore[index]
                    if void is not None and void.hold(hashes, np.array([generation]))[0]:
                        continue
                    generations.setdefault(generation, []).append(row)  # type: ignore[arg-type]
    base: list[Row] = []
    out: list[Identity] = []
    for generation in sorted(generations):
        found = joined(world.tree, base, generations[generation], {join}, need_old=True)
        out += [identity for _, identity in found]
        base += generations[generation]
    return out


def void_of(world: World, sealed: Sealed) -> VoidedCuts | None:
    """The cuts of a session that were taken back."""
    return generations_of(world.journal, sealed, windowed=False)[1]


def vacuum(context: Context, name: str) -> Generator[None, None, None]:
    """Delete what no entry can name any more, and what compaction replaced.

    What may go is said by `spillway.tables.garbage.sort_orphans`; no age protects anything here.
    """
    world, rules = context.world, context.rules
    opened(context)
    entries = tuple(world.journal)
    yield
    settled = rules.settled(world, entries)
    yield
    for table_name, table in world.tables.items():
        listed = [
            FileInfo(path, 1, 0.0) for path, file in world.store.items() if file.table == table_name
        ]
        yield
        if rules.sync_before_vacuum:
            table.durable = len(table.log)
        found = sort_orphans(
            table_name, listed, table.files(), {}, settled, now_s=1.0, min_age_s=0.0
        )
        assert not found.foreign, found.foreign
        for info in found.delete:
            yield
            if world.store.pop(info.name, None) is not None:
                world.say(f"{name}: deletes {info.name}")


def compaction(context: Context, name: str) -> Generator[None, None, None]:
    """Replace two files of a table by one with the same rows, guarded by its own transaction."""
    world, rng = context.world, context.rng
    table_name = rng.choice(TABLES)
    table = world.tables[table_name]
    handle = table.snapshot()
    files = [path for path, times in table.files().items() if times == 1]
    if len(files) < 2:
        return
    old = rng.sample(files, 2)
    version = table.version_of(COMPACTION, handle) + 1
    path = f"session_date={date(0)}/{compact_name(version, f'{world.fresh():012x}', 0)}"
    if lost := [each for each in old if each not in world.store]:
        raise AssertionError(f"{table_name} names {lost}, which is gone")
    rows = [row for each in old for row in world.store[each].rows]
    world.store[path] = Stored(table_name, rows)
    yield
    if path in world.store:
        world.store[path].synced = True
    yield
    try:
        table.commit(handle, Commit(COMPACTION, version, (path,), tuple(old)))
    except Conflict:
        world.say(f"{name} of {table_name} conflicts")
        return
    world.say(f"{name} of {table_name}: {old} -> {path}")


def dropping(context: Context, name: str) -> Generator[None, None, None]:
    """Take the spilled rows of sessions that are over out of the table, under compaction's guard.

    In reality a session is over some days after its proof; here, as soon as it is cleaned.
    """
    world, rules = context.world, context.rules
    table = world.tables["spill"]
    handle = table.snapshot()
    over = rules.over(world)
    files = [
        path
        for path, times in table.files().items()
        if times == 1 and {session for session, _, _ in world.store[path].rows} <= over
    ]
    if not files:
        return
    version = table.version_of(DROPPING, handle) + 1
    yield
    for path in files:
        if path in world.store:
            world.dropped[path] = Counter(
                (session, generation)
                for session, generation, row in world.store[path].rows
                if not isinstance(row, DeferredRow)
            )
    try:
        table.commit(handle, Commit(DROPPING, version, (), tuple(files)))
    except Conflict:
        world.say(f"{name} conflicts")
        return
    world.say(f"{name}: {files} of {sorted(over)}")


def opened(context: Context) -> None:
    """A process opens the warehouse: what it reads of the journal is durable from then on."""
    if context.rules.sync_what_is_read:
        context.world.sync_journal(len(context.world.journal) - 1)
