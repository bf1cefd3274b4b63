"""A day of a query's tree on real folders, without Spark: the job of an epoch, level by level.

The journal's fold, the plan, decoding, the tasks, the probes, the step, the entry, the seal and
cleanup are the product's. The test decides what happens: rows, moves, spills, lost slots,
thrown-away attempts, the seal, and which rows Kafka loses, which is accepted at once. Kafka is a
list of values for each topic partition.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import SecretBytes

from benchmarks.lab import job
from benchmarks.lab.job import carried_out, cleaned, extracted, probed, stepped
from spillway.cleanup.deferred import (
    PartWritten,
    check_written,
    parts_of,
    tasks_for,
    write_part,
)
from spillway.cleanup.plan import doubtful_topics, generations_of
from spillway.cleanup.task import CleanTask
from spillway.decode import compile_query
from spillway.engine.groups import GroupMap
from spillway.engine.spill.spillfile import SpillFile
from spillway.engine.task import StepTask
from spillway.engine.wire.blocks import Block, decode_counts, from_batch
from spillway.policy.distribution import Tree, distribution
from spillway.policy.victims import DEFAULT_VICTIMS
from spillway.protocol.deferral import deferred_rows
from spillway.protocol.entry import entry_of, missing_slots
from spillway.protocol.losses import gone_from, loss_of, lost_ranges, without_lost
from spillway.protocol.offsets import partitions
from spillway.protocol.plan import Plan, plan_epoch
from spillway.protocol.recovery import Restore
from spillway.protocol.state import fold
from spillway.storage import Folder, folder
from spillway.stream.decoding import decode_chunks
from spillway.stream.genesis import placed_out
from spillway.stream.messages import MessageSource
from spillway.stream.tasks import JobSettings, all_traced, decode_task, step_tasks
from spillway_schemas.filenames import turn
from spillway_schemas.join_tree import KeySource
from spillway_schemas.journal import (
    Claim,
    Cut,
    Epoch,
    FileRecord,
    Genesis,
    Offsets,
    SlotReport,
    Topic,
    TracedGroup,
)
from spillway_schemas.losses import LostRange
from spillway_schemas.query import Query
from tests.chunked import chunks
from tests.commands import command_of
from tests.property.outer_reference import outer_joined
from tests.property.window_reference import Arrival, kept, rejected, time_of

WAREHOUSE = "w-1"
KEY = SecretBytes(b"the warehouse's key of 32 bytes.")
DAYS = ("2026-01-05", "2026-01-06", "2026-01-07", "2026-01-08")

Rows = Sequence[tuple[str, int, Mapping[str, object]]]
"""New rows: (topic, partition, value)."""
KAFKA_MS = 1_700_000_000_000
"""When the first row of each partition came; the next ones came a ms later each."""
Identity = tuple[tuple[str, int, int], ...]
"""A result: (leaf, partition, offset) of each of its rows, in the order of the leaves; Nones for a
row that it lacks."""


@dataclass(frozen=True)
class Struck:
    """A host is lost in the middle of an epoch's steps, and its slot's state with it.

    Steps that are late run with what the lost probes give when they run again, as Spark does it."""

    slot: int
    early: frozenset[int]
    """Slots whose steps were done."""
    lost: frozenset[int]
    """Slots whose probes are run again, that slot among them."""
    read: int
    """Levels up to this one had been read by the late steps before that."""


@dataclass
class TreeSlots:
    """The system under test."""

    query: Query
    root: str
    slots: int = 2
    groups: int = 4
    """Of each join."""
    distribution: str = "all"
    """Of the joins' first groups over the slots."""
    partitions: int = 2
    options: dict[str, Any] = field(default_factory=dict)
    """Of every step's task."""
    elsewhere: frozenset[int] = frozenset()
    """Slots on another host: what they get goes through the shuffle."""
    carry: bool = False
    """Rows that have not expired when a session ends join with those of the next one."""
    kafka: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    """The values of each topic partition."""
    files: list[FileRecord] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    voided: list[Cut] = field(default_factory=list)
    deferred: list[Cut] = field(default_factory=list)
    entries: list[Genesis | Claim | Epoch] = field(default_factory=list)
    results: dict[str, Counter[Identity]] = field(default_factory=lambda: defaultdict(Counter))
    """At run time, by session."""
    bounds: list[dict[tuple[str, int], int]] = field(default_factory=lambda: [{}])
    """Where each session begins in the topic partitions; 0 where nothing is said."""
    attempts: Iterator[int] = field(default_factory=itertools.count)
    jobs: int = 0
    """At the epoch under way."""
    moved_rows: int = 0
    """Blocks of state that went through the shuffle."""
    traced: dict[str, list[TracedGroup]] = field(default_factory=dict)
    restored: set[int] = field(default_factory=set)
    most_restored_rows: int | None = None
    behind: Collection[tuple[str, int]] = ()
    first: dict[tuple[str, int], int] = field(default_factory=dict)
    """The first offset of each topic partition that Kafka still holds; 0 where nothing is said."""

    def __post_init__(self) -> None:
        self.compiled = compile_query(self.query)
        self.spec = self.compiled.spec
        self.settings = JobSettings(
            spec=self.spec,
            streams=self.compiled.streams,
            warehouse_id=WAREHOUSE,
            warehouse_root="",
            state_root="",
            state_key=KEY,
            executor_may_override_state_root=False,
            budget_bytes=10**8,
            threshold=0.9,
            fraction=0.3,
            inactive_ms=60_000,
            victims=str(self.options.get("victims", DEFAULT_VICTIMS)),
            reactivation="off",
            calendar="XNYS",
            kafka=MessageSource("", {}),
        )
        self.warehouse = folder(self.root).child("warehouse")
        tree = Tree(self.spec.parents, self.query.tree.own_leaves, {})
        topics = self.query.topics
        self.state = None
        self._append(
            Genesis(
                warehouse_id=WAREHOUSE,
                cluster_id="c",
                topics=[Topic(name=t, id=t, partitions=self.partitions) for t in topics],
                query="q",
                session=DAYS[0],
                start={t: [0] * self.partitions for t in topics},
                start_rule="earliest",
                inputs=len(topics),
                groups=placed_out(self.groups, distribution(self.distribution, tree, self.slots)),
                parents=list(self.spec.parents),
                joins=[join.name for join in self.query.tree.joins],
                event_time=self.query.event_time,
                carry=self.carry,
                outer=bool(self.query.optional),
                written_at="",
            )
        )
        self._append(Claim(n=1, term=1, driver="d", written_at=""))

    def _append(self, entry: Genesis | Claim | Epoch) -> None:
        self.state = fold(self.state, entry)
        self.entries.append(entry)

    @property
    def journal(self):
        assert self.state is not None
        return self.state

    def folder_of(self, slot: int) -> Folder:
        return folder(self.root).child(f"slot-{slot}")

    # --- an epoch -------------------------------------------------------------------------

    def epoch(
        self,
        rows: Rows,
        *,
        later: Rows = (),
        moves: Mapping[int, int] | None = None,
        lost: frozenset[int] = frozenset(),
        forced_bytes: int = 0,
        seal: bool = False,
        thrown_away: int = 0,
        zombie: bool = False,
        struck: Struck | None = None,
        behind: Collection[tuple[str, int]] = (),
        losing: Mapping[tuple[str, int], int] | None = None,
    ) -> None:
        """One epoch. With `seal` the open session ends with `rows`, and `later` are of the next.
        `behind`: partitions of which nothing is read in it.
        `moves`: groups, by their index, and the slots that they go to. `lost`: slots whose folders
        are gone, which the steps must find. `losing`: where partitions begin from then on."""
        self._produce(rows)
        if seal:
            self.bounds.append({at: len(values) for at, values in self.kafka.items()})
        self._produce(later)
        for at, first in (losing or {}).items():
            self.first[at] = max(first, self.first.get(at, 0))
        for slot in lost:
            shutil.rmtree(self.folder_of(slot).path(), ignore_errors=True)
        self.behind = behind
        plan = self._plan(moves, forced_bytes, seal)
        self.jobs = 0
        for _ in range(thrown_away):
            self._attempt(plan)
        reports = self._attempt(plan, struck)
        gone: frozenset[int] = frozenset()
        while missing := missing_slots(plan, reports):
            assert missing.keys() - gone, "a slot was lost that is being restored"
            gone = gone.union(missing)
            plan = self._plan(moves, forced_bytes, seal, gone)
            reports = self._attempt(plan)
        self.restored |= gone
        if zombie:
            self.jobs = 0  # of an earlier job, where there was one
            self._attempt(plan)
        entry = entry_of(self.journal, plan, reports, started_at="", written_at="", seconds={})
        self._append(entry)
        self.traced = all_traced(reports)
        self.cuts += entry.cuts
        self.voided += entry.voided
        self.deferred += entry.deferred
        self.files += [f for f in entry.files if f.table == "spill"]
        for file in entry.files:
            if file.table == "results":
                self.results[file.partition["session_date"]].update(self._identities([file]))

    def _produce(self, rows: Rows) -> None:
        for topic, partition, value in rows:
            self.kafka.setdefault((topic, partition), []).append(json.dumps(value).encode())

    def _plan(
        self,
        moves: Mapping[int, int] | None,
        forced_bytes: int,
        seal: bool,
        lost: frozenset[int] = frozenset(),
    ) -> Plan:
        state = self.journal
        read = {(t, p): n for t, ends in state.end.items() for p, n in enumerate(ends)}
        ends = {at: len(values) for at, values in self.kafka.items()}
        end = self._offsets(ends | {at: read.get(at, 0) for at in self.behind})
        day = state.sessions[0].date
        close = self._offsets(self.bounds[-1])
        commands = [command_of("seal", day, session=day, offsets=close)] if seal else []
        if gone := gone_from(state, self._offsets(self.first)):
            id_ = f"loss/{state.epoch}"
            commands.append(command_of("accept-loss", id_, session=day, lost_to=gone))
        plan = plan_epoch(
            state,
            end,
            commands,
            DAYS[DAYS.index(day) + 1],
            lost,
            history=[e for e in self.entries if isinstance(e, Epoch)],
            most_restored_rows=self.most_restored_rows,
        )
        groups = list(plan.groups)
        if moves and not lost:
            for at, to in moves.items():
                groups[at % len(groups)] = (groups[at % len(groups)][0], to)
        numbers = range(1 + max(slot for _, slot in (*state.groups, *groups)))
        return replace(
            plan,
            groups=tuple(groups),
            manifests=tuple((s, None if s in lost else state.manifests.get(s)) for s in numbers),
            forced=tuple((s, forced_bytes) for s in numbers if forced_bytes),
        )

    def _offsets(self, ends: Mapping[tuple[str, int], int]) -> Offsets:
        return {t: [ends.get((t, p), 0) for p in range(self.partitions)] for t in self.query.topics}

    def _attempt(self, plan: Plan, struck: Struck | None = None) -> list[SlotReport]:
        """The next job at the epoch, as `spillway.stream.job` builds it."""
        self.jobs += 1
        groups = GroupMap(plan.groups)
        tasks = {
            slot: replace(
                task,
                **self.options,
                attempt=f"{turn(1, self.jobs)}{next(self.attempts):09x}",
                written_at_us=1_700_000_000_000_000,
            )
            for slot, task in step_tasks(
                self.settings,
                plan,
                groups,
                now_ms=plan.epoch * 1000,
                traced=self.traced,
            ).items()
        }
        salts = tuple(range(len(tasks)))
        moved = {
            slot: list(extracted(self.spec, tasks, self.folder_of, self.elsewhere, {slot}))
            for slot in tasks
        }
        self.moved_rows += sum(block.kind == "state" for block in chain(*moved.values()))
        came: list[Block] = []
        work = decode_task(self.settings, plan, groups, salts)
        came += self._decoded(work, plan.start, plan.end)
        for again, carries in ((plan.restore, False), (plan.carry, True)):
            if again is not None:
                work = decode_task(self.settings, plan, groups, salts, again, carries=carries)
                came += self._decoded(work, again.read_from, again.read_to)
        if struck is None or struck.slot not in tasks:
            blocks = [*came, *chain(*moved.values())]
            return carried_out(self.spec, tasks, blocks, self.folder_of, self.warehouse.child)
        return self._struck(tasks, came, moved, struck)

    def _struck(
        self,
        tasks: Mapping[int, StepTask],
        came: list[Block],
        moved: dict[int, list[Block]],
        struck: Struck,
    ) -> list[SlotReport]:
        blocks = [*came, *chain(*moved.values())]
        first = probed(self.spec, tasks, blocks, self.folder_of)
        early = {slot: task for slot, task in tasks.items() if slot in struck.early}
        late = {slot: task for slot, task in tasks.items() if slot not in struck.early}
        read = [b for at, made in first.items() if at[0] <= struck.read for b in made]
        blocks += chain(*first.values())
        reports = stepped(self.spec, early, blocks, self.folder_of, self.warehouse.child)
        shutil.rmtree(self.folder_of(struck.slot).path(), ignore_errors=True)
        known = {at: made for at, made in first.items() if at[1] not in struck.lost}
        again = extracted(self.spec, tasks, self.folder_of, frozenset(tasks), {struck.slot})
        blocks = [*came, *chain(*(moved | {struck.slot: list(again)}).values())]
        given = probed(self.spec, tasks, blocks, self.folder_of, known)
        if read:
            blocks = [*came, *chain(*moved.values()), *read]
        blocks += (b for at, made in given.items() if at[0] > struck.read for b in made)
        return [
            *reports,
            *stepped(self.spec, late, blocks, self.folder_of, self.warehouse.child),
        ]

    def _decoded(self, task: Any, start: Offsets, end: Offsets) -> list[Block]:
        batches = []
        for (topic, partition), values in sorted(self.kafka.items()):
            first, last = start[topic][partition], end[topic][partition]
            assert first >= self.first.get((topic, partition), 0) or first >= last, "it is gone"
            if first < last:
                batches.append(batch_of(topic, partition, first, values[first:last]))
        return [
            block for batch in decode_chunks(task, chunks(batches)) for block in from_batch(batch)
        ]

    # --- after the close ------------------------------------------------------------------

    def expected(self, day: str) -> Counter[Identity]:
        """All that a session is to give, by brute force."""
        n = DAYS.index(day)
        passed = self.never_read()
        begins, *ends = self.bounds[n:]
        values = {
            at: [
                (offset, value)
                for offset, value in enumerate(values)
                if (self.carry or begins.get(at, 0) <= offset)
                and (not ends or offset < ends[0].get(at, 0))
                and (at, offset) not in passed
            ]
            for at, values in self.kafka.items()
        }
        whole = everything(self.query, values)
        if not self.query.is_windowed:
            return whole
        arrivals, sessions = self.arrivals()
        if self.carry:  # time is one for all sessions
            arrivals, sessions = [replace(row, session=0) for row in arrivals], [0]
        out = {
            (*row.place, row.offset)
            for row in rejected(self.query, arrivals, sessions, self.partitions)
        }
        topics = {leaf: self.query.topic(leaf) for leaf in self.query.inputs}
        if self.carry:
            whole = Counter(
                {
                    r: n
                    for r, n in whole.items()
                    if any(o >= begins.get((topics[leaf], p), 0) for leaf, p, o in r)
                }
            )
        times = {
            (topic, partition, offset): time_of(value)
            for (topic, partition), each in values.items()
            for offset, value in each
        }
        mine = {
            r: n
            for r, n in whole.items()
            if not any((topics[leaf], p, o) in out for leaf, p, o in r)
        }
        return kept(Counter(mine), self.query, times)

    def never_read(self) -> set[tuple[tuple[str, int], int]]:
        """The places of all rows that were accepted as lost before they were read."""
        passed, read = set(), Counter[tuple[str, int]]()
        for entry in self.entries:
            if isinstance(entry, Epoch):
                for topic, p, first in partitions(entry.lost_to):
                    passed |= {((topic, p), offset) for offset in range(read[topic, p], first)}
                read |= Counter({(t, p): end for t, p, end in partitions(entry.end)})
        return passed

    def certain(self, day: str) -> Counter[Identity]:
        """Those of the expected results that no loss can have taken."""
        topics = {leaf: self.query.topic(leaf) for leaf in self.query.inputs}
        lost = self.lost_of(day)
        gone = {(each.topic, each.partition): each.end for each in lost}
        if not (self.restored or self.deferred or self.carry):
            gone = {}  # what was read is in memory, or in files
        unknown = {each.topic for each in lost}

        def is_certain(leaf: str, partition: int | None, offset: int | None) -> bool:
            if partition is None or offset is None:
                return topics[leaf] not in unknown
            return offset >= gone.get((topics[leaf], partition), 0)

        every = self.expected(day).items()
        return Counter({r: n for r, n in every if all(is_certain(*place) for place in r)})

    def lost_of(self, day: str) -> list[LostRange]:
        """What a sealed session says that it has lost, and what only its cleanup lacks."""
        state = self.journal
        loss = loss_of(state.genesis, state.sealed[day], self.entries)
        again = deferred_rows(state.genesis, state.sealed[day], self.entries)
        beginning = self._offsets(self.first)
        more = lost_ranges(again.read_from, again.read_to, beginning) if again else []
        return [*(loss.ranges if loss else ()), *more]

    def arrivals(self) -> tuple[list[Arrival], list[int]]:
        """All rows with their epochs and sessions, and the epoch in which each session begins."""
        found, begins, read = [], [0], Counter[tuple[str, int]]()
        passed = self.never_read()
        for entry in self.entries:
            if not isinstance(entry, Epoch):
                continue
            begins += [entry.epoch] if entry.seal is not None else []
            for topic, ends in entry.end.items():
                for partition, end in enumerate(ends):
                    at = topic, partition
                    for offset in range(read[at], end):
                        if (at, offset) in passed:
                            continue
                        session = sum(offset >= b.get(at, 0) for b in self.bounds[1:])
                        time_us = time_of(self.kafka[at][offset])
                        kafka_us = (KAFKA_MS + offset) * 1000
                        found.append(Arrival(at, offset, time_us, kafka_us, entry.epoch, session))
                    read[at] = end
        return found, begins

    def clean(self, day: str = DAYS[0], *, piece_bytes: int = 10**6) -> Counter[Identity]:
        """All that cleanup adds to a sealed session, stage by stage."""
        sealed = self.journal.sealed[day]
        mine = [f for f in self.files if f.partition["session_date"] == day]
        mine += self._deferred(day)
        ends, voided = generations_of(self.entries, sealed, windowed=self.query.is_windowed)
        of_task = {"ends": ends, "voided": voided, "doubtful": self._doubtful(day)}
        with mock.patch.object(job, "CleanTask", partial(CleanTask, **of_task)):
            found = list(
                cleaned(
                    self.spec,
                    sealed.ranges,
                    [SpillFile(f.path, f.bytes, f.digest) for f in mine],
                    self.warehouse.child,
                    session=day,
                    epoch=sealed.epoch,
                    piece_bytes=piece_bytes,
                )
            )
        files = [file for join in found for file in join.files if file.table == "results"]
        return Counter(self._identities(files))

    def _doubtful(self, day: str) -> frozenset[int]:
        """The inputs of which cleanup may not see all rows."""
        state = self.journal
        sealed = state.sealed[day]
        loss = loss_of(state.genesis, sealed, self.entries)
        topics = doubtful_topics(sealed, loss, self._read_again(day))
        return frozenset(each.index for each in self.compiled.streams if each.topic in topics)

    def _read_again(self, day: str) -> Restore | None:
        """What is left of what slots had lost."""
        state = self.journal
        again = deferred_rows(state.genesis, state.sealed[day], self.entries)
        return again and without_lost(again, self.lost_of(day))

    def _deferred(self, day: str) -> list[FileRecord]:
        """What slots had lost, read again."""
        state = self.journal
        again = self._read_again(day)
        if again is None:
            return []
        place, groups = self.warehouse.child("spill"), parts_of(10**6)
        salts = tuple(range(len(groups)))
        streams, time = self.compiled.streams, state.genesis.event_time
        task, work = tasks_for(self.spec, streams, again, time, place, groups, salts)
        blocks = self._decoded(task, again.read_from, again.read_to)
        found = []
        for part in salts:
            mine = [each for each in blocks if each.slot == part]
            counts = [c for each in mine if each.kind == "count" for c in decode_counts(each)]
            files, rows = write_part(work, part, mine)
            found.append(PartWritten(counts=counts, files=files, rows=rows))
        check_written(again, found)
        return [file for part in found for file in part.files]

    def _identities(self, files: Iterable[FileRecord]) -> list[Identity]:
        place = self.warehouse.child("results")
        found: list[Identity] = []
        for record in files:
            table = pq.read_table(place.path(record.path), partitioning=None)
            found += identities(self.query, table)
            self._check_values(table)
        return found

    def _check_values(self, table: pa.Table) -> None:
        """Every shown field is the one of the row that its coordinate names."""
        for leaf in self.query.inputs:
            topic = self.query.topic(leaf)
            where = [table[f"{leaf}_{part}"].to_pylist() for part in ("partition", "offset")]
            for name in [each.name for each in self.query.payload(leaf)]:
                shown = table[f"{leaf}_{name}"].to_pylist()
                for value, partition, offset in zip(shown, *where, strict=True):
                    row = {} if offset is None else json.loads(self.kafka[topic, partition][offset])
                    assert value == row.get(name)


def batch_of(topic: str, partition: int, first: int, values: Sequence[bytes]) -> pa.RecordBatch:
    """Kafka's rows as the source gives them."""
    n = len(values)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([topic] * n),
            pa.array(np.full(n, partition, np.int32)),
            pa.array(np.arange(first, first + n)),
            pa.array(values, pa.binary()),
            pa.array(1000 * (KAFKA_MS + np.arange(first, first + n)), pa.timestamp("us", "UTC")),
        ],
        names=["topic", "partition", "offset", "value", "timestamp"],
    )


def identities(query: Query, table: pa.Table) -> list[Identity]:
    """Result rows by their coordinates."""
    columns = [
        list(
            zip(
                itertools.repeat(leaf),
                table[f"{leaf}_partition"].to_pylist(),
                table[f"{leaf}_offset"].to_pylist(),
                strict=False,
            )
        )
        for leaf in query.inputs
    ]
    return list(zip(*columns, strict=True))


def everything(
    query: Query, values: Mapping[tuple[str, int], Sequence[tuple[int, bytes]]]
) -> Counter[Identity]:
    """Brute force: each combination of rows, one of each leaf, in which all keys are equal; those
    without optional rows, too.

    `values`: (offset, value) of each topic partition."""
    tree = query.tree
    topics = {leaf.name: query.topic(leaf.name) for leaf in tree.leaves}
    rows = {
        leaf: [
            ((leaf, p, o), json.loads(value))
            for (topic, p), each in values.items()
            if topic == of
            for o, value in each
        ]
        for leaf, of in topics.items()
    }
    keys = [
        [tree.source(key, each) for each in join.inputs] for join in tree.joins for key in join.keys
    ]
    if query.optional:
        return _outer(query, rows, keys)
    found: list[dict[str, Any]] = [{}]
    for leaf in tree.leaves:  # one leaf after the other, keys compared as soon as they can be
        more = []
        for one, (where, value) in itertools.product(found, rows[leaf.name]):
            picked = {**one, leaf.name: (where, value)}
            if _agree(keys, {name: row for name, (_, row) in picked.items()}):
                more.append(picked)
        found = more
    return Counter(tuple(one[leaf][0] for leaf in query.inputs) for one in found)


def _outer(
    query: Query,
    rows: Mapping[str, Sequence[tuple[tuple[str, int, int], Mapping[str, Any]]]],
    keys: Sequence[Sequence[KeySource]],
) -> Counter[Identity]:
    inputs = []
    for i, leaf in enumerate(query.inputs):
        names = [sources[i].expression for sources in keys]
        inputs.append([(tuple(v[name] for name in names), place) for place, v in rows[leaf]])
    optional = [query.inputs.index(leaf) for leaf in query.optional]
    found: Counter[Identity] = Counter()
    for (_, *places), n in outer_joined(inputs, optional).items():
        nowhere = [(leaf, None, None) for leaf in query.inputs]
        found[tuple(at or no for at, no in zip(places, nowhere, strict=True))] += n
    return found


def _agree(keys: Sequence[Sequence[KeySource]], values: Mapping[str, Mapping[str, object]]) -> bool:
    """Whether each key has one value in the rows that there are."""
    return all(
        len({values[s.leaf][s.expression] for s in sources if s.leaf in values}) < 2
        for sources in keys
    )
