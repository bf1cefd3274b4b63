"""A topic's messages as a correction: those that no earlier revision of the session has read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from spillway.cleanup.deferred import TopicSource
from spillway.corrections.rows import (
    Correction,
    CorrectionRefused,
    KeptRevision,
    check,
    topic_of,
)
from spillway.kafka.client import cluster, demand_listener
from spillway.protocol.offsets import greater, padded, rows_between
from spillway.report.words import times_text
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
    """What a topic holds now and no revision in `kept` has read; None: nothing.

    `stream`: whose messages they are; None: that of the topic's name. Raises `CorrectionRefused`,
    `TopicProblem`, KafkaUnavailable.
    """
    if topic in {plan.topic for plan in source.streams}:
        raise CorrectionRefused(
            f"{topic!r} is a topic that the query reads, so its rows are of some session already: "
            "send the late rows to a topic of their own"
        )
    wanted = topic_of(stream or topic, source.streams)
    demand_listener(source.messages.bootstrap)
    with cluster(source.messages.bootstrap, source.messages.client) as view:
        (found,) = view.topics([topic])
        oldest, end = view.beginning_offsets([topic]), view.end_offsets([topic])
    start = begin_of(kept, topic, found.id, end)
    if gone := rows_between(start, greater(start, oldest)):
        lost = times_text(gone, "message")
        tell(f"Kafka does not hold {lost} of {topic!r} any more that no revision has")
    start = greater(start, oldest)
    if not rows_between(start, end):
        return None
    messages = source.messages.identified([found])
    chunks = list(read_messages(messages, ranges_of(start, end)))
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
        read_to=TopicPlace(topic=topic, id=found.id, end=end[topic]),
        places=(partitions, offsets),
    )
    check(correction, source.streams, topic)
    return correction


def begin_of(kept: Sequence[KeptRevision], topic: str, topic_id: str, end: Offsets) -> Offsets:
    """Where the last revision that has read a topic stopped; of one that was made anew, its
    begin."""
    places = [each.read_to for each in kept if each.read_to is not None]
    ends = [each.end for each in places if (each.topic, each.id) == (topic, topic_id)]
    return padded({topic: ends[-1]} if ends else {}, end)
