"""Chunks: rows of Kafka as they are decoded, by the stream, a restore and `verify` alike.

What becomes of a value does not depend on its chunk (`spillway.decode`). A chunk bounds memory, and
is large, so that a call has little to do besides decoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spillway.decode import MOST_ROWS

COLUMNS = ("topic", "partition", "offset", "value", "timestamp")
"""Columns of Kafka's rows that a chunk is made from, in this order."""

MOST_BYTES = 64 << 20
"""A chunk that has so many bytes takes no more batches; one batch may be larger."""


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows of one topic partition; what has n elements is parallel."""

    topic: str
    partition: int
    values: Any
    """pyarrow binary or large_binary array (n,)."""
    offsets: npt.NDArray[np.int64]
    """Ascending (n,)."""
    kafka_ms: npt.NDArray[np.int64]
    """Kafka's timestamps in milliseconds since 1970 (n,)."""


def chunks(batches: Iterable[Any]) -> Iterator[Chunk]:
    """Kafka rows (`COLUMNS`) as chunks of at most `MOST_ROWS`, in their order."""
    held: list[Any] = []
    key: tuple[str, int] | None = None
    rows = size = 0
    for batch in batches:
        for part_key, part in _partitions(batch):
            if held and (part_key != key or rows + part.num_rows > MOST_ROWS or size >= MOST_BYTES):
                assert key is not None
                yield _chunk(key, held)
                held, rows, size = [], 0, 0
            key = part_key
            held.append(part)
            rows += part.num_rows
            size += part.column(3).nbytes
    if held:
        assert key is not None
        yield _chunk(key, held)


def _partitions(batch: Any) -> Iterator[tuple[tuple[str, int], Any]]:
    """A batch cut where topic or partition changes (a Kafka task reads one after another), and
    where a part has all the rows that a chunk may have."""
    if not batch.num_rows:
        return
    partition = batch.column(1).to_numpy()
    topics = batch.column(0).dictionary_encode()
    codes = topics.indices.to_numpy()
    changed = np.flatnonzero((np.diff(codes) != 0) | (np.diff(partition) != 0)) + 1
    edges = [0, *changed.tolist(), batch.num_rows]
    for a, b in pairwise(edges):
        key = (topics.dictionary[int(codes[a])].as_py(), int(partition[a]))
        for begin in range(a, b, MOST_ROWS):
            yield key, batch.slice(begin, min(MOST_ROWS, b - begin))


def _chunk(key: tuple[str, int], parts: list[Any]) -> Chunk:
    table = pa.Table.from_batches(parts)
    values = table.column(3).combine_chunks()
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays([c.cast(pa.large_binary()) for c in values.chunks])
    micros = table.column(4).cast(pa.int64()).to_numpy()
    return Chunk(key[0], key[1], values, table.column(2).to_numpy(), micros // 1000)
