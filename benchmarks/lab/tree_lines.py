"""One line of a figure of trees: a day on a cluster, from the first epoch to the end of cleanup."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from benchmarks.lab import tree_exact
from benchmarks.lab.exact import NotExact
from benchmarks.lab.lines import Line, Outcome, all_epochs, scratch, summed_up
from benchmarks.lab.tree_ceiling import ceiling, sides
from benchmarks.lab.tree_cluster import TreeCluster
from benchmarks.lab.tree_exact import Counted, Level
from benchmarks.lab.tree_workload import TreeDay


def run_tree(
    line: Line, day: TreeDay, progress: Callable[[float], None] = lambda _: None
) -> Outcome:
    """Run the line on as many slots as it has shares. Raises `NotExact` when results or rows in
    memory, epoch by epoch, or missing results, group by group, are not what counts say."""
    with scratch() as root:
        cluster = TreeCluster(day, root, line.shares, line.spilling)
        controller = line.controller(day.epochs * day.epoch_s, day.query.spec.parents)
        began = time.process_time()
        epochs = all_epochs(line, cluster, day, controller, progress)
        run_cpu_s = time.process_time() - began
        at_seal = cluster.all_cuts()
        cluster.run(seal=True)
        cleaned = cluster.clean()
    chain, whole = day_counts(day)
    found = tree_exact.counted(chain, day.groups, at_seal)
    rows = sum((held.sum(axis=0) for held in found.held), np.zeros(day.epochs, dtype=np.int64))
    for what, ours, wanted in (
        ("results", [sum(t.results for t in totals) for totals in epochs], found.results),
        ("rows in memory", [sum(t.rows for t in totals) for totals in epochs], rows),
        (
            "missing results, by group",
            cleaned.results,
            whole.given[-1].sum(axis=0) - found.given[-1].sum(axis=0),
        ),
    ):
        wrong = np.flatnonzero(np.asarray(ours) != wanted).tolist()
        if wrong:
            raise NotExact(f"{line.name}: wrong {what} at {wrong}")
    return summed_up(
        line.name,
        day.epoch_s,
        epochs,
        missing=int(cleaned.results.sum()),
        cuts=len(at_seal),
        adaptations=controller.adaptations if controller else 0,
        moved_groups=controller.moved_groups if controller else 0,
        forced_bytes=controller.forced_bytes if controller else 0,
        run_cpu_s=round(run_cpu_s, 2),
        cleanup_cpu_s=[round(s, 3) for s in cleaned.cpu_s],
        joins_cut=np.bincount([join for join, _, _ in at_seal], minlength=len(chain)).tolist(),
    )


def tree_ceiling(day: TreeDay, memory_bytes: int, reached: int) -> int:
    """What no policy that brings nothing back can exceed.

    `memory_bytes`: of all slots; `reached`: what some policy gave.
    """
    chain, whole = day_counts(day)
    widths = [row_bytes(day, join) for join in (2, 1)]
    root, below = sides(chain, whole.given, widths)
    return ceiling(root, below, memory_bytes, int(whole.results.sum()), reached)


@cache
def day_counts(day: TreeDay) -> tuple[Sequence[Level], Counted]:
    """The joins of a day, and what they give when nothing is ever spilled."""
    chain = tree_exact.levels(day)
    return chain, tree_exact.counted(chain, day.groups)


def row_bytes(day: TreeDay, join: int) -> tuple[int, int]:
    """What a row takes in state: one of the join below, and one of a stream that the join reads."""
    spec = day.query.spec
    widths: dict[bool, int] = {}
    for each in spec.inputs_of(join):
        fields = spec.state_schema(each)
        # All columns of the papers' query have a fixed width.
        widths[bool(spec.inputs[each].leaves)] = sum(f.type.bit_width // 8 for f in fields)
    return widths.get(True, 0), widths[False]
