"""How many rows a group is to expect, from how they have come so far. Pure.

A group has a *present* rate, of the last half minute, and a *usual* one, since its first row. A
burst passes and a new fashion stays; which of the two a day has, the day itself says. So the rate
over a time h to come is taken as

    usual + persistence(h) (present - usual)

where the persistence, 0 to 1, is how much of what groups were off their usual rates was still there
over such a time before: a regression through the origin of (what came - usual) on (present -
usual), over all groups of a slot. Two sums for each of some horizons are all that is kept of it,
and for each group what its rates were when the horizon began. Chance that makes a present rate
look high passes, too: where rows come evenly the persistence falls to 0 and the usual rate holds.

What has not been seen of a horizon is taken from the shorter one, and what of the shortest, as 1:
the persistence of all is drawn there by `PRIOR` of what groups are off their usual rates now.

Ours; the papers go by what was, without a forecast.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

ARRIVALS_HALF_LIFE_MS = 30_000
"""After this time a row counts half in a count of recent rows."""
TAU_MS = ARRIVALS_HALF_LIFE_MS / float(np.log(2))
"""So many ms of a rate are in such a count."""
HORIZONS_MS = (60_000, 240_000, 960_000, 3_840_000)
"""1, 4, 16 and 64 minutes."""
NO_EVIDENCE: F64 = np.zeros((len(HORIZONS_MS), 2))
"""Per horizon, (sum of squares of present - usual, sum of their products with what came)."""
KEPT = 0.7
"""Of the evidence of before, at each look back over a horizon."""
PRIOR = 0.5


def rate_to_come(present: F64, usual: F64, evidence: F64, left_ms: float) -> F64:
    """Rows a ms that each group is to expect over a time to come, float64 (g,), >= 0.

    `present`, `usual`: rows a ms, float64 (g,). `evidence`: float64 (h, 2), see `NO_EVIDENCE`.
    """
    off = present - usual
    rate: F64 = np.maximum(usual + persistence(evidence, float(off @ off), left_ms) * off, 0.0)
    return rate


def persistence(evidence: F64, off: float, left_ms: float) -> float:
    """How much of what groups are off their usual rates is there over a time to come, 0 to 1.

    `off`: the sum of its squares now. Between two horizons it goes with the logarithm of time.
    """
    found, before = [], 1.0
    for squares, products in evidence.tolist():
        prior = PRIOR * off
        if squares + prior > 0:
            before = min(max((products + prior * before) / (squares + prior), 0.0), 1.0)
        found.append(before)
    at = float(np.log(max(left_ms, 1.0)))
    return float(np.interp(at, np.log(HORIZONS_MS), found))


def looked_back(evidence: F64, horizon: int, present: F64, usual: F64, came: F64) -> F64:
    """The evidence once a horizon (its number) has passed.

    `present`, `usual`: the rates when it began; `came`: the rate in it; all float64 (g,).
    """
    off = present - usual
    found = evidence.copy()
    found[horizon] = KEPT * found[horizon] + (off @ off, off @ (came - usual))
    return found
