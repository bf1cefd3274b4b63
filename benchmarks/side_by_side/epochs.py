"""Rates of epochs, the same way for every program. Pure.

An epoch's time is its whole period: from the end of the one before it (the first: from the
beginning of the run) to its own end. So what a program does between two epochs is counted, and
the periods add up to the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import Any

from spillway_schemas.journal import Claim, Epoch, Genesis


@dataclass(frozen=True)
class EpochRate:
    """One epoch of a run."""

    rows: int
    """Input rows of all topics."""
    end_s: float
    """Seconds from the beginning of the run to its end."""
    seconds: float
    """Its period."""
    handled: int | None = None
    """Rows that its joins took in, those of other joins too, and results; None where the program
    does not say."""

    @property
    def rows_per_s(self) -> float:
        """Input rows a second over its period."""
        return self.rows / self.seconds


def of_journal(entries: Sequence[Genesis | Claim | Epoch]) -> tuple[float, list[EpochRate]]:
    """Begin of the last term (seconds since 1970), and its epochs that read rows.

    An epoch ends when its entry is written. Raises ValueError for a journal without a claim.
    """
    claims = [at for at, entry in enumerate(entries) if isinstance(entry, Claim)]
    if not claims:
        raise ValueError("the journal has no claim: no stream ever ran")
    claim = entries[claims[-1]]
    assert isinstance(claim, Claim)
    begun_s = _seconds(claim.written_at)
    ends = [
        (_seconds(entry.written_at), sum(count.rows for count in entry.read), _handled(entry))
        for entry in entries[claims[-1] :]
        if isinstance(entry, Epoch)
    ]
    return begun_s, _rates(begun_s, [each for each in ends if each[1]])


def _handled(epoch: Epoch) -> int:
    return sum(sum(slot.rows_in.values()) + slot.results for slot in epoch.slots)


def of_progress(begun_s: float, progress: Iterable[Mapping[str, Any]]) -> list[EpochRate]:
    """Epochs of a Spark query from its progress reports, as `StreamingQueryProgress.json` has them.

    `begun_s`: when the query was started, seconds since 1970. A batch ends when its trigger does.
    """
    ends = [
        (_seconds(each["timestamp"]) + each["durationMs"]["triggerExecution"] / 1000, rows, None)
        for each in progress
        if (rows := int(each["numInputRows"]))
    ]
    return _rates(begun_s, sorted(ends))


def _rates(begun_s: float, ends: Sequence[tuple[float, int, int | None]]) -> list[EpochRate]:
    edges = [begun_s, *(at for at, *_ in ends)]
    periods = [max(b - a, 1e-3) for a, b in pairwise(edges)]
    return [
        EpochRate(rows, at - begun_s, period, handled)
        for (at, rows, handled), period in zip(ends, periods, strict=True)
    ]


def _seconds(rfc3339: str) -> float:
    return datetime.fromisoformat(rfc3339).timestamp()


def steadiness(
    epochs: Sequence[EpochRate], amount: Callable[[EpochRate], int | None] = lambda e: e.rows
) -> float | None:
    """Rate of the last quarter of the epochs over that of the warm second quarter.

    `amount`: what is counted of an epoch. None for fewer than 8 epochs, where a quarter would be a
    single one, and where the amount of one is not known. Epochs that found little to read are left
    out: the few rows that are left at the end would be a third of a quarter.
    """
    usual = median(e.rows for e in epochs) if epochs else 0.0
    epochs = [e for e in epochs if e.rows >= usual / 10]
    count = len(epochs)
    amounts = [found for e in epochs if (found := amount(e)) is not None]
    if count < 8 or len(amounts) < count:
        return None
    per_s = [
        sum(amounts[part]) / sum(e.seconds for e in epochs[part])
        for part in (slice(count // 4, count // 2), slice(count - count // 4, count))
    ]
    return per_s[1] / per_s[0]


FIRST, NEIGHBOURS = 3, 10


def spike(epochs: Sequence[EpochRate]) -> float | None:
    """The greatest time of an epoch over the median of its ten neighbours, five on each side.

    The first three are left out, for a program warms up in them, and so are epochs that found
    little to read. None for fewer epochs than have ten neighbours.
    """
    usual = median(e.rows for e in epochs) if epochs else 0.0
    periods = [e.seconds for e in epochs[FIRST:] if e.rows >= usual / 2]
    half = NEIGHBOURS // 2
    if len(periods) <= NEIGHBOURS:
        return None
    found = []
    for at, period in enumerate(periods):
        begin = min(max(at - half, 0), len(periods) - NEIGHBOURS - 1)
        around = periods[begin : begin + NEIGHBOURS + 1]
        around.remove(period)
        found.append(period / median(around))
    return max(found)


def dumped(epochs: Sequence[EpochRate]) -> list[dict[str, float | None]]:
    """For JSON."""
    return [
        {
            "rows": e.rows,
            "end_s": round(e.end_s, 3),
            "seconds": round(e.seconds, 3),
            "rows_per_s": round(e.rows_per_s),
            "handled": e.handled,
        }
        for e in epochs
    ]
