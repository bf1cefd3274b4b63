"""What a windowed join must give and hold, from keys and times alone: no code of the engine. Pure.

A result is made of the later of its two rows and one of the other stream's rows that have the same
key and came within the window before it. So a key's rows are swept in the order of time, and a row
gives as many results as lie between two places in the other stream's rows.

Which rows they are is told by a sum: each row has a number drawn at random, a result weighs the
product of its rows' numbers, and weights are summed modulo 2^64. What a row's results weigh is its
number times a difference of running sums, so no result is made here.

Rows are held by slices, a quarter of the window each: a slice leaves when the window has passed its
end, by the watermark of the epoch before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.lab.window_workload import STREAMS, US, WindowDay
from benchmarks.lab.workload import I64

U64 = npt.NDArray[np.uint64]
PLACES = 31
"""Bits that a time of the day has, in us: half an hour."""


@dataclass(frozen=True)
class Given:
    """What each row gives as the later one of its results, per stream."""

    results: tuple[I64, ...]
    """(n,) how many."""
    weight: tuple[U64, ...]
    """(n,) what they weigh."""


def numbers(day: WindowDay) -> tuple[U64, ...]:
    """Per stream, (n,) the numbers of its rows."""
    rng = np.random.default_rng(7)
    top = np.iinfo(np.uint64).max
    return tuple(rng.integers(0, top, len(k), np.uint64, endpoint=True) for k in day.keys)


def given(day: WindowDay, window_s: float, numbers_: Sequence[U64]) -> Given:
    """What every row gives. Of two rows of one time the second stream's is the later one."""
    width = round(window_s * US)
    results, weight = [], []
    for stream in range(STREAMS):
        other = 1 - stream
        place = (day.keys[other] << PLACES) + day.time_us[other]
        order = np.argsort(place, kind="stable")
        place = place[order]
        running = np.append(np.uint64(0), np.cumsum(numbers_[other][order], dtype=np.uint64))
        begin, time_us = day.keys[stream] << PLACES, day.time_us[stream]
        first = np.searchsorted(place, begin + np.maximum(time_us - width, 0), side="left")
        last = np.searchsorted(place, begin + time_us, side="right" if stream else "left")
        results.append((last - first).astype(np.int64))
        weight.append(numbers_[stream] * (running[last] - running[first]))
    return Given(tuple(results), tuple(weight))


def first_held(day: WindowDay, window_s: float, begins_s: Sequence[float]) -> I64:
    """(e, streams) the first row of each stream that memory has while an epoch is joined, of epochs
    by when they begin; all rows after it are there, too."""
    size = max(round(window_s * US) // 4, 10 * US)
    held: I64 = np.zeros((len(begins_s), STREAMS), dtype=np.int64)
    for epoch, before_s in enumerate(begins_s):
        newest = [day.time_us[s][day.between(s, 0, before_s)] for s in range(STREAMS)]
        if any(not len(times) for times in newest):
            continue
        watermark = min(int(times[-1]) for times in newest)
        # A slice's last time is one us before the next one's first.
        live = max((watermark - round(window_s * US)) // size, 0) * size
        held[epoch] = [np.searchsorted(day.time_us[s], live) for s in range(STREAMS)]
    return held
