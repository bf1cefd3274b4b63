"""`spillway topics`: whether the query's topics exist, and making those that do not.

A topic that exists is never changed, whatever its partitions are: others write to it, and chose
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from spillway.kafka.client import cluster, demand_listener
from spillway_schemas.query import Query, load_query
from spillway_schemas.settings import Settings


@dataclass(frozen=True)
class InputTopic:
    """A topic that the query reads."""

    topic: str
    partitions: int | None
    """None: it does not exist."""
    created: bool
    """Whether this look has made it."""

    def as_dict(self) -> dict[str, Any]:
        """As it goes into JSON."""
        return {**asdict(self), "exists": self.partitions is not None}


def unread(topics: Iterable[str], query: str, *, recorded: bool) -> str:
    """What to say of topics that were written to and are none of the query's; else empty.

    `recorded`: plain messages, for which a topic can be named; a scenario has its own.
    """
    try:
        read = sorted(load_query(query).topics)
    except ValueError as error:
        return f"whether the query reads these topics cannot be said: {error}"
    others = sorted(set(topics) - set(read))
    if not others:
        return ""
    other = "another query with --set query=NAME, also for the stream"
    return (
        f"no stream of the query {query} reads {', '.join(others)}: it reads {', '.join(read)}. "
        f"Rows elsewhere are not joined: name {'the topic with --topic, or ' * recorded}{other}"
    )


def look(settings: Settings, query: Query, *, create: bool) -> list[InputTopic]:
    """Look at the query's topics; with `create` make those that do not exist.

    Raises `KafkaUnavailable`, `TopicProblem` when the cluster refuses, `OptionError`.
    """
    names = sorted(query.topics)
    demand_listener(settings.kafka.bootstrap_servers)
    with cluster(settings.kafka.bootstrap_servers, settings.kafka.options) as view:
        existing = set(view.existing_topics())
        missing = [name for name in names if name not in existing]
        if create and missing:
            view.create_topics(
                dict.fromkeys(missing, settings.kafka.partitions),
                replication=settings.kafka.replication,
            )
        there = [name for name in names if create or name in existing]
        counts = {each.name: each.partitions for each in view.topics(there)} if there else {}
    return [InputTopic(name, counts.get(name), create and name in missing) for name in names]


def missing(found: Sequence[InputTopic]) -> list[str]:
    """The names of those that do not exist."""
    return [each.topic for each in found if each.partitions is None]


def table(found: Sequence[InputTopic]) -> Any:
    """The topics as a table for the terminal."""
    from rich.table import Table
    from rich.text import Text

    shown = Table("topic", "partitions", "", box=None)
    for each in found:
        what = "created" if each.created else "missing" if each.partitions is None else ""
        count = "-" if each.partitions is None else f"{each.partitions:,}"
        shown.add_row(Text(each.topic), count, what)
    return shown
