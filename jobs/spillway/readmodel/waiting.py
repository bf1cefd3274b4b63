"""What was asked for and is not done: commands without an answer, and a seal that is pending."""

from __future__ import annotations

from datetime import datetime

from spillway.protocol.seal import not_withdrawable, pending_after
from spillway.protocol.state import JournalState
from spillway.tables import Warehouse
from spillway_schemas.commands import AdaptationCommand, SessionCommand
from spillway_schemas.journal import Record


class Waiting(Record):
    """Commands of one decision that the stream has not answered yet."""

    id: str
    kinds: dict[str, int]
    session: str
    """Of a seal."""
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
