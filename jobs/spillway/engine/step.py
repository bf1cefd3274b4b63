"""One slot's part of one epoch: from the named manifest and the epoch's blocks to a report.

Model: a step is a function of (task, blocks, the files that the task's manifest names). It writes
files under fresh names, and takes rows that are dead in that manifest out of its files; it deletes
nothing that the manifest uses, nor what the journal may yet name (`state.statefiles`), and
*returns* what it did; until a journal entry names its report, nothing of it exists. So it may run
any number of times, also at once.

Order, and why:

1. load exactly the named manifest, sizes and digests checked; anything wrong is reported as
   `missing` before a file is written or deleted, and so is a slot that had to give groups to
   this one and found nothing
2. drop the groups that move away, install state and restored rows (no output)
3. delete garbage, let go of what has expired, and take out of the files what was dead in the named
   manifest: so there is room, before anything is written
4. join the rows that the session takes over, then the epoch's new ones; results leave in batches
   (what of these rows has expired leaves after it: windows, see `expiry`)
5. flush sessions that this epoch seals: the ranges that the plan names (those that were ever cut,
   and all of a join above one of them, or of an outer join) become their last generation, the rest
   is complete and goes
6. bring back spilled generations that are worth their room, with what they lacked
   (`spillway.policy.reactivation`): after the join, so that they meet the epoch's rows, too
   spill: after the join, so a generation's own results are all out
7. write the rows that stay as new runs; merge within the room of the folder
8. write the manifest, report

Known limitation: the memory of the process is bounded by the epoch's intake, what comes back
(`reactivation.MOST_READ_BYTES`), one result batch and one merged file, not by the budget, which
counts files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spillway.engine.expiry import greatest_by_group, still_needed, take_expired
from spillway.engine.groups import I64, Bool
from spillway.engine.growth import GroupJoins, gains_of, growth_of, of_all
from spillway.engine.hotkeys import hot_keys
from spillway.engine.intake import NOT_GIVEN, Intake, merge_bounded, take_in
from spillway.engine.join.batches import Joined
from spillway.engine.join.kernel import Rows, join_batches
from spillway.engine.join.results import complete, file_schema
from spillway.engine.join.tree import TreeSpec
from spillway.engine.probe import install, joined_batches
from spillway.engine.spill.returning import spilled_generations
from spillway.engine.spill.spillfile import write_spill
from spillway.engine.spill.spilling import (
    Limits,
    Victims,
    choose_returns,
    choose_victims,
    flush_ranges,
    rows_of,
    staying,
)
from spillway.engine.state.arrangement import RunWindow, Segments, SessionState
from spillway.engine.state.kept import KeptGenerations
from spillway.engine.state.loading import Loaded, load
from spillway.engine.state.runs import Missing, bytes_of
from spillway.engine.state.slices import by_slice, sliced
from spillway.engine.state.statefiles import (
    Manifest,
    delete_garbage,
    encode_manifest,
    manifest_name,
    write_manifest,
)
from spillway.engine.statistics import (
    STATISTICS_SCHEMA,
    Figures,
    Given,
    carried,
    counted,
    epoch_ms_of,
    figures_table,
    looked_at,
    measure,
    skew,
    statistics_table,
)
from spillway.engine.task import StepTask
from spillway.engine.tracing import counted_for, heard, told
from spillway.engine.upkeep import RunWriter, room_of, trim, upkeep
from spillway.engine.wire.blocks import Block
from spillway.engine.wire.datafile import write_data_files
from spillway.engine.wire.quarantine import QUARANTINE_SCHEMA, quarantine_tables
from spillway.policy.arrivals import NO_EVIDENCE
from spillway.policy.expected import Gain, expected_loss, rows_to_come
from spillway.policy.victims import VictimContext
from spillway.storage import Folder, StateFolder
from spillway_schemas.filenames import turn_of
from spillway_schemas.hash_space import join_of
from spillway_schemas.journal import (
    DELAY_EDGES_MS,
    Cut,
    FileRecord,
    Prefix,
    SlotReport,
    SlotTotals,
    TracedGroup,
)
from spillway_schemas.windows import BEGINNING_US

FITS = 8
"""How often files that do not fit are encoded again with a smaller allowance, roughly."""
SAMPLE_EVERY = 64
"""The age of 1 result in SAMPLE_EVERY is measured (of one in each batch at least)."""


def step(
    spec: TreeSpec,
    task: StepTask,
    blocks: Iterable[Block],
    state: StateFolder,
    tables: Callable[[str], Folder],
) -> SlotReport:
    """Carry out a slot's part of an epoch.

    `state` is the slot's own folder; `tables(name)` the folder of a table. Raises ValueError for
    blocks that are not this slot's, HandoverLost when a file that another slot wrote for this one
    is not as it was written; whatever it raises, nothing that counts has changed.
    """
    began = time.perf_counter()
    try:
        found = load(spec, state, task.slot, task.epoch - 1, task.manifest, task.key)
    except Missing as lost:
        return _missing(task, {task.slot: str(lost)})
    work = _Step(spec, task, state, tables, found, began)
    with work.timed("install"):
        intake = take_in(spec, task.groups, task.slot, blocks, task.piece_bytes)
        lacking = intake.lacking(task.arriving, range(len(spec.joins)))
        if unfound := intake.unfound | dict.fromkeys(lacking, NOT_GIVEN):
            return _missing(task, unfound)
        install(spec, task, state, found, intake)
    return work.run(intake)


def _missing(task: StepTask, unfound: dict[int, str]) -> SlotReport:
    """The report of a step that did nothing."""
    return SlotReport(
        slot=task.slot,
        epoch=task.epoch,
        attempt=task.attempt,
        status="missing",
        unfound=unfound,
    )


def _count(rows: Sequence[Sequence[Rows]]) -> int:
    """How many rows there are, per input in pieces."""
    return sum(len(each.key_hash) for pieces in rows for each in pieces)


class _Step:
    """The step under way."""

    def __init__(
        self,
        spec: TreeSpec,
        task: StepTask,
        state: StateFolder,
        tables: Callable[[str], Folder],
        found: Loaded,
        began: float,
    ) -> None:
        self.spec = spec
        self.task = task
        self.state = state
        self.tables = tables
        self.inputs = range(len(spec.inputs))
        self.joins = GroupJoins.of(spec, task.groups)
        self.found = found
        self.manifest = found.manifest
        self.sessions = found.sessions
        self.began = began
        self.seconds = {"load": time.perf_counter() - began}
        self.known_figures = self.manifest.figures
        self.evidence = {day: np.array(each) for day, each in self.manifest.evidence.items()}
        self.epoch_ms = 0
        self.figures: dict[str, Figures] = {}
        self.segments: dict[str, Segments] = {}
        self.files: list[FileRecord] = []
        self.cuts: list[Cut] = []
        self.results: dict[str, int] = {}
        self.spilled_rows: dict[str, int] = {}
        self.spilled_bytes = 0
        self.short_bytes = 0
        self.overflow_bytes = 0
        self.expired_rows = 0
        self.carried_rows = 0
        self.spilled: dict[str, Figures] = {}
        self.wrote_expired: dict[str, Bool] = {}
        """Per session groups of which expired rows were written, bool (g,)."""
        self.to_come_bytes = 0
        self.returned: dict[str, Bool] = {}
        """Per session groups that have come back, bool (g,)."""
        self.returned_rows = 0
        self.returned_bytes = 0
        self.voided: list[Cut] = []
        self.warnings: list[str] = []
        self.delays: I64 = np.zeros(len(DELAY_EDGES_MS) + 1, dtype=np.int64)
        self.traced: dict[str, list[TracedGroup]] = {}
        self.work: I64 = np.zeros(len(task.groups), dtype=np.int64)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add what the block takes to a phase's seconds."""
        start = time.perf_counter()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start

    def run(self, intake: Intake) -> SlotReport:
        """Everything after loading and taking in."""
        task = self.task
        with self.timed("load"):
            left = delete_garbage(
                self.state,
                task.warehouse_id,
                self.found.sizes,
                born_before=task.born_before,
                manifest_name=task.manifest,
                manifest=self.manifest if task.manifest else None,
                turn=turn_of(task.attempt),
            )
        with self.timed("install"):
            self.known_figures = pa.concat_tables([self.manifest.figures, *intake.figures])
            self.epoch_ms = epoch_ms_of(self.known_figures, task.now_ms)
            # A session of which everything was spilled has no files, but counts go on.
            for name in sorted(set(pc.unique(self.known_figures["session"]).to_pylist())):
                self.found.session(name)
        with self.timed("quarantine"):
            self._quarantine(intake)
        given = {name: self._given(intake, name) for name in self.sessions}
        timed = [name for name in self.sessions if name in task.expired_by]
        gone = {name: self._expired(name, new=False) for name in timed}
        shelf = self._shelf(sum(left.values()))
        with self.timed("merge"):
            stay = {n: s for n, s in self.sessions.items() if n not in task.flush}
            came = sum(self._came(kind) for kind in ("new", "installed", "carried"))
            trim(shelf, stay, self.manifest.drops, came)
        for name in self.sessions:
            self._join(name, given[name])
            self._keep_carried(name)
        for name in timed:
            self._write_expired(name, (gone[name], self._expired(name, new=True)))
        with self.timed("spill"):
            for name in [s for s in self.sessions if s in task.flush]:
                self._flush(self.sessions[name], task.flush[name])
                del self.sessions[name]
        for name in self.sessions:
            self._measure(name, given[name])
        next_run, intake_bytes = self._spill_and_store(shelf)
        with self.timed("merge"):
            kept = upkeep(shelf, self.sessions, self.manifest.merges, next_run, intake_bytes)
        with self.timed("statistics"):
            figures = figures_table(task.groups, task.slot, self.figures, task.now_ms)
        with self.timed("manifest"):
            for session in self.sessions.values():
                born = [part.file.born for part in session.all_parts()]
                session.drops = session.drops.since(min(born, default=task.epoch + 1))
            manifest = Manifest(
                slot=task.slot,
                epoch=task.epoch,
                next_run=kept.next_run,
                runs=tuple(
                    part.file for session in self.sessions.values() for part in session.all_parts()
                ),
                drops={s.name: s.drops for s in self.sessions.values() if any(s.parts)},
                merges=kept.merges,
                figures=figures,
                evidence={
                    name: each.tolist()
                    for name, each in self.evidence.items()
                    if name in self.sessions and each.any()
                },
            )
            data = encode_manifest(manifest)
            name = manifest_name(task.warehouse_id, task.epoch, task.attempt, data, task.key)
            write_manifest(self.state, name, data)
            shelf.room.used_bytes += data.size
        with self.timed("statistics"):
            self._statistics()
        return self._report(intake, name, shelf.room.used_bytes)

    def _shelf(self, used_bytes: int) -> RunWriter:
        """The slot's folder, of which files take `used_bytes`."""
        task = self.task
        held = sum(len(parts) for s in self.sessions.values() for parts in s.parts)
        files = held + 2 * len(self.inputs) * len(self.sessions)
        room = room_of(
            task.shape_kept,
            task.budget_bytes,
            used_bytes,
            files,
            len(task.groups) * len(self.sessions),
            self.found.sizes.get(task.manifest or "", 0),
        )
        return RunWriter(
            self.spec,
            self.state,
            task.warehouse_id,
            task.epoch,
            task.attempt,
            task.key,
            room,
            task.shape_kept,
        )

    # --- join -----------------------------------------------------------------------------

    def _join(self, name: str, given: Given) -> None:
        """Join a session's new rows at the root, write the results, and count them."""
        session = self.sessions[name]
        batches = joined_batches(
            self.spec,
            self.spec.root.operator,
            session,
            self.task.batch_bytes,
            sample_every=SAMPLE_EVERY,
        )
        if batches is not None:
            # Of old rows with carried ones the times of the former are not known any more.
            self._write_results(name, batches, given, dated=not any(session.carried))

    def _write_results(
        self, name: str, batches: Iterator[Joined], given: Given, *, dated: bool
    ) -> None:
        """Write a session's results, and count them. `dated`: note how old their rows are."""
        partition = {"session_date": name}
        first = sum(f.table == "results" and f.partition == partition for f in self.files)

        def tables() -> Iterator[pa.Table]:
            for number, batch in enumerate(self._timing("join", batches), first):
                groups = self.task.groups.group_of(batch.hashes)
                np.add.at(given.results, groups, batch.results)
                if self.task.traces:
                    self._trace(batch, given, name, number)
                if dated:
                    self._note_delays(batch.newest_ms)
                yield complete(
                    self.spec.results(batch.table),
                    epoch=self.task.epoch,
                    phase="run-time",
                    committed_us=self.task.written_at_us,
                )

        start, joining = time.perf_counter(), self.seconds.get("join", 0.0)
        written = write_data_files(
            self.tables("results"),
            "results",
            lambda k: self.task.file_name(first + k),
            file_schema(self.spec),
            tables(),
            partition,
        )
        joined = self.seconds.get("join", 0.0) - joining
        spent = time.perf_counter() - start - joined
        self.seconds["write"] = self.seconds.get("write", 0.0) + spent
        self.files += written
        if total := sum(file.rows for file in written):
            self.results[name] = self.results.get(name, 0) + total

    def _trace(self, batch: Joined, given: Given, session: str, number: int) -> None:
        """Count results for the groups that they came through."""
        below = [each for i in self.spec.root.inputs for each in i.lineage]
        seed = self.task.sample_seed(self.spec.root.operator, session, number)
        with self.timed("trace"):
            given.final_results += counted_for(
                self.task.groups, batch.table, below, most=self.task.trace_most, seed=seed
            )
            groups = self.task.groups.group_of(batch.hashes)
            np.add.at(given.final_results, groups, batch.results)

    def _given(self, intake: Intake, session: str) -> Given:
        """What the joins below the root gave, and what other slots have counted since."""
        given = Given.nothing(len(self.task.groups))
        for table in intake.given:
            mine = table.filter(pc.equal(table["session"], session))
            at = mine["group"].to_numpy()
            np.add.at(given.results, at, mine["results"].to_numpy())
            np.add.at(given.downstream_bytes, at, mine["downstream_bytes"].to_numpy())
        own = self.task.groups.slots == self.task.slot
        given.final_results += own * heard(self.task.groups, self.task.traced.get(session, ()))
        return given

    def _timing(self, phase: str, items: Iterator[Any]) -> Iterator[Any]:
        """The same items, with the time that it takes to make them noted."""
        while True:
            with self.timed(phase):
                item = next(items, None)
            if item is None:
                return
            yield item

    def _note_delays(self, newest_ms: I64) -> None:
        ages = np.maximum(self.task.written_at_us // 1000 - newest_ms, 0)
        bucket = np.searchsorted(np.array(DELAY_EDGES_MS), ages)
        self.delays += np.bincount(bucket, minlength=len(self.delays))

    def _keep_carried(self, name: str) -> None:
        """Carried rows have met the others of the session, and are its state from here on."""
        session = self.sessions[name]
        if not any(session.carried):
            return
        joined = {up.input for up in self.spec.upward if up is not None}
        leaves = [each for i, each in enumerate(session.carried) if i not in joined]
        self.carried_rows += _count(leaves)
        session.installed = [
            [*before, *came]
            for before, came in zip(session.installed, session.carried, strict=True)
        ]
        session.carried = [[] for _ in self.inputs]

    # --- expiry ---------------------------------------------------------------------------

    def _expired(self, name: str, *, new: bool) -> list[list[Rows]]:
        """Take out of a session what has expired; its live rows per input."""
        with self.timed("expire"):
            watermark_us = self.task.expired_by[name]
            return take_expired(self.spec, self.sessions[name], watermark_us, new=new)

    def _write_expired(
        self, name: str, gone: Sequence[Sequence[Sequence[Rows]]], *, number: int = 1
    ) -> None:
        """Write what cleanup needs of expired rows, into the generation that they are of."""
        out = [[rows for each in gone for rows in each[i]] for i in self.inputs]
        if not any(out):
            return
        self.expired_rows += _count(out)
        with self.timed("expire"):
            kept = still_needed(self.spec, self.task.groups, self.task.reach.get(name, ()), out)
            if any(kept):
                self._write_spill(name, kept, _count(kept), number=number)
                wrote = self.wrote_expired.setdefault(name, self._wrote_expired(name))
                for rows in (rows for pieces in kept for rows in pieces):
                    wrote[self.task.groups.group_of(rows.key_hash)] = True

    def _wrote_expired(self, name: str) -> Bool:
        """Groups of a session of which expired rows were written in this epoch, bool (g,)."""
        nothing: Bool = np.zeros(len(self.work), dtype=np.bool_)
        return self.wrote_expired.get(name, nothing)

    # --- spill ----------------------------------------------------------------------------

    def _measure(self, name: str, given: Given) -> None:
        """Figures of a session's groups, the epoch's rows and results included."""
        task = self.task
        session = self.sessions[name]
        with self.timed("spill"):
            segments = Segments.of_groups(task.groups, session.drops)
            sizes = measure(session, segments, len(self.spec.inputs))
        with self.timed("statistics"):
            before = carried(self.known_figures, name, task.groups, task.now_ms)
            own = task.groups.slots == task.slot
            if others := told(task.groups, given.final_results * ~own):
                self.traced[name] = others
            counters = counted(before, sizes, given, self.joins.inputs, task.now_ms, self.epoch_ms)
            known = self.evidence.get(name, NO_EVIDENCE)
            counters, evidence = looked_at(counters, known, task.now_ms)
            self.evidence[name] = evidence
            left_ms = task.left_ms.get(name)
            rows = sizes.rows.sum(axis=0)
            forecast = task.forecasts.get(name)
            groups = np.flatnonzero(own)
            growth = growth_of(
                rows,
                counters,
                self.joins,
                groups,
                task.now_ms,
                evidence,
                left_ms,
                self._lag_ms(name),
                forecast,
            )
            kept = KeptGenerations.known(self.known_figures, name, task.groups)
            kept = kept.without(~own | self._wrote_expired(name))
            gains: Sequence[Gain] = ()
            if task.reactivation != "off" and task.may_return:
                gains = gains_of(growth, kept, groups, len(task.groups), task.now_ms)
                newest = kept.newest(len(task.groups))
                known, known_bytes = rows.sum(), sizes.bytes.sum()
                if not known:
                    known, known_bytes = newest.rows.sum(), newest.bytes.sum()
                self.to_come_bytes += int(rows_to_come(growth).sum() * known_bytes / max(known, 1))
            self.segments[name] = segments
            self.figures[name] = Figures(
                sizes.rows,
                sizes.bytes,
                sizes.intake_bytes,
                counters,
                of_all(expected_loss(growth), groups, len(task.groups)),
                kept,
                gains,
            )
            self.work += sizes.new_rows + given.results

    def _lag_ms(self, name: str) -> float:
        """How far the watermark is behind the stream's clock; where there is none, nothing of the
        clock's whole time has expired."""
        return max(self.task.now_ms - self.task.expired_by.get(name, 0) / 1000, 0.0)

    def _flush(self, session: SessionState, flushed: tuple[Prefix, ...]) -> None:
        """Write the last generation of a session that ends; what is not flushed is complete."""
        task = self.task
        ranges = flush_ranges(task.groups, task.slot, flushed)
        if not ranges:
            return
        segments = Segments.of_ranges(ranges, session.drops)
        sizes = measure(session, segments, len(self.spec.inputs))
        held: Bool = sizes.rows.sum(axis=0) > 0
        if held.any():
            rows = rows_of(session, segments, held)
            self._write_spill(session.name, rows, int(sizes.rows[:, held].sum()))
            self.spilled_bytes += int(sizes.bytes[held].sum())
        for at in np.flatnonzero(held).tolist():
            self.cuts.append(self._cut(session.name, ranges[at]))

    # --- reactivation ---------------------------------------------------------------------

    def _reactivate(self, room_bytes: int, brought_bytes: int) -> None:
        """Bring back what is worth its room. `brought_bytes`: of new rows."""
        task = self.task
        with self.timed("spill"):
            wanted = choose_returns(
                self.figures,
                self._limits(room_bytes, brought_bytes),
                task.reactivation,
                victims=task.victims,
                context=self._victim_context(),
                level=self._level(),
                to_come_bytes=self.to_come_bytes,
            )
        for name, groups in wanted.items():
            chosen = self.figures[name].kept.newest_of(groups)
            ranges = [task.groups.prefixes[g] for g in chosen["group"].to_pylist()]
            with self.timed("reactivate"):
                found = spilled_generations(self.spec, self.tables("spill"), chosen, ranges)
            back: Bool = np.zeros(len(groups), dtype=np.bool_)
            back[chosen["group"].to_numpy()[found.there]] = True
            # Cleanup needs every file, but the day goes on without it. One that is no more what it
            # was will not be again; what merely could not be read may be tried again.
            self.warnings += [f"spilled groups cannot come back: {why}" for why in found.problems]
            lost: Bool = np.zeros(len(groups), dtype=np.bool_)
            lost[chosen["group"].to_numpy()[found.damaged]] = True
            self.figures[name] = replace(
                self.figures[name], kept=self.figures[name].kept.without(lost)
            )
            if not back.any():
                continue
            self._bring_back(self.sessions[name], back, found.rows)
            epochs = chosen["epoch"].to_pylist()
            self.voided += [
                self._cut(name, ranges[at], epoch=epochs[at])
                for at in np.flatnonzero(found.there).tolist()
            ]

    def _bring_back(
        self, session: SessionState, groups: Bool, rows: Sequence[Sequence[Rows]]
    ) -> None:
        """Give what the rows of a generation lacked, and take them into the state."""
        name, join = session.name, self.spec.root.operator
        inputs = self.spec.inputs_of(join)
        segments = self.segments[name]
        back = [
            [r for run in pieces for r in sliced(self.spec, i, run)]
            for i, pieces in enumerate(rows)
        ]
        held = rows_of(session, segments, groups)
        given = Given.nothing(len(groups))
        batches = join_batches(
            self.spec.joins[join],
            [back[i] for i in inputs],
            [held[i] for i in inputs],
            need_old=True,
            batch_bytes=self.task.batch_bytes,
        )
        self._write_results(name, batches, given, dated=False)
        came = SessionState(name, session.drops, [[] for _ in self.inputs], new=back)
        if name in self.task.expired_by:
            gone = take_expired(self.spec, came, self.task.expired_by[name], new=True)
            self._write_expired(name, (gone,), number=2)
        session.installed = [
            [*before, *more] for before, more in zip(session.installed, came.new, strict=True)
        ]
        came.installed = [[] for _ in self.inputs]
        sizes = measure(came, segments, len(self.spec.inputs))
        figures = self.figures[name].after_return(groups, sizes, given.results, self.joins.inputs)
        self.figures[name] = replace(figures, kept=figures.kept.without(self._wrote_expired(name)))
        self.returned[name] = groups
        self.returned_rows += int(sizes.rows.sum())
        self.returned_bytes += int(sizes.bytes.sum())
        self.work += given.results

    def _spill_and_store(self, shelf: RunWriter) -> tuple[int, int]:
        """Spill victims, write what stays: (number of the next run, bytes of new rows that stay).

        What moved or was restored is no reason to merge more in this very epoch.
        """
        fresh = self._came("new")
        self.short_bytes = shelf.room.to_spill(fresh, self._held_bytes())
        if self.task.may_return:
            self._reactivate(shelf.room.left() - shelf.room.for_work(fresh), fresh)
        other = self._came("installed")
        next_run, encoded, victims = self._fit(shelf, fresh)
        self.overflow_bytes = victims.overflow_bytes
        with self.timed("spill"):
            for name, groups in victims.groups.items():
                self._spill(self.sessions[name], groups)
        with self.timed("store"):
            for part, data in encoded:
                shelf.write(part, data)
                self.sessions[part.file.session].parts[part.file.input].append(part)
        stays = sum(data.size for _, data in encoded)
        return next_run, stays * fresh // max(fresh + other, 1)

    def _held_bytes(self) -> int:
        """Bytes of the files that the state is in, and of a manifest like the last one."""
        files = sum(p.bytes for s in self.sessions.values() for p in s.all_parts())
        return files + self.found.sizes.get(self.task.manifest or "", 0)

    def _came(self, kind: str) -> int:
        """Bytes of the `new` rows of an epoch, or of those that were `installed` or `carried`."""
        return sum(
            bytes_of(rows)
            for session in self.sessions.values()
            for pieces in getattr(session, kind)
            for rows in pieces
        )

    def _limits(self, room_bytes: int, brought_bytes: int) -> Limits:
        task = self.task
        return Limits(
            task.budget_bytes,
            task.threshold,
            task.fraction,
            room_bytes,
            task.forced_bytes,
            brought_bytes,
            self.returned_bytes,
            self.short_bytes,
        )

    def _victim_context(self) -> VictimContext:
        return VictimContext(self.task.now_ms, self.task.inactive_ms, self.task.seed)

    def _level(self) -> I64 | None:
        """Of each group how many joins lie above its own, (g,); None: there is one join."""
        return self.joins.level if len(self.spec.joins) > 1 else None

    def _fit(
        self, shelf: RunWriter, brought_bytes: int
    ) -> tuple[int, list[tuple[RunWindow, Any]], Victims]:
        """The next run's number, the files of what stays, not written yet, and the victims.

        `brought_bytes`: of new rows.

        What a file takes beyond its rows is known once it is encoded. Files that do not fit are
        encoded again with so much less room, a few times, then with none.
        """
        task = self.task
        left = max(shelf.room.left(), 0)
        room = left
        while True:
            with self.timed("spill"):
                limits = self._limits(room, brought_bytes)
                victims = choose_victims(
                    self.figures,
                    limits,
                    task.victims,
                    self._victim_context(),
                    self._level(),
                    self.returned,
                )
            with self.timed("store"):
                next_run, encoded = self._encode(shelf, victims.groups)
                short = sum(data.size for _, data in encoded) - left
            if short <= 0 or not room:
                return next_run, encoded, victims
            room = max(room - max(short, left // FITS), 0)

    def _encode(
        self, shelf: RunWriter, victims: Mapping[str, Bool]
    ) -> tuple[int, list[tuple[RunWindow, Any]]]:
        """The files of what came and stays, not written yet, and the next run's number."""
        most = self.task.shape.new_file_bytes(self.task.budget_bytes)
        next_run = self.found.next_run
        encoded: list[tuple[RunWindow, Any]] = []
        for name, session in self.sessions.items():
            segments, gone = self.segments[name], victims[name]
            for input_ in self.inputs:
                # State that came is sorted already, and may be large: a run of its own.
                for fresh in (session.installed[input_], session.new[input_]):
                    for some in by_slice(staying(fresh, segments, gone)):
                        pieces = merge_bounded(some, most)
                        encoded += [shelf.encode(name, input_, next_run, rows) for rows in pieces]
                        next_run += bool(pieces)
        return next_run, encoded

    def _spill(self, session: SessionState, victims: Bool) -> None:
        """Write the victims' rows, and leave them out of what follows."""
        figures = self.figures[session.name]
        held = victims & figures.held
        if held.any():
            rows = rows_of(session, self.segments[session.name], held)
            file = self._write_spill(session.name, rows, int(figures.rows[:, held].sum()))
            self.spilled_bytes += int(figures.bytes[held].sum())
            groups = [self.task.groups.prefixes[g] for g in np.flatnonzero(held).tolist()]
            greatest: Sequence[int | None] = [None] * len(groups)
            if any(join.span is not None for join in self.spec.joins):
                timed = [each.timed for each in self.spec.inputs]
                found = greatest_by_group(self.task.groups, rows, timed)[held]
                greatest = [None if us == BEGINNING_US else us for us in found.tolist()]
            self.cuts += [
                self._cut(session.name, prefix, us)
                for prefix, us in zip(groups, greatest, strict=True)
            ]
            session.drops = session.drops.drop(groups, self.task.epoch)
            self.spilled[session.name] = figures.only(held)
            self.figures[session.name] = figures.after_spill(
                held, self._kept(session.name, held, file)
            )
        session.new = [[] for _ in self.inputs]
        session.installed = [[] for _ in self.inputs]

    def _kept(self, session: str, cut: Bool, file: FileRecord) -> KeptGenerations:
        """The generations that may come back once some groups (g,) are spilled to a file."""
        figures = self.figures[session]
        if self.task.reactivation == "off":
            return figures.kept.without(cut)  # what is known would not be the last one any more
        # Of the root alone: what joins below it lacked would be rows of those above. Rows that have
        # expired in this epoch have the cut's epoch, too, but are not to be read back.
        may = (self.joins.join == self.spec.root.operator) & ~self._wrote_expired(session)
        rows = figures.rows.sum(axis=0)
        return figures.kept.without(cut & ~may).with_cut(
            cut & may,
            rows,
            figures.bytes,
            figures.counters.results,
            file,
            epoch=self.task.epoch,
            now_ms=self.task.now_ms,
        )

    def _write_spill(
        self, session: str, rows: Sequence[Sequence[Rows]], expected: int, *, number: int = 0
    ) -> FileRecord:
        """Write rows, per input, into file `number` of the spill. `expected`: how many they are by
        the figures."""
        task = self.task
        record = write_spill(
            self.tables("spill"), task.file_name(number), self.spec, session, task.epoch, rows
        )
        if record is None or record.rows != expected:
            raise RuntimeError(
                f"slot {task.slot}: {expected} rows were to be spilled, "
                f"{record.rows if record else 0} were written. Nothing was journaled."
            )
        self.files.append(record)
        self.spilled_rows[session] = self.spilled_rows.get(session, 0) + expected
        return record

    def _cut(
        self,
        session: str,
        range_: Prefix,
        greatest_us: int | None = None,
        *,
        epoch: int | None = None,
    ) -> Cut:
        return Cut(
            session=session,
            operator=join_of(range_, len(self.spec.joins)),
            range=range_,
            epoch=self.task.epoch if epoch is None else epoch,
            greatest_us=greatest_us,
        )

    # --- tables and report ----------------------------------------------------------------

    def _quarantine(self, intake: Intake) -> None:
        task = self.task
        for name in sorted({session for session, _ in intake.rejected}):
            rows = [table for session, table in intake.rejected if session == name]
            self.files += write_data_files(
                self.tables("quarantine"),
                "quarantine",
                task.file_name,
                QUARANTINE_SCHEMA,
                quarantine_tables(rows, epoch=task.epoch, written_at_us=task.written_at_us),
                {"session_date": name},
            )

    def _statistics(self) -> None:
        task = self.task
        if not (task.statistics or self.spilled):
            return
        if task.statistics:
            self._note_hot_keys()
        both = [(self.figures, True), (self.spilled, False)]
        self.files += write_data_files(
            self.tables("statistics"),
            "statistics",
            task.file_name,
            STATISTICS_SCHEMA,
            (
                statistics_table(
                    task.groups,
                    figures,
                    epoch=task.epoch,
                    slot=task.slot,
                    resident=resident,
                    written_at_us=task.written_at_us,
                    state_bytes=self._state_bytes(),
                    budget_bytes=task.budget_bytes,
                    recent=task.recent,
                )
                for figures, resident in both
            ),
        )

    def _state_bytes(self) -> int:
        return sum(int(figures.bytes.sum()) for figures in self.figures.values())

    def _note_hot_keys(self) -> None:
        for name, session in self.sessions.items():
            segments = Segments.of_groups(self.task.groups, session.drops)
            figures = self.figures[name]
            figures.hot = hot_keys(self.spec, session, segments, figures.bytes)

    def _report(self, intake: Intake, manifest: str, folder_bytes: int) -> SlotReport:
        task = self.task
        rows_in = {
            self.spec.inputs[i].name: sum(
                len(rows.key_hash) for inputs in intake.new.values() for rows in inputs[i]
            )
            for i in self.inputs
        }
        stamps = [
            int(rows.kafka_ms.max(initial=0))
            for inputs in intake.new.values()
            for pieces in inputs
            for rows in pieces
            if rows.kafka_ms is not None
        ]
        rejected = [table.column(5).to_numpy().max(initial=0) for _, table in intake.rejected]
        return SlotReport(
            slot=task.slot,
            epoch=task.epoch,
            attempt=task.attempt,
            manifest=manifest,
            files=self.files,
            cuts=self.cuts,
            voided=self.voided,
            warnings=self.warnings,
            read=intake.read,
            restored=intake.restored,
            carried=intake.carried_counts,
            carried_rows=self.carried_rows,
            installed_rows=intake.installed_rows,
            results=self.results,
            spilled_rows=self.spilled_rows,
            traced=self.traced,
            recent_input_ms=max([*stamps, *map(int, rejected)], default=0),
            totals=SlotTotals(
                slot=task.slot,
                budget_bytes=task.budget_bytes,
                state_bytes=self._state_bytes(),
                folder_bytes=folder_bytes,
                rows=sum(int(f.rows.sum()) for f in self.figures.values()),
                rows_in=rows_in,
                results=sum(self.results.values()),
                spilled_bytes=self.spilled_bytes,
                overflow_bytes=self.overflow_bytes,
                returned_rows=self.returned_rows,
                returned_bytes=self.returned_bytes,
                expired_rows=self.expired_rows,
                spilled_rows=sum(self.spilled_rows.values()),
                groups=sum(int(f.held.sum()) for f in self.figures.values()),
                skew=round(skew(self.work), 4),
                busy_s=round(time.perf_counter() - self.began, 6),
                seconds={phase: round(s, 6) for phase, s in self.seconds.items()},
                delay_ms=self.delays.tolist(),
            ),
        )
