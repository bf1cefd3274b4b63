"""What arrives: three streams by the papers' own parameters. Pure; the same seed, the same day.

Source: Liu & Rundensteiner, WPI-CS-TR-05-04, section 3.4. A stream brings one tuple every
`interval_ms`. A group's *join ratio* r and the *tuple range* R mean: in every R tuples of a
stream, each join value of the group occurs r times (on average; it is drawn). A tuple that comes
within the first range finds up to r tuples in each of the other two streams, so r^2 results;
within the second (2 r)^2, and so on: 4 and 16 for r = 2, as the paper says.

So of P groups with equal shares of a stream, one with the ratio r has R / (P r) join values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spillway.engine.groups import GroupMap
from spillway.engine.join.hashing import xxhash64

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

STREAMS = 3
GROUPS = 256
"""The papers have 300; a group is a prefix of a hash here, and this is the nearest power of 2."""


@dataclass(frozen=True)
class Phase:
    """A time during which each group gets a fixed share of the tuples."""

    minutes: float
    weights: F64
    """(g,) shares of the groups, in any unit."""


@dataclass(frozen=True)
class Workload:
    """A day's description."""

    minutes: float
    interval_ms: float
    """Between two tuples of one stream."""
    tuple_range: float
    ratio: F64
    """(g,) join ratio of each group."""
    phases: tuple[Phase, ...] = ()
    """Over and over from the first; none: equal shares."""
    seed: int = 1

    def scaled(self, factor: float) -> Workload:
        """The same day with `factor` times the tuples and join values.

        Each value occurs as often as before, so that results and bytes scale alike.
        """
        return replace(
            self, interval_ms=self.interval_ms / factor, tuple_range=self.tuple_range * factor
        )

    def before(self, noise: float) -> Workload:
        """A day like this one: the same groups, in each phase so much more or less busy."""
        rng = np.random.default_rng(self.seed + 1000)
        phases = self.phases or (Phase(self.minutes, np.ones(len(self.ratio))),)
        stretched = [phases[n % len(phases)] for n in range(self.turns)]
        other = tuple(
            Phase(each.minutes, each.weights * np.exp(rng.normal(0, noise, len(each.weights))))
            for each in stretched
        )
        return replace(self, phases=other, seed=self.seed + 1000)

    @property
    def turns(self) -> int:
        """How many phases the day has, each time counted."""
        return len(_stretches(self))

    @property
    def tuples(self) -> int:
        """Of each stream."""
        return round(self.minutes * 60_000 / self.interval_ms)


@dataclass(frozen=True)
class Day:
    """What a workload came to. `k` join values, `n` tuples of each stream, `e` epochs."""

    epoch_s: float
    symbols: pa.Array
    """(k,) the join values, grouped by their group."""
    group: I64
    """(k,) each value's group."""
    arrivals: I32
    """(streams, n) index of each tuple's join value, in order of arrival."""
    bounds: I64
    """(e + 1,): epoch i brings the tuples [bounds[i], bounds[i + 1]) of each stream."""

    @property
    def epochs(self) -> int:
        """How many there are."""
        return len(self.bounds) - 1

    @property
    def groups(self) -> int:
        """How many there are."""
        return int(self.group[-1]) + 1

    @cached_property
    def epoch_of(self) -> I64:
        """(n,) the epoch in which each tuple comes."""
        return np.repeat(np.arange(self.epochs), np.diff(self.bounds))

    def rows(self, until: int) -> I64:
        """(g,) tuples of all streams in each group in the epochs before `until`."""
        came = self.arrivals[:, : self.bounds[until]].reshape(-1)
        return np.bincount(self.group[came], minlength=self.groups)


def generate(workload: Workload, epoch_s: float) -> Day:
    """Draw the day. Raises ValueError when a group would have no join value."""
    groups = len(workload.ratio)
    values = values_per_group(workload)
    symbols = symbols_of(values)
    first = np.cumsum(values) - values
    rng = np.random.default_rng(workload.seed)
    drawn = np.empty((STREAMS, workload.tuples), dtype=np.int32)
    for start, end, weights in _stretches(workload):
        size = (STREAMS, end - start)
        group = rng.choice(groups, size, p=weights / weights.sum())
        drawn[:, start:end] = first[group] + (rng.random(size) * values[group]).astype(np.int64)
    epochs = round(workload.minutes * 60 / epoch_s)
    bounds = np.round(np.arange(epochs + 1) * (workload.tuples / epochs)).astype(np.int64)
    return Day(epoch_s, symbols, np.repeat(np.arange(groups), values), drawn, bounds)


def values_per_group(workload: Workload) -> I64:
    """(g,) join values of each group; fractions are carried on to the next group."""
    wanted = workload.tuple_range / (len(workload.ratio) * workload.ratio)
    ends = np.floor(np.cumsum(wanted) + 0.5)
    values = np.diff(ends, prepend=0.0).astype(np.int64)
    if values.min() < 1:
        raise ValueError(f"a group has {wanted.min():.2f} join values: scale the workload up")
    return values


def symbols_of(values: I64) -> pa.Array:
    """(k,) strings of which the first `values[0]` hash into group 0, the next into group 1, ..."""
    groups = len(values)
    of_group = GroupMap.initial(groups, 1)
    tried = 2 * groups * int(values.max()) + 1000
    while True:
        names = pa.array([f"S{n:07d}" for n in range(tried)])
        group = of_group.group_of(xxhash64([names]))
        if (np.bincount(group, minlength=groups) >= values).all():
            break
        tried *= 2
    order = np.argsort(group, kind="stable")
    sorted_ = group[order]
    rank = np.arange(tried) - np.searchsorted(sorted_, sorted_)
    return names.take(pa.array(order[rank < values[sorted_]]))


def _stretches(workload: Workload) -> Sequence[tuple[int, int, F64]]:
    """(first tuple, end, weights) of each phase, in order."""
    even = Phase(workload.minutes, np.ones(len(workload.ratio)))
    found, minute, turn = [], 0.0, 0
    while minute < workload.minutes:
        phases = workload.phases or (even,)
        phase = phases[turn % len(phases)]
        until = min(minute + phase.minutes, workload.minutes)
        at, end = (round(m * 60_000 / workload.interval_ms) for m in (minute, until))
        found.append((at, end, phase.weights))
        minute, turn = until, turn + 1
    return found
