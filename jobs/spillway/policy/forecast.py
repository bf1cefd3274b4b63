"""How many rows a group is to expect, from how they came in a session before. Pure.

A session's *profile* is how many rows of each group had come, at times some minutes apart. At a
time after today's session began it says what a group's *usual* rate was until then, what its
*present* rate was then, and how many rows came later. What came later and differs from the usual
rate is the profile's *change*. It is expected again, times how much more or less comes today:

    scale = (came + K level) / (came then + K)

where `came` is what was counted since the group's first row, `came then` what the profile's usual
rate gives in as long a time, and `level` is all of the one over all of the other: a group of which
little came goes by the level. (A slot that has lost its state begins to count anew.)

Today's own rates say what comes without a change (`spillway.policy.arrivals`). They let some part
of what is off its usual rate now last; of that, what the profile explains is taken off again:

    X = by rates + trust ((came later - usual then) scale - known lasting (present - usual) scale)

where `usual then` is what the usual rate gives in that time, and `known` the part of the time left
of which the profile says something: its own session may have been shorter.

The profile's present rate is what today's would be: of a count in which a row counts half after
half a minute. (Any other would show a change sooner or later than today's, and around it the change
would count twice or not at all.) So a profile without a change changes nothing, and on a day that
repeats the one before X is what came later, but for two things. Within one interval of the profile
rows are taken to come evenly. And the profile's usual rate counts from the session's beginning,
today's from a group's first row: of one that begins late too much is expected.

The *trust*, 0 to 1, is seen where the profile has changes: what groups are off their usual rates
now is held against what they were then, and the slope of that regression through the origin is the
trust.

Ours; the papers go by what was, without a forecast.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from spillway.policy.arrivals import TAU_MS

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

KNOWN_ROWS = 30.0
"""K: so many rows of a group say as much of it as the level of all groups does."""
PRIOR = 0.1
"""Of the sum of squares of today's usual rates: so much counts as agreement before any change."""


@dataclass(frozen=True)
class Profile:
    """How the rows of a session came."""

    at_ms: I64
    """(b,) times since the session began, ascending."""
    rows: F64
    """(g, b) rows of each group that had come by then."""

    def until(self, since_ms: float) -> F64:
        """Rows that had come by a time, float64 (g,)."""
        at = float(np.interp(since_ms, self.at_ms, np.arange(len(self.at_ms))))
        before = int(at)
        after = min(before + 1, len(self.at_ms) - 1)
        found: F64 = self.rows[:, before] + (at - before) * (
            self.rows[:, after] - self.rows[:, before]
        )
        return found

    def at(self, since_ms: float, left_ms: float) -> Forecast:
        """What it says at a time since a session began that goes on for `left_ms`."""
        since_ms = max(since_ms, 0.0)
        known_ms = min(left_ms, max(float(self.at_ms[-1]) - since_ms, 0.0))
        return Forecast(
            to_come=np.maximum(self.until(since_ms + known_ms) - self.until(since_ms), 0.0),
            present=self._present(since_ms),
            usual=self.until(since_ms) / max(since_ms, TAU_MS),
            known_ms=known_ms,
            left_ms=left_ms,
        )

    def _present(self, since_ms: float) -> F64:
        """As `spillway.engine.statistics.rates` would have it, float64 (g,).

        Of a row that came a time a ago the count keeps exp(-a / TAU): of an interval's rows, on
        average, TAU times the difference of what its ends keep, over its length.
        """
        kept = np.exp(-np.maximum(since_ms - self.at_ms, 0.0) / TAU_MS)
        found: F64 = np.diff(self.rows, axis=1) @ (np.diff(kept) / np.diff(self.at_ms))
        return found


@dataclass(frozen=True)
class Forecast:
    """What a profile says of groups at a moment; arrays are float64 (g,)."""

    to_come: F64
    """Rows in `known_ms`."""
    present: F64
    """Rows a ms, about now."""
    usual: F64
    """Rows a ms, since the session began."""
    known_ms: float
    """From now on so long the profile says something: its own session may have been shorter."""
    left_ms: float
    """Until today's session ends."""

    def of(self, groups: I64) -> Forecast:
        """For some of the groups, by their indices (k,)."""
        return replace(
            self,
            to_come=self.to_come[groups],
            present=self.present[groups],
            usual=self.usual[groups],
        )


def rows_expected(forecast: Forecast, came: I64, present: F64, usual: F64, by_rates: F64) -> F64:
    """Rows that are still to come of each group, float64 (g,), >= 0.

    Of today, all (g,): the rows that `came`, the `present` and the `usual` rate, in rows a ms, and
    what is to come `by_rates` alone.
    """
    counted_ms = np.divide(came, usual, out=np.zeros(len(came)), where=usual > 0)
    then = forecast.usual * counted_ms
    whole = float(then.sum())
    level = float(came.sum()) / whole if whole else 1.0
    scale = (came + KNOWN_ROWS * level) / (then + KNOWN_ROWS)
    off, off_then = present - usual, (forecast.present - forecast.usual) * scale
    squares = float(off @ off)
    lasting_ms = float((by_rates - usual * forecast.left_ms) @ off) / squares if squares else 0.0
    known = forecast.known_ms / forecast.left_ms if forecast.left_ms else 0.0
    change = (forecast.to_come - forecast.usual * forecast.known_ms) * scale
    trust = trusted(off_then, off, usual)
    found: F64 = np.maximum(by_rates + trust * (change - known * lasting_ms * off_then), 0.0)
    return found


def trusted(then: F64, now: F64, usual: F64) -> float:
    """The trust in a profile, 0 to 1. `then`, `now`: what groups were off their usual rates, and
    are; `usual`: those rates; all rows a ms, (g,)."""
    prior = PRIOR * float(usual @ usual)
    squares = float(then @ then) + prior
    return min(max((float(then @ now) + prior) / squares, 0.0), 1.0) if squares else 1.0
