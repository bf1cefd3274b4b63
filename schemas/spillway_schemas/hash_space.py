"""How the joins of a query share the 64-bit hashes: each has a part of them to itself.

Model: joins are numbered children first, the root last. Join k of n has the hashes that begin with
its *space*, a prefix; the spaces are in the order of the joins and cover every hash once. A row's
hash in a join is the space's bits, followed by the first bits of XXH64 of the join's key. So a
partition group, a cut, a unit of cleanup is a prefix as it is for a single join (whose space is
every hash), belongs to one join, and ranges in ascending order go from the leaves to the root.

| joins | spaces |
|---|---|
| 1 | `0/0` |
| 2 | `1/0`, `1/1` |
| 3 | `2/0`, `2/1`, `1/1` |
| 5 | `3/0`, `3/1`, `2/1`, `2/2`, `2/3` |

People write a group by the hashes of its join: `abc:9/17` is the part of the space of `abc` that
`9/17` is of all hashes. Where there is one join only it is `9/17`. Whoever reads or shows a group
does it with `group_of` and `group_text`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from spillway_schemas.journal import Prefix


class UnknownJoin(ValueError):
    """The query has no join of this name; the message says which it has."""


ROOT = -1
"""Stands for the parent that the root does not have."""


@cache
def spaces(joins: int) -> tuple[Prefix, ...]:
    """The space of each join. Raises ValueError for less than one join."""
    if joins < 1:
        raise ValueError(f"a query has one join or more, not {joins}")
    depth = (joins - 1).bit_length()
    deep = 2 * joins - (1 << depth)
    return tuple(
        Prefix(depth, k) if k < deep else Prefix(depth - 1, k - deep // 2) for k in range(joins)
    )


def join_of(range_: Prefix, joins: int) -> int:
    """The join that a hash range belongs to. Raises ValueError when it is not of one join."""
    for number, space in enumerate(spaces(joins)):
        if space.covers(range_):
            return number
    raise ValueError(f"{range_.text} is no range of one of {joins} joins")


def join_numbers(groups: Collection[Prefix], joins: int) -> npt.NDArray[np.int64]:
    """The join that each group (g,) is of, int64 (g,): `join_of` of many."""
    begins = np.array([space.lo for space in spaces(joins)], dtype=np.uint64)
    starts = np.array([group.lo for group in groups], dtype=np.uint64)
    return np.searchsorted(begins, starts, side="right").astype(np.int64) - 1


def joins_of(range_: Prefix, joins: int) -> list[int]:
    """The joins that have hashes in a range, in order."""
    return [number for number, space in enumerate(spaces(joins)) if space.overlaps(range_)]


def group_text(group: Prefix, names: Sequence[str]) -> str:
    """A group as it is written for people; `names`: of the query's joins, in order.

    A range that is not of one join, which is no group, is written as a part of all hashes.
    """
    join = next((k for k, each in enumerate(spaces(len(names))) if each.covers(group)), None)
    if len(names) == 1 or join is None:
        return group.text
    space = spaces(len(names))[join]
    depth = group.depth - space.depth
    return f"{names[join]}:{Prefix(depth, group.value - (space.value << depth)).text}"


def group_of(text: str, names: Sequence[str]) -> Prefix:
    """The inverse of `group_text`. Raises ValueError, which says what is allowed."""
    if len(names) == 1:
        return Prefix.parse(text)
    name, colon, inner = text.rpartition(":")
    if not colon:
        raise ValueError(
            f"{text!r} is not a group: write JOIN:DEPTH/VALUE, for example {names[0]}:9/17; "
            f"the joins are {', '.join(names)}"
        )
    try:
        return spaces(len(names))[join_named(name, names)].part(Prefix.parse(inner))
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from None


def join_named(name: str, names: Sequence[str]) -> int:
    """The number of a join. Raises `UnknownJoin`."""
    if name not in names:
        raise UnknownJoin(f"there is no join {name!r}; the joins are {', '.join(names)}")
    return list(names).index(name)


def above(parents: Sequence[int], joins: Iterable[int]) -> list[int]:
    """The joins above any of these, in order. `parents[k]` is join k's parent; `ROOT`: none."""
    found: set[int] = set()
    for number in joins:
        while (number := parents[number]) != ROOT and number not in found:
            found.add(number)
    return sorted(found)


def levels(parents: Sequence[int]) -> tuple[int, ...]:
    """How many joins lie on the longest way below each join, itself included: 1 reads leaves."""
    found = [1] * len(parents)
    for number, parent in enumerate(parents):  # children come first
        if parent != ROOT:
            found[parent] = max(found[parent], found[number] + 1)
    return tuple(found)
