"""Which groups a full slot spills first. Pure: statistics in, an order out.

A policy only suggests an order; the step takes groups from its front until enough bytes are
free, and may go on further when an epoch's intake would not fit otherwise.

| policy | first victim |
|---|---|
| `inactive-then-productivity` | (default) idle groups, longest idle first; then as `productivity` |
| `productivity` | least P_output / P_size: results of the current generation / bytes |
| `most-productive` | the opposite, to see what a bad choice costs |
| `largest` | most bytes |
| `random` | drawn with the seed: the same seed gives the same order |

Ties are broken by the larger group, then by position, so an order never depends on chance that
is not in the seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class GroupFigures:
    """Per group, each int64 (g,): bytes in memory, results of its generation, last use (ms)."""

    bytes: I64
    results: I64
    last_used_ms: I64


@dataclass(frozen=True)
class VictimContext:
    """What a policy may know besides the groups."""

    now_ms: int
    """The stream's clock, ms since 1970."""
    inactive_ms: int
    """theta_t: a group without a new row for longer is inactive."""
    seed: int


def productivity(figures: GroupFigures) -> npt.NDArray[np.float64]:
    """P_output / P_size of every group, float64 (g,); 0 for a group without bytes."""
    ratio: npt.NDArray[np.float64] = figures.results / np.maximum(figures.bytes, 1)
    return ratio


def _inactive_then_productivity(figures: GroupFigures, context: VictimContext) -> I64:
    idle = context.now_ms - figures.last_used_ms
    inactive = idle > context.inactive_ms
    return _ascending(
        ~inactive, np.where(inactive, -idle, 0), productivity(figures), -figures.bytes
    )


def _productivity(figures: GroupFigures, context: VictimContext) -> I64:  # noqa: ARG001
    return _ascending(productivity(figures), -figures.bytes)


def _most_productive(figures: GroupFigures, context: VictimContext) -> I64:  # noqa: ARG001
    return _ascending(-productivity(figures), -figures.bytes)


def _largest(figures: GroupFigures, context: VictimContext) -> I64:  # noqa: ARG001
    return _ascending(-figures.bytes)


def _random(figures: GroupFigures, context: VictimContext) -> I64:
    order: I64 = np.random.default_rng(context.seed).permutation(len(figures.bytes))
    return order


POLICIES: dict[str, Callable[[GroupFigures, VictimContext], I64]] = {
    "inactive-then-productivity": _inactive_then_productivity,
    "productivity": _productivity,
    "most-productive": _most_productive,
    "largest": _largest,
    "random": _random,
}
DEFAULT = "inactive-then-productivity"


def victim_order(policy: str, figures: GroupFigures, context: VictimContext) -> I64:
    """Indices of all groups, int64 (g,), first victim first. Raises ValueError: unknown policy."""
    try:
        decide = POLICIES[policy]
    except KeyError:
        raise ValueError(f"unknown policy {policy!r}: use one of {', '.join(POLICIES)}") from None
    return decide(figures, context)


def _ascending(*keys: npt.NDArray[np.generic]) -> I64:
    """Order by the first key, then the second, ...; then by position."""
    order: I64 = np.lexsort(tuple(reversed(keys)))
    return order
