"""`spillway accept-loss`: a person says that input of a sealed session is gone for good.

Asks Kafka which of the session's rows it does not hold any more, and appends that, with the reason,
to `sessions`. From then on cleanup does without these rows (`spillway.protocol.deferral`), and
`verify` ends the session as not complete, whatever Kafka holds by then. Accepting again, when more
is gone, takes the place of what was accepted before.
"""

from __future__ import annotations

from spillway.kafka.client import KafkaCluster, cluster, demand_listener
from spillway.kafka.held import InputLoss, input_losses
from spillway.protocol.deferral import deferred_rows
from spillway.protocol.offsets import greater, least, padded
from spillway.protocol.seal import carried_from, not_sealed
from spillway.protocol.state import check_query, genesis_of
from spillway.tables import NothingYet, SessionEvent, Warehouse
from spillway_schemas.exits import FAILED
from spillway_schemas.journal import Genesis, Sealed
from spillway_schemas.losses import AcceptedLoss
from spillway_schemas.secret import Options


class LossRefused(Exception):
    """There is no loss to accept."""

    exit_code = FAILED


def accept_loss(
    warehouse: Warehouse,
    fingerprint: str,
    session: str,
    reason: str,
    by: str,
    *,
    bootstrap: str,
    client: Options,
) -> AcceptedLoss:
    """Note what the session's input has lost. `fingerprint`: the query's.

    Nothing is lost any more where Kafka holds everything again: then what was accepted before is
    taken back. Raises `LossRefused` for a session that is not sealed or is proved complete, where
    Kafka holds everything, and for another cluster; `NothingYet`, `AnotherQuery`, `TopicProblem`
    for a topic that this user may not see, KafkaUnavailable when no broker answers.
    """
    state = warehouse.journal.state()
    if state is None:
        raise NothingYet(warehouse.place.path())
    if problem := not_sealed(state, session, warehouse.commands.unseen(state)):
        raise LossRefused(
            f"{problem}. Only of a sealed session it is known which rows it has. When the stream "
            "cannot go on without rows that are gone, see the runbook, `Offsets are lost`"
        )
    sealed = state.sealed[session]
    genesis = genesis_of(state, sealed)
    check_query(genesis, fingerprint)
    outcome = warehouse.sessions.history().outcomes().get(session)
    if outcome is not None and outcome.complete:
        raise LossRefused(f"{session} is proved complete: it needs its input no more")
    demand_listener(bootstrap)
    with cluster(bootstrap, client) as view:
        if view.cluster_id() != state.genesis.cluster_id:
            raise LossRefused(
                f"{bootstrap} is another Kafka cluster than the one that {session} was read from "
                f"({state.genesis.cluster_id}): it cannot say what is gone. Check "
                "kafka.bootstrap_servers"
            )
        losses = _losses(view, warehouse, genesis, sealed)
    before = warehouse.sessions.accepted_loss(session)
    if not losses and before is None:
        raise LossRefused(f"Kafka holds all of the input of {session}: nothing is lost")
    # Where it holds everything again, what was accepted is taken back.
    loss = AcceptedLoss(ranges=[each.lost for each in losses], reason=reason, by=by)
    warehouse.sessions.append(
        SessionEvent(session=session, event="accepted", details={"loss": loss.model_dump()})
    )
    return loss


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
