"""Which offsets of a topic are read: blocks of equal size, spread over all partitions. Pure.

Kafka gives batches of consecutive offsets, so one row here and one there would cost as much as a
block each. Of the blocks of all partitions some are taken at random, each with one probability.
They are dealt out to `GROUPS` groups at random: groups are samples of the topic, too, and what they
differ by says how far the whole may be off.

Not every so many-th block: two topics that hold a key at the same offsets would then have all of
their samples there or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]

BLOCK_OFFSETS = 128
"""Offsets of a block. Of more, rows that came together weigh too much; of fewer, seeks do: Kafka
sends a batch at a time anyway."""
GROUPS = 16
"""Enough for a steady estimate of the error, few enough that each is a sample of some size."""


@dataclass(frozen=True)
class OffsetBlock:
    """Offsets [begin, end) of a partition, and the group that they count for."""

    partition: int
    begin: int
    end: int
    group: int


@dataclass(frozen=True)
class Drawn:
    """The blocks of a topic that are read, in the order of partitions and offsets."""

    blocks: tuple[OffsetBlock, ...]
    fraction: float
    """The probability with which each offset is among them; 1: all are. 0: there are none."""
    offsets: int
    """Of all partitions together."""
    gap_offsets: int
    """The longest stretch of a partition that is not read."""


def drawn(
    begins: Sequence[int], ends: Sequence[int], most: int, draw: np.random.Generator
) -> Drawn:
    """About `most` of the offsets [begin, end) of each partition; all of them where there are no
    more."""
    lengths = np.maximum(np.array(ends, np.int64) - np.array(begins, np.int64), 0)
    offsets = int(lengths.sum())
    each = -(-lengths // BLOCK_OFFSETS)
    blocks = int(each.sum())
    wanted = blocks if offsets <= most else min(blocks, max(GROUPS, most // BLOCK_OFFSETS))
    if not wanted:
        return Drawn((), 0.0, 0, 0)
    at = np.sort(draw.choice(blocks, wanted, replace=False))
    partition = np.searchsorted(np.cumsum(each), at, side="right")
    begin = np.array(begins, np.int64)[partition]
    begin += (at - (np.cumsum(each) - each)[partition]) * BLOCK_OFFSETS
    end = np.minimum(begin + BLOCK_OFFSETS, np.array(ends, np.int64)[partition])
    group = draw.permutation(np.arange(wanted) % GROUPS)
    rows = zip(partition.tolist(), begin.tolist(), end.tolist(), group.tolist(), strict=True)
    return Drawn(
        tuple(OffsetBlock(*each) for each in rows),
        wanted / blocks,
        offsets,
        _gap(begins, ends, partition, begin, end),
    )


def _gap(begins: Sequence[int], ends: Sequence[int], partition: I64, begin: I64, end: I64) -> int:
    """`Drawn.gap_offsets`."""
    every = np.arange(len(begins))
    where = np.concatenate([partition, every, every])
    begin, end = np.concatenate([begin, begins, ends]), np.concatenate([end, begins, ends])
    order = np.lexsort((end, begin, where))
    gaps = begin[order][1:] - end[order][:-1]
    return int(gaps[np.diff(where[order]) == 0].max())
