"""What a group is expected to lose when it leaves memory now. Pure.

A group of a join of m inputs that holds N rows and gets X more gives about sigma (N + X)^m results
by the end of its session where all of them meet, but sigma (N^m + X^m) where a cut comes between.
So the cut loses

    sigma ((N + X)^m - N^m - X^m)

results to cleanup. `sigma` is what the group has given so far, over the sum of N^m of all its
generations: it does not forget when the group is spilled, so a group is no worse for being young.
`X` is the rate at which its rows will come (`spillway.policy.arrivals`), for the time that is left.

Of a windowed join a row that is in memory now meets rows for one window at most. In a steady state
the share (t / W)^(m - 1) of the results after a time t < W consists of rows alone that came since.
So the cut loses, at r results a ms,

    r (t - t^m / (m W^(m - 1))),    t = min(W, the time left)

and a group that was cut less than a window ago the part of it that its rows are of a window's.

The loss is in results of the query: a result of a join below the root counts for as many as the
root gave for each of that join's.

Ours; TR-05-04 (section 3) and SIGMOD 2006 (section 3) go by what a group has given for each byte,
which is the same where each group goes on as it was and is spilled once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spillway.policy.arrivals import rate_to_come

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Growth:
    """How a session's groups have grown, all (g,). What is another slot's is 0."""

    rows: I64
    """In memory, all inputs."""
    present: F64
    """Rows a ms, now."""
    usual: F64
    """Rows a ms, since its first one."""
    spilled_norm: F64
    """(sum of N^m over the generations that were spilled)^(1/m), rows."""
    session_results: I64
    """Of the group's own join, since the session began."""
    result_rate: F64
    """Results a ms, now."""
    join: I64
    """Number of the group's join; the root has the greatest."""
    inputs: I64
    """m, of the group's join."""
    window_ms: F64
    """W, of the group's join; infinite: it has none."""
    left_ms: float
    """Until the session ends."""
    evidence: F64
    """(h, 2): see `spillway.policy.arrivals`."""


def with_generation(spilled_norm: F64, rows: I64, inputs: I64) -> F64:
    """`Growth.spilled_norm` once generations of `rows` have been spilled, too; all (g,)."""
    m = inputs.astype(np.float64)
    found: F64 = (spilled_norm**m + rows.astype(np.float64) ** m) ** (1 / m)
    return found


def without_generation(spilled_norm: F64, rows: I64, inputs: I64) -> F64:
    """The inverse of `with_generation`, for one generation of each group."""
    m = inputs.astype(np.float64)
    left = np.maximum(spilled_norm**m - rows.astype(np.float64) ** m, 0.0)
    found: F64 = left ** (1 / m)
    return found


def expected_loss(growth: Growth) -> F64:
    """Results that each group gives up at run time when it is spilled now, float64 (g,), >= 0."""
    m = growth.inputs.astype(np.float64)
    n = growth.rows.astype(np.float64)
    left_ms = growth.left_ms
    to_come = rate_to_come(growth.present, growth.usual, growth.evidence, left_ms) * left_ms
    open_end = _sigma(growth, n**m + growth.spilled_norm**m) * (
        (n + to_come) ** m - n**m - to_come**m
    )
    windowed = np.isfinite(growth.window_ms)
    window_ms = np.where(windowed, np.maximum(growth.window_ms, 1.0), 1.0)
    share = np.minimum(left_ms / window_ms, 1.0)
    within = growth.result_rate * window_ms * (share - share**m / m)
    full = np.minimum(n / np.maximum(growth.present * window_ms, 1.0), 1.0)
    loss = np.where(windowed, within * full, open_end) * _final_results(growth)
    return np.maximum(loss, 0.0)


def _sigma(growth: Growth, powers: F64) -> F64:
    """Results for each N^m of each group, (g,). One result of its join's average is added."""
    results = growth.session_results.astype(np.float64)
    given, whole = (_by_join(growth.join, each) for each in (results, powers))
    found: F64 = np.zeros(len(powers))
    # sigma = (results + 1) / (powers + 1 / average), where the join has given anything.
    known = (given > 0) & (whole > 0)
    np.divide((results + 1) * given, powers * given + whole, out=found, where=known)
    return found


def _final_results(growth: Growth) -> F64:
    """Results of the root for each one of the group's join, (g,); 1 where that is not known."""
    given = _by_join(growth.join, growth.session_results.astype(np.float64))
    final = given[growth.join == growth.join.max(initial=0)].max(initial=0.0)
    found: F64 = np.ones(len(given))
    np.divide(final, given, out=found, where=(given > 0) & (final > 0))
    return found


def _by_join(join: I64, values: F64) -> F64:
    """The sum of its join's values, for each group, (g,)."""
    each: F64 = np.bincount(join, weights=values, minlength=1)[join].astype(np.float64)
    return each
