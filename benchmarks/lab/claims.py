"""What a paper says of a figure beside what came out. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

WITHIN = 2.0
"""A factor holds when its logarithm is no less than that of the paper's over this, and no more than
it times this: another machine and engine, twenty years on, measure no factor to the percent. So no
effect at all holds for no factor, and neither does the opposite one."""

ALIKE = 0.05
"""Figures are "the same" or "similar" when they are within this part of each other."""


@dataclass(frozen=True)
class Claim:
    """One sentence of a paper, and our answer."""

    figure: str
    paper: str
    """What it says, with its figures."""
    ours: str
    """What came out, with our figures."""
    direction: bool | None
    """Whether what it says is more, less or the same is so here. None: it cannot be otherwise, by
    the way this system or the experiment is made."""
    paper_factor: float | None = None
    our_factor: float | None = None
    seconds: bool = False
    """Whether the factors are seconds, of which the ratio counts and not that of logarithms."""
    network: bool = False
    """Whether it is about the paper's network, and cannot be judged where there is none."""

    @property
    def factor(self) -> bool | None:
        """Whether our factor is near the paper's; None when it gives none."""
        if self.paper_factor is None or self.our_factor is None:
            return None
        if self.seconds:
            return 1 / WITHIN <= self.our_factor / self.paper_factor <= WITHIN
        if self.our_factor <= 0 or self.paper_factor == 1:
            return self.our_factor == self.paper_factor
        share = math.log(self.our_factor) / math.log(self.paper_factor)
        return 1 / WITHIN <= share <= WITHIN


def ratio(one: float, other: float) -> float:
    """`one` / `other`; infinite when there is nothing below."""
    return one / other if other else float("inf")


def alike(values: Sequence[float], within: float = ALIKE) -> bool:
    """Whether all are within a part of the greatest."""
    return max(values) - min(values) <= within * max(values)


def behind(one: Sequence[float], other: Sequence[float]) -> tuple[int, float]:
    """Where `one` is the furthest behind `other`, and by what part of it (0: never).

    Points are left out before `other` has a hundredth of its last value: of next to nothing any
    difference is a large part.
    """
    parts = [
        1 - a / b if b and b >= other[-1] / 100 else 0.0 for a, b in zip(one, other, strict=True)
    ]
    most = max(parts)
    return parts.index(most), max(most, 0.0)


def falling(values: Sequence[float]) -> bool:
    """Whether each is less than the one before it."""
    return all(a > b for a, b in pairwise(values))
