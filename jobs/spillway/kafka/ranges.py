"""Messages of many short ranges of offsets, without Spark: for a sample of a topic."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from spillway.kafka.client import KafkaUnavailable, told
from spillway.kafka.options import python_options
from spillway_schemas.secret import Options

CONNECT_S = 10.0
SILENT_S = 30.0
"""So long a broker may give nothing at all."""
FETCH_BYTES = 256 << 10
"""Of a partition at a time: of what is fetched, what lies beyond the range is thrown away."""
POLLED = 128
"""Messages of a poll: each is an object, whether its range wants it or not."""
NEAR_OFFSETS = 1_000
"""A range that begins so soon is read on to. A jump fetches a whole batch of the producer's again,
and kafka-python makes objects of all that lie before the place in it (20 us each)."""


class SampledMessage(NamedTuple):
    """A message, and the place in the list of ranges of the one that it lies in."""

    range: int
    value: bytes | None
    kafka_ms: int


def messages_of(
    bootstrap: str, options: Options, topic: str, ranges: Iterable[tuple[int, int, int]]
) -> Iterator[SampledMessage]:
    """The committed messages of a topic in these ranges (partition, begin, end), in any order.

    Those of one partition stand in the order of their offsets and do not overlap. Raises
    KafkaUnavailable.
    """
    from kafka import KafkaConsumer, TopicPartition
    from kafka.errors import KafkaError

    waiting: dict[Any, deque[tuple[int, int, int]]] = {}
    for at, (partition, begin, end) in enumerate(ranges):
        place = TopicPartition(topic, partition)
        waiting.setdefault(place, deque()).append((begin, end, at))
    if not waiting:
        return
    config: dict[str, Any] = {
        "client_id": "spillway-sample",
        "isolation_level": "read_committed",
        "auto_offset_reset": "earliest",  # what retention takes meanwhile is passed over
        "enable_auto_commit": False,
        "allow_auto_create_topics": False,
        "bootstrap_timeout_ms": int(CONNECT_S * 1000),
        "metrics_enabled": False,
    } | python_options(options, "consumer")
    config |= {"max_partition_fetch_bytes": FETCH_BYTES, "fetch_max_wait_ms": 20}
    try:
        consumer = KafkaConsumer(bootstrap_servers=bootstrap.split(","), **config)
        try:
            yield from _read(consumer, waiting)
        finally:
            consumer.close(autocommit=False, timeout_ms=2000)
    except (KafkaError, OSError) as error:
        raise KafkaUnavailable(
            f"Kafka at {bootstrap} does not answer ({told(error, options)})"
        ) from error


def _read(
    consumer: Any, waiting: dict[Any, deque[tuple[int, int, int]]]
) -> Iterator[SampledMessage]:
    """One range of each partition at a time."""
    consumer.assign(list(waiting))
    for place, ranges in waiting.items():
        consumer.seek(place, ranges[0][0])
    heard = time.monotonic()
    left = dict.fromkeys(waiting, -1)
    while left:
        for place, records in consumer.poll(timeout_ms=200, max_records=POLLED).items():
            ranges = waiting[place]
            for record in records:
                while ranges and record.offset >= ranges[0][1]:
                    ranges.popleft()
                if ranges and record.offset >= ranges[0][0]:
                    yield SampledMessage(ranges[0][2], record.value, record.timestamp)
        for place, before in list(left.items()):
            # The position: past the end there may be markers of transactions alone.
            ranges, at = waiting[place], consumer.position(place)
            if at != before:
                heard = time.monotonic()
            while ranges and at >= ranges[0][1]:
                ranges.popleft()
            if not ranges:
                consumer.pause(place)
                del left[place]
                continue
            if ranges[0][0] > at + NEAR_OFFSETS:
                at = ranges[0][0]
                consumer.seek(place, at)
            left[place] = at
        if time.monotonic() - heard > SILENT_S:
            place = min(left)
            raise KafkaUnavailable(
                f"{place.topic} partition {place.partition} gave nothing for {SILENT_S:.0f} s",
                "see that its leader runs",
            )
