"""Lineage: for which groups of which joins a row counts. Pure: hashes in, figures per group out.

Model: a row that a join gives came through one group of this join and of each join below it. It
carries the key's hash in each of them (`spillway_schemas.edges`), so its groups follow from the row
alone, and the tree is not walked. This is the tracing of Liu, Zhu & Rundensteiner, "Run-time
operator state spilling for memory intensive long-running queries", SIGMOD 2006:

* Algorithm 1 (section 3.2.2) goes from the root to the operators below and applies their split
  functions to every final result. A group's count, P_output, is the number of final results that it
  took part in: `final_results`.
* Intermediate rows are traced the same way (section 3.2.3). One that join k gives is stored by k's
  parent, and counts for its groups in k and below. Their bytes are P_inter: `downstream_bytes`.
* "We only update the value with a random sample" (section 3.2.2): `sampled` extrapolates, and
  states the standard error.
* Algorithm 2 (section 5) tells the groups of this machine from those of others, to which it sends
  what it counted: `local_and_remote`, and `merged` where the counts of several slots come together.

Where we differ from the paper:

* Its algorithms are for a chain. Ours are for any tree, and visit joins in any order.
* Algorithm 1, as printed, begins below the root, and the text counts for the root "directly". Here
  the root is a join like the others, and is counted when its hashes are given.
* P_inter is bytes, not rows, because P_size is bytes.

Known limitation: rows that a join further up has spilled meanwhile still count in P_inter, as they
do in the paper, where it is a running count. It is exact until the first spill.

Invariant: each row counts once in every join that has hashes of it. So of each such join the counts
over all groups add up to the rows (or their weights), and counts of parts of the rows add up to the
counts of all of them, however they are shared out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
Counts = Mapping[int, F64]
"""By the join's number a figure of each of its groups: float64 (g,), exact for whole numbers up to
2^53."""


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

    Returns float64 (g,) for each join of `lineage`, g its number of groups. Raises KeyError for a
    join without a grouping, and ValueError for hashes or weights of different lengths and for a
    group that there is not.
    """
    _rows(lineage, weights)
    return {join: _sums(groupings[join], hashes, weights) for join, hashes in lineage.items()}


def final_results(lineage: Lineage, groupings: Mapping[int, Grouping]) -> dict[int, F64]:
    """P_output: how many of these final results each group took part in (section 3.2.2).

    `lineage` has the joins below the root, and the root where it is to be counted. Arrays and
    errors as of `traced`.
    """
    return traced(lineage, groupings)


def downstream_bytes(
    lineage: Lineage, groupings: Mapping[int, Grouping], row_bytes: Weights
) -> dict[int, F64]:
    """P_inter: bytes of these intermediate rows for each group that they came through.

    `lineage` has the join that gave the rows and those below it; `row_bytes` is what each takes in
    the state of the parent, (n,), or one size for all (section 3.2.3). Arrays and errors as of
    `traced`.
    """
    return traced(lineage, groupings, row_bytes)


# ------------------------------------------------------------------------------------- samples


@dataclass(frozen=True)
class Estimate:
    """Counts from a sample. Estimates of parts add up: `merged` of counts, and of variances."""

    counts: Counts
    """Expected to be what `traced` gives of all rows."""
    variances: Counts
    """Expected to be the squared standard error of each count."""

    def standard_errors(self) -> dict[int, F64]:
        """Of each join the standard error of each group's count, float64 (g,).

        It is estimated from the sample: for a group of which no row was drawn it is 0, like its
        count. `standard_error` says what it is for a count that is known.
        """
        return {join: np.sqrt(each) for join, each in self.variances.items()}


def sampled(
    lineage: Lineage,
    groupings: Mapping[int, Grouping],
    most: int,
    seed: int | tuple[int, ...],
    weights: Weights = 1.0,
) -> Estimate:
    """`traced` of at most `most` rows, drawn with the seed, extrapolated to all.

    The draw is without replacement, every set of `most` rows as likely as any other. With N rows, n
    of them drawn and s^2 the sample variance of y (a row's weight if it is of the group, else 0), a
    count is N/n times the sample's sum, and its variance N^2 (1 - n/N) s^2 / n; both are unbiased
    (W. G. Cochran, "Sampling Techniques", chapter 2). Up to `most` rows are all counted, with the
    variance 0. Batches of one epoch need seeds of their own, for their errors to be independent.

    Arrays and errors as of `traced`; ValueError for `most` below 2, which has no variance.
    """
    if most < 2:
        raise ValueError(f"a sample needs 2 rows or more, not {most}")
    rows = _rows(lineage, weights)
    if rows <= most:
        counts = traced(lineage, groupings, weights)
        return Estimate(counts, {join: np.zeros_like(each) for join, each in counts.items()})
    drawn = np.random.default_rng(seed).choice(rows, most, replace=False, shuffle=False)
    few = {join: hashes[drawn] for join, hashes in lineage.items()}
    of_few = weights[drawn] if isinstance(weights, np.ndarray) else weights
    sums, squares = traced(few, groupings, of_few), traced(few, groupings, np.square(of_few))
    spread = rows * (rows - most) / (most - 1)  # s^2 has most - 1 in it, too
    return Estimate(
        {join: each * (rows / most) for join, each in sums.items()},
        {
            # Not below 0, where it is 0 but for rounding.
            join: np.maximum(spread * (squares[join] / most - (each / most) ** 2), 0.0)
            for join, each in sums.items()
        },
    )


def standard_error(count: float, rows: int, most: int) -> float:
    """The standard error of a group's sampled count, in rows, where `count` is the true one.

    `rows` are there, `most` are drawn. With p = count / rows it is
    rows sqrt(p (1 - p) / most (rows - most) / (rows - 1)): relative to the count at most
    1 / sqrt(most p), and never above rows / (2 sqrt(most)).
    """
    if rows <= max(most, 1):
        return 0.0
    share = count / rows
    drawn = share * (1 - share) / most * (rows - most) / (rows - 1)
    return float(rows * np.sqrt(drawn))


# ------------------------------------------------------------------------------- several slots


def merged(parts: Iterable[Counts]) -> dict[int, F64]:
    """The counts of several slots, or batches, together: the sum of each group's (section 5).

    A join that a part does not have counts 0 there. All must be of the same groups: ValueError for
    another number of them.
    """
    found: dict[int, F64] = {}
    for part in parts:
        for join, counts in part.items():
            if join not in found:
                found[join] = counts.copy()
            elif len(found[join]) != len(counts):
                raise ValueError(
                    f"counts of join {join} are of {len(found[join])} groups and of {len(counts)}"
                )
            else:
                found[join] += counts
    return found


def local_and_remote(
    counts: Counts, local: Mapping[int, Bool]
) -> tuple[dict[int, F64], dict[int, F64]]:
    """What a slot counted for its own groups, and for those of others (Algorithm 2, line 7).

    `local`: of each join which groups are the slot's, bool (g,). Both have the shape of `counts`,
    with 0 for the other's groups. A slot keeps the first and reports the second; what all report,
    `merged`, holds for each slot what the others counted for it. Raises KeyError for a join that
    `local` does not have.
    """
    here = {join: np.where(local[join], each, 0.0) for join, each in counts.items()}
    return here, {join: each - here[join] for join, each in counts.items()}


# --------------------------------------------------------------------------------------- parts


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
