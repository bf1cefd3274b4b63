"""How Spark shall cut the Arrow batches that it hands to Python workers.

With a limit in bytes Spark adds up every vector's size after each row: a quarter of what its
reading of 80-byte messages cost. Without it a batch holds a number of rows, whatever their size.
So the limit is set only where a batch without it might grow large.
"""

from __future__ import annotations

from dataclasses import dataclass

ROWS = 10_000
UNKNOWN_ROWS = 1_000
"""While nothing is known of the values: brokers refuse values over 1 MiB unless told otherwise."""
BYTES = 64 << 20
UNLIMITED = 2**31 - 1
"""Spark's own value for "do not look"."""
SMALL_EPOCH_BYTES = 512 << 20
"""All blocks of a slot may come as one batch, which holds at most 2 GiB."""


@dataclass(frozen=True)
class Batching:
    """Spark's limits of one Arrow batch."""

    rows: int
    bytes: int


def batching(
    rows: int, bytes_per_row: float | None, *, again: bool, moved_bytes: int = 0
) -> Batching:
    """Limits for an epoch of at most `rows` rows.

    Args:
        rows: offsets that the epoch covers.
        bytes_per_row: mean size of the values read in the epoch before; None: not known yet.
        moved_bytes: state that moves in it, as far as is known.
        again: this is a repeated attempt, or one that reads lost state again.
    """
    if again:
        return Batching(ROWS, BYTES)
    if bytes_per_row is None:
        return Batching(UNKNOWN_ROWS, UNLIMITED)
    small = rows * bytes_per_row + moved_bytes <= SMALL_EPOCH_BYTES
    return Batching(ROWS, UNLIMITED if small else BYTES)
