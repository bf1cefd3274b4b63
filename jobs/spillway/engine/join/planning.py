"""From a query's tree to the joins that the engine runs, and what each leaf's rows carry.

Columns that go up are found by what they come from (`KeySource`), never by name; their names are
for people who read `spill`, and are made different from each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from spillway.engine.join.spec import InputSpec, JoinSpec
from spillway.engine.join.tree import TreeSpec, Upward
from spillway_schemas.edges import QueryEdges
from spillway_schemas.expressions import plain_column
from spillway_schemas.hash_space import ROOT
from spillway_schemas.join_tree import KeySource, TreeJoin
from spillway_schemas.query import Query


@dataclass(frozen=True)
class LeafInput:
    """How a leaf's rows come into the tree."""

    input: int
    """The tree's number of the input that it is."""
    keys: tuple[KeySource, ...]
    """Where its join's keys come from."""
    payload: tuple[KeySource, ...]
    """Where the columns of its payload come from."""


@dataclass(frozen=True)
class TreePlan:
    """A whole tree."""

    spec: TreeSpec
    leaves: dict[str, LeafInput]


def tree_plan(query: Query, type_of: Callable[[KeySource], pa.DataType]) -> TreePlan:
    """The tree of a query. `type_of` gives the type of an expression over a leaf's columns."""
    return _Planner(query, type_of).plan()


class _Planner:
    def __init__(self, query: Query, type_of: Callable[[KeySource], pa.DataType]) -> None:
        self.query = query
        self.tree = query.tree
        self.type_of = type_of
        self.edges = {(edge.join, edge.input): edge for edge in QueryEdges(query).edges}

    def plan(self) -> TreePlan:
        joins = tuple(self._spec(number, join) for number, join in enumerate(self.tree.joins))
        by_name = {join.name: number for number, join in enumerate(self.tree.joins)}
        upward: list[Upward | None] = [None for _ in joins]
        leaves: dict[str, LeafInput] = {}
        input_ = 0
        for number, join in enumerate(self.tree.joins):
            for position, name in enumerate(join.inputs):
                keys, payload = self._carried(join, name)
                child = by_name.get(name)
                if child is None:
                    leaves[name] = LeafInput(input_, keys, payload)
                else:
                    have = self._positions(self.tree.joins[child])
                    columns = [have[source] for source in (*keys, *payload)]
                    identity = joins[number].inputs[position].identity.names[:-1]
                    gives = joins[child].joined_schema
                    columns += [gives.get_field_index(each) for each in identity]
                    upward[child] = Upward(input_, tuple(columns), len(keys))
                input_ += 1
        return TreePlan(TreeSpec(joins, tuple(upward), self._shown(joins[-1])), leaves)

    def _carried(
        self, join: TreeJoin, input_: str
    ) -> tuple[tuple[KeySource, ...], tuple[KeySource, ...]]:
        """Sources of an input's columns: its keys', and its payload's."""
        keys = [self.tree.carrier(self.tree.source(key, input_), input_) for key in join.keys]
        columns = self.edges[join.name, input_].columns
        return tuple(keys), tuple(each for each in columns if each not in keys)

    def _spec(self, number: int, join: TreeJoin) -> JoinSpec:
        keys = pa.schema(
            [
                pa.field(key.name, self.type_of(self.tree.source(key, join.inputs[0])), False)
                for key in join.keys
            ]
        )
        taken = set(keys.names)
        for name in join.inputs:
            leaves, below = self.tree.below(name), self.tree.joins_below(name)
            taken |= set(InputSpec(name, pa.schema([]), leaves, below).identity.names)
            taken |= {f"{leaf}_{part}" for leaf in leaves for part in ("partition", "offset")}
        inputs = []
        for name in join.inputs:
            _, payload = self._carried(join, name)
            is_leaf = self.tree.join(name) is None
            fields = []
            for each in payload:
                column = _fresh(each, taken)
                # The kernel puts a stream's name in front of its columns.
                column = column.removeprefix(f"{name}_") if is_leaf else column
                fields.append(pa.field(column, self.type_of(each)))
            leaves = () if is_leaf else self.tree.below(name)
            below = self.tree.joins_below(name)
            timed = self.query.is_timed(join.name)
            inputs.append(InputSpec(name, pa.schema(fields), leaves, below, timed))
        reader = self.tree.parents[join.name]
        return JoinSpec(
            number,
            keys,
            tuple(inputs),
            self.query.spans[number],
            reader != ROOT and self.query.is_timed(self.tree.joins[reader].name),
        )

    def _positions(self, join: TreeJoin) -> dict[KeySource, int]:
        """Where a join's rows have each value that goes up, by what stands for it there."""
        found: dict[KeySource, int] = {}
        at = len(join.keys)
        for name in join.inputs:
            for source in self._carried(join, name)[1]:
                found[source] = at
                at += 1
        for n, key in enumerate(join.keys):
            found[self.tree.carrier(self.tree.source(key, join.inputs[0]), join.name)] = n
        return found

    def _shown(self, root: JoinSpec) -> tuple[tuple[str, int], ...]:
        """Keys of all joins, the fields of each leaf, its coordinate."""
        join = self.tree.root
        have = self._positions(join)

        def at(source: KeySource) -> int:
            return have[self.tree.carrier(source, join.name)]

        shown: dict[str, int] = {}
        for each in self.tree.joins:
            for key in each.keys:
                shown.setdefault(key.name, at(self.tree.source(key, each.inputs[0])))
        for leaf in self.query.inputs:
            for field in self.query.payload(leaf):
                shown[f"{leaf}_{field.name}"] = at(KeySource.column(leaf, field.name))
        for leaf in self.query.inputs:
            for part in ("partition", "offset"):
                shown[f"{leaf}_{part}"] = root.joined_schema.get_field_index(f"{leaf}_{part}")
        return tuple(shown.items())


def _fresh(source: KeySource, taken: set[str]) -> str:
    """A name for a carried column that nothing in its join has."""
    name = f"{source.leaf}_{plain_column(source.expression) or 'key'}"
    while name in taken:
        name += "_"
    taken.add(name)
    return name
