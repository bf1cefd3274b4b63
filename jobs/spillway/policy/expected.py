"""What a group is expected to lose when it leaves memory now. Pure.

A group of a join of m inputs that holds N rows and gets X more gives about sigma (N + X)^m results
by the end of its session where all of them meet, but sigma (N^m + X^m) where a cut comes between.
So the cut loses

    sigma ((N + X)^m - N^m - X^m)

results to cleanup. `sigma` is what the group has given so far, over its exposure: what N^m grew by
with the rows of each epoch, which comes to the sum of N^m over all its generations. It does not
forget when the group is spilled, so a group is no worse for being young. `X` is the rate at which
its rows will come (`spillway.policy.arrivals`), for the time that is left; where a session
before is known, with the changes from its usual rates that came in it after this time, as far as
they are trusted (`spillway.policy.forecast`).

A generation that was spilled comes back with its N1 rows: then the group gains what it would lose
were they spilled now, and at once the results between them and its rows in memory:

    sigma ((N1 + N + X)^m - N1^m - (N + X)^m)

An older one comes back after those that were spilled since, whose rows then count in N.

Of a windowed join a row that is in memory now meets rows for one window W at most, and sigma is
measured in the same way, by the rows that were in memory when others came. N rows that came at the
present rate p are N / p old at the most, and no older than W; of them

    N(s) = N min(1, (W - s) / min(N / p, W))

are left in the window after s. By then x s have come, x being the rate that is expected over a
window. So the cut loses, in t = min(W, the time left),

    sigma m x (integral over s from 0 to t of (N(s) + x s)^(m - 1) - (x s)^(m - 1))

and a generation of N1 rows that was cut a ago gains, in t = min(W - a, the time left),

    sigma m x (integral of (N1(a + s) + N(s) + x s)^(m - 1) - (N(s) + x s)^(m - 1))

and, at once, what it would have given to the N rows that came since. Those are of the last b =
min(a, K), K being how long a row stays in memory: it leaves once the watermark has passed the end
of its slice by W. So that is the same integral over b with the rate N / b, of rows cut a - b before
it. Of the generation itself N1 min(1, (K - a) / min(N1 / p, K)) stay in memory.

What this leaves out: the inputs of a group are taken to grow in proportion. Where one is loaded
first and only the others come later, N counts rows that have met nothing yet: with 10,000 rows of a
stream there and 1,000 of another, the loss comes out at 1.8 times what it is. Rows in memory are
taken to have come evenly at p, so what came before a rate fell is taken for younger than it is, and
its loss for too much until it has left. Rows of a slice that have expired count in N and in what
was met, as all do, so with two inputs a full group's loss is up to an eighth too much or too
little. It may be a fifth too little with three, and 45 % with six. The rows of newer generations
count in N as though all had stayed in memory. K is reckoned from Kafka's clock, so events that are
old when they come seem to stay for longer than they do. With a band W is the longest reach of its
inputs.

Loss and gain are in results of the query: a result of a join below the root counts for as many as
the root gave for each of that join's.

Ours; TR-05-04 (section 4.3, idle groups apart) and SIGMOD 2006 (section 3.2) go by what a group has
given for each byte. The order is the same among groups of one join that have given many results,
began together, go on as they were, and were never spilled. A forecast is "beyond the scope" of the
first (its note 5), and what to spill and to bring back with windows is future work of the second
(section 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from spillway.policy.arrivals import rate_to_come
from spillway.policy.forecast import Forecast, rows_expected

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

_POINTS, _HALVES = np.polynomial.legendre.leggauss(8)
_NODES, _WEIGHTS = (_POINTS + 1) / 2, _HALVES / 2
"""Gauss-Legendre on [0, 1]."""


@dataclass(frozen=True)
class Growth:
    """How a slot's groups of a session have grown, all (g,).

    What more than one figure is reckoned from is reckoned once."""

    rows: I64
    """In memory, all inputs."""
    present: F64
    """Rows a ms, now."""
    usual: F64
    """Rows a ms, since its first one."""
    exposure_norm: F64
    """The m-th root of the exposure, rows: see `met`."""
    session_results: I64
    """Of the group's own join, since the session began."""
    join: I64
    """Number of the group's join."""
    root: int
    """Number of the root."""
    inputs: I64
    """m, of the group's join."""
    window_ms: F64
    """W, of the group's join; infinite: it has none."""
    kept_ms: F64
    """K, how long a row stays in memory: W, its slice, and while the watermark lags."""
    left_ms: float
    """Until the session ends."""
    evidence: F64
    """(h, 2): see `spillway.policy.arrivals`."""
    came: I64
    """Rows since the session began."""
    forecast: Forecast | None = None
    """What a session before says; None: none is known."""

    @cached_property
    def to_come(self) -> F64:
        """X, rows."""
        present, usual, left_ms = self.present, self.usual, self.left_ms
        found: F64 = rate_to_come(present, usual, self.evidence, left_ms) * left_ms
        if self.forecast is not None:
            found = rows_expected(self.forecast, self.came, present, usual, found)
        return found

    @cached_property
    def windowed(self) -> Bool:
        """Which have a window."""
        return np.isfinite(self.window_ms)

    @cached_property
    def rate(self) -> F64:
        """x, rows a ms that are to be expected over a window, at most till the end; 0 where there
        is none."""
        found: F64 = np.zeros(len(self.present))
        for window_ms in np.unique(self.window_ms[self.windowed]).tolist():
            ahead_ms = min(window_ms, self.left_ms)
            rate = rate_to_come(self.present, self.usual, self.evidence, ahead_ms)
            np.copyto(found, rate, where=self.window_ms == window_ms)
        return found

    @cached_property
    def worth(self) -> F64:
        """Results of the query for each unit of exposure: sigma, times what the root gave for each
        result of the group's join. One result of its join's average is added to what it gave."""
        powers = self.exposure_norm ** self.inputs.astype(np.float64)
        results = self.session_results.astype(np.float64)
        by_join = np.bincount(self.join, results, self.root + 1)
        given, whole = by_join[self.join], np.bincount(self.join, powers, self.root + 1)[self.join]
        found: F64 = np.zeros(len(powers))
        # sigma = (results + 1) / (powers + 1 / average), where the join has given anything.
        known = (given > 0) & (whole > 0)
        np.divide((results + 1) * given, powers * given + whole, out=found, where=known)
        final = by_join[self.root]
        if final > 0:
            np.divide(found * final, given, out=found, where=known)
        return found


def met(exposure_norm: F64, before: I64, came: I64, inputs: I64) -> F64:
    """`Growth.exposure_norm` once `came` rows have met each other and `before` rows; all (g,).

    The m-th root of a sum of m-th powers: the same rows in a group that is twice as wide are twice
    as many, whatever m is, so figures can be shared out when a group is split."""
    m = inputs.astype(np.float64)
    old, new = before.astype(np.float64), came.astype(np.float64)
    found: F64 = (exposure_norm**m + (old + new) ** m - old**m) ** (1 / m)
    return found


def reunited(exposure_norm: F64, rows: I64, back: F64, inputs: I64) -> F64:
    """`Growth.exposure_norm` once spilled generations of `back` rows are beside `rows`; (g,)."""
    m = inputs.astype(np.float64)
    n, n1 = rows.astype(np.float64), back
    found: F64 = (exposure_norm**m + (n + n1) ** m - n**m - n1**m) ** (1 / m)
    return found


def expected_loss(growth: Growth) -> F64:
    """Results that each group gives up at run time when it is spilled now, float64 (g,), >= 0."""
    m, n, to_come = _floats(growth.inputs), _floats(growth.rows), growth.to_come
    nothing = np.zeros(len(n))
    open_end = (n + to_come) ** m - n**m - to_come**m
    return _results(growth, open_end, _within(growth, n, nothing, nothing, growth.rate))


@dataclass(frozen=True)
class Gain:
    """What each group has of a spilled generation that comes back now, float64 (g,), >= 0."""

    results: F64
    """Results that there are more at run time."""
    at_once: F64
    """About how many of them come with the merge: those between the generation and what is in
    memory, which came since."""
    stays: F64
    """The part of the generation that stays in memory, 0 to 1: the rest is older than K."""


def expected_gain(growth: Growth, held: I64, back: I64, age_ms: I64) -> Gain:
    """Of a generation of `back` rows that was spilled `age_ms` ago and comes back to the `held`
    rows that came since, all (g,)."""
    m, n, to_come = _floats(growth.inputs), _floats(held), growth.to_come
    n1, age = _floats(back), _floats(age_ms)
    gain = (n1 + n + to_come) ** m - n1**m - (n + to_come) ** m
    met_now = (n1 + n) ** m - n1**m - n**m
    missed = _missed(growth, n, n1, age)
    within = missed + _within(growth, n1, age, n, growth.rate)
    at_once = _results(growth, met_now, missed)
    # Rounded, a part may come out greater than the whole.
    results = np.maximum(_results(growth, gain, within), at_once)
    stays = _in_window(n1, growth.present, growth.kept_ms, age) / np.maximum(n1, 1.0)
    return Gain(results, at_once, stays)


def rows_to_come(growth: Growth) -> F64:
    """Rows by which each group is expected to grow, float64 (g,), >= 0: with a window, until it is
    full, or the session ends."""
    kept_ms = np.where(growth.windowed, growth.kept_ms, 0.0)
    lacking = np.maximum(growth.present * kept_ms - growth.rows, 0.0)
    within = np.minimum(growth.present * growth.left_ms, lacking)
    found: F64 = np.where(growth.windowed, within, growth.to_come)
    return found


def _floats(values: I64) -> F64:
    return values.astype(np.float64)


def _results(growth: Growth, open_end: F64, within: F64) -> F64:
    """Results of the query for an exposure, without a window or within one, (g,)."""
    exposure = np.where(growth.windowed, within, open_end)
    return np.maximum(growth.worth * exposure, 0.0)


def _missed(growth: Growth, held: F64, old: F64, age_ms: F64) -> F64:
    """The exposure of `old` rows of a windowed join, spilled `age_ms` ago, to the `held` ones that
    came since; all (g,)."""
    since_ms = np.clip(age_ms, 1.0, np.maximum(growth.kept_ms, 1.0))
    nothing = np.zeros(len(old))
    return _within(
        growth, old, np.maximum(age_ms - since_ms, 0.0), nothing, held / since_ms, since_ms
    )


def _within(
    growth: Growth,
    old: F64,
    age_ms: F64,
    young: F64,
    rate: F64,
    left_ms: F64 | None = None,
) -> F64:
    """The exposure of `old` rows of a windowed join, of which the youngest is `age_ms` old, to
    those that come at a `rate` in the time `left_ms` (None: till the end), beside `young` rows; all
    (g,). Anything where there is no window."""
    m = _floats(growth.inputs)
    if not growth.windowed.any():
        return np.zeros(len(m))
    left_ms = np.full(len(m), growth.left_ms) if left_ms is None else left_ms
    window_ms = np.where(growth.windowed, growth.window_ms, 1.0)
    until_ms = np.maximum(np.minimum(window_ms - age_ms, left_ms), 0.0)
    found: F64 = np.zeros(len(m))
    for at, weight in zip(_NODES.tolist(), _WEIGHTS.tolist(), strict=True):
        s = until_ms * at
        still = _in_window(old, growth.present, window_ms, age_ms + s)
        others = _in_window(young, growth.present, window_ms, s) + rate * s
        found += weight * ((still + others) ** (m - 1) - others ** (m - 1))
    return m * rate * until_ms * found


def _in_window(rows: F64, rate: F64, window_ms: F64, age_ms: F64) -> F64:
    """Of rows that came at a rate, the youngest `age_ms` ago, those that are in the window."""
    span_ms = np.clip(rows / np.maximum(rate, 1e-12), 1.0, np.maximum(window_ms, 1.0))
    found: F64 = rows * np.clip((window_ms - age_ms) / span_ms, 0.0, 1.0)
    return found
