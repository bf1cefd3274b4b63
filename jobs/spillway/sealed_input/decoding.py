"""Messages of a sealed session as decoded rows: what runs in Spark's Python workers, and in
processes without Spark. Imports neither Spark nor the tables: workers start fast."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spillway.decode import StreamPlan, decode
from spillway.decode.chunks import Chunk
from spillway.decode.lateness import judged as judged_in_time
from spillway.sealed_input.timing import Timing
from spillway.stream.messages import MessageSource
from spillway.worker_processes import keep_freed_memory
from spillway_schemas.journal import Offsets

TIMED = pa.schema([("time_us", pa.int64()), ("carried", pa.bool_())])
"""Columns of rows that have a time: that, and whether they are of an earlier session."""


def key_names(plan: StreamPlan) -> list[str]:
    """Names of the key columns in the frames."""
    return [f"k{i}" for i in range(len(plan.keys))]


def decoded_schema(plan: StreamPlan) -> pa.Schema:
    """Columns of decoded rows: `k0`, ..., `p0`, ..., `TIMED` where the plan has a time,
    `partition`, `offset`, `kept`."""
    payload = [f"p{i}" for i in range(len(plan.payload))]
    return pa.schema(
        [
            *(pa.field(n, f.type) for n, f in zip(key_names(plan), plan.keys, strict=True)),
            *(pa.field(n, f.type) for n, f in zip(payload, plan.payload, strict=True)),
            *(list(TIMED) if plan.time is not None else []),
            pa.field("partition", pa.int32()),
            pa.field("offset", pa.int64()),
            pa.field("kept", pa.bool_()),
        ]
    )


@dataclass(frozen=True)
class TopicRanges:
    """Where a session's input is: Kafka, and its ranges of offsets."""

    messages: MessageSource
    start: Offsets
    end: Offsets
    timing: Timing | None = None
    """Of a query with windows."""
    corrections: pa.Table | None = None
    """Rows that were added when the session was closed: `decode.chunks.COLUMNS`."""


def decoded(
    plan: StreamPlan,
    schema: pa.Schema,
    timing: Timing | None,
    chunks: Iterable[Chunk],
) -> Iterator[pa.RecordBatch]:
    """Messages to decoded rows with their coordinates.

    `schema`: `decoded_schema`. A rejected row has a coordinate only; those of an earlier session
    are passed over. `timing`: of a query with windows.
    """
    keep_freed_memory()
    for chunk in chunks:
        found = decode(plan, chunk.values, chunk.kafka_ms)
        times: list[pa.Array] = []
        added = chunk.partition < 0
        begins = 0 if timing is None or added else timing.begins[chunk.topic, chunk.partition]
        if found.times is not None:
            assert timing is not None, "a stream has a time where a window asks for it"
            if not added:
                watermark_us = timing.judgings[chunk.topic, chunk.partition].of(chunk.offsets)
                found = judged_in_time(plan, found, chunk.kafka_ms, watermark_us, timing.ahead_us)
            assert found.times is not None
            carried = chunk.offsets[found.kept] < begins
            times = [pa.array(found.times.kept_us), pa.array(carried)]
        if n := len(found.kept):
            place = [*times, *_place(chunk, found.kept)]
            yes = pa.repeat(pa.scalar(True), n)
            yield pa.RecordBatch.from_arrays([*found.rows.columns, *place, yes], schema=schema)
        rejected = found.rejected[chunk.offsets[found.rejected] >= begins]
        if n := len(rejected):
            nothing = [pa.nulls(n, field.type) for field in schema][:-3]
            place = _place(chunk, rejected)
            no = pa.repeat(pa.scalar(False), n)
            yield pa.RecordBatch.from_arrays([*nothing, *place, no], schema=schema)


def _place(chunk: Chunk, rows: npt.NDArray[np.int64]) -> list[pa.Array]:
    """Partition and offset of rows of a chunk."""
    partition = pa.repeat(pa.scalar(chunk.partition, pa.int32()), len(rows))
    return [partition, pa.array(chunk.offsets[rows], pa.int64())]
