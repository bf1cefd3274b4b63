"""From the results of the sampled rows to an estimate of all, and how far it may be off. Pure.

Let S be the results of the sampled rows and f the probability of a result to be among them: then
S / f is the estimate. The blocks of leaf i are in R groups, and S is the sum of what its groups
have added, S_i1 + ... + S_iR. If groups differ much, another sample would have been much different:

    variance of S  <=  sum over leaves of (1 - f_i) R / (R - 1) sum over groups of (S_ig - S / R)^2

Each term has the variance that comes from the choice of one leaf's blocks, with the other leaves'
rows as they are; what comes from several leaves' choices together is counted in each of theirs. So
the sum is rather too large than too small. Estimates are skewed (a sample seldom has far too many
results, but often lacks the few keys that matter), so the range is one of the logarithm: S / f,
divided and multiplied by a factor. Its upper end also has what a sample can miss altogether: of
3 / f results that have nothing to do with each other, one in twenty samples has none. But results
of one row come together. Suppose that leaf i's sample lacks a key of which the other leaves have u
sampled rows, or combinations of rows. Leaf i may still have 3 / f_i rows of it, which give 3 u / f
results. So the upper end has 3 u / f, for the largest such u (`counting.unmet`).

Known limitation: rows of a key that come one after the other are missed together. Where the blocks
of several leaves seldom hold the same keys, a sample may have no result though there are more than
3 u / f: with keys that occur once, in the same order in two topics of n rows, of which r are read,
where r^2 / 128 n is less than 3. For a sample without results no range is given.

A key is named because it has most in the sample, so mostly more than its part, and the more so the
more keys there were to choose from. Of K keys one is as far off as one in K is. So the lower end of
a named key's range is what one sample in 40 K would exceed (Bonferroni), not one in 40; never less
than what was found. Each key that gives results is in the sample with the probability f or more, so
of k keys in the sample there are about k / f at the most: this is K.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, prod, sqrt
from statistics import NormalDist
from typing import Any

import polars as pl

from spillway.estimate.counting import LeafSample
from spillway.estimate.sampling import GROUPS

TAIL = 0.025
"""The part of samples beyond each end of a range."""
MISSED = 3.0
"""So many are expected where one in twenty samples has none: -ln 0.05."""


@dataclass(frozen=True)
class Estimate:
    """A number of results and its range, in which 19 of 20 samples should have it."""

    value: float
    low: float
    high: float

    @property
    def is_exact(self) -> bool:
        """Whether everything was read."""
        return self.low == self.high

    @property
    def is_rough(self) -> bool:
        """Whether not even the order of magnitude is known."""
        return self.high > 10 * self.low


@dataclass(frozen=True)
class KeyEstimate:
    """What is known of one key of the root, as one of those that have most in the sample."""

    key: tuple[Any, ...]
    results: Estimate


def total(
    counted: Sequence[pl.DataFrame], samples: Sequence[LeafSample], *, unmet: float = 1.0
) -> Estimate:
    """All results. `counted`: of `counting.counted`, `unmet`: of `counting.unmet`."""
    groups = [frame.group_by("group").agg(pl.col("n").sum()) for frame in counted]
    return _estimate([frame["n"].to_list() for frame in groups], samples, unmet=unmet)


def largest(
    counted: Sequence[pl.DataFrame], samples: Sequence[LeafSample], most: int
) -> list[KeyEstimate]:
    """The keys of the root that seem to give the most results, those first."""
    by = [name for name in counted[0].columns if name not in ("group", "n")]
    sums = counted[0].group_by(by).agg(pl.col("n").sum())
    top = sums.sort(["n", *by], descending=[True, *(False for _ in by)]).head(most)
    found = []
    for row in top.iter_rows():
        # The keys that there may be: each is in the sample as likely as one result, or likelier.
        keys = sums.height / prod(sample.fraction for sample in samples)
        key = row[: len(by)]
        mine = pl.DataFrame([key], schema=top.select(by).schema, orient="row")
        parts = [frame.join(mine, on=by)["n"].to_list() for frame in counted]
        found.append(KeyEstimate(key, _estimate(parts, samples, chosen_of=keys)))
    return found


def student(tail: float) -> float:
    """What a part `tail` of Student's distribution with `GROUPS` - 1 degrees of freedom lies above,
    by Wallace's approximation (1959)."""
    free = GROUPS - 1
    normal = NormalDist().inv_cdf(tail) * (8 * free + 3) / (8 * free + 1)
    return sqrt(free * (exp(normal**2 / free) - 1))


def _estimate(
    parts: Sequence[Sequence[float]],
    samples: Sequence[LeafSample],
    *,
    chosen_of: float = 1.0,
    unmet: float = 1.0,
) -> Estimate:
    """Of the results by group of each leaf; groups without any may be left out. `chosen_of`: so
    many there were, of which this is one of the largest in the sample."""
    fraction = prod(sample.fraction for sample in samples)
    found = sum(parts[0])
    if fraction in (0.0, 1.0):
        return Estimate(found, found, found)
    missed = MISSED * unmet / fraction
    if not found:
        return Estimate(0.0, 0.0, missed)
    variance = 0.0
    for mine, sample in zip(parts, samples, strict=True):
        mean = found / GROUPS
        squares = sum((n - mean) ** 2 for n in mine) + (GROUPS - len(mine)) * mean**2
        variance += (1 - sample.fraction) * GROUPS / (GROUPS - 1) * squares
    spread = sqrt(log(1 + variance / found**2))
    value = found / fraction
    low = value * exp(-student(TAIL / chosen_of) * spread)
    high = value * exp(student(TAIL) * spread)
    return Estimate(value, max(found, low), high + missed)
