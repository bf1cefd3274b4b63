"""The last committed record of a partition, read from its end."""

from __future__ import annotations

import time
from typing import Any

from spillway.kafka.client import KafkaUnavailable, connected, told
from spillway.kafka.options import COMMITTED_ALONE, python_options
from spillway_schemas.secret import Options

LOOK_BACK = 100
"""Offsets that are read at first; each further look reads ten times as many. Markers of
transactions and records of aborted ones are offsets, too, and compaction leaves gaps."""
TIMEOUT_S = 60.0


def last_committed(bootstrap: str, options: Options, topic: str, partition: int) -> bytes | None:
    """The value of the last record that is committed; None when there is none.

    Raises KafkaUnavailable when Kafka does not answer in time.
    """
    from kafka import KafkaConsumer
    from kafka.errors import KafkaError

    config: dict[str, Any] = {
        **python_options(options, "consumer"),
        **COMMITTED_ALONE,
        "client_id": "spillway-last",
        "auto_offset_reset": "earliest",
        "fetch_max_wait_ms": 20,
        "metrics_enabled": False,
    }
    try:
        consumer = connected(KafkaConsumer, bootstrap, config)
        try:
            return _last(consumer, topic, partition, time.monotonic() + TIMEOUT_S)
        finally:
            consumer.close(autocommit=False)
    except (KafkaError, OSError) as error:
        raise KafkaUnavailable(
            f"Kafka at {bootstrap} does not give {topic} ({told(error, options)})",
            "see that this user may read it",
        ) from error


def _last(consumer: Any, topic: str, partition: int, until: float) -> bytes | None:
    from kafka import TopicPartition
    from kafka.errors import KafkaTimeoutError

    place = TopicPartition(topic, partition)
    consumer.assign([place])
    first = consumer.beginning_offsets([place])[place]
    end = consumer.end_offsets([place])[place]
    found: bytes | None = None
    back = LOOK_BACK
    while True:
        begin = max(first, end - back)
        consumer.seek(place, begin)
        while consumer.position(place) < end:
            if time.monotonic() > until:
                raise KafkaTimeoutError(f"no end of it within {TIMEOUT_S:.0f} s")
            for record in consumer.poll(timeout_ms=200).get(place, ()):
                found = record.value
        if found is not None or begin == first:
            return found
        back *= 10
