"""Chunks: messages as they are decoded, by the stream, a restore, cleanup and `verify` alike.

What becomes of a value does not depend on its chunk (`spillway.decode`). A chunk bounds memory, and
is large, so that a call has little to do besides decoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spillway.decode import MOST_ROWS


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
