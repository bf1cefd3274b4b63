"""`lazy-disk` and `active-disk`: relocation first, and spills where results are rare.

Source: Liu & Rundensteiner, WPI-CS-TR-05-04, sections 5.1 and 6; values that the report leaves out
are those of the DAX demonstration (VLDB 2005, slides 20 and 21). M is a slot's memory in use.
Productivity is P_output / P_size (the report writes its reciprocal).

The report has two or three machines, of which one gives and one takes. Of many slots the fullest
gives to the emptiest, the second to the second, and so on, in one adaptation: one pair at a time
would take a thousand slots hundreds of looks. Two and three slots are one pair, as in the report.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from spillway.policy.victims import GroupFigures, productivity
from spillway.policy.view import (
    F64,
    I64,
    NOISE,
    THRESHOLD,
    Advice,
    Declined,
    ForceSpill,
    MoveGroup,
    View,
    declined,
    from_both_ends,
    surely_below,
    too_soon,
)

THETA_D = 0.8
MIN_SPAN_S = 45.0
THETA_F = 2.0
"""DAX, slide 21: "Ratio>2"."""
RELOCATION_BYTES = 30_000_000
"""DAX, slide 21: "State relocation >30M"."""
FRACTION = 0.3
"""TR-05-04, 4.4: what a machine pushes at a time, of its state. That a forced spill takes as much
is ours."""
FORCED_BYTES = 100_000_000
"""DAX, slide 21: "Maximal Force-Disk memory 100M"."""


def lazy_disk(
    view: View,
    theta_d: float = THETA_D,
    min_span_s: float = MIN_SPAN_S,
    relocation_bytes: int = RELOCATION_BYTES,
) -> Advice:
    """Relocate when M_least / M_most < `theta_d` and the last time is over `min_span_s` ago.

    (M_most - M_least) / 2 bytes, when that is over `relocation_bytes`, go from the fullest slot to
    the emptiest, the most productive groups first, as far as they fit: a group that is larger than
    what is left to move is passed over, for it would only turn the imbalance round. A group that
    has spilled does not move (section 6). Spills stay each slot's own affair. (The report's other
    restriction, one adaptation at a time, has no use here: in an epoch a slot first gives up what
    moves, and spills of what it has then.)
    """
    what = "relocation"
    if view.slots < 2:
        return declined(what, "there is one slot")
    memory = view.memory
    if not memory.any():
        return declined(what, "nothing is in memory")
    moves: list[MoveGroup] = []
    passed: list[Declined] = []
    for most, least in from_both_ends(np.argsort(-memory, kind="stable")):
        said = f"M_least / M_most = {memory[least] / max(memory[most], 1):.2f}"
        said += f" (slots {least} and {most})"
        left = int(memory[most] - memory[least]) // 2
        if memory[least] >= theta_d * memory[most]:
            why: str | None = f"{said}, not below theta_d {theta_d:g}"
        elif view.since_move_s <= min_span_s:
            why = f"{said}, but {too_soon(view, min_span_s)}"
        elif left <= relocation_bytes:
            why = f"{said}, but half of the difference is {left:,} bytes, not over "
            why += f"{relocation_bytes:,}"
        else:
            why = None
        if why is not None:
            passed += [Declined(what, why)] if not moves and not passed else []
            break
        chosen = productive_first(view, most, left, spilled=False)
        certain = left - NOISE * float(memory[most] + memory[least])
        sure = (
            surely_below(float(memory[least]), theta_d, float(memory[most]))
            and certain > relocation_bytes
            and bool((view.bytes[chosen] * (1 + NOISE) <= certain).any())
        )
        moves += [
            MoveGroup(view.groups[g], most, least, int(view.bytes[g]), said, sure)
            for g in chosen.tolist()
        ]
        if len(chosen):
            passed += _passed_over(view, most, chosen, left)
        else:
            passed.append(Declined(what, f"{said}, but {_stuck(view, most, left)}"))
    return Advice(tuple(moves), tuple(passed))


def _stuck(view: View, slot: int, most_bytes: int) -> str:
    """Why no group of a slot moves."""
    mine = held_by(view, slot)
    mine = mine[~view.spilled[mine]]
    if not len(mine):
        return f"every group of slot {slot} has spilled, and such groups do not move"
    smallest = view.named(view.groups[int(mine[view.bytes[mine].argmin()])])
    return f"even group {smallest} of slot {slot} is larger than {most_bytes:,} bytes"


def _passed_over(view: View, slot: int, chosen: I64, most_bytes: int) -> tuple[Declined, ...]:
    """Groups that are more productive than some of those that move, and stay: too large."""
    worth = yields(view)
    mine = held_by(view, slot)
    mine = mine[~view.spilled[mine]]
    mine = mine[~np.isin(mine, chosen) & (worth[mine] > worth[chosen].min())]
    if not len(mine):
        return ()
    best = int(mine[worth[mine].argmax()])
    return (
        Declined(
            f"move of {len(mine)} more productive groups of slot {slot}",
            f"they are larger than what was left of {most_bytes:,} bytes, e.g. "
            f"{view.named(view.groups[best])} with {int(view.bytes[best]):,}",
        ),
    )


def held_by(view: View, slot: int) -> I64:
    """Indices of a slot's groups that hold anything, ascending."""
    mine = view.of_slot(slot)
    return mine[view.bytes[mine] > 0]


def yields(view: View) -> F64:
    """(g,) P_output / P_size: results of the current generation a byte."""
    return productivity(GroupFigures(view.bytes, view.results, np.zeros_like(view.bytes)))


def productive_first(view: View, slot: int, most_bytes: int, *, spilled: bool = True) -> I64:
    """A slot's groups, the most productive first, as far as they fit into `most_bytes`.

    A group that is larger than what is left is passed over, and unless `spilled` one that has
    spilled, too.
    """
    mine = held_by(view, slot)
    if not spilled:
        mine = mine[~view.spilled[mine]]
    chosen = []
    for g in mine[np.argsort(-yields(view)[mine], kind="stable")].tolist():
        if view.bytes[g] <= most_bytes:
            most_bytes -= int(view.bytes[g])
            chosen.append(g)
    return np.array(chosen, dtype=np.int64)


def query_bytes(view: View) -> int:
    """M_query: what the whole session's state would take, at its growth so far."""
    return int(view.session_bytes + view.growth * view.left_s)


def cluster_bytes(view: View, threshold: float) -> int:
    """M_cluster: what all slots may hold before they spill, at `threshold` of their budgets."""
    return max(int(threshold * float(view.budget.sum())), 1)


def active_disk(
    view: View,
    theta_d: float = THETA_D,
    min_span_s: float = MIN_SPAN_S,
    theta_f: float = THETA_F,
    fraction: float = FRACTION,
    relocation_bytes: int = RELOCATION_BYTES,
    forced_bytes: int = FORCED_BYTES,
    threshold: float = THRESHOLD,
) -> Advice:
    """As `lazy_disk`; when memory is balanced, force the slot of the lowest output rate to spill.

    When Rate_max / Rate_min > `theta_f`, `fraction` of the slot's memory is spilled, and over the
    session at most M_query - M_cluster and at most `forced_bytes`. As in the report only what was
    forced counts, not what slots spill by themselves. M_cluster is what slots may hold before they
    spill, `threshold` of their budgets. Memory counts as balanced, too, while the difference is too
    small to relocate.
    """
    advice = lazy_disk(view, theta_d, min_span_s, relocation_bytes)
    memory = view.memory
    if advice.suggestions or view.slots < 2 or not memory.max():
        return advice
    small = int(memory.max() - memory.min()) // 2 <= relocation_bytes
    if memory.min() < theta_d * memory.max() and not small:
        return advice  # not balanced: wait for the relocation
    rate = view.output_rate
    order = np.argsort(-rate, kind="stable")

    def said(high: int, low: int) -> str:
        return f"output rates {rate[high]:.3g} (slot {high}) and {rate[low]:.3g} (slot {low})"

    forced = forced_spills(view, rate, order, theta_f, fraction, said, threshold, forced_bytes)
    return Advice(forced.suggestions, advice.declined + forced.declined)


def forced_spills(
    view: View,
    rate: F64,
    order: I64,
    theta_f: float,
    fraction: float,
    said: Callable[[int, int], str],
    threshold: float,
    most_bytes: int | None = None,
) -> Advice:
    """Of each pair from both ends of `order`, the slot of the lower `rate` spills `fraction` of its
    memory, when the other's is over `theta_f` times as high.

    Over the session at most M_query - M_cluster, what cannot stay in memory until the close, and at
    most `most_bytes`. `said(high, low)`: the figures of a pair.
    """
    what = "forced spill"
    whole = query_bytes(view) - cluster_bytes(view, threshold)
    left = min(whole, whole if most_bytes is None else most_bytes) - view.forced_bytes
    found: list[ForceSpill] = []
    for high, low in from_both_ends(order):
        why = said(high, low)
        if rate[high] <= theta_f * rate[low]:
            if found:
                break
            return declined(what, f"{why}, not over theta_f {theta_f:g} apart")
        amount = min(int(fraction * view.memory[low]), left)
        if amount <= 0 and not found:
            return declined(what, f"{why}, but {_spent(view, threshold, most_bytes)}")
        if amount > 0:
            found.append(ForceSpill(low, amount, why))
            left -= amount
    return Advice(tuple(found))


def _spent(view: View, threshold: float, most_bytes: int | None) -> str:
    """Why nothing more is forced."""
    if most_bytes is not None and view.forced_bytes >= most_bytes:
        return f"{view.forced_bytes:,} bytes were forced already, of at most {most_bytes:,}"
    return (
        f"M_query - M_cluster leaves nothing to force: about {query_bytes(view):,} bytes by the "
        f"close, {cluster_bytes(view, threshold):,} of memory, {view.forced_bytes:,} forced already"
    )
