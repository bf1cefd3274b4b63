"""Rules of DESIGN.md left out, one by one. A model that does not catch each of them is too tame.

A plant replaces one function: a rule of the simulated parts (`rules`), or a function of the
protocol or of the model under the name by which it is called (`patches`). The shipped code knows
nothing of them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spillway.engine.groups import I64, U64, Bool, GroupMap, ranges_mask
from spillway.engine.join.kernel import Rows
from spillway.engine.spill.generations import DeferredGenerations
from spillway.engine.state.arrangement import Segments, SessionState
from spillway.engine.state.kept import KEPT_FIELDS, KeptGenerations
from spillway.engine.state.loading import Loaded
from spillway.engine.state.runs import Missing
from spillway.protocol import deferral, losses, recovery, redo, seal
from spillway.protocol import driver as protocol
from spillway.protocol.losses import ObeyedLosses
from spillway.protocol.offsets import least, padded, reaches
from spillway.protocol.plan import Plan, plan_epoch
from spillway.protocol.recovery import Restore, SessionRestore
from spillway.protocol.redo import Apply
from spillway.protocol.seal import Obeyed
from spillway.protocol.state import JournalState, OpenSession, fold
from spillway.protocol.state import _recent_cuts as recent_cuts
from spillway.stream import decoding
from spillway.stream.decoding import DecodeTask
from spillway.tables.garbage import Settled
from spillway_schemas.commands import Command
from spillway_schemas.journal import (
    Claim,
    Cut,
    Epoch,
    EpochFacts,
    Offsets,
    PartitionCount,
    Prefix,
    Sealed,
    SealRequest,
)

from . import rules as true
from . import slot
from .rules import Rules, Sliced
from .schedule import ONE, TREES
from .shell import Shell
from .shell import decode as _decode
from .world import APP, Commit, Conflict, Entry, Folder, Table, Tree, World, date


@dataclass(frozen=True)
class Plant:
    """One rule left out, and how its absence shows."""

    name: str
    rule: str
    """The rule, in DESIGN.md's words."""
    shows: str
    """A regular expression that a problem must match."""
    rules: Rules = field(default_factory=Rules)
    patches: tuple[tuple[str, Any], ...] = ()
    trees: Sequence[Tree] = ONE
    """The queries whose schedules must show it."""
    lossy: bool = False
    """Shown where Kafka loses rows and people accept it."""
    first: int = 0
    """The seed to begin with: where it was caught when that took long from 0 on."""
    within: int = 300
    """Schedules from there on within which it must be caught."""

    @contextmanager
    def planted(self) -> Iterator[Rules]:
        """The world with this rule left out."""
        with ExitStack() as stack:
            for target, other in self.patches:
                stack.enter_context(patch(target, other))
            yield self.rules


# --- journal and tables

_append = Shell.append
_version_of = Table.version_of
_slices = Segments.slices


def _tables_first(shell: Shell, entry: Claim | Epoch) -> Generator[None, None, None]:
    if isinstance(entry, Epoch):
        for apply in redo.applies_of(entry):
            table = shell.world.tables[apply.table]
            yield
            if table.version_of(APP) < apply.epoch:
                paths = tuple(file.path for file in apply.files)
                try:
                    table.commit(table.snapshot(), Commit(APP, apply.epoch, paths))
                except Conflict:
                    pass
        yield
    yield from _append(shell, entry)


def _redo_last(entries: Sequence[Entry], applied: Mapping[str, int]) -> tuple[Apply, ...]:
    owed = redo.redo(entries, applied)
    return tuple(apply for apply in owed if apply.epoch == owed[-1].epoch)


def _redo_newest_first(entries: Sequence[Entry], applied: Mapping[str, int]) -> tuple[Apply, ...]:
    return tuple(reversed(redo.redo(entries, applied)))


def _unknown_is_success(shell: Shell, event: protocol.Event) -> None:
    if isinstance(event, protocol.Unknown):
        event = protocol.Appended()
    shell.driver, more = protocol.step(shell.driver, event)
    shell.todo += more


def _refreshed(world: World, table: str, app: str, handle: int) -> int:
    return world.tables[table].snapshot()


# --- state


def _found(folder: Folder, slot: int, epoch: int, manifest: str | None) -> Loaded:
    mine = [name for name, each in folder.manifests.items() if each.epoch == epoch]
    return true.load(folder, slot, epoch, mine[-1] if manifest and mine else manifest)


def _papered_over(folder: Folder, slot: int, epoch: int, manifest: str | None) -> Loaded:
    try:
        return true.load(folder, slot, epoch, manifest)
    except Missing:
        return true.load(folder, slot, epoch, None)


def _with_output(world: World, rules: Rules, plan: Any) -> dict[int, slot.Blocks]:
    blocks = _decode(world, rules, plan)
    for mine in blocks.values():
        mine.new, mine.restored = [*mine.restored, *mine.new], []
    return blocks


# --- recovery


def _restored_whole(
    state: JournalState, lost: Iterable[int], history: Iterable[EpochFacts] = ()
) -> Restore | None:
    restore = recovery.restore_of(state, lost, history)
    if restore is None:
        return None
    return replace(restore, sessions=tuple(replace(s, cuts=()) for s in restore.sessions))


def _one_row_late(
    task: DecodeTask, session: SessionRestore, topic: str, p: int, offsets: I64, hashes: U64
) -> Bool:
    before = decoding.were_held(task, session, topic, p, offsets - 1, hashes)
    return before & decoding.were_held(task, session, topic, p, offsets, hashes)


def _first_cut(
    task: DecodeTask, session: SessionRestore, topic: str, p: int, offsets: I64, hashes: U64
) -> Bool:
    found = decoding.were_held(task, replace(session, cuts=()), topic, p, offsets, hashes)
    for cut in reversed(session.cuts):
        alone = replace(session, cuts=(cut,))
        inside = ranges_mask(hashes, [cut.range])
        found[inside] = decoding.were_held(task, alone, topic, p, offsets, hashes)[inside]
    return found


def _one_session(
    task: DecodeTask, session: SessionRestore, topic: str, p: int, offsets: I64, hashes: U64
) -> Bool:
    assert task.restore is not None
    if session is not task.restore.sessions[0]:
        return np.zeros(len(hashes), dtype=np.bool_)
    endless = replace(session, end=task.restore.read_to)
    return decoding.were_held(task, endless, topic, p, offsets, hashes)


def _by_count_only(restore: Restore, got: Iterable[PartitionCount]) -> None:
    none = {"digest": 0}
    expected = tuple(part.model_copy(update=none) for part in restore.expected)
    counted = [part.model_copy(update=none) for part in got]
    recovery.check_restored(replace(restore, expected=expected), counted)


_again = protocol._again


def _only_these(
    driver: protocol.Driver, lost: frozenset[int], failure: Any
) -> tuple[protocol.Driver, list[protocol.Instruction]]:
    return _again(driver, lost - driver.lost or lost, failure)


# --- commands


def _last_ids_only(state: JournalState | None, entry: Entry) -> JournalState:
    after = fold(state, entry)
    known = {outcome.id for outcome in entry.commands} if isinstance(entry, Epoch) else set()
    return replace(after, seen=frozenset(known))


def _each_time(state: JournalState, commands: Iterable[Command]) -> list[Command]:
    return [command for command in commands if command.id not in state.seen]


def _one_too_far(*args: Any, **more: Any) -> Plan:
    plan = plan_epoch(*args, **more)
    return replace(plan, commands_n=plan.commands_n + 1)


# --- spill and seal


def _without_new(session: SessionState, segments: Segments, gone: Bool) -> Sliced:
    new, session.new = session.new, [[], []]
    written, kept = true.spilled(session, segments, gone)
    session.new = new
    return written, [*kept, *new[0]]


def _not_dropped(session: SessionState, segments: Segments, gone: Bool) -> Sliced:
    return true.spilled(session, segments, gone)[0], [*session.installed[0], *session.new[0]]


def _slices_of_the_epoch(self: Segments, rows: Rows, born: int, wanted: Bool) -> list[Rows]:
    return _slices(self, rows, born + 1, wanted)


def _as_named(state: JournalState, commands: Iterable[Command], next_session: str) -> Obeyed:
    commands = list(commands)
    obeyed = seal.obey(state, commands, next_session)
    if obeyed.accepted is None:
        return obeyed
    named = next(c.offsets for c in commands if c.id == obeyed.accepted.command)
    end = padded(named, state.end)
    return replace(obeyed, accepted=obeyed.accepted.model_copy(update={"end": end}))


def _withdrawn_late(
    state: JournalState, pending: SealRequest | None, session: str, command: str
) -> str:
    wrong = pending is None or (pending.session, pending.command) != (session, command)
    return "not that one" if wrong else ""


def _forgotten(state: JournalState, entry: Epoch) -> JournalState:
    return replace(state, seal=None, sessions=state.sessions[:1])


def _still_open(state: JournalState, entry: Epoch) -> JournalState:
    return replace(state, seal=None)


# --- cleanup and vacuum


def _by_setting(sealed: Sealed, setting: int) -> list[Prefix]:
    return [Prefix(setting, value) for value in range(2**setting)] if sealed.ranges else []


def _as_journaled(world: World, entries: Sequence[Entry]) -> Settled:
    last = max((e.epoch for e in entries if isinstance(e, Epoch)), default=-1)
    return replace(true.settled(world, entries), epoch=last)


def _every_epoch(world: World, entries: Sequence[Entry]) -> Settled:
    return replace(true.settled(world, entries), epoch=10**9)


def _every_cleanup(world: World, entries: Sequence[Entry]) -> Settled:
    return replace(true.settled(world, entries), cleaned=frozenset(map(date, range(9))))


def _sealed(world: World) -> set[str]:
    return {e.sealed.session for e in world.journal if isinstance(e, Epoch) and e.sealed}


# --- trees


def _all_at_once(ranges: Sequence[Prefix], parents: Sequence[int]) -> list[list[int]]:
    return [[join for stage in true.stages(ranges, parents) for join in stage]]


def _cut_only(parents: Sequence[int], cut: Iterable[Prefix], *, outer: bool) -> tuple[Prefix, ...]:
    return tuple(sorted(set(cut)))


def _one_later(state: JournalState, lost: Iterable[int]) -> int | None:
    wanted = recovery.history_wanted(state, lost)
    return None if wanted is None else wanted + 1


# --- what lost slots leave to cleanup


def _deferred_whole(*args: Any) -> Restore | None:
    """As if nothing had been cut before: everything from the session's first row on."""
    found = deferral.deferred_rows(*args)
    if found is None or (deferred := found.sessions[0].deferred) is None:
        return found
    last = dict(sorted(deferred.deferred, key=lambda cut: cut[1]))
    alone = replace(deferred, spilled=(), deferred=tuple(last.items()))
    return replace(found, sessions=(replace(found.sessions[0], deferred=alone),))


def _not_cut(state: JournalState, cuts: Sequence[Cut]) -> JournalState:
    return state


def _spilled_too(self: DeferredGenerations, hashes: U64, epochs: I64) -> I64:
    ended = self.every.since(hashes, np.minimum(epochs, self.every.width - 1))
    return np.where(self.deferred.since(hashes, np.maximum(ended, 0)) == ended, ended, -1)


def _not_of_deferred(self: Table, app: str, handle: int | None = None) -> int:
    return -1 if app.startswith("deferred/") else _version_of(self, app, handle)


# --- losses that people accept


def _read_all_the_same(again: Restore, lost_to: Offsets) -> Restore:
    return again


def _held_against_the_journal(again: Restore, lost_to: Offsets) -> Restore:
    return replace(losses.what_is_left(again, lost_to), lossy=frozenset())


def _from_the_end(*args: Any, **more: Any) -> Plan:
    state, plan = args[0], plan_epoch(*args, **more)
    return replace(plan, start=padded(state.end, plan.end))


def _not_beyond_what_came(state: JournalState, commands: Iterable[Command]) -> ObeyedLosses:
    obeyed = losses.obey_losses(state, commands)
    return replace(obeyed, lost_to=least(obeyed.lost_to, state.end))


def _one_too_many(state: JournalState, commands: Iterable[Command]) -> ObeyedLosses:
    obeyed = losses.obey_losses(state, commands)
    further = {topic: [at and at + 1 for at in ends] for topic, ends in obeyed.lost_to.items()}
    return replace(obeyed, lost_to=further if obeyed.lost_to != state.lost_to else obeyed.lost_to)


def _forgets_losses(state: JournalState | None, entry: Entry) -> JournalState:
    return replace(fold(state, entry), lost_to={})


def _told_nothing(state: JournalState, end: Offsets, lost_to: Offsets) -> Offsets:
    return {}


def _of_its_own_end(state: JournalState, end: Offsets, lost_to: Offsets) -> Offsets:
    return lost_to if reaches(end, lost_to) else {}


# --- generations that come back


def _cuts_stay(session: OpenSession, entry: Epoch) -> Mapping[Prefix, tuple[int, ...]]:
    return recent_cuts(session, entry.model_copy(update={"voided": []}))


def _oldest(self: KeptGenerations, wanted: Bool) -> pa.Table:
    first = np.flatnonzero(np.diff(self.group, prepend=-1))
    first = first[wanted[self.group[first]]]
    return self.table.take(pa.array(first)).append_column("group", pa.array(self.group[first]))


def _whatever_became_of_it(figures: pa.Table, session: str, groups: GroupMap) -> KeptGenerations:
    """Each group knows what any that it shares hashes with has spilled."""
    mine = figures.filter(pc.equal(figures["session"], session)).to_pylist()
    rows = [
        (at, each)
        for row in mine
        for at, prefix in enumerate(groups.prefixes)
        if prefix.overlaps(Prefix(row["depth"], row["value"]))
        for each in row["kept"]
    ]
    rows.sort(key=lambda pair: (pair[0], pair[1]["epoch"]))
    table = pa.Table.from_pylist([each for _, each in rows], schema=KEPT_FIELDS)
    return KeptGenerations(np.array([at for at, _ in rows], dtype=np.int64), table)


def _any_generation(self: Any, hashes: U64, intervals: I64) -> I64:
    return np.zeros(len(hashes), dtype=np.int64)


PLANTS: tuple[Plant, ...] = (
    Plant(
        "lost-rows-asked-for-again",
        "what is accepted as lost is not read again",
        "not finished",
        patches=(("spillway.protocol.plan.what_is_left", _read_all_the_same),),
        trees=TREES,
        lossy=True,
    ),
    Plant(
        "lost-rows-counted-on",
        "a partition that has lost rows cannot be held against the journal's counts",
        "InputChanged",
        patches=(("spillway.protocol.plan.what_is_left", _held_against_the_journal),),
        lossy=True,
        first=12,
    ),
    Plant(
        "lost-rows-waited-for",
        "an epoch begins behind the rows that are lost and were never read",
        "not finished",
        patches=(("spillway.protocol.driver.plan_epoch", _from_the_end),),
        lossy=True,
    ),
    Plant(
        "loss-of-what-was-read",
        "rows that nobody had read are lost, too",
        "not finished",
        patches=(("spillway.protocol.plan.obey_losses", _not_beyond_what_came),),
        lossy=True,
    ),
    Plant(
        "one-row-too-many",
        "a loss ends where what Kafka holds begins",
        "Kafka holds it|MISSING|JournalBroken|ValueError|IndexError",
        patches=(("spillway.protocol.plan.obey_losses", _one_too_many),),
        lossy=True,
    ),
    Plant(
        "loss-forgotten",
        "what was accepted holds for as long as the session is open",
        "JournalBroken|not finished",
        patches=(("spillway.protocol.driver.fold", _forgets_losses),),
        lossy=True,
        first=5,
    ),
    Plant(
        "loss-not-told",
        "a sealed session says what it has lost",
        "does not say|MISSING|JournalBroken",
        patches=(
            ("spillway.protocol.state.lost_of", _told_nothing),
            ("spillway.protocol.entry.lost_of", _told_nothing),
        ),
        lossy=True,
        first=48,
    ),
    Plant(
        "loss-beyond-the-end-not-told",
        "a loss that reaches into the next session is one of both",
        "does not say|MISSING|not finished",
        patches=(
            ("spillway.protocol.state.lost_of", _of_its_own_end),
            ("spillway.protocol.entry.lost_of", _of_its_own_end),
        ),
        lossy=True,
        first=172,
    ),
    Plant(
        "trimmed-of-what-dies-in-the-epoch",
        "rows leave their files once the journal says that they are dead",
        "MISSING",
        Rules(dead_for_good=lambda manifest, session: session.drops),
        first=100,
    ),
    Plant(
        "deferred-not-read",
        "a cut by reference: cleanup reads its rows in Kafka",
        "MISSING",
        patches=(("tests.property.model.keepers.deferred_rows", lambda *given: None),),
    ),
    Plant(
        "deferred-from-the-beginning",
        "a generation lies between two cuts, so it is a range of Kafka offsets",
        "DOUBLED",
        patches=(("tests.property.model.keepers.deferred_rows", _deferred_whole),),
    ),
    Plant(
        "deferred-uncut",
        "a cut by reference is a cut: what is restored, flushed and cleaned goes by it",
        "MISSING|DOUBLED|JournalBroken",
        patches=(("spillway.protocol.state.with_deferred", _not_cut),),
    ),
    Plant(
        "deferred-not-flushed",
        "a seal flushes what was cut, in its own epoch, too",
        "MISSING",
        patches=(("spillway.protocol.plan.with_deferred", _not_cut),),
        first=485,
    ),
    Plant(
        "deferred-though-spilled",
        "what was spilled in the last epoch was not in memory",
        "DOUBLED",
        patches=(("spillway.engine.spill.generations.DeferredGenerations.of", _spilled_too),),
        first=88,
    ),
    Plant(
        "deferred-unchecked",
        "counts and digests of what is read again must equal the journal's",
        "MISSING|DOUBLED|cannot be",
        patches=(("tests.property.model.keepers.check_restored", lambda restore, got, what: None),),
        within=600,
        first=65,
    ),
    Plant(
        "deferred-twice",
        "an application transaction: what was read again is written once",
        "DOUBLED",
        patches=(("tests.property.model.world.Table.version_of", _not_of_deferred),),
    ),
    Plant(
        "deferred-joins",
        "leaf operators only: rows that a join gave are in no topic",
        "MISSING|DOUBLED|JournalBroken",
        patches=(("spillway.protocol.plan.not_deferrable", lambda genesis: ""),),
        trees=TREES,
    ),
    Plant(
        "void-rows-are-cleaned",
        "its files are void",
        "DOUBLED",
        patches=(("tests.property.model.keepers.void_of", lambda world, sealed: None),),
    ),
    Plant(
        "void-cuts-still-hold",
        "that cut is removed: lost rows are read again from the cut before it",
        "MISSING|JournalBroken",
        patches=(("spillway.protocol.state._recent_cuts", _cuts_stay),),
        first=25,
    ),
    Plant(
        "returns-without-output",
        "what was missing is emitted",
        "MISSING",
        patches=(("tests.property.model.slot.given_with", lambda tree, back, held: []),),
    ),
    Plant(
        "oldest-generation-first",
        "never an older one first",
        "JournalBroken|has .* rows",
        patches=(("spillway.engine.state.kept.KeptGenerations.newest_of", _oldest),),
    ),
    Plant(
        "returns-to-another-group",
        "groups that were split or merged forget what may come back",
        "JournalBroken|has .* rows",
        patches=(
            (
                "spillway.engine.state.kept.KeptGenerations.known",
                staticmethod(_whatever_became_of_it),
            ),
        ),
        first=26,
    ),
    Plant(
        "returns-below-the-root",
        "what a join below the root lacked would be input of the joins above",
        "MISSING",
        rules=Rules(may_return=lambda join, root: True),
        trees=TREES,
    ),
    Plant(
        "replay-by-void-cuts",
        "recovery above the leaves replays the tree by the cuts that hold",
        "MISSING|DOUBLED|JournalBroken",
        patches=(("spillway.protocol.recovery.voided", lambda session, epochs: frozenset()),),
        trees=TREES,
        first=44,
    ),
    Plant(
        "table-before-journal",
        "journal first: then each table gets exactly the files that its entry names",
        "MISSING|DOUBLED|gone|quarantine|lost entries",
        patches=(("tests.property.model.shell.Shell.append", _tables_first),),
    ),
    Plant(
        "journal-not-synced",
        "durability: the entry before any table commit",
        "lost entries|MISSING",
        patches=(("tests.property.model.world.World.sync_journal", lambda world, n: None),),
    ),
    Plant(
        "snapshot-hides-what-is-owed",
        "a snapshot is used only when every table has the commits up to it",
        "MISSING|gone|quarantine|spilled",
        patches=(
            ("spillway.protocol.snapshot.is_settled", lambda state, applied: True),
            ("spillway.protocol.driver.is_settled", lambda state, applied: True),
        ),
    ),
    Plant(
        "files-not-synced",
        "durability: data files and their folder before the journal entry",
        "gone",
        rules=Rules(sync_files=False),
    ),
    Plant(
        "no-fencing",
        "a driver that meets a conflict ends itself; check and commit use one handle",
        "JournalBroken|lost entries",
        rules=Rules(journal_accepts=lambda world, entry, handle: True),
    ),
    Plant(
        "unknown-is-success",
        "a driver that does not know the outcome of a commit ends itself",
        "MISSING|DOUBLED|quarantine|spilled|lost entries",
        patches=(("tests.property.model.shell.Shell.tell", _unknown_is_success),),
        first=62,
    ),
    Plant(
        "table-handle-refreshed",
        "check and commit use the same table handle with no refresh between",
        "DOUBLED",
        rules=Rules(check_then_commit=_refreshed),
    ),
    Plant(
        "no-redo",
        "a driver begins by redoing every entry above a table's last transaction",
        "MISSING|spilled|quarantine",
        patches=(("spillway.protocol.driver.redo", lambda entries, applied: ()),),
    ),
    Plant(
        "redo-of-the-last-only",
        "a driver begins by redoing every entry (power loss may take several table commits)",
        "MISSING|spilled|quarantine",
        patches=(("spillway.protocol.driver.redo", _redo_last),),
        first=7,
    ),
    Plant(
        "redo-out-of-order",
        "redo in order",
        "MISSING|spilled|quarantine|not finished",
        patches=(("spillway.protocol.driver.redo", _redo_newest_first),),
        first=7,
    ),
    Plant(
        "manifest-found",
        "never with a manifest that it merely found",
        "MISSING|DOUBLED",
        rules=Rules(load=_found),
        first=27,
    ),
    Plant(
        "missing-papered-over",
        "it never goes on with partial state",
        "MISSING",
        rules=Rules(load=_papered_over),
    ),
    Plant(
        "restored-with-output",
        "restored rows are installed without output",
        "DOUBLED",
        patches=(("tests.property.model.shell.decode", _with_output),),
        first=12,
    ),
    Plant(
        "restore-ignores-cuts",
        "each row only from its hash range's last cut",
        "DOUBLED",
        patches=(("spillway.protocol.plan.restore_of", _restored_whole),),
    ),
    Plant(
        "restore-first-cut",
        "each row only from its hash range's last cut",
        "DOUBLED",
        rules=Rules(were_held=_first_cut),
    ),
    Plant(
        "restore-too-late",
        "each row from its hash range's last cut to the end of b-1",
        "MISSING",
        rules=Rules(were_held=_one_row_late),
    ),
    Plant(
        "restore-one-session",
        "state and cuts are keyed by session: for a moment two are open",
        "MISSING|DOUBLED",
        rules=Rules(were_held=_one_session),
        first=48,
    ),
    Plant(
        "restored-unchecked",
        "counts and digests of what is read again must equal the journal's",
        "MISSING|DOUBLED|cannot be|spilled",
        patches=(("spillway.protocol.entry.check_restored", lambda restore, got: None),),
        within=600,
        first=48,
    ),
    Plant(
        "restored-by-count-only",
        "counts and digests of what is read again must equal the journal's",
        "MISSING|DOUBLED|cannot be|spilled",
        patches=(("spillway.protocol.entry.check_restored", _by_count_only),),
        within=600,
        first=48,
    ),
    Plant(
        "data-loss-unnoticed",
        "rows that Kafka holds no more are an error",
        "MISSING|quarantine",
        rules=Rules(fails_on_data_loss=False),
        within=600,
        first=130,
    ),
    Plant(
        "lost-slots-trusted-again",
        "a slot declared lost starts from nothing, whatever it finds on disk",
        "are trusted again",
        patches=(("spillway.protocol.driver._again", _only_these),),
    ),
    Plant(
        "obeyed-ids-forgotten",
        "commands with an id each; obeyed once per id (the journal remembers ids)",
        "was answered",
        patches=(("spillway.protocol.driver.fold", _last_ids_only),),
    ),
    Plant(
        "one-id-twice-in-a-read",
        "commands with an id each; obeyed once per id",
        "was answered",
        patches=(("spillway.protocol.plan.unseen", _each_time),),
    ),
    Plant(
        "answered-up-to-one-too-many",
        "commands with an id each; obeyed once per id (up to the number that the journal names)",
        "was passed over",
        patches=(("spillway.protocol.driver.plan_epoch", _one_too_far),),
    ),
    Plant(
        "spill-without-new-rows",
        "a spill writes the chosen slices (rows of b included)",
        "DOUBLED|MISSING",
        rules=Rules(spilled=_without_new),
    ),
    Plant(
        "spilled-not-dropped",
        "and leaves them out of its new manifest",
        "DOUBLED",
        rules=Rules(spilled=_not_dropped, drop_spilled=lambda session, ranges, epoch: None),
    ),
    Plant(
        "spilled-in-the-epoch-it-came",
        "what was dropped in the epoch in which its file was born is dead, too",
        "DOUBLED",
        patches=(("spillway.engine.state.arrangement.Segments.slices", _slices_of_the_epoch),),
        first=138,
    ),
    Plant(
        "seal-without-flush",
        "state of ranges that were ever cut is flushed as their last generation",
        "MISSING",
        rules=Rules(flush_ranges=lambda groups, slot, ranges: []),
    ),
    Plant(
        "one-session-at-a-time",
        "a row's session is a function of its coordinate",
        "DOUBLED|cannot be",
        rules=Rules(by_session=lambda task, bound, offsets: iter([(task.session, None)])),
    ),
    Plant(
        "seal-takes-back",
        "rows beyond E journaled already: the session ends at the greater of the two",
        "DOUBLED|MISSING|ValueError|JournalBroken",
        patches=(("spillway.protocol.plan.obey", _as_named),),
    ),
    Plant(
        "withdrawn-too-late",
        "a seal is withdrawn only while no row beyond its end has been read",
        "DOUBLED|MISSING|cannot be|KeyError",
        patches=(
            ("spillway.protocol.seal.not_withdrawable", _withdrawn_late),
            ("spillway.protocol.state._without_seal", _forgotten),
        ),
    ),
    Plant(
        "withdrawn-unsaid",
        "the fold refuses what `obey` would have refused",
        "takes back a seal whose end was passed",
        patches=(("spillway.protocol.seal.not_withdrawable", _withdrawn_late),),
    ),
    Plant(
        "withdrawn-still-open",
        "when a seal is withdrawn the next session does not exist",
        "DOUBLED|MISSING|cannot be|IndexError|JournalBroken",
        patches=(("spillway.protocol.state._without_seal", _still_open),),
        first=18,
    ),
    Plant(
        "source-keeps-group",
        "the new owner's manifest has the group, the old one's has not",
        "DOUBLED|cut of nothing|JournalBroken",
        rules=Rules(leave=lambda session, task: None),
        first=631,
    ),
    Plant(
        "extract-gives-nothing",
        "an extract that lacks its manifest returns `missing`",
        "MISSING",
        rules=Rules(lacking=lambda intake, slots: []),
        first=175,
    ),
    Plant(
        "handed-over-unseen",
        "what was written into another slot's folder is there, or nothing of the epoch counts",
        "MISSING",
        rules=Rules(beside=lambda names, manifest: True, unseen=lambda folder, moved: False),
    ),
    Plant(
        "cleanup-before-applied",
        "cleanup begins when every table is applied up to the seal",
        "MISSING",
        rules=Rules(may_clean=lambda entries, applied, sealed: True),
        first=88,
    ),
    Plant(
        "units-by-setting",
        "the application transaction (cleanup/<session>, n) always means that range",
        "MISSING|DOUBLED",
        rules=Rules(units=_by_setting),
    ),
    Plant(
        "vacuum-unapplied",
        "removed by vacuum only when their epoch is applied in every table",
        "gone",
        rules=Rules(settled=_as_journaled),
        first=148,
    ),
    Plant(
        "vacuum-unjournaled",
        "removed by vacuum only when their epoch is applied in every table",
        "gone",
        rules=Rules(settled=_every_epoch),
    ),
    Plant(
        "vacuum-cleanup-early",
        "cleanup's files only when the session is cleaned",
        "gone",
        rules=Rules(settled=_every_cleanup),
    ),
    Plant(
        "vacuum-unsynced",
        "what compaction replaced goes only when the table's log is durable",
        "gone",
        rules=Rules(sync_before_vacuum=False),
        first=37,
    ),
    Plant(
        "dropped-when-sealed",
        "spilled rows are dropped only when their session is cleaned",
        "MISSING",
        rules=Rules(over=_sealed),
    ),
    Plant(
        "dropped-unguarded",
        "whatever removes files takes compaction's transaction",
        "spilled",
        patches=(("tests.property.model.keepers.DROPPING", "dropping"),),
        first=105,
    ),
    Plant(
        "cleaned-unsynced",
        "a session is called cleaned only when its results are durable",
        "MISSING",
        rules=Rules(sync_before_cleaned=False),
        first=58,
    ),
    Plant(
        "own-slot-told-alone",
        "a probe without state tells every slot that could get rows of it",
        "MISSING",
        rules=Rules(told_of_unfound=lambda giver, slots: [giver]),
        trees=TREES,
        first=1250,
    ),
    Plant(
        "late-results-of-the-last-generation",
        "what a join lacked is a generation of its own in the join above",
        "MISSING",
        rules=Rules(generation_of=lambda epoch, join: epoch),
        trees=TREES,
    ),
    Plant(
        "late-results-of-two-children-together",
        "two children: two generations",
        "MISSING",
        rules=Rules(generation_of=lambda epoch, join: epoch + 1),
        trees=TREES,
        first=21,
    ),
    Plant(
        "cleaned-before-what-is-below",
        "a join is cleaned when all that those below it lacked is committed",
        "MISSING",
        rules=Rules(stages=_all_at_once),
        trees=TREES,
    ),
    Plant(
        "stage-not-synced",
        "durability: what joins below lacked, before a join above is cleaned with it",
        "MISSING",
        rules=Rules(sync_between_stages=False),
        trees=TREES,
        first=175,
    ),
    Plant(
        "ancestor-not-flushed",
        "joins above one that was cut are flushed whole at the seal",
        "MISSING",
        patches=(("spillway.protocol.plan.flushed", _cut_only),),
        trees=TREES,
    ),
    Plant(
        "leaves-restored-alone",
        "rows above the leaves are made again by the joins below",
        "MISSING",
        patches=(("spillway.protocol.recovery._replayed", lambda state, slots: frozenset()),),
        trees=TREES,
    ),
    Plant(
        "history-without-its-first-epoch",
        "restoring needs every epoch since the session began",
        "reading again needs all epochs|MISSING|DOUBLED",
        patches=(("spillway.protocol.driver.history_wanted", _one_later),),
        trees=TREES,
    ),
    Plant(
        "met-in-another-generation",
        "a replayed row meets only rows of its generation",
        "DOUBLED|MISSING|cannot be",
        patches=(("spillway.engine.replay.Generations.of", _any_generation),),
        trees=TREES,
    ),
)
