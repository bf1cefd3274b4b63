"""What could be had by who knows the whole day: two limits for one slot (or for the memory of all
slots taken as one, which is what relocation without cost would give). Pure.

Units are rows, for a row has one size here. Memory is what the state may take at the end of an
epoch; the rows of an epoch are joined before anything is spilled, as in the engine.

**Best static choice** (`best_static`). Until memory first runs over, everything is there, for any
policy. Then, once and for all: the groups of a set K stay in memory to the end; the others leave
and never come back. K is the best of all sets whose rows of the *whole day* fit into memory, a
knapsack solved exactly. It bounds policies that drop groups for good when
memory first runs over; one that drops a group at a time may do better. One that lets them begin
anew may give more results at run time, even with one spill: there is room until K has grown to its
last size, and a group that was spilled begins anew with its next row.

What is held at the end of the last epoch costs a policy nothing, for a cut there loses no results,
and yet K must have room for it. Without the last epoch's rows the bound is 0.1 to 1.0 % higher on
the laboratory's days. The ceiling leaves that end out.

**Ceiling** (`ceiling`). No policy that brings nothing back gives more, whatever it knows and
however often it spills, group by group, at the ends of epochs. (One that brings back may: the
merge of what was spilled is then done at run time.) The best schedule of cuts is a problem with one
constraint an epoch (what is held fits) that ties the groups together. With a price for memory in
each epoch instead of the constraints, every group has its own best schedule, by dynamic
programming; what all of them give, with the memory paid for, is no less than the best schedule
(weak duality), for any prices. The prices are improved step by step; the least bound counts.

**Foresight** (`foresight`). A schedule that can be had, so the ceiling is no higher than need be
by more than the two differ. It spills no more than it must, the groups first that lose the least
for each row by what is still to come, which it knows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.lab.exact import full, run_time
from benchmarks.lab.workload import F64, I64, Day

Bools = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


@dataclass(frozen=True)
class Static:
    """The best static choice."""

    kept: Bools
    """(g,) whether a group stays all day."""
    results: int
    """At run time."""


def best_static(day: Day, memory_rows: int) -> Static:
    """See the module. Everything is kept when the whole day fits."""
    arrived = day.bounds * len(day.arrivals)
    over = np.flatnonzero(arrived > memory_rows)
    if not len(over):
        return Static(np.ones(day.groups, dtype=np.bool_), int(full(day).sum()))
    # The epoch that runs over has given its results when something must leave.
    common = run_time(day, (), until=int(over[0]))
    kept = knapsack(full(day) - common, day.rows(day.epochs), memory_rows)
    return Static(kept, int(common.sum() + (full(day) - common)[kept].sum()))


def knapsack(value: I64, weight: I64, room: int) -> Bools:
    """(n,) which items give the most value within the room. Exact; O(n room)."""
    best = np.zeros(room + 1, dtype=np.int64)
    taken = np.zeros((len(value), room + 1), dtype=np.bool_)
    for item, (gain, size) in enumerate(zip(value.tolist(), weight.tolist(), strict=True)):
        if size > room:
            continue
        with_it = best[: room + 1 - size] + gain
        better = with_it > best[size:]
        taken[item, size:] = better
        best[size:] = np.where(better, with_it, best[size:])
    kept = np.zeros(len(value), dtype=np.bool_)
    left = room
    for item in reversed(range(len(value))):
        if taken[item, left]:
            kept[item] = True
            left -= int(weight[item])
    return kept


def ceiling(day: Day, memory_rows: int, reached: int, rounds: int = 300) -> int:
    """See the module. `reached`: results that some policy gave, which steers the prices."""
    return priced_ceiling(generations(day), _rows_by_epoch(day), memory_rows, reached, rounds)


def priced_ceiling(
    gains: F64, came: F64, memory_rows: int, reached: int, rounds: int, keeps: int | None = None
) -> int:
    """See the module. `gains`: as in `generations`. `came`: (e + 1, g) rows of each group before
    epoch i. `keeps`: epochs after which a row leaves memory by itself; None: never."""
    epochs = len(came) - 1
    price = np.zeros(epochs + 1)
    least = float("inf")
    for _ in range(rounds):
        value, in_memory = _schedules(gains, came, price, keeps or epochs)
        bound = value + memory_rows * price.sum()
        least = min(least, bound)
        slope = in_memory - memory_rows
        slope[price <= 0] = np.maximum(slope[price <= 0], 0)
        length = float((slope[1:] ** 2).sum())
        if bound <= reached or not length:
            break
        price[1:] = np.maximum(price[1:] + (bound - reached) / length * slope[1:], 0)
    return int(np.floor(least + 1e-6))


def foresight(day: Day, memory_rows: int) -> int:
    """Results of a schedule that knows the day. See the module."""
    gains = generations(day)
    held = _rows_by_epoch(day)
    every = np.arange(day.groups)
    begun = np.zeros(day.groups, dtype=np.int64)
    """The first epoch of each group's generation."""
    given = 0.0
    for end in range(1, day.epochs):
        rows = held[end] - held[begun, every]
        excess = rows.sum() - memory_rows
        if excess <= 0:
            continue
        so_far = gains[begun, end, every]
        loss = gains[begun, -1, every] - so_far - gains[end, -1, every]
        order = np.lexsort((-rows, loss / np.maximum(rows, 1)))
        order = order[rows[order] > 0]
        leave = order[: int(np.searchsorted(rows[order].cumsum(), excess)) + 1]
        given += so_far[leave].sum()
        begun[leave] = end
    return int(given + gains[begun, -1, every].sum())


def generations(day: Day) -> F64:
    """(e + 1, e + 1, g): what a generation of the epochs a ... b - 1 gives in each group."""
    epochs, keys = day.epochs, len(day.group)
    counts = np.zeros((len(day.arrivals), epochs + 1, keys), dtype=np.int32)
    for stream, arrived in zip(counts, day.arrivals, strict=True):
        np.add.at(stream, (day.epoch_of + 1, arrived), 1)
    counts = counts.cumsum(axis=1, dtype=np.int32)
    first = np.searchsorted(day.group, np.arange(day.groups))
    # One more beginning, of generations without an epoch: so "from here to the end" has a place.
    gains = np.zeros((epochs + 1, epochs + 1, day.groups))
    for a in range(epochs):
        within = (counts[:, a + 1 :] - counts[:, a : a + 1]).astype(np.float64)
        gains[a, a + 1 :] = np.add.reduceat(within.prod(axis=0), first, axis=1)
    return gains


def _rows_by_epoch(day: Day) -> F64:
    """(e + 1, g) rows of each group that came before epoch i."""
    rows = np.zeros((day.epochs + 1, day.groups))
    for arrived in day.arrivals:
        np.add.at(rows, (day.epoch_of + 1, day.group[arrived]), 1)
    return rows.cumsum(axis=0)


def _schedules(gains: F64, came: F64, price: F64, keeps: int) -> tuple[float, F64]:
    """Every group's best cuts at these prices: (what they give net, (e + 1,) rows then held).

    A generation that begins before epoch a and is cut in epoch b - 1 pays for the ends of the
    epochs a ... b - 2. So does the last one: a cut in the day's last epoch costs no results.
    """
    epochs, groups = gains.shape[0] - 1, gains.shape[2]
    begins = np.arange(epochs + 1)
    best = np.zeros((epochs + 1, groups))
    start = np.zeros((epochs + 1, groups), dtype=np.int64)
    paid = np.zeros((epochs + 1, groups))
    """By a generation that began then and is still there."""
    for b in range(1, epochs + 1):
        last = b - 1
        paid[:last] += price[last] * (came[last] - came[np.maximum(begins[:last], last - keeps)])
        net = best[:b] + gains[:b, b] - paid[:b]
        start[b] = net.argmax(axis=0)
        best[b] = np.take_along_axis(net, start[b][None], axis=0)[0]
    in_memory = np.zeros(epochs + 1)
    at, every = np.full(groups, epochs), np.arange(groups)
    for end in range(epochs, 0, -1):
        # `at`: the end of the generation that holds epoch end - 1.
        begin = start[at, every]
        held = came[end] - came[np.maximum(begin, end - keeps), every]
        in_memory[end] = held[end < at].sum()
        at = np.where(begin == end - 1, begin, at)
    return float(best[epochs].sum()), in_memory
