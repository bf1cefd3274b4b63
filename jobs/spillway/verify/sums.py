"""Sums of weights by key: made where rows are read, kept in files, added up and judged in parts.

What is read (messages, files of results) becomes a hash of its key and the residues of its weight:
20 bytes a row, whatever the key and the payload are. A `Spool` collects them, and appends them to
the file of the *bucket* that the hash is of. A bucket is then judged by itself: its hashes are
numbered, the residues summed by number, and the sums compared.

Keys are told apart by 64 bits, salted afresh for each run. Two keys with one hash are judged as
one: their test then fails, though nothing is wrong, and joining the two finds no difference.

Invariant: sums of residues are below 2^53 before they are reduced, so no sum is rounded.

Known limitation: a task holds the rows of one bucket; `buckets_for` makes as many as keep that
small, unless few keys have most of the results. Those are added up before they are written
(`_collapsed`).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spillway.decode import StreamPlan
from spillway.verify.arithmetic import PRIMES, exact_sum, judge, with_absent
from spillway.verify.verdicts import FEW_KEYS
from spillway.verify.weights import I64, U64, Column, RowHash, Weigher
from spillway_schemas.exits import FAILED

U32 = npt.NDArray[np.uint32]

ROWS_A_BUCKET = 2_000_000
SPOOLED_ROWS = 1 << 19
"""So many rows of one source are written together."""
EXACT_ROWS = 1 << 22
"""So many residues add up below 2^53, where doubles are exact."""
CELLS_BITS = 16
CROWDED = 4
"""Rows whose hashes fall into 2^16 cells are added up before they are written where a cell has four
times as many as there are on average: a key of theirs has many."""


class SpooledRows(NamedTuple):
    """Rows of one source, n of them or sums of several; (n,) each."""

    keys: U64
    """Hashes."""
    rows: U32
    """How many each stands for."""
    a: U32
    b: U32
    """Residues by each prime."""


_BLOCK = struct.Struct("<qq")
"""Before each block of a file: its source and its number of rows."""
_KEYS_HASH = 1 << 20
"""What a key's hash is of, beside the numbers of inputs."""


@dataclass(frozen=True)
class SumPlan:
    """What all tasks of a proof have in common. Picklable."""

    streams: tuple[StreamPlan, ...]
    salt: int
    buckets: int
    optional: tuple[str, ...] = ()
    """Streams whose rows a result may lack."""

    @property
    def keys(self) -> pa.Schema:
        """`k0`, `k1`, ...: the join's key."""
        return pa.schema(
            [pa.field(f"k{n}", each.type) for n, each in enumerate(self.streams[0].keys)]
        )

    @property
    def result_names(self) -> list[str]:
        """The columns of the results table that the proof reads."""
        names = [each.name for each in self.streams[0].keys]
        for stream in self.streams:
            names += [f"{stream.name}_partition", f"{stream.name}_offset"]
            names += [f"{stream.name}_{each.name}" for each in stream.payload]
        return [*names, "phase"]


def buckets_for(rows: int, processes: int) -> int:
    """How many buckets so many rows ask for, of input and results together."""
    return max(2 * processes, -(-rows // ROWS_A_BUCKET))


@dataclass
class RowsApart:
    """Rows that are no rows of a join, told apart by their coordinates."""

    rows: int = 0
    a: int = 0
    b: int = 0
    """Sums of their residues."""

    def add(self, a: I64, b: I64) -> None:
        """Count more of them. int64 (n,) both."""
        self.rows += len(a)
        self.a = (self.a + int(a.sum())) % PRIMES[0]
        self.b = (self.b + int(b.sum())) % PRIMES[1]

    def plus(self, other: RowsApart) -> RowsApart:
        """Both together."""
        a, b = (self.a + other.a) % PRIMES[0], (self.b + other.b) % PRIMES[1]
        return RowsApart(self.rows + other.rows, a, b)


@dataclass
class Counted:
    """What a task counted, beside what it spooled."""

    run_time: int = 0
    cleanup: int = 0
    rejected: RowsApart = field(default_factory=RowsApart)
    """Messages that were rejected when they were decoded."""
    quarantined: RowsApart = field(default_factory=RowsApart)

    def plus(self, other: Counted) -> Counted:
        """Both together."""
        return Counted(
            self.run_time + other.run_time,
            self.cleanup + other.cleanup,
            self.rejected.plus(other.rejected),
            self.quarantined.plus(other.quarantined),
        )


# --- what is read --------------------------------------------------------------------------


class Summing:
    """Turns what is read into what is spooled."""

    def __init__(self, plan: SumPlan, spool: Spool) -> None:
        self._plan = plan
        self._spool = spool
        self._key_hash = RowHash(plan.salt, _KEYS_HASH, len(plan.keys))
        self._weighers = _weighers(plan)
        self._placing = Weigher(plan.salt, len(plan.streams), 1)
        self.counted = Counted()

    def add_input(self, stream: StreamPlan, batch: pa.RecordBatch) -> None:
        """Decoded rows of one input (`sealed_input.decoding.decoded_schema`, without times)."""
        kept = batch.column("kept")
        rejected = pc.invert(kept)
        if pc.any(rejected).as_py():
            apart = batch.filter(rejected)
            topic = pa.repeat(stream.topic, apart.num_rows)
            self.counted.rejected.add(
                *self._placing.residues(apart["partition"], apart["offset"], [topic])
            )
            batch = batch.filter(kept)
        if not batch.num_rows:
            return
        keys = len(stream.keys)
        columns = batch.columns
        payload = columns[keys : keys + len(stream.payload)]
        at = self._plan.streams.index(stream)
        a, b = self._weighers[at].residues(batch["partition"], batch["offset"], payload)
        self._spool.add(at, self.hashes(columns[:keys]), a, b)

    def add_results(self, batch: pa.RecordBatch) -> None:
        """Rows of the results table, the columns of `SumPlan.result_names`."""
        streams = self._plan.streams
        weights = [
            weigher.residues(
                _typed(batch[f"{of.name}_partition"], pa.int32()),
                _typed(batch[f"{of.name}_offset"], pa.int64()),
                [_typed(batch[f"{of.name}_{f.name}"], f.type) for f in of.payload],
            )
            for weigher, of in zip(self._weighers, streams, strict=True)
        ]
        a, b = (
            reduce(partial(_product, prime), of_prime)
            for prime, of_prime in zip(PRIMES, zip(*weights, strict=True), strict=True)
        )
        phase = _typed(batch["phase"], pa.string())
        late = pc.sum(pc.fill_null(pc.not_equal(phase, "run-time"), False)).as_py() or 0
        self.counted.cleanup += late
        self.counted.run_time += batch.num_rows - late
        self._spool.add(len(streams), self.hashes(self.result_keys(batch)), a, b)

    def add_quarantine(self, batch: pa.RecordBatch) -> None:
        """Rows of the quarantine: `topic`, `partition`, `offset`."""
        where = batch["partition"], batch["offset"], [batch["topic"]]
        self.counted.quarantined.add(*self._placing.residues(*where))

    def result_keys(self, batch: pa.RecordBatch) -> list[Column]:
        """A result's key as it is decoded from messages."""
        fields = self._plan.streams[0].keys
        return [_typed(batch[each.name], each.type) for each in fields]

    def hashes(self, keys: Sequence[Column]) -> U64:
        """Of n keys, uint64 (n,)."""
        return self._key_hash.words(keys)


def _weighers(plan: SumPlan) -> list[Weigher]:
    return [Weigher(plan.salt, each.index, len(each.payload)) for each in plan.streams]


def absent_residues(plan: SumPlan) -> I64:
    """The residues of each stream's row in a result that lacks it, int64 (2, m)."""
    found = []
    for weigher, stream in zip(_weighers(plan), plan.streams, strict=True):
        nulls = [pa.nulls(1, each.type) for each in stream.payload]
        found.append(weigher.residues(pa.nulls(1, pa.int32()), pa.nulls(1, pa.int64()), nulls))
    return np.array(found)[:, :, 0].T


def _product(prime: int, one: I64, other: I64) -> I64:
    return one * other % prime


def _typed(column: Column, kind: pa.DataType) -> Column:
    """A column of the type that it has where messages are decoded: files may have been written
    anew."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    held = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if held == kind:
        return column
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast(kind)


# --- what is kept --------------------------------------------------------------------------


class Spool:
    """Rows on their way to their buckets, in files of this process alone."""

    def __init__(self, place: Path, buckets: int) -> None:
        """`place`: a folder that several processes may share."""
        self._place = place
        self._buckets = buckets
        self._held: dict[int, list[tuple[U64, U32, U32]]] = {}
        self._rows: dict[int, int] = {}

    def add(self, source: int, keys: U64, a: I64, b: I64) -> None:
        """Rows of a source: hashes of their keys, their residues by each prime; (n,) each."""
        self._held.setdefault(source, []).append((keys, a.astype(np.uint32), b.astype(np.uint32)))
        self._rows[source] = self._rows.get(source, 0) + len(keys)
        if self._rows[source] >= SPOOLED_ROWS:
            self._write(source)

    def flush(self) -> None:
        """Write what is held."""
        for source in list(self._held):
            self._write(source)

    def _append(self, path: Path, data: bytes) -> None:
        try:
            with path.open("ab") as file:
                file.write(data)
        except OSError as error:
            raise SpoolUnwritable(
                f"cannot write {path.parent}: {error.strerror}. The proof keeps 20 bytes of each "
                "message and of each result there while it runs; name another folder with TMPDIR"
            ) from error

    def _write(self, source: int) -> None:
        parts = self._held.pop(source)
        del self._rows[source]
        keys, a, b = (np.concatenate(each) for each in zip(*parts, strict=True))
        block = _collapsed(keys, a, b)
        # The high bits: the low ones fill the cells.
        bucket = bucket_of(block[0], self._buckets)
        order = np.argsort(bucket, kind="stable")
        ends = np.cumsum(np.bincount(bucket, minlength=self._buckets))
        columns: list[npt.NDArray[Any]] = [column[order] for column in block]
        begin = 0
        for number, end in enumerate(ends.tolist()):
            if end > begin:
                data = [_BLOCK.pack(source, end - begin)]
                data += [column[begin:end].tobytes() for column in columns]
                self._append(self._place / f"{number}-{os.getpid()}", b"".join(data))
            begin = end


class SpoolUnwritable(Exception):
    """What a proof keeps on disk cannot be written."""

    exit_code = FAILED


def bucket_of(keys: U64, buckets: int) -> npt.NDArray[np.uint16]:
    """The bucket of each hash, uint16 (n,): hashes are spread evenly over them."""
    return ((keys >> np.uint64(32)) * np.uint64(buckets) >> np.uint64(32)).astype(np.uint16)


def _collapsed(keys: U64, a: U32, b: U32) -> SpooledRows:
    """Rows, added up by key where a key has many of them."""
    cell = (keys & np.uint64((1 << CELLS_BITS) - 1)).astype(np.int64)
    crowded = np.bincount(cell)[cell] > CROWDED * max(1, len(keys) >> CELLS_BITS)
    ones = np.ones(len(keys), np.uint32)
    if not crowded.any():
        return SpooledRows(keys, ones, a, b)
    found, number = _numbered(keys[crowded])
    counts = np.bincount(number, minlength=len(found)).astype(np.uint32)
    sums = [
        (added(number, each[crowded], len(found)) % prime).astype(np.uint32)
        for each, prime in zip((a, b), PRIMES, strict=True)
    ]
    others = ~crowded
    return SpooledRows(
        np.concatenate([found, keys[others]]),
        np.concatenate([counts, ones[others]]),
        np.concatenate([sums[0], a[others]]),
        np.concatenate([sums[1], b[others]]),
    )


def added(number: I64, values: npt.NDArray[np.uint32], width: int) -> I64:
    """The sums of values below 2^31 by number, int64 (width,), exact."""
    summed = np.zeros(width, np.int64)
    for begin in range(0, len(number), EXACT_ROWS):
        part = slice(begin, begin + EXACT_ROWS)
        summed += np.bincount(number[part], values[part], width).astype(np.int64)
    return summed


def _numbered(keys: U64) -> tuple[U64, I64]:
    """The different hashes (k,), and for each row its number among them (n,)."""
    order = np.argsort(keys)
    ordered = keys[order]
    other = np.ones(len(keys), np.bool_)
    other[1:] = ordered[1:] != ordered[:-1]
    number = np.empty(len(keys), np.int64)
    number[order] = np.cumsum(other) - 1
    return ordered[other], number


def _blocks(path: Path) -> Iterator[tuple[int, SpooledRows]]:
    """The blocks of a file, each with its source."""
    data = memoryview(path.read_bytes())
    at = 0
    while at < len(data):
        source, rows = _BLOCK.unpack_from(data, at)
        at += _BLOCK.size
        keys = np.frombuffer(data, np.uint64, rows, at)
        at += keys.nbytes
        counts, a, b = np.frombuffer(data, np.uint32, 3 * rows, at).reshape(3, rows)
        at += 3 * counts.nbytes
        yield source, SpooledRows(keys, counts, a, b)


# --- a bucket ------------------------------------------------------------------------------


@dataclass(frozen=True)
class JudgedBucket:
    """What the test says of a bucket's keys."""

    expected: int
    keys: int
    failing: int
    hashes: U64
    """Of the first `FEW_KEYS` failing keys, and of one more if there are more."""
    unmatched: int = 0
    """Of the expected results those that lack optional rows."""


def judged_bucket(plan: SumPlan, place: Path, bucket: int) -> JudgedBucket:
    """Judge the keys of a bucket by what all processes have spooled of it."""
    sources = len(plan.streams) + 1
    parts: list[list[SpooledRows]] = [[] for _ in range(sources)]
    for path in sorted(place.glob(f"{bucket}-*")):
        for source, rows in _blocks(path):
            parts[source].append(rows)
    every = [rows.keys for some in parts for rows in some]
    if not every:
        return JudgedBucket(0, 0, 0, np.zeros(0, np.uint64))
    found, number = _numbered(np.concatenate(every))
    counts = np.zeros((sources, len(found)), np.int64)
    sums = np.zeros((2, sources, len(found)), np.int64)
    begin = 0
    for source, some in enumerate(parts):
        if some:
            _, *columns = (np.concatenate(each) for each in zip(*some, strict=True))
            mine = number[begin : begin + len(columns[0])]
            begin += len(mine)
            counts[source] = added(mine, columns[0], len(found))
            sums[0, source] = added(mine, columns[1], len(found)) % PRIMES[0]
            sums[1, source] = added(mine, columns[2], len(found)) % PRIMES[1]
    of_inputs, weights = counts[:-1], sums[:, :-1]
    unmatched = np.zeros(len(found), np.bool_)
    if plan.optional:
        optional = np.array([each.name in plan.optional for each in plan.streams])
        absent = absent_residues(plan)
        of_inputs, weights, unmatched = with_absent(of_inputs, weights, optional, absent)
    verdicts = judge(of_inputs, weights, counts[-1], sums[:, -1])
    failing = found[verdicts.wrong]
    return JudgedBucket(
        exact_sum(verdicts.expected),
        len(found),
        len(failing),
        failing[: FEW_KEYS + 1],
        exact_sum(verdicts.expected[unmatched]),
    )
