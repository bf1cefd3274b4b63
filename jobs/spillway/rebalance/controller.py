"""One run of the controller: look, decide, append commands.

It reads the journal and `statistics`, asks a policy, and appends what that suggests as commands
that name the assignment they were decided on, and a time at which they expire. The stream obeys or
refuses each. Two controllers at once do no harm: the first one's moves make the second one's
assignment an old one, and a spill is refused once a later epoch has obeyed a policy.
"""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass

from spillway import calendar
from spillway.clock import Clock
from spillway.policy.guards import guarded
from spillway.policy.registry import POLICIES, settings_for_policies
from spillway.policy.slots import rearranged
from spillway.policy.view import (
    Advice,
    ForceSpill,
    MergeGroups,
    MoveGroup,
    SetSlots,
    SplitGroup,
    Suggestion,
    View,
    declined,
)
from spillway.readmodel.groups import group_states
from spillway.rebalance.asking import Answers, RequestRefused, WarehouseLook, ask, look
from spillway.rebalance.view import round_s, view_of
from spillway.report.words import times_text
from spillway_schemas.commands import ADAPTATION
from spillway_schemas.journal import Move
from spillway_schemas.settings import Settings
from spillway_schemas.windows import swing


@dataclass(frozen=True)
class Decision:
    """What a run came to."""

    advice: Advice
    asked: Answers
    """Each suggestion as a command, with what the stream would answer now."""


def run(
    settings: Settings,
    policy: str,
    by: str,
    *,
    clock: Clock,
    reason: str = "",
    dry_run: bool = False,
) -> Decision:
    """Decide, and append the commands unless it is a dry run.

    `reason`: why a person had it run now; the journal keeps it before the policy's own reasons.

    Raises `RequestRefused` for an unknown policy, QueryError where neither the journal nor the
    settings' file has the query, and what `asking.look` raises.
    """
    if policy not in POLICIES:
        raise RequestRefused(f"unknown policy {policy!r}: use one of {', '.join(POLICIES)}")
    seen = look(settings, clock=clock)
    if (busy := _busy(seen)) is not None:
        return Decision(busy, Answers())
    model, chosen = seen.model, POLICIES[policy]
    given = settings_for_policies(settings)
    collected_s = settings.rebalance.collection_s
    if chosen.in_rounds:
        collected_s = round_s(model, collected_s, settings.rebalance.delta_min_s, seen.at_ms)
    view = view_of(
        model,
        group_states(seen.warehouse, model, collected_s),
        collection_s=collected_s,
        trigger_s=settings.stream.trigger_s,
        close_ms=_close_ms(settings, model.session),
        now_ms=seen.at_ms,
        swing=swing(seen.query(settings).spans),
    )
    advice = guarded(
        view,
        chosen.advise(view, given),
        settings.rebalance.min_span_s,
        settings.rebalance.min_gain,
        collected_s if chosen.in_rounds else None,
    )
    common: dict[str, object] = {
        "assignment_version": model.state.assignment_version,
        "epoch": model.state.epoch,
        "expires_at": seen.at(settings.rebalance.expires_s),
        "policy": policy,
        "settings": {**chosen.given(given), "collection_s": round(collected_s, 3)},
        "by": by,
        "issued_at": seen.at(),
    }
    decision = f"{policy}/{uuid.uuid4().hex[:8]}"
    wanted = [
        ADAPTATION.validate_python(
            {
                "id": f"{decision}/{number}",
                "decision": decision,
                "reason": f"{reason}: {each.why}" if reason else each.why,
                **common,
                **_what(view, each),
            }
        )
        for number, each in enumerate(advice.suggestions)
    ]
    return Decision(advice, ask(seen, wanted, dry_run=dry_run))


def _busy(seen: WarehouseLook) -> Advice | None:
    """Why nothing is decided now: an earlier decision is not carried out yet."""
    if moves := seen.model.state.moves:
        left = times_text(len(moves), "move")
        return declined("decision", f"an earlier one still has {left} to carry out")
    if seen.waiting:
        return declined("decision", f"the stream has not answered {seen.waiting[0]} yet")
    return None


def _close_ms(settings: Settings, session: str) -> int | None:
    with contextlib.suppress(calendar.CalendarError):
        return calendar.close_ms(settings.session.days, session)
    return None  # a date that is no trading day has no close


def _what(view: View, wanted: Suggestion) -> dict[str, object]:
    """The part of a command that says what shall be done."""
    match wanted:
        case MoveGroup():
            move = Move(group=wanted.group, to=wanted.to, bytes=wanted.bytes)
            return {"kind": "move", "move": move}
        case ForceSpill():
            return {"kind": "spill", "slot": wanted.slot, "bytes": wanted.bytes}
        case SplitGroup():
            return {"kind": "split", "group": wanted.group}
        case MergeGroups():
            return {"kind": "merge", "group": wanted.group}
        case SetSlots():
            owners = zip(view.groups, view.slot.tolist(), strict=True)
            sizes = dict(zip(view.groups, view.bytes.tolist(), strict=True))
            moves = rearranged(owners, sizes, wanted.slots)
            return {"kind": "slots", "slots": wanted.slots, "moves": moves}
