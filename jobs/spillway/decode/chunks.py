"""Chunks: messages as they are decoded, by the stream, a restore, cleanup and `verify` alike.

What becomes of a value does not depend on its chunk (`spillway.decode`). A chunk bounds memory, and
is large, so that a call has little to do besides decoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spillway.decode import MOST_ROWS

COLUMNS = ("topic", "partition", "offset", "value", "kafka_timestamp")
"""Columns of messages in a table."""


@dataclass(frozen=True)
class Chunk:
    """Consecutive messages of one topic partition; what has n elements is parallel."""

    topic: str
    partition: int
    values: Any
    """pyarrow binary or large_binary array (n,)."""
    offsets: npt.NDArray[np.int64]
    """Ascending (n,)."""
    kafka_ms: npt.NDArray[np.int64]
    """Kafka's timestamps in milliseconds since 1970 (n,)."""

    def parts(self, most: int = MOST_ROWS) -> Iterator[Chunk]:
        """The same messages, at most so many together."""
        for begin in range(0, len(self.offsets), most):
            rows = slice(begin, begin + most)
            values = self.values.slice(begin, most)
            yield Chunk(self.topic, self.partition, values, self.offsets[rows], self.kafka_ms[rows])


def chunks_of(rows: pa.Table) -> Iterator[Chunk]:
    """Messages in a table (`COLUMNS`), in any order, as chunks of at most `MOST_ROWS`."""
    if not rows.num_rows:
        return
    rows = rows.sort_by([(name, "ascending") for name in COLUMNS[:3]])
    topics = rows["topic"].combine_chunks().dictionary_encode()
    codes, partitions = topics.indices.to_numpy(), rows["partition"].to_numpy()
    values = rows["value"].cast(pa.large_binary()).combine_chunks()
    micros = rows["kafka_timestamp"].cast(pa.int64()).to_numpy()
    changed = np.flatnonzero((np.diff(codes) != 0) | (np.diff(partitions) != 0)) + 1
    for a, b in pairwise([0, *changed.tolist(), len(codes)]):
        yield from Chunk(
            topics.dictionary[int(codes[a])].as_py(),
            int(partitions[a]),
            values.slice(a, b - a),
            rows["offset"].to_numpy()[a:b],
            micros[a:b] // 1000,
        ).parts()
