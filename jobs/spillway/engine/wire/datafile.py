"""Data files: Parquet written once under a fresh name, described by a `FileRecord`.

Model: a `DataFileWriter` takes tables as they come, gathers them into row groups of bounded
bytes, and hashes the bytes while it writes them. Closing gives the `FileRecord` that a journal
entry, and then a table's commit, names: path, size, rows, SHA-256 and Delta's statistics.

Invariants:

* Memory is bounded by one row group (`row_group_bytes` of Arrow memory, or one given row that
  is larger), whatever the number of rows.
* A file that was not closed without an error does not exist: the folder takes it away.
* No file without rows: closing a writer that got none creates nothing and returns None.
* Statistics never exclude a row that matches. Least and greatest value come from Parquet's own
  statistics, so that the rows are looked at once. Timestamps keep their microseconds; a long
  string is cut for `minValues`, and cut *and rounded up* for `maxValues`; a column with a NaN
  or an infinity, or with values too long for Parquet's statistics, has no bounds at all.
* Every page has a CRC-32, which readers verify (`parquet.page.verify-checksum.enabled` in
  Spark, `page_checksum_verification=True` in pyarrow).

A column gets a dictionary when a sample of its first row group repeats itself; trying one on
columns of distinct values is what costs most otherwise.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spillway.storage import Folder
from spillway_schemas.filenames import data_path
from spillway_schemas.journal import FileRecord
from spillway_schemas.messages import YEARS_US

ROW_GROUP_BYTES = 16 * 2**20
"""Arrow bytes of one row group: what a writer may hold."""

FILE_BYTES = 256 * 2**20
"""`write_data_files` begins a new file once the last one has this many bytes."""

COMPRESSION: dict[str, Any] = {"compression": "snappy"}
"""500,000 results of 18 columns (68 MB), one core, with the dictionaries chosen as below:
snappy 0.20 s and 22 MB, lz4 0.21 s and 22 MB, zstd-1 0.25 s and 18 MB; with a dictionary tried
on every column 0.36, 0.34 and 0.39 s. Every reader of Parquet knows snappy."""

DICTIONARY_SAMPLE_ROWS = 1024
DICTIONARY_DISTINCT = 0.5
"""A dictionary is tried when a sample has at most this share of distinct values."""

STRING_BOUND_CHARS = 32
"""Longer strings are cut to this in statistics, as Delta's own writer does."""

BUFFER_BYTES = 1 << 18
"""A Parquet writer hands over page after page, in some 250 pieces a row group."""

_MAX_CODE_POINT = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)
_YEARS = tuple(np.datetime64(micros, "us") for micros in YEARS_US)


class DataFileWriter:
    """Streams tables of one schema into one new Parquet file. A context manager.

    ```
    with DataFileWriter(results, "results", name, schema, {"session_date": day}) as writer:
        for table in batches:
            writer.write(table)
    record = writer.record
    ```
    """

    record: FileRecord | None = None
    """What was written; None before the end, and for a writer that got no rows."""

    def __init__(
        self,
        folder: Folder,
        table: str,
        name: str,
        schema: pa.Schema,
        partition: Mapping[str, str] | None = None,
        *,
        row_group_bytes: int = ROW_GROUP_BYTES,
        row_group_rows: int = 2**20,
    ) -> None:
        """Prepare to write `name` below the partition's folder of `folder` (a table's folder).

        `schema` is the file's schema, without partition columns. No file is created before the
        first row.
        """
        self.schema = schema
        self.table = table
        self.partition = dict(partition or {})
        self.path = data_path(name, self.partition)
        self.rows = 0
        self._folder = folder
        self._row_group_bytes = row_group_bytes
        self._row_group_rows = row_group_rows
        self._held: list[pa.Table] = []
        self._held_bytes = 0
        self._held_rows = 0
        self._creation: AbstractContextManager[Any] | None = None
        self._sink: _HashingSink | None = None
        self._buffer: Any = None
        self._writer: Any = None
        self._metadata: list[Any] = []
        self._unbounded: set[str] = set()

    @property
    def bytes(self) -> int:
        """Bytes in the file so far (what is still held is not counted)."""
        return int(self._buffer.tell()) if self._buffer is not None else 0

    def write(self, table: pa.Table | pa.RecordBatch) -> None:
        """Append rows, in order. The columns must be those of the schema."""
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        if not table.schema.equals(self.schema):
            raise ValueError(
                f"{self.table}: the rows' columns are not the file's:\n{table.schema}\n"
                f"instead of\n{self.schema}"
            )
        # No piece takes much more than a row group.
        parts = -(-table.nbytes // self._row_group_bytes)
        step = max(1, -(-table.num_rows // max(1, parts)))
        start = 0
        while start < table.num_rows:
            piece = table.slice(start, min(step, self._row_group_rows - self._held_rows))
            start += piece.num_rows
            self._held.append(piece)
            self._held_bytes += piece.nbytes
            self._held_rows += piece.num_rows
            if self._held_bytes >= self._row_group_bytes or self._held_rows >= self._row_group_rows:
                self.end_row_group()

    def end_row_group(self) -> None:
        """Write what is held, so that the next row begins a row group."""
        if not self._held_rows:
            return
        table = pa.concat_tables(self._held)
        self._held, self._held_bytes, self._held_rows = [], 0, 0
        for field, column in zip(table.schema, table.columns, strict=True):
            # Parquet's statistics pass over NaN; a bound that does would exclude it.
            if pa.types.is_floating(field.type) and pc.any(pc.is_nan(column)).as_py():
                self._unbounded.add(field.name)
        if self._writer is None:
            self._open(repeating_columns(table))
        self._writer.write_table(table, row_group_size=table.num_rows)
        self.rows += table.num_rows

    def __enter__(self) -> DataFileWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Finish the file, or take it away when the block (or finishing) failed."""
        if kind is None:
            try:
                self._finish()
            except BaseException as failed:
                self._leave(type(failed), failed, failed.__traceback__)
                raise
        self._leave(kind, error, trace)
        if kind is None and self._sink is not None:
            self.record = FileRecord(
                table=self.table,
                path=self.path,
                bytes=self._sink.size,
                rows=self.rows,
                digest=f"sha256:{self._sink.digest.hexdigest()}",
                partition=self.partition,
                stats=self._stats(),
            )

    def _open(self, dictionaries: list[str]) -> None:
        self._creation = self._folder.create(self.path)
        self._sink = _HashingSink(self._creation.__enter__())
        self._buffer = pa.BufferedOutputStream(pa.PythonFile(self._sink, mode="w"), BUFFER_BYTES)
        self._writer = pq.ParquetWriter(
            self._buffer,
            self.schema,
            **COMPRESSION,
            use_dictionary=dictionaries or False,
            write_page_checksum=True,
            # The table's schema says what the types are; a copy in each file costs a kilobyte.
            store_schema=False,
            metadata_collector=self._metadata,
        )

    def _finish(self) -> None:
        self.end_row_group()
        if self._writer is not None:
            self._writer.close()
            self._buffer.flush()

    def _leave(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._creation is None or self._sink is None:
            return
        if kind is not None and self._writer is not None:
            # Otherwise the garbage collector would finish it, into a closed file. What a half
            # written file says about being closed is beside the error that is on its way.
            self._sink.discards = True
            with suppress(Exception):
                self._writer.close()
            self._writer.is_open = False
        self._creation.__exit__(kind, error, trace)

    def _stats(self) -> str:
        return file_statistics(self._metadata[0], self.schema, self._unbounded)


def write_data_file(
    folder: Folder,
    table: str,
    name: str,
    schema: pa.Schema,
    tables: Iterable[pa.Table],
    partition: Mapping[str, str] | None = None,
    *,
    row_group_bytes: int = ROW_GROUP_BYTES,
) -> FileRecord | None:
    """Write all rows into one new file `name`; None (and no file) when there are none.

    Raises FileExistsError when the name is taken and ValueError for rows of another schema.
    """
    with DataFileWriter(
        folder, table, name, schema, partition, row_group_bytes=row_group_bytes
    ) as writer:
        for part in tables:
            writer.write(part)
    return writer.record


def write_data_files(
    folder: Folder,
    table: str,
    name: Callable[[int], str],
    schema: pa.Schema,
    tables: Iterable[pa.Table],
    partition: Mapping[str, str] | None = None,
    *,
    row_group_bytes: int = ROW_GROUP_BYTES,
    file_bytes: int = FILE_BYTES,
) -> list[FileRecord]:
    """Write all rows into as many files `name(k)` as `file_bytes` asks for.

    When it fails, the files that were finished stay (nothing names them).
    """
    records: list[FileRecord] = []
    rest = iter(tables)
    more = True
    while more:
        more = False
        fresh = name(len(records))
        with DataFileWriter(
            folder, table, fresh, schema, partition, row_group_bytes=row_group_bytes
        ) as writer:
            for part in rest:
                writer.write(part)
                if writer.bytes >= file_bytes:
                    more = True
                    break
        if writer.record is not None:
            records.append(writer.record)
    return records


def repeating_columns(table: pa.Table) -> list[str]:
    """Names of the columns whose values repeat in a sample of the table's rows.

    Of a struct, of its parts: `struct.part`.
    """
    rows = table.num_rows
    picked = np.unique(np.linspace(0, rows - 1, min(rows, DICTIONARY_SAMPLE_ROWS)).astype("i8"))
    batches, begin, taken = table.to_batches(), 0, []
    for batch in batches:  # of a table of several chunks `take` would first copy whole columns
        first, last = np.searchsorted(picked, [begin, begin + batch.num_rows])
        taken.append(batch.take(pa.array(picked[first:last] - begin)))
        begin += batch.num_rows
    sample = pa.Table.from_batches(taken).flatten()
    return [
        name
        for name, column in zip(sample.schema.names, sample.columns, strict=True)
        if not pa.types.is_nested(column.type)
        and column.null_count < len(picked)
        and pc.count_distinct(column, mode="all").as_py() <= DICTIONARY_DISTINCT * len(picked)
    ]


def file_statistics(metadata: Any, schema: pa.Schema, unbounded: Iterable[str] = ()) -> str:
    """Delta's statistics of one file as JSON, from its Parquet metadata.

    `unbounded` names columns that get no bounds whatever Parquet says.
    """
    groups = [metadata.row_group(g) for g in range(metadata.num_row_groups)]
    least: dict[str, str] = {}
    greatest: dict[str, str] = {}
    nulls: dict[str, str] = {}
    without = set(unbounded)
    # Leaf columns are schema columns only while nothing is nested: go by name.
    position = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
    for field in schema:
        if field.name not in position:
            continue
        stats = [g.column(position[field.name]).statistics for g in groups]
        if any(s is None or not s.has_null_count for s in stats):
            continue
        nulls[field.name] = str(sum(s.null_count for s in stats))
        filled = [s for s in stats if s.num_values]
        if field.name in without or not filled or not all(s.has_min_max for s in filled):
            continue
        low = _bound(field.type, min(_value(field.type, s, "min") for s in filled), up=False)
        high = _bound(field.type, max(_value(field.type, s, "max") for s in filled), up=True)
        if low is not None and high is not None:
            least[field.name], greatest[field.name] = low, high
    return (
        f'{{"numRecords":{metadata.num_rows},"minValues":{_object(least)},'
        f'"maxValues":{_object(greatest)},"nullCount":{_object(nulls)}}}'
    )


def _object(members: Mapping[str, str]) -> str:
    """A JSON object of values that are JSON already (so that a decimal stays exact)."""
    return "{" + ",".join(f"{json.dumps(k)}:{v}" for k, v in members.items()) + "}"


def _value(kind: pa.DataType, statistics: Any, which: str) -> Any:
    # As integers: years that Python's datetime does not know must not raise here.
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        return getattr(statistics, f"{which}_raw")
    return getattr(statistics, which)


def _bound(kind: pa.DataType, value: Any, *, up: bool) -> str | None:
    """A least (or, `up`, greatest) value as JSON; None when there is no honest one."""
    if pa.types.is_integer(kind):
        return str(value)
    if pa.types.is_floating(kind):
        return repr(float(value)) if np.isfinite(value) else None
    if pa.types.is_decimal(kind):
        return format(value, "f")
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        text = string_above(value) if up else value[:STRING_BOUND_CHARS]
        return None if text is None else json.dumps(text)
    if pa.types.is_date32(kind):
        day = np.int64(value).astype("datetime64[D]")
        return json.dumps(str(day)) if _YEARS[0] <= day <= _YEARS[1] else None
    if pa.types.is_timestamp(kind):
        return _timestamp(kind, value)
    return None


def _timestamp(kind: pa.DataType, value: int) -> str | None:
    """RFC 3339 with microseconds: exact, so that neither bound has to be rounded.

    Spark and delta-rs both parse it; Spark adds a millisecond to the greatest one itself.
    """
    # Parquet has no seconds: they were written as milliseconds.
    unit = "ms" if kind.unit == "s" else kind.unit
    if unit == "ns":  # finer than Delta's timestamps: such a column has no bounds
        return None
    moment = np.int64(value).astype(f"datetime64[{unit}]")
    if not _YEARS[0] <= moment <= _YEARS[1]:
        return None
    return json.dumps(str(moment.astype("datetime64[us]")) + ("Z" if kind.tz else ""))


def string_above(text: str, chars: int = STRING_BOUND_CHARS) -> str | None:
    """The text itself, or when it is too long a short one that sorts after it (by code point).

    None when there is none of that length.
    """
    if len(text) <= chars:
        return text
    for end in range(chars, 0, -1):
        after = ord(text[end - 1]) + 1
        if _SURROGATES[0] <= after <= _SURROGATES[1]:
            after = _SURROGATES[1] + 1
        if after <= _MAX_CODE_POINT:
            return text[: end - 1] + chr(after)
    return None


class _HashingSink:
    """A file object that hashes and counts what passes through."""

    closed = False

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self.digest = hashlib.sha256()
        self.size = 0
        self.discards = False
        """After a failure: the file goes away, what its writer still holds with it."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if not self.discards:
            self.digest.update(data)
            self.size += len(data)
            self._sink.write(data)
        return len(data)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        if not self.discards:
            self._sink.flush()

    def close(self) -> None:
        """The folder's own context manager closes the file."""
