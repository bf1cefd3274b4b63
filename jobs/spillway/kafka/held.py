"""Whether Kafka still holds what was read from it.

Known limitation: that is told by the topic's id and by offsets. After an election of a replica that
was behind (`unclean.leader.election.enable`) other rows may lie at the same offsets; the journal
does not know under which leader a row was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

from spillway.kafka.client import AnotherCluster, KafkaCluster, TopicMissing, TopicProblem
from spillway_schemas.journal import Offsets, Topic
from spillway_schemas.losses import LostRange


@dataclass(frozen=True)
class InputLoss:
    """Rows that Kafka does not hold any more."""

    lost: LostRange
    why: str
    """In words."""
    topic: bool = False
    """The topic is none any more, or another one."""


def demand_cluster(view: KafkaCluster, known: str, bootstrap: str) -> None:
    """Raise `AnotherCluster` unless a cluster has the id that the journal knows."""
    if (found := view.cluster_id()) != known:
        raise AnotherCluster(
            f"{bootstrap} is another Kafka cluster ({found}) than the one that the journal's "
            f"offsets belong to ({known})",
            "check kafka.bootstrap_servers",
        )


def input_gone(view: KafkaCluster, topics: Iterable[Topic], start: Offsets, end: Offsets) -> str:
    """What Kafka does not hold any more of the rows from `start` to `end`, in words; empty: it has
    all of them, or had a moment ago.

    `topics`: as the journal knows them. Raises `TopicProblem`.
    """
    losses = input_losses(view, topics, start, end)
    return losses[0].why if losses else ""


def input_losses(
    view: KafkaCluster, topics: Iterable[Topic], start: Offsets, end: Offsets
) -> list[InputLoss]:
    """The same, range by range, those of lost topics first. Raises `TopicProblem` for a topic that
    this user may not see: nobody knows what that holds; and where rows are there, but lie beyond a
    transaction that is open again.

    Of a topic that is another one now, and of a partition that ends before the rows do, all is
    lost: what has these offsets there are other rows.
    """
    known = {topic.name: topic.id for topic in topics}
    losses: list[InputLoss] = []
    for name in sorted(end):
        wanted = [
            LostRange(topic=name, partition=partition, begin=begin, end=stop)
            for partition, (begin, stop) in enumerate(
                zip_longest(start.get(name, ()), end[name], fillvalue=0)
            )
            if begin < stop
        ]
        if wanted:
            losses += _losses(view, known.get(name), name, wanted)
    return sorted(losses, key=lambda each: not each.topic)


def _losses(
    view: KafkaCluster, known: str | None, name: str, wanted: list[LostRange]
) -> Iterator[InputLoss]:
    """What is lost of the wanted ranges of one topic. `known`: its id in the journal."""
    try:
        first, last = view.beginning_offsets([name])[name], view.end_offsets([name])[name]
        (found,) = view.topics([name])  # last: it may have been made anew since
    except TopicMissing as error:
        yield from (InputLoss(each, f"the input is gone: {error}", True) for each in wanted)
        return
    if known not in (None, found.id):
        why = f"the topic {name!r} was deleted and created again: the input is gone"
        yield from (InputLoss(each, why, True) for each in wanted)
        return
    missing = [0] * (wanted[-1].partition + 1)
    first, last = [*first, *missing], [*last, *missing]
    for each in wanted:
        held = f"Kafka holds {name!r} partition {each.partition}"
        oldest, newest = first[each.partition], last[each.partition]
        if newest < each.end:
            whole = view.end_offsets([name], read_committed=False)[name]
            if each.partition < len(whole) and whole[each.partition] >= each.end:
                raise TopicProblem(
                    f"{held} up to offset {each.end}, but beyond {newest} a transaction is open "
                    "again, as after a failover, and nobody can read it now. Judging by where "
                    "the partition ends, nothing is lost",
                    "wait until its producer ends it or transaction.timeout.ms has passed. One "
                    f"that hangs is ended with 'kafka-transactions.sh abort --topic {name} "
                    f"--partition {each.partition} --start-offset {newest}', which gives up its "
                    "rows, including those that were read",
                )
            yield InputLoss(each, f"{held} up to offset {newest}, but the input ends at {each.end}")
        elif each.begin < oldest:
            yield InputLoss(
                each.model_copy(update={"end": min(oldest, each.end)}),
                f"{held} from offset {oldest} on, but the input begins at {each.begin}",
            )
