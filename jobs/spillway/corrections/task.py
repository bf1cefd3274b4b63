"""What runs in Spark's workers, and the blocks that the driver sends to them.

A part of the hashes gets its rows as a slot gets those of an epoch (`spillway.engine.intake`): the
correction's as new ones, all others as rows that were there before. Its results are written under
fresh names, or only counted. Nothing counts before the driver commits it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from spillway.corrections.rows import decoded
from spillway.decode import StreamPlan
from spillway.engine.groups import U64, GroupMap
from spillway.engine.intake import PIECE_BYTES, take_in
from spillway.engine.join.batches import BATCH_BYTES
from spillway.engine.join.kernel import join_batches
from spillway.engine.join.results import complete, file_schema
from spillway.engine.join.tree import TreeSpec
from spillway.engine.wire.blocks import Block, Coordinates, decode_rows, from_batch, route
from spillway.engine.wire.datafile import write_data_files
from spillway.storage import Folder, StorageError
from spillway.stream.decoding import among
from spillway.stream.process import freeze
from spillway_schemas.filenames import correct_name
from spillway_schemas.journal import FileRecord, PartitionCount, Record

OWN_BYTES = 64 << 20
"""Of blocks that the driver sends in one batch: a column of bytes holds 2 GiB."""


@dataclass(frozen=True)
class AdditionTask:
    """What the parts of one revision need to know. Picklable."""

    spec: TreeSpec
    groups: GroupMap
    salts: tuple[int, ...]
    session: str
    epoch: int
    """The seal's: what the results carry."""
    revision: int
    results: Folder | None
    """None: the results are only counted."""
    committed_us: int
    batch_bytes: int = BATCH_BYTES


class PartAdded(Record):
    """What one part has written."""

    counts: list[PartitionCount]
    """Of what the decoders read, as far as their blocks came to this part."""
    files: list[FileRecord]
    results: int
    problem: tuple[int, str] | None = None
    """A storage error that a person can mend: its number and what to do."""


ADDED_SCHEMA = pa.schema([pa.field("added", pa.string())])


def row_blocks(
    spec: TreeSpec,
    plans: Sequence[StreamPlan],
    groups: GroupMap,
    session: str,
    rows: pa.Table,
    kind: str,
    only: U64 | None = None,
) -> list[Block]:
    """Rows of corrections (`rows.ROWS`) as blocks of a kind for their parts. `only`: ascending
    hashes; rows of others are left out."""
    keep = None if only is None else partial(among, wanted=only)
    blocks: list[Block] = []
    for chunk, plan, found in decoded(rows, plans):
        where = Coordinates(
            partition=np.full(len(found.kept), chunk.partition, dtype=np.int32),
            offset=chunk.offsets[found.kept],
            kafka_ms=chunk.kafka_ms[found.kept],
            time_us=None if found.times is None else found.times.kept_us,
        )
        blocks += route(
            spec, plan.index, groups, found.rows, where, session=session, kind=kind, keep=keep
        )
    return blocks


def batched(blocks: Iterable[Block], most_bytes: int = OWN_BYTES) -> Iterator[list[Block]]:
    """Blocks in lists of at most `most_bytes`, or of one that is larger."""
    held: list[Block] = []
    size = 0
    for block in blocks:
        own = len(memoryview(block.data))
        if held and size + own > most_bytes:
            yield held
            held, size = [], 0
        held.append(block)
        size += own
    if held:
        yield held


def hashes_of(spec: TreeSpec, blocks: Iterable[Block]) -> U64:
    """The hashes of blocks of rows, each once, ascending, uint64 (h,)."""
    found = [decode_rows(spec, block)[1].column(0).to_numpy() for block in blocks]
    return np.unique(np.concatenate([np.zeros(0, dtype=np.uint64), *found]))


def add_parts(task: AdditionTask, batches: Iterable[Any]) -> Iterator[Any]:
    """The blocks of one part to what it has added; nothing for a part without blocks."""
    freeze()
    blocks = [block for batch in batches for block in from_batch(batch)]
    if not blocks:
        return
    yield _told(add_part(task, task.salts.index(blocks[0].slot), blocks))


def add_part(task: AdditionTask, part: int, blocks: Iterable[Block]) -> PartAdded:
    """Join the rows of a part, and write what they add. Raises ValueError for another's rows."""
    own = [replace(block, slot=part) for block in blocks]
    intake = take_in(task.spec, task.groups, part, own, PIECE_BYTES)
    new = intake.new.get(task.session)
    if new is None:
        return PartAdded(counts=intake.restored, files=[], results=0)
    old = intake.installed.get(task.session, [[] for _ in task.spec.inputs])
    joined = join_batches(task.spec.root, old, new, batch_bytes=task.batch_bytes)
    return _added(task, (task.spec.results(batch.table) for batch in joined), intake.restored)


def add_results(task: AdditionTask, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write results of a tree of joins, in the columns that the table shows; what was added."""
    freeze()
    schema = task.spec.result_schema
    tables = (pa.Table.from_batches([batch]).cast(schema) for batch in batches)
    yield _told(_added(task, tables, []))


def _told(done: PartAdded) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"added": [done.model_dump_json()]}, schema=ADDED_SCHEMA)


def _added(
    task: AdditionTask, found: Iterable[pa.Table], counts: list[PartitionCount]
) -> PartAdded:
    """Write results, or count them; what was added. `counts`: of what was read for them."""
    results = 0

    def counted() -> Iterator[pa.Table]:
        nonlocal results
        for table in found:
            results += table.num_rows
            yield table

    try:
        files = _written(task, counted())
    except StorageError as problem:
        told = problem.errno or 0, str(problem)
        return PartAdded(counts=counts, files=[], results=0, problem=told)
    return PartAdded(counts=counts, files=files, results=results)


def _written(task: AdditionTask, found: Iterator[pa.Table]) -> list[FileRecord]:
    if task.results is None:
        for _ in found:
            pass
        return []
    return write_data_files(
        task.results,
        "results",
        partial(correct_name, task.session, task.revision, uuid.uuid4().hex[:12]),
        file_schema(task.spec),
        (
            complete(table, epoch=task.epoch, phase="correction", committed_us=task.committed_us)
            for table in found
        ),
        {"session_date": task.session},
    )
