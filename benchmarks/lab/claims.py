"""What a paper says of a figure beside what came out. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

WITHIN = 2.0
"""A factor holds when ours is no less than the paper's over this, and no more than it times this:
another machine and engine, twenty years on, measure no factor to the percent."""

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
    direction: bool
    """Whether what it says is more, less or the same is so here."""
    paper_factor: float | None = None
    our_factor: float | None = None

    @property
    def factor(self) -> bool | None:
        """Whether our factor is near the paper's; None when it gives none."""
        if self.paper_factor is None or self.our_factor is None:
            return None
        return self.paper_factor / WITHIN <= self.our_factor <= self.paper_factor * WITHIN


def ratio(one: float, other: float) -> float:
    """`one` / `other`; infinite when there is nothing below."""
    return one / other if other else float("inf")


def alike(values: Sequence[float], within: float = ALIKE) -> bool:
    """Whether all are within a part of the greatest."""
    return max(values) - min(values) <= within * max(values)


def falling(values: Sequence[float]) -> bool:
    """Whether each is less than the one before it."""
    return all(a > b for a, b in pairwise(values))
