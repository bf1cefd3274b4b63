"""Slots of a tree of joins on tmpfs: real probes and steps, one after another.

As `benchmarks.lab.cluster`, for a tree: all joins of a slot share its memory, and what slots count
for groups of others comes back with the next epoch's tasks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.lab.cluster import SESSION, Spilling
from benchmarks.lab.job import carried_out, cleaned, extracted, ordered, sifted
from benchmarks.lab.lines import assigned
from benchmarks.lab.tree_exact import Cut
from benchmarks.lab.tree_workload import TreeDay
from benchmarks.lab.workload import I64
from spillway.engine.groups import GroupMap, relocations
from spillway.engine.spill.spillfile import SpillFile
from spillway.engine.task import StepTask
from spillway.engine.wire.blocks import Block, Coordinates, route
from spillway.protocol.seal import cleanup_ranges, flushed
from spillway.storage import LocalFolder, StateFolder, folder
from spillway.stream.tasks import all_traced
from spillway_schemas import journal
from spillway_schemas.journal import FileRecord, Prefix, SlotReport, SlotTotals, TracedGroup


@dataclass(frozen=True)
class TreeCleaned:
    """What cleanup did."""

    results: I64
    """(g,) missing results of each group of the root."""
    cpu_s: list[float]
    """Of each join."""


@dataclass
class TreeCluster:
    """The slots, and what a journal would know of them. `epoch`: the last one that was kept."""

    day: TreeDay
    root: str
    shares: Sequence[float]
    """What part of every join's groups each slot has at the beginning."""
    spilling: Spilling
    epoch: int = -1
    cuts: list[journal.Cut] = field(default_factory=list)
    spilled: list[FileRecord] = field(default_factory=list)
    manifests: dict[int, str | None] = field(default_factory=dict)
    traced: dict[str, list[TracedGroup]] = field(default_factory=dict)
    attempts: Iterator[int] = field(default_factory=itertools.count)
    figures: pa.Table | None = None
    """The newest statistics of all groups."""

    def __post_init__(self) -> None:
        self.spec = self.day.query.spec
        self.slots = range(len(self.shares))
        self.groups = self.day.of_all_joins(assigned(self.day.groups, self.shares))
        self.warehouse = folder(self.root).child("warehouse")

    def run(
        self,
        *,
        moves: Mapping[Prefix, int] | None = None,
        forced: Mapping[int, int] | None = None,
        statistics: bool = False,
        seal: bool = False,
    ) -> list[SlotTotals]:
        """One epoch: its arrivals (none when it seals the session), moves and forced spills."""
        before = self.groups
        if moves:
            self.groups = GroupMap((p, moves.get(p, s)) for p, s in before.assignment())
        cut = {each.range for each in self.cuts}
        flush = {SESSION: flushed(self.spec.parents, cut)} if seal else {}
        reports = self._attempt(
            [] if seal else self._blocks(),
            relocations(before, self.groups),
            forced or {},
            flush=flush,
            statistics=statistics,
        )
        self.epoch += 1
        self._keep(reports, statistics=statistics)
        return [report.totals for report in reports if report.totals is not None]

    def attempt(self, *, traces: bool, trace_most: int = 0) -> None:
        """The next epoch, whose reports are thrown away: nothing counts, and all can be done again.

        Results are traced or not, whatever the victims' order asks for.
        """
        for report in self._attempt(self._blocks(), {}, {}, traces=traces, trace_most=trace_most):
            for file in report.files:
                self.warehouse.child(file.table).delete(file.path)

    def _attempt(
        self,
        came: list[Block],
        going: Mapping[tuple[int, int], Sequence[Prefix]],
        forced: Mapping[int, int],
        **given: object,
    ) -> list[SlotReport]:
        tasks = {slot: ordered(self._task(slot, **given), going, forced) for slot in self.slots}
        came += extracted(self.spec, tasks, self._state)
        return carried_out(self.spec, tasks, came, self._state, self.warehouse.child)

    def clean(self) -> TreeCleaned:
        """The cleanup of the sealed session, join after join."""
        cut = flushed(self.spec.parents, {each.range for each in self.cuts})
        results = np.zeros(self.day.groups, dtype=np.int64)
        cpu_s = [0.0 for _ in self.spec.joins]
        for done in cleaned(
            self.spec,
            cleanup_ranges(cut, len(self.spec.joins)),
            [SpillFile(f.path, f.bytes, f.digest) for f in self.spilled],
            self.warehouse.child,
            session=SESSION,
            epoch=self.epoch,
            committed_us=self._now_ms(self.epoch) * 1000,
        ):
            cpu_s[done.join] = done.cpu_s
            for file in done.files:
                if file.table == "results":
                    results += self._counted(file)
        return TreeCleaned(results, cpu_s)

    def groups_cut(self) -> set[int]:
        """The numbers of those that were ever spilled."""
        return {self.groups.index(each.range) for each in self.cuts}

    def all_cuts(self) -> list[Cut]:
        """What was spilled so far: join, its group, epoch."""
        return [
            (c.operator, self.groups.index(c.range) - c.operator * self.day.groups, c.epoch)
            for c in self.cuts
        ]

    def _task(self, slot: int, **given: object) -> StepTask:
        epoch = self.epoch + 1
        task = self.spilling.task(
            slot,
            epoch,
            self.manifests.get(slot),
            self.groups,
            self._now_ms(epoch + 1),
            self._now_ms(self.day.epochs),
        )
        attempt = f"{next(self.attempts):016x}"
        return replace(task, attempt=attempt, traced=self.traced, **given)  # type: ignore[arg-type]

    def _now_ms(self, epoch: int) -> int:
        return int(epoch * self.day.epoch_s * 1000)

    def _blocks(self) -> list[Block]:
        """The next epoch's new rows, as decoders make them."""
        found: list[Block] = []
        epoch = self.epoch + 1
        for stream in self.day.query.streams:
            arrivals = self.day.streams[stream.name]
            start, end = np.searchsorted(arrivals.epoch, (epoch, epoch + 1)).tolist()
            rows = arrivals.table.slice(start, end - start).select(stream.sources)
            batch = pa.RecordBatch.from_arrays(
                [column.combine_chunks() for column in rows.columns], schema=stream.schema
            )
            where = Coordinates(
                np.zeros(end - start, np.int32),
                np.arange(start, end),
                np.full(end - start, self._now_ms(epoch)),
            )
            found += route(self.spec, stream.index, self.groups, batch, where, session=SESSION)
        return found

    def _state(self, slot: int) -> StateFolder:
        return LocalFolder(self.root).child(f"slot-{slot}")

    def _keep(self, reports: list[SlotReport], *, statistics: bool) -> None:
        for report in reports:
            if report.status != "done":
                raise RuntimeError(f"slot {report.slot} at epoch {self.epoch}: {report.unfound}")
            self.manifests[report.slot] = report.manifest
            self.cuts += report.cuts
        spilled, figures = sifted([f for r in reports for f in r.files], self.warehouse.child)
        self.spilled += spilled
        if statistics:
            self.figures = figures
        self.traced = all_traced(reports)

    def _counted(self, file: FileRecord) -> I64:
        """(g,) results in a file, by the root's groups. The file is deleted."""
        place, root = self.warehouse.child("results"), self.spec.root
        with place.open(file.path) as source:
            read = pq.ParquetFile(source).read(columns=root.keys.names, use_threads=False)
        place.delete(file.path)
        hashes = self.spec.hashes(root.operator, [read[name] for name in root.keys.names])
        group = self.groups.group_of(hashes) - root.operator * self.day.groups
        return np.bincount(group, minlength=self.day.groups)
