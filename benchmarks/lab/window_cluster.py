"""Slots of a windowed join on tmpfs whose real steps run one after another.

As `benchmarks.lab.cluster`, for a join with a window: the watermark follows what arrived, as the
driver's does; rows expire by slices; groups move, are split and merged. Memory is ample, as in the
paper: nothing spills. Result files are deleted once their rows are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.lab.cluster import SESSION, Spilling
from benchmarks.lab.job import carried_out, extracted, ordered
from benchmarks.lab.window_workload import STREAMS, WindowDay
from benchmarks.lab.workload import I64
from spillway.engine.groups import GroupMap, relocations
from spillway.engine.join.spec import InputSpec, JoinSpec
from spillway.engine.join.tree import TreeSpec, one_join
from spillway.engine.task import StepTask
from spillway.engine.wire.blocks import Block, Coordinates, route
from spillway.storage import LocalFolder, StateFolder, folder
from spillway_schemas.journal import FileRecord, SlotReport
from spillway_schemas.windows import Progress, Span

NAMES = ("left", "right")
AMPLE = Spilling(1 << 28)
PARTITIONS = tuple((name, 0) for name in NAMES)
OFFSETS = [f"{name}_offset" for name in NAMES]


def windowed(window_s: float) -> TreeSpec:
    """The join of two streams on a number, by their arrival times."""
    return one_join(
        JoinSpec(
            0,
            pa.schema([pa.field("key", pa.int64(), nullable=False)]),
            tuple(InputSpec(name, pa.schema([]), timed=True) for name in NAMES),
            Span.within(STREAMS, round(window_s * 1_000_000)),
        )
    )


@dataclass(frozen=True)
class Stepped:
    """What an epoch did."""

    results: dict[int, tuple[I64, I64]]
    """By slot, (r,) rows of the two streams that each result is made of, by their numbers."""
    rows: dict[int, int]
    """By slot, rows in memory at its end."""
    figures: pa.Table | None
    """The statistics of all groups, when they were asked for."""


@dataclass
class WindowCluster:
    """The slots, and what a journal would know of them."""

    day: WindowDay
    root: str
    window_s: float
    groups: GroupMap
    epoch: int = -1
    now_s: float = 0.0
    manifests: dict[int, str | None] = field(default_factory=dict)
    progress: Progress = field(default_factory=lambda: Progress.begin(PARTITIONS))

    def __post_init__(self) -> None:
        self.spec = windowed(self.window_s)
        self.warehouse = folder(self.root).child("warehouse")

    def run(self, until_s: float, groups: GroupMap, *, statistics: bool = False) -> Stepped:
        """One epoch: the rows until a time, in groups that may be at other slots than before."""
        before, self.groups = self.groups, groups
        self.epoch += 1
        going = relocations(before, groups)
        slots = sorted({*before.slots.tolist(), *groups.slots.tolist()})
        tasks = {
            slot: ordered(replace(self._task(slot, until_s), statistics=statistics), going, {})
            for slot in slots
        }
        came = [*self._blocks(until_s), *extracted(self.spec, tasks, self._state)]
        reports = carried_out(self.spec, tasks, came, self._state, self.warehouse.child)
        self._note(until_s)
        return self._kept(reports, statistics=statistics)

    def _task(self, slot: int, until_s: float) -> StepTask:
        manifest = self.manifests.get(slot)
        until_ms = round(until_s * 1000)
        task = AMPLE.task(slot, self.epoch, manifest, self.groups, until_ms, until_ms)
        return replace(task, expired_by={SESSION: self.progress.watermark_us})

    def _blocks(self, until_s: float) -> list[Block]:
        """The epoch's new rows, as decoders make them. A row's number is its offset."""
        found: list[Block] = []
        for stream in range(STREAMS):
            new = self.day.between(stream, self.now_s, until_s)
            times = self.day.time_us[stream][new]
            where = Coordinates(
                np.zeros(len(times), np.int32),
                np.arange(new.start, new.stop),
                times // 1000,
                times,
            )
            batch = pa.RecordBatch.from_arrays(
                [pa.array(self.day.keys[stream][new])], schema=self.spec.root.keys
            )
            found += route(self.spec, stream, self.groups, batch, where, session=SESSION)
        return found

    def _note(self, until_s: float) -> None:
        """The time of the session after the epoch."""
        came = {}
        for stream, partition in enumerate(PARTITIONS):
            new = self.day.time_us[stream][self.day.between(stream, self.now_s, until_s)]
            if len(new):
                came[partition] = int(new[-1])
        self.progress = self.progress.after(came, round(until_s * 1000))
        self.now_s = until_s

    def _kept(self, reports: Sequence[SlotReport], *, statistics: bool) -> Stepped:
        results, rows, tables = {}, {}, []
        owners = set(self.groups.slots.tolist())
        for report in reports:
            if report.status != "done" or report.totals is None:
                raise RuntimeError(f"slot {report.slot} at epoch {self.epoch}: {report.unfound}")
            rows[report.slot] = report.totals.rows
            found = [self._read(f, OFFSETS) for f in report.files if f.table == "results"]
            if found:
                every = pa.concat_tables(found)
                left, right = (every[name].to_numpy() for name in OFFSETS)
                results[report.slot] = left, right
            tables += [self._read(f) for f in report.files if f.table == "statistics"]
        self.manifests = {r.slot: r.manifest for r in reports if r.slot in owners}
        return Stepped(results, rows, pa.concat_tables(tables) if statistics else None)

    def _read(self, file: FileRecord, columns: list[str] | None = None) -> pa.Table:
        place = self.warehouse.child(file.table)
        with place.open(file.path) as source:
            read = pq.ParquetFile(source).read(columns=columns, use_threads=False)
        place.delete(file.path)
        return read

    def _state(self, slot: int) -> StateFolder:
        return LocalFolder(self.root).child(f"slot-{slot}")
