"""Guards around any policy: what it suggests too soon, for too little, or twice for one slot.

A policy's own thresholds come first; these hold whatever it is. What is held back is said, with
the figures, like everything that a policy did not suggest.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from jobs.policy.view import (
    F64,
    Advice,
    Declined,
    ForceSpill,
    MergeGroups,
    MoveGroup,
    SetSlots,
    SplitGroup,
    Suggestion,
    View,
    name,
)
from schemas.journal import Prefix


def guarded(view: View, advice: Advice, min_span_s: float, min_gain: float) -> Advice:
    """The advice without what the guards hold back.

    Moves and another number of slots wait until `min_span_s` after the last moves, forced spills
    until as long after the last forced one. The moves between two slots must lessen the memory or
    the work of the one that has more of it by `min_gain` of that, judged on these two slots
    alone. No slot gets more than its budget holds: it would only spill it. And one slot takes
    part in one adaptation at a time: the first that is suggested.
    """
    kept: list[Suggestion] = []
    held: list[Declined] = []
    said: set[str] = set()
    busy: dict[int, object] = {}
    room = (view.budget - view.memory).tolist()
    tuned = _tuned(view, advice.suggestions)
    poor = _poor(view, [s for s in advice.suggestions if isinstance(s, MoveGroup)], min_gain)
    for each in advice.suggestions:
        key, slots = _adaptation(view, each, tuned)
        taken = [s for s in slots if busy.get(s, key) != key]
        if isinstance(each, MoveGroup | SetSlots) and view.since_move_s < min_span_s:
            why = f"the last moves were {view.since_move_s:.0f} s ago, under {min_span_s:g} s"
        elif isinstance(each, ForceSpill) and view.since_forced_s < min_span_s:
            why = f"the last was forced {view.since_forced_s:.0f} s ago, under {min_span_s:g} s"
        elif why_poor := poor.get(key):
            why = why_poor
        elif isinstance(each, MoveGroup) and each.bytes > room[each.to]:
            why = f"slot {each.to} has no room for more"
        elif taken:
            why = f"slot {taken[0]} takes part in another adaptation of this decision"
        else:
            busy |= dict.fromkeys(slots, key)
            if isinstance(each, MoveGroup):
                room[each.to] -= each.bytes
            kept.append(each)
            continue
        if why not in said:
            said.add(why)
            held.append(Declined(_what(each), why))
    return Advice(tuple(kept), advice.declined + tuple(held))


def _tuned(view: View, suggestions: Iterable[Suggestion]) -> dict[Prefix, list[int]]:
    """The slots that each split or merge touches."""
    ranges = [s.group for s in suggestions if isinstance(s, SplitGroup | MergeGroups)]
    starts = np.array([p.lo for p in view.groups], dtype=np.uint64)
    order = np.argsort(starts, kind="stable")
    starts, owner = starts[order], view.slot[order]
    found = {}
    for each in ranges:
        # The group that may cover it begins at or before it; those that it covers lie in it.
        first = max(int(np.searchsorted(starts, np.uint64(each.lo), side="right")) - 1, 0)
        stop = int(np.searchsorted(starts, np.uint64(each.hi - 1), side="right"))
        found[each] = sorted(set(owner[first:stop].tolist()))
    return found


def _adaptation(
    view: View, each: Suggestion, tuned: dict[Prefix, list[int]]
) -> tuple[object, list[int]]:
    """What a suggestion is a part of, and the slots that this touches."""
    match each:
        case MoveGroup():
            return ("move", each.source, each.to), [each.source, each.to]
        case ForceSpill():
            return "spill", [each.slot]
        case SetSlots():
            return "slots", list(range(view.slots))
        case SplitGroup() | MergeGroups():
            return "tuning", tuned[each.group]


def _poor(view: View, moves: Iterable[MoveGroup], min_gain: float) -> dict[object, str]:
    """Per pair of slots whose moves gain too little, why."""
    index = {group: g for g, group in enumerate(view.groups)}
    work = view.processed.astype(np.float64)
    pairs: dict[tuple[int, int], list[int]] = {}
    for move in moves:
        pairs.setdefault((move.source, move.to), []).append(index[move.group])
    found: dict[object, str] = {}
    for (source, to), groups in pairs.items():
        gains = [_gain(view, weight, source, to, groups) for weight in (view.bytes, work)]
        if max(gains) < min_gain:
            found["move", source, to] = (
                f"moves from slot {source} to {to} would lessen what the fuller one holds by "
                f"{max(gains):.2%}, under {min_gain:.2%}"
            )
    return found


def _gain(view: View, weight: F64 | np.ndarray, source: int, to: int, groups: list[int]) -> float:
    """What moves lessen the larger of two slots' weight by, as a share of it."""
    of = [float(weight[view.of_slot(slot)].sum()) for slot in (source, to)]
    moved = float(weight[groups].sum())
    if max(of) <= 0:
        return 0.0
    return (max(of) - max(of[0] - moved, of[1] + moved)) / max(of)


def _what(each: Suggestion) -> str:
    match each:
        case MoveGroup():
            return f"moves from slot {each.source} to {each.to}"
        case ForceSpill():
            return f"forced spill at slot {each.slot}"
        case SetSlots():
            return f"{each.slots} slots"
        case SplitGroup():
            return f"split of {name(each.group)}"
        case MergeGroups():
            return f"merge of {name(each.group)}"
