"""`flux-load`, `flux-memory`, `flux-hybrid`: rounds in which slots are paired from both ends.

Source: Shah, Hellerstein, Chandrasekaran, Franklin, Flux (UCB/CSD-2-1205), sections 5.3, 6.2 and
6.4. A round is a collection time, then at most one move for each pair of slots.

Rounds follow each other within seconds, so what keeps other policies from moving to and fro, a
long time between two relocations, is not there. Flux has `delta_min_s` against it, and its Figure 9
shows how it thrashes where that is too short. Ours: with `noise`, a group moves only when that
helps although each figure may be so much off. Without it the functions are the paper's.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from jobs.policy.view import (
    F64,
    I64,
    Advice,
    Declined,
    MoveGroup,
    View,
    declined,
    from_both_ends,
    name,
)

TH_IMB = 1.2
TH_UTIL = 0.9
THRESHOLD = 0.8
"""Of its budget, at which a slot spills."""
ROUNDING = 1e-9
"""Less than this is no gain: two slots that only change places would do so for ever."""


def next_collection_s(previous_s: float, moved_s: float | None, delta_min_s: float) -> float:
    """The next collection time: as long as the last moves took (None: nothing moved, half the
    time before), and not under `delta_min_s`. So at most half of all time goes into moving."""
    return max(previous_s / 2 if moved_s is None else moved_s, delta_min_s)


def collection_s(
    initial_s: float, moved_s: float | None, since_s: float, delta_min_s: float
) -> float:
    """The present collection time of a controller that remembers nothing but the journal.

    `moved_s`: how long the last moves took (None: there were none), `since_s`: time since their
    end (or since the beginning, when nothing has moved). Every round without moves since has
    halved it.
    """
    length = max(initial_s if moved_s is None else moved_s, delta_min_s)
    while since_s > length > delta_min_s:
        since_s -= length
        length = next_collection_s(length, None, delta_min_s)
    return length


def utilisation(view: View) -> F64:
    """(s,) U = 1 - idle time / collection time."""
    if view.collection_s <= 0:
        return np.zeros(view.slots)
    used: F64 = np.clip(1 - view.idle_s / view.collection_s, 0.0, 1.0)
    return used


def flux_load(
    view: View,
    th_imb: float = TH_IMB,
    th_util: float = TH_UTIL,
    fits: Callable[[int, int], bool] | None = None,
    noise: float = 0.0,
) -> Advice:
    """Even out utilisation: the most utilised slot gives to the least, the next to the next least.

    A pair is considered when the donor is above the average, their ratio is at least `th_imb`
    and the receiver below `th_util`; at the first that fails, the rest is left alone. Of the
    donor's groups, in descending order of rows processed, the first moves that lessens the
    imbalance and does not over-utilise the receiver (U > 1), by the estimates
    U_d (1 - N_p / T_d) and U_r (1 + N_p / T_r). A receiver that processed nothing (T_r = 0)
    is taken to work as fast as the donor. `fits(slot, bytes)`: whether there is room.
    """
    use = utilisation(view)
    total: I64 = np.zeros(view.slots, dtype=np.int64)
    np.add.at(total, view.slot, view.processed)

    def worth(donor: int, receiver: int) -> str | None:
        said = f"U {use[donor]:.2f} (slot {donor}) and {use[receiver]:.2f} (slot {receiver})"
        if use[donor] <= use.mean():
            return f"{said}: the donor is not above the average {use.mean():.2f}"
        if use[donor] < th_imb * use[receiver]:
            return f"{said}: less than th_imb {th_imb:g} apart"
        if use[receiver] > th_util:
            return f"{said}: the receiver is above th_util {th_util:g}"
        return None

    def better(donor: int, receiver: int, g: int) -> bool:
        share = view.processed[g] / max(total[donor], 1)
        new_donor = use[donor] * (1 - share)
        gain = (
            use[receiver] * view.processed[g] / total[receiver]
            if total[receiver]
            else use[donor] * share
        )
        new_receiver = use[receiver] + gain
        return bool(
            view.processed[g] > 0
            and new_receiver <= 1
            and abs(new_donor - new_receiver) < abs(use[donor] - use[receiver]) - ROUNDING
            and (not noise or (1 + noise) * new_receiver < (1 - noise) * use[donor])
            and (fits is None or fits(receiver, int(view.sizes[g])))
        )

    return _round(view, np.argsort(-use, kind="stable"), -view.processed, worth, better)


def flux_memory(view: View, th_imb: float = TH_IMB, noise: float = 0.0) -> Advice:
    """Even out excess memory: budget - what is in memory - what is spilled. The least gives to the
    most.

    A pair is considered when the donor's excess is below the average and the receiver's is at least
    `th_imb` times as much, or when only the donor's is negative; when both are, the donor lacks at
    least `th_imb` times as much. Groups by size, those wholly in memory before those with
    something on disk. A slot that has spilled receives nothing, unless every slot has: then
    memory is exhausted, and a move still spreads what is on disk.
    """
    excess = view.budget - view.state
    full = view.has_spilled
    exhausted = bool(full.all())

    def apart(donor: int, receiver: int) -> bool:
        gives, takes = int(excess[donor]), int(excess[receiver])
        if gives > 0:
            return takes >= th_imb * gives
        return takes > 0 or gives <= th_imb * takes

    def worth(donor: int, receiver: int) -> str | None:
        said = f"excess memory {excess[donor]:,} (slot {donor}) and {excess[receiver]:,}"
        said += f" (slot {receiver})"
        if full[receiver] and not exhausted:
            return f"{said}: slot {receiver} has spilled"
        if excess[donor] >= excess.mean():
            return f"{said}: the donor's is not below the average {excess.mean():,.0f}"
        if not apart(donor, receiver):
            return f"{said}: less than th_imb {th_imb:g} apart"
        return None

    def better(donor: int, receiver: int, g: int) -> bool:
        size = int(view.sizes[g])
        now = int(excess[receiver] - excess[donor])
        unsure = noise * float(view.state[donor] + view.state[receiver] + size)
        return size > 0 and abs(now - 2 * size) < abs(now) and size < now - unsure

    by_size = np.lexsort((-view.sizes, view.spilled))
    rank: I64 = np.empty(len(by_size), dtype=np.int64)
    rank[by_size] = np.arange(len(by_size))
    # Slots that have spilled stand where donors stand, however much of them would fit again.
    order = np.lexsort((excess, ~full))
    return _round(view, order, rank, worth, better)


def flux_hybrid(
    view: View,
    th_imb: float = TH_IMB,
    th_util: float = TH_UTIL,
    threshold: float = THRESHOLD,
    noise: float = 0.0,
) -> Advice:
    """By memory while a slot has spilled what it could not have in memory again; else by load, and
    only where the receiver has room.

    In the paper spilled partitions come back as soon as there is room; here spilled rows wait for
    cleanup. So a slot whose whole state would fit below `threshold` of its budget counts as one
    all of whose groups are resident.
    """
    if not view.fits(threshold):
        return flux_memory(view, th_imb, noise)
    room = view.budget - view.state
    return flux_load(view, th_imb, th_util, lambda slot, size: size <= int(room[slot]), noise)


def _round(
    view: View,
    order: I64,
    rank: I64,
    worth: Callable[[int, int], str | None],
    better: Callable[[int, int, int], bool],
) -> Advice:
    """One group for each pair of slots, from both ends of `order` (first: who gives most)."""
    moves: list[MoveGroup] = []
    passed: list[Declined] = []
    for donor, receiver in from_both_ends(order):
        if problem := worth(donor, receiver):
            passed.append(Declined(f"slots {donor} to {receiver}", problem))
            break
        mine = view.of_slot(donor)
        mine = mine[np.argsort(rank[mine], kind="stable")]
        g = next((g for g in mine.tolist() if better(donor, receiver, g)), None)
        if g is None:
            why = f"no group of slot {donor} lessens the imbalance when it moves"
            if len(mine):
                why += f" (the first would be {name(view.groups[int(mine[0])])})"
            passed.append(Declined(f"slots {donor} to {receiver}", why))
            continue
        size = int(view.bytes[g])
        why = f"lessens the imbalance of slots {donor} and {receiver}"
        moves.append(MoveGroup(view.groups[g], donor, receiver, size, why))
    if not moves and not passed:
        return declined("a round", "there is one slot")
    return Advice(tuple(moves), tuple(passed))
