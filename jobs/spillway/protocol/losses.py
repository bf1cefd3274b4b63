"""Input that Kafka does not hold any more, accepted by a person while its session is open.

Kafka gives up the oldest rows of a partition first, so a loss is an offset for each partition:
`lost_to`, where what is left begins. It is accepted in an epoch, and from then on nothing below it
is read:

* *Rows that nobody had read* (`lost_to` lies beyond the journal's end): the epoch begins behind
  them, and so its end jumps. Which session they would have been of follows from their coordinates,
  as for any row; a seal may lie among them.
* *Rows that were read* stay where they are: in memory, in files, in results. Only when a slot is
  lost, a session takes rows over, or cleanup makes up for a lost slot are they asked for again, and
  then left out. What comes back is a part of what was there, and has met in memory as that had, so
  nothing is given twice. Results that need a row which is nowhere any more are missing, and no
  others.

A partition that has lost rows cannot be held against the journal's counts and digests there
(`Restore.lossy`), for the loss ends somewhere within an epoch. It can again as soon as what is read
begins behind the loss.

A loss that is obeyed cannot be taken back: the stream has gone on behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from spillway.protocol.offsets import greater, padded, partitions, reaches, wider
from spillway.protocol.recovery import Restore
from spillway.protocol.seal import carried_from
from spillway.protocol.state import JournalState, read_from
from spillway_schemas.commands import CommandLine, LossCommand
from spillway_schemas.journal import (
    Claim,
    CommandOutcome,
    EpochFacts,
    Genesis,
    Offsets,
    Sealed,
)
from spillway_schemas.losses import AcceptedLoss, LostRange, united


@dataclass(frozen=True)
class ObeyedLosses:
    """What an epoch's commands about losses come to."""

    outcomes: tuple[CommandOutcome, ...]
    lost_to: Offsets
    """All that is accepted then."""


def obey_losses(state: JournalState, commands: Iterable[CommandLine]) -> ObeyedLosses:
    """Obey or refuse each `LossCommand`, in the order given; the journal has seen none. Commands of
    other kinds are passed over."""
    outcomes: list[CommandOutcome] = []
    lost_to = state.lost_to
    for command in commands:
        if not isinstance(command, LossCommand):
            continue
        known = {topic: command.lost_to.get(topic, []) for topic in state.end}
        reason = not_acceptable(state, command.session)
        if not reason and reaches(lost_to, known):
            reason = "all of it was accepted before"
        if not reason:
            lost_to = greater(lost_to, known)
        outcomes.append(
            CommandOutcome(
                id=command.id,
                decision=command.decision,
                kind=command.kind,
                obeyed=not reason,
                reason=reason or command.reason,
                by=command.by,
            )
        )
    return ObeyedLosses(tuple(outcomes), lost_to)


def not_acceptable(state: JournalState, session: str) -> str:
    """Why the stream cannot accept a loss for a session; empty when it can."""
    if session == state.session.date:
        return ""
    if session in state.sealed:
        again = f"spillway accept-loss --session {session} --reason ..."
        return f"{session} is sealed: run `{again}` again"
    return f"not the open session: that is {state.session.date}"


def gone_from(state: JournalState, beginning: Offsets) -> Offsets:
    """What Kafka does not hold of all that the open session may need, as `lost_to`; empty: nothing
    that was not accepted before.

    `beginning`: Kafka's first offsets.
    """
    known = greater(read_from(state.session, state.marks), state.lost_to)
    like = {topic: beginning.get(topic, []) for topic in state.end}
    known = padded(known, like)
    gone = {
        topic: [first if first > at else 0 for first, at in zip(firsts, known[topic], strict=False)]
        for topic, firsts in like.items()
    }
    return gone if any(map(any, gone.values())) else {}


def lost_ranges(begin: Offsets, end: Offsets, lost_to: Offsets) -> list[LostRange]:
    """What is lost of the rows from `begin` up to (not including) `end`."""
    like = wider(wider(begin, end), lost_to)
    begins, ends = padded(begin, like), padded(end, like)
    lost = [
        LostRange(topic=t, partition=p, begin=begins[t][p], end=min(at, ends[t][p]))
        for t, p, at in partitions(padded(lost_to, like))
    ]
    return [each for each in lost if each.begin < each.end]


def loss_of(
    genesis: Genesis,
    sealed: Sealed,
    entries: Sequence[Genesis | Claim | EpochFacts],
    since: AcceptedLoss | None = None,
) -> AcceptedLoss | None:
    """What a sealed session has lost, and who accepted it; None: nothing.

    `entries`: all of the session, and from the epoch on after which the first row came that it
    carries. `since`: what was accepted after the seal.
    """
    begin = carried_from(genesis, sealed, entries) if sealed.lost_to else {}
    ranges = lost_ranges(begin, sealed.end, sealed.lost_to)
    if not ranges:
        return since
    told = [
        (outcome.reason, outcome.by)
        for each in entries
        if isinstance(each, EpochFacts) and each.lost_to
        if genesis.after < each.epoch <= sealed.epoch
        for outcome in each.commands
        if outcome.obeyed and outcome.kind == "accept-loss"
    ]
    if since is not None:
        told.append((since.reason, since.by))
    return AcceptedLoss(
        ranges=united([*ranges, *(since.ranges if since is not None else ())]),
        reason="; ".join(dict.fromkeys(reason for reason, _ in told)),
        by=", ".join(dict.fromkeys(by for _, by in told)),
    )


def without_lost(again: Restore, lost: Iterable[LostRange]) -> Restore:
    """What is left to be read when somebody has accepted that these rows are gone.

    Partitions that have lost rows are not held against the journal any more, nor are the rows that
    lost slots had in memory, for they may be among these. What is read of what is left is right,
    as far as it goes.
    """
    gone = [
        each
        for each in lost
        if each.partition < len(again.read_to.get(each.topic, ()))
        and each.begin < again.read_to[each.topic][each.partition]
        and each.end > again.read_from[each.topic][each.partition]
    ]
    if not gone:
        return again
    read_from = {topic: list(begins) for topic, begins in again.read_from.items()}
    for each in gone:
        begin = max(read_from[each.topic][each.partition], each.end)
        read_from[each.topic][each.partition] = min(
            begin, again.read_to[each.topic][each.partition]
        )
    lossy = frozenset((each.topic, each.partition) for each in gone)
    sessions = tuple(
        replace(each, deferred=replace(each.deferred, held=()) if each.deferred else None)
        for each in again.sessions
    )
    return replace(again, read_from=read_from, sessions=sessions, lossy=lossy)


def what_is_left(again: Restore, lost_to: Offsets) -> Restore:
    """The same of rows of the open session."""
    return without_lost(again, lost_ranges(again.read_from, again.read_to, lost_to))
