"""Sums of weights by key, made where rows are read. Runs in Spark's Python workers; no Spark here.

What is read (messages, files of results, the quarantine) is summed by key at once, in pieces of
some ten thousand rows, and the sums go to the *bucket* that their key is of: one Arrow stream for
each piece and bucket, so Spark moves few and large rows. A bucket's task adds them up and
judges its keys (`workers.judged`).

Invariant: sums of residues are reduced modulo their prime in each piece, so no sum overflows.

Known limitation: a task holds the sums of its buckets' keys, in pieces that are added up whenever
they are `COLLAPSE_ROWS`; `buckets_for` makes as many as keep that small.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spillway.decode import StreamPlan
from spillway.storage import Folder
from spillway.verify.arithmetic import PRIMES
from spillway.verify.weights import I64, U64, Column, Weigher, mixed, words_of
from spillway.verify.workers import decoded, judged
from spillway_schemas.exits import FAILED

BLOCKS = pa.schema([("bucket", pa.int32()), ("sums", pa.binary())])
"""What goes between the tasks."""
PIECE_ROWS = 65_536
"""Rows that are summed at a time: sums of their residues are exact as doubles."""
COLLAPSE_ROWS = 2_000_000
ROWS_A_BUCKET = 2_000_000

_MEASURED = ("n", "late", "a", "b")
"""Of each key and source: rows, or results at run time; results by cleanup; sums of residues."""


class ResultsDamaged(Exception):
    """A file of the results is not what was written. The message names it."""

    exit_code = FAILED

    @classmethod
    def of(cls, where: str, why: Exception) -> ResultsDamaged:
        """With what was wrong with the file `where`."""
        said = " ".join(str(why).split())
        return cls(
            f"{where} is not what was written ({said}). Bring the file back from a backup of the "
            "warehouse, and verify again; the results can be made again, too, see the runbook, "
            "`Make a day again`"
        )

    @classmethod
    def told_by(cls, error: BaseException) -> ResultsDamaged | None:
        """The one that a task raised, in the text of the error of its job; None: it is another."""
        found = re.search(rf"{cls.__name__}: (.*)", str(error))
        return cls(found[1].strip()) if found else None


@dataclass(frozen=True)
class SumPlan:
    """What all tasks of a proof have in common. Picklable."""

    keys: pa.Schema
    """`k0`, `k1`, ...: the join's key."""
    inputs: int
    salt: int
    buckets: int
    places: tuple[int, ...]
    """For each bucket the number by which Spark finds its partition."""

    @property
    def schema(self) -> pa.Schema:
        """Of a piece's sums. `source`: the input's number, or `inputs` for results."""
        measured = [pa.field(name, pa.int64()) for name in _MEASURED]
        return pa.schema([*self.keys, pa.field("source", pa.int8()), *measured])


def buckets_for(rows: int, cores: int) -> int:
    """How many buckets so many rows ask for, of input and results together."""
    return max(2 * cores, -(-rows // ROWS_A_BUCKET))


# --- what is read --------------------------------------------------------------------------


def summed_input(
    plan: SumPlan, stream: StreamPlan, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Decoded rows of one input (the columns of `rows.decoded_schema`, without times) to sums.
    Rejected ones count as input 0 of the null key."""
    weigher = Weigher(plan.salt, stream.index, len(stream.payload))
    keys = len(stream.keys)
    for batch in batches:
        kept = batch.column("kept")
        rejected = pc.invert(kept)
        if pc.any(rejected).as_py():
            apart = batch.filter(rejected)
            topic = pa.repeat(stream.topic, apart.num_rows)
            yield _apart(plan, 0, topic, apart.column("partition"), apart.column("offset"))
            batch = batch.filter(kept)
        if n := batch.num_rows:
            columns = batch.columns
            payload = columns[keys : keys + len(stream.payload)]
            a, b = weigher.residues(batch.column("partition"), batch.column("offset"), payload)
            ones = np.ones(n, dtype=np.int64)
            yield from _blocks(plan, columns[:keys], stream.index, (ones, ones * 0, a, b))


def summed_results(
    plan: SumPlan, streams: Sequence[StreamPlan], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Rows of the results table (all columns of `result_names`) to sums."""
    weighers = [Weigher(plan.salt, each.index, len(each.payload)) for each in streams]
    for batch in batches:
        weights = [
            weigher.residues(
                batch.column(f"{of.name}_partition"),
                batch.column(f"{of.name}_offset"),
                [_typed(batch.column(f"{of.name}_{f.name}"), f.type) for f in of.payload],
            )
            for weigher, of in zip(weighers, streams, strict=True)
        ]
        a, b = (
            reduce(partial(_product, prime), of_prime)
            for prime, of_prime in zip(PRIMES, zip(*weights, strict=True), strict=True)
        )
        phase = batch.column("phase")
        by_cleanup = pc.fill_null(pc.equal(phase, "cleanup"), False)
        late = by_cleanup.to_numpy(zero_copy_only=False).astype(np.int64)
        keys = [batch.column(field.name) for field in streams[0].keys]
        yield from _blocks(plan, keys, plan.inputs, (1 - late, late, a, b))


def _product(prime: int, one: I64, other: I64) -> I64:
    return one * other % prime


def result_names(streams: Sequence[StreamPlan]) -> list[str]:
    """The columns of the results table that the proof reads."""
    names = [field.name for field in streams[0].keys]
    for each in streams:
        names += [f"{each.name}_partition", f"{each.name}_offset"]
        names += [f"{each.name}_{field.name}" for field in each.payload]
    return [*names, "phase"]


def decoded_sums(
    plan: SumPlan, stream: StreamPlan, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Kafka rows of one input to sums. `schema`: `rows.decoded_schema`."""
    return summed_input(plan, stream, decoded(stream, schema, None, batches))


def file_sums(
    plan: SumPlan,
    streams: Sequence[StreamPlan],
    folder: Folder,
    files: Sequence[Sequence[str]],
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Files of the results table to sums; see `read_files`."""
    return summed_results(plan, streams, read_files(folder, files, result_names(streams), batches))


def read_files(
    folder: Folder,
    files: Sequence[Sequence[str]],
    names: Sequence[str],
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Rows of files of a table. `batches`: in their one column which of the lists of files.

    Raises `ResultsDamaged`.
    """
    for path in [p for batch in batches for n in batch.column(0).to_pylist() for p in files[n]]:
        rows = _rows_of(folder, path, names)
        while True:
            try:
                piece = next(rows, None)
            except (OSError, pa.ArrowException, KeyError, ValueError) as error:
                if not is_damage(error):
                    raise
                raise ResultsDamaged.of(folder.path(path), error) from error
            if piece is None:
                break
            yield piece


def is_damage(error: Exception) -> bool:
    """Whether a file that gave this error is not what was written. What the system could not do
    (memory, permissions, open files) has a number, or a class of its own."""
    if isinstance(error, OSError):
        return error.errno is None or isinstance(error, FileNotFoundError)
    return not isinstance(error, pa.ArrowMemoryError)


def _rows_of(folder: Folder, path: str, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with folder.open(path) as source:
        yield from _pieces(source, names)


def _pieces(source: Any, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """A file's rows, texts as dictionaries: what repeats is hashed once."""
    schema = pq.read_schema(source)
    texts = [name for name in names if pa.types.is_string(schema.field(name).type)]
    file = pq.ParquetFile(source, page_checksum_verification=True, read_dictionary=texts)
    yield from file.iter_batches(PIECE_ROWS, columns=list(names), use_threads=False)


def summed_quarantine(plan: SumPlan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows of the quarantine (topic, partition, offset) to sums: they count as results of the null
    key."""
    for batch in batches:
        if batch.num_rows:
            yield _apart(plan, plan.inputs, *batch.columns)


# --- sums of a piece -----------------------------------------------------------------------


def _apart(
    plan: SumPlan, source: int, topic: Column, partition: Column, offset: Column
) -> pa.RecordBatch:
    """Rows of the null key: they go to the first bucket."""
    weigher = Weigher(plan.salt, plan.inputs, 1)
    a, b = weigher.residues(partition, offset, [topic])
    totals = [len(a), 0, int(a.sum()) % PRIMES[0], int(b.sum()) % PRIMES[1]]
    columns = [pa.nulls(1, field.type) for field in plan.keys]
    columns.append(pa.array([source], pa.int8()))
    columns += [pa.array([each]) for each in totals]
    return _block(plan, 0, pa.RecordBatch.from_arrays(columns, schema=plan.schema))


def _blocks(
    plan: SumPlan,
    keys: Sequence[Column],
    source: int,
    measured: tuple[I64, I64, I64, I64],
) -> Iterator[pa.RecordBatch]:
    """The sums of n rows by key, a block for each bucket. Measures are int64 (n,)."""
    for start in range(0, len(measured[0]), PIECE_ROWS):
        stop = start + PIECE_ROWS
        part = [key.slice(start, PIECE_ROWS) for key in keys]
        values = [each[start:stop] for each in measured]
        number, first = numbered(part)
        sums = [_added(number, each, len(first)) for each in values]
        sums[2] %= PRIMES[0]
        sums[3] %= PRIMES[1]
        at = pa.array(first)
        named = [_plain(key.take(at), f.type) for key, f in zip(part, plan.keys, strict=True)]
        bucket = buckets_of(named, plan.buckets)
        order = np.argsort(bucket, kind="stable")
        ends = np.searchsorted(bucket[order], np.arange(plan.buckets + 1))
        columns = [key.take(pa.array(order)) for key in named]
        columns.append(pa.repeat(pa.scalar(source, pa.int8()), len(first)))
        columns += [pa.array(each[order]) for each in sums]
        whole = pa.RecordBatch.from_arrays(columns, schema=plan.schema)
        for k in np.flatnonzero(np.diff(ends)).tolist():
            yield _block(plan, k, whole.slice(int(ends[k]), int(ends[k + 1] - ends[k])))


def numbered(keys: Sequence[Column]) -> tuple[I64, I64]:
    """A number for each row (n,), equal for equal keys, and of each number its first row (k,)."""
    if len(keys) == 1:
        number, width = _codes(keys[0])
        first = np.full(width, -1)
        first[number[::-1]] = np.arange(len(number))[
            ::-1
        ]  # the last to be written is the first row
        there = first >= 0
        if there.all():
            return number, first
        return (np.cumsum(there) - 1)[number], first[there]
    codes: I64 = np.zeros(len(keys[0]), dtype=np.int64)
    span = 1
    for key in keys:
        mine, width = _codes(key)
        if span * width >= 1 << 62:
            distinct, codes = np.unique(codes, return_inverse=True)
            span = len(distinct)
        codes, span = codes * width + mine, span * width
    _, first, number = np.unique(codes, return_index=True, return_inverse=True)
    return number, first


def _codes(key: Column) -> tuple[I64, int]:
    """The number of each value (n,) in a dictionary, and how many that has."""
    column = key.combine_chunks() if isinstance(key, pa.ChunkedArray) else key
    coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    width = len(coded.dictionary)
    if coded.null_count:  # no key is null; a result that has none is found by it
        return coded.indices.fill_null(width).to_numpy().astype(np.int64), width + 1
    return coded.indices.to_numpy().astype(np.int64), width


def _added(number: I64, values: I64, width: int) -> I64:
    """The sums by number, exact: each is below 2^31 x `PIECE_ROWS`."""
    found = np.bincount(number, weights=values, minlength=width)
    return found.astype(np.int64)


def _typed(column: Column, kind: pa.DataType) -> Column:
    """A column of the type that it has where messages are decoded: files may have been written
    anew."""
    held = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    return column if held == kind else _plain(column, kind)


def _plain(column: Column, kind: pa.DataType) -> pa.Array:
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_dictionary(whole.type):
        whole = whole.dictionary_decode()
    return whole.cast(kind)


def buckets_of(keys: Sequence[pa.Array], buckets: int) -> npt.NDArray[np.int64]:
    """The bucket of each key, int64 (n,)."""
    words: U64 = np.zeros(len(keys[0]), dtype=np.uint64)
    for key in keys:
        words = mixed(words + words_of(key, 0))
    return (words % np.uint64(buckets)).astype(np.int64)


def _block(plan: SumPlan, bucket: int, sums: pa.RecordBatch) -> pa.RecordBatch:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
    with pa.ipc.new_stream(sink, plan.schema, options=options) as writer:
        writer.write_batch(sums)
    columns = [pa.array([plan.places[bucket]], pa.int32())]
    columns.append(pa.array([sink.getvalue().to_pybytes()]))
    return pa.RecordBatch.from_arrays(columns, schema=BLOCKS)


# --- a bucket's sums -----------------------------------------------------------------------


def judged_sums(
    plan: SumPlan, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Blocks of some buckets to what `workers.judged` says of their keys."""
    held: list[pa.Table] = []
    rows = 0
    for batch in batches:
        for sums in batch.column(1):
            with pa.ipc.open_stream(sums.as_buffer()) as stream:
                held.append(stream.read_all())
            rows += held[-1].num_rows
            if rows > COLLAPSE_ROWS:
                held = [_summed(plan, held).to_arrow().cast(plan.schema)]
                # What cannot be added up any more must not be added up again and again.
                rows = held[0].num_rows // 2
    if held:
        whole = _summed(plan, held)
        yield from judged(plan.inputs, len(plan.keys), schema, [_by_key(plan, whole)])


def _summed(plan: SumPlan, parts: Sequence[pa.Table]) -> pl.DataFrame:
    """The sums of several pieces, added up."""
    by = [*plan.keys.names, "source"]
    sums = [pl.col(name).sum() for name in _MEASURED]
    return (
        pl.DataFrame(pl.from_arrow(pa.concat_tables(parts)))
        .group_by(by)
        .agg(sums)
        .with_columns(pl.col("a") % PRIMES[0], pl.col("b") % PRIMES[1])
    )


def _by_key(plan: SumPlan, sums: pl.DataFrame) -> pa.RecordBatch:
    """One row a key: `n<i>`, `a<i>`, `b<i>` of each input, then the results' `run_time`,
    `cleanup`, `a`, `b`."""
    columns = []
    for source in range(plan.inputs + 1):
        mine = pl.col("source") == source
        names = ("n", "a", "b") if source < plan.inputs else _MEASURED
        for name in names:
            value = pl.when(mine).then(pl.col(name)).otherwise(0).sum()
            columns.append(value.alias(f"{name}{source}"))
    found = sums.group_by(plan.keys.names).agg(columns).to_arrow()
    keys = [
        found[name].combine_chunks().cast(found_type)
        for name, found_type in zip(plan.keys.names, plan.keys.types, strict=True)
    ]
    values = [column.combine_chunks() for column in found.columns[len(keys) :]]
    return pa.RecordBatch.from_arrays([*keys, *values], names=found.column_names)
