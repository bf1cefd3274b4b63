"""What arrives for a windowed join: two streams by the paper's parameters. Pure; the same seed,
the same day.

Source: Chakraborty & Singh, Parallelizing Windowed Stream Joins in a Shared-Nothing Cluster,
section VI-A. Tuples of a stream arrive by a Poisson process. Their keys follow the b-model: of
the tuples of any range of the domain, one half of it gets the share b and the other 1 - b, down to
single keys. So a key that lies in the smaller half k times of L has b^(L - k) (1 - b)^k of all
tuples. Which half is the smaller one does not matter here, for a key's group is a prefix of its
hash.

The paper's domain is [0, 10^7], which is 2^23.25. Two rows have one key with the probability
(b^2 + (1 - b)^2)^L.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from benchmarks.lab.workload import F64, I64
from spillway.engine.groups import U64
from spillway.engine.join.hashing import xxhash64

STREAMS = 2
US = 1_000_000
DOMAIN_BITS = 23.25
"""L of the paper's domain."""


@dataclass(frozen=True)
class WindowWorkload:
    """A day's description, in the paper's numbers."""

    rate: float
    """Tuples per second and stream."""
    minutes: float = 20.0
    window_s: float = 600.0
    skew: float = 0.7
    """b of the b-model."""
    factor: float = 1 / 16
    """Of the tuples that arrive here."""
    seed: int = 1

    @property
    def bits(self) -> int:
        """L of the domain, such that a row finds as many partners here as in the paper, nearly: its
        window holds `factor` of the rows, so two of them have to meet so much more often."""
        each = np.log(self.skew**2 + (1 - self.skew) ** 2)
        return round(DOMAIN_BITS - float(np.log(self.factor) / each))


@dataclass(frozen=True)
class WindowDay:
    """What a workload came to, per stream its `n` rows in the order of arrival."""

    time_us: tuple[I64, ...]
    """(n,) since the day began, ascending."""
    keys: tuple[I64, ...]
    """(n,)."""
    hashes: tuple[U64, ...]
    """(n,) of the keys."""

    def between(self, stream: int, begin_s: float, end_s: float) -> slice:
        """The rows of a stream that arrive in [begin, end)."""
        at = np.searchsorted(self.time_us[stream], (round(begin_s * US), round(end_s * US)))
        return slice(*at.tolist())


def generate_window(workload: WindowWorkload) -> WindowDay:
    """Draw the day."""
    rng = np.random.default_rng(workload.seed)
    rate = workload.rate * workload.factor
    end_s = workload.minutes * 60
    times, keys = [], []
    for _ in range(STREAMS):
        times.append(_arrivals(rng, rate, end_s))
        keys.append(_keys(rng, len(times[-1]), workload.bits, workload.skew))
    hashes = tuple(xxhash64([pa.array(each)]) for each in keys)
    return WindowDay(tuple(times), tuple(keys), hashes)


def _arrivals(rng: np.random.Generator, rate: float, end_s: float) -> I64:
    """(n,) us of a Poisson process's arrivals before the end."""
    about = rate * end_s
    gaps: F64 = rng.exponential(1 / rate, size=int(about + 10 * about**0.5 + 10))
    times: I64 = (gaps.cumsum() * US).astype(np.int64)
    return times[times < round(end_s * US)]


def _keys(rng: np.random.Generator, rows: int, bits: int, skew: float) -> I64:
    """(n,) keys of a domain of 2^bits: each bit is one of the smaller turns or not."""
    keys: I64 = np.zeros(rows, dtype=np.int64)
    for bit in range(bits):
        keys |= (rng.random(rows) >= skew).astype(np.int64) << bit
    return keys
