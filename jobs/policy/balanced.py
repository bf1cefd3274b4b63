"""`balanced`: the policy that a user gets who chooses none. Ours, made of the papers' parts.

What an epoch takes is what its busiest slot takes, and what is spilled is what does not fit the
fullest slot. So:

1. While there is room everywhere, slots are evened out by *work* (Flux's utilisation, its
   thresholds and its estimate of what a move brings), but by several groups at once, those with
   the most work for their bytes first.
2. Once memory is short (something is spilled, or a slot's memory is over `pressure` of its
   budget), by *memory* (lazy-disk's rule, but of shares of the budgets, so that slots may differ),
   as long as some slot has never spilled. A slot that has spilled counts as full: right after a
   spill its memory is low, and will not stay so. Groups with the most work go first where the
   fuller slot is also the busier one, and those with the least where it is not: the one must
   not spoil the other.
3. When every slot has spilled, there is no room anywhere, and to move groups only moves spills.
   Then what counts is that memory holds what yields most (active-disk's rule): the slot of the
   low output rate spills, and the room goes to the productive groups of the other.
4. A group that alone is too much for its slot, so that no move helps, is split; unless one key
   makes it up, which no split divides.

Gain is judged on the two slots touched, never on an average over all: one hot slot of 32 hardly
shows in an average.
"""

from __future__ import annotations

import numpy as np

from jobs.policy.clusters import ONE_KEY, one_key
from jobs.policy.disk import forced_spill, output_rate
from jobs.policy.flux import ROUNDING, utilisation
from jobs.policy.view import (
    F64,
    I64,
    Advice,
    Declined,
    MoveGroup,
    SplitGroup,
    View,
    declined,
    name,
)

PRESSURE = 0.6
IDLE = 0.05
"""Utilisations that differ by less are alike: nobody waits for a slot that hardly works."""


def balanced(
    view: View,
    theta_d: float,
    min_span_s: float,
    theta_f: float,
    fraction: float,
    th_imb: float,
    th_util: float,
    pressure: float = PRESSURE,
) -> Advice:
    """See the module."""
    if view.slots < 2:
        return declined("relocation", "there is one slot")
    spilled = view.spills > 0 if len(view.spills) else np.zeros(view.slots, dtype=np.bool_)
    now: F64 = view.memory / view.budget
    if spilled.all():
        return _room_for_the_productive(view, theta_d, min_span_s, theta_f, fraction)
    if not spilled.any() and now.max() <= pressure:
        return _even_work(view, th_imb, th_util, min_span_s)
    peak = view.peak if len(view.peak) else view.memory
    fill: F64 = np.where(spilled, np.maximum(now, peak / view.budget), now)
    what = "relocation by memory"
    most, least = int(fill.argmax()), int(fill.argmin())
    said = f"memory {fill[most]:.0%} of the budget (slot {most}{', full' if spilled[most] else ''})"
    said += f" and {fill[least]:.0%} (slot {least})"
    if fill[least] >= theta_d * fill[most]:
        return declined(what, f"{said}, not below theta_d {theta_d:g}")
    if view.since_move_s < min_span_s:
        return declined(what, f"{said}, but {_too_soon(view, min_span_s)}")
    # So much that both have the same share of their budgets: half of the difference when these
    # are equal.
    budget = view.budget
    share = budget[most] * budget[least] / (budget[most] + budget[least])
    wanted = int((fill[most] - fill[least]) * share)
    mine = view.of_slot(most)
    mine = mine[view.bytes[mine] > 0]
    if not len(mine):
        return declined(what, f"{said}, but slot {most} holds nothing now")
    use = utilisation(view)
    density: F64 = _work(view)[mine] / view.bytes[mine]
    order = mine[np.argsort(-density if use[most] >= use[least] else density, kind="stable")]
    chosen = _fitting(order, view.bytes, wanted)
    if not len(chosen):
        return _split(view, most, view.bytes, said, what)
    return _moves(view, chosen, most, least, said)


def _room_for_the_productive(
    view: View, theta_d: float, min_span_s: float, theta_f: float, fraction: float
) -> Advice:
    """Every slot has spilled: see 3."""
    rate = output_rate(view)
    low, high = int(rate.argmin()), int(rate.argmax())
    memory = view.memory
    if rate[high] > theta_f * rate[low] and memory[low] < theta_d * memory[high]:
        what = "relocation of productive groups"
        said = f"output rates {rate[high]:.3g} (slot {high}) and {rate[low]:.3g} (slot {low}, which"
        said += f" has room: {int(memory[low]):,} bytes to {int(memory[high]):,})"
        if view.since_move_s < min_span_s:
            return declined(what, f"{said}, but {_too_soon(view, min_span_s)}")
        mine = view.of_slot(high)
        mine = mine[view.bytes[mine] > 0]
        yields: F64 = view.results[mine] / view.bytes[mine]
        order = mine[np.argsort(-yields, kind="stable")]
        chosen = _fitting(order, view.bytes, int(memory[high] - memory[low]) // 2)
        if len(chosen):
            return _moves(view, chosen, high, low, said)
        return declined(what, f"{said}, but every group is larger than half of that difference")
    return forced_spill(view, theta_f, fraction)


def _even_work(view: View, th_imb: float, th_util: float, min_span_s: float) -> Advice:
    what = "relocation by work"
    use = utilisation(view)
    most, least = int(use.argmax()), int(use.argmin())
    said = f"utilisation {use[most]:.2f} (slot {most}) and {use[least]:.2f} (slot {least})"
    if use[most] - use[least] < IDLE:
        return declined(what, f"{said}: alike")
    if use[most] < th_imb * use[least]:
        return declined(what, f"{said}, less than th_imb {th_imb:g} apart")
    if use[least] > th_util:
        return declined(what, f"{said}: the receiver is above th_util {th_util:g}")
    if view.since_move_s < min_span_s:
        return declined(what, f"{said}, but {_too_soon(view, min_span_s)}")
    mine = view.of_slot(most)
    work = _work(view)
    mine = mine[work[mine] > 0]
    total = np.bincount(view.slot, weights=work, minlength=view.slots).astype(np.float64)
    if not len(mine):
        return declined(what, f"{said}, but nothing is known of the work of slot {most}'s groups")
    # What a group brings the receiver, in utilisation; one that never worked is as fast as the
    # donor.
    gives = use[most] * work / total[most]
    takes = use[least] * work / total[least] if total[least] and use[least] else gives
    room = view.budget[least] - view.memory[least]
    order = mine[np.argsort(-work[mine] / np.maximum(view.bytes[mine], 1), kind="stable")]
    chosen, donor, receiver, size = [], float(use[most]), float(use[least]), 0
    for g in order.tolist():
        after = receiver + float(takes[g])
        better = max(donor - float(gives[g]), after) < max(donor, receiver) - ROUNDING
        if better and after <= 1 and size + int(view.bytes[g]) <= room:
            chosen.append(g)
            donor, receiver = donor - float(gives[g]), after
            size += int(view.bytes[g])
    if not chosen:
        return _split(view, most, work, said, what)
    return _moves(view, np.array(chosen), most, least, said)


def _work(view: View) -> F64:
    """(g,) rows that came and results that were made, per second and lately."""
    work: F64 = view.processed / max(view.collection_s, ROUNDING)
    return work + view.rate if len(view.rate) else work


def _fitting(order: I64, sizes: I64, wanted: int) -> I64:
    """Groups in this order, as far as they fit."""
    chosen = []
    for g in order.tolist():
        if sizes[g] <= wanted:
            wanted -= int(sizes[g])
            chosen.append(g)
    return np.array(chosen, dtype=np.int64)


def _moves(view: View, chosen: I64, source: int, to: int, why: str) -> Advice:
    if len(chosen) == len(view.of_slot(source)):
        chosen = chosen[:-1]
    if not len(chosen):
        return declined("relocation", f"{why}, but slot {source} has one group, which it keeps")
    return Advice(
        tuple(
            MoveGroup(view.groups[g], source, to, int(view.bytes[g]), why) for g in chosen.tolist()
        )
    )


def _split(view: View, slot: int, weight: F64 | I64, said: str, what: str) -> Advice:
    """No move helps: cut the group that is in the way, if that can be."""
    mine = view.of_slot(slot)
    largest = int(mine[weight[mine].argmax()])
    share = float(weight[largest]) / max(float(weight[mine].sum()), ROUNDING)
    why = f"{said}; group {name(view.groups[largest])} alone is {share:.0%} of slot {slot}"
    if one_key(view)[largest]:
        key = view.hot_key[largest]
        return Advice(
            declined=(
                Declined(
                    f"split of {name(view.groups[largest])}",
                    f"{why}, and {view.hot_share[largest]:.0%} of its rows are of the key {key!r}"
                    f" (a split divides no key; over {ONE_KEY:.0%} it would divide nothing)",
                ),
            )
        )
    if share < 0.5 or not weight[largest]:
        return declined(what, f"{why}, and no move evens it out")
    return Advice((SplitGroup(view.groups[largest], f"{why}, so no move evens it out"),))


def _too_soon(view: View, min_span_s: float) -> str:
    return f"the last was {view.since_move_s:.0f} s ago, under {min_span_s:g} s"
