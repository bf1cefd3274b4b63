"""What a relay keeps: a record of a topic of its own, written in the transaction of the rows.

Kept beside the rows, in Kafka, because only a transaction of Kafka's makes both happen or neither.
Not as a consumer group's offset: Kafka forgets those a week after the last commit. Not in the rows'
own topic: its retention may take them, and consumers would have to pass over what is no row. The
topic is compacted, so the last record stays for ever.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict, ValidationError

from spillway.following.position import Position
from spillway_schemas.exits import FAILED, USAGE
from spillway_schemas.topic_name import topic_name


class RelayRefused(RuntimeError):
    """The relay does not begin, or does not go on; the message says why and what to do."""

    exit_code = FAILED


class UnfitTopic(ValueError):
    """A topic that no relay can write to."""

    exit_code = USAGE


class RelayPosition(BaseModel):
    """How far a relay has come."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    warehouse: str
    """The id of the warehouse."""
    topic: str
    """The id of the topic that has the rows: one that is made anew has another."""
    rows: int = 0
    """Rows that were relayed in all."""
    position: Position = Position()


def demand_fit(topic: str, inputs: Iterable[str]) -> None:
    """Raise `UnfitTopic` for a name that Kafka refuses, and for one of the query's `inputs`."""
    try:
        topic_name(topic)
        topic_name(position_topic(topic))
    except ValueError as error:
        raise UnfitTopic(f"--topic: {error}") from None
    if {topic, position_topic(topic)} & set(inputs):
        raise UnfitTopic(f"--topic: {topic} is read by the query: results would be joined again")


def position_topic(topic: str) -> str:
    """The topic of a relay's position."""
    return f"{topic}-position"


def transactional_id(topic: str) -> str:
    """Kafka lets one producer of this id work at a time."""
    return f"spillway-relay-{topic}"


def read_kept(value: bytes, topic: str) -> RelayPosition:
    """The record's value. Raises `RelayRefused` for what no relay of this version wrote."""
    try:
        return RelayPosition.model_validate_json(value)
    except ValidationError as error:
        raise RelayRefused(
            f"the last record of {position_topic(topic)} is not a position that this version of "
            f"spillway can read ({error.errors()[0]['msg']}). Use the version that wrote it, or "
            "relay into another topic"
        ) from None


def begin(
    kept: RelayPosition | None,
    *,
    topic: str,
    topic_id: str,
    warehouse: str,
    is_empty: bool,
    from_now: bool,
) -> RelayPosition:
    """Where a relay goes on, or begins. Pure.

    `kept`: what the position's topic says; `is_empty`: whether the rows' topic has no record.
    Raises `RelayRefused` when going on there could lose or double rows.
    """
    if kept is None:
        if not is_empty and not from_now:
            raise RelayRefused(
                f"topic {topic} has records, and {position_topic(topic)} does not say which of "
                "them are results: all would come again. Relay into an empty topic, or, to add to "
                "this one what comes from now on, start with --from-now"
            )
        return RelayPosition(warehouse=warehouse, topic=topic_id)
    if kept.warehouse != warehouse:
        raise RelayRefused(
            f"topic {topic} has the results of another warehouse ({kept.warehouse}; this one is "
            f"{warehouse}). Name another topic, or the other warehouse.root"
        )
    if kept.topic != topic_id:
        raise RelayRefused(
            f"topic {topic} was deleted and made again since the relay wrote to it, so "
            f"{position_topic(topic)} is not about it. Delete that topic, too: the relay then "
            "begins from the first result. Or relay into another topic"
        )
    return kept
