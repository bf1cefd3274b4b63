"""A topic's messages as a correction: those that no earlier revision of the session has read, as
many as a correction takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pyarrow as pa

from spillway.cleanup.deferred import TopicSource
from spillway.corrections import rows
from spillway.corrections.rows import (
    Correction,
    CorrectionRefused,
    KeptRevision,
    check,
    topic_of,
)
from spillway.decode.chunks import Chunk
from spillway.kafka.client import TopicMissing, cluster, demand_listener
from spillway.kafka.reading import TopicDeleted
from spillway.protocol.offsets import greater, padded, rows_between
from spillway.report.words import or_text, times_text
from spillway.stream.messages import ranges_of, read_messages
from spillway_schemas.corrections import TopicPlace
from spillway_schemas.journal import Offsets


def from_topic(
    source: TopicSource,
    topic: str,
    stream: str | None,
    tell: Callable[[str], None],
    kept: Sequence[KeptRevision],
) -> Correction | None:
    """What a topic holds now and no revision in `kept` has read; None: nothing. Of more than a
    correction takes it is a part, and the next run gives the next one.

    `stream`: whose messages they are; None: that of the topic's name. Raises `CorrectionRefused`,
    `TopicProblem`, KafkaUnavailable.
    """
    if topic in {plan.topic for plan in source.streams}:
        raise CorrectionRefused(
            f"{topic!r} is a topic that the query reads, so its rows are of some session already: "
            "send the late rows to a topic of their own"
        )
    names = sorted({plan.name for plan in source.streams})
    if stream is None and topic not in names:
        raise CorrectionRefused(
            f"say with --stream whose messages {topic!r} holds: {or_text(names)}"
        )
    wanted = topic_of(stream or topic, source.streams)
    demand_listener(source.messages.bootstrap)
    with cluster(source.messages.bootstrap, source.messages.client) as view:
        try:
            (found,) = view.topics([topic])
        except TopicMissing as error:
            raise CorrectionRefused(
                f"{error.what}: make it and send the late rows there, or name another with --topic"
            ) from error
        oldest, end = view.beginning_offsets([topic]), view.end_offsets([topic])
    start = begin_of(kept, topic, found.id, end)
    if gone := rows_between(start, greater(start, oldest)):
        lost = times_text(gone, "message")
        tell(f"Kafka has dropped {lost} of {topic!r} that no revision contains")
    start = greater(start, oldest)
    if not rows_between(start, end):
        return None
    messages = source.messages.identified([found])
    chunks, read_to = _as_many_as_fit(read_messages(messages, ranges_of(start, end)), start)
    if read_to is None:
        read_to = end
    else:
        with cluster(messages.bootstrap, messages.client) as view:
            (now,) = view.topics([topic])
        if now.id != found.id:  # who reads to the end is told by the reader
            raise TopicDeleted(f"topic {topic!r} was deleted and created again")
        tell(f"{topic!r} has more than a correction takes: run it again for what is left")
    if not chunks:  # of a topic with transactions some offsets are no messages
        return None
    chunks.sort(key=lambda each: (each.partition, int(each.offsets[0])))
    offsets = np.concatenate([each.offsets for each in chunks])
    partitions = np.repeat([each.partition for each in chunks], [len(c.offsets) for c in chunks])
    correction = Correction(
        topics=pa.repeat(pa.scalar(wanted), len(offsets)),
        values=pa.concat_arrays([each.values.cast(pa.binary()) for each in chunks]),
        offsets=np.arange(1, len(offsets) + 1),
        source=topic,
        read_to=TopicPlace(topic=topic, id=found.id, end=read_to[topic]),
        places=(partitions, offsets),
    )
    check(correction, source.streams, topic)
    return correction


def _as_many_as_fit(came: Iterable[Chunk], start: Offsets) -> tuple[list[Chunk], Offsets | None]:
    """The first chunks of at most `MOST_BYTES`, and where they end; None: these were all."""
    chunks: list[Chunk] = []
    size = 0
    read_to = {topic: list(begins) for topic, begins in start.items()}
    for chunk in came:
        size += chunk.values.nbytes
        if chunks and size > rows.MOST_BYTES:
            return chunks, read_to
        chunks.append(chunk)
        read_to[chunk.topic][chunk.partition] = int(chunk.offsets[-1]) + 1
    return chunks, None


def begin_of(kept: Sequence[KeptRevision], topic: str, topic_id: str, end: Offsets) -> Offsets:
    """Where the last revision that has read a topic stopped; of one that was made anew, its
    begin."""
    places = [each.read_to for each in kept if each.read_to is not None]
    ends = [each.end for each in places if (each.topic, each.id) == (topic, topic_id)]
    return padded({topic: ends[-1]} if ends else {}, end)
