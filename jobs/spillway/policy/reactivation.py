"""Which spilled generations come back to memory. Pure: statistics in, groups out.

TR-05-04 (4.2) and SIGMOD 2006 (4.1) leave what was spilled to cleanup. Here the newest generation
of a group comes back when it is worth its room: what it is expected to gain for each byte
(`spillway.policy.expected`) exceeds by `MARGIN` what the groups lose that must leave for it. What
has just come back is thus no next victim, and a small error in either estimate moves nothing.

| policy | comes back |
|---|---|
| `expected-gain` | (default) what gains most for each byte first, while it is worth its room |
| `random` | about half of all, drawn with the seed, whatever it is worth: for tests |
| `off` | nothing |
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

POLICIES = ("expected-gain", "random", "off")
DEFAULT = "expected-gain"
MARGIN = 2.0


@dataclass(frozen=True)
class Residents:
    """What each group has in memory, all (g,)."""

    bytes: I64
    loss: F64
    """Results that it gives up when it is spilled now."""
    leaving: Bool
    """It is spilled in any case."""


@dataclass(frozen=True)
class Candidates:
    """What each group may bring back, all (g,)."""

    bytes: I64
    """0: nothing."""
    gain: F64


def returning(
    policy: str,
    residents: Residents,
    candidates: Candidates,
    *,
    wanted_bytes: int,
    most_bytes: int,
    spare_bytes: int = 0,
    seed: int = 0,
) -> Bool:
    """Groups whose newest spilled generation comes back, bool (g,).

    They come until they are `wanted_bytes` together, and never more than `most_bytes`.
    `spare_bytes`: memory that nobody is expected to ask for until the session ends. Raises
    ValueError: unknown policy.
    """
    if policy not in POLICIES:
        raise ValueError(f"unknown policy {policy!r}: use one of {', '.join(POLICIES)}")
    found: Bool = np.zeros(len(candidates.bytes), dtype=np.bool_)
    size = candidates.bytes
    able = np.flatnonzero((size > 0) & (size <= most_bytes) & ~residents.leaving)
    if policy == "off" or not len(able):
        return found
    if policy == "random":
        able = able[np.random.default_rng((seed, 1)).random(len(able)) < 0.5]
        found[able[np.cumsum(size[able]) <= most_bytes]] = True
        return found
    value = candidates.gain[able] / size[able]
    order = np.argsort(-value, kind="stable")
    able, value = able[order], value[order]
    taken = np.cumsum(size[able])
    fits = (taken - size[able] < wanted_bytes) & (taken <= most_bytes)
    # Values fall and prices rise, so those that are worth it are the first ones.
    worth = (value > 0) & (value > MARGIN * _price(residents, taken - spare_bytes))
    found[able[fits & worth]] = True
    return found


def _price(residents: Residents, needed: I64) -> F64:
    """What the dearest byte costs of those that leave for `needed` bytes, (n,); infinite: there are
    not so many."""
    stays = np.flatnonzero((residents.bytes > 0) & ~residents.leaving)
    each = residents.loss[stays] / residents.bytes[stays]
    order = np.argsort(each, kind="stable")
    upto = np.cumsum(residents.bytes[stays][order])
    at = np.searchsorted(upto, needed)
    prices = np.append(each[order], np.inf)
    return np.where(needed > 0, prices[at], 0.0)
