"""Which groups a full slot spills first. Pure: statistics in, an order out.

A policy only suggests an order; the step takes groups from its front until enough bytes are
free, and may go on further when an epoch's intake would not fit otherwise. The groups are those of
all joins of the query, side by side.

| policy | first victim |
|---|---|
| `expected-loss` | (default) fewest results lost by it / bytes (`spillway.policy.expected`) |
| `inactive-then-productivity` | idle groups, longest idle first; then as `productivity` |
| `productivity` | least P_output / P_size: results of the current generation / bytes |
| `most-productive` | the opposite, to see what a bad choice costs |
| `largest` | most bytes |
| `random` | drawn with the seed: the same seed gives the same order |

For trees of joins (Liu, Zhu & Rundensteiner, SIGMOD 2006, section 3):

| policy | first victim | section |
|---|---|---|
| `bottom-up` | any group of the joins furthest from the root, drawn; then the next level | 3.1.1 |
| `local-output` | least P_output / P_size, P_output being what the group's own join gives | 3.2.1 |
| `global-output` | the same with the final results that the group took part in | 3.2.2 |
| `global-output-penalty` | least P_output / (P_size + P_inter), P_output as before | 3.2.3 |

`bottom-up` mixes the groups of joins that are equally far from the root; the paper empties one
operator after another.

P_output is of the current generation, as P_size is. The papers call it all that "has been output
from the partition group", and do not say whether it begins anew when the group is spilled.

P_inter are the bytes of the rows that joins further up have got because of the group, kept there
or spilled meanwhile. The paper counts tuples in its examples; here sizes are bytes, so P_inter is
bytes, too. `spillway.policy.lineage` counts both. A single join is the root: all groups are of one
level, what it gives is final, and nothing is kept further up. So `bottom-up` is `random` there, and
the other three are `productivity`.

Ties are broken by the larger group (P_size + P_inter with the penalty), then by position, so an
order never depends on chance that is not in the seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class GroupFigures:
    """Per group, each int64 (g,): bytes in memory, results of its generation, last use (ms).

    The figures of a tree may be left out: without them each group is one of the root.
    """

    bytes: I64
    results: I64
    """What the group's own join gave."""
    last_used_ms: I64
    level: I64 | None = None
    """int64 (g,): how many joins lie above the group's; 0 at the root. None: 0 for each."""
    final_results: F64 | None = None
    """float64 (g,): final results that the group took part in. None: as `results`."""
    downstream_bytes: F64 | None = None
    """float64 (g,): bytes of the rows that joins further up have got because of it, kept there or
    spilled meanwhile. None: no such."""
    loss: F64 | None = None
    """float64 (g,): results that each would give up (`spillway.policy.expected`); `expected-loss`
    asks for it."""


@dataclass(frozen=True)
class VictimContext:
    """What a policy may know besides the groups."""

    now_ms: int
    """The stream's clock, ms since 1970."""
    inactive_ms: int
    """theta_t: a group without a new row for longer is inactive."""
    seed: int


def productivity(figures: GroupFigures) -> F64:
    """P_output / P_size of every group, float64 (g,); 0 for a group without bytes and results.

    P_output is what the group's own join gave (SIGMOD 2006, 3.2.1; TR-05-04 writes the inverse).
    """
    return _per_byte(figures.results, figures.bytes)


def global_productivity(figures: GroupFigures) -> F64:
    """P_output / P_size of every group, float64 (g,), in final results (SIGMOD 2006, 3.2.2)."""
    return _per_byte(_final(figures), figures.bytes)


def penalised_productivity(figures: GroupFigures) -> F64:
    """P_output / (P_size + P_inter) of every group, float64 (g,), in final results.

    SIGMOD 2006, 3.2.3.
    """
    return _per_byte(_final(figures), _kept(figures))


def _kept(figures: GroupFigures) -> I64 | F64:
    """P_size + P_inter."""
    more = figures.downstream_bytes
    return figures.bytes if more is None else figures.bytes + more


def _final(figures: GroupFigures) -> I64 | F64:
    return figures.results if figures.final_results is None else figures.final_results


def _per_byte(output: I64 | F64, size: I64 | F64) -> F64:
    ratio: F64 = output / np.maximum(size, 1)
    return ratio


def _inactive_then_productivity(figures: GroupFigures, context: VictimContext) -> I64:
    idle = context.now_ms - figures.last_used_ms
    inactive = idle > context.inactive_ms
    return _ascending(
        ~inactive, np.where(inactive, -idle, 0), productivity(figures), -figures.bytes
    )


def _productivity(figures: GroupFigures, context: VictimContext) -> I64:  # noqa: ARG001
    return _ascending(productivity(figures), -figures.bytes)


def _expected_loss(figures: GroupFigures, context: VictimContext) -> I64:  # noqa: ARG001
    if figures.loss is None:
        raise ValueError("expected-loss goes by what groups would give up, and nothing was given")
    return _ascending(_per_byte(figures.loss, figures.bytes), -figures.bytes)


def _most_productive(figures: GroupFigures, context: VictimContext) -> I64:  # noqa: ARG001
    return _ascending(-productivity(figures), -figures.bytes)


def _largest(figures: GroupFigures, context: VictimContext) -> I64:  # noqa: ARG001
    return _ascending(-figures.bytes)


def _random(figures: GroupFigures, context: VictimContext) -> I64:
    order: I64 = np.random.default_rng(context.seed).permutation(len(figures.bytes))
    return order


def _bottom_up(figures: GroupFigures, context: VictimContext) -> I64:
    order = _random(figures, context)
    if figures.level is None:
        return order
    # A stable sort keeps the drawn order within a level.
    by_level: I64 = order[np.argsort(-figures.level[order], kind="stable")]
    return by_level


def _global_output(figures: GroupFigures, context: VictimContext) -> I64:  # noqa: ARG001
    return _ascending(global_productivity(figures), -figures.bytes)


def _global_output_penalty(figures: GroupFigures, context: VictimContext) -> I64:  # noqa: ARG001
    return _ascending(penalised_productivity(figures), -_kept(figures))


POLICIES: dict[str, Callable[[GroupFigures, VictimContext], I64]] = {
    "expected-loss": _expected_loss,
    "inactive-then-productivity": _inactive_then_productivity,
    "productivity": _productivity,
    "most-productive": _most_productive,
    "largest": _largest,
    "random": _random,
    "bottom-up": _bottom_up,
    "local-output": _productivity,
    "global-output": _global_output,
    "global-output-penalty": _global_output_penalty,
}
DEFAULT_VICTIMS = "expected-loss"


TRACING = frozenset({"global-output", "global-output-penalty"})
"""Policies that need to know through which groups results came."""


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
