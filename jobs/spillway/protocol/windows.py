"""Windows: how far time has come, which rows are late, which have expired, and which of those must
be kept. Pure.

Model: a row has a time; one that was joined from several has [least, greatest] of its parts. A
*span* says which times join: all within a width of each other (`Span.within`), or each of them in a
band around the first input's (`Span.around`). `Progress` is what the journal knows of the time of a
session: the greatest of each partition, and the watermark.

    watermark(b)   the least of the partitions' greatest times up to epoch b, less the lateness. It
                   never goes back. There is none before every partition has had a row or is idle
    late in b      time < watermark(b - 1): the row is rejected, and the proof leaves it out, too
    ahead          time > Kafka time of the row + bound: rejected, or one wrong clock would make the
                   rows of all others late
    expired in b   least + horizon < watermark(b - 1): no row that still comes joins with it. It
                   leaves memory before the rows of b are joined
    needed         an expired row that an earlier generation may have a partner of: it goes into the
                   spill of its own generation. The others are over

Why a partition, not an input: Kafka's partitions are read at unlike speeds after a delay. By the
greatest time of an input, rows of its slower partitions would be late.

Why the epoch before: what is late must not depend on what shares a row's epoch, and a step must
know all that it evicts by before it begins.

Trees: each join has its own span, and all have one watermark. A result that is still to come has a
row that is still to come, so its greatest time is not below the watermark, whatever joins lie
between: that is why a row expires by its own join's span alone. What cleanup finds for a join below
is another matter: see `Past`.

Invariant: all of this follows from the journal and the row alone. So a repeated attempt, a restored
slot, cleanup and the proof judge alike; and each combination of rows that are neither late nor
ahead comes out once, at run time where all its rows are in memory, else in cleanup.

Chakraborty & Singh, "Parallelizing Windowed Stream Joins in a Shared-Nothing Cluster", leaves state
that does not fit in memory to future work. These rules are ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

Partition = tuple[str, int]
"""A topic and the number of one of its partitions."""

BEGINNING_MS = -(1 << 62)
"""A watermark that nothing is below."""


@dataclass(frozen=True)
class Span:
    """Which times join."""

    inputs: int
    width_ms: int
    """How far apart two rows of one result can be."""
    bands_ms: tuple[tuple[int, int], ...] | None = None
    """Per input, the least and the most that its time is after the first input's; None: all lie
    within the width of each other."""

    @classmethod
    def within(cls, inputs: int, width_ms: int) -> Span:
        """The earliest and the latest are at most a width apart. Raises ValueError below 0."""
        if width_ms < 0:
            raise ValueError(f"a window is 0 ms or more, not {width_ms}")
        return cls(inputs, width_ms)

    @classmethod
    def around(cls, bands_ms: Sequence[tuple[int, int]]) -> Span:
        """The times of each further input lie in [low, high] around the first's, both included.

        Raises ValueError for a band that ends before it begins.
        """
        for low, high in bands_ms:
            if low > high:
                raise ValueError(f"a band from {low} to {high} ms holds nothing")
        every = ((0, 0), *bands_ms)
        width_ms = max(high for _, high in every) - min(low for low, _ in every)
        return cls(len(every), width_ms, every)

    @property
    def horizons_ms(self) -> tuple[int, ...]:
        """Per input, how much later than its row another row of the same result can be: a band may
        make that less than 0."""
        if self.bands_ms is None:
            return (self.width_ms,) * self.inputs
        return tuple(
            max(high for k, (_, high) in enumerate(self.bands_ms) if k != i) - low
            for i, (low, _) in enumerate(self.bands_ms)
        )

    def joins(self, least_ms: I64, greatest_ms: I64) -> Bool:
        """Which combinations of rows join, bool (n,), by the times of each, int64 (n, inputs).

        All parts of a row that was joined from several must lie within the width, or in the band
        around all parts of the first input's.
        """
        if self.bands_ms is None:
            found: Bool = greatest_ms.max(axis=1) - least_ms.min(axis=1) <= self.width_ms
            return found
        low, high = np.array(self.bands_ms[1:], dtype=np.int64).reshape(-1, 2).T
        after: Bool = least_ms[:, 1:] - greatest_ms[:, :1] >= low
        before: Bool = greatest_ms[:, 1:] - least_ms[:, :1] <= high
        every: Bool = np.logical_and.reduce(after & before, axis=1)
        return every


@dataclass(frozen=True)
class Heard:
    """What a partition has brought. Times are ms since 1970."""

    clock_ms: int
    """The stream's clock, the greatest Kafka time read, when its newest row came; before the first,
    when the session began or the partition was found."""
    greatest_ms: int | None = None
    """The greatest time of its rows; None: it has had none."""


@dataclass(frozen=True)
class Progress:
    """How far the time of a session has come."""

    heard: Mapping[Partition, Heard]
    watermark_ms: int = BEGINNING_MS

    @classmethod
    def begin(cls, partitions: Iterable[Partition], clock_ms: int) -> Progress:
        """Before the first row."""
        return cls(dict.fromkeys(partitions, Heard(clock_ms)))

    def idle(self, clock_ms: int, idle_after_ms: int | None) -> frozenset[Partition]:
        """The partitions that are not waited for: without a row for longer than that; None: all are
        waited for."""
        if idle_after_ms is None:
            return frozenset()
        return frozenset(
            each for each, heard in self.heard.items() if clock_ms - heard.clock_ms > idle_after_ms
        )

    def after(
        self,
        came_ms: Mapping[Partition, int],
        clock_ms: int,
        *,
        lateness_ms: int = 0,
        idle_after_ms: int | None = None,
    ) -> Progress:
        """The progress after an epoch.

        Args:
            came_ms: the greatest time of each partition that brought rows. Those that are late
                count, they are signs of life; those that are ahead do not.
            clock_ms: the stream's clock at the epoch's end; it never goes back.
            lateness_ms: how long rows are waited for.
            idle_after_ms: see `idle`.
        """
        heard = dict(self.heard)
        for each, time_ms in came_ms.items():
            known = heard[each].greatest_ms if each in heard else None
            heard[each] = Heard(clock_ms, time_ms if known is None else max(known, time_ms))
        moved = Progress(heard, self.watermark_ms)
        idle = moved.idle(clock_ms, idle_after_ms)
        waited_for = [each.greatest_ms for name, each in heard.items() if name not in idle]
        known_ms = [time_ms for time_ms in waited_for if time_ms is not None]
        if not known_ms or len(known_ms) < len(waited_for):
            return moved
        return Progress(heard, max(self.watermark_ms, min(known_ms) - lateness_ms))


@dataclass(frozen=True)
class Past:
    """The least and the greatest time of a generation that is over."""

    least_ms: int
    greatest_ms: int


def late(time_ms: I64, watermark_ms: int) -> Bool:
    """Rows that came too late, bool (n,). `watermark_ms`: of the epoch before theirs."""
    found: Bool = time_ms < watermark_ms
    return found


def ahead(time_ms: I64, kafka_ms: I64, bound_ms: int) -> Bool:
    """Rows, bool (n,), whose time is further in the future than a clock may be wrong.

    By each row's own Kafka time, int64 (n,), so that it does not matter when it is read.
    """
    found: Bool = time_ms - kafka_ms > bound_ms
    return found


def expired(least_ms: I64, horizon_ms: int, watermark_ms: int) -> Bool:
    """Rows of one input, bool (n,), that no row joins with that is still to come.

    `watermark_ms`: of the epoch before the one that begins.
    """
    found: Bool = least_ms + horizon_ms < watermark_ms
    return found


def needed(least_ms: I64, greatest_ms: I64, pasts: Iterable[Past], width_ms: int) -> Bool:
    """Expired rows, bool (n,), that cleanup may join with rows of earlier generations.

    Args:
        pasts: the generations before the rows' own in any part of their group, and all that joins
            below have had so far, whatever their hashes: what cleanup finds for those becomes rows
            of this join. (A generation that ends later brings no partners: what cleanup makes of it
            has a row that came after this one expired.)
        width_ms: of the join of these rows, also for what joins below have had: all parts of a
            result lie within it.
    """
    found: Bool = np.zeros(len(least_ms), dtype=np.bool_)
    for each in pasts:
        found |= (greatest_ms >= each.least_ms - width_ms) & (
            least_ms <= each.greatest_ms + width_ms
        )
    return found
