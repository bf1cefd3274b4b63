"""`spillway topics`: whether the query's topics exist, and making those that do not.

A topic that exists is never changed, whatever its partitions are: others write to it, and chose
them. One that is gone, and of which the warehouse's journal has read rows, is not made anew: it
would be another topic, whose offsets mean other rows, and the stream refuses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from spillway.kafka.client import TopicProblem, cluster, demand_listener
from spillway.kafka.held import demand_cluster
from spillway.protocol.offsets import padded
from spillway.protocol.state import JournalState, changed_topics
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
    problem: str = ""
    """Why the stream refuses it, though it exists: it is not the one that the journal knows."""

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


def journaled(settings: Settings) -> JournalState | None:
    """What the warehouse's journal knows of topics; None: nothing has begun.

    Raises `WarehouseError`.
    """
    from spillway.tables import exists, opened  # takes time, and `produce` seldom asks

    place = settings.warehouse
    return opened(place).journal.state() if exists(place.root, place.options) else None


def was_read(state: JournalState, topic: str) -> bool:
    """Whether the journal has gone on in a topic."""
    if topic not in state.end:
        return False
    queries = (*state.before, state.genesis)
    begin = next(each.start for each in queries if topic in each.start)
    return state.end[topic] != padded(begin, state.end)[topic]


def gone(
    settings: Settings, state: JournalState | None, missing: Iterable[str]
) -> TopicProblem | None:
    """Why these topics, which do not exist, cannot be made; None: they can."""
    read = [] if state is None else [name for name in missing if was_read(state, name)]
    if not read:
        return None
    return TopicProblem(
        f"no topic {', '.join(read)} on {settings.kafka.bootstrap_servers}, and the journal of "
        f"{settings.warehouse.root} has read it",
        "one that is made anew is another topic, and the stream refuses it. Have its messages "
        "brought back, or take another warehouse.root; see the runbook, `A topic was deleted`",
    )


def assure_new(settings: Settings, missing: Iterable[str]) -> None:
    """Raise why these topics, which do not exist, cannot be made: `TopicProblem` as of `gone`.

    Raises `WarehouseError`, too.
    """
    if problem := gone(settings, journaled(settings), missing):
        raise problem


def look(
    settings: Settings, query: Query, state: JournalState | None, *, create: bool
) -> list[InputTopic]:
    """Look at the query's topics; with `create` make those that do not exist. `state`: the
    warehouse's, as `journaled` gives it.

    Raises `KafkaUnavailable`, `TopicProblem` when the cluster refuses, or where one that does not
    exist was read (then none is made), `AnotherCluster`, `OptionError`.
    """
    names = sorted(query.topics)
    demand_listener(settings.kafka.bootstrap_servers)
    with cluster(settings.kafka.bootstrap_servers, settings.kafka.options) as view:
        if state is not None:
            demand_cluster(view, state.genesis.cluster_id, settings.kafka.bootstrap_servers)
        existing = set(view.existing_topics())
        missing = [name for name in names if name not in existing]
        if create and (problem := gone(settings, state, missing)):
            raise problem
        if create and missing:
            view.create_topics(
                dict.fromkeys(missing, settings.kafka.partitions),
                replication=settings.kafka.replication,
            )
        there = [name for name in names if create or name in existing]
        found = {each.name: each for each in view.topics(there)} if there else {}
    known = {} if state is None else {each.name: each for each in state.topics}
    return [
        InputTopic(
            name,
            found[name].partitions if name in found else None,
            create and name in missing,
            changed_topics([known[name]], [found[name]]) or ""
            if name in known and name in found
            else "",
        )
        for name in names
    ]


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
