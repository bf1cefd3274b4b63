"""The sums of one windowed join without its results: the sweep. Pure (numpy).

Model: rows of one key in the order of their times. Where all inputs must lie within a width, each
combination has exactly one *earliest* row: the first by (time, number of the input). Its partners
of another input are those of the times up to the width later; of an input with a smaller number
not those of the same time, or they would be the earliest. Where inputs lie in bands, each
combination has one row of the first input, and its partners lie in the bands around it. Either way
the partners of a row are a stretch of the order, so the sum over all combinations is a sum over
rows of products of differences of running sums.

Cost: the sort, and one search a row and input; linear in rows, and independent of the results.
Nothing here is the engine's: `Span` gives the bounds, never its own verdict.

All numbers are residues as in `fold`: of the number of results modulo both primes (`c`, `d`), as a
double (`f`), and sums of weights (`a`, `b`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spillway.verify.arithmetic import PRIMES
from spillway_schemas.windows import Span

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

MOST_PLACE = 1 << 62


@dataclass(frozen=True)
class TimedRows:
    """Rows (n,), int64 all, sorted by key, then time."""

    key: I64
    """The number of the key: 0, 1, ..., each occurs."""
    time_us: I64
    input: I64
    a: I64
    b: I64
    """Residues of the row's hash modulo each prime."""

    def of(self, begin: int, end: int) -> TimedRows:
        """Rows [begin, end), their keys from 0 on."""
        rows = slice(begin, end)
        return TimedRows(
            self.key[rows] - self.key[begin],
            self.time_us[rows],
            self.input[rows],
            self.a[rows],
            self.b[rows],
        )


def swept(span: Span, rows: TimedRows) -> dict[str, I64 | F64]:
    """Per key (k,) the sums `c`, `d`, `f`, `a`, `b` over the results that it should have."""
    names = ("c", "d", "f", "a", "b")
    parts: dict[str, list[I64 | F64]] = {name: [] for name in names}
    keys = int(rows.key[-1]) + 1 if len(rows.key) else 0
    starts = np.searchsorted(rows.key, np.arange(keys + 1))
    first = 0
    while first < keys:
        last = _until(span, rows, starts, first)
        for name, part in _swept(span, rows.of(int(starts[first]), int(starts[last]))).items():
            parts[name].append(part)
        first = last
    empty = {name: np.zeros(0, np.float64 if name == "f" else np.int64) for name in names}
    return {name: np.concatenate([empty[name], *parts[name]]) for name in names}


def swept_without(span: Span, rows: TimedRows, carried: Mask) -> dict[str, I64 | F64]:
    """The same without the results of carried rows alone, bool (n,): an earlier session has those.

    Per key in which carried rows are, the sums over them are taken from the sums over all.
    """
    found = swept(span, rows)
    if not carried.any():
        return found
    keys, number = np.unique(rows.key[carried], return_inverse=True)
    alone = TimedRows(
        number,
        *(column[carried] for column in (rows.time_us, rows.input, rows.a, rows.b)),
    )
    for name, sums in swept(span, alone).items():
        found[name][keys] -= sums
    for name, prime in (("c", 0), ("d", 1), ("a", 0), ("b", 1)):
        found[name] %= PRIMES[prime]
    return found


def _reach(span: Span) -> tuple[int, int]:
    """How far before and after a row its partners may be, at most."""
    if span.bands_us is None:
        return 0, span.width_us
    return (
        max(0, -min(low for low, _ in span.bands_us)),
        max(0, max(high for _, high in span.bands_us)),
    )


def _until(span: Span, rows: TimedRows, starts: I64, first: int) -> int:
    """Keys from `first` on whose places fit into 64 bits: one at least."""
    lasts = rows.time_us[starts[first + 1 :] - 1] - rows.time_us[starts[first:-1]]
    widest = np.maximum.accumulate(lasts.astype(np.float64)) + sum(_reach(span)) + 2
    fits = widest * np.arange(1, len(widest) + 1) < MOST_PLACE
    return first + max(1, int(np.argmin(fits)) if not fits.all() else len(fits))


def _swept(span: Span, rows: TimedRows) -> dict[str, I64 | F64]:
    keys = int(rows.key[-1]) + 1
    before, after = _reach(span)
    starts = np.searchsorted(rows.key, np.arange(keys + 1))
    since = rows.time_us - rows.time_us[starts[:-1]][rows.key]
    # One number says key and time; what lies a reach beyond a key's rows is none of another's.
    place = rows.key * (int(since.max()) + before + after + 2) + since + before
    running = {
        (name, input_): np.concatenate([[0], np.cumsum(np.where(rows.input == input_, of, 0))])
        for input_ in range(span.inputs)
        for name, of in (("n", 1), ("a", rows.a), ("b", rows.b))
    }
    found: dict[str, I64 | F64] = {name: np.zeros(keys, np.int64) for name in "cdab"}
    found["f"] = np.zeros(keys)
    for first in range(span.inputs if span.bands_us is None else 1):
        at = np.flatnonzero(rows.input == first)
        weights = {"a": rows.a[at], "b": rows.b[at]}
        products: dict[str, I64 | F64] = {
            "c": np.ones(len(at), np.int64),
            "d": np.ones(len(at), np.int64),
            "f": np.ones(len(at)),
            **weights,
        }
        for other in range(span.inputs):
            if other == first:
                continue
            low, high = _bounds(span, first, other)
            begin = np.searchsorted(place, place[at] + low, side="left")
            end = np.maximum(begin, np.searchsorted(place, place[at] + high, side="right"))
            for name, of, prime in (
                ("c", "n", PRIMES[0]),
                ("d", "n", PRIMES[1]),
                ("a", "a", PRIMES[0]),
                ("b", "b", PRIMES[1]),
            ):
                sums = running[of, other]
                products[name] = products[name] * ((sums[end] - sums[begin]) % prime) % prime
            counts = running["n", other]
            products["f"] = products["f"] * (counts[end] - counts[begin])
        for name, values in products.items():
            np.add.at(found[name], rows.key[at], values)
    for name, prime in (("c", 0), ("d", 1), ("a", 0), ("b", 1)):
        found[name] = found[name] % PRIMES[prime]
    return found


def _bounds(span: Span, first: int, other: int) -> tuple[int, int]:
    """Where partners of another input begin and end around a row, both included."""
    if span.bands_us is None:
        return (0 if other > first else 1), span.width_us
    return span.bands_us[other]
