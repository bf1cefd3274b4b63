"""Where a time lies in the topics, though rows come while that is being asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from kafka.protocol.consumer import OffsetSpec

from spillway.kafka.client import KafkaCluster
from spillway_schemas.journal import Offsets, Topic

AT_MS = 1_000


class Growing(KafkaCluster):
    """One partition, to which a row of `stamp_ms` comes after each question."""

    def __init__(self, stamps_ms: list[int], stamp_ms: int) -> None:
        self.stamps_ms, self.stamp_ms = stamps_ms, stamp_ms

    def topics(self, names: Sequence[str]) -> list[Topic]:
        return [Topic(name=name, id=name, partitions=1) for name in names]

    def _offsets(self, topics: Sequence[Topic], spec: Any, read_committed: bool) -> Offsets:
        if spec == OffsetSpec.LATEST:
            found = len(self.stamps_ms)
        else:
            later = [offset for offset, ms in enumerate(self.stamps_ms) if ms >= spec]
            found = later[0] if later else -1
        self.stamps_ms.append(self.stamp_ms)
        return {topic.name: [found] for topic in topics}


@pytest.mark.parametrize(
    ("stamps_ms", "stamp_ms", "offset"),
    [
        ([997, 998, 999], AT_MS, 3),  # the row that comes meanwhile is the first of the next day
        ([997, 998, 999], 999, 3),  # a row that was sent late is not in the day either
        ([997, 1_000, 999], AT_MS, 1),
        ([], AT_MS, 0),
    ],
)
def test_a_row_that_comes_meanwhile_lies_beyond(
    stamps_ms: list[int], stamp_ms: int, offset: int
) -> None:
    """Asked in the other order, the first of them is lost between the two answers."""
    assert Growing(stamps_ms, stamp_ms).offsets_for_time(["t"], AT_MS) == {"t": [offset]}
