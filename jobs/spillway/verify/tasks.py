"""What the processes of a proof of one join do: read a part of the input or of a table, and sum it.

No Spark here, and nothing that takes long to load: each process loads it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spillway.decode import StreamPlan
from spillway.decode.chunks import Chunk, chunks_of
from spillway.kafka.reading import TopicRange
from spillway.sealed_input.decoding import decoded, decoded_schema
from spillway.storage import Folder
from spillway.stream.messages import MessageSource, read_messages
from spillway.verify.sums import Counted, JudgedBucket, Spool, Summing, SumPlan, judged_bucket
from spillway.verify.weights import U64, Column
from spillway.worker_processes import keep_freed_memory
from spillway_schemas.exits import FAILED

PIECE_ROWS = 65_536
"""Rows of a file that are read at a time."""
QUARANTINE = ("topic", "partition", "offset")


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
        """The one that a task of Spark's raised, in the text of the error of its job; None: it is
        another."""
        found = re.search(rf"{cls.__name__}: (.*)", str(error))
        return cls(found[1].strip()) if found else None


@dataclass(frozen=True)
class ProofSource:
    """Where a session's input and tables are. Picklable."""

    messages: MessageSource
    results: Folder
    quarantine: Folder
    spool: Path
    """A folder that all processes of a proof share."""


@dataclass(frozen=True)
class ResultFiles:
    """Files of the results table, below its folder."""

    paths: tuple[str, ...]


@dataclass(frozen=True)
class QuarantineFiles:
    """Files of the quarantine table, below its folder."""

    paths: tuple[str, ...]


@dataclass(frozen=True)
class CorrectionRows:
    """Rows that corrections have added: `decode.chunks.COLUMNS`."""

    rows: pa.Table


InputPart = TopicRange | CorrectionRows
Part = InputPart | ResultFiles | QuarantineFiles
"""What one task reads."""


class ProofTasks:
    """The tasks of one process."""

    def __init__(self, plan: SumPlan, source: ProofSource) -> None:
        self._plan = plan
        self._source = source

    def summed(self, part: Part) -> Counted:
        """Read a part and spool its sums. Raises `ResultsDamaged`, KafkaUnavailable."""
        keep_freed_memory()
        spool = Spool(self._source.spool, self._plan.buckets)
        summing = Summing(self._plan, spool)
        if isinstance(part, InputPart):
            first: dict[str, StreamPlan] = {}
            for stream, batch in self._decoded(part):
                # What a topic rejects counts once, however many inputs read it.
                counts = first.setdefault(stream.topic, stream) is stream
                summing.add_input(stream, batch if counts else batch.filter(batch.column("kept")))
        elif isinstance(part, ResultFiles):
            try:
                for batch in self._results(part):
                    summing.add_results(batch)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                names = ", ".join(map(self._source.results.path, part.paths[:3]))
                raise ResultsDamaged.of(f"one of the files from {names} on", error) from error
        else:
            for batch in read_files(self._source.quarantine, part.paths, QUARANTINE):
                summing.add_quarantine(batch)
        spool.flush()
        return summing.counted

    def judged(self, bucket: int) -> JudgedBucket:
        """Judge the keys of a bucket, once all parts are summed."""
        return judged_bucket(self._plan, self._source.spool, bucket)

    def named(self, part: Part, hashes: U64) -> pa.Table:
        """The keys of a part that have one of these hashes (ascending), each once."""
        hash_of = Summing(self._plan, Spool(self._source.spool, 1))
        found = [self._plan.keys.empty_table()]
        for keys in self._keys(part, hash_of):
            mine = hash_of.hashes(keys)
            at = np.minimum(np.searchsorted(hashes, mine), len(hashes) - 1)
            rows = pa.array(np.flatnonzero(hashes[at] == mine))
            if len(rows):
                columns = [_plain(key.take(rows)) for key in keys]
                named = pa.Table.from_arrays(columns, schema=self._plan.keys)
                found.append(distinct(named))
        return distinct(pa.concat_tables(found))

    def _keys(self, part: Part, of: Summing) -> Iterator[list[Column]]:
        if isinstance(part, InputPart):
            for stream, batch in self._decoded(part):
                kept = batch.filter(batch.column("kept"))
                yield kept.columns[: len(stream.keys)]
        elif isinstance(part, ResultFiles):
            for batch in self._results(part):
                yield of.result_keys(batch)

    def _results(self, part: ResultFiles) -> Iterator[pa.RecordBatch]:
        return read_files(self._source.results, part.paths, self._plan.result_names)

    def _decoded(self, part: InputPart) -> Iterator[tuple[StreamPlan, pa.RecordBatch]]:
        """What each stream makes of the messages of its topic."""
        streams = [(each, decoded_schema(each)) for each in self._plan.streams]
        for chunk in self._chunks(part):
            for stream, schema in streams:
                if stream.topic == chunk.topic:
                    for batch in decoded(stream, schema, None, [chunk]):
                        yield stream, batch

    def _chunks(self, part: InputPart) -> Iterator[Chunk]:
        if isinstance(part, CorrectionRows):
            yield from chunks_of(part.rows)
        else:
            yield from read_messages(self._source.messages, [part])


def distinct(keys: pa.Table) -> pa.Table:
    """Each row once."""
    return keys.group_by(keys.column_names, use_threads=False).aggregate([])


def _plain(key: Column) -> pa.Array:
    whole = key.combine_chunks() if isinstance(key, pa.ChunkedArray) else key
    return whole.dictionary_decode() if pa.types.is_dictionary(whole.type) else whole


# --- files of tables -----------------------------------------------------------------------


@dataclass(frozen=True)
class TableFiles:
    """Files of a table, and its columns. Picklable."""

    place: Folder
    schema: pa.Schema
    paths: Sequence[str]
    """Below `place`."""

    @property
    def nullable(self) -> pa.Schema:
        """The columns as they are read."""
        return pa.schema([field.with_nullable(True) for field in self.schema])


def file_rows(
    files: TableFiles, parts: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Rows of a table's files, in one of Spark's Python workers. Raises `ResultsDamaged`.

    `batches`: in their one column which of so many parts of the files. Columns that came with a
    later query are null where a file does not have them.
    """
    none = files.nullable.empty_table()
    later = frozenset(field.name for field in files.schema if field.nullable)
    for part in [n for batch in batches for n in batch.column(0).to_pylist()]:
        for piece in read_files(files.place, files.paths[part::parts], none.column_names, later):
            mine = pa.schema([none.schema.field(name) for name in piece.schema.names])
            rows = pa.Table.from_batches([piece]).cast(mine)
            yield from pa.concat_tables([none, rows], promote_options="default").to_batches()


def read_files(
    folder: Folder,
    paths: Iterable[str],
    names: Sequence[str],
    later: frozenset[str] = frozenset(),
) -> Iterator[pa.RecordBatch]:
    """Rows of files of a table. `later`: columns that a file may lack, and then its rows, too.
    Raises `ResultsDamaged`."""
    for path in paths:
        rows = _rows_of(folder, path, names, later)
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


def _rows_of(
    folder: Folder, path: str, names: Sequence[str], later: frozenset[str]
) -> Iterator[pa.RecordBatch]:
    with folder.open(path) as source:
        yield from _pieces(source, names, later)


def _pieces(source: Any, names: Sequence[str], later: frozenset[str]) -> Iterator[pa.RecordBatch]:
    """A file's rows, texts as dictionaries: what repeats is hashed once."""
    schema = pq.read_schema(source)
    names = [name for name in names if name in schema.names or name not in later]
    texts = [name for name in names if pa.types.is_string(schema.field(name).type)]
    file = pq.ParquetFile(source, page_checksum_verification=True, read_dictionary=texts)
    yield from file.iter_batches(PIECE_ROWS, columns=list(names), use_threads=False)
