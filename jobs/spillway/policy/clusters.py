"""`supplier-consumer`, `declustering` and `fine-tuning`: of windowed joins in a cluster.

Source: Chakraborty & Singh, Parallelizing Windowed Stream Joins in a Shared-Nothing Cluster,
sections IV-C, IV-D and V-A. *Buffer occupancy* there is how full a slave's input buffer is at the
end of each distribution epoch, on average over a reorganisation epoch of many; see
`spillway.policy.view.occupancy` for what it is here.

The paper's rules say when to act, and nothing of what follows; repeated on a load that stands
still, some of them act for ever. Each function says what was added against that.
"""

from __future__ import annotations

import math
import random

import numpy as np

from spillway.policy.flux import ROUNDING, utilisation
from spillway.policy.slots import rearranged
from spillway.policy.view import (
    F64,
    I64,
    NOISE,
    Advice,
    Bool,
    Declined,
    MergeGroups,
    MoveGroup,
    SetSlots,
    SplitGroup,
    Suggestion,
    View,
    declined,
    surely_below,
)
from spillway_schemas.journal import Prefix
from spillway_schemas.windows import SLICES

TH_SUP = 0.5
TH_CON = 0.01
BETA = 0.5
GROUPS = 512
"""That a warehouse begins with."""
THETA_BYTES = 3 << 19
"""1.5 MB, the paper's theta for windows of a few minutes; a day's groups are larger."""
APART = 1 - 2 * NOISE
"""Of 2 theta, below which two buddies are merged: so sizes that differ by `NOISE` from one look to
the next split no group that was just merged. Times `View.swing`: what leaves memory slice by slice
grows again, too."""
BUSY = 0.9
"""Utilisation, and share of a budget, that fewer slots may have in the end; times `View.swing`
likewise."""
LEAST_SWING = SLICES / (SLICES + 1)
"""Of utilisation: with the least slices that a window's length gives. Slices of short windows are
longer, but hold little that is joined."""
ONE_KEY = 0.9
"""A group of which one key has this share of the rows is not split: nearly all would stay
together."""

IN_VAIN = 3
"""Splits that left one half empty before no more is tried: by chance that happens to two keys one
time in eight."""


def supplier_consumer(view: View, th_sup: float = TH_SUP, th_con: float = TH_CON) -> Advice:
    """Each supplier (occupancy above `th_sup`) gives one random group to a consumer (below
    `th_con`): pairs by one scan over the slots. The same `view.seed` chooses the same groups.

    Ours: it is a random one of those that leave the consumer less busy than the supplier was;
    any other would only make a supplier of the consumer. And the least busy consumer comes first,
    or the first two slots would play a group to and fro beside one that has time.
    """
    # What a slot works in an interval: one that leaves rows over takes more than one.
    load = np.where(view.occupancy > th_con, 1 + view.occupancy, utilisation(view))
    suppliers = np.flatnonzero(view.occupancy > th_sup).tolist()
    by_load = np.argsort(load, kind="stable")
    consumers = [s for s in by_load.tolist() if view.occupancy[s] < min(th_con, th_sup)]
    if not suppliers or not consumers:
        return declined(
            "relocation",
            f"{len(suppliers)} suppliers (occupancy over {th_sup:g}) and {len(consumers)} "
            f"consumers (under {min(th_con, th_sup):g}); occupancies {_listed(view)}",
        )
    rng = random.Random(view.seed)
    rows = view.by_slot(view.processed)
    moves: list[MoveGroup] = []
    passed: list[Declined] = []
    for source, to in zip(suppliers, consumers, strict=False):
        mine = view.of_slot(source)
        if len(mine) < 2:
            passed.append(Declined(f"slot {source}", "it has no group to spare"))
            continue
        gives = load[source] / max(int(rows[source]), 1)
        takes = load[to] / rows[to] if rows[to] and load[to] else gives
        after = load[to] + takes * view.processed[mine]
        fitting = mine[(1 + NOISE) * after < (1 - NOISE) * load[source]].tolist()
        if not fitting:
            why = f"each of its groups would make slot {to} as busy as it is"
            passed.append(Declined(f"slot {source}", why))
            continue
        g = rng.choice(fitting)
        why = f"occupancy {view.occupancy[source]:.2f} and {view.occupancy[to]:.2f}"
        # Occupancy is what work is over an interval.
        sure = surely_below(1 + th_sup, 1.0, load[source])
        sure = sure and surely_below(load[to], 1 + th_con, 1.0)
        moves.append(MoveGroup(view.groups[g], source, to, int(view.bytes[g]), why, sure))
    return Advice(tuple(moves), tuple(passed))


def declustering(
    view: View, beta: float = BETA, th_sup: float = TH_SUP, th_con: float = TH_CON
) -> Advice:
    """Fewer slots when there is no supplier; more when suppliers > `beta` x consumers.

    Between 1 and the executors' cores (`view.cores`), so that the system stays just loaded.

    Ours: how many more or fewer, which the paper leaves open: one more for two suppliers, at least
    one; and at most half as many, but no fewer than can do the work and hold the state, neither of
    which the paper looks at. Fewer slots may be `BUSY` in the end, no more: without that a load of
    3.3 slots is too much for three and too little for four, for ever.
    """
    most = min(max(view.cores, 1), len(view.groups))
    suppliers = int((view.occupancy > th_sup).sum())
    consumers = int((view.occupancy < th_con).sum())
    said = f"{suppliers} suppliers and {consumers} consumers of {view.slots} slots"
    if not suppliers:
        return _fewer(view, said)
    if suppliers > beta * consumers:
        if view.slots >= most:
            return declined("more slots", f"{said}; there can be {most} (cores, and groups)")
        return Advice((SetSlots(min(view.slots + math.ceil(suppliers / 2), most), said),))
    return declined("another number of slots", f"{said}; beta is {beta:g}")


def _fewer(view: View, said: str) -> Advice:
    what = "fewer slots"
    if view.slots == 1 or not view.groups:
        return declined(what, f"{said}; there is one, or no group")
    use = utilisation(view)
    load = float(use.sum())
    busy, full = BUSY * max(view.swing, LEAST_SWING), BUSY * view.swing
    least = max(math.ceil(load / busy - ROUNDING), math.ceil(view.slots / 2), 1)
    problem = f"their work is that of {load:.2f} slots, too much for {view.slots - 1}"
    # What does not fit so few may fit half-way; to try every number would go on for ever.
    for slots in sorted({least, (least + view.slots) // 2}):
        if slots >= min(view.slots, len(view.groups) + 1):
            break
        busiest, fullest = after_rearranging(view, use, slots)
        if busiest <= busy and fullest <= full:
            return Advice((SetSlots(slots, f"{said}; their work is that of {load:.2f} slots"),))
        problem = f"of {slots} slots one would work {busiest:.0%} of the time"
        problem += f" and one hold {fullest:.0%} of its budget; at most {busy:.0%} and {full:.0%}"
    return declined(what, f"{said}; {problem}")


def after_rearranging(view: View, use: F64, slots: int) -> tuple[float, float]:
    """The greatest utilisation and the greatest share of a budget that a slot has afterwards.

    A new slot is taken to have the smallest budget of those that there are.
    """
    owners = list(zip(view.groups, view.slot.tolist(), strict=True))
    moves = rearranged(owners, dict(zip(view.groups, view.bytes.tolist(), strict=True)), slots)
    index = {group: g for g, group in enumerate(view.groups)}
    slot = view.slot.copy()
    slot[[index[move.group] for move in moves]] = [move.to for move in moves]
    rows = np.maximum(view.by_slot(view.processed), 1)
    work = np.bincount(slot, weights=(use / rows)[view.slot] * view.processed, minlength=slots)
    held = np.bincount(slot, weights=view.bytes, minlength=slots)
    budget: I64 = np.full(slots, view.budget.min(), dtype=np.int64)
    kept = min(slots, view.slots)
    budget[:kept] = view.budget[:kept]
    return float(work.max()), float((held / budget).max())


def one_key(view: View) -> Bool:
    """Groups that (nearly) one key makes up, bool (g,): a split would not divide them.

    Keys are counted in a slot's largest groups only. In others it shows by their last splits:
    `IN_VAIN` of them in a row left the other half empty.
    """
    share = view.hot_share if len(view.hot_share) else np.zeros(len(view.groups))
    found: Bool = share >= ONE_KEY
    depths = view.depth.tolist()  # a join's own: beside the whole of it lies another join
    empty = {view.groups[g] for g in np.flatnonzero(view.bytes == 0).tolist()}
    if empty:
        for g in np.flatnonzero(view.bytes).tolist():
            depth, value = view.groups[g]
            halves = [Prefix(depth - up, value >> up ^ 1) for up in range(min(IN_VAIN, depths[g]))]
            found[g] |= len(halves) == IN_VAIN and empty.issuperset(halves)
    return found


def undivided_by(view: View, g: int) -> str:
    """Why a group that `one_key` names is not split."""
    if len(view.hot_share) and view.hot_share[g] >= ONE_KEY:
        return f"the key {view.hot_key[g]!r} has {view.hot_share[g]:.0%} of its rows"
    return f"its last {IN_VAIN} splits divided nothing, as if it were one key"


def fine_tuning(view: View, theta_bytes: int = THETA_BYTES, groups: int = GROUPS) -> Advice:
    """Keep every group between theta and 2 theta bytes, by splits and merges of buddies.

    A group over 2 theta is split by one more bit. Two groups that differ in their last bit only,
    at one slot, are merged when one is under theta and both together are under 2 theta.

    Ours: together they must be under `APART` of 2 theta (less where windows make sizes swing), and
    neither may have spilled: it would grow again, and be split. As in the paper, where only what a
    partition was split into is merged again, none gets larger than one of the `groups` that the
    warehouse began with for each join.
    """
    undivided = one_key(view)
    suggested: list[Suggestion] = []
    passed: list[Declined] = []
    memory = view.memory
    if not memory.any():
        return declined("splits and merges", "nothing is in memory")
    for g in np.flatnonzero(view.bytes > 2 * theta_bytes).tolist():
        group, size = view.groups[g], int(view.bytes[g])
        if undivided[g]:
            share = size / max(int(memory[view.slot[g]]), 1)
            passed.append(
                Declined(
                    f"split of {view.named(group)}",
                    f"{undivided_by(view, g)}; the group has {share:.0%} of slot "
                    f"{view.slot[g]}'s memory",
                )
            )
            continue
        why = f"{size:,} bytes, over 2 theta = {2 * theta_bytes:,}"
        suggested.append(SplitGroup(group, why))
    index = {group: g for g, group in enumerate(view.groups)}
    depths = view.depth.tolist()
    apart = 2 * APART * view.swing
    for g, group in enumerate(view.groups):
        if group.value & 1 or depths[g] <= math.log2(groups):
            continue  # a pair is looked at once, from its even half
        buddy = index.get(Prefix(group.depth, group.value ^ 1))
        if buddy is None:
            continue
        one, other = int(view.bytes[g]), int(view.bytes[buddy])
        if min(one, other) >= theta_bytes or one + other >= apart * theta_bytes:
            continue
        parent = Prefix(group.depth - 1, group.value >> 1)
        merge = f"merge of {view.named(parent)}"
        if view.slot[g] != view.slot[buddy]:
            passed.append(Declined(merge, "its halves are at different slots"))
        elif view.spilled[g] or view.spilled[buddy]:
            passed.append(Declined(merge, "it has spilled, and grows again"))
        else:
            why = f"halves of {one:,} and {other:,} bytes; theta is {theta_bytes:,}"
            suggested.append(MergeGroups(parent, why))
    if not suggested and not passed:
        why = f"every group is about {theta_bytes:,} bytes, alone, or one of the first {groups:,}"
        return declined("splits and merges", why)
    return Advice(tuple(suggested), tuple(passed))


def _listed(view: View) -> str:
    return ", ".join(f"{value:.2f}" for value in view.occupancy.tolist())
