"""`balanced`: the policy that a user gets who chooses none. Ours, made of the papers' parts.

What an epoch takes is what its busiest slot takes, and what is spilled is what does not fit the
fullest slot. So:

1. While there is room everywhere, slots are evened out by *work* (Flux's utilisation, its
   thresholds and its estimate of what a move brings), but by several groups at once, those with
   the most work for their bytes first.
2. Once memory is short (a slot's memory is over `pressure` of its budget, or what it has spilled
   would not fit there again), by *memory*: lazy-disk's rule, but of shares of the budgets, so that
   slots may differ, and never into a slot that will be the fuller one before groups may move
   again: one that has just spilled has room, but if it got most of the rows until now it needs
   that itself. Groups that have spilled move as others do (see docs/decisions/0016).
3. When memory is even and nearly all that slots hold before they spill is in use, by
   *productivity*: active-disk's forced spill, with two changes that the laboratory taught. It waits
   until memory is short, for what is forced out earlier would have had room. And slots are not
   compared by their average output rate, which is low right after every spill, so that a slot that
   spills is told to spill again; but by their margins: what the least productive part of each
   slot's memory yields, as much of it as the next spill will take (`fraction`). The slot whose
   margin is lowest spills that part when another's is `theta_f` times as high; then groups of the
   fullest slot move in.
4. When memory is even and there is nothing to force, by work again, as far as memory stays even.
5. A group that alone is too much for its slot, so that no move helps, is split; unless one key
   makes it up, which no split divides.

Gain is judged on the two slots touched, never on an average over all: one hot slot of 32 hardly
shows in an average. Of many slots all that differ take part at once, in pairs from both ends: the
fullest gives to the emptiest, the second to the second, and so on.
"""

from __future__ import annotations

import numpy as np

from spillway.policy.clusters import ONE_KEY, one_key, undivided_by
from spillway.policy.disk import cluster_bytes, forced_spills, productive_first, yields
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
SHORT = 0.8
"""Of what all slots hold before they spill: a forced spill before would take what has room."""


def balanced(
    view: View,
    theta_d: float,
    min_span_s: float,
    theta_f: float,
    fraction: float,
    th_imb: float,
    th_util: float,
    pressure: float = PRESSURE,
    threshold: float = THRESHOLD,
) -> Advice:
    """See the module."""
    if view.slots < 2:
        return declined("relocation", "there is one slot")
    fill = view.fill
    if fill.max() <= pressure and view.fits(pressure):
        return _even_work(view, th_imb, th_util, min_span_s, pressure, theta_d)
    if fill.min() < theta_d * fill.max():
        return _even_memory(view, fill, theta_d, min_span_s)
    forced = _spill_at_the_margin(view, theta_f, fraction, threshold)
    if forced.suggestions:
        return forced
    even = _even_work(view, th_imb, th_util, min_span_s, 0.0, theta_d)
    return Advice(even.suggestions, forced.declined + even.declined)


def _even_memory(view: View, fill: F64, theta_d: float, min_span_s: float) -> Advice:
    what = "relocation by memory"
    soon: F64 = fill + growth(view) * min_span_s / view.budget
    found: list[Suggestion] = []
    first: Advice | None = None
    for most, least in from_both_ends(np.argsort(-fill, kind="stable")):
        if fill[least] >= theta_d * fill[most]:
            break
        said = f"memory {fill[most]:.0%} of the budget (slot {most}) and {fill[least]:.0%}"
        said += f" (slot {least})"
        if soon[least] >= soon[most]:
            first = first or declined(
                what,
                f"{said}, but slot {least} fills faster: in {min_span_s:g} s it needs "
                f"{soon[least]:.0%}, slot {most} {soon[most]:.0%}",
            )
            continue
        if view.since_move_s < min_span_s:
            return declined(what, f"{said}, but {too_soon(view, min_span_s)}")
        # So much that both have the same share of their budgets: half of the difference when these
        # are equal.
        of, to = float(view.budget[most]), float(view.budget[least])
        wanted = int(min(fill[most] - fill[least], soon[most] - soon[least]) * of * to / (of + to))
        chosen = productive_first(view, most, wanted)
        advice = (
            _moves(view, chosen, most, least, said)
            if len(chosen)
            else _split(view, most, view.bytes, said, what)
        )
        found += advice.suggestions
        first = first or advice
    if found or first is None:
        return Advice(tuple(found))
    return first


def growth(view: View) -> F64:
    """(s,) bytes that each slot's state grows by in a second: the session's growth so far, shared
    out by the rows that came lately."""
    rows = np.bincount(view.slot, weights=view.processed, minlength=view.slots)
    grown: F64 = view.growth * rows.astype(np.float64) / max(float(rows.sum()), 1.0)
    return grown


def _spill_at_the_margin(view: View, theta_f: float, fraction: float, threshold: float) -> Advice:
    # No slot holds more than that at the end of an epoch.
    used = view.memory.sum() / cluster_bytes(view, threshold)
    if used < SHORT:
        why = f"memory is even, and {used:.0%} of what slots hold before they spill is in use"
        return declined("forced spill", why)
    margin = margins(view, fraction)

    def said(high: int, low: int) -> str:
        return (
            f"what a spill takes yields {margin[high] * 1024:.3g} results a KiB (slot {high})"
            f" and {margin[low] * 1024:.3g} (slot {low})"
        )

    order = np.argsort(-margin, kind="stable")
    return forced_spills(view, margin, order, theta_f, fraction, said, threshold)


def margins(view: View, fraction: float) -> F64:
    """(s,) results of the current generation a byte, of the least productive `fraction` of each
    slot's memory (one group at least); 0 for an empty slot."""
    held = np.flatnonzero(view.bytes)
    order = held[np.lexsort((yields(view)[held], view.slot[held]))]
    slot, size = view.slot[order], view.bytes[order]
    begins = np.searchsorted(slot, np.arange(view.slots))
    # What a slot holds up to each of its groups, the least productive first.
    total = np.cumsum(size)
    before = np.concatenate([[0], total])[begins]
    up_to = total - before[slot]
    first = np.arange(len(order)) == begins[slot]
    taken = (up_to <= fraction * view.memory[slot]) | first
    spilled = np.bincount(slot[taken], weights=size[taken], minlength=view.slots)
    lost = np.bincount(slot[taken], weights=view.results[order][taken], minlength=view.slots)
    found: F64 = lost / np.maximum(spilled, 1)
    return found


def _even_work(
    view: View,
    th_imb: float,
    th_util: float,
    min_span_s: float,
    pressure: float,
    theta_d: float,
) -> Advice:
    """Receivers fill up to `pressure` while memory is not short; 0: as far as it stays even."""
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
        chosen = _lessening(
            view, use, work, most, least, _room(view, most, least, pressure, theta_d)
        )
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


def _room(view: View, source: int, to: int, pressure: float, theta_d: float) -> float:
    """Bytes that may move for the sake of work, so that the rule for memory sends none back."""
    of, at = float(view.budget[source]), float(view.budget[to])
    if pressure:
        return (1 - 2 * NOISE) * pressure * at - float(view.memory[to])
    # Of all slots the emptiest must keep `theta_d` of the fullest, for certain.
    fill = view.fill
    even = min(theta_d * (1 + 2 * NOISE), 1.0)
    most = float(fill.min()) / even * at - float(view.memory[to])
    least = float(view.memory[source]) - even * float(fill.max()) * of
    # Both move: the receiver must not pass what the giver has left, either.
    both = (fill[source] - even * fill[to]) * of * at / (at + even * of)
    return float(min(most, least, both))


def _lessening(view: View, use: F64, work: F64, most: int, least: int, room: float) -> I64:
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
    chosen, donor, receiver, size = [], float(use[most]), float(use[least]), 0
    for g, more, less in zip(order.tolist(), takes.tolist(), gives.tolist(), strict=True):
        after, left = receiver + more, donor - less
        # One that turns the two round must help for certain: else it comes back.
        better = after <= left or (1 + NOISE) * after < (1 - NOISE) * donor
        if better and after <= 1 and size + int(view.bytes[g]) <= room:
            chosen.append(g)
            donor, receiver = left, after
            size += int(view.bytes[g])
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
