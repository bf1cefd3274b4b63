"""What waits: commands without an answer, a seal that is pending, a loss that nobody accepted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from spillway.protocol.losses import gone_from, lost_ranges, obey_losses
from spillway.protocol.offsets import greater, rows_between
from spillway.protocol.seal import not_withdrawable, pending_after
from spillway.protocol.state import JournalState, begin_of
from spillway.tables import Warehouse
from spillway_schemas.commands import AdaptationCommand, CommandLine, SessionCommand
from spillway_schemas.journal import Offsets, Record
from spillway_schemas.losses import LostRange


class Waiting(Record):
    """Commands of one decision that the stream has not answered yet."""

    id: str
    kinds: dict[str, int]
    session: str
    """Of a command about one."""
    policy: str
    by: str
    reason: str
    issued_at: str
    expires_at: str


def waiting(warehouse: Warehouse, state: JournalState, moment: datetime) -> list[Waiting]:
    """Commands that were neither obeyed nor refused and have not expired, the newest first.

    Those of one decision are one value.
    """
    found: dict[str, Waiting] = {}
    for command in warehouse.commands.unseen(state):
        adaptation = command if isinstance(command, AdaptationCommand) else None
        expires_at = adaptation.expires_at if adaptation else ""
        if expires_at and datetime.fromisoformat(expires_at) <= moment:
            continue
        name = command.decision
        known = found.get(name)
        kinds = dict(known.kinds) if known else {}
        kinds[command.kind] = kinds.get(command.kind, 0) + 1
        found[name] = Waiting(
            id=name,
            kinds=kinds,
            session=command.session if isinstance(command, SessionCommand) else "",
            policy=adaptation.policy if adaptation else "",
            by=command.by,
            reason=known.reason if known else command.reason,
            issued_at=command.issued_at,
            expires_at=expires_at,
        )
    return list(reversed(found.values()))


class PendingSeal(Record):
    """A seal that is not fulfilled yet, and whether it can still be taken back."""

    session: str
    problem: str
    """Why it cannot be withdrawn; empty when it can."""


def pending_seal(warehouse: Warehouse, state: JournalState) -> PendingSeal | None:
    """The seal that is pending once the stream has read every command; None when none is."""
    pending = pending_after(state, warehouse.commands.unseen(state))
    if pending is None:
        return None
    problem = not_withdrawable(state, pending, pending.session, pending.command)
    return PendingSeal(session=pending.session, problem=problem)


class OpenLoss(Record):
    """Rows of the open session that Kafka does not hold any more."""

    session: str
    gone: list[LostRange]
    """Nobody has accepted that these are lost. Empty, too, where Kafka was not asked."""
    never_read: int
    """How many of these offsets the stream has not read: it cannot go on."""
    waits: list[LostRange]
    """Accepted as lost; the stream has not answered yet."""
    accepted: list[LostRange]
    """Accepted as lost: the stream does without them."""


def open_loss(
    state: JournalState, commands: Iterable[CommandLine], beginning: Offsets | None
) -> OpenLoss | None:
    """What the open session has lost; None: nothing.

    `commands`: those that the journal has not seen. `beginning`: Kafka's first offsets; None: they
    are not known. Rows of the session before are not told of.
    """
    asked = obey_losses(state, commands).lost_to
    gone = {} if beginning is None else gone_from(replace(state, lost_to=asked), beginning)
    begin = begin_of(state.session, state.marks)
    known = [
        lost_ranges(greater(begin, before), lost_to, lost_to)
        for before, lost_to in (({}, state.lost_to), (state.lost_to, asked), (asked, gone))
    ]
    if not any(known):
        return None
    accepted, waits, lost = known
    end = greater(state.end, asked)
    return OpenLoss(
        session=state.session.date,
        gone=lost,
        never_read=rows_between(end, greater(end, gone)),
        waits=waits,
        accepted=accepted,
    )
