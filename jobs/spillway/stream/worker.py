"""The step and the half of a relocation that gives: what runs in Spark's Python workers after
the shuffle. `spillway.stream.decoding` is what runs before it.

These are generators over Arrow batches for `mapInArrow`. They import no Spark and no deltalake
(whose runtime does not survive the fork that makes a worker). Everything that they know comes in
the pickled task; process memory holds nothing that counts.

`SPILLWAY_STATE__ROOT` in an executor's environment overrides the state root of the task: state
belongs to a host, and hosts may keep it in different places. It is taken just as it is, without a
named query's folder (`queries/NAME`): below it a warehouse's id keeps what is of one query apart.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from spillway.engine.join.tree import TreeSpec
from spillway.engine.probe import probe
from spillway.engine.relocation import extract, nobody
from spillway.engine.step import step
from spillway.engine.task import StepTask
from spillway.engine.wire.blocks import (
    Block,
    from_batch,
)
from spillway.storage import StateFolder, folder, private
from spillway.stream.pins import salted
from spillway.stream.process import freeze
from spillway_schemas.filenames import turn
from spillway_schemas.secret import Options

REPORT_SCHEMA = pa.schema([pa.field("slot", pa.int32()), pa.field("report", pa.binary())])


@dataclass(frozen=True)
class StepJob:
    """What the steps of an epoch need to know. `tasks[i]` is slot i's; attempts are filled in."""

    spec: TreeSpec
    tasks: dict[int, StepTask]
    salts: tuple[int, ...]
    state_root: str
    executor_may_override_state_root: bool
    """Whether SPILLWAY_STATE__ROOT of the executor's host goes before `state_root`."""
    warehouse_root: str
    term: int
    """The driver's."""
    attempt: int
    """A count of the driver's jobs at this epoch, from 1."""
    warehouse_options: Options = field(default_factory=dict)
    """Of the object store where `warehouse_root` is, when it is in one."""

    def state(self, task: StepTask) -> StateFolder:
        """The folder of a slot's state on the host that this runs on."""
        own = (
            os.environ.get("SPILLWAY_STATE__ROOT")
            if self.executor_may_override_state_root
            else None
        )
        root = private(own or self.state_root)
        return root.child(task.warehouse_id).child(f"slot-{task.slot}")

    @property
    def hand_over(self) -> bool:
        """Whether state that moves within a host is written where it goes: not in a repeated job,
        for what made the first one fail may be such a file."""
        return self.attempt == 1

    def fresh_attempt(self) -> str:
        """The name of one more attempt at a task."""
        return (turn(self.term, self.attempt) + uuid.uuid4().hex)[:16]

    def neighbour(self, slot: int) -> tuple[StepTask, StateFolder] | None:
        """Another slot's task, and where its state would be if it lay on this host."""
        task = self.tasks.get(slot)
        return None if task is None else (task, self.state(task))


def extract_batches(job: StepJob, batches: Iterable[Any]) -> Iterator[Any]:
    """The anchors of slots that groups leave to blocks of their state, for the new owners."""
    freeze()
    slot_of = {salt: slot for slot, salt in enumerate(job.salts)}
    for batch in batches:
        for anchor in from_batch(batch):
            task = job.tasks.get(slot_of[anchor.slot])
            if task is not None and task.leaving:
                task = replace(task, attempt=job.fresh_attempt())
                neighbour = job.neighbour if job.hand_over else nobody
                for block in extract(job.spec, task, job.state(task), neighbour):
                    yield salted(job.salts, [block])


def probe_batches(job: StepJob, level: int, batches: Iterable[Any]) -> Iterator[Any]:
    """The blocks of one slot for the joins of a level (its anchor among them) to blocks of what
    they give, for the slots that own it. Of partitions and anchors holds what `step_batches` says.
    """
    slot, blocks = _of_slot(job, batches)
    if slot is None:
        return
    task = job.tasks[slot]
    for block in probe(job.spec, task, level, blocks, job.state(task)):
        yield salted(job.salts, [block])


def step_batches(job: StepJob, batches: Iterable[Any]) -> Iterator[Any]:
    """The blocks of one slot (its anchor among them) to its report.

    A partition without blocks and without the anchor of a slot gives nothing: it has none. Any
    other that has not exactly one anchor fails: blocks met the wrong partition, or a slot ran as
    two tasks, and going on would lose or double rows.
    """
    slot, blocks = _of_slot(job, batches)
    if slot is None:
        return
    # The time of the results: now that their rows are decoded, not when the driver planned.
    now_us = time.time_ns() // 1000
    task = replace(job.tasks[slot], attempt=job.fresh_attempt(), written_at_us=now_us)
    warehouse = folder(job.warehouse_root, job.warehouse_options)
    state = job.state(task)
    report = step(job.spec, task, blocks, state, warehouse.child)
    if report.totals is not None:
        free = shutil.disk_usage(state.path()).free
        totals = report.totals.model_copy(update={"free_bytes": free})
        clock_ms = time.time_ns() // 1_000_000
        report = report.model_copy(update={"totals": totals, "clock_ms": clock_ms})
    yield pa.RecordBatch.from_arrays(
        [pa.array([slot], pa.int32()), pa.array([report.model_dump_json().encode()], pa.binary())],
        schema=REPORT_SCHEMA,
    )


def _of_slot(job: StepJob, batches: Iterable[Any]) -> tuple[int | None, list[Block]]:
    """The slot of a partition and its blocks; None for a partition that has none."""
    freeze()
    slot_of = {salt: slot for slot, salt in enumerate(job.salts)}
    blocks: list[Block] = []
    anchors: list[int] = []
    for batch in batches:
        for block in from_batch(batch):
            if block.kind == "anchor":
                anchors.append(slot_of[block.slot])
            else:
                blocks.append(replace(block, slot=slot_of[block.slot]))
    if not blocks and not job.tasks.keys() & set(anchors):
        return None, []
    if len(anchors) != 1 or any(block.slot != anchors[0] for block in blocks):
        raise RuntimeError(
            f"A step met the anchors {anchors} and blocks of slots "
            f"{sorted({b.slot for b in blocks})}: Spark's partitions are not aligned. Nothing "
            "was written. Check that spark.sql.unionOutputPartitioning is true."
        )
    return anchors[0], blocks
