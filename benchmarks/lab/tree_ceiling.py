"""A bound on what a chain of joins gives at run time, for policies that bring nothing back. Pure.

Model: a policy decides, at the ends of epochs, which groups of which joins leave memory; it may
know the whole day. The memory of all slots counts as one. A result of the query needs that its two
rows at the root (that of the join below, and the carrier's) were in one generation of their group,
*and* that the same holds at the join below. So, for any weight w between 0 and 1, it counts no more
than w for the first and 1 - w for the second. Each of the two sums is then a problem of its own,
tied to the other by memory alone:

* A group is cut at some ends of epochs, as in `benchmarks.lab.clairvoyant`.
* Of the rows that the join below might give at most, each is there or not, as is best. (What a
  policy spills further down decides that in truth; a row that comes, comes in the epoch of its
  newest part.) One that is there gives a result with each carrier's row of its generation; at the
  join below the root, as many as that pair could give at most in the whole day.
* What is there takes memory from the end of the epoch in which it comes to that of the epoch before
  its group is cut.

With a price for memory at the end of each epoch in place of the limit, every group has its own best
schedule, by dynamic programming; what all of them give, with the memory paid for, is no less than
what any policy gives (weak duality), for any prices and any weight. Prices and weight are improved
step by step, and the least bound counts. The first join is left out: its state takes no memory
here, and never lacks anything, which can only make the bound greater.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from benchmarks.lab.tree_exact import Level
from benchmarks.lab.workload import F64, I64

CLOSE = 0.02
"""A step aims at a bound that is lower by so much."""


@dataclass(frozen=True)
class Side:
    """A join of two inputs; `k` values of its key in the order of their groups, `e` epochs."""

    first: I64
    """(g,) the first value of each group."""
    came: F64
    """(k, e + 1) rows of the join below that came before epoch i, when nothing is ever spilled."""
    came_bytes: int
    """Of one of them."""
    gives: F64
    """(k, e + 1) results that one of them gives with the carrier's rows of the epochs before i."""
    held: F64
    """(g, e + 1) bytes of the carrier's rows of the epochs before i."""

    @staticmethod
    def of(level: Level, below: I64, weight: F64, widths: tuple[int, int]) -> Side:
        """A join. `below`: (k, e) what the join below gives at most; `weight`: (n,) results that a
        pair with each of the carrier's rows gives; `widths`: bytes of a row of both inputs."""
        keys, epochs = below.shape
        order = np.argsort(level.group, kind="stable")
        rank = np.empty(keys, dtype=np.int64)
        rank[order] = np.arange(keys)
        at = rank[level.key] * epochs + level.epoch

        def per_epoch(each: F64) -> F64:
            found = np.bincount(at, each, minlength=keys * epochs).astype(np.float64)
            return _before(found.reshape(keys, epochs))

        _, first = np.unique(level.group[order], return_index=True)
        rows = per_epoch(np.ones(len(at)))
        return Side(
            first,
            _before(below[order].astype(np.float64)),
            widths[0],
            per_epoch(weight),
            np.add.reduceat(rows, first, axis=0) * widths[1],
        )

    @property
    def epochs(self) -> int:
        """How many there are."""
        return int(self.came.shape[1]) - 1

    @cached_property
    def group(self) -> I64:
        """(k,) the position of each value's group."""
        sizes = np.diff(np.append(self.first, len(self.came)))
        return np.repeat(np.arange(len(self.first)), sizes)

    def best(self, price: F64, share: float) -> tuple[float, F64, float]:
        """The best schedules at these prices, (e,) by the end of the epoch, when a result counts
        `share`: what they give net, (e,) bytes in memory then, results that they give."""
        epochs, groups = self.epochs, len(self.first)
        paid = np.append(0.0, price).cumsum()
        # A row that comes in epoch t and leaves in epoch b - 1 pays paid[b - 1] - paid[t].
        came_paid = _before(np.diff(self.came, axis=1) * paid[:-1])
        held_paid = _before(np.diff(self.held, axis=1) * paid[:-1])
        best = np.zeros((epochs + 1, groups))
        start = np.zeros((epochs + 1, groups), dtype=np.int64)
        for b in range(1, epochs + 1):
            gain, begin = self._wanted(paid, share, np.arange(b)[None], np.full((1, 1), b))
            rows = self.came[:, b : b + 1] - np.take_along_axis(self.came, begin, axis=1)
            cost = came_paid[:, b : b + 1] - np.take_along_axis(came_paid, begin, axis=1)
            net = (share * gain - self.came_bytes * paid[b - 1]) * rows + self.came_bytes * cost
            carried = (self.held[:, b : b + 1] - self.held[:, :b]) * paid[b - 1]
            carried -= held_paid[:, b : b + 1] - held_paid[:, :b]
            total = np.add.reduceat(net, self.first, axis=0) - carried + best[:b].T
            start[b] = total.argmax(axis=1)
            best[b] = total[np.arange(groups), start[b]]
        return (float(best[epochs].sum()), *self._followed(paid, share, start))

    def _wanted(self, paid: F64, share: float, a: I64, b: I64) -> tuple[F64, I64]:
        """Of generations of the epochs a ... b - 1: what a row gives, and from which epoch on the
        rows are worth what they pay. Arrays that fit (k, n)."""
        keys = np.arange(len(self.gives))[:, None]
        gain = self.gives[keys, b] - self.gives[keys, a]
        worth = np.searchsorted(paid, paid[b - 1] - share * gain / self.came_bytes, side="left")
        return gain, np.minimum(np.maximum(worth, a), b)

    def _followed(self, paid: F64, share: float, start: I64) -> tuple[F64, float]:
        """(e,) bytes in memory by the schedules, and the results that they give."""
        epochs, groups = self.epochs, len(self.first)
        in_memory, results = np.zeros(epochs), 0.0
        end, every = np.full(groups, epochs), np.arange(groups)
        for epoch in reversed(range(epochs)):
            begin = start[end, every]
            last = end[self.group][:, None]
            gain, first = self._wanted(paid, share, begin[self.group][:, None], last)
            there = np.maximum(self.came[:, epoch + 1 : epoch + 2], 0.0)
            there = there - np.take_along_axis(self.came, np.minimum(first, epoch + 1), axis=1)
            stays = epoch < end - 1
            rows = there[:, 0] * stays[self.group]
            own = (self.held[:, epoch + 1] - self.held[every, begin]) * stays
            in_memory[epoch] = rows.sum() * self.came_bytes + own.sum()
            done = begin == epoch
            whole = np.take_along_axis(self.came, last, axis=1)
            whole = whole - np.take_along_axis(self.came, first, axis=1)
            results += float((gain * whole)[done[self.group]].sum())
            end = np.where(done, epoch, end)
        return in_memory, results


def ceiling(
    root: Side, below: Side, memory_bytes: int, results: int, reached: int, rounds: int = 60
) -> int:
    """See the module. `results`: of the whole day; `reached`: what some policy gave."""
    epochs = root.epochs
    # Steps are in units in which memory and the day's results are 1.
    price, weight, least = np.zeros(epochs), 0.5, float("inf")
    for _ in range(rounds):
        unit = results / memory_bytes
        first, held, gave = root.best(price * unit, weight)
        second, held_below, gave_below = below.best(price * unit, 1 - weight)
        bound = (first + second) / results + price.sum()
        least = min(least, bound)
        slope = (held + held_below) / memory_bytes - 1
        slope[price <= 0] = np.maximum(slope[price <= 0], 0)
        slope[-1] = 0.0  # a cut at the end of the day costs nothing
        turn = (gave_below - gave) / results
        length = float((slope**2).sum()) + turn**2
        aim = max(reached / results, least * (1 - CLOSE))
        if bound <= reached / results or not length:
            break
        step = (bound - aim) / length
        price = np.maximum(price + step * slope, 0)
        weight = min(max(weight + step * turn, 0.0), 1.0)
    return int(np.floor(least * results + 1e-6))


def sides(
    chain: Sequence[Level], given: Sequence[I64], widths: Sequence[tuple[int, int]]
) -> tuple[Side, Side]:
    """The root of a chain of three joins, and the join below it. `given`: what each gives at most;
    `widths`: of the same two joins, bytes of a row of the join below and of the carrier."""
    _, below, root = chain
    partners = root.carried.sum(axis=1)[below.above].astype(np.float64)
    return (
        Side.of(root, given[1].T, np.ones(len(root.key)), widths[0]),
        Side.of(below, given[0].T, partners, widths[1]),
    )


def _before(arrived: F64) -> F64:
    """(…, e + 1) sums over the epochs before each."""
    none = np.zeros_like(arrived[:, :1])
    found: F64 = np.concatenate([none, arrived.cumsum(axis=1)], axis=1)
    return found
