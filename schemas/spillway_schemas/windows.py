"""Windows: how far time has come, which rows are late, which have expired, and which of those must
be kept. Pure.

Model: a row has a time, in us since 1970; one that was joined from several has [least, greatest] of
its parts. A *span* says which times join: all within a width of each other (`Span.within`), or each
of them in a band around the first input's (`Span.around`). `Progress` is what the journal knows of
the time of a session: the greatest of each partition, and the watermark.

    watermark(b)   the least of the partitions' greatest times up to epoch b, less the lateness. It
                   never goes back. There is none before every partition has had a row or is idle
    late in b      time < watermark(b - 1): the row is rejected, and the proof leaves it out, too
    ahead          time > Kafka time of the row + bound: rejected, or one wrong clock would make the
                   rows of all others late
    expired in b   least + horizon < watermark(b - 1): no row that still comes joins with it. It
                   leaves memory before the rows of b are joined
    needed         an expired row that an earlier generation may have a partner of: it goes into the
                   spill of its own generation. The others are over
    slice          rows whose least times lie in one stretch of time: they expire together, with the
                   last of it

Why a partition, not an input: Kafka's partitions are read at unlike speeds after a delay. By the
greatest time of an input, rows of its slower partitions would be late.

Why the epoch before: what is late must not depend on what shares a row's epoch, and a step must
know all that it evicts by before it begins.

Trees: each join has its own span, and all have one watermark. A result that is still to come has a
row that is still to come, so its greatest time is not below the watermark, whatever joins lie
between: that is why a row expires by its own join's span alone. What cleanup finds for a join below
is another matter: see `needed`.

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

from spillway_schemas.durations import duration_us

I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

Partition = tuple[str, int]
"""A topic and the number of one of its partitions."""

BEGINNING_US = -(1 << 62)
"""A watermark that nothing is below."""

MOST_KAFKA_MS = (1 << 62) // 1000
"""Times between this and its negative are microseconds of 64 bits, and so is their distance from a
row's time."""

SLICES = 4
"""Slices of state in a window of 40 s or more."""
LEAST_SLICE_US = 10_000_000
"""The shortest slice, us: each is files of its own. Memory holds so much more at most."""

AHEAD_US = 5 * 60 * 1_000_000
"""How much a row's time may be ahead of Kafka's where a query does not say it."""


def band_us(text: str) -> tuple[int, int]:
    """`"-5 seconds .. 1 minute"` as the least and the most. Raises ValueError."""
    low, dots, high = text.partition("..")
    if not dots:
        raise ValueError(f"{text!r} is not a band; write for example '-5 seconds .. 1 minute'")
    found = duration_us(low, signed=True), duration_us(high, signed=True)
    if found[0] > found[1]:
        raise ValueError(f"the band {text!r} ends before it begins")
    return found


@dataclass(frozen=True)
class Span:
    """Which times join."""

    inputs: int
    width_us: int
    """How far apart two rows of one result can be."""
    bands_us: tuple[tuple[int, int], ...] | None = None
    """Per input, the least and the most that its time is after the first input's; None: all lie
    within the width of each other."""

    @classmethod
    def within(cls, inputs: int, width_us: int) -> Span:
        """The earliest and the latest are at most a width apart. Raises ValueError below 0."""
        if width_us < 0:
            raise ValueError(f"a window is 0 us or more, not {width_us}")
        return cls(inputs, width_us)

    @classmethod
    def around(cls, bands_us: Sequence[tuple[int, int]]) -> Span:
        """The times of each further input lie in [low, high] around the first's, both included.

        Raises ValueError for a band that ends before it begins.
        """
        for low, high in bands_us:
            if low > high:
                raise ValueError(f"a band from {low} to {high} us holds nothing")
        every = ((0, 0), *bands_us)
        width_us = max(high for _, high in every) - min(low for low, _ in every)
        return cls(len(every), width_us, every)

    @property
    def horizons_us(self) -> tuple[int, ...]:
        """Per input, how much later than its row another row of the same result can be: a band may
        make that less than 0."""
        if self.bands_us is None:
            return (self.width_us,) * self.inputs
        return tuple(
            max(high for k, (_, high) in enumerate(self.bands_us) if k != i) - low
            for i, (low, _) in enumerate(self.bands_us)
        )

    def joins(self, least_us: Sequence[I64], greatest_us: Sequence[I64]) -> Bool:
        """Which of n combinations of rows join, bool (n,), by the times of each input, int64 (n,).

        All parts of a row that was joined from several must lie within the width, or in the band
        around all parts of the first input's.
        """
        if self.bands_us is None:
            apart = np.maximum.reduce(greatest_us) - np.minimum.reduce(least_us)
            within: Bool = apart <= self.width_us
            return within
        every: Bool = np.ones(len(least_us[0]), dtype=np.bool_)
        for (low, high), least, greatest in zip(
            self.bands_us[1:], least_us[1:], greatest_us[1:], strict=True
        ):
            every &= (least - greatest_us[0] >= low) & (greatest - least_us[0] <= high)
        return every


@dataclass(frozen=True)
class Heard:
    """What a partition has brought."""

    clock_ms: int
    """The stream's clock, the greatest Kafka time read, when it last brought a row; before its
    first, when waiting began."""
    greatest_us: int | None = None
    """The greatest time of its rows; None: it has had none."""


@dataclass(frozen=True)
class Progress:
    """How far the time of a session has come."""

    heard: Mapping[Partition, Heard]
    watermark_us: int = BEGINNING_US

    @classmethod
    def begin(cls, partitions: Iterable[Partition]) -> Progress:
        """Before the first row."""
        return cls(dict.fromkeys(partitions, Heard(0)))

    @property
    def begun(self) -> bool:
        """Whether there has been a row."""
        return any(heard.greatest_us is not None for heard in self.heard.values())

    def idle(self, clock_ms: int, idle_after_ms: int | None) -> frozenset[Partition]:
        """The partitions that are not waited for: without a row for longer than that; None: all are
        waited for."""
        if idle_after_ms is None or not self.begun:
            return frozenset()
        return frozenset(
            each for each, heard in self.heard.items() if clock_ms - heard.clock_ms > idle_after_ms
        )

    def after(
        self,
        came_us: Mapping[Partition, int],
        clock_ms: int,
        *,
        lateness_us: int = 0,
        idle_after_ms: int | None = None,
        alive: Iterable[Partition] = (),
    ) -> Progress:
        """The progress after an epoch.

        Args:
            came_us: the greatest time of each partition that brought rows. Those that are late
                count, they are signs of life; those that are ahead do not.
            clock_ms: the stream's clock at the epoch's end; it never goes back.
            lateness_us: how long rows are waited for.
            idle_after_ms: see `idle`. Before the session's first row nobody waits.
            alive: partitions that brought rows of the session before.
        """
        heard = dict(self.heard)
        if not self.begun:
            heard = dict.fromkeys(heard, Heard(clock_ms))
        for each in alive:
            heard[each] = Heard(clock_ms, heard[each].greatest_us if each in heard else None)
        for each, time_us in came_us.items():
            known = heard[each].greatest_us if each in heard else None
            heard[each] = Heard(clock_ms, time_us if known is None else max(known, time_us))
        moved = Progress(heard, self.watermark_us)
        idle = moved.idle(clock_ms, idle_after_ms)
        waited_for = [each.greatest_us for name, each in heard.items() if name not in idle]
        known_us = [time_us for time_us in waited_for if time_us is not None]
        if not known_us or len(known_us) < len(waited_for):
            return moved
        return Progress(heard, max(self.watermark_us, min(known_us) - lateness_us))


@dataclass(frozen=True)
class Judging:
    """The watermarks by which the rows of a topic partition are judged: those from offset
    `offsets[i]` on by `watermarks_us[i]`, both int64 (k,), k >= 1, offsets ascending."""

    offsets: I64
    watermarks_us: I64

    @classmethod
    def by_epochs(cls, epochs: Iterable[tuple[int, int]]) -> Judging:
        """Rows of many epochs. `epochs`: per epoch of the session, in order, the partition's end
        and the watermark after it."""
        offsets, watermarks = [0], [BEGINNING_US]
        for end, watermark_us in epochs:
            if watermark_us == watermarks[-1]:
                continue
            if end == offsets[-1]:
                watermarks[-1] = watermark_us
            else:
                offsets.append(end)
                watermarks.append(watermark_us)
        return cls(np.array(offsets, np.int64), np.array(watermarks, np.int64))

    def of(self, offsets: I64) -> I64:
        """The watermark of each row's epoch before, int64 (n,)."""
        at = np.searchsorted(self.offsets, offsets, side="right") - 1
        found: I64 = self.watermarks_us[np.maximum(at, 0)]
        return found


def late(time_us: I64, watermark_us: int | I64) -> Bool:
    """Rows that came too late, bool (n,). `watermark_us`: of the epoch before theirs."""
    found: Bool = time_us < watermark_us
    return found


def ahead(time_us: I64, kafka_ms: I64, bound_us: int) -> Bool:
    """Rows, bool (n,), whose time is further in the future than a clock may be wrong.

    By each row's own Kafka time, int64 (n,), so that it does not matter when it is read.
    """
    found: Bool = early_us(time_us, kafka_ms) > bound_us
    return found


def early_us(time_us: I64, kafka_ms: I64) -> I64:
    """How far each row's time is ahead of its Kafka time, int64 (n,).

    Whoever produces dates records as they like: a Kafka time that is 146,000 years away is taken
    for one of then. Times of rows are of the years 1 to 9999.
    """
    found: I64 = time_us - np.clip(kafka_ms, -MOST_KAFKA_MS, MOST_KAFKA_MS) * 1000
    return found


def expired(least_us: I64 | int, horizon_us: int, watermark_us: int) -> Bool | bool:
    """Rows of one input, bool (n,), that no row joins with that is still to come.

    `watermark_us`: of the epoch before the one that begins.
    """
    return least_us + horizon_us < watermark_us


def slice_us(span: Span) -> int:
    """How much time a slice of a join's state has: what has expired leaves memory by slices.

    A quarter of the window: memory holds that much more than it must, in few slices.
    """
    return max(span.width_us // SLICES, LEAST_SLICE_US)


def swing(spans: Iterable[Span | None]) -> float:
    """What memory holds just after a slice has left it, of what it held just before: the least of
    any join. 1 where none has a window."""
    widths = [(span.width_us, slice_us(span)) for span in spans if span is not None]
    return min((width / (width + slice_) for width, slice_ in widths), default=1.0)


def last_us(slice_: int, slice_us: int) -> int:
    """The last time in a slice: a slice has expired when this has."""
    return (slice_ + 1) * slice_us - 1


def needed(least_us: I64, until_us: I64 | int, width_us: int) -> Bool:
    """Expired rows, bool (n,), that cleanup may join with rows of earlier generations.

    Args:
        until_us: the greatest time of what earlier generations of any part of the row's group took
            out of memory, and of all that joins below have spilled, whatever their hashes: what
            cleanup finds for those becomes rows of this join. `BEGINNING_US`: nothing. (Of what
            left memory before its generation ended no time is asked: no later row joins with it, so
            each missing result has a row that was in memory when its generation ended.)
        width_us: of the join of these rows, also for what joins below have spilled: all parts of a
            result lie within it.
    """
    found: Bool = least_us <= until_us + width_us
    return found
