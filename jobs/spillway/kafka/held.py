"""Whether Kafka still holds what was read from it."""

from __future__ import annotations

from collections.abc import Iterable

from spillway.kafka.client import KafkaCluster, TopicProblem
from spillway_schemas.journal import Offsets, Topic


def input_gone(view: KafkaCluster, topics: Iterable[Topic], start: Offsets, end: Offsets) -> str:
    """What Kafka does not hold any more of the rows from `start` to `end`, in words; empty: it has
    all of them, or had a moment ago.

    `topics`: as the journal knows them.
    """
    names = sorted(end)
    known = {topic.name: topic.id for topic in topics}
    try:
        found = {topic.name: topic.id for topic in view.topics(names)}
        first, last = view.beginning_offsets(names), view.end_offsets(names)
    except TopicProblem as error:
        return f"the input is gone: {error}"
    for name in names:
        if name in known and known[name] != found[name]:
            return f"the topic {name!r} was deleted and created again: the input is gone"
    for name in names:
        for partition, (oldest, newest, begin, stop) in enumerate(
            zip(first[name], last[name], start[name], end[name], strict=False)
        ):
            if begin < stop and newest < stop:
                return (
                    f"Kafka holds {name!r} partition {partition} up to offset {newest}, but the "
                    f"input ends at {stop}"
                )
            if begin < oldest and begin < stop:
                return (
                    f"Kafka holds {name!r} partition {partition} from offset {oldest} on, but the "
                    f"input begins at {begin}"
                )
    return ""
