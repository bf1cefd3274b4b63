"""How many results there must be, from counts alone: no code of the engine. Pure.

A key's results are the product of its counts in the streams. Those that come at run time are the
same product within each generation: the rows of a group between two of its cuts, where a cut of
an epoch takes the rows of that epoch with it.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from benchmarks.lab.workload import I64, Day


class NotExact(Exception):
    """A run lost, doubled or misplaced results."""


def run_time(day: Day, cuts: Iterable[tuple[int, int]], until: int | None = None) -> I64:
    """(g,) results of each group that come at run time, given its cuts as (group, epoch).

    Counts the epochs before `until` (all of them when it is None).
    """
    epochs = day.epochs if until is None else until
    end = int(day.bounds[epochs])
    # One number for a group and an epoch; the epoch after the last is the one that seals.
    places = day.epochs + 1
    at = np.sort(np.array([g * places + e for g, e in set(cuts)], dtype=np.int64))
    keys = day.arrivals[:, :end].astype(np.int64)
    place = day.group[keys] * places + day.epoch_of[:end]
    generation = np.searchsorted(at, place, side="left")
    number = keys * (len(at) + 1) + generation
    distinct, inverse = np.unique(number, return_inverse=True)
    inverse = inverse.reshape(number.shape)
    counts = np.stack([np.bincount(row, minlength=len(distinct)) for row in inverse])
    results = np.zeros(day.groups, dtype=np.int64)
    np.add.at(results, day.group[distinct // (len(at) + 1)], counts.prod(axis=0))
    return results


def full(day: Day) -> I64:
    """(g,) results of the whole join, by group."""
    return run_time(day, ())
