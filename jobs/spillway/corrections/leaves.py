"""Which rows of a tree's leaves meet when a correction is joined. Pure.

Let each leaf i have old rows A(i) and new rows D(i). What is missing is the join of the A(i) + D(i)
without that of the A(i). In the turn of a leaf that has new rows, they meet old and new ones of the
leaves before it, and old ones of those after it. So a result is found once: in the turn of the last
leaf of which it has a new row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum

from spillway.decode import StreamPlan
from spillway.decode.values import LeafWindow, TreeValues


class Met(Enum):
    """Which rows of a leaf take part in a turn."""

    OLD = "old"
    NEW = "new"
    BOTH = "both"


@dataclass(frozen=True)
class TreeLeaves:
    """A query's leaves, in its order: what they share, and how their messages are read."""

    values: TreeValues
    plans: tuple[StreamPlan, ...]
    """Of `spillway.decode.values.leaf_plans`."""
    windows: tuple[LeafWindow, ...]


def turns(new: Collection[int], leaves: int) -> Iterator[tuple[int, tuple[Met, ...]]]:
    """For each leaf that has new rows: its number, and which rows of each leaf meet in its turn."""
    for own in sorted(new):
        met = [Met.BOTH if leaf < own and leaf in new else Met.OLD for leaf in range(leaves)]
        met[own] = Met.NEW
        yield own, tuple(met)
