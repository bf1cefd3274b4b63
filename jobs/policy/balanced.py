"""`balanced`: the policy that a user gets who chooses none. Ours, made of the papers' parts.

What an epoch takes is what its busiest slot takes, and what is spilled is what does not fit the
fullest slot. So:

1. While there is room everywhere, slots are evened out by *work* (Flux's utilisation, its
   thresholds and its estimate of what a move brings), but by several groups at once, those with
   the most work for their bytes first.
2. Once memory is short (something is spilled, or a slot's memory is over `pressure` of its
   budget), by *memory*: lazy-disk's rule, but of shares of the budgets, so that slots may differ,
   and never into a slot that will be the fuller one before groups may move again: one that has
   just spilled has room, but if it got most of the rows until now it needs that itself.
3. When memory is even and nearly all of it is in use, by *productivity*: active-disk's forced
   spill, with two changes that the laboratory taught. It waits until memory is short, for what is
   forced out earlier would have had room. And slots are not compared by their average output
   rate, which is low right after every spill, so that a slot that spills is told to spill again;
   but by their margins: what the least productive part of each slot's memory yields, as much of
   it as the next spill will take (`fraction`). The slot whose margin is lowest spills that part
   when another's is `theta_f` times as high; then groups of the fullest slot move in.
4. A group that alone is too much for its slot, so that no move helps, is split; unless one key
   makes it up, which no split divides.

Gain is judged on the two slots touched, never on an average over all: one hot slot of 32 hardly
shows in an average.
"""

from __future__ import annotations

import numpy as np

from jobs.policy.clusters import ONE_KEY, one_key, undivided_by
from jobs.policy.disk import bounded_spill, held_by, productive_first, yields
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
    too_soon,
)

PRESSURE = 0.6
SHORT = 0.8
"""Of the memory of all slots: a forced spill before would take what has room."""
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
    fill: F64 = view.memory / view.budget
    if not view.spilled.any() and fill.max() <= pressure:
        return _even_work(view, th_imb, th_util, min_span_s, pressure)
    if fill.min() < theta_d * fill.max():
        return _even_memory(view, fill, min_span_s)
    return _spill_at_the_margin(view, theta_f, fraction)


def _even_memory(view: View, fill: F64, min_span_s: float) -> Advice:
    what = "relocation by memory"
    most, least = int(fill.argmax()), int(fill.argmin())
    said = f"memory {fill[most]:.0%} of the budget (slot {most}) and {fill[least]:.0%}"
    said += f" (slot {least})"
    soon: F64 = fill + growth(view) * min_span_s / view.budget
    if soon[least] >= soon[most]:
        return declined(
            what,
            f"{said}, but slot {least} fills faster: in {min_span_s:g} s it needs "
            f"{soon[least]:.0%}, slot {most} {soon[most]:.0%}",
        )
    if view.since_move_s < min_span_s:
        return declined(what, f"{said}, but {too_soon(view, min_span_s)}")
    # So much that both have the same share of their budgets: half of the difference when these
    # are equal.
    budget = view.budget.astype(np.float64)
    together = budget[most] * budget[least] / (budget[most] + budget[least])
    wanted = int(min(fill[most] - fill[least], soon[most] - soon[least]) * together)
    chosen = productive_first(view, most, wanted)
    if not len(chosen):
        return _split(view, most, view.bytes, said, what)
    return _moves(view, chosen, most, least, said)


def growth(view: View) -> F64:
    """(s,) bytes that each slot's state grows by in a second: the session's growth so far, shared
    out by the rows that came lately."""
    rows = np.bincount(view.slot, weights=view.processed, minlength=view.slots)
    # From less than a second no growth can be told.
    whole = view.session_bytes / max(view.elapsed_s, 1.0)
    grown: F64 = float(whole) * rows.astype(np.float64) / max(float(rows.sum()), 1.0)
    return grown


def _spill_at_the_margin(view: View, theta_f: float, fraction: float) -> Advice:
    what = "forced spill"
    memory = view.memory
    used = memory.sum() / view.budget.sum()
    if used < SHORT:
        return declined(what, f"memory is even, and {used:.0%} of all of it is in use")
    margin = margins(view, fraction)
    low, high = int(margin.argmin()), int(margin.argmax())
    said = f"what a spill takes yields {margin[high] * 1024:.3g} results a KiB (slot {high})"
    said += f" and {margin[low] * 1024:.3g} (slot {low})"
    if margin[high] <= theta_f * margin[low]:
        return declined(what, f"{said}, not over theta_f {theta_f:g} apart")
    return bounded_spill(view, low, fraction, said)


def margins(view: View, fraction: float) -> F64:
    """(s,) results of the current generation a byte, of the least productive `fraction` of each
    slot's memory (one group at least); 0 for an empty slot."""
    worth = yields(view)
    found: F64 = np.zeros(view.slots)
    for slot in range(view.slots):
        mine = held_by(view, slot)
        order = mine[np.argsort(worth[mine], kind="stable")]
        total = np.cumsum(view.bytes[order])
        last = int(np.searchsorted(total, fraction * total[-1], side="right")) if len(total) else 0
        taken = order[: max(last, 1)]
        if len(taken):
            found[slot] = view.results[taken].sum() / view.bytes[taken].sum()
    return found


def _even_work(
    view: View, th_imb: float, th_util: float, min_span_s: float, pressure: float
) -> Advice:
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
        return declined(what, f"{said}, but {too_soon(view, min_span_s)}")
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
    # Never so much that memory becomes short: the rule for memory would send it back.
    room = pressure * view.budget[least] - view.memory[least]
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
        return Advice(
            declined=(
                Declined(
                    f"split of {name(view.groups[largest])}",
                    f"{why}, and {undivided_by(view, largest)} (a split divides no key; over "
                    f"{ONE_KEY:.0%} it would divide nothing)",
                ),
            )
        )
    if share < 0.5 or not weight[largest]:
        return declined(what, f"{why}, and no move evens it out")
    return Advice((SplitGroup(view.groups[largest], f"{why}, so no move evens it out"),))
