"""`flux-load`, `flux-memory`, `flux-hybrid`: rounds in which slots are paired from both ends.

Source: Shah, Hellerstein, Chandrasekaran, Franklin, Flux (UCB/CSD-2-1205), sections 5.3, 6.2 and
6.4. A round is a collection time, then at most one move for each pair of slots.

Rounds follow each other within seconds, so what keeps other policies from moving to and fro, a
long time between two relocations, is not there. Flux has `delta_min_s` against it, and its Figure 9
shows how it thrashes where that is too short. Ours: with `noise`, a group moves only when that
helps although each figure may be so much off, and a move that needs luck to be suggested says so
(`MoveGroup.sure`). Without it the functions are the paper's, but for these:

* The paper prints the excess as state - memory and then speaks of it with the opposite sign, which
  is the one that is meant: it is negative when memory is exhausted.
* Its spilled partitions come back as soon as there is room, ours wait for cleanup. So a slot counts
  as one with partitions on disk while what it has spilled would not fit below the spill threshold
  again. Such slots stand where donors stand, before all others, and receive nothing from these: by
  its excess a slot may look roomy that spills again at once.
* Where the first group that would lessen the imbalance makes the receiver too busy, the paper moves
  nothing (5.3); ours tries the next smaller ones.
* A receiver without rows, whose time for one is unknown, is taken to be as fast as the donor.
* `th_imb` is a ratio, and the paper does not say what it means where an excess is negative: see
  `flux_memory`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from spillway.policy.view import (
    F64,
    I64,
    THRESHOLD,
    Advice,
    Bool,
    Declined,
    MoveGroup,
    View,
    declined,
    from_both_ends,
)

TH_IMB = 1.2
TH_UTIL = 0.9
MANY = 4
"""Groups that could go from one slot to another: then rounds may follow each other at once. Of
fewer, one may be found by chance, for who is paired with whom changes with every figure."""
ROUNDING = 1e-9
"""Less than this is no gain: two slots that only change places would do so for ever."""

Better = Callable[..., bool]


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

    def worth(donor: int, receiver: int, off: float) -> str | None:
        said = f"U {use[donor]:.2f} (slot {donor}) and {use[receiver]:.2f} (slot {receiver})"
        high, low = (1 - off) * use[donor], (1 + off) * use[receiver]
        if high <= (1 + off) * use.mean():
            return f"{said}: the donor is not above the average {use.mean():.2f}"
        if high < th_imb * low:
            return f"{said}: less than th_imb {th_imb:g} apart"
        if low > th_util:
            return f"{said}: the receiver is above th_util {th_util:g}"
        return None

    def better(donor: int, receiver: int, g: int, off: float, times: int = 1) -> bool:
        rows = times * int(view.processed[g])
        share = rows / max(total[donor], 1)
        new_donor = use[donor] * (1 - share)
        gain = use[receiver] * rows / total[receiver] if total[receiver] else use[donor] * share
        new_receiver = use[receiver] + gain
        return bool(
            new_receiver <= 1
            and abs(new_donor - new_receiver) < abs(use[donor] - use[receiver]) - ROUNDING
            and (not off or (1 + off) * new_receiver < (1 - off) * use[donor])
            and (fits is None or fits(receiver, int(view.sizes[g])))
        )

    return _round(view, np.argsort(-use, kind="stable"), -view.processed, worth, better, noise)


def flux_memory(
    view: View, th_imb: float = TH_IMB, threshold: float = THRESHOLD, noise: float = 0.0
) -> Advice:
    """Even out excess memory: budget - what is in memory - what is spilled. The least gives to the
    most.

    A pair is considered when the donor's excess is below the average and the receiver's is at least
    `th_imb` times as much, or when only the donor's is negative; when both are, the donor lacks at
    least `th_imb` times as much. Groups by size, those wholly in memory before those with
    something on disk. A slot that has spilled what would not fit below `threshold` of its budget
    again receives nothing, unless every slot has: then memory is exhausted, and a move still
    spreads what is on disk.
    """
    excess = view.budget - view.state
    full = view.lacks(threshold)
    exhausted = bool(full.all())

    def apart(gives: float, takes: float) -> bool:
        if gives > 0:
            return takes >= th_imb * gives
        return takes > 0 or gives <= th_imb * takes

    def worth(donor: int, receiver: int, off: float) -> str | None:
        said = f"excess memory {excess[donor]:,} (slot {donor}) and {excess[receiver]:,}"
        said += f" (slot {receiver})"
        if full[receiver] and not exhausted:
            return f"{said}: what slot {receiver} has spilled would not fit again"
        gives = float(excess[donor] + off * view.state[donor])
        takes = float(excess[receiver] - off * view.state[receiver])
        if gives >= float((excess - off * view.state).mean()):
            return f"{said}: the donor's is not below the average {excess.mean():,.0f}"
        if not apart(gives, takes):
            return f"{said}: less than th_imb {th_imb:g} apart"
        return None

    def better(donor: int, receiver: int, g: int, off: float, times: int = 1) -> bool:
        size = times * int(view.sizes[g])
        now = int(excess[receiver] - excess[donor])
        unsure = off * float(view.state[donor] + view.state[receiver] + size)
        return size > 0 and abs(now - 2 * size) < abs(now) and size < now - unsure

    by_size = np.lexsort((-view.sizes, view.spilled))
    rank: I64 = np.empty(len(by_size), dtype=np.int64)
    rank[by_size] = np.arange(len(by_size))
    order = np.lexsort((excess, ~full))
    known = not _either(view, threshold, noise).any()
    return _round(view, order, rank, worth, better, noise, known)


def flux_hybrid(
    view: View,
    th_imb: float = TH_IMB,
    th_util: float = TH_UTIL,
    threshold: float = THRESHOLD,
    noise: float = 0.0,
) -> Advice:
    """By memory while a slot has spilled what it could not have in memory again; else by load, and
    only where the receiver has room.

    A slot whose whole state would fit below `threshold` of its budget counts as one all of whose
    groups are resident.
    """
    if not view.fits(threshold):
        return flux_memory(view, th_imb, threshold, noise)
    room = view.budget - view.state
    advice = flux_load(view, th_imb, th_util, lambda slot, size: size <= int(room[slot]), noise)
    if not _either(view, threshold, noise).any():
        return advice
    moves = [each for each in advice.suggestions if isinstance(each, MoveGroup)]
    return Advice(tuple(replace(each, sure=False) for each in moves), advice.declined)


def _either(view: View, threshold: float, noise: float) -> Bool:
    """(s,) slots whose spilled state would fit again or not, as figures are off by `noise`."""
    doubtful: Bool = view.lacks((1 - noise) * threshold) & ~view.lacks((1 + noise) * threshold)
    return doubtful


def _round(
    view: View,
    order: I64,
    rank: I64,
    worth: Callable[[int, int, float], str | None],
    better: Better,
    noise: float,
    known: bool = True,
) -> Advice:
    """One group for each pair of slots, from both ends of `order` (first: who gives most).

    `worth(donor, receiver, off)`: why a pair is left alone, when its figures are so much off;
    `better(donor, receiver, group, off, times)`: whether so many moves of such a group help all the
    same. `known`: whether noise leaves `order` as it is.
    """
    moves: list[MoveGroup] = []
    passed: list[Declined] = []
    for donor, receiver in from_both_ends(order):
        if problem := worth(donor, receiver, 0.0):
            passed.append(Declined(f"slots {donor} to {receiver}", problem))
            break
        mine = view.of_slot(donor)
        mine = mine[np.argsort(rank[mine], kind="stable")]
        g = next((g for g in mine.tolist() if better(donor, receiver, g, noise)), None)
        if g is None:
            why = f"no group of slot {donor} lessens the imbalance when it moves"
            if len(mine):
                why += f" (the first would be {view.named(view.groups[int(mine[0])])})"
            passed.append(Declined(f"slots {donor} to {receiver}", why))
            continue
        size = int(view.bytes[g])
        why = f"lessens the imbalance of slots {donor} and {receiver}"
        sure = not noise or (
            known
            and worth(donor, receiver, noise) is None
            and better(donor, receiver, g, 2 * noise, MANY)
        )
        moves.append(MoveGroup(view.groups[g], donor, receiver, size, why, sure))
    if not moves and not passed:
        return declined("a round", "there is one slot")
    return Advice(tuple(moves), tuple(passed))
