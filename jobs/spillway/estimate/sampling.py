"""Which offsets of a topic are read: blocks of equal size, spread over all partitions. Pure.

Kafka gives batches of consecutive offsets, so one row here and one there would cost as much as a
block each. The blocks of all partitions stand in one line; every so many-th of them is taken, from a
random one on (systematic sampling). So each is taken with one probability, and morning and evening
are there alike. The blocks that are taken are dealt out to `GROUPS` groups at random: groups are
samples of the topic, too, and what they differ by says how far the whole may be off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

BLOCK_OFFSETS = 128
"""Offsets of a block. Of more, rows that came together weigh too much; of fewer, seeks do: Kafka
sends a batch at a time anyway."""
GROUPS = 16
"""Enough for a steady estimate of the error, few enough that each is a sample of some size."""


@dataclass(frozen=True)
class Block:
    """Offsets [begin, end) of a partition, and the group that they count for."""

    partition: int
    begin: int
    end: int
    group: int


@dataclass(frozen=True)
class Drawn:
    """The blocks of a topic that are read, in the order of partitions and offsets."""

    blocks: tuple[Block, ...]
    fraction: float
    """The probability with which each offset is among them; 1: all are. 0: there are none."""
    offsets: int
    """Of all partitions together."""


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
        return Drawn((), 0.0, 0)
    step = blocks / wanted
    at = np.floor(step * (draw.random() + np.arange(wanted))).astype(np.int64)
    partition = np.searchsorted(np.cumsum(each), at, side="right")
    begin = np.array(begins, np.int64)[partition]
    begin += (at - (np.cumsum(each) - each)[partition]) * BLOCK_OFFSETS
    end = np.minimum(begin + BLOCK_OFFSETS, np.array(ends, np.int64)[partition])
    return Drawn(
        tuple(
            Block(*block)
            for block in zip(
                partition.tolist(),
                begin.tolist(),
                end.tolist(),
                _dealt(wanted, draw).tolist(),
                strict=True,
            )
        ),
        wanted / blocks,
        offsets,
    )


def _dealt(blocks: int, draw: np.random.Generator) -> npt.NDArray[np.int64]:
    """The group of each block, int64 (n,): as many blocks in each group, give or take one, and of
    `GROUPS` blocks in a row one in each."""
    rounds = -(-blocks // GROUPS)
    found: npt.NDArray[np.int64] = np.argsort(draw.random((rounds, GROUPS)), axis=1).ravel()
    return found[:blocks].astype(np.int64)
