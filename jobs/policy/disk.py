"""`lazy-disk` and `active-disk`: relocation first, and spills where results are rare.

Source: Liu & Rundensteiner, WPI-CS-TR-05-04, sections 5.1 and 6. M is a slot's memory in use.
Productivity is P_output / P_size (the paper writes its reciprocal).
"""

from __future__ import annotations

import numpy as np

from jobs.policy.victims import GroupFigures, productivity
from jobs.policy.view import (
    F64,
    I64,
    Advice,
    Declined,
    ForceSpill,
    MoveGroup,
    View,
    declined,
    name,
    too_soon,
)

THETA_D = 0.8
MIN_SPAN_S = 45.0
THETA_F = 2.0
"""The paper names no value for theta_f."""


def lazy_disk(view: View, theta_d: float = THETA_D, min_span_s: float = MIN_SPAN_S) -> Advice:
    """Relocate when M_least / M_most < `theta_d` and the last time is `min_span_s` ago.

    (M_most - M_least) / 2 bytes go from the fullest slot to the emptiest, the most productive
    groups first, as far as they fit: a group that is larger than what is left to move is passed
    over, for it would only turn the imbalance round. Spills stay each slot's own affair.
    """
    what = "relocation"
    if view.slots < 2:
        return declined(what, "there is one slot")
    memory = view.memory
    most, least = int(memory.argmax()), int(memory.argmin())
    if not memory[most]:
        return declined(what, "nothing is in memory")
    ratio = memory[least] / memory[most]
    said = f"M_least / M_most = {ratio:.2f} (slots {least} and {most})"
    if ratio >= theta_d:
        return declined(what, f"{said}, not below theta_d {theta_d:g}")
    if view.since_move_s < min_span_s:
        return declined(what, f"{said}, but {too_soon(view, min_span_s)}")
    left = int(memory[most] - memory[least]) // 2
    chosen = productive_first(view, most, left)
    moves = [
        MoveGroup(view.groups[g], most, least, int(view.bytes[g]), said) for g in chosen.tolist()
    ]
    if not moves:
        mine = held_by(view, most)
        smallest = name(view.groups[int(mine[view.bytes[mine].argmin()])])
        return declined(
            what, f"{said}, but even group {smallest} of slot {most} is larger than {left:,} bytes"
        )
    return Advice(tuple(moves), _passed_over(view, most, chosen, left))


def _passed_over(view: View, slot: int, chosen: I64, most_bytes: int) -> tuple[Declined, ...]:
    """Groups that are more productive than some of those that move, and stay: too large."""
    worth = yields(view)
    mine = held_by(view, slot)
    mine = mine[~np.isin(mine, chosen) & (worth[mine] > worth[chosen].min())]
    if not len(mine):
        return ()
    best = int(mine[worth[mine].argmax()])
    return (
        Declined(
            f"move of {len(mine)} more productive groups of slot {slot}",
            f"they are larger than what was left of {most_bytes:,} bytes, e.g. "
            f"{name(view.groups[best])} with {int(view.bytes[best]):,}",
        ),
    )


def held_by(view: View, slot: int) -> I64:
    """Indices of a slot's groups that hold anything, ascending."""
    mine = view.of_slot(slot)
    return mine[view.bytes[mine] > 0]


def yields(view: View) -> F64:
    """(g,) P_output / P_size: results of the current generation a byte."""
    return productivity(GroupFigures(view.bytes, view.results, np.zeros_like(view.bytes)))


def productive_first(view: View, slot: int, most_bytes: int) -> I64:
    """A slot's groups, the most productive first, as far as they fit into `most_bytes`.

    A group that is larger than what is left is passed over.
    """
    mine = held_by(view, slot)
    chosen = []
    for g in mine[np.argsort(-yields(view)[mine], kind="stable")].tolist():
        if view.bytes[g] <= most_bytes:
            most_bytes -= int(view.bytes[g])
            chosen.append(g)
    return np.array(chosen, dtype=np.int64)


def output_rate(view: View) -> F64:
    """(s,) results in the sampling time / groups in memory, of each slot (section 6)."""
    held = np.bincount(view.slot[view.bytes > 0], minlength=view.slots)
    rate: F64 = view.sampled / np.maximum(held, 1)
    return rate


def query_bytes(view: View) -> int:
    """M_query: what the whole session's state would take, at its growth so far."""
    # From less than a second no growth can be told.
    return int(view.session_bytes * (1 + view.left_s / max(view.elapsed_s, 1.0)))


def active_disk(
    view: View,
    theta_d: float = THETA_D,
    min_span_s: float = MIN_SPAN_S,
    theta_f: float = THETA_F,
    fraction: float = 0.3,
) -> Advice:
    """As `lazy_disk`; when memory is balanced, force the slot of the lowest output rate to spill.

    When Rate_max / Rate_min > `theta_f`, `fraction` of the slot's memory is spilled (as a spill of
    its own would), and over the session at most M_query - M_cluster, so that no more leaves
    memory than must in the end.
    """
    advice = lazy_disk(view, theta_d, min_span_s)
    memory = view.memory
    if advice.suggestions or view.slots < 2 or not memory.max():
        return advice
    if memory.min() / memory.max() < theta_d:
        return advice  # not balanced: wait for the relocation
    return _and(advice, forced_spill(view, theta_f, fraction))


def forced_spill(view: View, theta_f: float, fraction: float) -> Advice:
    """The slot of the lowest output rate spills, when the highest is `theta_f` times as high."""
    what = "forced spill"
    rate = output_rate(view)
    low, high = int(rate.argmin()), int(rate.argmax())
    said = f"output rates {rate[high]:.3g} (slot {high}) and {rate[low]:.3g} (slot {low})"
    if rate[high] <= theta_f * rate[low]:
        return declined(what, f"{said}, not over theta_f {theta_f:g} apart")
    return bounded_spill(view, low, fraction, said)


def bounded_spill(view: View, slot: int, fraction: float, why: str) -> Advice:
    """`fraction` of a slot's memory, and over the session at most M_query - M_cluster: what cannot
    stay in memory until the close."""
    left = query_bytes(view) - int(view.budget.sum()) - view.forced_bytes
    amount = min(int(fraction * view.memory[slot]), left)
    if amount <= 0:
        return declined(
            "forced spill",
            f"{why}, but M_query - M_cluster leaves nothing to force: about "
            f"{query_bytes(view):,} bytes by the close, {int(view.budget.sum()):,} of memory, "
            f"{view.forced_bytes:,} forced already",
        )
    return Advice((ForceSpill(slot, amount, why),))


def _and(one: Advice, other: Advice) -> Advice:
    return Advice(one.suggestions + other.suggestions, one.declined + other.declined)
