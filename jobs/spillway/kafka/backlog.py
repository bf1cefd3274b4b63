"""What waits in the topics: how many rows, and how old the oldest is.

A row's age is measured from its Kafka time (the record's timestamp), as the production delay is.
Kafka tells where a partition ends without giving a row; for the time of the first row that waits
that one row has to be fetched, and its batch comes along. So a look costs one request, and one
fetch of at most `FETCH_BYTES` (or one batch) for each partition in which rows wait.

Known limitation: offsets are counted, not rows. Markers of transactions are offsets too, so a few
that never become rows may seem to wait.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spillway.kafka.client import (
    LOOK_ANSWER_S,
    LOOK_CONNECT_S,
    connected,
    demand_listener,
    unavailable,
)
from spillway.kafka.options import COMMITTED_ALONE, python_options
from spillway_schemas.journal import Offsets
from spillway_schemas.secret import Options

FETCH_BYTES = 64 << 10


@dataclass(frozen=True)
class Backlog:
    """What waited at one look."""

    ends: Offsets
    """Per topic that exists: one past the last offset of each partition."""
    oldest_ms: Mapping[str, int]
    """Per topic in which rows wait: Kafka time of the oldest, ms since 1970. A topic is left out
    when some partition did not give its row in time."""


class BacklogReader:
    """One consumer connection, without a group: nobody else's offsets or rows are touched."""

    def __init__(self, bootstrap: str, options: Options) -> None:
        self._bootstrap = bootstrap
        self._options = options
        self._consumer: Any = None

    def look(self, read: Offsets) -> Backlog:
        """What Kafka holds beyond `read`. Raises KafkaUnavailable when it does not answer."""
        from kafka.errors import KafkaError

        if self._consumer is None:
            demand_listener(self._bootstrap, LOOK_CONNECT_S)
        try:
            if self._consumer is None:
                self._consumer = self._connect()
            ends = self._ends(read)
            return Backlog(ends, self._oldest(read, ends))
        except (KafkaError, OSError) as error:
            raise unavailable(self._bootstrap, self._options, error) from error

    def close(self) -> None:
        """Close the connection."""
        if self._consumer is not None:
            self._consumer.close(autocommit=False, timeout_ms=int(LOOK_ANSWER_S * 1000))
            self._consumer = None

    def _connect(self) -> Any:
        from kafka import KafkaConsumer

        answer_ms = int(LOOK_ANSWER_S * 1000)
        config: dict[str, Any] = {
            "client_id": "spillway-backlog",
            "bootstrap_timeout_ms": answer_ms,
            "metadata_max_age_ms": 30_000,
            "reconnect_backoff_max_ms": answer_ms,  # a broker that is back is seen soon
            "metrics_enabled": False,
            **python_options(self._options, "consumer"),
            **COMMITTED_ALONE,
            "auto_offset_reset": "earliest",  # what retention took cannot wait any more
            # A batch is worth reading for its first row only.
            "max_partition_fetch_bytes": FETCH_BYTES,
            "fetch_max_wait_ms": 20,
        }
        return connected(KafkaConsumer, self._bootstrap, config)

    def _ends(self, read: Offsets) -> Offsets:
        from kafka import TopicPartition

        numbers = {t: sorted(self._consumer.partitions_for_topic(t)) for t in read}
        asked = [TopicPartition(t, p) for t, ps in numbers.items() for p in ps]
        found = (
            self._consumer.end_offsets(asked, timeout_ms=int(LOOK_ANSWER_S * 1000)) if asked else {}
        )
        return {
            topic: [int(found[TopicPartition(topic, p)]) for p in ps]
            for topic, ps in numbers.items()
            if ps
        }

    def _oldest(self, read: Offsets, ends: Offsets) -> dict[str, int]:
        """Fetch the first row of every partition in which rows wait; the least time per topic."""
        from kafka import TopicPartition

        behind: dict[Any, int] = {}
        for topic, partitions in ends.items():
            for partition, end in enumerate(partitions):
                known = read[topic]
                begin = known[partition] if partition < len(known) else 0
                if end > begin:
                    behind[TopicPartition(topic, partition)] = begin
        if not behind:
            return {}
        consumer = self._consumer
        consumer.assign(list(behind))
        for partition, begin in behind.items():
            consumer.seek(partition, begin)
        times: dict[Any, int] = {}
        waiting, until = set(behind), time.monotonic() + LOOK_ANSWER_S
        while waiting and time.monotonic() < until:
            for partition, records in consumer.poll(timeout_ms=100, max_records=1).items():
                consumer.pause(partition)
                waiting.discard(partition)
                times[partition] = records[0].timestamp
            # Past the end without a row: what was there were markers or an aborted transaction.
            waiting = {p for p in waiting if consumer.position(p) < ends[p.topic][p.partition]}
        consumer.unsubscribe()
        # A record of an old format may have no time; kafka-python gives -1.
        waiting |= {partition for partition, at_ms in times.items() if at_ms < 0}
        silent = {partition.topic for partition in waiting}
        oldest: dict[str, int] = {}
        for partition, at_ms in times.items():
            if partition.topic not in silent:
                oldest[partition.topic] = min(at_ms, oldest.get(partition.topic, at_ms))
        return oldest
