"""`pooled`: the policy that a user gets who chooses none. Ours.

What an epoch takes is what its busiest slot takes, and what is spilled should be what loses least
wherever it lies. Slots spill by themselves; this policy moves groups so that they spill the right
ones:

1. While there is room everywhere, slots are evened out by *work* (Flux's utilisation, its
   thresholds and its estimate of what a move brings), but by several groups at once, those with
   the most work for their bytes first.
2. Once memory is short (a slot's memory is over `pressure` of its budget, or what it has spilled
   would not fit there again), by one *eviction line* for all slots. What comes until the next
   decision is added to what is in memory. What of it does not fit into all slots together is the
   bottom of all their groups, in one order by expected loss for each byte: its slots will spill it.
   A slot that then still has more than it may hold gives its most valuable groups to those that
   have room without what they will spill: what a spill here would have cost is not lost, and there
   it is never near the line. Groups that have spilled move as others do (see docs/decisions/0016).
3. Where every slot has room for what comes, by work again, as far as memory stays even.
4. A group that alone is too much for its slot's work, so that no move helps, is split; unless one
   key makes it up, which no split divides.

Nobody is told to spill. A slot spills by the same order when it passes its threshold, later and
less than a decision that looks ahead would tell it to, and what it has spilled can come back in the
same epoch; told to, slots gave up to 19 % less (docs/decisions/0029). The line leaves slots `SLACK`
below their threshold, for what one spills that just passes it may lie above the line.

The gain of work is judged on the two slots touched, never on an average over all: one hot slot of
32 hardly shows in an average. Of many slots all that differ take part at once, in pairs from both
ends: the busiest gives to the idlest, the second to the second, and so on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from spillway.policy.clusters import ONE_KEY, one_key, undivided_by
from spillway.policy.flux import ROUNDING, utilisation
from spillway.policy.view import (
    F64,
    I64,
    IDLE,
    NOISE,
    THRESHOLD,
    Advice,
    Declined,
    MoveGroup,
    SplitGroup,
    Suggestion,
    View,
    declined,
    from_both_ends,
    too_soon,
)

PRESSURE = 0.6
AHEAD = 1.5
"""Times the distance of two decisions for which room is made: looks do not come on the second."""
SLACK = 0.02
"""Of what a slot may hold: what comes is not known to the byte."""
KIB = 1024


def pooled(
    view: View,
    theta_d: float,
    min_span_s: float,
    th_imb: float,
    th_util: float,
    pressure: float = PRESSURE,
    threshold: float = THRESHOLD,
) -> Advice:
    """See the module."""
    if view.slots < 2:
        return declined("relocation", "there is one slot")
    if view.fill.max() <= pressure and view.fits(pressure):
        ample = (1 - 2 * NOISE) * pressure * view.budget - view.memory

        def ample_at(source: int, to: int) -> float:  # noqa: ARG001
            return float(ample[to])

        return _even_work(view, th_imb, th_util, min_span_s, view.bytes, ample_at)
    size = view.bytes + growth(view) * max(min_span_s, view.collection_s) * AHEAD
    held = np.bincount(view.slot, size, view.slots).astype(np.float64)
    spare: F64 = (1 - SLACK) * threshold * view.budget - held
    line = _drawn(view, size, spare, min_span_s)
    if line.suggestions:
        return line

    def room(source: int, to: int) -> float:
        return min(_even_room(view, source, to, theta_d), float(spare[to]))

    even = _even_work(view, th_imb, th_util, min_span_s, size, room)
    return Advice(even.suggestions, line.declined + even.declined)


def _drawn(view: View, size: F64, spare: F64, min_span_s: float) -> Advice:
    """The eviction line: what slots will spill, and what moves to where that makes room.

    `size`: of each group with what comes until the next decision, (g,). `spare`: what each slot
    has room for then, (s,); below 0: what it has too much.
    """
    what, room = "eviction line", spare.copy()
    if room.min() >= 0:
        return declined(what, f"in {min_span_s:g} s every slot has room for what comes")
    value = view.loss_per_byte
    order = np.lexsort((-view.bytes, value))
    order = order[view.bytes[order] > 0]
    # The bottom of all groups, as much as does not fit into all memory together.
    ends = view.bytes[order].cumsum()
    marked = order[: int(np.searchsorted(ends, -room.sum())) + 1] if room.sum() < 0 else order[:0]
    at = float(value[marked[-1]]) if len(marked) else 0.0
    leave = np.bincount(view.slot[marked], view.bytes[marked], view.slots)
    room += leave
    said = f"{at * KIB:.3g} results a KiB"
    if min(view.since_move_s, view.since_forced_s) < min_span_s:
        last = replace(view, since_move_s=min(view.since_move_s, view.since_forced_s))
        return declined(what, f"slots will be full, but {too_soon(last, min_span_s)}")
    found: list[Suggestion] = []
    spilled = set(marked.tolist())
    stuck: tuple[Declined, ...] = ()
    # A receiver spills only once it has what comes to it, so it must have room for all of that.
    fits = view.budget - view.memory
    for source in np.argsort(room, kind="stable").tolist():
        if room[source] >= 0:
            break
        mine, before = view.of_slot(source), len(found)
        for group in mine[np.argsort(-value[mine], kind="stable")].tolist():
            to = int(room.argmax())
            if room[source] >= 0 or room[to] <= 0:
                break
            bytes_ = int(view.bytes[group])
            if group in spilled or not bytes_ or size[group] > room[to] or bytes_ > fits[to]:
                continue
            why = f"slot {source} is full of what is above the eviction line of {said}"
            found.append(MoveGroup(view.groups[group], source, to, bytes_, why, sure=False))
            room[source] += size[group]
            room[to] -= size[group]
            fits[to] -= bytes_
        if room[source] < 0 and len(found) == before:
            full = f"slot {source} will be full, and no other has room for more of it"
            split = _split(view, source, view.bytes, full, what)
            found += split.suggestions
            stuck += split.declined
    if not found:
        why = "slots will be full, and what each will spill is below the eviction line"
        return Advice(declined=stuck) if stuck else declined(what, why)
    return Advice(tuple(found), stuck, whole=True)


def growth(view: View) -> F64:
    """(g,) bytes that each group grows by in a second: the rows that came lately, each with what a
    row of its join has taken of state so far.

    Not the session's average: a tree's state grows ever faster, and so does any after the opening.
    That is shared out by rows only where it is not known how many have come.
    """
    rows = view.processed.astype(np.float64)
    if not len(view.came):
        return np.asarray(rows * (view.growth / max(float(rows.sum()), 1.0)), dtype=np.float64)
    joins = len(view.parents)
    state, came = (np.bincount(view.join, each, joins) for each in (view.sizes, view.came))
    grown: F64 = rows * (state / np.maximum(came, 1))[view.join] / max(view.collection_s, 1.0)
    return grown


def _even_work(
    view: View,
    th_imb: float,
    th_util: float,
    min_span_s: float,
    size: F64 | I64,
    room: Callable[[int, int], float],
) -> Advice:
    """`size`: what each group takes, (g,); `room(source, to)`: how much may move for the sake of
    work."""
    what = "relocation by work"
    use = utilisation(view)
    order = np.argsort(-use, kind="stable")
    work = view.work
    found: list[Suggestion] = []
    first: Advice | None = None
    for most, least in from_both_ends(order):
        said = f"utilisation {use[most]:.2f} (slot {most}) and {use[least]:.2f} (slot {least})"
        if use[most] - use[least] < IDLE:
            first = first or declined(what, f"{said}: alike")
            break
        if use[most] < th_imb * use[least]:
            first = first or declined(what, f"{said}, less than th_imb {th_imb:g} apart")
            break
        if use[least] > th_util:
            first = first or declined(what, f"{said}: the receiver is above th_util {th_util:g}")
            break
        if view.since_move_s < min_span_s:
            return declined(what, f"{said}, but {too_soon(view, min_span_s)}")
        chosen = _lessening(view, use, work, size, most, least, room(most, least))
        if not work[view.of_slot(most)].any():
            why = f"{said}, but nothing is known of the work of slot {most}'s groups"
            advice = declined(what, why)
        elif len(chosen):
            advice = _moves(view, chosen, most, least, said)
        else:
            advice = _split(view, most, work, said, what)
        found += advice.suggestions
        first = first or advice
    if found or first is None:
        return Advice(tuple(found))
    return first


def _even_room(view: View, source: int, to: int, theta_d: float) -> float:
    """Bytes that may move from a slot to another so that memory stays even."""
    of, at = float(view.budget[source]), float(view.budget[to])
    # Of all slots the emptiest must keep `theta_d` of the fullest, for certain.
    fill = view.fill
    even = min(theta_d * (1 + 2 * NOISE), 1.0)
    most = float(fill.min()) / even * at - float(view.memory[to])
    least = float(view.memory[source]) - even * float(fill.max()) * of
    # Both move: the receiver must not pass what the giver has left, either.
    both = (fill[source] - even * fill[to]) * of * at / (at + even * of)
    return float(min(most, least, both))


def _lessening(
    view: View, use: F64, work: F64, size: F64 | I64, most: int, least: int, room: float
) -> I64:
    """Groups of a slot that lessen the busier one's work when they move to another, those with
    most work for their bytes first."""
    mine = view.of_slot(most)
    mine = mine[work[mine] > 0]
    total, other = float(work[view.of_slot(most)].sum()), float(work[view.of_slot(least)].sum())
    # What a group brings the receiver, in utilisation. One that hardly works is taken to be as fast
    # as the donor: the little that it does is no measure of what its time goes into.
    order = mine[np.argsort(-work[mine] / np.maximum(view.bytes[mine], 1), kind="stable")]
    gives = use[most] * work[order] / max(total, ROUNDING)
    told = use[least] >= IDLE and other > ROUNDING
    takes = use[least] * work[order] / other if told else gives
    chosen, donor, receiver = [], float(use[most]), float(use[least])
    for g, more, less in zip(order.tolist(), takes.tolist(), gives.tolist(), strict=True):
        after, left = receiver + more, donor - less
        # One that turns the two round must help for certain: else it comes back.
        better = after <= left or (1 + NOISE) * after < (1 - NOISE) * donor
        if better and after <= 1 and size[g] <= room:
            chosen.append(g)
            donor, receiver = left, after
            room -= float(size[g])
    return np.array(chosen, dtype=np.int64)


def _moves(view: View, chosen: I64, source: int, to: int, why: str) -> Advice:
    if len(chosen) == len(view.of_slot(source)):
        chosen = chosen[:-1]
    if not len(chosen):
        return declined("relocation", f"{why}, but slot {source} has one group, which it keeps")
    return Advice(
        tuple(
            MoveGroup(view.groups[g], source, to, int(view.bytes[g]), why, sure=False)
            for g in chosen.tolist()
        )
    )


def _split(view: View, slot: int, weight: F64 | I64, said: str, what: str) -> Advice:
    """No move helps: cut the group that is in the way, if that can be."""
    mine = view.of_slot(slot)
    largest = int(mine[weight[mine].argmax()])
    share = float(weight[largest]) / max(float(weight[mine].sum()), ROUNDING)
    why = f"{said}; group {view.named(view.groups[largest])} alone is {share:.0%} of slot {slot}"
    if share < 0.5 or not weight[largest]:
        return declined(what, f"{why}, and no move evens it out")
    if one_key(view)[largest]:
        return Advice(
            declined=(
                Declined(
                    f"split of {view.named(view.groups[largest])}",
                    f"{why}, and {undivided_by(view, largest)} (a split divides no key; over "
                    f"{ONE_KEY:.0%} it would divide nothing)",
                ),
            )
        )
    return Advice((SplitGroup(view.groups[largest], f"{why}, so no move evens it out"),))
