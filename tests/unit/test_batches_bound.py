"""The most bytes that so many messages in a row may have, against every way to cut them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from spillway.policy.batches import BYTES, ROWS, SMALL_EPOCH_BYTES, UNLIMITED, Batching, most_bytes
from spillway.verify.proof import batches_of
from tests.protocol_entries import count, ends, epoch

parts = st.lists(st.lists(st.integers(1, 9), max_size=6), max_size=9)


@given(parts, st.integers(1, 12))
def test_no_run_of_messages_has_more_bytes_than_is_said(sizes: list[list[int]], rows: int) -> None:
    values = [size for part in sizes for size in part]
    starts = range(max(len(values) - rows, 0) + 1)
    most = max((sum(values[start : start + rows]) for start in starts), default=0)
    said = most_bytes(((len(part), sum(part)) for part in sizes), rows)
    assert said is not None
    assert most <= said
    # A part counts as a whole, and so do those at both ends.
    edges = [0, *(sum(map(len, sizes[: k + 1])) for k in range(len(sizes)))]
    slack = max((sum(values[a:b]) for a, b in pairwise(edges)), default=0)
    assert said <= most + 3 * slack


def test_sizes_that_are_not_known_are_not_taken_for_small() -> None:
    assert most_bytes([(3, 30), (2, 0), (1, 9)]) is None
    assert most_bytes([(0, 0), (2, 7)]) == 7
    assert most_bytes([]) == 0


def test_messages_are_counted_where_the_journal_says_that_they_are_small() -> None:
    def read(*sizes: int) -> list[object]:
        parts = [count("a", 0, 100).model_copy(update={"bytes": size}) for size in sizes]
        return [epoch(2 + n, n, ends(n, n, n), read=[part]) for n, part in enumerate(parts)]

    assert batches_of(read(9, 9)) == Batching(ROWS, UNLIMITED)  # type: ignore[arg-type]
    assert batches_of([]) == Batching(ROWS, UNLIMITED)
    large = SMALL_EPOCH_BYTES // 2 + 1
    assert batches_of(read(large, 9)) == Batching(ROWS, UNLIMITED)  # type: ignore[arg-type]
    assert batches_of(read(large, large)) == Batching(ROWS, BYTES)  # type: ignore[arg-type]
    assert batches_of(read(9, 0)) == Batching(ROWS, BYTES)  # type: ignore[arg-type]
    names = Batching(7, 8).settings
    assert names == {
        "spark.sql.execution.arrow.maxRecordsPerBatch": "7",
        "spark.sql.execution.arrow.maxBytesPerBatch": "8",
    }
