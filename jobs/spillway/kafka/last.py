"""The last committed record of a partition, read from its end; whether a topic has any."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from spillway.kafka.client import KafkaUnavailable, TopicProblem, connected, told
from spillway.kafka.options import COMMITTED_ALONE, python_options
from spillway_schemas.secret import Options

LOOK_BACK = 100
"""Offsets that are read at first; each further look reads ten times as many. Markers of
transactions and records of aborted ones are offsets, too, and compaction leaves gaps."""
LAST_TIMEOUT_S = 60.0
"""How long all of it may take."""


def last_committed(
    bootstrap: str,
    options: Options,
    topic: str,
    partition: int,
    timeout_s: float = LAST_TIMEOUT_S,
) -> bytes | None:
    """The value of the last record that is committed; None when there is none.

    Raises KafkaUnavailable when Kafka does not give it within `timeout_s`, and TopicProblem when
    this user may not read it.
    """
    with _reading(bootstrap, options, topic, timeout_s) as (consumer, until):
        found = _last(consumer, topic, partition, until)
    value: bytes | None = None if found is None else found.value
    return value


def has_committed(
    bootstrap: str,
    options: Options,
    topic: str,
    partitions: int,
    timeout_s: float = LAST_TIMEOUT_S,
) -> bool:
    """Whether a topic has a record that is committed: one that only has those of transactions that
    were given up has offsets, and is empty all the same. Raises as above."""
    with _reading(bootstrap, options, topic, timeout_s) as (consumer, until):
        places = range(partitions)
        return any(_last(consumer, topic, each, until) is not None for each in places)


@contextmanager
def _reading(
    bootstrap: str, options: Options, topic: str, timeout_s: float
) -> Iterator[tuple[Any, float]]:
    """A consumer, and until when it may read."""
    from kafka import KafkaConsumer
    from kafka.errors import KafkaError, TopicAuthorizationFailedError

    config: dict[str, Any] = {
        **python_options(options, "consumer"),
        **COMMITTED_ALONE,
        "client_id": "spillway-last",
        "auto_offset_reset": "earliest",
        "bootstrap_timeout_ms": int(timeout_s * 1000),
        "fetch_max_wait_ms": 20,
        "metrics_enabled": False,
    }
    until = time.monotonic() + timeout_s
    try:
        consumer = connected(KafkaConsumer, bootstrap, config)
        try:
            yield consumer, until
        finally:
            consumer.close(autocommit=False)
    except TopicAuthorizationFailedError as error:
        raise TopicProblem(
            f"{bootstrap} does not let this user read topic {topic}",
            "grant Read on it, or check the credentials in kafka.options",
        ) from error
    except (KafkaError, OSError) as error:
        raise KafkaUnavailable(
            f"Kafka at {bootstrap} does not give {topic} ({told(error, options)})",
            "see that this user may read it",
        ) from error


def _last(consumer: Any, topic: str, partition: int, until: float) -> Any:
    """The partition's last committed record; None: it has none."""
    from kafka import TopicPartition
    from kafka.errors import KafkaTimeoutError

    place = TopicPartition(topic, partition)
    consumer.assign([place])
    first = consumer.beginning_offsets([place])[place]
    end = consumer.end_offsets([place])[place]
    found = None
    back = LOOK_BACK
    while True:
        begin = max(first, end - back)
        consumer.seek(place, begin)
        while consumer.position(place) < end:
            if time.monotonic() > until:
                raise KafkaTimeoutError("its end was not reached in time")
            for record in consumer.poll(timeout_ms=200).get(place, ()):
                found = record
        if found is not None or begin == first:
            return found
        back *= 10
