"""How many rows a group is to expect, from how they came in a session before. Pure.

A session's *profile* is how many rows of each group had come, at times some minutes apart. At a
time after today's session began it says how many rows each group would have by now, and how many
would still come. What is to come is taken as that, times how much more or less has come today:

    scale = (came + K level) / (came then + K),    level = all that came / all that came then

so a group of which little came then goes by the level of all of them.

Whether today is such a day is seen where the profile has changes: what groups are off their usual
rates now is held against what they were then, at the same time. The slope of that regression
through the origin, 0 to 1, is the *trust* in the profile; the rest is trust in today's own rates
(`spillway.policy.arrivals`). As long as the profile has no change that could be told from chance,
it is trusted: what it says is then little else than what today's rates say.

Ours; the papers go by what was, without a forecast.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

NEAR_MS = 150_000
"""A profile's rate at a time is that from so long before to so long after it."""
KNOWN_ROWS = 30.0
"""K: so many rows of a group say as much of it as the level of all groups does."""
PRIOR = 0.1
"""Of the sum of squares of the profile's usual rates: so much trust it has before any change."""


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
        came, near = self.until(since_ms), (max(since_ms - NEAR_MS, 0.0), since_ms + NEAR_MS)
        return Forecast(
            came=came,
            to_come=np.maximum(self.until(since_ms + left_ms) - came, 0.0),
            rate=(self.until(near[1]) - self.until(near[0])) / (near[1] - near[0]),
            usual=came / max(since_ms, 1.0),
        )


@dataclass(frozen=True)
class Forecast:
    """What a profile says of groups at a moment; all float64 (g,)."""

    came: F64
    """Rows by now."""
    to_come: F64
    """Rows until the session ends."""
    rate: F64
    """Rows a ms, about now."""
    usual: F64
    """Rows a ms, since the session began."""

    def of(self, groups: Bool) -> Forecast:
        """With nothing of other groups than these, bool (g,)."""
        return Forecast(*(np.where(groups, each, 0.0) for each in vars(self).values()))


def rows_expected(forecast: Forecast, came: I64, present: F64, usual: F64, by_rates: F64) -> F64:
    """Rows that are still to come of each group, float64 (g,), >= 0.

    Of today, all (g,): the rows that `came`, the `present` and the `usual` rate, in rows a ms, and
    what is to come `by_rates` alone.
    """
    whole = float(forecast.came.sum())
    level = float(came.sum()) / whole if whole else 1.0
    scale = (came + KNOWN_ROWS * level) / (forecast.came + KNOWN_ROWS)
    trust = trusted((forecast.rate - forecast.usual) * scale, present - usual, usual)
    found: F64 = trust * forecast.to_come * scale + (1 - trust) * by_rates
    return found


def trusted(then: F64, now: F64, usual: F64) -> float:
    """The trust in a profile, 0 to 1. `then`, `now`: what groups were off their usual rates, and
    are; `usual`: those rates; all rows a ms, (g,)."""
    prior = PRIOR * float(usual @ usual)
    squares = float(then @ then) + prior
    return min(max((float(then @ now) + prior) / squares, 0.0), 1.0) if squares else 1.0
