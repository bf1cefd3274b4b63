"""Slots and their folders: drives the engine's real step from a real journal.

The journal's fold, the plan of an epoch, the tasks that it comes to, which session a row belongs to
and which rows a lost slot held, what must be read again, and the entry that an epoch becomes are
the product's. The test decides what happens: rows, assignments (any, not just those that commands
lead to), thrown-away attempts, lost slots, seals. The reference model is told about rows and about
the cuts that the engine reported, and says which results, spilled rows and missing results there
must be.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import SecretBytes

from spillway.engine.groups import U64, GroupMap
from spillway.engine.join.hashing import xxhash64
from spillway.engine.join.spec import InputSpec, JoinSpec
from spillway.engine.join.tree import TreeSpec, one_join
from spillway.engine.relocation import extract
from spillway.engine.spill.cleanup import clean_ranges
from spillway.engine.spill.generations import VoidedCuts
from spillway.engine.spill.source import SpillIndex, SpillSource
from spillway.engine.spill.spillfile import SpillFile, row_column, survey
from spillway.engine.step import step
from spillway.engine.task import StepTask
from spillway.engine.wire.blocks import Block, Coordinates, decode_moved, encode_counts, route
from spillway.policy.victims import DEFAULT_VICTIMS
from spillway.protocol.entry import entry_of
from spillway.protocol.plan import Plan, plan_epoch
from spillway.protocol.state import fold
from spillway.storage import Folder, folder
from spillway.stream.decoding import DecodeTask, _by_session, were_held
from spillway.stream.messages import MessageSource
from spillway.stream.tasks import JobSettings, decode_task, step_tasks
from spillway_schemas.filenames import turn
from spillway_schemas.journal import (
    Claim,
    Cut,
    FileRecord,
    Genesis,
    PartitionCount,
    Prefix,
    SlotReport,
    Topic,
)
from tests.commands import command_of
from tests.property.reference import Reference, Result, Row

WAREHOUSE = "w-1"
KEY = SecretBytes(b"the warehouse's key of 32 bytes.")
DAYS = ("2026-01-05", "2026-01-06")
AFTER = {DAYS[0]: DAYS[1], DAYS[1]: "2026-01-07", "2026-01-07": "2026-01-08"}


def spec_of(inputs: int, *, composite: bool) -> TreeSpec:
    keys = [pa.field("symbol", pa.string(), nullable=False)]
    if composite:
        keys.append(pa.field("minute", pa.int64(), nullable=False))
    payload = pa.schema([pa.field("text", pa.string()), pa.field("price", pa.float64())])
    return one_join(
        JoinSpec(0, pa.schema(keys), tuple(InputSpec(f"s{i}", payload) for i in range(inputs)))
    )


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


def batch_of(spec: TreeSpec, rows: list[Row]) -> tuple[pa.RecordBatch, Coordinates]:
    schema = pa.schema([*spec.root.keys, *spec.inputs[rows[0].input].payload])
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


def by_partition(rows: Iterable[Row]) -> list[tuple[tuple[int, int], list[Row]]]:
    """The rows of each input and partition, in the order of their offsets."""
    found: dict[tuple[int, int], list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.offset):
        found.setdefault((row.input, row.partition), []).append(row)
    return sorted(found.items())


@dataclass
class Slots:
    """The system under test."""

    spec: TreeSpec
    root: str
    groups: GroupMap
    hash_: Callable[[list[pa.Array]], U64]
    options: dict[str, object]
    budget_bytes: int
    elsewhere: frozenset[int] = frozenset()
    """Slots on another host: what they get goes through the shuffle."""
    handed: int = 0
    """Files that slots wrote into others' folders."""
    files: list[FileRecord] = field(default_factory=list)
    cuts: dict[str, dict[Prefix, list[int]]] = field(default_factory=dict)
    """By session and range the epochs of the cuts that hold."""
    voided: list[Cut] = field(default_factory=list)
    returned: int = 0
    """Rows that came back from spilled generations."""
    returned_before: int = 0
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
    first_day_ends: int = 0
    """Where the first day will end on partition 0 of every topic; on partition 1 it ends at 0, so
    that rows of both days can come before. 0: no row of the second day comes before the seal."""
    read: list[Row] = field(default_factory=list)
    """All rows so far, as Kafka would give them again."""

    def __post_init__(self) -> None:
        self.names = [each.name for each in self.spec.inputs]
        self.settings = JobSettings(
            spec=self.spec,
            streams=(),
            warehouse_id=WAREHOUSE,
            warehouse_root="",
            state_root="",
            state_key=KEY,
            executor_may_override_state_root=False,
            budget_bytes=self.budget_bytes,
            threshold=0.9,
            fraction=0.3,
            inactive_ms=60_000,
            victims=DEFAULT_VICTIMS,
            reactivation="off",
            calendar="XNYS",
            kafka=MessageSource("", {}),
        )
        genesis = Genesis(
            warehouse_id=WAREHOUSE,
            cluster_id="c",
            topics=[Topic(name=name, id=name, partitions=2) for name in self.names],
            query="q",
            session=DAYS[0],
            start={name: [0, 0] for name in self.names},
            start_rule="earliest",
            inputs=len(self.names),
            groups=self.groups.assignment(),
            written_at="",
        )
        self.journal = fold(fold(None, genesis), Claim(n=1, term=1, driver="d", written_at=""))
        self.warehouse = folder(self.root).child("warehouse")
        self.reference = Reference(len(self.spec.inputs))
        self.at_run_time: dict[str, Counter[Result]] = {day: Counter() for day in DAYS}

    def state(self, slot: int):
        return folder(self.root).child(f"slot-{slot}")

    def hash_of(self, row: Row) -> int:
        if row.key not in self.hashes:
            fields = list(self.spec.root.keys)
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

    @property
    def epoch(self) -> int:
        """The last one that is journaled."""
        return self.journal.epoch

    @property
    def manifests(self) -> Mapping[int, str | None]:
        """What the journal names."""
        return self.journal.manifests

    def plan(
        self,
        rows: Sequence[Row] = (),
        *,
        groups: GroupMap | None = None,
        lost: frozenset[int] = frozenset(),
        forced_bytes: int = 0,
        seal: str | None = None,
    ) -> Plan:
        """The next epoch's plan, with these rows and this assignment.

        As always, an epoch that restores lost slots moves nothing.
        """
        state = self.journal
        end = {name: list(ends) for name, ends in state.end.items()}
        for row in rows:
            ends = end[self.names[row.input]]
            ends[row.partition] = max(ends[row.partition], row.offset + 1)
        commands = []
        if self.first_day_ends and state.epoch < 0:
            early = {name: [self.first_day_ends, 0] for name in self.names}
            commands.append(command_of("seal", DAYS[0], session=DAYS[0], offsets=early))
        if seal is not None and (state.seal or commands):
            for ends in end.values():
                ends[0] = self.first_day_ends
        elif seal is not None:
            commands.append(command_of("seal", seal, session=seal, offsets=end))
        found = plan_epoch(state, end, commands, AFTER[state.session.date], lost)
        assert found.sealing == (seal is not None)
        if groups is None or lost:
            groups = GroupMap(state.groups)
        # Slots are numbered without gaps, as the protocol keeps them.
        slots = range(1 + max(slot for _, slot in (*state.groups, *groups.assignment())))
        return replace(
            found,
            groups=tuple(groups.assignment()),
            manifests=tuple((s, None if s in lost else self.manifests.get(s)) for s in slots),
            forced=tuple((s, forced_bytes) for s in slots if forced_bytes),
            budgets=self.budgets[-1],
        )

    def tasks(self, plan: Plan, job: int = 1) -> dict[int, StepTask]:
        """The steps' tasks of one of the epoch's jobs, each a fresh attempt."""
        tasks = step_tasks(self.settings, plan, GroupMap(plan.groups), now_ms=plan.epoch * 1000)
        return {
            slot: replace(
                task,
                **self.options,
                attempt=f"{turn(1, job)}{next(self.attempts):09x}",
                written_at_us=1_700_000_000_000_000,
            )
            for slot, task in tasks.items()
        }

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
        self.budgets.append(self.budgets[-1] | ({} if budget is None else dict([budget])))
        plan = self.plan(rows, groups=groups, lost=lost, forced_bytes=forced_bytes, seal=seal)
        before, self.groups = self.groups, GroupMap(plan.groups)
        fixed = [*self._decoded(plan, rows), *self._restored(plan, before, lost)]

        def neighbour(tasks: dict[int, StepTask], slot: int) -> tuple[StepTask, Folder] | None:
            return None if slot in self.elsewhere else (tasks[slot], self.state(slot))

        def attempt(job: int) -> list[SlotReport]:
            tasks = self.tasks(plan, job)
            moved = [
                block
                for s, task in tasks.items()
                if task.leaving
                for block in extract(self.spec, task, self.state(s), partial(neighbour, tasks))
            ]
            self.handed += sum(len(decode_moved(b).files) for b in moved if b.kind == "moved")
            return [self._step(task, [*fixed, *moved]) for task in tasks.values()]

        for job in range(1, thrown_away + 1):
            attempt(job)
        reports = attempt(thrown_away + 1)
        if zombie:
            attempt(1)  # of the same job, where none was thrown away
        entry = entry_of(self.journal, plan, reports, started_at="", written_at="", seconds={})
        self.journal = fold(self.journal, entry)
        self.read += rows
        self.reports = reports
        self._check(rows, reports, seal)

    def _decoded(self, plan: Plan, rows: list[Row]) -> list[Block]:
        """New rows as decoders give them: each in the session that its offset says."""
        task = decode_task(self.settings, plan, self.groups, ())
        found: list[Row] = []
        for (input_, partition), mine in by_partition(rows):
            bound = None if task.bound is None else task.bound[self.names[input_]][partition]
            offsets = np.array([row.offset for row in mine])
            for session, mask in _by_session(task, bound, offsets):
                kept = range(len(mine)) if mask is None else np.flatnonzero(mask).tolist()
                found += [mine[at]._replace(session=session) for at in kept]
        assert sorted(found) == sorted(rows), "the schedule's sessions are not the product's"
        return [*self.blocks(rows, "new"), *self._counted(task, rows, 0)]

    def _restored(self, plan: Plan, before: GroupMap, lost: frozenset[int]) -> list[Block]:
        """Rows read again for lost slots: just those that the reference says they held."""
        if plan.restore is None:
            return []
        task = decode_task(self.settings, plan, self.groups, (), plan.restore)
        start, end = plan.restore.read_from, plan.restore.read_to
        again = [
            row
            for row in self.read
            if start[self.names[row.input]][row.partition] <= row.offset
            and row.offset < end[self.names[row.input]][row.partition]
        ]
        found: list[Row] = []
        for (input_, partition), mine in by_partition(again):
            hashes = np.array([self.hash_of(row) for row in mine], dtype=np.uint64)
            offsets = np.array([row.offset for row in mine])
            for session in plan.restore.sessions:
                where = task, session, self.names[input_], partition
                held = np.flatnonzero(were_held(*where, offsets, hashes)).tolist()
                found += [mine[at]._replace(session=session.session) for at in held]
        assert sorted(found) == sorted(self._held_by(before, lost))
        return [*self.blocks(found, "restore"), *self._counted(task, again, 1)]

    def _counted(self, task: DecodeTask, rows: list[Row], again: int) -> list[Block]:
        """What was read of each partition, for the journal."""
        return [
            Block(
                task.slot_of_partition(partition),
                "count",
                self.spec.root.operator,
                again,
                encode_counts(
                    [
                        PartitionCount(
                            topic=self.names[input_],
                            partition=partition,
                            rows=len(mine),
                            rejected=0,
                            filtered=0,
                            digest=sum(row.offset**5 for row in mine) % 2**64,
                        )
                    ]
                ),
            )
            for (input_, partition), mine in by_partition(rows)
        ]

    def _held_by(self, groups: GroupMap, slots: frozenset[int]) -> list[Row]:
        """Rows in memory of some slots."""
        rows = self.reference.resident() if slots else []
        hashes = np.array([self.hash_of(row) for row in rows], dtype=np.uint64)
        return [r for r, s in zip(rows, groups.slot_of(hashes).tolist(), strict=True) if s in slots]

    def _step(self, task: StepTask, blocks: list[Block]) -> SlotReport:
        mine = [block for block in blocks if block.slot == task.slot]
        report = step(self.spec, task, mine, self.state(task.slot), self.warehouse.child)
        assert report.status == "done", report.unfound
        assert report.totals is not None
        held = sum(info.bytes for info in self.state(task.slot).list())
        assert report.totals.folder_bytes == held
        runs = sum(i.bytes for i in self.state(task.slot).list() if i.name.endswith(".arrow"))
        # Files live on for an epoch, and what an epoch may merge is bounded: a smaller budget
        # holds from the third epoch on.
        wide = max(each.get(task.slot, self.budget_bytes) for each in self.budgets[-3:])
        self.overrun = max(self.overrun, runs - wide)
        return report

    def _check(self, rows: list[Row], reports: list[SlotReport], seal: str | None) -> None:
        expected = self.reference.insert(rows)
        for cut in [cut for r in reports for cut in r.voided]:
            assert self.cuts[cut.session][cut.range].pop() == cut.epoch, "not the last one"
            back, given = self.reference.bring_back(
                cut.session, cut.epoch, self.within([cut.range])
            )
            assert back, f"nothing came back of {cut}"
            expected += given
            self.voided.append(cut)
            self.returned += len(back)
        assert sum(r.totals.returned_rows for r in reports) == self.returned - self.returned_before
        self.returned_before = self.returned
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
            self.cuts.setdefault(cut.session, {}).setdefault(cut.range, []).append(cut.epoch)
        files = [f for r in reports for f in r.files if f.table == "spill"]
        assert Counter(self.spilled(files)) == Counter(spilled)
        self.files += files
        if seal is not None:
            # What stays was never cut: it is complete, and gone from memory.
            inside = self.within(r for r, hold in self.cuts.get(seal, {}).items() if hold)
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
            key = tuple(line[name] for name in self.spec.root.keys.names)
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
                for line in mine.to_pylist():
                    values = line[row_column(self.spec, input_)]
                    key = tuple(values[name] for name in self.spec.root.keys.names)
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
        void = [cut.generation for cut in self.voided if cut.session == session]
        voided = VoidedCuts(void, self.epoch) if void else None
        source = SpillSource(place, index, self.spec, voided=voided)
        found: Counter[Result] = Counter()
        for _, batch in clean_ranges(source, [Prefix(0, 0)]):
            found.update(self.rows_of(batch.table, session))
        self.clean_results += found
        return found
