"""For which groups a row counts that a join has given: the engine's side of `policy.lineage`.

Groups of all joins are numbered through, and each join has hashes to itself: so the counts of all
joins are one array over the groups, and those of a row's joins never meet.

A slot counts for all groups, also those of other slots: what a join below the root gave is told to
the groups' slots through the shuffle (`given` blocks), what the root gave goes with the report, and
comes back with the tasks of the next epoch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spillway.engine.groups import GroupMap
from spillway.engine.join.spec import lineage_field
from spillway.engine.statistics import shares_of
from spillway.policy.lineage import Grouping, Weights, sampled, traced
from spillway_schemas.journal import TracedGroup

F64 = npt.NDArray[np.float64]


def counted_for(
    groups: GroupMap,
    table: pa.Table,
    joins: Sequence[str],
    *,
    most: int = 0,
    seed: int | tuple[int, ...] = 0,
    weights: Weights = 1.0,
) -> F64:
    """The weights of rows (n,) in each group that they came through, float64 (g,).

    `joins`: names of the joins of which the rows have hashes. `most`: where there are more rows, so
    many are drawn with the seed and stand for all; 0: each is counted.
    """
    counts: F64 = np.zeros(len(groups))
    if not joins or not table.num_rows:
        return counts
    lineage = {
        number: table.column(lineage_field(name).name).to_numpy().view(np.uint64)
        for number, name in enumerate(joins)
    }
    groupings = dict.fromkeys(lineage, Grouping(groups.group_of, len(groups)))
    if most:
        found = sampled(lineage, groupings, most, seed, weights)
    else:
        found = traced(lineage, groupings, weights)
    for each in found.values():
        counts += each
    return counts


def told(groups: GroupMap, counts: F64) -> list[TracedGroup]:
    """The groups that have a count, for a report."""
    return [
        TracedGroup(*groups.prefixes[at], float(counts[at]))
        for at in np.flatnonzero(counts).tolist()
    ]


def heard(groups: GroupMap, counts: Sequence[TracedGroup]) -> F64:
    """The inverse of `told`, also for an assignment that has changed since, float64 (g,)."""
    found: F64 = np.zeros(len(groups))
    if counts:
        depth, value, count = (np.array(each) for each in zip(*counts, strict=True))
        rows, at, share = shares_of(depth, value.astype(np.uint64), groups)
        np.add.at(found, at, count[rows] * share)
    return found
