"""Compaction: many small files become few, without a row being lost or doubled.

Model: files of one partition have *levels* by size: level 0 up to `BASE_BYTES`, each next one
`FAN_IN` times larger. As soon as one level of one partition has `FAN_IN` files they become one
file of (about) the next level, oldest first. So every byte is rewritten at most once per level,
and a table of N commits keeps about FAN_IN x levels files (a journal of 10,000 entries: under
60). A file of `TARGET_BYTES` or more is left alone.

Why not delta-rs's `optimize.compact`: two of them at once double every row (see `log`), and it
rewrites whatever is under its target size again on every call.

Invariants:

* A compaction commits with the application transaction ("compaction", v + 1), where v is what
  the handle has *seen*, and removes only files that the same handle has seen. Whoever else
  compacted meanwhile makes the commit fail; then this one's file is an orphan and nothing changed.
* The rows do not change (`dataChange` false), other transaction ids are kept, and appends at the
  same time pass.
* `spill` is never compacted: its files are sorted by `key_hash`, cleanup reads ranges of
  them, and they are large already.

Memory: one row group of each of two files. `maintain` bounds the bytes that one call rewrites.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from jobs.engine.datafile import write_data_file
from jobs.tables.errors import TableConflict
from jobs.tables.log import ActiveFile, Table
from jobs.tables.names import compact_name, origin

APP = "compaction"
COMPACTED = ("journal", "results", "quarantine", "statistics")
"""Tables that are compacted."""

FAN_IN = 16
BASE_BYTES = 64 * 2**10
TARGET_BYTES = 128 * 2**20


def level(size_bytes: int) -> int:
    """Return a file's level: 0 up to BASE_BYTES, one more for each factor of FAN_IN."""
    found, bound = 0, BASE_BYTES
    while size_bytes > bound:
        found, bound = found + 1, bound * FAN_IN
    return found


def plan(
    files: Sequence[ActiveFile], *, fan_in: int = FAN_IN, target_bytes: int = TARGET_BYTES
) -> list[list[ActiveFile]]:
    """Return the groups of files that should each become one. Pure.

    A group is of one partition and one level, has `fan_in` files or more, oldest first, and
    takes as many as stay within `target_bytes`.
    """
    shelves: dict[tuple[Any, int], list[ActiveFile]] = {}
    for file in sorted(files, key=_age):
        if file.bytes < target_bytes:
            key = (tuple(sorted(file.partition.items())), level(file.bytes))
            shelves.setdefault(key, []).append(file)
    groups = []
    for _, shelf in sorted(shelves.items()):
        if len(shelf) < fan_in:
            continue
        group: list[ActiveFile] = []
        for file in shelf:
            if group and sum(f.bytes for f in group) + file.bytes > target_bytes:
                break
            group.append(file)
        if len(group) > 1:
            groups.append(group)
    return groups


def compact(table: Table, *, most_bytes: int = TARGET_BYTES, **rule: Any) -> int:
    """Carry out one round of the plan, as far as `most_bytes` reach; return files removed.

    Raises StorageError when the disk is full. A concurrent compaction makes it do nothing.
    """
    table.refresh()
    groups = plan(table.files(), **rule)
    removed = 0
    for group in groups:
        most_bytes -= sum(file.bytes for file in group)
        if removed and most_bytes < 0:
            break
        version = table.transaction(APP) + 1
        record = write_data_file(
            table.place,
            table.name,
            compact_name(version, uuid.uuid4().hex[:12], 0),
            table.definition.file_schema,
            _rows(table, group),
            dict(group[0].partition),
        )
        if record is None or record.rows != sum(file.rows for file in group):
            raise TableConflict(
                f"{table.name}: the files to compact hold {record.rows if record else 0} rows, the "
                f"log says {sum(f.rows for f in group)}. Nothing was changed; run `spillway doctor`"
            )
        table.sync_files([record])
        try:
            table.commit([record], APP, version, removes=group)
        except TableConflict:  # somebody else compacts: nothing is lost, the next round sees
            return removed
        removed += len(group)
    return removed


def _rows(table: Table, group: Sequence[ActiveFile]) -> Iterator[pa.Table]:
    """Rows of the files, file by file. Those of a numbered table are few: ordered by n."""
    schema = table.definition.file_schema
    for file in group:
        with table.place.open(file.path) as source:
            parquet = pq.ParquetFile(source, page_checksum_verification=True)
            for k in range(parquet.num_row_groups):
                yield parquet.read_row_group(k, use_threads=False).cast(schema)


def _age(file: ActiveFile) -> tuple[Any, ...]:
    """Order of age: the least n of numbered tables, else the epoch in the name."""
    if file.least is not None:
        return (0, file.least, file.path)
    made = origin(file.path)
    if made is None or made.writer != "epoch":
        return (1, 0, file.path)
    return (2, made.number, file.path)
