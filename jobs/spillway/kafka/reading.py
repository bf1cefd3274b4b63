"""Ranges of topics, read whole: kafka-python fetches, `wire` makes columns of what came.

kafka-python finds leaders, logs in, and tries again, but makes an object of every record. Here its
fetcher hands over each answer as it is.

Known limitation: that reaches into kafka-python (`Fetcher.PartitionRecords`), which is locked.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.fetcher import Fetcher
from kafka.errors import KafkaError, OffsetOutOfRangeError, TopicAuthorizationFailedError

from spillway.kafka.client import TIMEOUT_S, KafkaUnavailable, TopicProblem, absent_remedy, told
from spillway.kafka.options import check_files, python_options
from spillway.kafka.wire import BatchDamaged, BatchHeader, Records, committed, headers, read_records
from spillway_schemas.secret import Options

FETCH_BYTES = 16 << 20
"""Asked for at a time; a larger batch comes whole."""
SILENT_S = 60.0
"""So long a partition may give nothing before it is given up: an election takes less."""


class _Answer(NamedTuple):
    """Whole batches of an answer, in the place of a record."""

    offset: int
    """The last one in it."""
    data: Any
    batches: list[BatchHeader]


class _Answers(Fetcher.PartitionRecords):  # type: ignore[misc]
    """An answer of a broker, handed over as one record."""

    def _unpack_records(self, _: Any, records: Any, *__: Any) -> Iterator[_Answer]:
        data = records._buffer
        found = list(headers(data))
        if found:
            aborted = [(each.producer_id, each.first_offset) for each in self.aborted_transactions]
            self.next_fetch_offset = found[-1].last_offset + 1
            self.bytes_read += found[-1].end
            yield _Answer(found[-1].last_offset, data, committed(found, data, aborted))
        self.drain()


@dataclass(frozen=True)
class TopicRange:
    """The rows of one partition from offset `begin` up to (not including) `end`."""

    topic: str
    partition: int
    begin: int
    end: int


class TopicReader:
    """Reads ranges, one after another. A context manager."""

    def __init__(self, bootstrap: str, options: Options) -> None:
        """Raises KafkaUnavailable when no broker answers."""
        check_files(options)
        config: dict[str, Any] = python_options(options, "consumer") | {
            "client_id": "spillway-reader",
            "group_id": None,
            "enable_auto_commit": False,
            "auto_offset_reset": "none",
            "isolation_level": "read_committed",
            "check_crcs": False,  # `headers` does
            "allow_auto_create_topics": False,
            "fetch_max_wait_ms": 20,
            "retry_backoff_ms": 20,  # it sleeps so long where a leader is not known yet
            "fetch_max_bytes": FETCH_BYTES,
            "max_partition_fetch_bytes": FETCH_BYTES,
            "bootstrap_timeout_ms": int(TIMEOUT_S * 1000),
            "metrics_enabled": False,
        }
        self._bootstrap = bootstrap
        self._options = options
        try:
            self._consumer = KafkaConsumer(bootstrap_servers=bootstrap.split(","), **config)
        except (KafkaError, OSError) as error:
            raise self._unavailable(error) from error
        self._consumer._fetcher.PartitionRecords = _Answers

    def __enter__(self) -> TopicReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close(autocommit=False, timeout_ms=1000)

    def read(self, wanted: TopicRange, *, silent_s: float = SILENT_S) -> Iterator[Records]:
        """The messages of a range that count, in their order.

        Raises `TopicProblem` where the range is gone or may not be read, `KafkaUnavailable` when
        nothing has come for `silent_s`, `BatchDamaged`.
        """
        place = TopicPartition(wanted.topic, wanted.partition)
        consumer = self._consumer
        consumer.assign([place])
        consumer.seek(place, wanted.begin)
        at, since = wanted.begin, time.monotonic()
        while at < wanted.end:
            try:
                came = consumer.poll(timeout_ms=1000)
                for answer in came.get(place, ()):
                    for records in read_records(answer.batches, answer.data):
                        part = _within(records, wanted)
                        if len(part.offsets):
                            yield part
                position = consumer.position(place)
            except OffsetOutOfRangeError as error:
                raise TopicProblem(
                    f"{wanted.topic!r} partition {wanted.partition} does not hold offset {at} any "
                    "more",
                    "keep input longer (retention.ms, retention.bytes)",
                ) from error
            except TopicAuthorizationFailedError as error:
                raise TopicProblem(
                    f"{self._bootstrap} does not let this user read topic {wanted.topic!r}",
                    "grant Describe and Read on it, or check the credentials in kafka.options",
                ) from error
            except BatchDamaged as error:
                raise BatchDamaged(
                    f"{wanted.topic!r} partition {wanted.partition}: {error}"
                ) from error
            except (KafkaError, OSError) as error:
                raise self._unavailable(error) from error
            if position > at:
                at, since = position, time.monotonic()
            elif time.monotonic() - since > silent_s:
                raise KafkaUnavailable(
                    f"{wanted.topic!r} partition {wanted.partition} at {self._bootstrap} has given "
                    f"nothing for {silent_s:.0f} s, though it should hold offset {at}",
                    "see that all brokers run",
                )

    def _unavailable(self, error: Exception) -> KafkaUnavailable:
        return KafkaUnavailable(
            f"Kafka at {self._bootstrap} does not answer ({told(error, self._options)})",
            f"{absent_remedy(self._bootstrap)}; check kafka.options, too",
        )


def _within(records: Records, wanted: TopicRange) -> Records:
    """Those of the range."""
    first, last = np.searchsorted(records.offsets, [wanted.begin, wanted.end]).tolist()
    if first == 0 and last == len(records.offsets):
        return records
    part = slice(first, last)
    values = records.values.slice(first, last - first)
    return Records(records.offsets[part], records.kafka_ms[part], values)
