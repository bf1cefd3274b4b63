"""One line of a figure: a day on a cluster, from the first epoch to the end of cleanup."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from benchmarks.lab import exact
from benchmarks.lab.cluster import Cluster, Spilling
from benchmarks.lab.control import Controller, Order, Policy
from benchmarks.lab.tree_workload import TreeDay
from benchmarks.lab.workload import Day
from spillway.engine.groups import GroupMap
from spillway.policy.forecast import Profile
from spillway_schemas.hash_space import ROOT
from spillway_schemas.journal import Prefix, SlotTotals

BIN_S = 300.0
"""How far apart the counts are that are kept of a day."""
POINTS = 120
"""Of a line, at most."""


@dataclass(frozen=True)
class Line:
    """Who spills and who moves."""

    name: str
    spilling: Spilling
    shares: tuple[float, ...] = (1.0,)
    """What part of the groups each slot has at the beginning."""
    policy: Policy | None = None
    """Asked every `look_s` seconds; None: nothing moves."""
    look_s: float = 30.0
    before: float | None = None
    """There was a day before that was alike, but for so much noise; None: there was none."""

    def controller(self, day_s: float, parents: tuple[int, ...] = (ROOT,)) -> Controller | None:
        """Who asks the policy, on a day of so many seconds. `parents`: of the joins."""
        if self.policy is None:
            return None
        return Controller(self.policy, self.spilling.memory_bytes, day_s, parents)


class Slots(Protocol):
    """The slots of a cluster, as a day goes over them."""

    @property
    def groups(self) -> GroupMap:
        """All groups, and whose they are."""

    @property
    def figures(self) -> pa.Table | None:
        """The newest statistics of all groups."""

    def groups_cut(self) -> set[int]:
        """The numbers of those that were ever spilled and did not come back."""

    def run(
        self,
        *,
        moves: Mapping[Prefix, int] | None = None,
        forced: Mapping[int, int] | None = None,
        statistics: bool = False,
    ) -> list[SlotTotals]:
        """One epoch: its arrivals, moves and forced spills."""


@dataclass(frozen=True)
class Outcome:
    """What a line came to. Everything is exact but the CPU seconds, which are measured."""

    name: str
    minutes: list[float]
    results: list[int]
    """Accumulated, at each of `minutes`."""
    memory: list[list[int]]
    """Per slot: the most bytes of state since the point before."""
    run_time: int
    missing: int
    """Results that cleanup gave."""
    spills: int
    """Times that a slot spilled."""
    cuts: int
    """Groups that were spilled, each time counted; those that came back again, too."""
    adaptations: int
    moved_groups: int
    forced_bytes: int
    run_cpu_s: float
    cleanup_cpu_s: list[float]
    """Of each slot's own groups."""
    overflow_minute: float | None
    """When a slot first had to spill."""
    returned: int = 0
    """Groups that came back, each time counted."""
    joins_cut: list[int] = field(default_factory=list)
    """Of each join of a tree the groups that were spilled, each time counted."""


def run(
    line: Line,
    day: Day,
    progress: Callable[[float], None] = lambda _: None,
    before: Profile | None = None,
) -> Outcome:
    """Run the line. Raises `NotExact` when a group's results are not what counts say."""
    groups = assigned(day.groups, line.shares)
    with scratch() as root:
        cluster = Cluster(day, root, groups, line.spilling, before=before)
        controller = line.controller(day.epochs * day.epoch_s)
        began = time.process_time()
        epochs = all_epochs(line, cluster, day, controller, progress)
        run_cpu_s = time.process_time() - began
        at_seal, returned = list(cluster.cuts), len(cluster.voided)
        cluster.run(seal=True)
        cleaned = cluster.clean()
    at_run_time = exact.run_time(day, at_seal)
    found = sum(t.results for totals in epochs for t in totals)
    if found != int(at_run_time.sum()):
        raise exact.NotExact(f"{line.name}: {found} results, not {at_run_time.sum()}")
    wrong = np.flatnonzero(cleaned.results != exact.full(day) - at_run_time)
    if len(wrong):
        raise exact.NotExact(f"{line.name}: wrong missing results in the groups {wrong.tolist()}")
    return summed_up(
        line.name,
        day.epoch_s,
        epochs,
        missing=int(cleaned.results.sum()),
        cuts=len(at_seal) + returned,
        returned=returned,
        adaptations=controller.adaptations if controller else 0,
        moved_groups=controller.moved_groups if controller else 0,
        forced_bytes=controller.forced_bytes if controller else 0,
        run_cpu_s=round(run_cpu_s, 2),
        cleanup_cpu_s=[round(s, 3) for s in cleaned.cpu_s],
    )


def profile(day: Day, every_s: float = BIN_S) -> Profile:
    """How a day's rows came, by group."""
    every = max(1, round(every_s / day.epoch_s))
    epochs = sorted({*range(0, day.epochs, every), day.epochs})
    rows = np.stack([day.rows(epoch) for epoch in epochs], axis=1).astype(np.float64)
    at_ms = np.array(epochs) * round(day.epoch_s * 1000)
    return Profile(at_ms, rows)


def summed_up(
    name: str, epoch_s: float, epochs: Sequence[Sequence[SlotTotals]], **known: Any
) -> Outcome:
    """An outcome, from every slot's totals of every epoch and what else is known of it."""
    results = np.array([sum(t.results for t in totals) for totals in epochs])
    points = np.unique(np.linspace(0, len(epochs), POINTS + 1).round().astype(int))
    memory = np.array([[t.state_bytes for t in totals] for totals in epochs])
    spilled = np.array([[t.spilled_bytes > 0 for t in totals] for totals in epochs])
    first = np.flatnonzero(spilled.any(axis=1))
    minute = epoch_s / 60
    return Outcome(
        name=name,
        minutes=[round(p * minute, 3) for p in points.tolist()],
        results=np.append(0, results.cumsum())[points].tolist(),
        memory=[[0, *np.maximum.reduceat(m, points[:-1]).tolist()] for m in memory.T],
        run_time=int(results.sum()),
        spills=int(spilled.sum()),
        overflow_minute=round((int(first[0]) + 1) * minute, 2) if len(first) else None,
        **known,
    )


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A folder in memory, where there is one."""
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None
    return tempfile.TemporaryDirectory(prefix="spillway-lab-", dir=place)


def assigned(groups: int, shares: Sequence[float]) -> GroupMap:
    """The groups in contiguous shares over the slots."""
    ends = np.round(np.cumsum(shares) / sum(shares) * groups).astype(int)
    slot = np.searchsorted(ends, np.arange(groups), side="right")
    plain = GroupMap.initial(groups, 1)
    return GroupMap(zip(plain.prefixes, slot.tolist(), strict=True))


def all_epochs(
    line: Line,
    cluster: Slots,
    day: Day | TreeDay,
    controller: Controller | None,
    progress: Callable[[float], None],
) -> list[list[SlotTotals]]:
    """Every slot's totals of every epoch of the day."""
    order, found = Order(), []
    every = max(1, round(line.look_s / day.epoch_s))
    for epoch in range(day.epochs):
        looks = controller is not None and (epoch + 1) % every == 0
        totals = cluster.run(moves=order.moves, forced=order.forced, statistics=looks)
        found.append(totals)
        order = Order()
        if controller:
            controller.note(totals)
        if controller and looks and cluster.figures is not None:
            now_s = (epoch + 1) * day.epoch_s
            order = controller.decide(now_s, cluster.groups, cluster.figures, cluster.groups_cut())
        progress((epoch + 1) / day.epochs)
    return found
