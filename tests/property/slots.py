"""Slots, their folders and a journal, as small as they can be: drives the engine's real step.

The test decides everything that a driver would: epochs, assignments, thrown-away attempts, lost
slots, seals. The reference model is told about rows and about the cuts that the engine reported,
and says which results, spilled rows and missing results there must be.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import SecretBytes

from jobs.engine.blocks import Block, Coordinates, decode_moved, route
from jobs.engine.cleanup import Source, SpillIndex, clean_ranges
from jobs.engine.groups import U64, GroupMap, relocations
from jobs.engine.hashing import xxhash64
from jobs.engine.relocation import extract
from jobs.engine.rowcodec import decode_rows
from jobs.engine.spec import InputSpec, JoinSpec
from jobs.engine.spillfile import SpillFile, survey
from jobs.engine.step import step
from jobs.engine.task import StepTask
from jobs.storage import Folder, folder
from schemas.journal import FileRecord, Prefix, SlotReport
from tests.property.reference import Reference, Result, Row

WAREHOUSE = "w-1"
KEY = SecretBytes(b"the warehouse's key of 32 bytes.")
DAYS = ("2026-01-05", "2026-01-06")


def spec_of(inputs: int, *, composite: bool) -> JoinSpec:
    keys = [pa.field("symbol", pa.string(), nullable=False)]
    if composite:
        keys.append(pa.field("minute", pa.int64(), nullable=False))
    payload = pa.schema([pa.field("text", pa.string()), pa.field("price", pa.float64())])
    return JoinSpec(0, pa.schema(keys), tuple(InputSpec(f"s{i}", payload) for i in range(inputs)))


def narrow(bits: int, columns: list[pa.Array]) -> U64:
    """A hash of few bits: most equal hashes belong to different keys."""
    return xxhash64(columns) >> np.uint64(64 - bits) << np.uint64(64 - bits)


def key_of(number: int, *, composite: bool) -> tuple[object, ...]:
    symbol = f"K{number}" * (1 + number % 3)
    return (symbol, number // 2) if composite else (symbol,)


def payload_of(row: Row) -> tuple[str | None, float]:
    """A function of the coordinate: a result that mixes rows up shows it."""
    text = None if row.offset % 7 == 0 else f"{row.input}/{row.offset}" * (row.offset % 4)
    return text, row.offset / 8


def batch_of(spec: JoinSpec, rows: list[Row]) -> tuple[pa.RecordBatch, Coordinates]:
    schema = pa.schema([*spec.keys, *spec.inputs[rows[0].input].payload])
    values = [(*row.key, *payload_of(row)) for row in rows]
    columns = [
        pa.array([value[i] for value in values], field.type) for i, field in enumerate(schema)
    ]
    where = Coordinates(
        np.array([row.partition for row in rows], np.int32),
        np.array([row.offset for row in rows], np.int64),
        np.array([1000 + row.offset for row in rows], np.int64),
    )
    return pa.RecordBatch.from_arrays(columns, schema=schema), where


@dataclass
class Slots:
    """The system under test."""

    spec: JoinSpec
    root: str
    groups: GroupMap
    hash_: Callable[[list[pa.Array]], U64]
    options: dict[str, object]
    budget_bytes: int
    elsewhere: frozenset[int] = frozenset()
    """Slots on another host: what they get goes through the shuffle."""
    epoch: int = -1
    handed: int = 0
    """Files that slots wrote into others' folders."""
    manifests: dict[int, str | None] = field(default_factory=dict)
    files: list[FileRecord] = field(default_factory=list)
    cuts: dict[str, set[Prefix]] = field(default_factory=dict)
    attempts: Iterable[int] = field(default_factory=itertools.count)
    hashes: dict[tuple[object, ...], int] = field(default_factory=dict)
    overrun: int = 0
    """Most bytes that the runs of a folder were beyond the budget (see `upkeep` on manifests)."""
    budgets: list[dict[int, int]] = field(default_factory=lambda: [{}])
    """By epoch, the budgets of slots that have another one than `budget_bytes`."""
    reports: list[SlotReport] = field(default_factory=list)
    """Of the last epoch."""
    clean_results: Counter[Result] = field(default_factory=Counter)
    """All that `clean` found."""

    def __post_init__(self) -> None:
        self.warehouse = folder(self.root).child("warehouse")
        self.reference = Reference(len(self.spec.inputs))
        self.at_run_time: dict[str, Counter[Result]] = {day: Counter() for day in DAYS}

    def state(self, slot: int):
        return folder(self.root).child(f"slot-{slot}")

    def hash_of(self, row: Row) -> int:
        if row.key not in self.hashes:
            fields = list(self.spec.keys)
            columns = [pa.array([v], f.type) for v, f in zip(row.key, fields, strict=True)]
            self.hashes[row.key] = int(self.hash_(columns)[0])
        return self.hashes[row.key]

    def blocks(self, rows: list[Row], kind: str) -> list[Block]:
        """As decoders make them: sessions and inputs apart, and every other row elsewhere."""
        found: list[Block] = []
        for session, input_, half in itertools.product(DAYS, range(len(self.spec.inputs)), (0, 1)):
            mine = [
                r for r in rows if (r.session, r.input, r.offset % 2) == (session, input_, half)
            ]
            if mine:
                batch, where = batch_of(self.spec, mine)
                found += route(
                    self.spec,
                    input_,
                    self.groups,
                    batch,
                    where,
                    session=session,
                    kind=kind,
                    hash_=self.hash_,
                )
        return found

    def run(
        self,
        rows: list[Row],
        *,
        groups: GroupMap | None = None,
        lost: frozenset[int] = frozenset(),
        forced_bytes: int = 0,
        budget: tuple[int, int] | None = None,
        seal: str | None = None,
        thrown_away: int = 0,
        zombie: bool = False,
    ) -> None:
        """One epoch; checks everything that can be checked now against the reference."""
        before, self.groups = self.groups, groups or self.groups
        self.epoch += 1
        self.budgets.append(self.budgets[-1] | ({} if budget is None else dict([budget])))
        slots = sorted({*before.slots.tolist(), *self.groups.slots.tolist()})
        manifests = {s: None if s in lost else self.manifests.get(s) for s in slots}
        moves = relocations(before, self.groups)
        leaving = {s: tuple(p for (a, _), ps in moves.items() if a == s for p in ps) for s in slots}
        arriving = {s: tuple(a for a, b in moves if b == s) for s in slots}
        gone = self._held_by(before, lost)
        fixed = [*self.blocks(rows, "new"), *(self.blocks(gone, "restore") if gone else [])]

        def neighbour(tasks: dict[int, StepTask], slot: int) -> tuple[StepTask, Folder] | None:
            return None if slot in self.elsewhere else (tasks[slot], self.state(slot))

        def attempt() -> list[SlotReport]:
            tasks = {
                s: self._task(s, manifests[s], leaving[s], arriving[s], forced_bytes, seal)
                for s in slots
            }
            moved = [
                block
                for s in slots
                if leaving[s]
                for block in extract(self.spec, tasks[s], self.state(s), partial(neighbour, tasks))
            ]
            self.handed += sum(len(decode_moved(b).files) for b in moved if b.kind == "moved")
            return [self._step(tasks[s], [*fixed, *moved]) for s in slots]

        for _ in range(thrown_away):
            attempt()
        reports = attempt()
        if zombie:
            attempt()
        self._journal(rows, reports, seal)
        self.reports = reports
        owners = set(self.groups.slots.tolist())
        self.manifests = {r.slot: r.manifest for r in reports if r.slot in owners}

    def _held_by(self, groups: GroupMap, slots: frozenset[int]) -> list[Row]:
        """Rows in memory of some slots, as the driver reads them again from Kafka."""
        rows = self.reference.resident() if slots else []
        hashes = np.array([self.hash_of(row) for row in rows], dtype=np.uint64)
        return [r for r, s in zip(rows, groups.slot_of(hashes).tolist(), strict=True) if s in slots]

    def _task(self, slot, manifest, leaving, arriving, forced_bytes, seal) -> StepTask:
        return StepTask(
            key=KEY,
            slot=slot,
            epoch=self.epoch,
            attempt=f"{next(self.attempts):016x}",
            warehouse_id=WAREHOUSE,
            session=DAYS[0],
            manifest=manifest,
            groups=self.groups,
            leaving=leaving,
            arriving=arriving,
            forced_bytes=forced_bytes,
            flush={} if seal is None else {seal: tuple(self.cuts.get(seal, ()))},
            budget_bytes=self.budgets[-1].get(slot, self.budget_bytes),
            now_ms=self.epoch * 1000,
            written_at_us=1_700_000_000_000_000,
            seed=self.epoch,
            **self.options,
        )

    def _step(self, task: StepTask, blocks: list[Block]) -> SlotReport:
        mine = [block for block in blocks if block.slot == task.slot]
        report = step(self.spec, task, mine, self.state(task.slot), self.warehouse.child)
        assert report.status == "done", report.detail
        assert report.totals is not None
        held = sum(info.bytes for info in self.state(task.slot).list())
        assert report.totals.folder_bytes == held
        runs = sum(i.bytes for i in self.state(task.slot).list() if i.name.endswith(".arrow"))
        # Files live on for an epoch, and what an epoch may merge is bounded: a smaller budget
        # holds from the third epoch on.
        wide = max(each.get(task.slot, self.budget_bytes) for each in self.budgets[-3:])
        self.overrun = max(self.overrun, runs - wide)
        return report

    def _journal(self, rows: list[Row], reports: list[SlotReport], seal: str | None) -> None:
        expected = self.reference.insert(rows)
        found = self.results([f for r in reports for f in r.files if f.table == "results"])
        assert found == expected
        for day in DAYS:
            self.at_run_time[day].update({c: n for c, n in found.items() if c[0].session == day})
        assert sum(r.totals.results for r in reports) == sum(expected.values())
        spilled: list[Row] = []
        for cut in [cut for r in reports for cut in r.cuts]:
            assert cut.epoch == self.epoch
            rows_cut = self.reference.cut(cut.session, self.epoch, self.within([cut.range]))
            assert rows_cut, f"a cut of nothing: {cut}"
            spilled += rows_cut
            self.cuts.setdefault(cut.session, set()).add(cut.range)
        files = [f for r in reports for f in r.files if f.table == "spill"]
        assert Counter(self.spilled(files)) == Counter(spilled)
        self.files += files
        if seal is not None:
            # What stays was never cut: it is complete, and gone from memory.
            inside = self.within(self.cuts.get(seal, ()))
            left = [r for r in self.reference.resident() if r.session == seal]
            assert not [r for r in left if inside(r)]
            self.reference.cut(seal, self.epoch, lambda _: True)
        held = sum(r.totals.rows for r in reports)
        assert held == len(self.reference.resident())

    def within(self, ranges: Iterable[Prefix]) -> Callable[[Row], bool]:
        ranges = list(ranges)
        return lambda row: any(p.lo <= self.hash_of(row) < p.hi for p in ranges)

    def results(self, files: list[FileRecord]) -> Counter[Result]:
        """Result rows as the rows that they are made of, every column checked."""
        found: Counter[Result] = Counter()
        place = self.warehouse.child("results")
        for record in files:
            table = pq.read_table(place.path(record.path), partitioning=None)
            assert table.num_rows == record.rows
            session = record.partition["session_date"]
            found.update(self.rows_of(table, session))
        return found

    def rows_of(self, table: pa.Table, session: str) -> list[Result]:
        names = [each.name for each in self.spec.inputs]
        results = []
        for line in table.to_pylist():
            key = tuple(line[name] for name in self.spec.keys.names)
            result = tuple(
                Row(session, i, key, line[f"{n}_partition"], line[f"{n}_offset"])
                for i, n in enumerate(names)
            )
            for row, name in zip(result, names, strict=True):
                assert (line[f"{name}_text"], line[f"{name}_price"]) == payload_of(row)
            results.append(result)
        return results

    def spilled(self, files: list[FileRecord]) -> list[Row]:
        """The rows of spill files, every column checked."""
        rows = []
        place = self.warehouse.child("spill")
        for record in files:
            table = pq.read_table(place.path(record.path), partitioning=None)
            for input_ in sorted(set(table["input"].to_pylist())):
                mine = table.filter(pa.array(table["input"].to_numpy() == input_))
                schema = pa.schema([*self.spec.keys, *self.spec.inputs[input_].payload])
                decoded = decode_rows(mine["row"], schema).to_pylist()
                for line, values in zip(mine.to_pylist(), decoded, strict=True):
                    key = tuple(values[name] for name in self.spec.keys.names)
                    session = record.partition["session_date"]
                    row = Row(session, input_, key, line["partition"], line["offset"])
                    assert line["epoch"] == self.epoch
                    assert line["key_hash"] % 2**64 == self.hash_of(row)
                    assert (values["text"], values["price"]) == payload_of(row)
                    rows.append(row)
        return rows

    def clean(self, session: str) -> Counter[Result]:
        """What cleanup writes for a sealed session."""
        place = self.warehouse.child("spill")
        files = [
            SpillFile(f.path, f.bytes, f.digest)
            for f in self.files
            if f.partition["session_date"] == session
        ]
        index = SpillIndex.of([(file, survey(place, file, 0)) for file in files])
        source = Source(place, index, self.spec.operator)
        found: Counter[Result] = Counter()
        for _, table in clean_ranges(self.spec, source, [Prefix(0, 0)]):
            found.update(self.rows_of(table, session))
        self.clean_results += found
        return found
