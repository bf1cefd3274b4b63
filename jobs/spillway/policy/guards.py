"""Guards around any policy: what it suggests too soon, for too little, or twice for one slot.

A policy's own thresholds come first; these hold whatever it is. What is held back is said, with
the figures, like everything that a policy did not suggest.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from spillway.policy.clusters import after_rearranging
from spillway.policy.flux import utilisation
from spillway.policy.view import (
    CALM_S,
    F64,
    NOISE,
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
from spillway_schemas.journal import Prefix

TUNING_SPAN_S = 60.0
"""Between two decisions that split or merge. No row moves for them, but each changes the
assignment, and sizes that vary a little would have some group split in every epoch."""


def guarded(
    view: View,
    advice: Advice,
    min_span_s: float,
    min_gain: float,
    round_s: float | None = None,
) -> Advice:
    """The advice without what the guards hold back.

    Moves and another number of slots wait until `min_span_s` after the last moves, forced spills
    as long after the last forced one, splits and merges until `TUNING_SPAN_S` after the last of
    these. For a policy in rounds, moves wait for `round_s`, the round's collection time, in
    place of `min_span_s`: what they are decided from was seen after the last moves. What else
    keeps rounds from moving to and fro is in `spillway.policy.flux`. All but moves that are `sure`
    may be what figures a little off suggest, and wait until `CALM_S` after the last adaptation of
    any kind; sure moves only after one that was not of moves. That does not hold when `min_span_s`
    is 0: who sets that wants to wait for nothing. The moves between two slots must
    lessen the memory, the work or the utilisation of the one that has more of it by `min_gain` of
    that, or the share of the budget that its whole state would take, judged on these two slots
    alone; rounds judge that themselves. No slot gets more than its budget holds, by moves or by
    another number of slots: it would only spill it. And one slot takes part in one adaptation at a
    time: the first that is suggested. Of an advice that is `whole` all passes or nothing, and only
    the time since the last adaptation of its kinds counts: who gives it looks after the room of
    those that receive.
    """
    if advice.whole:
        return _whole(view, advice, min_span_s)
    kept: list[Suggestion] = []
    held: list[Declined] = []
    said: set[str] = set()
    busy: dict[int, object] = {}
    room = (view.budget - view.memory).tolist()
    tuned = _tuned(view, advice.suggestions)
    moves = [s for s in advice.suggestions if isinstance(s, MoveGroup)]
    # Rounds judge each move by what their policy goes by: excess memory is none of these weights.
    poor, doubtful = _poor(view, moves, min_gain) if round_s is None else ({}, set())
    for each in advice.suggestions:
        key, slots = _adaptation(view, each, tuned)
        taken = [s for s in slots if busy.get(s, key) != key]
        span_s = min_span_s if round_s is None or isinstance(each, SetSlots) else round_s
        calm_s = _calm_s(view, each, sure=key not in doubtful)
        if isinstance(each, MoveGroup | SetSlots) and view.since_move_s < span_s:
            why = f"the last moves were {view.since_move_s:.3g} s ago, under {span_s:.3g} s"
        elif isinstance(each, SplitGroup | MergeGroups) and view.since_tuned_s < TUNING_SPAN_S:
            why = f"the last of these were {view.since_tuned_s:.0f} s ago"
            why += f", under {TUNING_SPAN_S:g} s"
        elif isinstance(each, ForceSpill) and view.since_forced_s < min_span_s:
            why = f"the last was forced {view.since_forced_s:.0f} s ago, under {min_span_s:g} s"
        elif min_span_s and calm_s < CALM_S:
            why = "it may be chance (figures are a little off), and the last adaptation was "
            why += f"{calm_s:.0f} s ago, under {CALM_S:g} s"
        elif why_poor := poor.get(key):
            why = why_poor
        elif isinstance(each, MoveGroup) and each.bytes > room[each.to]:
            why = f"slot {each.to} has no room for more"
        elif isinstance(each, SetSlots) and (share := _fullest(view, each)) > 1:
            why = f"one of {each.slots} slots would hold {share:.0%} of its budget"
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
            held.append(Declined(_what(view, each), why))
    return Advice(tuple(kept), advice.declined + tuple(held))


def _whole(view: View, advice: Advice, min_span_s: float) -> Advice:
    """All of the advice, or none of it and why."""
    last_s = min(view.since_move_s, view.since_forced_s)
    if any(isinstance(each, SplitGroup) for each in advice.suggestions):
        last_s = min(last_s, view.since_tuned_s)
    span_s = max(min_span_s, CALM_S) if min_span_s else 0.0
    if last_s >= span_s:
        return advice
    why = f"the last adaptation was {last_s:.3g} s ago, under {span_s:.3g} s"
    said = {_what(view, each): Declined(_what(view, each), why) for each in advice.suggestions}
    return Advice((), advice.declined + tuple(said.values()))


def _calm_s(view: View, each: Suggestion, *, sure: bool) -> float:
    """Seconds since the last adaptation that a suggestion must keep apart from.

    `sure`: moves between these two slots gain enough, too, when figures are off.
    """
    other = min(view.since_forced_s, view.since_tuned_s)
    sure = sure and isinstance(each, MoveGroup) and each.sure
    return other if sure else min(other, view.since_move_s)


def _tuned(view: View, suggestions: Iterable[Suggestion]) -> dict[Prefix, list[int]]:
    """The slots that each split or merge touches."""
    ranges = [s.group for s in suggestions if isinstance(s, SplitGroup | MergeGroups)]
    starts = np.array([p.lo for p in view.groups], dtype=np.uint64)
    order = np.argsort(starts)
    starts, owner = starts[order], view.slot[order]
    found = {}
    for each in ranges:
        # The group that may cover it begins at or before it; those that it covers lie in it.
        first = max(int(np.searchsorted(starts, np.uint64(each.lo), side="right")) - 1, 0)
        stop = int(np.searchsorted(starts, np.uint64(each.hi - 1)))
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


def _fullest(view: View, wanted: SetSlots) -> float:
    """The share of its budget that the fullest slot that receives anything would hold."""
    return after_rearranging(view, utilisation(view), wanted.slots)[1]


def _poor(
    view: View, moves: Iterable[MoveGroup], min_gain: float
) -> tuple[dict[object, str], set[object]]:
    """Per pair of slots whose moves gain too little, why; and the pairs whose moves would gain too
    little if figures were off by `NOISE`."""
    pairs: dict[tuple[int, int], list[int]] = {}
    index = {group: g for g, group in enumerate(view.groups)}
    for move in moves:
        pairs.setdefault((move.source, move.to), []).append(index[move.group])
    weights = _weights(view) if pairs else []
    found: dict[object, str] = {}
    doubtful: set[object] = set()
    for (source, to), groups in pairs.items():
        gain, unlucky = (
            max(_gain(view, *each, source, to, groups, off) for each in weights)
            for off in (0.0, NOISE)
        )
        if unlucky < min_gain:
            doubtful.add(("move", source, to))
        if gain < min_gain:
            found["move", source, to] = (
                f"moves from slot {source} to {to} would lessen what the fuller one holds by "
                f"{gain:.2%}, under {min_gain:.2%}"
            )
    return found, doubtful


def _weights(view: View) -> list[tuple[F64, F64]]:
    """What groups weigh (g,), and what one such unit is at each slot (s,): memory, work,
    utilisation, and the whole state's share of the budget."""
    one = np.ones(view.slots)
    rows = view.processed.astype(np.float64)
    use, worked = utilisation(view), view.by_slot(view.processed)
    return [
        (view.bytes.astype(np.float64), one),
        (rows, one),
        (rows, use / np.maximum(worked, 1)),
        (view.sizes.astype(np.float64), 1 / view.budget),
    ]


def _gain(
    view: View, weight: F64, unit: F64, source: int, to: int, groups: list[int], off: float
) -> float:
    """What moves lessen the larger of two slots' weight by, as a share of it."""
    one, other = unit[source], unit[to] if unit[to] else unit[source]
    one, other = (1 - off) * one, (1 + off) * other
    of = [float(weight[view.of_slot(s)].sum() * u) for s, u in ((source, one), (to, other))]
    moved = float(weight[groups].sum())
    if max(of) <= 0:
        return 0.0
    return float((max(of) - max(of[0] - moved * one, of[1] + moved * other)) / max(of))


def _what(view: View, each: Suggestion) -> str:
    match each:
        case MoveGroup():
            return f"moves from slot {each.source} to {each.to}"
        case ForceSpill():
            return f"forced spill at slot {each.slot}"
        case SetSlots():
            return f"{each.slots} slots"
        case SplitGroup():
            return f"split of {view.named(each.group)}"
        case MergeGroups():
            return f"merge of {view.named(each.group)}"
