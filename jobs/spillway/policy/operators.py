"""`balance` and `degradation`: a join's groups move to even out memory, or to relieve a slow slot.

Source: DAX (VLDB 2005 demonstration), slide 8, "Operator-level adaptation - Redistribution". It
names both policies and says of them:

* "Cost per machine is determined as percentage of memory filled with tuples"; its example is
  "Balance", with a table of current and one of desired costs, and a capacity of 4,500 tuples;
* "cost models: number of tuples in memory and network output rate".

What is desired, and when, is not said, nor what Degradation is. Slide 21 has figures of the
relocation of state: a memory threshold of 80 % and a minimal span of 45 s. They are the defaults
here. What else is ours: see docs/decisions/0025.

Slide 17: operators have large states, and moving them is expensive; so partitions move. Here too:
what moves are groups of a join, the whole of the join's part at a slot where that fits. Which join
gives groups is decided by the network, as in the initial distribution: first those that bring the
most rows to the slot where they are needed, for the bytes (or work) that are to move; then those of
joins that the receiver has already.

In a query of one join nothing is exchanged between joins. `balance` still differs from `lazy-disk`
there: it counts spilled rows, goes by shares of budgets, and moves the heaviest groups first.
"""

from __future__ import annotations

import numpy as np

from spillway.policy.flux import ROUNDING, TH_IMB, utilisation
from spillway.policy.view import (
    F64,
    I64,
    IDLE,
    THRESHOLD,
    Advice,
    Declined,
    MoveGroup,
    View,
    declined,
    from_both_ends,
    too_soon,
)
from spillway_schemas.hash_space import ROOT


def balance(view: View, theta_d: float, min_span_s: float) -> Advice:
    """Even out the slots' costs, the state of their groups as a share of the slot's budget.

    What a slot has spilled counts with what it holds: a slot would look empty right after each
    spill, and be given groups for that. Slots are paired from both ends of their costs. A pair is
    considered when the lesser cost is below `theta_d` of the greater, and the last moves are over
    `min_span_s` ago. So much moves that both cost the same.
    """
    what = "redistribution"
    if view.slots < 2:
        return declined(what, "there is one slot")
    if not view.memory.any():
        return declined(what, "nothing is in memory")
    cost: F64 = view.state / view.budget
    moves: list[MoveGroup] = []
    passed: list[Declined] = []
    for most, least in from_both_ends(np.argsort(-cost, kind="stable")):
        said = f"cost {cost[most]:.0%} of the budget (slot {most}) and {cost[least]:.0%}"
        said += f" (slot {least})"
        if cost[least] >= theta_d * cost[most] - ROUNDING:
            if not moves:
                passed.append(Declined(what, f"{said}, not below theta_d {theta_d:g}"))
            break
        if view.since_move_s <= min_span_s:
            return declined(what, f"{said}, but {too_soon(view, min_span_s)}")
        of, to = int(view.budget[most]), int(view.budget[least])
        # In whole bytes: a group of just the right size must fit.
        wanted = (int(view.state[most]) * to - int(view.state[least]) * of) / (of + to)
        chosen = _chosen(view, most, least, view.sizes.astype(np.float64), wanted)
        moves += _moves(view, chosen, most, least, said)
        if not len(chosen):
            passed.append(Declined(what, f"{said}, but no group fits {wanted:,.0f} bytes"))
    return Advice(tuple(moves), tuple(passed[:1]))


def degradation(
    view: View,
    degraded: float,
    min_span_s: float,
    th_imb: float = TH_IMB,
    threshold: float = THRESHOLD,
) -> Advice:
    """Slots that give less for their time than others give up work.

    What a slot gives is the rows that it takes in and puts out, in a second in which it works. It
    is degraded when that is below `degraded` of the median of the other slots. The most degraded
    slot gives to the one that works least of the others, the next to the next, when its utilisation
    is `th_imb` times as high and the last moves are over `min_span_s` ago: so much that both work
    as long, as far as the receiver has room below `threshold` of its budget.
    """
    what = "redistribution"
    if view.slots < 2:
        return declined(what, "there is one slot")
    use, work = utilisation(view), view.work
    done = np.bincount(view.slot, weights=work, minlength=view.slots)
    told = (use >= IDLE) & (done > 0)
    if told.sum() < 2:
        return declined(what, "fewer than two slots work enough to compare them")
    speed: F64 = np.where(told, done / np.maximum(use, IDLE), np.nan)
    part = speed / np.maximum(_of_the_others(speed), ROUNDING)
    slow = told & (np.nan_to_num(part, nan=np.inf) < degraded)
    if not slow.any():
        least = int(np.nanargmin(part))
        why = f"the slowest, slot {least}, gives {part[least]:.0%} of what is usual for"
        return declined(what, f"{why} its time, not below {degraded:.0%}")
    donors = np.flatnonzero(slow)
    donors = donors[np.argsort(part[donors], kind="stable")]
    receivers = np.flatnonzero(~slow)
    receivers = receivers[np.argsort(use[receivers], kind="stable")]
    moves: list[MoveGroup] = []
    passed: list[Declined] = []
    for source, to in zip(donors.tolist(), receivers.tolist(), strict=False):
        said = f"slot {source} gives {part[source]:.0%} of what is usual for its time"
        said += f"; utilisation {use[source]:.2f} and {use[to]:.2f} (slot {to})"
        if use[source] < th_imb * use[to] or use[source] - use[to] < IDLE:
            passed.append(Declined(what, f"{said}, less than th_imb {th_imb:g} apart"))
            continue
        if view.since_move_s <= min_span_s:
            return declined(what, f"{said}, but {too_soon(view, min_span_s)}")
        # A row costs the receiver less time: it gains less than the donor loses.
        faster = float(speed[source] / speed[to]) if told[to] else 1.0
        wanted = float(done[source]) * float(1 - use[to] / use[source]) / (1 + faster)
        room = threshold * float(view.budget[to]) - float(view.memory[to])
        chosen = _chosen(view, source, to, work, wanted, room)
        moves += _moves(view, chosen, source, to, said)
        if not len(chosen):
            passed.append(Declined(what, f"{said}, but no group fits there"))
    return Advice(tuple(moves), tuple(passed[:1]))


def _of_the_others(speed: F64) -> F64:
    """(s,) the median of all other slots; NaN where nothing is told of them.

    Of an even number the lesser of the middle two: one fast slot makes the others no slower.
    """
    told = np.flatnonzero(~np.isnan(speed))
    order = told[np.argsort(speed[told], kind="stable")]
    n, found = len(order), np.full(len(speed), np.nan)
    if n:
        found[:] = speed[order[(n - 1) // 2]]
    if n > 1:
        # Without one of them, the middle is one further where that one came before it.
        middle = (n - 2) // 2
        found[order] = speed[order[middle + (np.arange(n) <= middle)]]
    elif n:
        found[order] = np.nan
    return found


def gains(view: View, source: int, to: int) -> F64:
    """(joins,) rows a second that less go from slot to slot when all groups that a join has at
    `source` move to `to`; below 0: more do.

    A join's rows have all hashes of the join that reads it, so they go to all its groups, in the
    same proportions from wherever they come.
    """
    found: F64 = np.zeros(len(view.parents))
    if len(view.parents) == 1:
        return found  # no join reads another
    share = _shares(view)
    rate = view.rate if len(view.rate) else np.zeros(len(view.groups))
    at = view.join * view.slots + view.slot
    gives = np.bincount(at, weights=rate, minlength=len(view.parents) * view.slots)
    gives = gives.reshape(-1, view.slots)
    for join, parent in enumerate(view.parents):
        if parent != ROOT:
            found[join] += gives[join, source] * (share[parent, to] - share[parent, source])
            found[parent] += share[parent, source] * (gives[join, to] - gives[join, source])
    return found


def _shares(view: View) -> F64:
    """(joins, s) the part of a join's rows that are at each slot; of its groups, when no rows came
    to it."""
    at = view.join * view.slots + view.slot
    size = len(view.parents) * view.slots
    rows = np.bincount(at, weights=view.processed, minlength=size).reshape(-1, view.slots)
    groups = np.bincount(at, minlength=size).reshape(-1, view.slots)
    held = np.where(rows.sum(axis=1, keepdims=True) > 0, rows, groups)
    share: F64 = held / np.maximum(held.sum(axis=1, keepdims=True), 1)
    return share


def _chosen(
    view: View, source: int, to: int, weight: F64, wanted: float, room: float = float("inf")
) -> I64:
    """Groups of a slot that weigh `wanted` together, at most, and take `room` bytes: join after
    join, the heaviest groups first. Less is wanted than the slot has, so one group stays."""
    mine = view.of_slot(source)
    mine = mine[weight[mine] > 0]
    part = np.bincount(view.join[mine], weights=weight[mine], minlength=len(view.parents))
    worth = gains(view, source, to) / np.maximum(part, ROUNDING)
    there = np.bincount(view.join[view.of_slot(to)], minlength=len(view.parents)) > 0
    of = view.join[mine]
    order = mine[np.lexsort((-weight[mine], of, ~there[of], -worth[of]))]
    chosen: list[int] = []
    for g in order.tolist():
        if weight[g] <= wanted and view.bytes[g] <= room:
            chosen.append(g)
            wanted -= float(weight[g])
            room -= float(view.bytes[g])
    return np.array(chosen, dtype=np.int64)


def _moves(view: View, chosen: I64, source: int, to: int, why: str) -> list[MoveGroup]:
    return [
        MoveGroup(view.groups[g], source, to, int(view.bytes[g]), why, sure=False)
        for g in chosen.tolist()
    ]
