"""How Spark shall cut the Arrow batches that it hands to Python workers.

With a limit in bytes Spark adds up every vector's size after each row: a quarter of what its
reading of 80-byte messages cost. Without it a batch holds a number of rows, whatever their size.
So the limit is set only where a batch without it might grow large.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
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

    @property
    def settings(self) -> dict[str, str]:
        """As Spark calls them."""
        name = "spark.sql.execution.arrow"
        return {
            f"{name}.maxRecordsPerBatch": str(self.rows),
            f"{name}.maxBytesPerBatch": str(self.bytes),
        }


def most_bytes(parts: Iterable[tuple[int, int]], rows: int = ROWS) -> int | None:
    """The most that `rows` values in a row may have, of values in parts of known (rows, bytes).

    They begin anywhere in a part, so a part counts as a whole. None: some part's bytes are not
    known.
    """
    most = count = size = 0
    window: deque[tuple[int, int]] = deque()
    for part in parts:
        if part[0] and not part[1]:
            return None
        window.append(part)
        count, size = count + part[0], size + part[1]
        # What lies before the last `rows` values of the parts before this one cannot meet it.
        while count - window[0][0] - part[0] >= rows:
            gone = window.popleft()
            count, size = count - gone[0], size - gone[1]
        most = max(most, size)
    return most


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
