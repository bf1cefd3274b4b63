"""Sending: kafka-python's idempotent producer, fed with whole batches.

A `Sender` owns one `KafkaProducer`. Batches come as bytes from `spillway.produce.records` and are
put where `KafkaProducer.send` would have put them; from there on everything is kafka-python's:
compression, checksum, producer id and sequence, requests, retries. So a batch is written once
even when its acknowledgement was lost.

Known limitation: this reaches into kafka-python (the accumulator and the batch builder), which
has no public way to hand over more than one record. The version is locked, and the tests read
back what was sent. A batch that the broker finds too large is refused and not cut smaller: use a
smaller `batch_bytes` against a broker with a small `message.max.bytes`.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from spillway.kafka.client import KafkaUnavailable, TopicProblem, told, unavailable
from spillway.kafka.options import python_options
from spillway.produce.records import PartitionRecords, batches
from spillway_schemas.secret import Options

BATCH_BYTES = 256 * 1024
"""Uncompressed; it passes a broker's default limit of 1 MB in any case."""
OUTSTANDING_BYTES = 64 * 1024 * 1024
"""kafka-python bounds no memory: beyond this much unacknowledged the sender waits."""
MAX_REQUEST_BYTES = 16 * 1024 * 1024
TRANSACTION_MS = 5 * 60 * 1000
"""After so long a broker aborts a transaction whose producer is gone. Brokers allow 15 min."""


class Sender:
    """Sends batches to topic partitions. Use as a context manager, in one thread."""

    def __init__(
        self,
        bootstrap: str,
        options: Options | None = None,
        *,
        compression: str | None = "lz4",
        timeout_s: float = 30.0,
        client_id: str = "spillway-produce",
        transactional_id: str | None = None,
    ):
        """`transactional_id`: see `spillway.produce.transactions`.

        Raises KafkaUnavailable when no broker answers.
        """
        from kafka import KafkaProducer
        from kafka.errors import KafkaError

        config: dict[str, Any] = {
            "compression_type": compression,
            "max_request_size": MAX_REQUEST_BYTES,
            "max_block_ms": int(timeout_s * 1000),
            "bootstrap_timeout_ms": int(timeout_s * 1000),
            "metrics_enabled": False,
            "allow_auto_create_topics": False,
            "client_id": client_id,
            "transaction_timeout_ms": TRANSACTION_MS,
        } | python_options(options or {}, "producer")
        config |= {"enable_idempotence": True, "transactional_id": transactional_id}
        self._options = options or {}
        try:
            self._producer = KafkaProducer(bootstrap_servers=bootstrap.split(","), **config)
        except (KafkaError, OSError) as error:
            raise unavailable(bootstrap, self._options, error) from error
        self._pending: deque[tuple[Any, int]] = deque()
        self._pending_bytes = 0
        self._partitions: dict[str, int] = {}

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(wait=kind is None)

    def partitions(self, topic: str) -> int:
        """Number of partitions of a topic. Raises TopicProblem when it does not exist."""
        if topic not in self._partitions:
            from kafka.errors import KafkaError

            try:
                found = self._producer.partitions_for(topic)
            except KafkaError as error:
                raise TopicProblem(f"no topic {topic!r} ({type(error).__name__})") from error
            if not found:
                raise TopicProblem(f"no topic {topic!r}")
            self._partitions[topic] = len(found)
        return self._partitions[topic]

    def send(self, topic: str, batch: PartitionRecords) -> None:
        """Hand over one batch; waits while too much is unacknowledged.

        Raises KafkaUnavailable when an earlier batch was given up.
        """
        self.partitions(topic)
        size = len(batch.body)
        while self._pending and self._pending_bytes + size > OUTSTANDING_BYTES:
            self._settle()
        self._pending.append((_hand_over(self._producer, topic, batch), size))
        self._pending_bytes += size
        while self._pending and self._pending[0][0].is_done:
            self._settle()

    def send_rows(
        self,
        topic: str,
        partitions: npt.NDArray[np.int32],
        keys: Any,
        values: Any,
        timestamps_ms: npt.NDArray[np.int64],
        batch_bytes: int = BATCH_BYTES,
    ) -> None:
        """Send rows, in batches; see `spillway.produce.records.batches` for their shapes."""
        for batch in batches(partitions, keys, values, timestamps_ms, batch_bytes):
            self.send(topic, batch)

    def flush(self) -> None:
        """Wait until everything is acknowledged. Raises KafkaUnavailable when it is not."""
        while self._pending:
            self._settle()

    def close(self, *, wait: bool = True) -> None:
        """End the producer, by default once everything is acknowledged."""
        try:
            if wait:
                self.flush()
        finally:
            self._producer.close(timeout=None if wait else 0)

    def _settle(self) -> None:
        from kafka.errors import KafkaError

        future, size = self._pending.popleft()
        self._pending_bytes -= size
        try:
            # kafka-python gives a batch up after delivery.timeout.ms (120 s); longer than that it
            # is silent only about a batch that it cut in two because the broker refused its size.
            future.get(timeout=180)
        except KafkaError as error:
            raise self._not_written(error) from error

    def _not_written(self, error: Exception) -> Exception:
        """What is raised for a batch that was given up."""
        return KafkaUnavailable(
            f"a batch was not written ({told(error, self._options)}). What was sent before it "
            "is in the topics; what came after may not be"
        )


def _hand_over(producer: Any, topic: str, batch: PartitionRecords) -> Any:
    """Queue a finished batch, as `RecordAccumulator.append` queues one that is full."""
    from kafka import TopicPartition
    from kafka.producer.future import FutureRecordMetadata
    from kafka.producer.producer_batch import ProducerBatch

    place = TopicPartition(topic, batch.partition)
    queued = ProducerBatch(place, _builder(batch, producer.config["compression_attrs"]))
    queued.max_record_size = batch.largest
    future = FutureRecordMetadata(
        queued.produce_future, batch.count - 1, batch.max_ms, None, -1, len(batch.body), -1
    )
    if (manager := producer._transaction_manager) is not None and manager.is_transactional():
        manager.maybe_add_partition_to_transaction(place)
    accumulator = producer._accumulator
    accumulator._appends_in_progress.increment()
    try:
        with accumulator._tp_lock(place):
            accumulator._batches[place].append(queued)
            accumulator._incomplete.add(queued)
    finally:
        accumulator._appends_in_progress.decrement()
    producer._sender.wakeup()
    return future


def _builder(batch: PartitionRecords, compression: int) -> Any:
    """kafka-python's own builder with the records filled in.

    It writes the header, compresses and signs when the batch is sent.
    """
    from kafka.record.memory_records import MemoryRecordsBuilder

    records = MemoryRecordsBuilder(2, compression, batch_size=1)
    builder = records._builder
    builder._buffer += batch.body
    builder._first_timestamp = batch.first_ms
    builder._max_timestamp = batch.max_ms
    builder._last_offset = batch.count - 1
    builder._num_records = batch.count
    records._next_offset = batch.count
    return records
