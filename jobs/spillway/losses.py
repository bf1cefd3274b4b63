"""`spillway accept-loss`: a person says that input of a session is gone for good.

Asks Kafka which of the rows that the session needs it does not hold any more, and writes that down
with the reason:

* *The session is open*: as a command. The stream obeys it in an epoch of its own: it goes on behind
  what nobody had read, and does without what it would read again (`spillway.protocol.losses`). It
  need not run until then: where it refuses to start because of these rows, it starts now. One
  that reads no rows because of `results.max_per_session` obeys it at its next start.
* *It is sealed*: as an event of `sessions`, for the stream has nothing to do with it. From then on
  cleanup does without these rows. Accepting again, when more is gone, takes the place of what was
  accepted before; and where Kafka holds everything again, that is taken back.

Either way `verify` ends the session as not complete, whatever Kafka holds by then.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from spillway.clock import Clock, rfc3339
from spillway.kafka.client import KafkaCluster, TopicMissing, cluster, demand_listener
from spillway.kafka.held import InputLoss, demand_cluster, input_losses
from spillway.protocol.deferral import deferred_rows
from spillway.protocol.limit import intake_held
from spillway.protocol.losses import gone_from, lost_ranges, obey_losses
from spillway.protocol.offsets import greater, least, padded, partitions, reaches, rows_between
from spillway.protocol.plan import unseen
from spillway.protocol.seal import carried_from, not_sealed, pending_after
from spillway.protocol.state import (
    JournalState,
    begin_of,
    changed_topics,
    check_query,
    genesis_of,
    read_from,
)
from spillway.tables import NothingYet, SessionEvent, Warehouse
from spillway_schemas.commands import LossCommand
from spillway_schemas.exits import FAILED
from spillway_schemas.journal import Genesis, Sealed
from spillway_schemas.losses import AcceptedLoss
from spillway_schemas.secret import Options


class LossRefused(Exception):
    """There is no loss to accept."""

    exit_code = FAILED


@dataclass(frozen=True)
class LossAnswer:
    """What was written down."""

    loss: AcceptedLoss
    """Without ranges: what was accepted is taken back."""
    never_read: int | None = None
    """Of an open session: lost offsets that the stream had not read; None: it is sealed."""
    of_before: bool = False
    """They are of the session before: reading again begins where an epoch ended."""
    of_next: int = 0
    """So many of them are of the session after it: they lie behind the end of a seal that is
    pending."""
    held: bool = False
    """The stream reads no rows (`intake_held`), and takes up no loss until it is started again."""


def accept_loss(
    warehouse: Warehouse,
    fingerprint: str,
    session: str,
    reason: str,
    by: str,
    *,
    bootstrap: str,
    client: Options,
    clock: Clock,
) -> LossAnswer:
    """Note what the session's input has lost. `fingerprint`: the query's.

    Raises `LossRefused` for a session that is neither open nor sealed or is proved complete, where
    Kafka holds everything, for topics that are others now, and for another cluster; `NothingYet`,
    `AnotherQuery`, `TopicProblem` for a topic that this user may not see, KafkaUnavailable when no
    broker answers.
    """
    state = warehouse.journal.state()
    if state is None:
        raise NothingYet(warehouse.place.path())
    is_open = session == state.session.date
    if not is_open and (problem := not_sealed(state, session, ())):
        raise LossRefused(f"{problem}. Losses are those of the open session or of sealed ones")
    genesis = state.genesis if is_open else genesis_of(state, state.sealed[session])
    check_query(genesis, fingerprint)
    outcome = warehouse.sessions.history().outcomes().get(session)
    if outcome is not None and outcome.complete:
        raise LossRefused(f"{session} is proved complete: its input is no longer needed")
    demand_listener(bootstrap)
    with cluster(bootstrap, client) as view:
        demand_cluster(view, state.genesis.cluster_id, bootstrap)
        if is_open:
            return _of_the_open_session(view, warehouse, state, reason, by, clock())
        losses = _losses(view, warehouse, genesis, state.sealed[session])
    before = warehouse.accepted_loss(genesis, state.sealed[session])
    if not losses and (before is None or warehouse.sessions.accepted_loss(session) is None):
        raise LossRefused(
            f"Kafka holds all of the input of {session}: nothing is lost"
            if before is None
            else f"Kafka holds all of the input of {session}, but the stream has gone on without "
            f"rows that {before.by} had accepted as lost: that cannot be taken back"
        )
    # Where it holds everything again, what was accepted is taken back.
    loss = AcceptedLoss(ranges=[each.lost for each in losses], reason=reason, by=by)
    warehouse.sessions.append(
        SessionEvent(session=session, event="accepted", details={"loss": loss.model_dump()})
    )
    return LossAnswer(loss)


def _of_the_open_session(
    view: KafkaCluster,
    warehouse: Warehouse,
    state: JournalState,
    reason: str,
    by: str,
    now_ms: int,
) -> LossAnswer:
    """Write the command. Asked again, it is answered and not repeated."""
    session, names = state.session, sorted(state.end)
    try:
        beginning, early = view.beginning_offsets(names), _ends_early(view, state)
        # Asked last: if the topics are the same, those were their offsets.
        problem = changed_topics(state.topics, view.topics(names)) or early
    except TopicMissing as error:
        problem = f"{error.what} any more"
    if problem:
        raise LossRefused(
            f"{problem}: its offsets mean other rows now, or none, and the stream cannot go on. "
            "Make the day again in a new warehouse.root; see the runbook, `Make a day again`"
        )
    commands = unseen(state, warehouse.commands.unseen(state))
    asked = obey_losses(state, commands).lost_to
    gone = gone_from(state, beginning)
    lost_to = greater(asked, gone)
    own = lost_ranges(begin_of(session, state.marks), lost_to, lost_to)
    ranges = own or lost_ranges(read_from(session, state.marks), lost_to, lost_to)
    if not gone and reaches(state.lost_to, asked):
        raise LossRefused(
            f"Kafka holds all of the input of {session.date}"
            + (" but what is accepted as lost" if state.lost_to else ": nothing is lost")
        )
    if not reaches(asked, gone):
        warehouse.commands.append(
            LossCommand(
                id=f"accept-loss/{session.date}/{uuid.uuid4().hex[:8]}",
                session=session.date,
                lost_to=lost_to,
                reason=reason,
                by=by,
                issued_at=rfc3339(now_ms),
            )
        )
    end = padded(state.end, lost_to)
    loss = AcceptedLoss(ranges=ranges, reason=reason, by=by)
    never_read = rows_between(end, greater(end, lost_to))
    of_next = 0
    if seal := pending_after(state, commands):
        last = greater(end, padded(seal.end, end))
        of_next = rows_between(last, greater(last, lost_to))
    return LossAnswer(
        loss, never_read, of_before=not own, of_next=of_next, held=bool(intake_held(state))
    )


def _ends_early(view: KafkaCluster, state: JournalState) -> str:
    """Which partition ends before the rows that were read of it; empty: none does."""
    # What is read may lie beyond a transaction that is open again after a failover.
    ends = padded(view.end_offsets(sorted(state.end), read_committed=False), state.end)
    for name, partition, at in partitions(state.end):
        if ends[name][partition] < at:
            held = f"Kafka holds {name}/{partition} up to offset {ends[name][partition]}"
            return f"{held}, but it was read up to {at}"
    return ""


def _losses(
    view: KafkaCluster, warehouse: Warehouse, genesis: Genesis, sealed: Sealed
) -> list[InputLoss]:
    """What Kafka does not hold of what the session's cleanup and its proof read."""
    since = sealed.base if sealed.carried is None else max(sealed.carried.since, -1)
    # With the epoch at which the first of them begins.
    entries = warehouse.journal.read_after(min(since, sealed.base) - 1)
    start = padded(carried_from(genesis, sealed, entries), sealed.end)
    end = sealed.end
    if (again := deferred_rows(genesis, sealed, entries)) is not None:
        start = least(padded(start, again.read_to), again.read_from)
        end = greater(end, again.read_to)
    return input_losses(view, genesis.topics, start, end)
