"""A query's tree as joins that the kernel can run, and the way of rows from one to the next.

Model: each join of the tree is a `JoinSpec` with an operator number, children first. What a join
gives goes on as rows of the one input that it is of its parent: `Upward` picks the columns that the
edge carries (`spillway_schemas.edges`) by their positions, adds the hash of the join's own key (its
lineage) and hashes the parent's key. Rows are not decoded or looked at on the way.

Of the root's rows the results show some columns only: `TreePlan.shown` says which.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spillway.engine.join.hashing import xxhash64
from spillway.engine.join.kernel import Joined, Rows
from spillway.engine.join.spec import InputSpec, JoinSpec
from spillway_schemas.edges import Edge, QueryEdges
from spillway_schemas.expressions import plain_column
from spillway_schemas.join_tree import KeySource, TreeJoin
from spillway_schemas.query import Query


@dataclass(frozen=True)
class Upward:
    """How a join's results become rows of an input of its parent.

    `columns`: positions in the join's joined schema, in the order of the parent's row schema (all
    but the last column, which is the hash of the join's own key). `keys`: how many of them, from
    the first on, are the parent's keys.
    """

    operator: int
    """The parent's."""
    input: int
    columns: tuple[int, ...]
    keys: int

    def rows(self, schema: pa.Schema, batch: Joined) -> Rows:
        """The parent's new rows, sorted by its key's hash. `schema`: the input's row schema."""
        picked = [batch.table.column(i) for i in self.columns]
        own = pa.array(np.repeat(batch.hashes, batch.results), pa.uint64())
        table = pa.Table.from_arrays([*picked, own], schema=schema)
        hashes = xxhash64(table.columns[: self.keys])
        order = np.argsort(hashes, kind="stable")
        return Rows(hashes[order], table.take(pa.array(order)))


@dataclass(frozen=True)
class TreePlan:
    """A whole tree. `specs` and `upward` by operator number; the root's `upward` is None."""

    specs: tuple[JoinSpec, ...]
    upward: tuple[Upward | None, ...]
    leaves: dict[str, tuple[int, int, tuple[KeySource, ...]]]
    """Of each leaf: operator and input that read it, and what its rows carry: the keys' sources,
    then the payload's."""
    shown: tuple[tuple[str, int], ...]
    """Columns of the results: names, and positions in the root's joined schema."""


def tree_plan(query: Query, type_of: Callable[[KeySource], pa.DataType]) -> TreePlan:
    """The tree of a query. `type_of` gives the type of an expression over a leaf's columns."""
    return _Planner(query, type_of).plan()


class _Planner:
    def __init__(self, query: Query, type_of: Callable[[KeySource], pa.DataType]) -> None:
        self.query = query
        self.tree = query.tree
        self.type_of = type_of
        self.numbers = {join.name: n for n, join in enumerate(self.tree.joins)}
        self.edges = {(edge.join, edge.input): edge for edge in QueryEdges(query).edges}

    def plan(self) -> TreePlan:
        specs = tuple(self._spec(join) for join in self.tree.joins)
        upward: list[Upward | None] = [None for _ in specs]
        leaves = {}
        for join in self.tree.joins:
            for position, name in enumerate(join.inputs):
                number = self.numbers[join.name]
                carried = self._carried(join, name)
                if self.tree.join(name) is None:
                    leaves[name] = (number, position, carried)
                    continue
                child = self.numbers[name]
                have = self._positions(self.tree.joins[child])
                columns = [have[source] for source in carried]
                identity = specs[number].inputs[position].identity.names[:-1]
                columns += [specs[child].joined_schema.get_field_index(each) for each in identity]
                upward[child] = Upward(number, position, tuple(columns), len(join.keys))
        return TreePlan(specs, tuple(upward), leaves, self._shown(specs[-1]))

    def _carried(self, join: TreeJoin, input_: str) -> tuple[KeySource, ...]:
        """Sources of an input's columns: its keys', then its payload's."""
        keys = [self.tree.carrier(self.tree.source(key, input_), input_) for key in join.keys]
        payload = [each for each in self._edge(join, input_).columns if each not in keys]
        return (*keys, *payload)

    def _edge(self, join: TreeJoin, input_: str) -> Edge:
        return self.edges[join.name, input_]

    def _spec(self, join: TreeJoin) -> JoinSpec:
        keys = pa.schema(
            [
                pa.field(key.name, self.type_of(self.tree.source(key, join.inputs[0])), False)
                for key in join.keys
            ]
        )
        inputs = []
        for name in join.inputs:
            payload = self._carried(join, name)[len(join.keys) :]
            below = self.tree.join(name)
            # A stream's own columns are prefixed with its name where they are joined.
            named = [
                pa.field(_name(each, prefixed=below is not None), self.type_of(each))
                for each in payload
            ]
            leaves = self.tree.below(name) if below is not None else ()
            inputs.append(InputSpec(name, pa.schema(named), leaves, self.tree.joins_below(name)))
        return JoinSpec(self.numbers[join.name], keys, tuple(inputs))

    def _positions(self, join: TreeJoin) -> dict[KeySource, int]:
        """Where a join's rows have each value that goes up, by what stands for it there."""
        found: dict[KeySource, int] = {}
        at = len(join.keys)
        for name in join.inputs:
            payload = self._carried(join, name)[len(join.keys) :]
            for source in payload:
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
                shown[f"{leaf}_{field.name}"] = at(KeySource(leaf, field.name))
        for leaf in self.query.inputs:
            for part in ("partition", "offset"):
                shown[f"{leaf}_{part}"] = root.joined_schema.get_field_index(f"{leaf}_{part}")
        return tuple(shown.items())


def _name(source: KeySource, *, prefixed: bool) -> str:
    """A name for a carried column that no other of the join has."""
    column = plain_column(source.expression) or f"({source.expression})"
    return f"{source.leaf}_{column}" if prefixed else column
