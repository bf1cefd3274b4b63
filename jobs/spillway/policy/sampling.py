"""What slots did in some epochs, and the figures that policies and people want of it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from pydantic import BaseModel

from spillway.policy.view import F64, I64, Bool, occupancy, output_rate
from spillway_schemas.journal import EpochFacts

FULL = 0.95
"""What is over this part of the limit was cut off by it. (In old entries Spark shared it out
between topic partitions, and rounded down.)"""


def was_cut_off(limit_rows: int, rows: int) -> bool:
    """Whether an epoch of so many rows was cut off by its limit; 0: it had none."""
    return 0 < FULL * limit_rows <= rows


class SlotWork(BaseModel):
    """What one slot did in an epoch."""

    busy_s: float
    results: int
    skew: float


class Work(BaseModel):
    """What the slots did in an epoch."""

    started_ms: int
    ended_ms: int
    rows: int
    limit_rows: int = 0
    """That the epoch might read at most; 0: not known."""
    slots: dict[int, SlotWork]


def work_of(entry: EpochFacts) -> Work:
    """What the slots did in an epoch."""
    return Work(
        started_ms=ms(entry.started_at),
        ended_ms=ms(entry.written_at),
        rows=sum(part.rows for part in entry.read),
        limit_rows=entry.limit_rows,
        slots={
            each.slot: SlotWork(busy_s=each.busy_s, results=each.results, skew=each.skew)
            for each in entry.slots
        },
    )


def ms(text: str) -> int:
    """RFC 3339 as ms since 1970."""
    return round(datetime.fromisoformat(text).timestamp() * 1000)


@dataclass(frozen=True)
class Sample:
    """Some epochs of the slots; arrays (s,), or (e, s) by epoch."""

    span_s: float
    """From the beginning of the first to the end of the last."""
    busy_s: F64
    """(e, s)."""
    full: Bool
    """(e,) whether the epoch read as many rows as it might: more were waiting."""
    results: I64
    groups: I64
    """That each slot has, with or without rows."""
    skew: F64
    """The largest group's share of the work, on average."""

    @property
    def idle_s(self) -> F64:
        """(s,) what is left of the span."""
        left: F64 = np.maximum(self.span_s - self.busy_s.sum(axis=0), 0.0)
        return left

    @property
    def output_rate(self) -> F64:
        """(s,) of the sample: see `spillway.policy.view.output_rate`."""
        return output_rate(self.results, self.groups)

    def occupancy(self, interval_s: float) -> F64:
        """(s,) of the slots' buffers: see `spillway.policy.view.occupancy`."""
        return occupancy(self.busy_s, interval_s, self.full)


def owned(groups: Iterable[tuple[object, int]], slots: int) -> list[int]:
    """How many groups each slot has, from slot 0 on. `groups`: each with its slot."""
    counts = Counter(slot for _, slot in groups)
    return [counts[slot] for slot in range(slots)]


def sample_of(works: Sequence[Work], groups: Sequence[int]) -> Sample:
    """The sample of some epochs. `groups`: how many each slot has, from slot 0 on."""
    slots = len(groups)
    none = SlotWork(busy_s=0.0, results=0, skew=0.0)
    work = [[each.slots.get(slot, none) for slot in range(slots)] for each in works]

    def of(what: str) -> F64:
        values = [[getattr(each, what) for each in row] for row in work]
        return np.array(values, dtype=np.float64).reshape(len(works), slots)

    return Sample(
        span_s=(works[-1].ended_ms - works[0].started_ms) / 1000 if works else 0.0,
        busy_s=of("busy_s"),
        full=np.array([was_cut_off(e.limit_rows, e.rows) for e in works], dtype=np.bool_),
        results=of("results").sum(axis=0).astype(np.int64),
        groups=np.array(groups, dtype=np.int64),
        skew=of("skew").mean(axis=0) if works else np.zeros(slots),
    )


@dataclass(frozen=True)
class SlotFigures:
    """One slot's part of a sample."""

    busy_s: float
    idle_s: float
    occupancy: float
    output_rate: float
    skew: float


def slot_figures(
    works: Iterable[Work], groups: Sequence[int], interval_s: float
) -> list[SlotFigures]:
    """Each slot's figures over some epochs; none when there are none.

    `groups`: how many each slot has. `interval_s`: the time between the beginnings of two epochs,
    as it is set.
    """
    taken = list(works)
    if not taken:
        return []
    found = sample_of(taken, groups)
    columns = (
        found.busy_s.sum(axis=0),
        found.idle_s,
        found.occupancy(interval_s),
        found.output_rate,
        found.skew,
    )
    return [SlotFigures(*row) for row in zip(*(c.tolist() for c in columns), strict=True)]
