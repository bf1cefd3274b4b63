"""Days on which what has been says little of what will be. Ours; no report has them.

The policies that look at the past, with spills of several sizes, and with a forecast by the day
before, beside the ceiling.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from benchmarks.lab.cluster import Spilling
from benchmarks.lab.experiments import (
    STILL,
    SYSTEM,
    VICTIMS,
    Experiment,
    Picture,
    as_the_system,
    even,
    memory_of,
    thirds,
)
from benchmarks.lab.lines import Line
from benchmarks.lab.workload import F64, GROUPS, Phase, Workload
from spillway.policy.automatic import SMALL_SPILL
from spillway_schemas.setting_fields import SpillSettings

SHARES = (0.3, 0.1, 0.05, 0.02)
"""Of its memory, what a slot spills at a time."""
STAYS_AWAY = f"{VICTIMS[0]}, {SMALL_SPILL:.0%}"
"""What the system does where nothing comes back, but for the forecast."""
BY_SUCH, BY_OTHER = "by such a day", "by another day"
NOISE, MUCH = 0.2, 1.5
"""Of the groups' shares, each phase for itself: the standard deviation of their logarithms. The
second one leaves little of them."""
SILENT = 1e-9
"""Weight of a group of which no tuple comes."""
INACTIVE_S = SpillSettings().inactive_s
"""theta_t, the system's default."""


def changing() -> tuple[Experiment, ...]:
    """All of them. See the module."""
    whole = np.ones(GROUPS)
    first, second = whole.copy(), whole.copy()
    first[: GROUPS // 2] = second[GROUPS // 2 :] = 8
    fallen = np.where(thirds() == thirds().max(), SILENT, 1.0)
    hot = [np.where(np.arange(GROUPS) % 5 == turn, 12.0, 1.0) for turn in range(5)]
    rush = np.where(np.arange(GROUPS) % 4 == 0, 6.0, 1.0)
    drawn = np.exp(np.random.default_rng(21).normal(0, 1, (10, GROUPS)))
    days = (
        (
            "swap",
            "Half of the groups are eight times as busy as the others, after half of the day the "
            "others. Join ratio 3.",
            even(3),
            (Phase(25, first), Phase(25, second)),
        ),
        (
            "silent",
            "The third of the groups that has the highest join ratio (4; the others 2 and 1) falls "
            "silent after 20 minutes.",
            thirds(),
            (Phase(20, whole), Phase(30, fallen)),
        ),
        (
            "rotating",
            "A fifth of the groups is twelve times as busy as the others, every ten minutes "
            "another fifth. Join ratio 3.",
            even(3),
            tuple(Phase(10, each) for each in hot),
        ),
        (
            "rotating-5",
            "The same, every five minutes.",
            even(3),
            tuple(Phase(5, each) for each in hot),
        ),
        (
            "rush",
            "A quarter of the groups is six times as busy as the others in the first and in the "
            "last eight minutes. Join ratios 4, 2 and 1, a third each.",
            thirds(),
            (Phase(8, rush), Phase(34, whole), Phase(8, rush)),
        ),
        (
            "drawn",
            "Every five minutes each group has another share, of a log-normal distribution with "
            "sigma 1. Join ratio 3.",
            even(3),
            tuple(Phase(5, each) for each in drawn),
        ),
    )
    return tuple(_changing(*each) for each in days)


def _changing(name: str, setting: str, join_ratio: F64, phases: tuple[Phase, ...]) -> Experiment:
    workload = Workload(50, 30, 30_000, join_ratio, phases)
    limit = memory_of(workload, 1 / 2)
    figure = f"changing-{name}"
    lines = tuple(
        Line(f"{victims}, {share:.0%}", Spilling(limit, share, victims, INACTIVE_S))
        for victims, share in itertools.product(VICTIMS[:2], SHARES)
    )
    own = as_the_system(Spilling(limit, inactive_s=INACTIVE_S))
    turns = replace(own, reactivation="rotation")
    system = Line(SYSTEM, own)
    (away,) = (line for line in lines if line.name == STAYS_AWAY)
    lines = (
        system,
        *_forecast(system),
        Line(f"{SYSTEM}, but by rotation", turns),
        *lines,
        *_forecast(away),
    )
    names = tuple(line.name for line in lines)
    return Experiment(
        (figure,),
        f"A changing day: {name}",
        f"{setting} A tuple every 30 ms, tuple range 30,000, 50 minutes, one slot; memory is half "
        "of the day's state. By victims and what is spilled at a time. In the first four lines "
        "alone spilled generations come back; in the fourth they take turns. In lines with a day, "
        "that is the day before, counted every five minutes, and the forecast goes by it: such a "
        "day, but for a noise of 20 % of each group's share in each phase; or one with so much "
        "noise (a factor of 4.5) that little of the day is left. Full size.",
        workload,
        30,
        lines,
        (Picture(figure, f"Results of a changing day: {name}", names),),
        lambda _: (),
        limits=True,
        # Where groups come back the system does not ask the day before; else it does.
        goals={SYSTEM: STILL, f"{STAYS_AWAY}, {BY_SUCH}": STILL},
    )


def _forecast(line: Line) -> tuple[Line, Line]:
    """A line's decisions after a day that was alike, and after one that was not."""
    return (
        replace(line, name=f"{line.name}, {BY_SUCH}", before=NOISE),
        replace(line, name=f"{line.name}, {BY_OTHER}", before=MUCH),
    )
