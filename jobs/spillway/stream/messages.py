"""Messages of Kafka, read in Python workers and not by Spark's source.

Spark's source says how far Kafka goes. Reading through it costs more than decoding
and joining together: a Java object for each record, a row of Spark's, and a batch of Arrow that
crosses to the worker. Here a worker reads its ranges itself (`spillway.kafka.reading`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from spillway.decode.chunks import Chunk
from spillway.protocol.offsets import padded
from spillway_schemas.journal import Offsets, Topic
from spillway_schemas.secret import Options, revealed

if TYPE_CHECKING:  # loads kafka-python: a cleanup that reads nothing there does without
    from spillway.kafka.reading import TopicRange, TopicReader

EPOCH_SILENT_S = 120.0
"""Brokers may be silent for so long while an epoch is read: as long as Spark's source waits."""

READERS_PER_CORE = 4
"""Tasks of a job that is no epoch, and reads and decodes much."""


@dataclass(frozen=True)
class MessageSource:
    """Where messages are. Picklable."""

    bootstrap: str
    client: Options
    """Java client options."""
    ids: Mapping[str, str] = field(default_factory=dict)
    """Kafka's ids of topics, as the journal knows them: another one has other rows. Those that are
    not here are not compared."""

    def identified(self, topics: Iterable[Topic]) -> MessageSource:
        """Rows of these topics, and of none that is made anew under one of their names."""
        return replace(self, ids={topic.name: topic.id for topic in topics})


_readers: dict[tuple[object, ...], TopicReader] = {}
"""This process's connections, by address and options. A worker reads epoch after epoch."""


def ranges_of(start: Offsets, end: Offsets) -> list[TopicRange]:
    """What lies between, by topic and partition. A partition that `start` lacks begins at 0."""
    from spillway.kafka.reading import TopicRange

    begins = padded(start, end)
    return [
        TopicRange(topic, partition, begins[topic][partition], stop)
        for topic, ends in sorted(end.items())
        for partition, stop in enumerate(ends)
        if begins[topic][partition] < stop
    ]


ROWS_WORTH_A_TASK = 65_536
"""Reading and decoding so many takes about as long as a task costs beside them."""


def task_ranges(ranges: Sequence[TopicRange], tasks: int) -> list[tuple[TopicRange, ...]]:
    """The ranges for at most so many tasks, and no more than their rows are worth: the largest
    first, each to the task that has least."""
    worth = -(-sum(each.end - each.begin for each in ranges) // ROWS_WORTH_A_TASK)
    found: list[list[TopicRange]] = [[] for _ in range(min(tasks, len(ranges), max(1, worth)))]
    rows = [0] * len(found)
    for each in sorted(ranges, key=lambda r: r.begin - r.end):
        least = rows.index(min(rows))
        found[least].append(each)
        rows[least] += each.end - each.begin
    return [tuple(each) for each in found]


def read_messages(source: MessageSource, ranges: Iterable[TopicRange]) -> Iterator[Chunk]:
    """The messages of ranges as chunks, of each partition in their order.

    Raises `TopicProblem` (`TopicDeleted` among them), `KafkaUnavailable`, `BatchDamaged`.
    """
    key = (source.bootstrap, *sorted(revealed(source.client).items()))
    reader = _readers.pop(key, None)
    if reader is None:
        from spillway.kafka.reading import TopicReader

        reader = TopicReader(source.bootstrap, source.client, EPOCH_SILENT_S)
    try:
        for of, records in reader.read(ranges, source.ids):
            whole = Chunk(of.topic, of.partition, records.values, records.offsets, records.kafka_ms)
            yield from whole.parts()
    except BaseException:  # one that failed, or was left, is not used again
        reader.close()
        raise
    _readers[key] = reader


def reading_frame(
    spark: Any,
    source: MessageSource,
    shares: Sequence[tuple[TopicRange, ...]],
    work: Callable[[Iterable[Chunk]], Iterator[Any]],
    schema: Any,
) -> Any:
    """A frame of what `work` makes of the messages, a task for each share."""
    numbers = spark.range(0, len(shares), 1, len(shares))

    def task(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from work(read_messages(source, shares[number]))

    return numbers.mapInArrow(task, schema)


def whole_frame(
    spark: Any,
    source: MessageSource,
    ranges: Sequence[TopicRange],
    work: Callable[[Iterable[Chunk]], Iterator[Any]],
    schema: Any,
) -> Any:
    """The same of all messages of ranges, in a job that is no epoch."""
    tasks = READERS_PER_CORE * spark.sparkContext.defaultParallelism
    return reading_frame(spark, source, task_ranges(ranges, tasks), work, schema)
