"""Lineage: for which groups of which joins a row counts. Pure: hashes in, figures per group out.

Model: a row that a join gives came through one group of this join and of each join below it. It
carries the key's hash in each of them (`spillway_schemas.edges`), so its groups follow from the row
alone, and the tree is not walked. This is the tracing of Liu, Zhu & Rundensteiner, "Run-time
operator state spilling for memory intensive long-running queries", SIGMOD 2006:

* Algorithm 1 (section 3.2.2) goes from the root to the operators below and applies their split
  functions to every final result. A group's count, P_output, is the number of final results that it
  took part in: `traced`, each result with the weight 1.
* Intermediate rows are traced the same way (section 3.2.3). One that join k gives is stored by k's
  parent, and counts for its groups in k and below. P_inter is `traced` of these rows, each with the
  bytes that it takes in the parent's state.
* "We only update the value with a random sample" (section 3.2.2): `sampled` extrapolates.
* Algorithm 2 (section 5) tells the groups of this machine from those of others, to which it sends
  what it counted: `spillway.engine.tracing`.

Where we differ from the paper:

* Its algorithms are for a chain. Ours are for any tree, and visit joins in any order.
* Algorithm 1, as printed, begins below the root, and the text counts for the root "directly". Here
  the root is a join like the others, and is counted when its hashes are given.
* P_inter is bytes, not rows, because P_size is bytes.

Known limitation: P_output and P_inter are counted by split functions, as in Algorithm 1, and these
do not tell a group's generations. So results of rows that its earlier generations gave, and that
joins above still hold, count for the present one. What another slot's root gave counts an epoch
later. Rows that a join further up has spilled meanwhile still count in P_inter, as they do in the
paper, where it is a running count. Apart from that epoch both are exact until the first spill.

Invariant: each row counts once in every join that has hashes of it. So of each such join the counts
over all groups add up to the rows (or their weights), and counts of parts of the rows add up to the
counts of all of them, however they are shared out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

Lineage = Mapping[int, U64]
"""By the join's number the hash of its key in each row: uint64 (n,), one n for all."""
Weights = F64 | I64 | float
"""Of each row, (n,), or one for all."""


@dataclass(frozen=True)
class Grouping:
    """The groups of one join."""

    group_of: Callable[[U64], I64]
    """From hashes, uint64 (n,), to the index of each one's group, int64 (n,)."""
    groups: int
    """How many there are: g."""


def traced(
    lineage: Lineage, groupings: Mapping[int, Grouping], weights: Weights = 1.0
) -> dict[int, F64]:
    """Of each join the sum of its rows' weights in each group.

    Args:
        lineage: hashes of n rows, by join.
        groupings: of every join that `lineage` has; of others, too.
        weights: of each row, float64 or int64 (n,), or one for all. A row may so stand for
            several that are alike.

    Returns float64 (g,) for each join of `lineage`, g its number of groups, exact for whole numbers
    up to 2^53. Raises KeyError for a join without a grouping, and ValueError for hashes or weights
    of different lengths and for a group that does not exist.
    """
    _rows(lineage, weights)
    return {join: _sums(groupings[join], hashes, weights) for join, hashes in lineage.items()}


def sampled(
    lineage: Lineage,
    groupings: Mapping[int, Grouping],
    most: int,
    seed: int | tuple[int, ...],
    weights: Weights = 1.0,
) -> dict[int, F64]:
    """`traced` of at most `most` rows, drawn with the seed, extrapolated to all.

    The draw is without replacement, every set of `most` rows as likely as any other, so a count is
    unbiased. With N rows, n of them drawn and p the group's share of N, its standard error in rows
    is N sqrt(p (1 - p) / n (N - n) / (N - 1)): at most N / (2 sqrt(n)), and relative to the count
    at most 1 / sqrt(n p) (W. G. Cochran, "Sampling Techniques", chapter 2). Up to `most` rows are
    all counted. Batches of one epoch need seeds of their own, for their errors to be independent.

    Arrays and errors as of `traced`; ValueError for `most` below 2, which says nothing of the
    error.
    """
    if most < 2:
        raise ValueError(f"a sample needs 2 rows or more, not {most}")
    rows = _rows(lineage, weights)
    if rows <= most:
        return traced(lineage, groupings, weights)
    drawn = np.random.default_rng(seed).choice(rows, most, replace=False, shuffle=False)
    few = {join: hashes[drawn] for join, hashes in lineage.items()}
    of_few = weights[drawn] if isinstance(weights, np.ndarray) else weights
    return {join: each * (rows / most) for join, each in traced(few, groupings, of_few).items()}


def _rows(lineage: Lineage, weights: Weights) -> int:
    """How many rows there are. Raises ValueError when the lengths differ."""
    lengths = {len(each) for each in lineage.values()}
    if isinstance(weights, np.ndarray):
        lengths.add(len(weights))
    if len(lengths) > 1:
        raise ValueError(f"hashes and weights are of one length, not of {sorted(lengths)}")
    return lengths.pop() if lengths else 0


def _sums(grouping: Grouping, hashes: U64, weights: Weights) -> F64:
    groups = grouping.group_of(hashes)
    of_each, factor = (weights, 1.0) if isinstance(weights, np.ndarray) else (None, weights)
    found = np.bincount(groups, of_each, minlength=grouping.groups)
    if len(found) > grouping.groups:
        raise ValueError(f"there are {grouping.groups} groups, and no group {len(found) - 1}")
    sums: F64 = found.astype(np.float64) * factor
    return sums
