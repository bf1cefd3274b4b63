"""Topics that are written to and do not exist yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from spillway.kafka.client import cluster
from spillway_schemas.secret import Options

AssureNew = Callable[[Iterable[str]], None]
"""Raises where one of these topics, which do not exist, may not be made."""


def any_is_new(_: Iterable[str]) -> None:
    """All of them may: nothing is known of who reads them."""


def create_topics(
    partitions: Mapping[str, int], bootstrap: str, options: Options | None, assure_new: AssureNew
) -> None:
    """Make those that do not exist, all or none. `partitions`: by topic.

    Raises KafkaUnavailable, TopicProblem, and what `assure_new` raises.
    """
    with cluster(bootstrap, options) as view:
        missing = partitions.keys() - set(view.existing_topics())
        if missing:
            assure_new(sorted(missing))
            view.create_topics({name: partitions[name] for name in sorted(missing)})
