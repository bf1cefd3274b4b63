"""What slots do by themselves between two looks does not undo what the eviction line has moved.

The line is `spillway.policy.pooled`'s, and slots spill by the engine's own choice of victims.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spillway.engine.spill.spilling import Limits, choose_victims
from spillway.engine.statistics import Counters, Figures
from spillway.policy.pooled import pooled
from spillway.policy.victims import DEFAULT_VICTIMS, VictimContext
from spillway.policy.view import THRESHOLD, MoveGroup, View
from spillway_schemas.journal import Prefix

DEPTH = 5
GROUPS = 1 << DEPTH
DAY = "2026-01-05"


def drawn(seed: int, slots: int) -> View:
    """Groups of which some lose alike for a byte, and about as much memory as they take."""
    draw = np.random.default_rng(seed)
    size = draw.integers(0, 1_000, GROUPS)
    each = draw.choice([0.0, 0.5, 1.0, 4.0], GROUPS) + draw.random(GROUPS) * draw.integers(0, 2)
    whole = size.sum() / slots / THRESHOLD
    budget = (whole * draw.uniform(0.4, 1.6, slots)).astype(np.int64) + 1
    none, quiet = np.zeros(GROUPS, dtype=np.int64), np.zeros(slots)
    return View(
        groups=tuple(Prefix(DEPTH, g) for g in range(GROUPS)),
        slot=draw.integers(0, slots, GROUPS),
        bytes=size,
        results=none,
        processed=none,
        spilled=none > 0,
        budget=budget,
        idle_s=quiet,
        sampled=np.zeros(slots, dtype=np.int64),
        occupancy=quiet,
        collection_s=10.0,
        loss=each * size,
    )


def leaving(view: View, slot: np.ndarray, number: int) -> set[int]:
    """Groups that a slot spills by itself, to come down to its threshold and no further."""
    own = view.bytes * (slot == number)
    none = np.zeros(GROUPS, dtype=np.int64)
    figures = Figures(own[None], own, none, Counters.zeros(GROUPS), view.loss * (slot == number))
    limits = Limits(int(view.budget[number]), THRESHOLD, 0.0, 1 << 40)
    found = choose_victims({DAY: figures}, limits, DEFAULT_VICTIMS, VictimContext(0, 0, 0))
    return {*np.flatnonzero(found.groups[DAY]).tolist()} if found.groups else set()


def given_up(view: View, slot: np.ndarray) -> float:
    """What all slots lose to come down to their thresholds, if groups left by the byte: how well
    whole groups fit is chance."""
    lost = 0.0
    for number in range(view.slots):
        mine = np.flatnonzero((slot == number) & (view.bytes > 0))
        mine = mine[np.argsort(view.loss_per_byte[mine], kind="stable")]
        ends = view.bytes[mine].cumsum()
        over = ends.max(initial=0) - THRESHOLD * view.budget[number]
        out = np.clip(over - (ends - view.bytes[mine]), 0, view.bytes[mine])
        lost += float(out @ view.loss_per_byte[mine])
    return lost


def moved_by(view: View) -> dict[int, int]:
    """Groups that the line gives to other slots."""
    advice = pooled(view, 0.8, 10.0, 1.3, 0.8, pressure=0.0)
    moves = [each for each in advice.suggestions if isinstance(each, MoveGroup)]
    return {view.groups.index(each.group): each.to for each in moves}


def test_the_line_moves_groups_on_most_of_these_days() -> None:
    found = [len(moved_by(drawn(seed, 2 + seed % 4))) for seed in range(100)]
    assert np.count_nonzero(found) > 60
    assert sum(found) > 150


@given(st.integers(0, 2**32), st.integers(2, 5))
def test_what_the_line_has_moved_is_not_what_its_receiver_spills(seed: int, slots: int) -> None:
    view = drawn(seed, slots)
    moved, after = moved_by(view), view.slot.copy()
    for group, to in moved.items():
        after[group] = to
    spills = [leaving(view, after, number) for number in range(slots)]
    assert not set().union(*spills) & moved.keys()
    # Nor is more given up for it than if nothing had moved, but for the group that the line cuts.
    dearest = max((float(view.loss[g]) for one in spills for g in one), default=0.0)
    assert given_up(view, after) <= given_up(view, view.slot) + dearest + 1e-9
