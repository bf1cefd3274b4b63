"""`supplier-consumer`, `declustering` and `fine-tuning`: of windowed joins in a cluster.

Source: Chakraborty & Singh, Parallelizing Windowed Stream Joins in a Shared-Nothing Cluster,
sections IV-C, IV-D and V-A. *Buffer occupancy* there is how full a slave's input buffer is at the
end of each distribution epoch, on average over a reorganisation epoch of many; see
`jobs.policy.view.occupancy` for what it is here.
"""

from __future__ import annotations

import random

import numpy as np

from jobs.policy.view import (
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
    name,
)
from schemas.journal import Prefix

TH_SUP = 0.5
TH_CON = 0.01
BETA = 0.5
THETA_BYTES = 3 << 19
"""1.5 MB, the paper's theta for windows of a few minutes; a day's groups are larger."""
ONE_KEY = 0.9
"""A group of which one key has this share of the rows is not split: nearly all would stay
together."""

IN_VAIN = 3
"""Splits that left one half empty before no more is tried: by chance that happens to two keys one
time in eight."""


def supplier_consumer(view: View, th_sup: float = TH_SUP, th_con: float = TH_CON) -> Advice:
    """Each supplier (occupancy above `th_sup`) gives one random group to a consumer (below
    `th_con`): pairs by one scan over the slots. The same `view.seed` chooses the same groups."""
    suppliers = np.flatnonzero(view.occupancy > th_sup).tolist()
    consumers = np.flatnonzero(view.occupancy < th_con).tolist()
    if not suppliers or not consumers:
        return declined(
            "relocation",
            f"{len(suppliers)} suppliers (occupancy over {th_sup:g}) and {len(consumers)} "
            f"consumers (under {th_con:g}); occupancies {_listed(view)}",
        )
    rng = random.Random(view.seed)
    moves: list[MoveGroup] = []
    passed: list[Declined] = []
    for source, to in zip(suppliers, consumers, strict=False):
        mine = view.of_slot(source).tolist()
        if len(mine) < 2:
            passed.append(Declined(f"slot {source}", "it has no group to spare"))
            continue
        g = rng.choice(mine)
        why = f"occupancy {view.occupancy[source]:.2f} and {view.occupancy[to]:.2f}"
        moves.append(MoveGroup(view.groups[g], source, to, int(view.bytes[g]), why))
    return Advice(tuple(moves), tuple(passed))


def declustering(
    view: View, beta: float = BETA, th_sup: float = TH_SUP, th_con: float = TH_CON
) -> Advice:
    """One slot fewer when there is no supplier; one more when suppliers > `beta` x consumers.

    Between 1 and the executors' cores (`view.cores`), so that the system stays just loaded.
    """
    most = max(view.cores, 1)
    suppliers = int((view.occupancy > th_sup).sum())
    consumers = int((view.occupancy < th_con).sum())
    said = f"{suppliers} suppliers and {consumers} consumers of {view.slots} slots"
    if not suppliers:
        if view.slots == 1:
            return declined("fewer slots", f"{said}; there is one")
        return Advice((SetSlots(view.slots - 1, said),))
    if suppliers > beta * consumers:
        if view.slots >= most:
            return declined("more slots", f"{said}; the executors have {most} cores")
        return Advice((SetSlots(view.slots + 1, said),))
    return declined("another number of slots", f"{said}; beta is {beta:g}")


def one_key(view: View) -> Bool:
    """Groups that (nearly) one key makes up, bool (g,): a split would not divide them.

    Keys are counted in a slot's largest groups only. In others it shows by their last splits:
    `IN_VAIN` of them on end left the other half empty.
    """
    found: Bool = np.zeros(len(view.groups), dtype=np.bool_)
    if len(view.hot_share):
        found |= view.hot_share >= ONE_KEY
    empty = {view.groups[g] for g in np.flatnonzero(view.bytes == 0).tolist()}
    if empty:
        for g in np.flatnonzero(view.bytes).tolist():
            depth, value = view.groups[g]
            halves = [Prefix(depth - up, value >> up ^ 1) for up in range(min(IN_VAIN, depth))]
            found[g] |= len(halves) == IN_VAIN and empty.issuperset(halves)
    return found


def undivided_by(view: View, g: int) -> str:
    """Why a group that `one_key` names is not split."""
    if len(view.hot_share) and view.hot_share[g] >= ONE_KEY:
        return f"the key {view.hot_key[g]!r} has {view.hot_share[g]:.0%} of its rows"
    return f"its last {IN_VAIN} splits divided nothing, as if it were one key"


def fine_tuning(view: View, theta_bytes: int = THETA_BYTES) -> Advice:
    """Keep every group between theta and 2 theta bytes, by splits and merges of buddies.

    A group over 2 theta is split by one more bit. Two groups that differ in their last bit only,
    at one slot, are merged when one is under theta and both together are under 2 theta.
    """
    undivided = one_key(view)
    suggested: list[Suggestion] = []
    passed: list[Declined] = []
    index = {group: g for g, group in enumerate(view.groups)}
    memory = view.memory
    if not memory.any():
        return declined("splits and merges", "nothing is in memory")
    for g, group in enumerate(view.groups):
        size = int(view.bytes[g])
        if size > 2 * theta_bytes:
            if undivided[g]:
                share = size / max(int(memory[view.slot[g]]), 1)
                passed.append(
                    Declined(
                        f"split of {name(group)}",
                        f"{undivided_by(view, g)}; the group has {share:.0%} of slot "
                        f"{view.slot[g]}'s memory",
                    )
                )
                continue
            why = f"{size:,} bytes, over 2 theta = {2 * theta_bytes:,}"
            suggested.append(SplitGroup(group, why))
            continue
        buddy = index.get(Prefix(group.depth, group.value ^ 1)) if group.depth else None
        if buddy is None or group.value & 1:
            continue  # a pair is looked at once, from its even half
        both = size + int(view.bytes[buddy])
        small = min(size, int(view.bytes[buddy])) < theta_bytes
        if not small or both >= 2 * theta_bytes:
            continue
        parent = Prefix(group.depth - 1, group.value >> 1)
        if view.slot[g] != view.slot[buddy]:
            passed.append(Declined(f"merge of {name(parent)}", "its halves are at different slots"))
            continue
        why = f"halves of {size:,} and {both - size:,} bytes; theta is {theta_bytes:,}"
        suggested.append(MergeGroups(parent, why))
    if not suggested and not passed:
        return declined("splits and merges", f"every group is about {theta_bytes:,} bytes or alone")
    return Advice(tuple(suggested), tuple(passed))


def _listed(view: View) -> str:
    return ", ".join(f"{value:.2f}" for value in view.occupancy.tolist())
