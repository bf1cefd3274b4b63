"""How large Spark's Arrow batches may grow."""

from __future__ import annotations

import pytest

from spillway.policy.batches import (
    BYTES,
    ROWS,
    SMALL_EPOCH_BYTES,
    UNKNOWN_ROWS,
    UNLIMITED,
    Batching,
    batching,
)


@pytest.mark.parametrize(
    ("rows", "bytes_per_row", "again", "expected"),
    [
        (600_000, 80.0, False, UNLIMITED),
        (600_000, 80.0, True, BYTES),  # what failed once may have been too large
        (600_000, 1000.0, False, BYTES),
        (SMALL_EPOCH_BYTES, 1.0, False, UNLIMITED),
        (SMALL_EPOCH_BYTES + 1, 1.0, False, BYTES),
        (0, 1e9, False, UNLIMITED),
    ],
)
def test_bytes_are_limited_unless_the_epoch_is_known_to_be_small(
    rows: int, bytes_per_row: float | None, again: bool, expected: int
) -> None:
    assert batching(rows, bytes_per_row, again=again) == Batching(ROWS, expected)


def test_few_rows_while_their_size_is_unknown() -> None:
    assert batching(600_000, None, again=False) == Batching(UNKNOWN_ROWS, UNLIMITED)
    assert batching(600_000, None, again=True) == Batching(ROWS, BYTES)
