"""The sweep against the definition: generated rows of several keys, all combinations tried."""

from __future__ import annotations

from collections import defaultdict
from itertools import product
from math import prod

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from spillway.verify.arithmetic import PRIMES
from spillway.verify.sweep import TimedRows, swept_without
from spillway_schemas.windows import Span

Row = tuple[int, int, int, int, bool]
"""Key, time, input, hash, and whether it is carried."""

SPANS = st.one_of(
    st.builds(Span.within, st.integers(2, 3), st.integers(0, 4)),
    st.lists(
        st.tuples(st.integers(-4, 4), st.integers(0, 3)).map(lambda b: (b[0], b[0] + b[1])),
        min_size=1,
        max_size=2,
    ).map(Span.around),
)


def joins(span: Span, rows: tuple[Row, ...]) -> bool:
    """By the words of the definition."""
    times = [time for _, time, _, _, _ in rows]
    if span.bands_us is None:
        return max(times) - min(times) <= span.width_us
    bands = span.bands_us[1:]
    return all(low <= t - times[0] <= high for t, (low, high) in zip(times[1:], bands, strict=True))


def sorted_rows(rows: list[Row]) -> tuple[TimedRows, npt.NDArray[np.bool_]]:
    table = np.array(sorted(rows), dtype=np.int64).reshape(-1, 5)
    key = np.unique(table[:, 0], return_inverse=True)[1]
    hashes = table[:, 3]
    timed = TimedRows(key, table[:, 1], table[:, 2], hashes % PRIMES[0], hashes % PRIMES[1])
    return timed, table[:, 4] == 1


@given(SPANS, st.data())
def test_the_sums_are_those_of_all_combinations(span: Span, data: st.DataObject) -> None:
    carried = st.booleans() if data.draw(st.booleans()) else st.just(False)
    far = data.draw(st.sampled_from((1, 10**15, 5 * 10**17)), label="how far apart times are")
    rows = data.draw(
        st.lists(
            st.tuples(
                st.integers(0, 3),
                st.integers(-6, 6).map(lambda t: t if t < 4 else t * far),
                st.integers(0, span.inputs - 1),
                st.integers(0, 2**40).map(lambda n: n * 0x9E3779B97F4A7C15 % 2**62),
                carried,
            ),
            max_size=14,
        )
    )
    expected = defaultdict(lambda: [0, 0, 0])
    for key in {row[0] for row in rows}:
        apart = [[r for r in rows if r[0] == key and r[2] == n] for n in range(span.inputs)]
        sums = expected[key]
        for combination in product(*apart):
            if joins(span, combination) and not all(row[4] for row in combination):
                sums[0] += 1
                for n, prime in enumerate(PRIMES):
                    sums[n + 1] += prod(row[3] % prime for row in combination)
    found = swept_without(span, *sorted_rows(rows))
    counts = [sums[0] for _, sums in sorted(expected.items())]
    assert found["c"].tolist() == found["d"].tolist() == found["f"].tolist() == counts
    for n, name in enumerate("ab"):
        weights = [sums[n + 1] % PRIMES[n] for _, sums in sorted(expected.items())]
        assert found[name].tolist() == weights
