"""Kafka's record batches (message format 2) as columns. Pure (numpy, pyarrow).

A fetched partition is a run of batches, each a header and records of varying length, so where a
record begins is known only from the one before it. Records are not walked one by one:

1. *Lanes.* A batch's body is cut about every `lane_bytes`. Near each cut a record's beginning is
   guessed: the first byte from which `HOPS` records seem to follow one another. All lanes then walk
   side by side, one record a step, by the records' lengths alone. A lane that begins at a true
   beginning and arrives exactly at the next lane's proves that one true, too, and a batch's first
   lane is true. Where one arrives elsewhere, all is walked again without guesses.
2. *Fields.* From their beginnings the fields of all records are read at once.

Invariant: guesses change how fast records are found, never which.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import lz4.frame
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

I64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

LEAST_LANE_BYTES = 2 << 10
WINDOW_BYTES = 1 << 10
"""A record's beginning is guessed within so many bytes behind a cut."""
HOPS = 4
MOST_REMOVED = 1 << 10
"""Offsets that may be missing between two records for a guess, since compaction removed them."""
GROUP_BYTES = 16 << 20
"""Bodies that are read together, but for one that is larger."""

_HEADER = struct.Struct(">qiibIhiqqqhii")
_CRC_FROM = struct.calcsize(">qiibI")
_LENGTH_FROM = struct.calcsize(">qi")
_CODEC, _LOG_APPEND, _TRANSACTIONAL, _CONTROL = 0x07, 0x08, 0x10, 0x20
_GZIP, _SNAPPY, _LZ4, _ZSTD = 1, 2, 3, 4
_CONTROL_KEY = struct.Struct(">hh")
_ABORT = 0
_XERIAL = b"\x82SNAPPY\x00"
_UNREADABLE = (
    OSError, EOFError, RuntimeError, ValueError, zlib.error, struct.error, pa.ArrowException
)  # fmt: skip
"""What libraries raise of bytes that they cannot decompress."""
_INLINE_BYTES = 12
"""A value of at most so many bytes lies in its Arrow view."""


class BatchDamaged(ValueError):
    """A batch is not what was written, or of a form that is not read here."""


@dataclass(frozen=True)
class Records:
    """Consecutive records of one partition; what has n elements is parallel."""

    offsets: I64
    """Ascending (n,)."""
    kafka_ms: I64
    """Kafka's timestamps in milliseconds since 1970 (n,)."""
    values: Any
    """pyarrow large_binary array (n,)."""


@dataclass(frozen=True)
class BatchHeader:
    """What a batch says of its records."""

    base_offset: int
    begin: int
    end: int
    """Its records are `data[begin:end]`, perhaps compressed."""
    attributes: int
    last_offset: int
    first_ms: int
    max_ms: int
    producer: int
    records: int

    @property
    def codec(self) -> int:
        """Kafka's number of the compression; 0: none."""
        return self.attributes & _CODEC

    @property
    def is_control(self) -> bool:
        """Whether it ends a transaction: it holds no message."""
        return bool(self.attributes & _CONTROL)

    @property
    def is_transactional(self) -> bool:
        """Whether its messages count only if their transaction was committed."""
        return bool(self.attributes & _TRANSACTIONAL)


def headers(data: bytes | bytearray | memoryview) -> Iterator[BatchHeader]:
    """The batches that `data` holds whole, in their order; a broker cuts the last one off.

    Raises `BatchDamaged` for one whose checksum is wrong or whose format is older than 2.
    """
    view = memoryview(data)
    at = 0
    while len(view) - at >= _LENGTH_FROM:
        (length,) = struct.unpack_from(">i", view, at + 8)
        end = at + _LENGTH_FROM + length
        if end > len(view):
            return
        (base,) = struct.unpack_from(">q", view, at)
        if length < 5 or view[at + 16] != 2:
            raise BatchDamaged(
                f"the messages at offset {base} are in a format older than Kafka 0.11, or damaged"
            )
        if length < _HEADER.size - _LENGTH_FROM:
            raise BatchDamaged("a batch is shorter than its header")
        _, _, _, _, crc, attributes, last, first_ms, max_ms, producer, _, _, count = (
            _HEADER.unpack_from(view, at)
        )
        if crc32c(view[at + _CRC_FROM : end]) != crc:
            raise BatchDamaged(f"the checksum of the batch at offset {base} is wrong")
        begin = at + _HEADER.size
        yield BatchHeader(
            base, begin, end, attributes, base + last, first_ms, max_ms, producer, count
        )
        at = end


def committed(
    found: Sequence[BatchHeader],
    data: bytes | bytearray | memoryview,
    aborted: Collection[tuple[int, int]],
) -> list[BatchHeader]:
    """The batches whose messages count. `aborted`: producer and first offset of each transaction
    that was given up, as a broker names them with what it sends."""
    begun = sorted(aborted, key=lambda each: each[1])
    given_up: set[int] = set()
    kept = []
    for header in found:
        while begun and begun[0][1] <= header.last_offset:
            given_up.add(begun.pop(0)[0])
        if header.is_control:
            # Compaction may take the record and leave the batch; the transaction's are gone then.
            if header.records and _aborts(header, data):
                given_up.discard(header.producer)
        elif not (header.is_transactional and header.producer in given_up):
            kept.append(header)
    return kept


def _aborts(header: BatchHeader, data: bytes | bytearray | memoryview) -> bool:
    """Whether a control batch ends a transaction that was given up: its one record's key is a
    version and a kind, of which 0 aborts and 1 commits. Clients pass over those that they do not
    know. Raises `BatchDamaged`."""
    body = _body(header, data)
    fields = _fields(np.frombuffer(body, np.uint8), np.zeros(1, np.int64))
    if fields.key_sizes[0] < _CONTROL_KEY.size:
        raise BatchDamaged(f"the control batch at offset {header.base_offset} has no kind")
    _, kind = _CONTROL_KEY.unpack_from(body, int(fields.key_begins[0]))
    return bool(kind == _ABORT)


def read_records(
    found: Sequence[BatchHeader], data: bytes | bytearray | memoryview
) -> Iterator[Records]:
    """The records of these batches of `data`. Raises `BatchDamaged`."""
    group: list[BatchHeader] = []
    bodies: list[Any] = []
    size = 0
    for header in found:
        body = _body(header, data)
        if group and size + len(body) > GROUP_BYTES:
            yield _records(group, bodies)
            group, bodies, size = [], [], 0
        group.append(header)
        bodies.append(body)
        size += len(body)
    if group:
        yield _records(group, bodies)


def _body(header: BatchHeader, data: bytes | bytearray | memoryview) -> Any:
    """A batch's records, no longer compressed: bytes, or a view of `data`."""
    packed = memoryview(data)[header.begin : header.end]
    codec = header.codec
    try:
        if codec == 0:
            return packed
        if codec == _GZIP:
            return gzip.decompress(packed)
        if codec == _LZ4:
            return lz4.frame.decompress(packed)
        if codec == _ZSTD:
            with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
                return stream.read()
        if codec == _SNAPPY:
            return _snappy(packed.tobytes())
    except _UNREADABLE as error:
        raise BatchDamaged(
            f"the batch at offset {header.base_offset} cannot be decompressed: {error}"
        ) from error
    raise BatchDamaged(f"the batch at offset {header.base_offset} has an unknown codec, {codec}")


def _snappy(packed: bytes) -> bytes:
    """Snappy as it is, or in the blocks in which Java's producer writes it."""
    if not packed.startswith(_XERIAL):
        return _snappy_block(packed)
    at = len(_XERIAL) + 8  # two numbers of versions
    blocks = []
    while at < len(packed):
        (size,) = struct.unpack_from(">i", packed, at)
        blocks.append(_snappy_block(packed[at + 4 : at + 4 + size]))
        at += 4 + size
    return b"".join(blocks)


def _snappy_block(block: bytes) -> bytes:
    size = shift = 0
    for byte in block[:5]:  # its length, as a varint
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    found: bytes = pa.Codec("snappy").decompress(block, size, asbytes=True)
    return found


# --- records of several batches ------------------------------------------------------------


def _records(group: Sequence[BatchHeader], bodies: Sequence[Any]) -> Records:
    joined = bodies[0] if len(bodies) == 1 else b"".join(bodies)
    data = np.frombuffer(joined, np.uint8)
    sizes = np.array([len(body) for body in bodies], np.int64)
    ends = np.cumsum(sizes)
    counts = np.array([header.records for header in group], np.int64)
    begins, batch = record_begins(data, ends - sizes, ends)
    if not np.array_equal(np.bincount(batch, minlength=len(group)), counts):
        raise BatchDamaged(
            f"batches from offset {group[0].base_offset} on hold more or fewer records than told"
        )
    fields = _fields(data, begins)
    base = np.array([header.base_offset for header in group], np.int64)
    first = np.array([header.first_ms for header in group], np.int64)
    last = np.array([header.max_ms for header in group], np.int64)
    at_append = np.array([bool(header.attributes & _LOG_APPEND) for header in group])
    return Records(
        base[batch] + fields.offset_deltas,
        np.where(at_append[batch], last[batch], first[batch] + fields.ms_deltas),
        _values(joined, data, fields),
    )


def record_begins(data: Bytes, begins: I64, ends: I64) -> tuple[I64, I64]:
    """Where each record begins (n,), and of which body it is (n,); both ascend.

    `begins`, `ends` (b,): bodies, one behind the other. Raises `BatchDamaged`.
    """
    bodies = np.arange(len(begins))
    there = ends > begins
    bodies, begins, ends = bodies[there], begins[there], ends[there]
    if not len(begins):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    cuts, of = _guesses(data, begins, ends)
    starts = np.concatenate([begins, cuts])
    body = np.concatenate([bodies, bodies[of]])
    order = np.argsort(starts, kind="stable")
    starts, body = starts[order], body[order]
    try:
        # A lane ends where the next begins: the next body's first, if it is the last of its own.
        found, lane = _walked(data, starts, np.append(starts[1:], ends[-1]))
    except BatchDamaged:
        if not len(cuts):
            raise
        body = bodies
        found, lane = _walked(data, begins, ends)
    return found, body[lane]


def _walked(data: Bytes, starts: I64, ends: I64) -> tuple[I64, I64]:
    """Every record's beginning (n,) and its lane (n,), ascending.

    Raises `BatchDamaged` where a lane does not end where it should.
    """
    at, end = starts, ends
    lane = np.arange(len(starts))
    begins, lanes = [], []
    while len(at):
        begins.append(at)
        lanes.append(lane)
        length, behind = _varints(data, at)
        at = behind + length
        on = at < end
        if (length < 0).any() or (at[~on] != end[~on]).any():
            raise BatchDamaged("a batch's records do not end where it ends")
        if not on.all():
            at, end, lane = at[on], end[on], lane[on]
    found, of = np.concatenate(begins), np.concatenate(lanes)
    order = np.argsort(found, kind="stable")
    return found[order], of[order]


def _guesses(data: Bytes, begins: I64, ends: I64) -> tuple[I64, I64]:
    """Where records of large bodies may begin, about every `lane_bytes`: ascending (k,), and the
    body of each (k,)."""
    lane = lane_bytes(len(data))
    number = (ends - begins - WINDOW_BYTES) // lane
    number = np.maximum(number, 0)
    of = np.repeat(np.arange(len(begins)), number)
    nth = np.arange(len(of)) - np.repeat(np.cumsum(number) - number, number) + 1
    cuts = begins[of] + nth * lane
    guesses = np.full(len(cuts), -1)
    seeking = np.arange(len(cuts))
    width = 64
    for skip in range(0, WINDOW_BYTES, width):
        if not len(seeking):
            break
        places = (cuts[seeking, None] + skip + np.arange(width)).ravel()
        seems = _seem(data, places, np.repeat(ends[of[seeking]], width)).reshape(-1, width)
        first = seems.argmax(axis=1)
        hit = seems[np.arange(len(seeking)), first]
        guesses[seeking[hit]] = cuts[seeking[hit]] + skip + first[hit]
        seeking = seeking[~hit]
    found = guesses >= 0
    return guesses[found], of[found]


def lane_bytes(size: int) -> int:
    """How long lanes are in so many bytes of bodies.

    All lanes walk for as many steps as one has records, and a step costs about 25 us however few
    lanes there are, so few bytes take short lanes. A lane's guess costs about 8 us: with records of
    a hundred bytes the sum of both, `size / lane * 8 + lane / 100 * 25`, is least at this length.
    """
    return max(int(math.sqrt(32 * size)), LEAST_LANE_BYTES)


def _seem(data: Bytes, places: I64, ends: I64) -> npt.NDArray[np.bool_]:
    """Whether `HOPS` records seem to follow from each place: sensible lengths, no attributes, and
    offsets that ascend."""
    seems = np.zeros(len(places), np.bool_)
    alive = np.arange(len(places))
    at, end = places, ends
    before: I64 | None = None
    for _ in range(HOPS):
        length, behind = _short_varints(data, at)
        fits = (length >= 7) & (behind + length < end - 1)
        fits &= data[np.minimum(behind, len(data) - 1)] == 0
        alive, at, end, behind, length = (
            alive[fits], at[fits], end[fits], behind[fits], length[fits]
        )  # fmt: skip
        if before is not None:
            before = before[fits]
        _, second = _short_varints(data, np.minimum(behind + 1, len(data) - 1))
        delta, _ = _short_varints(data, np.minimum(second, len(data) - 1))
        if before is not None:
            counts = (delta > before) & (delta - before < MOST_REMOVED)
            alive, at, end, behind, length, delta = (
                alive[counts], at[counts], end[counts], behind[counts], length[counts],
                delta[counts],
            )  # fmt: skip
        before = delta
        at = behind + length
    seems[alive] = True
    return seems


def _short_varints(data: Bytes, at: I64) -> tuple[I64, I64]:
    """Numbers of up to four bytes at each place (n,), and what is behind them; -1 for others."""
    most = len(data) - 1
    value = np.zeros(len(at), np.int64)
    behind = at.copy()
    on = np.ones(len(at), np.bool_)
    for shift in range(0, 28, 7):
        byte = data[np.minimum(behind, most)].astype(np.int64)
        value |= np.where(on, (byte & 0x7F) << shift, 0)
        behind += on
        on = on & (byte >= 0x80)
        if not on.any():
            break
    value = (value >> 1) ^ -(value & 1)
    return np.where(on, -1, value), behind


@dataclass(frozen=True)
class _Fields:
    """Of n records, int64 (n,) each."""

    ms_deltas: I64
    offset_deltas: I64
    key_begins: I64
    key_sizes: I64
    """-1: null."""
    value_begins: I64
    value_sizes: I64
    """-1: null."""


def _fields(data: Bytes, begins: I64) -> _Fields:
    length, at = _varints(data, begins)
    end = at + length
    ms, at = _varints(data, at + 1)  # behind the attributes
    offset, at = _varints(data, at)
    key_size, key = _varints(data, at)
    size, value = _varints(data, key + np.maximum(key_size, 0))
    # Subtracted, not added: a size near 2**63 would wrap, and the views would point anywhere.
    if (size > end - value).any() or (size < -1).any() or (key_size < -1).any():
        raise BatchDamaged("a record is longer than it says")
    return _Fields(ms, offset, key, key_size, value, size)


def _varints(data: Bytes, at: I64) -> tuple[I64, I64]:
    """The numbers at each place (n,), zigzag as Kafka writes them, and what is behind them.

    Raises `BatchDamaged` where one does not end.
    """
    try:
        byte = data[at]
        value = (byte & 0x7F).astype(np.uint64)
        behind = at + 1
        more = np.flatnonzero(byte >= 0x80)
        shift = 7
        while len(more):
            if shift > 63:
                raise BatchDamaged("a number does not end")
            byte = data[behind[more]]
            value[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            behind[more] += 1
            more = more[byte >= 0x80]
            shift += 7
    except IndexError as error:
        raise BatchDamaged("a record goes on behind its batch") from error
    half = (value >> np.uint64(1)).view(np.int64)
    return half ^ -(value & np.uint64(1)).view(np.int64), behind


def _values(joined: Any, data: Bytes, fields: _Fields) -> Any:
    """The values as Arrow's: views into the bodies, which Arrow then lays one behind the other."""
    size = fields.value_sizes
    views = np.zeros((len(size), 4), np.int32)
    views[:, 0] = np.maximum(size, 0)
    views[:, 3] = np.where(size > _INLINE_BYTES, fields.value_begins, 0)
    short = np.flatnonzero((size > 0) & (size <= _INLINE_BYTES))
    if len(short):
        place = np.arange(_INLINE_BYTES)
        at = np.minimum(fields.value_begins[short, None] + place, len(data) - 1)
        held = np.where(place < size[short, None], data[at], 0).astype(np.uint8)
        views[short, 1:] = held.view(np.int32)
    null = size < 0
    valid = pa.py_buffer(np.packbits(~null, bitorder="little")) if null.any() else None
    # No prefixes: the views do not leave this function, and nothing here compares them.
    viewed = pa.Array.from_buffers(
        pa.binary_view(), len(size), [valid, pa.py_buffer(views), pa.py_buffer(joined)]
    )
    return viewed.cast(pa.large_binary())
