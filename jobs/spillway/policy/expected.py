"""What a group is expected to lose when it leaves memory now. Pure.

A group of a join of m inputs that holds N rows and gets X more gives about sigma (N + X)^m results
by the end of its session where all of them meet, but sigma (N^m + X^m) where a cut comes between.
So the cut loses

    sigma ((N + X)^m - N^m - X^m)

results to cleanup. `sigma` is what the group has given so far, over the sum of N^m of all its
generations: it does not forget when the group is spilled, so a group is no worse for being young.
`X` is the rate at which its rows will come (`spillway.policy.arrivals`), for the time that is left;
where a session before is known, with the changes from its usual rates that came in it after this
time, as far as they are trusted (`spillway.policy.forecast`).

Of a windowed join a row that is in memory now meets rows for one window at most. In a steady state
the share (t / W)^(m - 1) of the results after a time t < W consists of rows alone that came since.
So the cut loses, at r results a ms,

    r (t - t^m / (m W^(m - 1))),    t = min(W, the time left)

and a group that was cut less than a window ago the part of it that its rows are of a window's.

A generation that was spilled comes back with its N1 rows: then the group gains what it would lose
were they spilled now, and at once the results between them and its rows in memory:

    sigma ((N1 + N + X)^m - N1^m - (N + X)^m)

Of a windowed join it gains what is left of the window of its rows: W less the time since their
cut.

Loss and gain are in results of the query: a result of a join below the root counts for as many as
the root gave for each of that join's.

Ours; TR-05-04 (section 4.3) and SIGMOD 2006 (section 3) go by what a group has given for each byte,
which is the same where each group goes on as it was and is spilled once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spillway.policy.arrivals import rate_to_come
from spillway.policy.forecast import Forecast, rows_expected

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
    came: I64
    """Rows since the session began."""
    forecast: Forecast | None = None
    """What a session before says; None: none is known."""


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
    m, n, to_come = _powers(growth)
    open_end = _sigma(growth) * ((n + to_come) ** m - n**m - to_come**m)
    windowed = np.isfinite(growth.window_ms)
    loss = np.where(windowed, _within(growth, n, growth.window_ms), open_end)
    return np.maximum(loss * _final_results(growth), 0.0)


def expected_gain(growth: Growth, back: I64, age_ms: I64) -> F64:
    """Results that each group gains at run time when a spilled generation of `back` rows (g,) comes
    back now, float64 (g,), >= 0. `age_ms`: since it was spilled, (g,)."""
    m, n, to_come = _powers(growth)
    n1 = back.astype(np.float64)
    open_end = _sigma(growth) * ((n1 + n + to_come) ** m - n1**m - (n + to_come) ** m)
    windowed = np.isfinite(growth.window_ms)
    left_ms = np.maximum(growth.window_ms - age_ms, 0.0)
    gain = np.where(windowed, _within(growth, n1, left_ms), open_end)
    return np.maximum(gain * _final_results(growth), 0.0)


def given_at_once(growth: Growth, back: I64) -> F64:
    """Results between a spilled generation of `back` rows (g,) and what is in memory, about."""
    m, n = growth.inputs.astype(np.float64), growth.rows.astype(np.float64)
    n1 = back.astype(np.float64)
    found: F64 = _sigma(growth) * ((n1 + n) ** m - n1**m - n**m)
    return np.maximum(found, 0.0)


def rows_to_come(growth: Growth) -> F64:
    """Rows by which each group is expected to grow, float64 (g,), >= 0: with a window, to what
    comes in one."""
    _, n, to_come = _powers(growth)
    window_ms = np.minimum(growth.window_ms, growth.left_ms)
    within = np.maximum(growth.present * window_ms - n, 0.0)
    found: F64 = np.where(np.isfinite(growth.window_ms), within, to_come)
    return found


def _powers(growth: Growth) -> tuple[F64, F64, F64]:
    """m, N and X of each group, (g,)."""
    m, n = growth.inputs.astype(np.float64), growth.rows.astype(np.float64)
    left_ms = growth.left_ms
    present, usual = growth.present, growth.usual
    to_come = rate_to_come(present, usual, growth.evidence, left_ms) * left_ms
    if growth.forecast is not None:
        to_come = rows_expected(growth.forecast, growth.came, present, usual, to_come)
    return m, n, to_come


def _within(growth: Growth, rows: F64, left_ms: F64) -> F64:
    """Results between `rows` (g,) of a windowed join and those that come while they are in the
    window, `left_ms` (g,) more; anything where there is no window."""
    m = growth.inputs.astype(np.float64)
    windowed = np.isfinite(growth.window_ms)
    window_ms = np.where(windowed, np.maximum(growth.window_ms, 1.0), 1.0)
    left_ms = np.minimum(np.where(windowed, left_ms, 0.0), growth.left_ms)
    share = np.minimum(left_ms / window_ms, 1.0)
    full = np.minimum(rows / np.maximum(growth.present * window_ms, 1.0), 1.0)
    found: F64 = growth.result_rate * window_ms * (share - share**m / m) * full
    return found


def _sigma(growth: Growth) -> F64:
    """Results for each N^m of each group, (g,). One result of its join's average is added."""
    m = growth.inputs.astype(np.float64)
    powers = growth.rows.astype(np.float64) ** m + growth.spilled_norm**m
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
