"""One run of the controller: look, decide, append commands.

It reads the journal and `statistics`, asks a policy, and appends what that suggests as commands
that name the assignment they were decided on, and a time at which they expire. The stream obeys or
refuses each. Two controllers at once do no harm: the first one's commands make the second one's
assignment an old one.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jobs import calendar
from jobs.policy.registry import POLICIES
from jobs.policy.view import (
    Advice,
    Declined,
    ForceSpill,
    MergeGroups,
    MoveGroup,
    SetSlots,
    SplitGroup,
    Suggestion,
    View,
)
from jobs.protocol.state import JournalState
from jobs.rebalance.asking import Answers, WishRefused, ask, look, now
from jobs.rebalance.view import group_states, view_of
from schemas.journal import Command, Epoch, Move
from schemas.settings import Settings


@dataclass(frozen=True)
class Decision:
    """What a run came to."""

    policy: str
    view: View
    advice: Advice
    asked: Answers
    """Each suggestion as a command, with what the stream would answer now."""


def run(settings: Settings, policy: str, by: str, *, dry_run: bool = False) -> Decision:
    """Decide, and append the commands unless it is a dry run. Raises `WishRefused`."""
    if policy not in POLICIES:
        raise WishRefused(f"unknown policy {policy!r}: use one of {', '.join(POLICIES)}")
    warehouse, entries, state = look(settings)
    commands = [each.command for each in warehouse.commands.read()]
    epochs = [e for e in entries if isinstance(e, Epoch) and e.session == state.session.date]
    view = view_of(
        state,
        epochs,
        group_states(warehouse, state, settings.rebalance.collection_s),
        collection_s=settings.rebalance.collection_s,
        trigger_s=settings.stream.trigger_s,
        close_ms=_close_ms(settings, state),
        forced_bytes=_forced(epochs, {c.id: c for c in commands}),
    )
    given = settings.rebalance.model_dump()
    if state.moves:
        why = f"{len(state.moves)} moves of an earlier decision are not carried out yet"
        return Decision(policy, view, Advice(declined=(Declined("everything", why),)), [])
    advice = POLICIES[policy].advise(view, given)
    wanted = [
        _command(state, policy, given, each, by, number)
        for number, each in enumerate(advice.suggestions)
    ]
    return Decision(policy, view, advice, ask(warehouse, state, wanted, dry_run=dry_run))


def _close_ms(settings: Settings, state: JournalState) -> int | None:
    with contextlib.suppress(calendar.CalendarError):
        return calendar.close_ms(settings.session.calendar, state.session.date)
    return None  # a date that is no trading day has no close


def _forced(epochs: list[Epoch], commands: Mapping[str, Command]) -> int:
    """What policies forced to spill in the epochs."""
    obeyed = [o.id for entry in epochs for o in entry.commands if o.obeyed and o.kind == "spill"]
    return sum(commands[i].bytes for i in obeyed if i in commands and commands[i].policy)


def _command(
    state: JournalState,
    policy: str,
    given: Mapping[str, Any],
    wanted: Suggestion,
    by: str,
    number: int,
) -> Command:
    common: dict[str, object] = {
        "assignment_version": state.assignment_version,
        "expires_at": now(given["expires_s"]),
        "policy": policy,
        "settings": POLICIES[policy].given(given),
        "reason": wanted.why,
        "by": by,
        "issued_at": now(),
    }
    what: dict[str, object]
    match wanted:
        case MoveGroup():
            what = {"kind": "move", "moves": [_move(wanted)]}
        case ForceSpill():
            what = {"kind": "spill", "slot": wanted.slot, "bytes": wanted.bytes}
        case SplitGroup():
            what = {"kind": "split", "group": wanted.group}
        case MergeGroups():
            what = {"kind": "merge", "group": wanted.group}
        case SetSlots():
            raise ValueError("no policy that changes the number of slots is offered yet")
    id_ = f"{policy}/{uuid.uuid4().hex[:8]}/{number}"
    return Command.model_validate({"id": id_, **common, **what})


def _move(wanted: MoveGroup) -> Move:
    return Move(group=wanted.group, to=wanted.to, bytes=wanted.bytes)
