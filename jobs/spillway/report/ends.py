"""Where Kafka's topics end, asked without waiting long: what consumer lag is measured against."""

from __future__ import annotations

from collections.abc import Sequence

from spillway.kafka.client import KafkaUnavailable, TopicProblem, cluster, listens
from spillway_schemas.journal import Offsets
from spillway_schemas.settings import Settings

CONNECT_S = 0.5
ANSWER_S = 2.0


def kafka_ends(settings: Settings, topics: Sequence[str]) -> Offsets | None:
    """End offsets of the topics that exist; None when no broker answers in time.

    A look at the ports first: a broker that is down costs nothing, one that hangs `ANSWER_S`.
    """
    servers = settings.kafka.bootstrap_servers
    if not listens(servers, CONNECT_S):
        return None
    try:
        with cluster(servers, settings.kafka.options, timeout_s=ANSWER_S) as view:
            existing = set(view.existing_topics())
            asked = [topic for topic in topics if topic in existing]
            return view.end_offsets(asked) if asked else {}
    except (KafkaUnavailable, TopicProblem):  # a topic may go between the two questions
        return None
