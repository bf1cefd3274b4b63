"""One epoch as one Spark job: decode, shuffle by slot, union with the anchors, step, collect.

    ranges --> read and decode --> blocks --+
    ranges, again --> read and decode ------+--> repartition(slot) --> union(anchors) --> step
    anchors --> extract_batches --> state --+

A tree of joins has a shuffle and a probe more for each level below the root's. What the probe of a
slot gives goes to the slots that own it in the joins above; the step gets everything that came:

    came ----> those of level 1 --> union(anchors) --> probe --> repartition(slot) --> given 1
    came + given 1 --> those of level 2 --> union(anchors) --> probe --> ...  --> given 2
    came + given 1 + given 2 --> union(anchors) --> step

Reports come from `collect()`: a task that ran twice is counted once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from spillway.clock import system_clock
from spillway.engine.groups import GroupMap
from spillway.engine.wire.blocks import BLOCK_SCHEMA, PROBED, UNSTEPPED
from spillway.kafka.reading import TopicRange
from spillway.policy.sampling import SlotFigures
from spillway.protocol.plan import Plan
from spillway.stream.day_before import DayBefore
from spillway.stream.decoding import DecodeTask, decode_chunks
from spillway.stream.messages import ranges_of, reading_frame, task_ranges
from spillway.stream.pins import pinned, salts, shuffled
from spillway.stream.placement import Placement
from spillway.stream.process import rehearse_batches
from spillway.stream.tasks import (
    JobSettings,
    all_traced,
    decode_task,
    hosted,
    partitions,
    step_tasks,
)
from spillway.stream.worker import (
    REPORT_SCHEMA,
    StepJob,
    extract_batches,
    probe_batches,
    step_batches,
)
from spillway_schemas.journal import SlotReport, Topic, TracedGroup

DECODERS_PER_CORE = 2
"""Tasks of an epoch that read and decode, each several topic partitions one after another. A
task costs about 60 ms of a core however few rows it has."""


class EpochJob:
    """Builds and runs the Spark job of an epoch."""

    def __init__(
        self,
        spark: Any,
        settings: JobSettings,
        placement: Placement,
        on_trouble: Callable[[str], None],
    ) -> None:
        from pyspark.sql.pandas.types import from_arrow_schema

        self.spark = spark
        self.settings = settings
        self.placement = placement
        self._on_trouble = on_trouble
        self._traced: dict[int, dict[str, list[TracedGroup]]] = {}
        """By epoch, what its slots get to know of results of the epoch before. Lost with this
        process: then groups count as less productive than they were, until they are spilled."""
        self.before: DayBefore | None = None
        """How the rows of the session before came; None: it is not known, or not asked for."""
        self._known_salts: dict[int, tuple[int, ...]] = {}
        self._pinned: tuple[tuple[int, ...], tuple[str, ...], Any] | None = None
        self.decoders = DECODERS_PER_CORE * spark.sparkContext.defaultParallelism
        self.block_type = from_arrow_schema(BLOCK_SCHEMA)
        self.report_type = from_arrow_schema(REPORT_SCHEMA)

    def identify(self, topics: Iterable[Topic]) -> None:
        """Take rows of these topics alone: see `MessageSource.identified`."""
        self.settings = replace(self.settings, kafka=self.settings.kafka.identified(topics))

    def rehearse(self, slots: int) -> None:
        """Run an epoch's job without rows.

        Shows that workers run, before the journal is claimed from whoever holds it now. And
        they start and import, and Spark compiles what every epoch runs, before rows wait for it.
        """
        cores, parts = self.spark.sparkContext.defaultParallelism, partitions(slots)
        none = self.spark.range(0, cores, 1, cores).mapInArrow(rehearse_batches, self.block_type)
        anchors = self._anchors(self._salts(parts), ("",) * parts)
        frame = anchors.unionAll(none.repartition(parts, "slot"))
        frame.mapInArrow(rehearse_batches, self.report_type).collect()

    def run(
        self,
        plan: Plan,
        *,
        term: int,
        attempt: int,
        now_ms: int,
        statistics: bool,
        recent: Sequence[SlotFigures],
    ) -> list[SlotReport]:
        """Run the epoch; its reports. `term`: of the driver; `attempt`: its jobs at this epoch.

        `recent`: what each slot did since statistics were last written; empty when that is not
        known.
        """
        groups = GroupMap(plan.groups)
        slots = [slot for slot, _ in plan.manifests]
        # Slot numbers are contiguous, so that slot i can be partition i.
        parts = partitions(len(slots))
        salt = self._salts(parts)
        restored = plan.restore.slots if plan.restore is not None else frozenset[int]()
        lost_slots = restored | frozenset(plan.deferred_slots)
        hosts = self.placement.place(slots, unpin=lost_slots)
        tasks = step_tasks(
            self.settings,
            plan,
            groups,
            now_ms=now_ms,
            statistics=statistics,
            recent=recent,
            traced=self._traced.get(plan.epoch, {}),
            before=None if self.before is None else self.before.of(groups),
        )
        job = StepJob(
            spec=self.settings.spec,
            tasks=tasks,
            salts=salt,
            state_root=self.settings.state_root,
            executor_may_override_state_root=self.settings.executor_may_override_state_root,
            warehouse_root=self.settings.warehouse_root,
            term=term,
            attempt=attempt,
            warehouse_options=self.settings.warehouse_options,
        )
        spark = self.spark
        anchors = self._anchors(salt, tuple(hosts.get(s, "") for s in range(parts)))
        blocks = []
        if any(task.leaving for task in tasks.values()):
            # First, so that it runs beside the decoders and not after them.
            blocks.append(
                anchors.mapInArrow(lambda batches: extract_batches(job, batches), self.block_type)
            )
        if ranges := ranges_of(plan.start, plan.end):
            blocks.append(self._decoded(ranges, decode_task(self.settings, plan, groups, salt)))
        for again, carries in ((plan.restore, False), (plan.carry, True)):
            if again is not None and (ranges := ranges_of(again.read_from, again.read_to)):
                task = decode_task(self.settings, plan, groups, salt, again, carries=carries)
                blocks.append(self._decoded(ranges, task))
        frame = anchors
        if blocks:
            arriving = reduce(lambda one, other: one.unionAll(other), blocks)
            frame = self._with_levels(spark, anchors, arriving, job, parts)
        reports = frame.mapInArrow(lambda batches: step_batches(job, batches), self.report_type)

        def tell(text: str) -> None:
            self._on_trouble(f"epoch {plan.epoch}: {text}")

        began_ms = system_clock()
        with self.placement.watched(self.spark.sparkContext.cancelAllJobs, tell):
            rows_found = reports.collect()
        ended_ms = system_clock()
        found = [SlotReport.model_validate_json(bytes(row.report)) for row in rows_found]
        self._traced = {
            plan.epoch: self._traced.get(plan.epoch, {}),
            plan.epoch + 1: all_traced(found),
        }
        return [hosted(report, hosts, began_ms, ended_ms) for report in found]

    def _with_levels(self, spark: Any, anchors: Any, came: Any, job: StepJob, parts: int) -> Any:
        """The anchors with all blocks that came, and what the joins below the root make of them."""
        if job.spec.height == 1:
            return anchors.unionAll(came.repartition(parts, "slot"))
        arrived = [shuffled(spark, came, parts)]
        for level in range(1, job.spec.height):
            frame = anchors
            for each in arrived:
                kinds, joins = each.kind.isin(*PROBED), each.operator
                frame = frame.unionAll(each.where(kinds & joins.isin(*job.spec.at_level(level))))
            given = frame.mapInArrow(_prober(job, level), self.block_type)
            arrived.append(shuffled(spark, given, parts))
        for each in arrived:
            anchors = anchors.unionAll(each.where(~each.kind.isin(*UNSTEPPED)))
        return anchors

    def _salts(self, slots: int) -> tuple[int, ...]:
        if slots not in self._known_salts:
            self._known_salts[slots] = salts(self.spark, slots)
        return self._known_salts[slots]

    def _anchors(self, salt: tuple[int, ...], hosts: tuple[str, ...]) -> Any:
        """The same frame from epoch to epoch, until slots or their hosts change."""
        if self._pinned is None or self._pinned[:2] != (salt, hosts):
            self._pinned = salt, hosts, pinned(self.spark, self.block_type, salt, hosts)
        return self._pinned[2]

    def _decoded(self, ranges: Sequence[TopicRange], task: DecodeTask) -> Any:
        return reading_frame(
            self.spark,
            self.settings.kafka,
            task_ranges(ranges, self.decoders),
            lambda chunks: decode_chunks(task, chunks),
            self.block_type,
        )


def _prober(job: StepJob, level: int) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """The probes of a level, for `mapInArrow`."""
    return lambda batches: probe_batches(job, level, batches)
