"""Messages as chunks, from batches of Arrow that tests write down."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from spillway.decode.chunks import Chunk

COLUMNS = ("topic", "partition", "offset", "value", "timestamp")
"""Of the batches; `timestamp` in microseconds, as Spark has it."""


def chunks(batches: Iterable[Any]) -> Iterator[Chunk]:
    """A chunk for each run of one topic and partition."""
    table = pa.Table.from_batches(batches) if (batches := list(batches)) else pa.table({})
    if not table.num_rows:
        return
    topics, partitions = table.column(0).to_pylist(), table.column(1).to_pylist()
    keys = list(zip(topics, partitions, strict=True))
    edges = [n for n in range(len(keys)) if n == 0 or keys[n] != keys[n - 1]]
    for begin, end in pairwise([*edges, len(keys)]):
        part = table.slice(begin, end - begin).combine_chunks()
        micros = part.column(4).cast(pa.int64()).to_numpy()
        offsets = part.column(2).to_numpy().astype(np.int64)
        yield Chunk(*keys[begin], part.column(3).combine_chunks(), offsets, micros // 1000)
