"""Spill files: rows of one slot that left memory in one cut, ordered to be read by hash range.

Model: one file holds rows of all inputs of all joins, input after input, each sorted by
*unsigned* `key_hash`. A row is its coordinate and a struct of its keys and payload, in the column
of its input; the columns of the other inputs are null. The epoch of the cut is the row's
generation. A row group holds rows of one input and one sign of `key_hash`, so that the signed
least and greatest `key_hash` of its statistics, read as unsigned, bound it exactly.

Invariants:

* Writing takes memory for one piece (`PIECE_BYTES`) beside the given runs, or for the rows of
  one single hash where those are more.
* Reading verifies the file's size, and every page that it decodes by its checksum;
  `survey` verifies the SHA-256 of the whole file. What is wrong names the file (`SpillDamaged`).
* Readers use order and statistics to read less, never to be right: rows come back by their
  `key_hash`, `input` and `epoch` columns, however a file was ordered or put together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from spillway.engine.join.kernel import Rows
from spillway.engine.join.tree import TreeSpec
from spillway.engine.wire.datafile import FILE_BYTES, DataFileWriter
from spillway.engine.wire.footers import is_sound
from spillway.storage import Folder, StorageError
from spillway_schemas.journal import FileRecord

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

SPILL_COLUMNS = pa.schema(
    [
        pa.field("operator", pa.int32(), nullable=False),
        pa.field("input", pa.int32(), nullable=False),
        pa.field("key_hash", pa.int64(), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
    ]
)
"""What a spill file has of every row, whatever the query."""

ROW_GROUP_ROWS = 8192
ROW_GROUP_BYTES = 2 * 2**20
"""Small, so that reading a hash range reads little else."""

PIECE_BYTES = 8 * 2**20
"""How much of an input is merged and encoded at a time."""

READ_BYTES = 4 * 2**20
"""How much `survey` reads at a time."""


def row_column(spec: TreeSpec, input_: int) -> str:
    """The column that has the rows of an input. No column of every row has such a name."""
    return f"{spec.inputs[input_].name}_row"


def row_struct(spec: TreeSpec, input_: int) -> pa.DataType:
    """Keys and payload of an input; of one that is a join its coordinates and lineage, too. Rows of
    other inputs are null, so any part may be."""
    parts = list(spec.row_schema(input_))
    if not spec.inputs[input_].leaves:
        parts = parts[:-2]
    return pa.struct([field.with_nullable(True) for field in parts])


def spill_schema(spec: TreeSpec) -> pa.Schema:
    """Columns of a spill file; the table adds its partition column `session_date`."""
    inputs = range(len(spec.inputs))
    rows = [pa.field(row_column(spec, i), row_struct(spec, i)) for i in inputs]
    every = list(SPILL_COLUMNS)
    if len(spec.joins) > 1:  # what a join gave has a coordinate for each leaf, in its struct
        every[-2:] = [field.with_nullable(True) for field in every[-2:]]
    return pa.schema([*every, *rows])


class SpillDamaged(Exception):
    """A spill file that is missing or not what was written. Names the file."""

    def __init__(self, where: str, what: str) -> None:
        """Say which file (`where`) and what is wrong with it."""
        super().__init__(
            f"spill file {where}: {what}. It holds the only copy of these rows outside Kafka: "
            "bring the file back from a backup of the warehouse and start cleanup again"
        )
        self.where = where
        self.what = what

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel from a worker to the driver."""
        return (SpillDamaged, (self.where, self.what))


# --- write ----------------------------------------------------------------------------------


def write_spill(
    folder: Folder,
    name: str,
    spec: TreeSpec,
    session: str,
    epoch: int,
    inputs: Sequence[Sequence[Rows]],
) -> FileRecord | None:
    """Write the rows that a cut takes out of memory; None (and no file) when there are none.

    `folder` is the `spill` table's folder, `name` a fresh file name (the partition's folder is
    put before it). `inputs[i]` are sorted runs, or slices of runs, of input i in any number;
    they may overlap. Raises FileExistsError when the name is taken.
    """
    with DataFileWriter(
        folder,
        "spill",
        name,
        spill_schema(spec),
        {"session_date": session},
        row_group_bytes=ROW_GROUP_BYTES,
        row_group_rows=ROW_GROUP_ROWS,
    ) as writer:
        for input_, runs in enumerate(inputs):
            _write_runs(writer, spec, input_, epoch, runs)
    return writer.record


def write_generation(
    folder: Folder,
    name: Callable[[int], str],
    spec: TreeSpec,
    session: str,
    epoch: int,
    input_: int,
    batches: Iterable[Rows],
    *,
    file_bytes: int = FILE_BYTES,
) -> list[FileRecord]:
    """Write rows of one input that come in sorted batches, as the generation `epoch`, into as many
    files `name(k)` as `file_bytes` asks for. What is not finished when it fails goes away.
    """
    records: list[FileRecord] = []
    rest = iter(batches)
    more = True
    while more:
        more = False
        with DataFileWriter(
            folder,
            "spill",
            name(len(records)),
            spill_schema(spec),
            {"session_date": session},
            row_group_bytes=ROW_GROUP_BYTES,
            row_group_rows=ROW_GROUP_ROWS,
        ) as writer:
            for rows in rest:
                _write_runs(writer, spec, input_, epoch, [rows])
                if writer.bytes >= file_bytes:
                    more = True
                    break
        if writer.record is not None:
            records.append(writer.record)
    return records


def _write_runs(
    writer: DataFileWriter, spec: TreeSpec, input_: int, epoch: int, runs: Sequence[Rows]
) -> None:
    """Write sorted runs of one input, merged, in row groups of their own."""
    for piece in _merged(spec, input_, epoch, runs):
        hashes = piece["key_hash"].to_numpy()
        # Unsigned order: the non-negative ones come first.
        split = int(np.searchsorted(hashes < 0, True))
        writer.write(piece.slice(0, split))
        if split < len(hashes):
            if split:
                writer.end_row_group()
            writer.write(piece.slice(split))
    writer.end_row_group()


def _merged(spec: TreeSpec, input_: int, epoch: int, runs: Sequence[Rows]) -> Iterator[pa.Table]:
    """The runs' rows as tables of `spill_schema`, sorted by unsigned hash over all of them."""
    filled = [r for r in runs if len(r.key_hash)]
    rows = sum(len(r.key_hash) for r in filled)
    if not rows:
        return
    bytes_ = sum(r.table.nbytes for r in filled)
    piece_rows = max(1, min(rows, PIECE_BYTES * rows // max(1, bytes_)))
    bounds = quantiles([r.key_hash for r in filled], piece_rows)
    cuts = [np.searchsorted(r.key_hash, bounds) for r in filled]
    for k in range(len(bounds) + 1):
        hashes, tables = [], []
        for run, cut in zip(filled, cuts, strict=True):
            start = int(cut[k - 1]) if k else 0
            end = int(cut[k]) if k < len(bounds) else len(run.key_hash)
            if end > start:
                hashes.append(run.key_hash[start:end])
                tables.append(run.table.slice(start, end - start))
        if hashes:
            yield from _pieces(spec, input_, epoch, hashes, pa.concat_tables(tables), piece_rows)


def _pieces(
    spec: TreeSpec, input_: int, epoch: int, hashes: list[U64], table: pa.Table, piece_rows: int
) -> Iterator[pa.Table]:
    joined = np.concatenate(hashes)
    order = np.argsort(joined, kind="stable") if len(hashes) > 1 else None
    # More than a piece only when one hash alone has more rows.
    for start in range(0, len(joined), piece_rows):
        if order is None:
            part, ordered = table.slice(start, piece_rows), joined[start : start + piece_rows]
        else:
            picked = order[start : start + piece_rows]
            part, ordered = table.take(pa.array(picked)), joined[picked]
        n = len(ordered)
        schema = spill_schema(spec)
        rows: list[Any] = [pa.nulls(n, each.type) for each in list(schema)[len(SPILL_COLUMNS) :]]
        kept, where = part, [pa.nulls(n, each.type) for each in list(SPILL_COLUMNS)[-2:]]
        if not spec.inputs[input_].leaves:
            width = part.num_columns - 2
            kept, where = part.select(range(width)), part.columns[width:]
        rows[input_] = _as_struct(kept, rows[input_].type)
        yield pa.Table.from_arrays(
            [
                pa.repeat(pa.scalar(spec.operators[input_], pa.int32()), n),
                pa.repeat(pa.scalar(input_, pa.int32()), n),
                pa.array(ordered.view(np.int64)),
                pa.repeat(pa.scalar(epoch, pa.int64()), n),
                *where,
                *rows,
            ],
            schema=schema,
        )


def _as_struct(rows: pa.Table, kind: pa.DataType) -> pa.ChunkedArray:
    """The rows as one column of structs, in as many chunks as their text asks for."""
    chunks = [
        pa.StructArray.from_arrays(batch.columns, fields=list(kind))
        for batch in rows.combine_chunks().to_batches()
    ]
    return pa.chunked_array(chunks, kind)


def quantiles(runs: Sequence[U64], piece_rows: int) -> U64:
    """Hashes (ascending, distinct) that cut sorted runs into pieces of about `piece_rows` rows.

    Piece k holds hashes in [bound k-1, bound k). Only one hash's rows can make a piece much
    larger. Looks at every 16th part of a piece, not at every row.
    """
    stride = max(1, piece_rows // 16)
    samples = [run[::stride] for run in runs]
    weights = [np.diff(np.append(np.arange(0, len(run), stride), len(run))) for run in runs]
    values = np.concatenate(samples) if samples else np.empty(0, np.uint64)
    order = np.argsort(values, kind="stable")
    ends = np.cumsum(np.concatenate(weights)[order]) if len(values) else np.empty(0, np.int64)
    piece = (ends - 1) // piece_rows
    first = np.flatnonzero(np.diff(piece)) + 1
    bounds: U64 = np.unique(values[order][first])
    return bounds


# --- read -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class SpillFile:
    """A spill file as its table names it."""

    path: str
    """Relative to the table's folder."""
    bytes: int
    digest: str = ""
    """`sha256:<hex>` from the journal; empty when it is not known."""


MIXED = -1
"""A row group has rows of several operators, or of several inputs."""


@dataclass(frozen=True)
class RowGroups:
    """The row groups of several spill files, as arrays of one length. Picklable."""

    file: I64
    """Position of the file in a list that the owner keeps."""
    group: I64
    operator: I64
    """`MIXED` when a row group has several (no writer of ours does so)."""
    input: I64
    """`MIXED` when it has several."""
    lo: U64
    """Least unsigned hash."""
    hi: U64
    """Greatest unsigned hash (included)."""
    rows: I64
    bytes: I64
    """Uncompressed."""

    def __len__(self) -> int:
        """How many row groups."""
        return len(self.file)

    def pick(self, which: npt.NDArray[Any]) -> RowGroups:
        """Those at the given positions, or where a mask is true."""
        return RowGroups(**{f.name: getattr(self, f.name)[which] for f in fields(self)})

    def touching(self, lo: int, hi: int) -> RowGroups:
        """Those that may hold a hash in [lo, hi)."""
        return self.pick(self.touch(lo, hi))

    def touch(self, lo: int, hi: int) -> npt.NDArray[np.bool_]:
        """Which may hold a hash in [lo, hi)."""
        return (self.lo <= np.uint64(hi - 1)) & (self.hi >= np.uint64(lo))

    def bytes_within(self, lo: int, hi: int) -> float:
        """Estimated uncompressed bytes of the rows in [lo, hi): hashes are spread evenly."""
        own = self.touching(lo, hi)
        first, last = np.uint64(lo), np.uint64(hi - 1)
        # Differences first: as floats, hashes that lie side by side are equal.
        width = (own.hi - own.lo).astype(np.float64) + 1.0
        below = np.where(own.lo < first, first - own.lo, np.uint64(0)).astype(np.float64)
        above = np.where(own.hi > last, own.hi - last, np.uint64(0)).astype(np.float64)
        return float((own.bytes * ((width - below - above) / width)).sum())

    def bytes_across(self, border: int) -> int:
        """Uncompressed bytes of those that reach from below a hash to it, or beyond."""
        at = np.uint64(border)
        return int(self.bytes[(self.lo < at) & (self.hi >= at)].sum())

    @staticmethod
    def concat(parts: Sequence[RowGroups]) -> RowGroups:
        """All row groups of the parts; the file positions must already be of one list."""
        columns: dict[str, Any] = {}
        for field in fields(RowGroups):
            empty = np.empty(0, np.uint64 if field.name in ("lo", "hi") else np.int64)
            columns[field.name] = np.concatenate([empty, *(getattr(p, field.name) for p in parts)])
        return RowGroups(**columns)


_looked_at: dict[str, RowGroups] = {}
"""By path; a file is never replaced, and has the size that its table names."""
_LOOKED_AT_MOST = 256
"""Some KiB each."""


def survey(folder: Folder, file: SpillFile, position: int) -> RowGroups:
    """Read a whole file once: verify size and digest, and return its row groups.

    `position` becomes `RowGroups.file`. Raises `SpillDamaged`.
    """
    where = folder.path(file.path)
    _check_size(folder, file)
    if file.digest:
        digest = hashlib.sha256()
        with folder.open(file.path) as source:
            while data := source.read(READ_BYTES):
                digest.update(data)
        if f"sha256:{digest.hexdigest()}" != file.digest:
            raise SpillDamaged(where, f"its SHA-256 is not {file.digest}, which the journal names")
        return _row_groups(folder, file, position, _open(folder, file).metadata)
    return row_groups(folder, file, position)


def row_groups(folder: Folder, file: SpillFile, position: int) -> RowGroups:
    """A file's row groups, by its footer alone; as `survey`, but for the digest.

    A process looks at a footer once: groups of one file come back in several epochs.
    """
    _check_size(folder, file)
    where = folder.path(file.path)
    found = _looked_at.get(where)
    if found is None:
        metadata = _open(folder, file).metadata
        if not is_sound(metadata):
            raise SpillDamaged(where, "its footer contradicts itself")
        found = _row_groups(folder, file, 0, metadata)
        if len(_looked_at) >= _LOOKED_AT_MOST:
            _looked_at.clear()
        _looked_at[where] = found
    return replace(found, file=np.full(len(found), position, np.int64))


def _row_groups(folder: Folder, file: SpillFile, position: int, metadata: Any) -> RowGroups:
    names = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    if missing := set(SPILL_COLUMNS.names) - set(names):
        problem = f"it has no column {', '.join(sorted(missing))}"
        raise SpillDamaged(folder.path(file.path), problem)
    groups = [metadata.row_group(g) for g in range(metadata.num_row_groups)]
    bounds = [_hash_bounds(g.column(names.index("key_hash")).statistics) for g in groups]
    return RowGroups(
        file=np.full(len(groups), position, np.int64),
        group=np.arange(len(groups), dtype=np.int64),
        operator=_only(groups, names.index("operator")),
        input=_only(groups, names.index("input")),
        lo=np.array([lo for lo, _ in bounds], np.uint64),
        hi=np.array([hi for _, hi in bounds], np.uint64),
        rows=np.array([g.num_rows for g in groups], np.int64),
        bytes=np.array([g.total_byte_size for g in groups], np.int64),
    )


def _only(groups: Sequence[Any], column: int) -> I64:
    """Each row group's one value of a column of numbers; `MIXED` where there are several."""
    found = [group.column(column).statistics for group in groups]
    same = [s.min if s and s.has_min_max and s.min == s.max else MIXED for s in found]
    return np.array(same, np.int64)


def _hash_bounds(statistics: Any) -> tuple[int, int]:
    """Least and greatest *unsigned* hash that signed statistics allow."""
    if statistics is None or not statistics.has_min_max or statistics.min < 0 <= statistics.max:
        return 0, 2**64 - 1
    return statistics.min % 2**64, statistics.max % 2**64


def read_rows(
    folder: Folder,
    file: SpillFile,
    groups: Sequence[int],
    lo: int,
    hi: int,
    *,
    operator: int,
    columns: Sequence[str],
    opened: dict[str, Any] | None = None,
) -> Iterator[tuple[int, pa.Table]]:
    """Rows with unsigned `key_hash` in [lo, hi) of one operator: (row group, its rows) each.

    Tables without rows are left out. `columns` must hold `key_hash`. `opened`: the file that
    was asked for last, by its path. Raises `SpillDamaged`, also for a file
    without one of the columns.
    """
    opened = {} if opened is None else opened
    if file.path not in opened:
        while opened:  # one file is open at a time, however many there are
            opened.popitem()[1].close()
        _check_size(folder, file)
        opened[file.path] = _open(folder, file)
    source = opened[file.path]
    if missing := set(columns) - set(source.schema_arrow.names):
        lacking = ", ".join(sorted(missing))
        problem = f"it has no column {lacking}, which this query's files have"
        raise SpillDamaged(folder.path(file.path), problem)
    wanted = list(dict.fromkeys([*columns, "operator"]))
    for group in groups:
        try:
            table = source.read_row_group(group, columns=wanted, use_threads=False)
        except StorageError:
            raise
        except (OSError, pa.ArrowException, ValueError) as error:
            raise SpillDamaged(folder.path(file.path), f"it cannot be read: {error}") from error
        hashes = table["key_hash"].to_numpy().view(np.uint64)
        inside = (hashes >= np.uint64(lo)) & (hashes <= np.uint64(hi - 1))
        inside &= table["operator"].to_numpy() == operator
        table = table.select(list(columns))
        if inside.all():
            yield group, table
        elif inside.any():
            yield group, where(table, inside)


def where(table: pa.Table, inside: npt.NDArray[np.bool_]) -> pa.Table:
    """The rows where `inside` is true, of a row group; one at least."""
    first, last = int(np.argmax(inside)), len(inside) - int(np.argmax(inside[::-1]))
    if inside[first:last].all() and 2 * (last - first) >= len(inside):
        return table.slice(first, last - first)
    # A copy: a small slice would keep the whole row group in memory.
    return table.filter(pa.array(inside))


def _check_size(folder: Folder, file: SpillFile) -> None:
    size = folder.size(file.path)
    if size is None:
        raise SpillDamaged(folder.path(file.path), "it is missing, but the table names it")
    if size != file.bytes:
        raise SpillDamaged(
            folder.path(file.path), f"it has {size} bytes, but the table names {file.bytes}"
        )


def _open(folder: Folder, file: SpillFile) -> Any:
    try:
        return pq.ParquetFile(
            folder.open(file.path), page_checksum_verification=True, memory_map=False
        )
    except StorageError:
        raise
    except (OSError, pa.ArrowException, ValueError) as error:
        raise SpillDamaged(folder.path(file.path), f"it cannot be opened: {error}") from error
