"""Slots on tmpfs whose real steps run one after another: the engine without Spark and Kafka.

It does what a driver does and decides nothing: routes rows, moves groups by `extract`, forces
spills, keeps the manifests that count. Result files are deleted once their rows are counted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import SecretBytes

from benchmarks.lab.job import carried_out, extracted, ordered, sifted
from benchmarks.lab.workload import I64, Day
from spillway.cleanup.task import CleanTask, run_clean
from spillway.engine.groups import GroupMap, relocations
from spillway.engine.join.hashing import xxhash64
from spillway.engine.join.spec import InputSpec, JoinSpec
from spillway.engine.join.tree import one_join
from spillway.engine.spill.generations import VoidedCuts
from spillway.engine.spill.source import SpillIndex
from spillway.engine.spill.spillfile import SpillFile, survey
from spillway.engine.state.merging import DEFAULT_SHAPE, Shape
from spillway.engine.task import StepTask
from spillway.engine.wire.blocks import Block, Coordinates, route
from spillway.policy.forecast import Forecast, Profile
from spillway.policy.victims import TRACING
from spillway.protocol.seal import CLEANUP_DEPTH
from spillway.storage import LocalFolder, StateFolder, folder
from spillway_schemas.journal import FileRecord, Prefix, SlotTotals

SESSION = "2026-01-05"
ROOM = 4
"""A slot's folder may hold so many times the memory that it may use before it spills: the papers
count state only, not the files of the epoch before and those that a merge writes."""

SHAPE = Shape(files_in_budget=DEFAULT_SHAPE.files_in_budget * ROOM, least_file_bytes=8 << 10)
"""A spill takes what some files hold. They are as small in comparison with memory as where a folder
holds no more than that, at sizes that are scaled, too."""

ROW_BYTES = 40
"""Of a row in state: its hash, a symbol of 8 characters and its end, a number, its coordinate."""

SPEC = one_join(
    JoinSpec(
        0,
        pa.schema([pa.field("symbol", pa.string(), nullable=False)]),
        (
            InputSpec("stock", pa.schema([("price", pa.float64())])),
            InputSpec("volume", pa.schema([("shares", pa.float64())])),
            InputSpec("review", pa.schema([("rating", pa.float64())])),
        ),
    )
)


@dataclass(frozen=True)
class Spilling:
    """When and what a slot spills."""

    memory_bytes: int
    """Of state, from which on a slot spills (theta_m times what it has)."""
    fraction: float = 0.3
    """k: the share of the state that leaves."""
    victims: str = "inactive-then-productivity"
    inactive_s: float = float("inf")
    """theta_t."""
    reactivation: str = "off"
    """By which spilled generations come back."""

    def task(
        self,
        slot: int,
        epoch: int,
        manifest: str | None,
        groups: GroupMap,
        end_ms: int,
        close_ms: int,
    ) -> StepTask:
        """A slot's part of an epoch, which ends at `end_ms` of the virtual clock; the session ends
        at `close_ms`."""
        budget = ROOM * self.memory_bytes
        return StepTask(
            key=SecretBytes(b"k" * 32),
            slot=slot,
            epoch=epoch,
            attempt=f"{slot:016x}",
            warehouse_id="lab",
            session=SESSION,
            manifest=manifest,
            groups=groups,
            budget_bytes=budget,
            threshold=self.memory_bytes / budget,
            fraction=self.fraction,
            inactive_ms=int(min(self.inactive_s, 1e9) * 1000),
            victims=self.victims,
            reactivation=self.reactivation,
            left_ms={SESSION: max(close_ms - end_ms, 0)},
            now_ms=end_ms,
            written_at_us=end_ms * 1000,
            seed=epoch,
            shape=SHAPE,
            traces=self.victims in TRACING,
        )


@dataclass(frozen=True)
class Cleaned:
    """What cleanup did."""

    results: I64
    """(g,) missing results of each group."""
    cpu_s: list[float]
    """Of each slot's own groups."""


@dataclass
class Cluster:
    """The slots, and what a journal would know of them."""

    day: Day
    root: str
    groups: GroupMap
    spilling: Spilling
    epoch: int = -1
    manifests: dict[int, str | None] = field(default_factory=dict)
    cuts: list[tuple[int, int]] = field(default_factory=list)
    """(group, epoch) of those that hold."""
    voided: list[tuple[int, int]] = field(default_factory=list)
    """Likewise of those that were taken back."""
    spilled: list[FileRecord] = field(default_factory=list)
    figures: pa.Table | None = None
    """The newest statistics of all groups."""
    before: Profile | None = None
    """How the rows of a day before came; None: it is not known."""

    def __post_init__(self) -> None:
        self.slots = sorted(set(self.groups.slots.tolist()))
        self.warehouse = folder(self.root).child("warehouse")
        self.prefix_of = list(self.groups.prefixes)

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
        self.epoch += 1
        going = relocations(before, self.groups)
        tasks = {
            slot: replace(
                ordered(self._task(slot), going, forced or {}),
                flush={SESSION: tuple(self.prefix_of[g] for g, _ in self.cuts)} if seal else {},
                statistics=statistics,
                forecasts=self._forecasts(),
            )
            for slot in self.slots
        }
        came = [*([] if seal else self._blocks()), *extracted(SPEC, tasks, self._state)]
        reports = carried_out(SPEC, tasks, came, self._state, self.warehouse.child)
        for report in reports:
            if report.status != "done":
                raise RuntimeError(f"slot {report.slot} at epoch {self.epoch}: {report.unfound}")
        self.manifests = {r.slot: r.manifest for r in reports}
        spilled, figures = sifted([f for r in reports for f in r.files], self.warehouse.child)
        self.spilled += spilled
        if statistics:
            self.figures = figures
        back = {(self.groups.index(c.range), c.epoch) for r in reports for c in r.voided}
        self.voided += sorted(back)
        self.cuts = [cut for cut in self.cuts if cut not in back]
        self.cuts += [(self.groups.index(c.range), c.epoch) for r in reports for c in r.cuts]
        return [r.totals for r in reports if r.totals is not None]

    def groups_cut(self) -> set[int]:
        """The numbers of those that were spilled and did not come back."""
        return {group for group, _ in self.cuts}

    def clean(self) -> Cleaned:
        """The cleanup of the sealed session as its job does it, each slot's groups by themselves.

        A slot's time is that of reading its generations, joining and writing what was missing.
        """
        place = self.warehouse.child("spill")
        files = [SpillFile(f.path, f.bytes, f.digest) for f in self.spilled]
        index = SpillIndex.of([(file, survey(place, file, 0)) for file in files])
        results = np.zeros(len(self.groups), dtype=np.int64)
        cpu_s = []
        void = [(self.prefix_of[g], epoch) for g, epoch in self.voided]
        for slot in self.slots:
            units = units_of(self.groups, slot, {self.prefix_of[g] for g, _ in self.cuts})
            task = CleanTask(
                spec=SPEC,
                operator=SPEC.root.operator,
                session=SESSION,
                epoch=self.epoch,
                units=tuple(enumerate(units)),
                index=index.within(units),
                spill=place,
                results=self.warehouse.child("results"),
                committed_us=self._now_ms(self.epoch) * 1000,
                voided=VoidedCuts(void, self.epoch) if void else None,
            )
            start = time.process_time()
            done = run_clean(task)
            cpu_s.append(time.process_time() - start)
            if not isinstance(done, list):
                raise done
            for file in (file for each in done for file in each.files):
                results += self._counted(file)
        return Cleaned(results, cpu_s)

    def _counted(self, file: FileRecord) -> I64:
        """(g,) results in a file, which is deleted."""
        place = self.warehouse.child("results")
        with place.open(file.path) as source:
            symbols = pq.ParquetFile(source).read(columns=["symbol"], use_threads=False)
        place.delete(file.path)
        found = symbols["symbol"].value_counts()
        group = self.groups.group_of(xxhash64([found.field("values")]))
        counts = np.zeros(len(self.groups), dtype=np.int64)
        np.add.at(counts, group, found.field("counts").to_numpy())
        return counts

    def _task(self, slot: int) -> StepTask:
        return self.spilling.task(
            slot,
            self.epoch,
            self.manifests.get(slot),
            self.groups,
            self._now_ms(self.epoch + 1),
            self._now_ms(self.day.epochs),
        )

    def _now_ms(self, epoch: int) -> int:
        return int(epoch * self.day.epoch_s * 1000)

    def _forecasts(self) -> dict[str, Forecast]:
        if self.before is None:
            return {}
        now_ms, end_ms = self._now_ms(self.epoch + 1), self._now_ms(self.day.epochs)
        return {SESSION: self.before.at(now_ms, max(end_ms - now_ms, 0))}

    def _blocks(self) -> list[Block]:
        """The epoch's new rows, as decoders make them."""
        start, end = self.day.bounds[self.epoch : self.epoch + 2].tolist()
        found: list[Block] = []
        where = Coordinates(
            np.zeros(end - start, np.int32),
            np.arange(start, end),
            np.full(end - start, self._now_ms(self.epoch)),
        )
        for input_, keys in enumerate(self.day.arrivals[:, start:end]):
            columns = [self.day.symbols.take(pa.array(keys)), pa.array(keys / 7)]
            schema = pa.schema([*SPEC.root.keys, *SPEC.inputs[input_].payload])
            rows = pa.RecordBatch.from_arrays(columns, schema=schema)
            found += route(SPEC, input_, self.groups, rows, where, session=SESSION)
        return found

    def _state(self, slot: int) -> StateFolder:
        return LocalFolder(self.root).child(f"slot-{slot}")


def units_of(groups: GroupMap, slot: int, cut: Set[Prefix]) -> list[Prefix]:
    """Cleanup's units of work that a slot does: the widest ranges, up to the width that the seal
    gives them, that hold a group that was cut and no group of another slot. In hash order."""
    found: list[Prefix] = []
    waiting = [Prefix(CLEANUP_DEPTH, value) for value in range(1 << CLEANUP_DEPTH)]
    depth = groups.prefixes[0].depth
    while waiting:
        unit = waiting.pop()
        width = depth - unit.depth
        first, end = unit.value << width, (unit.value + 1) << width
        owners = set(groups.slots[first:end].tolist())
        if owners == {slot}:
            if any(Prefix(depth, value) in cut for value in range(first, end)):
                found.append(unit)
        elif slot in owners:
            waiting += [Prefix(unit.depth + 1, 2 * unit.value + half) for half in (0, 1)]
    return sorted(found, key=lambda unit: unit.lo)
