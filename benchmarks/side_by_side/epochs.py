"""Rates of epochs, the same way for every program. Pure.

An epoch's time is its whole period: from the end of the one before it (the first: from the
beginning of the run) to its own end. So what a program does between two epochs is counted, and
the periods add up to the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
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
        (_seconds(entry.written_at), sum(count.rows for count in entry.read))
        for entry in entries[claims[-1] :]
        if isinstance(entry, Epoch)
    ]
    return begun_s, _rates(begun_s, [(at, rows) for at, rows in ends if rows])


def of_progress(begun_s: float, progress: Iterable[Mapping[str, Any]]) -> list[EpochRate]:
    """Epochs of a Spark query from its progress reports, as `StreamingQueryProgress.json` has them.

    `begun_s`: when the query was started, seconds since 1970. A batch ends when its trigger does.
    """
    ends = [
        (_seconds(each["timestamp"]) + each["durationMs"]["triggerExecution"] / 1000, rows)
        for each in progress
        if (rows := int(each["numInputRows"]))
    ]
    return _rates(begun_s, sorted(ends))


def _rates(begun_s: float, ends: Sequence[tuple[float, int]]) -> list[EpochRate]:
    edges = [begun_s, *(at for at, _ in ends)]
    periods = [max(b - a, 1e-3) for a, b in pairwise(edges)]
    return [
        EpochRate(rows, at - begun_s, period)
        for (at, rows), period in zip(ends, periods, strict=True)
    ]


def _seconds(rfc3339: str) -> float:
    return datetime.fromisoformat(rfc3339).timestamp()


def rate(epochs: Sequence[EpochRate]) -> float:
    """Input rows a second over some epochs."""
    return sum(e.rows for e in epochs) / sum(e.seconds for e in epochs)


def steadiness(epochs: Sequence[EpochRate]) -> float | None:
    """Rate of the last quarter of the epochs over that of the warm second quarter.

    None for fewer than 8 epochs, where a quarter would be a single one. Epochs that found little
    to read are left out: the few rows that are left at the end would be a third of a quarter.
    """
    usual = median(e.rows for e in epochs) if epochs else 0.0
    epochs = [e for e in epochs if e.rows >= usual / 10]
    count = len(epochs)
    if count < 8:
        return None
    second = epochs[count // 4 : count // 2]
    last = epochs[count - count // 4 :]
    return rate(last) / rate(second)


def dumped(epochs: Sequence[EpochRate]) -> list[dict[str, float]]:
    """For JSON."""
    return [
        {
            "rows": e.rows,
            "end_s": round(e.end_s, 3),
            "seconds": round(e.seconds, 3),
            "rows_per_s": round(e.rows_per_s),
        }
        for e in epochs
    ]


def loaded(text: str) -> list[EpochRate]:
    """The inverse of `json.dumps(dumped(epochs))`."""
    return [EpochRate(int(e["rows"]), e["end_s"], e["seconds"]) for e in json.loads(text)]
