"""Kafka records as bytes, whole columns at a time.

kafka-python writes 30,000 to 70,000 records a second, because it writes each byte of each record
in Python. Here the records of many batches are written at once with Arrow and numpy; kafka-python
then does the rest of a batch (header, compression, checksum, producer id and sequence numbers).

Layout of one record (format version 2), every number a zigzag varint:

    length | attributes (1 byte, 0) | timestamp delta | offset delta
           | key length | key | value length | value | number of headers (0)

Length counts what follows it. A missing value has length -1 and no bytes. Deltas count from the
first record of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

I64 = npt.NDArray[np.int64]

_OVERHEAD = 24
"""About what a record has besides key and value; only where a batch ends depends on it."""
_COMMON = 4_096
"""Varints of the numbers below this are looked up."""
_ZERO = pa.scalar(b"\x00", pa.large_binary())
_NOTHING = pa.scalar(b"", pa.large_binary())


@dataclass(frozen=True)
class PartitionRecords:
    """Records of one topic partition, ready for a batch's header."""

    partition: int
    body: memoryview
    """The records, without the batch's header."""
    count: int
    first_ms: int
    max_ms: int
    largest: int
    """Bytes of the largest record."""


def batches(
    partitions: npt.NDArray[np.int32], keys: Any, values: Any, timestamps_ms: I64, batch_bytes: int
) -> Iterator[PartitionRecords]:
    """Records as batches of about `batch_bytes`, each of one partition, in the rows' order.

    `partitions` int32 (n,), `keys` Arrow binary or string (n,) where
    null is no key, `values` Arrow binary (n,) where
    null is a tombstone, `timestamps_ms` int64 (n,). A record larger than `batch_bytes` ends its
    batch.
    """
    if not len(partitions):
        return
    order = np.argsort(partitions, kind="stable")
    partitions, timestamps_ms = partitions[order], timestamps_ms[order]
    values = pc.cast(values, pa.large_binary()).take(pa.array(order))
    keys = pc.cast(keys, pa.large_binary()).take(pa.array(order))
    starts = _starts(partitions, keys, values, batch_bytes)
    first = np.repeat(starts, np.diff(np.append(starts, len(order))))
    records = _records(
        keys, values, np.arange(len(order)) - first, timestamps_ms - timestamps_ms[first]
    )
    offsets = np.frombuffer(records.buffers()[1], dtype=np.int64)
    offsets = offsets[records.offset : records.offset + len(records) + 1]
    body = memoryview(records.buffers()[2])
    sizes = np.diff(offsets)
    ends = np.append(starts[1:], len(order))
    for lo, hi in zip(starts.tolist(), ends.tolist(), strict=True):
        yield PartitionRecords(
            partition=int(partitions[lo]),
            body=body[offsets[lo] : offsets[hi]],
            count=hi - lo,
            first_ms=int(timestamps_ms[lo]),
            max_ms=int(timestamps_ms[lo:hi].max()),
            largest=int(sizes[lo:hi].max()),
        )


def _starts(partitions: npt.NDArray[np.int32], keys: Any, values: Any, batch_bytes: int) -> I64:
    """Rows at which a batch begins: int64, ascending, the first is 0."""
    size = _lengths(keys) + np.maximum(_lengths(values), 0) + _OVERHEAD
    before = np.cumsum(size) - size
    turn = np.flatnonzero(np.diff(partitions)) + 1
    begins = np.concatenate([[0], turn])
    within = before - np.repeat(before[begins], np.diff(np.append(begins, len(size))))
    number = within // batch_bytes
    new = np.flatnonzero((np.diff(number) != 0) | (np.diff(partitions) != 0)) + 1
    return np.concatenate([[0], new]).astype(np.int64)


def _records(keys: Any, values: Any, offset_deltas: I64, timestamp_deltas: I64) -> Any:
    """One Arrow large binary per record."""
    rest = pc.binary_join_element_wise(
        _ZERO,
        varints(timestamp_deltas),
        varints(offset_deltas),
        varints(_lengths(keys)),
        pc.fill_null(keys, _NOTHING),
        varints(_lengths(values)),
        pc.fill_null(values, _NOTHING),
        _ZERO,
        _NOTHING,
    )
    return pc.binary_join_element_wise(varints(_lengths(rest)), rest, _NOTHING)


def _lengths(column: Any) -> I64:
    """Bytes of each value; -1 for a null."""
    lengths = pc.fill_null(pc.binary_length(column), -1)
    return np.asarray(lengths.to_numpy(zero_copy_only=False), dtype=np.int64)


def varints(numbers: I64) -> Any:
    """Zigzag varints of int64 (n,): Arrow large binary (n,)."""
    if len(numbers) and int(numbers.min()) >= 0 and int(numbers.max()) < _COMMON:
        return _LOW.take(pa.array(numbers))
    distinct, position = np.unique(numbers, return_inverse=True)
    table = pa.array([varint(n) for n in distinct.tolist()], pa.large_binary())
    return table.take(pa.array(position))


def varint(number: int) -> bytes:
    """One zigzag varint: 7 bits a byte, the least first; the sign is the lowest bit."""
    left = number * 2 if number >= 0 else -number * 2 - 1
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


_LOW = pa.array([varint(n) for n in range(_COMMON)], pa.large_binary())
