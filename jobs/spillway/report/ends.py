"""Where Kafka's topics begin and end, asked without waiting long: lag and losses are told by it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from spillway.kafka.client import (
    LOOK_ANSWER_S,
    LOOK_CONNECT_S,
    KafkaUnavailable,
    TopicProblem,
    cluster,
    listens,
)
from spillway_schemas.journal import Offsets
from spillway_schemas.settings import Settings


class HeldOffsets(NamedTuple):
    """What Kafka holds of the topics that exist."""

    beginning: Offsets
    """The first offsets."""
    ends: Offsets
    """One past the last."""


def held_offsets(settings: Settings, topics: Sequence[str], cluster_id: str) -> HeldOffsets | None:
    """What Kafka holds of topics; None when no broker answers in time, nothing where another
    cluster does.

    A look at the ports first: a broker that is down costs nothing, one that hangs `LOOK_ANSWER_S`.
    """
    servers = settings.kafka.bootstrap_servers
    if not listens(servers, LOOK_CONNECT_S):
        return None
    try:
        with cluster(servers, settings.kafka.options, timeout_s=LOOK_ANSWER_S) as view:
            existing = set(view.existing_topics()) if view.cluster_id() == cluster_id else ()
            asked = [topic for topic in topics if topic in existing]
            if not asked:
                return HeldOffsets({}, {})
            return HeldOffsets(view.beginning_offsets(asked), view.end_offsets(asked))
    except (KafkaUnavailable, TopicProblem):  # a topic may go between the two questions
        return None
