"""Topics in memory in Kafka's place, for what samples them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spillway.estimate import reading
from spillway.kafka.client import TopicMissing
from spillway.kafka.reading import TopicRange
from spillway.kafka.wire import Records

Partition = Sequence[tuple[int, bytes | None]]
"""Kafka's time (ms since 1970, ascending) and value of each message; the first has offset 0."""


class MemoryTopics:
    """The part of `KafkaCluster` that a sample asks for."""

    def __init__(self, topics: Mapping[str, Sequence[Partition]]) -> None:
        self._topics = topics

    def beginning_offsets(self, names: Sequence[str]) -> dict[str, list[int]]:
        return {name: [0] * len(self._of(name)) for name in names}

    def end_offsets(self, names: Sequence[str]) -> dict[str, list[int]]:
        return {name: [len(each) for each in self._of(name)] for name in names}

    def offsets_for_time(self, names: Sequence[str], at_ms: int) -> dict[str, list[int]]:
        return {
            name: [sum(time < at_ms for time, _ in each) for each in self._of(name)]
            for name in names
        }

    def _of(self, name: str) -> Sequence[Partition]:
        if name not in self._topics:
            raise TopicMissing(f"no topic {name!r}", "create it")
        return self._topics[name]


def sample_from(
    patch: pytest.MonkeyPatch, topics: Mapping[str, Sequence[Partition]]
) -> list[tuple[str, int]]:
    """Let estimates read these topics; the ranges that are read: of which topic, how many."""
    read: list[tuple[str, int]] = []

    class Reader:
        """Gives ranges as Kafka would, a message at a time."""

        def __init__(self, *_: Any, **__: Any) -> None:
            """Connected to nobody."""

        def __enter__(self) -> Reader:
            return self

        def __exit__(self, *_: object) -> None:
            """Nothing is open."""

        def read(self, wanted: Iterable[TopicRange]) -> Iterator[tuple[TopicRange, Records]]:
            wanted = list(wanted)
            assert len({each.partition for each in wanted}) == len(wanted), "each partition once"
            for each in wanted:
                rows = topics[each.topic][each.partition][each.begin : each.end]
                read.append((each.topic, len(rows)))
                for begin in range(0, len(rows), 5_000):
                    times, values = zip(*rows[begin : begin + 5_000], strict=True)
                    first = each.begin + begin
                    yield (
                        each,
                        Records(
                            np.arange(first, first + len(values)),
                            np.array(times, np.int64),
                            pa.array(values, pa.large_binary()),
                        ),
                    )

    patch.setattr(reading, "demand_listener", lambda _: None)
    patch.setattr(reading, "cluster", lambda *_: contextlib.nullcontext(MemoryTopics(topics)))
    patch.setattr(reading, "TopicReader", Reader)
    return read
