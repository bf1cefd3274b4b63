"""Decoding, the half of an epoch before the shuffle: messages in, blocks for slots out.

It imports no Spark and no deltalake (whose runtime does not survive the fork that makes a worker).
Everything that it knows comes in the pickled task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spillway.decode import Decoded, StreamPlan, decode, partition_digest, value_digest
from spillway.decode.chunks import Chunk
from spillway.decode.lateness import judged
from spillway.engine.groups import U64, Bool, GroupMap
from spillway.engine.join.tree import TreeSpec
from spillway.engine.spill.generations import DeferredGenerations
from spillway.engine.state.slices import are_over
from spillway.engine.wire.blocks import (
    CARRIED,
    READ,
    REJECTED_SCHEMA,
    RESTORED,
    Block,
    Coordinates,
    encode_counts,
    encode_rejected,
    route,
)
from spillway.protocol.offsets import offset_of
from spillway.protocol.recovery import Deferred, Replay, Restore, SessionRestore
from spillway.stream.pins import salted
from spillway.stream.process import freeze
from spillway_schemas.journal import EventTime, Offsets, PartitionCount
from spillway_schemas.windows import BEGINNING_US

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class DecodeTask:
    """What a decoder needs to know of the epoch."""

    spec: TreeSpec
    streams: tuple[StreamPlan, ...]
    groups: GroupMap
    salts: tuple[int, ...]
    session: str
    next_session: str
    bound: Offsets | None
    """The pending end of the open session: rows at or beyond it are the next session's."""
    restore: Restore | None = None
    """Set when the rows are read again for lost slots, or to be carried."""
    carries: bool = False
    """Rows are read again to be carried into the open session."""
    deferred: DeferredGenerations | None = None
    """Set when rows are read for a cleanup."""
    only: U64 | None = None
    """Ascending hashes: of a restore, rows of others are left out; None: all are wanted."""
    event_time: EventTime | None = None
    """None: the query has no window."""
    watermarks: Mapping[str, int] = field(default_factory=dict)
    """Per session the watermark of the epoch before, where there is one."""
    days_us: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Per session the times of its day, the end not included; a session without one is left out."""

    def slot_of_partition(self, partition: int) -> int:
        """The slot that is told of a topic partition's counts and rejected rows."""
        return partition % (int(self.groups.slots.max()) + 1)


def decode_chunks(task: DecodeTask, chunks: Iterable[Chunk]) -> Iterator[Any]:
    """Messages to batches of blocks."""
    freeze()
    by_topic: dict[str, list[StreamPlan]] = {}
    for stream in task.streams:
        by_topic.setdefault(stream.topic, []).append(stream)
    for chunk in chunks:
        slot = task.slot_of_partition(chunk.partition)
        blocks: list[Block] = []
        counts: list[PartitionCount] = []
        for stream in by_topic[chunk.topic]:
            count, decoded = _decode_chunk(task, stream, chunk, again=bool(counts))
            counts.append(count)
            blocks += decoded
        again = (CARRIED if task.carries else RESTORED) if task.restore is not None else READ
        root = task.spec.root.operator
        blocks.append(Block(slot, "count", root, again, encode_counts(counts[:1])))
        yield salted(task.salts, blocks)


def _decode_chunk(
    task: DecodeTask, stream: StreamPlan, chunk: Chunk, *, again: bool
) -> tuple[PartitionCount, list[Block]]:
    """`again`: another reading of the stream has told what is rejected, which is the same."""
    decoded = decode(stream, chunk.values, chunk.kafka_ms)
    bound = None if task.bound is None else task.bound[chunk.topic][chunk.partition]
    if stream.time is not None:
        decoded = _in_time(task, stream, chunk, decoded, bound)
    count = PartitionCount(
        topic=chunk.topic,
        partition=chunk.partition,
        rows=len(chunk.offsets),
        rejected=len(decoded.rejected),
        filtered=decoded.filtered,
        bytes=pc.sum(pc.binary_length(chunk.values)).as_py() or 0,
        digest=partition_digest(value_digest(chunk.values), chunk.offsets),
        **_greatest(decoded, chunk, bound),
        **_outside(task, decoded, chunk, bound),
    )
    where = Coordinates(
        partition=np.full(len(decoded.kept), chunk.partition, dtype=np.int32),
        offset=chunk.offsets[decoded.kept],
        kafka_ms=chunk.kafka_ms[decoded.kept],
        time_us=None if decoded.times is None else decoded.times.kept_us,
    )
    blocks: list[Block] = []
    if task.restore is not None:
        for restored in task.restore.sessions:
            if task.carries:
                blocks += _carried(task, stream, chunk, restored, decoded.rows, where)
                continue
            if restored.deferred is not None:
                blocks += _deferred(
                    task, stream, chunk, restored, restored.deferred, decoded.rows, where
                )
                continue
            blocks += _restored(task, stream, chunk, restored, decoded.rows, where)
            blocks += _replayed(task, stream, chunk, restored, decoded.rows, where)
        return count, blocks
    for session, mine in _by_session(task, bound, where.offset):
        rows, part = _only(decoded.rows, where, mine)
        blocks += route(task.spec, stream.index, task.groups, rows, part, session=session)
    if again:
        return count, blocks
    for session, mine in _by_session(task, bound, chunk.offsets[decoded.rejected]):
        positions = decoded.rejected if mine is None else decoded.rejected[mine]
        reasons = decoded.reasons
        if mine is not None:
            reasons = [reasons[i] for i in np.flatnonzero(mine)]
        if len(positions):
            data = _rejected(chunk, positions, reasons, session, stream)
            slot = task.slot_of_partition(chunk.partition)
            root = task.spec.root.operator
            blocks.append(Block(slot, "rejected", root, stream.index, data))
    return count, blocks


def _in_time(
    task: DecodeTask, stream: StreamPlan, chunk: Chunk, decoded: Decoded, bound: int | None
) -> Decoded:
    """The rows without those that are late or ahead, each judged as it was when it first came."""
    assert task.event_time is not None, "a stream has a time where a window asks for it"
    watermarks = np.full(len(chunk.offsets), BEGINNING_US)
    if task.restore is not None:
        for restored in task.restore.sessions:
            first, end = (
                offsets[chunk.topic][chunk.partition] for offsets in (restored.start, restored.end)
            )
            mine = (chunk.offsets >= first) & (chunk.offsets < end)
            judging = restored.judging(chunk.topic, chunk.partition)
            watermarks[mine] = judging.of(chunk.offsets[mine])
    else:
        for session, mask in _by_session(task, bound, chunk.offsets):
            watermark_us = task.watermarks.get(session, BEGINNING_US)
            watermarks[slice(None) if mask is None else mask] = watermark_us
    return judged(stream, decoded, chunk.kafka_ms, watermarks, task.event_time.ahead_us)


def _greatest(decoded: Decoded, chunk: Chunk, bound: int | None) -> dict[str, int | None]:
    """The greatest times of the open session's rows and of the next one's."""
    if decoded.times is None:
        return {}
    offsets = chunk.offsets[decoded.times.heard]
    at = len(offsets) if bound is None else int(np.searchsorted(offsets, bound))
    now, after = decoded.times.heard_us[:at], decoded.times.heard_us[at:]
    return {
        "greatest_us": int(now.max()) if len(now) else None,
        "next_greatest_us": int(after.max()) if len(after) else None,
    }


def _outside(task: DecodeTask, decoded: Decoded, chunk: Chunk, bound: int | None) -> dict[str, int]:
    """How many rows of the open session, and of the next one, happened outside its day."""
    if decoded.happened is None or task.restore is not None:
        return {}
    rows, times_us = decoded.happened
    at = len(rows) if bound is None else int(np.searchsorted(chunk.offsets[rows], bound))
    found = {}
    for name, session, mine in (
        ("outside", task.session, times_us[:at]),
        ("next_outside", task.next_session, times_us[at:]),
    ):
        if (day := task.days_us.get(session)) is not None:
            found[name] = int(np.count_nonzero((mine < day[0]) | (mine >= day[1])))
    return found


def _by_session(
    task: DecodeTask, bound: int | None, offsets: I64
) -> Iterator[tuple[str, Bool | None]]:
    """Each session with the mask of its rows; None: all of them."""
    if bound is None or not len(offsets) or int(offsets[-1]) < bound:
        yield task.session, None
    elif int(offsets[0]) >= bound:
        yield task.next_session, None
    else:
        yield task.session, offsets < bound
        yield task.next_session, offsets >= bound


def _only(rows: Any, where: Coordinates, mask: Bool | None) -> tuple[Any, Coordinates]:
    if mask is None:
        return rows, where
    return rows.filter(pa.array(mask)), where.only(mask)


def _rejected(
    chunk: Chunk, positions: I64, reasons: Sequence[str], session: str, stream: StreamPlan
) -> Any:
    values = chunk.values.take(pa.array(positions)).cast(pa.binary())
    columns = [
        pa.array([chunk.topic] * len(positions), pa.string()),
        pa.array(np.full(len(positions), chunk.partition, dtype=np.int32)),
        pa.array(chunk.offsets[positions]),
        pa.array(reasons, pa.string()),
        values,
        pa.array(chunk.kafka_ms[positions]),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=REJECTED_SCHEMA)
    return encode_rejected(batch, session=session, stream=stream.name)


def _restored(
    task: DecodeTask,
    stream: StreamPlan,
    chunk: Chunk,
    session: SessionRestore,
    rows: Any,
    where: Coordinates,
) -> list[Block]:
    """Blocks of the rows that were in memory of the lost slots at the end of b-1."""

    def keep(hashes: U64) -> Bool:
        held = were_held(task, session, chunk.topic, chunk.partition, where.offset, hashes)
        if where.time_us is not None:
            held &= ~are_over(task.spec, stream.index, where.time_us, session.expired_by_us)
        if task.only is not None:
            held &= among(hashes, task.only)
        return held & _late_enough(session, where)

    return route(
        task.spec,
        stream.index,
        task.groups,
        rows,
        where,
        session=session.session,
        kind="restore",
        keep=keep,
    )


def _carried(
    task: DecodeTask,
    stream: StreamPlan,
    chunk: Chunk,
    session: SessionRestore,
    rows: Any,
    where: Coordinates,
) -> list[Block]:
    """Blocks of the rows that a session takes over."""
    first, end = (each[chunk.topic][chunk.partition] for each in (session.start, session.end))
    mine = (where.offset >= first) & (where.offset < end) & _late_enough(session, where)
    some, part = _only(rows, where, mine)
    return route(
        task.spec,
        stream.index,
        task.groups,
        some,
        part,
        session=session.session,
        kind="carry",
    )


def _deferred(
    task: DecodeTask,
    stream: StreamPlan,
    chunk: Chunk,
    session: SessionRestore,
    deferred: Deferred,
    rows: Any,
    where: Coordinates,
) -> list[Block]:
    """Blocks of the rows of a session that were in memory of slots when those were lost."""
    first, end = (each[chunk.topic][chunk.partition] for each in (session.start, session.end))
    some, part = _only(rows, where, (where.offset >= first) & (where.offset < end))
    epochs = cut_epochs(deferred, chunk.topic, chunk.partition, part.offset)
    generations = task.deferred
    assert generations is not None, "whoever reads for a cleanup says which generations"

    def keep(hashes: U64) -> Bool:
        ended = generations.of(hashes, epochs)
        held: Bool = ended >= 0
        if part.time_us is not None:
            for epoch, watermark_us in deferred.expired_by_us:
                lost = held & (ended == epoch)
                held[lost] = ~are_over(task.spec, stream.index, part.time_us[lost], watermark_us)
        return held

    return route(
        task.spec,
        stream.index,
        task.groups,
        some,
        replace(part, kafka_ms=epochs),
        session=session.session,
        kind="deferred",
        keep=keep,
    )


def cut_epochs(deferred: Deferred, topic: str, partition: int, offsets: I64) -> I64:
    """Of rows of one topic partition, (n,), the first epoch of the session's with a cut by whose
    end each had come, int64 (n,); of those that came later, one after them all."""
    ends = np.array([offset_of(end, topic, partition) for _, end in deferred.marks], np.int64)
    epochs = np.array([epoch for epoch, _ in deferred.marks], np.int64)
    found: I64 = np.append(epochs, epochs[-1] + 1)[np.searchsorted(ends, offsets, side="right")]
    return found


def among(hashes: U64, wanted: U64) -> Bool:
    """Which hashes (n,) are among the wanted ones, which are ascending: bool (n,)."""
    if not len(wanted):
        return np.zeros(len(hashes), dtype=np.bool_)
    at = np.minimum(np.searchsorted(wanted, hashes), len(wanted) - 1)
    found: Bool = wanted[at] == hashes
    return found


def _late_enough(session: SessionRestore, where: Coordinates) -> Bool:
    """Which rows are not older than all that a session carries, bool (n,)."""
    if where.time_us is None:
        return np.ones(len(where.offset), dtype=np.bool_)
    late_enough: Bool = where.time_us >= session.least_us
    return late_enough


def _replayed(
    task: DecodeTask,
    stream: StreamPlan,
    chunk: Chunk,
    session: SessionRestore,
    rows: Any,
    where: Coordinates,
) -> list[Block]:
    """Blocks of a session's rows for a join that makes again what it gave, each with its interval
    (`spillway.engine.replay`)."""
    replay = session.replay
    if replay is None or task.spec.operators[stream.index] not in replay.joins:
        return []
    mine, intervals = made_again(session, replay, chunk.topic, chunk.partition, where.offset)
    mine &= _late_enough(session, where)
    some, part = _only(rows, replace(where, kafka_ms=intervals), mine)
    return route(
        task.spec,
        stream.index,
        task.groups,
        some,
        part,
        session=session.session,
        kind="replay",
    )


def made_again(
    session: SessionRestore, replay: Replay, topic: str, partition: int, offsets: I64
) -> tuple[Bool, I64]:
    """Which rows of one topic partition, all (n,), are of a session, and each one's interval."""
    ends = [offset_of(mark, topic, partition) for mark in replay.marks]
    intervals = np.searchsorted(np.array(ends, np.int64), offsets, side="right")
    if session.interval is not None:
        intervals = np.full(len(offsets), session.interval)
    first, end = session.start[topic][partition], session.end[topic][partition]
    return (offsets >= first) & (offsets < end), intervals.astype(np.int64)


def were_held(
    task: DecodeTask,
    session: SessionRestore,
    topic: str,
    partition: int,
    offsets: I64,
    hashes: U64,
) -> Bool:
    """Which rows of one topic partition, all (n,), lost slots held of a session: of their groups,
    of the session, and not before the last cut of their hash."""
    assert task.restore is not None
    of_slots: Bool = np.isin(task.groups.slot_of(hashes), sorted(task.restore.slots))
    since = since_offsets(session, topic, partition)(hashes)
    return of_slots & (offsets >= since) & (offsets < session.end[topic][partition])


def since_offsets(session: SessionRestore, topic: str, partition: int) -> Callable[[U64], I64]:
    """For hashes (n,): the offset from which their rows of one topic partition are in memory.

    Of the cuts that cover a hash the greatest offset holds, in whatever order they come.
    """
    edges = sorted({0, *(c.range.lo for c in session.cuts), *(c.range.hi for c in session.cuts)})
    edges = [edge for edge in edges if edge < 2**64]
    starts = np.array(edges, dtype=np.uint64)
    first = np.full(len(starts), session.start[topic][partition], dtype=np.int64)
    place = {edge: i for i, edge in enumerate(edges)}
    for cut in session.cuts:
        offset = offset_of(cut.start, topic, partition)
        a, b = place[cut.range.lo], place.get(cut.range.hi, len(edges))
        first[a:b] = np.maximum(first[a:b], offset)
    return lambda hashes: first[np.searchsorted(starts, hashes, side="right") - 1]
