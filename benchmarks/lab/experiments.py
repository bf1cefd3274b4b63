"""What an experiment is, and what those of WPI-CS-TR-05-04, sections 3.5 to 6.1, share.

What the report gives is taken as it is: time between tuples, tuple range, join ratios, alternation
of rates, thresholds, shares of the partitions, the length of runs. Where it gives a parameter only
for an earlier experiment, that one goes on. Some it never gives; they follow these rules, and
not by what comes out:

* Tuples have no size in the report, so memory (200 MB there) is a share of what the state takes
  by the end of the day: a half for all slots together where spilling is studied, and elsewhere
  what the report's own sentence asks for ("only one machine gets overloaded", "overflows at 40
  minutes").
* Policies are asked every 30 seconds; every 15 where the least time between two relocations is
  part of the setting (Figures 14 to 17), and every minute in the run of six hours.
* theta_f is 2, and what active-disk may force is 5/4 of a slot's memory: DAX (VLDB 2005), slide 21,
  has these with the parameters of Figure 21. Its least relocation, 3/8 of a slot's memory, is in
  two lines of that figure only.
* Runs of which no length is given take 60 minutes.

Sizes are scaled where `scaled` says so: tuples and join values alike, so that each value occurs as
often as in the report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from benchmarks.lab.claims import Claim
from benchmarks.lab.cluster import ROW_BYTES, Spilling
from benchmarks.lab.lines import Line, Outcome
from benchmarks.lab.tree_workload import TreeWorkload
from benchmarks.lab.workload import F64, GROUPS, STREAMS, Workload
from spillway.policy.automatic import LARGE_SPILL
from spillway.policy.reactivation import DEFAULT_REACTIVATION
from spillway.policy.victims import DEFAULT_VICTIMS

Found = Mapping[str, Outcome]
"""An experiment's outcomes by the lines' names."""

VICTIMS = (
    "expected-loss",
    "productivity",
    "inactive-then-productivity",
    "random",
    "largest",
    "most-productive",
)
PAPER = "TR-05-04"
AMPLE = 1 << 30
STILL, CHANGING = 0.95, 0.90
"""Of the ceiling, what the defaults are to reach on a day that goes on as it began, or after a day
like it; and on one that changes, or leaves extremely little memory."""
SYSTEM = "as the system"
"""The line of one slot that spills by the defaults."""


@dataclass(frozen=True)
class Picture:
    """One chart."""

    figure: str
    title: str
    lines: tuple[str, ...]
    memory: bool = False
    """Memory of each slot instead of accumulated results."""
    ends_at: int | None = None
    """Lines end where a slot's memory passes so many bytes."""
    level: int | None = None
    """Bytes at which a line is drawn across."""


@dataclass(frozen=True)
class Experiment:
    """Some lines on one day."""

    figures: tuple[str, ...]
    title: str
    setting: str
    """Parameters, and what was chosen where the report is silent."""
    workload: Workload | TreeWorkload
    epoch_s: float
    lines: tuple[Line, ...]
    pictures: tuple[Picture, ...]
    claims: Callable[[Found], Sequence[Claim]]
    limits: bool = False
    """Compare with the ceiling of policies that bring nothing back, the memory of all slots taken
    as one."""
    paper: str = PAPER
    """Whose claims it tests."""
    goals: Mapping[str, float] = field(default_factory=dict)
    """Of the ceiling, what lines that spill by the defaults are to reach, by their names."""


def even(ratio_: float) -> F64:
    """(g,) one join ratio for all groups."""
    return np.full(GROUPS, ratio_)


def thirds() -> F64:
    """(g,) 4, 2 and 1 in turn, so that each class has a third of the groups."""
    return np.array([4.0, 2.0, 1.0])[np.arange(GROUPS) % 3]


def memory_of(workload: Workload, share: float) -> int:
    """Bytes: a share of what the whole day's state takes."""
    return round(share * STREAMS * workload.tuples * ROW_BYTES)


def as_the_system(spilling: Spilling) -> Spilling:
    """The same memory, and what the system spills of it by default."""
    return replace(
        spilling,
        victims=DEFAULT_VICTIMS,
        fraction=LARGE_SPILL,
        reactivation=DEFAULT_REACTIVATION,
    )
