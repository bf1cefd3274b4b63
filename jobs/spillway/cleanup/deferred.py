"""What slots had in memory when they were lost, read again in Kafka and written as spilled rows.

One Spark job, before anything is joined: the decoders give the rows of all cuts by reference
(`spillway.protocol.deferral`), each part of the hashes writes its own, sorted, and what was read is
held against the journal's counts and digests before any of it counts. It is committed once, with
the application transaction (`deferred/<session>`, 0); from then on these rows are spilled ones.

Failure paths: killed before the commit, the files are orphans, and the next start reads again. Rows
that Kafka does not have any more, or has otherwise: `InputChanged` names the partition.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from spillway.decode import StreamPlan
from spillway.engine.groups import GroupMap
from spillway.engine.intake import rows_of
from spillway.engine.join.kernel import Rows
from spillway.engine.join.tree import TreeSpec
from spillway.engine.spill.generations import DeferredGenerations
from spillway.engine.spill.spillfile import write_spill
from spillway.engine.wire.blocks import (
    BLOCK_SCHEMA,
    Block,
    decode_counts,
    decode_rows,
    from_batch,
)
from spillway.kafka.client import cluster, demand_listener
from spillway.kafka.held import demand_cluster, input_gone
from spillway.protocol.deferral import UNREADABLE, rows_to_read
from spillway.protocol.offsets import rows_between
from spillway.protocol.recovery import Deferred, InputChanged, Restore, check_restored
from spillway.registry import SchemaTrouble
from spillway.storage import Folder, StorageError
from spillway.stream.decoding import DecodeTask, decode_chunks
from spillway.stream.messages import MessageSource, ranges_of, whole_frame
from spillway.stream.pins import salts
from spillway.stream.process import freeze
from spillway_schemas.filenames import cleanup_name
from spillway_schemas.journal import (
    EventTime,
    FileRecord,
    Genesis,
    PartitionCount,
    Prefix,
    Record,
    Topic,
)

PART_ROWS = 250_000
"""Rows, as read, for each part of the hashes: what a task holds."""
MOST_BITS = 12
"""4,096 parts, for a thousand million rows."""


@dataclass(frozen=True)
class TopicSource:
    """Where a query's topics are, and how their messages are read."""

    streams: tuple[StreamPlan, ...]
    messages: MessageSource

    def identified(self, topics: Iterable[Topic]) -> TopicSource:
        """The same, of these topics alone: see `MessageSource.identified`."""
        return replace(self, messages=self.messages.identified(topics))

    def gone(self, genesis: Genesis, again: Restore) -> str:
        """What Kafka does not hold any more of what is to be read of a session that ran so, in
        words; empty: it has all of it. Raises `AnotherCluster`, `TopicProblem`, KafkaUnavailable.
        """
        demand_listener(self.messages.bootstrap)
        with cluster(self.messages.bootstrap, self.messages.client) as view:
            demand_cluster(view, genesis.cluster_id, self.messages.bootstrap)
            return input_gone(view, genesis.topics, again.read_from, again.read_to)

    def check(self, genesis: Genesis, again: Restore) -> None:
        """Raise `InputChanged` unless Kafka holds all that is to be read; else as `gone` does."""
        if problem := self.gone(genesis, again):
            raise InputChanged(
                f"{UNREADABLE}: {problem}. Nothing was written; bring the topic's messages back "
                "and run it again. Where nobody has them any more: spillway accept-loss"
            )


class PartWritten(Record):
    """What one part has written."""

    counts: list[PartitionCount]
    """Of what the decoders read, as far as their blocks came to this part."""
    files: list[FileRecord]
    rows: dict[int, int]
    """By the epoch of the cut by reference, what was written."""
    problem: tuple[int, str] | None = None
    """A storage error that a person can mend: its number and what to do."""


@dataclass(frozen=True)
class PartsTask:
    """What the parts need to know. Picklable."""

    spec: TreeSpec
    session: str
    generations: DeferredGenerations
    spill: Folder
    salts: tuple[int, ...]


def parts_of(rows: int) -> GroupMap:
    """The hashes in equal parts, for so many rows that are read; part i is "slot" i."""
    bits = min(MOST_BITS, max(1, (rows // PART_ROWS).bit_length()))
    return GroupMap([(Prefix(bits, part), part) for part in range(2**bits)])


def tasks_for(
    spec: TreeSpec,
    streams: tuple[StreamPlan, ...],
    again: Restore,
    event_time: EventTime | None,
    spill: Folder,
    groups: GroupMap,
    salt: tuple[int, ...],
) -> tuple[DecodeTask, PartsTask]:
    """What the decoders need to know, and what the parts do. `groups`: of `parts_of`."""
    (session,) = again.sessions
    deferred = _deferred(again)
    generations = DeferredGenerations(deferred.spilled, deferred.deferred)
    task = DecodeTask(
        spec=spec,
        streams=streams,
        groups=groups,
        salts=salt,
        session=session.session,
        next_session="",
        bound=None,
        restore=again,
        deferred=generations,
        event_time=event_time,
    )
    return task, PartsTask(spec, session.session, generations, spill, salt)


def read_deferred(
    spark: Any,
    spec: TreeSpec,
    source: TopicSource,
    again: Restore,
    event_time: EventTime | None,
    spill: Folder,
) -> list[FileRecord]:
    """Read what `again` says and write it as spilled rows, not committed. Raises `InputChanged`,
    `StorageError`, `SchemaTrouble`."""
    if not rows_between(again.read_from, again.read_to):  # all of it is lost
        check_written(again, [])
        return []
    groups = parts_of(rows_to_read(again))
    parts = len(groups)
    salt = salts(spark, parts)
    task, work = tasks_for(spec, source.streams, again, event_time, spill, groups, salt)
    blocks = whole_frame(
        spark,
        source.messages,
        ranges_of(again.read_from, again.read_to),
        lambda chunks: decode_chunks(task, chunks),
        frame_schema(BLOCK_SCHEMA),
    )
    written = blocks.repartition(parts, "slot").mapInArrow(
        lambda batches: write_parts(work, batches), frame_schema(WRITTEN_SCHEMA)
    )
    try:
        told = written.collect()
    except Exception as error:
        if trouble := SchemaTrouble.told_by(error):
            raise trouble from error
        raise
    found = [PartWritten.model_validate_json(row.written) for row in told]
    files = [file for part in found for file in part.files]
    try:
        check_written(again, found)
    except Exception:
        for file in files:  # nobody will name them, and vacuum waits until the session is cleaned
            spill.delete(file.path)
        raise
    return files


def check_written(again: Restore, found: Sequence[PartWritten]) -> None:
    """Hold what was read and written against the journal. Raises `InputChanged`, `StorageError`."""
    for part in found:
        if part.problem is not None:
            raise StorageError(*part.problem)
    check_restored(again, [count for part in found for count in part.counts], UNREADABLE)
    for epoch, held in _deferred(again).held:
        rows = sum(part.rows.get(epoch, 0) for part in found)
        if rows != held:
            raise InputChanged(
                f"Slots had {held:,} rows in memory when they were lost after epoch {epoch}, and "
                f"reading the same input again gave {rows:,}. Nothing was written. This is an "
                "error of spillway's: keep the topics and the warehouse, and report it"
            )


def _deferred(again: Restore) -> Deferred:
    (session,) = again.sessions
    assert session.deferred is not None, "a restore for lost slots is not for a cleanup"
    return session.deferred


WRITTEN_SCHEMA = pa.schema([pa.field("written", pa.string())])


def frame_schema(schema: pa.Schema) -> Any:
    """Columns of a Spark frame."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


def write_parts(task: PartsTask, batches: Iterable[Any]) -> Iterator[Any]:
    """The blocks of one part to what it has written; nothing for a part without blocks."""
    freeze()
    blocks = [block for batch in batches for block in from_batch(batch)]
    if not blocks:
        return
    counts = [c for each in blocks if each.kind == "count" for c in decode_counts(each)]
    part = task.salts.index(blocks[0].slot)
    try:
        files, rows = write_part(task, part, blocks)
        done = PartWritten(counts=counts, files=files, rows=rows)
    except StorageError as problem:
        told = problem.errno or 0, str(problem)
        done = PartWritten(counts=counts, files=[], rows={}, problem=told)
    yield pa.RecordBatch.from_pydict({"written": [done.model_dump_json()]}, schema=WRITTEN_SCHEMA)


def write_part(
    task: PartsTask, part: int, blocks: Iterable[Block]
) -> tuple[list[FileRecord], dict[int, int]]:
    """Write the rows of a part, a file for each generation; the files, and the rows of each."""
    found: dict[int, list[list[Rows]]] = {}
    for block in blocks:
        if block.kind == "count":
            continue
        _, table = decode_rows(task.spec, block)
        rows = rows_of(table, stamped=True)
        assert rows.kafka_ms is not None
        ended = task.generations.of(rows.key_hash, rows.kafka_ms)
        for epoch in np.unique(ended).tolist():
            inputs = found.setdefault(epoch, [[] for _ in task.spec.inputs])
            at = np.flatnonzero(ended == epoch)
            inputs[block.input].append(Rows(rows.key_hash[at], rows.table.take(pa.array(at))))
    attempt = uuid.uuid4().hex[:12]
    written = [
        write_spill(
            task.spill,
            cleanup_name(task.session, part, attempt, k),
            task.spec,
            task.session,
            epoch,
            inputs,
        )
        for k, (epoch, inputs) in enumerate(sorted(found.items()))
    ]
    counts = {
        epoch: sum(len(each.key_hash) for runs in inputs for each in runs)
        for epoch, inputs in found.items()
    }
    return [file for file in written if file is not None], counts
