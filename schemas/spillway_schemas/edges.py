"""What each edge of a query's tree carries, and why.

Model: an edge leads from an input (a stream or a join) to the join that reads it. A row on it
carries each value once, however many reasons there are, and of values that a join below has made
equal only one (`JoinTree.carrier`):

* keys: of the join that it goes to, and of the joins above that take theirs from a leaf below;
* results: what the query's results show of the leaves and of the keys below;
* coordinates: partition and offset of each leaf below, the row's identity;
* times, where a window of this join or of one above asks for them;
* lineage: the key's hash in each join below, 8 bytes each, by which a result is counted for the
  partition groups that it came through.

Nothing else goes up: a field that no key and no result needs ends where it was last read.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from spillway_schemas.join_tree import KeySource, TreeJoin
from spillway_schemas.query import Query


@dataclass(frozen=True)
class Edge:
    """One input of one join. `columns`: each with the reasons for it, e.g. `key k2 of abcd`."""

    join: str
    input: str
    columns: dict[KeySource, tuple[str, ...]]
    coordinates: tuple[str, ...]
    """The leaves below."""
    lineage: tuple[str, ...]
    """The joins below, whose key hashes a row has."""
    timed: bool
    """Whether a row has a time, or the least and greatest of its parts: a window asks for them."""


@dataclass(frozen=True)
class QueryEdges:
    """The edges of a query, in the order of its joins and their inputs."""

    query: Query

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """All of them, those of lower joins first."""
        tree = self.query.tree
        return tuple(self._edge(join, each) for join in tree.joins for each in join.inputs)

    def _edge(self, join: TreeJoin, input_: str) -> Edge:
        tree = self.query.tree
        leaves, below = tree.below(input_), tree.joins_below(input_)
        reasons: dict[KeySource, list[str]] = {}
        for above in self._from(join):
            for key in above.keys:
                for each in above.inputs:
                    if input_ in (each, *self._inputs_below(each)):
                        source = tree.source(key, each)
                        if source.leaf in leaves:
                            source = tree.carrier(source, input_)
                            reasons.setdefault(source, []).append(f"key {key.name} of {above.name}")
        for name in below:
            found = tree.join(name)
            assert found is not None
            for key in found.keys:
                source = tree.carrier(tree.source(key, found.inputs[0]), input_)
                reasons.setdefault(source, []).append(f"results: {key.name}")
        for leaf in leaves:
            for field in self.query.payload(leaf):
                source = tree.carrier(KeySource.column(leaf, field.name), input_)
                reasons.setdefault(source, []).append(f"results: {leaf}_{field.name}")
        columns = {source: tuple(dict.fromkeys(why)) for source, why in reasons.items()}
        timed = self.query.is_timed(join.name)
        return Edge(join.name, input_, columns, leaves, below, timed)

    def _from(self, join: TreeJoin) -> list[TreeJoin]:
        """A join and those above it, up to the root."""
        tree = self.query.tree
        return [each for each in tree.joins if join.name in tree.joins_below(each.name)]

    def _inputs_below(self, name: str) -> list[str]:
        """Names of all inputs of the joins below an input."""
        tree = self.query.tree
        joins = [each for each in tree.joins if each.name in tree.joins_below(name)]
        return [each for join in joins for each in join.inputs]
