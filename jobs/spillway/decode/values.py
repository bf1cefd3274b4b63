"""A query's tree by values, not by joins: what its keys make equal, and so what is read of each
leaf when a whole session is proved, corrected or estimated. Pure.

Model: a key of a join says that sources (`KeySource`: an expression over one leaf's columns) are
equal in each of the join's rows, so in each result. Sources that are equal through any chain of
keys are one *value* of the tree, which has a number. A leaf has some of the values, each from one
source or from several of its own. So the whole tree says no more than this: a result is one row of
each leaf, and rows that have a value in common have it equal.

Results show a value under the name of each key that is of it. The proof holds every such column
against the leaves' rows, so that one altered among two that should be equal is noticed, too.
"""

from __future__ import annotations

from dataclasses import dataclass

from spillway.decode.plan import StreamPlan, plans_for
from spillway_schemas.join_tree import KeySource
from spillway_schemas.query import Query
from spillway_schemas.windows import Span


@dataclass(frozen=True)
class LeafValues:
    """What is read of one leaf."""

    name: str
    sources: tuple[str, ...]
    """Expressions, each once: the columns `k0`, `k1`, ... of its rows."""
    values: tuple[int, ...]
    """Which value of the tree each source is of; parallel to `sources`."""
    shown: tuple[tuple[str, int], ...]
    """The key columns of results that its rows answer for, and the source of each."""
    fields: tuple[str, ...]
    """Its fields that results carry."""

    @property
    def has(self) -> tuple[int, ...]:
        """Its values, each once."""
        return tuple(dict.fromkeys(self.values))

    @property
    def hashed_rows(self) -> tuple[str, ...]:
        """What the hash of a row is made of beside its coordinate, as the rows name it."""
        keys = [f"k{source}" for _, source in self.shown]
        return (*keys, *(f"p{i}" for i in range(len(self.fields))))

    @property
    def hashed_results(self) -> tuple[str, ...]:
        """The same as results name it: parallel to `hashed_rows`."""
        keys = [name for name, _ in self.shown]
        return (*keys, *(f"{self.name}_{field}" for field in self.fields))


@dataclass(frozen=True)
class TreeValues:
    """What is read of a tree. `leaves` in the query's order."""

    leaves: tuple[LeafValues, ...]
    root: tuple[tuple[str, int], ...]
    """The root's keys, names and values; of keys that are one value the first."""

    @property
    def by(self) -> tuple[int, ...]:
        """The values by which results are told apart: those of the root's key."""
        return tuple(value for _, value in self.root)


def values_of(query: Query) -> TreeValues:
    """The values of a query's tree."""
    tree = query.tree
    number: dict[KeySource, int] = {}
    for value, equal in enumerate(tree.equal(each.name for each in tree.joins)):
        number |= dict.fromkeys(equal, value)
    shown: dict[str, int] = {}
    for join in tree.joins:
        for key in join.keys:
            shown.setdefault(key.name, number[tree.source(key, join.inputs[0])])
    leaves = []
    for leaf in query.inputs:
        mine = {each.expression: value for each, value in number.items() if each.leaf == leaf}
        values = tuple(mine.values())
        leaves.append(
            LeafValues(
                leaf,
                tuple(mine),
                values,
                tuple((name, values.index(v)) for name, v in shown.items() if v in values),
                tuple(field.name for field in query.payload(leaf)),
            )
        )
    root: dict[int, str] = {}
    for key in tree.root.keys:
        root.setdefault(shown[key.name], key.name)
    return TreeValues(tuple(leaves), tuple((name, value) for value, name in root.items()))


def outwards(values: TreeValues, first: int | None = None) -> tuple[int, ...]:
    """Numbers of the leaves, from the first one or that which has most of the root's key: each of
    the others has a value in common with those before it."""
    known = set(values.by)
    ahead = list(range(len(values.leaves)))
    order: list[int] = []
    while ahead:
        most = max(ahead, key=lambda n: len(known.intersection(values.leaves[n].values)))
        if first is not None and not order:
            most = first
        ahead.remove(most)
        known = set(values.leaves[most].values) | (known if order else set())
        order.append(most)
    return tuple(order)


def leaf_plans(query: Query, values: TreeValues) -> tuple[StreamPlan, ...]:
    """How each leaf's messages are decoded: keys are its sources, so a row that has a null in one
    of them is rejected. Raises QueryError."""
    return plans_for(query, {leaf.name: leaf.sources for leaf in values.leaves})


LeafWindow = tuple[Span, tuple[tuple[int, ...], ...]]
"""The span of a join that has a window, and for each of its inputs the numbers of the leaves
below."""


def windows_of(query: Query) -> tuple[LeafWindow, ...]:
    """The windows of a query's joins."""
    number = {leaf: n for n, leaf in enumerate(query.inputs)}
    return tuple(
        (
            span,
            tuple(tuple(number[leaf] for leaf in query.tree.below(each)) for each in join.inputs),
        )
        for join, span in zip(query.tree.joins, query.spans, strict=True)
        if span is not None
    )
