"""Cleanup, vacuum and compaction: processes beside the stream, several at once, killed at will."""

from __future__ import annotations

from collections.abc import Generator

from schemas.journal import Epoch, Prefix, Sealed

from .shell import Context
from .slot import joined
from .world import TABLES, Commit, Conflict, Identity, Row, Stored, World, covers


def cleanup(context: Context, sealed: Sealed, name: str) -> Generator[None, None, None]:
    """Append the results of a sealed session that are still missing, unit by unit, in order."""
    world, rules = context.world, context.rules
    app = f"cleanup/{sealed.session}"
    table = world.tables["results"]
    ranges = rules.units(sealed, context.rng.randint(1, 4))
    yield
    if not rules.may_clean(tuple(world.journal), world.applied(), sealed):
        world.say(f"{name}: tables are behind the seal of {sealed.session}, comes again later")
        return
    for n, unit in enumerate(ranges):
        if table.version_of(app) >= n:
            continue
        found = missing(world, sealed, unit)
        paths: tuple[str, ...] = ()
        if found:
            paths = (f"session_date={sealed.session}/cleanup-{n}-{name}",)
            rows: list[tuple[str, int, object]] = [(sealed.session, 0, x) for x in found]
            world.store[paths[0]] = Stored(
                "results", sealed.session, -1, sealed.session, rows, "cleanup"
            )
            yield
            if paths[0] in world.store:
                world.store[paths[0]].synced = True
        while True:
            handle = table.snapshot()
            if table.version_of(app, handle) >= n:
                break
            if found:
                yield
            handle = rules.check_then_commit(world, "results", app, handle)
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


def missing(world: World, sealed: Sealed, unit: Prefix) -> list[Identity]:
    """Results of a hash range that are not all of one generation, merged one by one."""
    generations: dict[int, list[Row]] = {}
    for path, times in world.tables["spill"].files().items():
        file = world.store.get(path)
        for _ in range(times if file is not None else 0):
            assert file is not None
            for session, generation, row in file.rows:
                if session == sealed.session and covers(unit, row[1]):  # type: ignore[index]
                    generations.setdefault(generation, []).append(row)  # type: ignore[arg-type]
    base: list[Row] = []
    out: list[Identity] = []
    for generation in sorted(generations):
        out += joined(base, generations[generation], world.inputs, need_old=True)
        base += generations[generation]
    return out


def vacuum(context: Context, name: str) -> Generator[None, None, None]:
    """Delete what no entry can name any more, and what compaction replaced."""
    world, rules = context.world, context.rules
    entries = tuple(world.journal)
    yield
    limit = rules.vacuum_limit(entries, world.applied())
    done = {
        e.sealed.session
        for e in entries
        if isinstance(e, Epoch) and e.sealed is not None and rules.cleaned(world, e.sealed)
    }
    yield
    if rules.sync_before_vacuum:
        for table in world.tables.values():
            table.durable = len(table.log)
    named = {path for table in world.tables.values() for path in table.files()}
    replaced = {path for table in world.tables.values() for path in table.removed()}
    orphans = [
        path
        for path, file in world.store.items()
        if path not in named
        and (
            path in replaced or (file.cleanup in done if file.cleanup else 0 <= file.epoch <= limit)
        )
    ]
    for path in orphans:
        yield
        if world.store.pop(path, None) is not None:
            world.say(f"{name}: deletes {path}")


def compact(context: Context, name: str) -> None:
    """Replace some files of a table by one with the same rows (in one step: delta-rs's own)."""
    world, rng = context.world, context.rng
    table_name = rng.choice(TABLES)
    table = world.tables[table_name]
    files = [p for p, times in table.files().items() if times == 1 and p in world.store]
    if len(files) < 2:
        return
    old = rng.sample(files, 2)
    stored = [world.store[path] for path in old]
    path = f"compacted-{name}"
    world.store[path] = Stored(
        table_name, "", -1, "", [row for file in stored for row in file.rows], synced=True
    )
    table.commit(table.snapshot(), Commit("", 0, (path,), tuple(old)))
    world.say(f"compaction of {table_name}: {old} -> {path}")
