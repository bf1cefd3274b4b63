"""Removing files: many small ones become few, and files of days that are over are dropped.

Model: files of one partition have *levels* by size: level 0 up to `BASE_BYTES`, each next one
`FAN_IN` times larger. As soon as one level of one partition has `FAN_IN` files they become one
file of (about) the next level, oldest first. So every byte is rewritten at most once per level,
and a table of N commits keeps about FAN_IN x levels files (a journal of 10,000 entries: under
60), beside those that are as large as files get: of `DAY_BYTES`. These are left alone. That is
`plan`, for the stream, all day.

`deep_plan` is for the night, when a partition has no writer any more: what is smaller than half
of `TARGET_BYTES` becomes as few files as that size allows, whatever the levels. At most one such
file stays in a partition (more only where merging has made files smaller), so that rounds come to
an end.

Why not delta-rs's `optimize.compact`: two of them at once double every row (see `log`), and it
rewrites whatever is under its target size again on every call.

Invariants:

* Whatever removes files commits with the application transaction ("compaction", v + 1), where v
  is what the handle has *seen*, and removes only files that the same handle sees in the table.
  Whoever else removed files meanwhile makes the commit fail; then nothing changed, and what was
  written is an orphan. So no file is removed, and no row written again, twice.
* A compaction does not change the rows (`dataChange` false). Other transaction ids are kept, and
  appends at the same time pass.
* A drop changes the rows, so delta-rs refuses an append that has not seen it; whoever appends to a
  data table looks again and repeats (`Warehouse.apply`). A driver would take the refusal for
  another driver. So numbered tables drop nothing, and a cut of the journal, whose rows are in the
  archive, is committed as a compaction is.
* `spill` is never compacted: its files are sorted by `key_hash`, cleanup reads ranges of
  them, and they are large already.
* Rows of different sessions stay in different files, also in `statistics`, which has no
  partitions: what is dropped one day (see `retention`) is then whole files.

Memory: one row group of each of two files. `maintain` bounds the bytes that one call rewrites.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spillway.engine.wire.datafile import ROW_GROUP_BYTES, write_data_file
from spillway.tables.definitions import NUMBERED_NAMES
from spillway.tables.errors import TableConflict
from spillway.tables.log import ActiveFile, Table
from spillway.tables.rowgroups import lower, upper
from spillway_schemas.filenames import compact_name, origin
from spillway_schemas.journal import FileRecord

APP = "compaction"
COMPACTED = ("journal", "results", "quarantine", "statistics")
"""Tables that the stream compacts."""

DEEP = (*COMPACTED, "commands", "sessions")
"""Tables that the night compacts: the last two grow by a few rows a day."""

FAN_IN = 16
BASE_BYTES = 64 * 2**10
TARGET_BYTES = 128 * 2**20
DAY_BYTES = 8 * 2**20
"""What the stream rewrites of a table between two epochs, and the size of the files that it makes:
about 0.1 s. The night makes fewer of them. With `TARGET_BYTES` single epochs waited 1.4 s."""
TAIL_BYTES = 2 * 2**20
"""Of a row group of a numbered table: whoever reads on from a number reads the last ones alone."""


def level(size_bytes: int) -> int:
    """Return a file's level: 0 up to BASE_BYTES, one more for each factor of FAN_IN."""
    found, bound = 0, BASE_BYTES
    while size_bytes > bound:
        found, bound = found + 1, bound * FAN_IN
    return found


def plan(
    files: Sequence[ActiveFile], *, fan_in: int = FAN_IN, target_bytes: int = DAY_BYTES
) -> list[list[ActiveFile]]:
    """Return the groups of files that should each become one. Pure.

    A group is of one partition (and session) and one level, has `fan_in` files or more, oldest
    first, and takes as many as stay within `target_bytes`.
    """
    alike: dict[tuple[Any, ...], list[ActiveFile]] = {}
    for file in sorted(files, key=_age):
        if file.bytes < target_bytes:
            alike.setdefault((*_in_common(file), level(file.bytes)), []).append(file)
    full = [some for _, some in sorted(alike.items()) if len(some) >= fan_in]
    return [packed[0] for some in full if (packed := _packed(some, target_bytes))]


def deep_plan(
    files: Sequence[ActiveFile],
    over: Collection[str] | None,
    *,
    target_bytes: int = TARGET_BYTES,
) -> list[list[ActiveFile]]:
    """Return the groups of files that should each become one when nobody adds more. Pure.

    `over`: only files of these sessions; None: of a table whose rows have no session.
    """
    alike: dict[tuple[Any, ...], list[ActiveFile]] = {}
    for file in sorted(files, key=_age):
        done = over is None or (file.sessions is not None and set(file.sessions) <= set(over))
        if done and file.bytes < target_bytes // 2:
            alike.setdefault(_in_common(file), []).append(file)
    return [group for _, some in sorted(alike.items()) for group in _packed(some, target_bytes)]


def _in_common(file: ActiveFile) -> tuple[Any, ...]:
    """What files must have in common to become one."""
    return (tuple(sorted(file.partition.items())), file.sessions or ())


def _packed(files: Sequence[ActiveFile], target_bytes: int) -> list[list[ActiveFile]]:
    """The files in their order, as few groups as stay within the size; none of one file."""
    groups: list[list[ActiveFile]] = []
    size = 0
    for file in files:
        if not groups or size + file.bytes > target_bytes:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.bytes
    return [group for group in groups if len(group) > 1]


def compact(table: Table, *, most_bytes: int = DAY_BYTES, **rule: Any) -> int:
    """Carry out one round of the plan, as far as `most_bytes` reach; return files removed.

    Raises StorageError when the disk is full. A concurrent compaction makes it do nothing.
    """
    table.refresh()
    removed = 0
    for group in plan(table.files(), **rule):
        most_bytes -= sum(file.bytes for file in group)
        if removed and most_bytes < 0:
            break
        if merge(table, group) is None:  # nothing is lost, the next round sees
            break
        removed += len(group)
    return removed


def merge(table: Table, group: Sequence[ActiveFile]) -> FileRecord | None:
    """Make one file of several, in one commit; return it.

    None, and nothing has changed, when somebody else has removed files of the table meanwhile.
    Raises StorageError when the disk is full.
    """
    version = table.transaction(APP) + 1
    if not _sees(table, group):
        return None
    record = write_data_file(
        table.place,
        table.name,
        compact_name(version, uuid.uuid4().hex[:12], 0),
        table.seen_columns,
        _rows(table, group),
        dict(group[0].partition),
        row_group_bytes=TAIL_BYTES if table.name in NUMBERED_NAMES else ROW_GROUP_BYTES,
    )
    if record is None or record.rows != sum(file.rows for file in group):
        raise TableConflict(
            f"{table.name}: the files to compact hold {record.rows if record else 0} rows, the "
            f"log says {sum(f.rows for f in group)}. Nothing was changed; run `spillway doctor`"
        )
    table.sync_files([record])
    try:
        table.commit([record], APP, version, removes=group)
    except TableConflict:
        return None
    return record


def drop(table: Table, files: Sequence[ActiveFile]) -> bool:
    """Remove files and their rows from the table, in one commit.

    False, and nothing has changed, when somebody else has removed files of the table meanwhile.
    The files themselves stay until vacuum finds them old enough. Raises ValueError for a
    numbered table.
    """
    if table.name in NUMBERED_NAMES:
        raise ValueError(f"rows of {table.name} are numbered without gaps: none may be dropped")
    version = table.transaction(APP) + 1
    if not _sees(table, files):
        return False
    try:
        table.commit([], APP, version, removes=files, drops=True)
    except TableConflict:
        return False
    return True


def cut(table: Table, upto: int) -> bool:
    """Take the rows up to a number out of a numbered table, in one commit.

    What follows them in the same files is written again. The caller has the rows elsewhere, so
    that nothing is lost, and a driver's append at the same time passes. False, and nothing has
    changed, when somebody else has removed files of the table meanwhile. Raises StorageError when
    the disk is full.
    """
    version = table.transaction(APP) + 1
    going = [file for file in table.files() if lower(file) <= upto]
    if not going:
        return True
    shared = sorted((file for file in going if upper(file) > upto), key=_age)
    record = write_data_file(
        table.place,
        table.name,
        compact_name(version, uuid.uuid4().hex[:12], 0),
        table.definition.file_schema,
        (rows.filter(pc.field("n") > upto) for rows in _rows(table, shared)),
        row_group_bytes=TAIL_BYTES,
    )
    stays = [] if record is None else [record]
    gone = sum(file.rows for file in going) - sum(each.rows for each in stays)
    if gone != upto - min(map(lower, going)) + 1:
        raise TableConflict(
            f"{table.name}: {gone} rows up to number {upto} were to be taken out, which are not "
            "all. Nothing was changed; run `spillway doctor`"
        )
    table.sync_files(stays)
    try:
        table.commit(stays, APP, version, removes=going)
    except TableConflict:
        return False
    return True


def _sees(table: Table, files: Sequence[ActiveFile]) -> bool:
    """Whether all files are in the table as seen now: they may have been listed a while ago.

    A commit of several ends with a newer view; what others removed before it would conflict with
    nothing, and the rows of files that are gone would be written again.
    """
    return {file.path for file in files} <= {file.path for file in table.files()}


def _rows(table: Table, group: Sequence[ActiveFile]) -> Iterator[pa.Table]:
    """Rows of the files, file by file. Those of a numbered table are few: ordered by n."""
    schema = table.seen_columns
    for file in group:
        with table.place.open(file.path) as source:
            parquet = pq.ParquetFile(source, page_checksum_verification=True)
            for k in range(parquet.num_row_groups):
                yield _fitted(parquet.read_row_group(k, use_threads=False), schema)


def _fitted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows with all columns of a table: those of a query that has changed are null."""
    for name in set(schema.names) - set(rows.column_names):
        field = schema.field(name)
        rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
    return rows.select(schema.names).cast(schema)


def _age(file: ActiveFile) -> tuple[Any, ...]:
    """Order of age: the least number or epoch of the rows, else the epoch in the name."""
    if file.least is not None:
        return (0, file.least, file.path)
    made = origin(file.path)
    if made is None or made.writer != "epoch":
        return (1, 0, file.path)
    return (2, made.number, file.path)
