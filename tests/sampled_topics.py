"""Topics in memory in Kafka's place, for what samples them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from spillway.estimate import reading
from spillway.kafka.client import TopicMissing
from spillway.kafka.ranges import SampledMessage

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
    """Let estimates read these topics; the topics that are read, and how many messages of each."""
    read: list[tuple[str, int]] = []

    def messages_of(
        _bootstrap: str, _options: Any, topic: str, ranges: Iterable[tuple[int, int, int]]
    ) -> Iterator[SampledMessage]:
        ranges = list(ranges)
        read.append((topic, sum(end - begin for _, begin, end in ranges)))
        for at, (partition, begin, end) in enumerate(ranges):
            for kafka_ms, value in topics[topic][partition][begin:end]:
                yield SampledMessage(at, value, kafka_ms)

    patch.setattr(reading, "demand_listener", lambda _: None)
    patch.setattr(reading, "cluster", lambda *_: contextlib.nullcontext(MemoryTopics(topics)))
    patch.setattr(reading, "messages_of", messages_of)
    return read
