"""Any tree of joins, evaluated with what its edges carry and nothing else, gives every result.

The reference takes every combination of rows, one of each leaf, and keeps those in which the
sources of every key are equal.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import event
from hypothesis import strategies as st

from spillway_schemas.edges import Edge, QueryEdges
from spillway_schemas.join_tree import KeySource
from spillway_schemas.query import Query, query_of
from spillway_schemas.tomlfile import parse_toml
from tests.lanes import explored

FIELDS = ("f0", "f1", "f2")
VALUES = 2

Row = tuple[tuple[int, ...], dict[KeySource, int]]
"""(the number of the row of each leaf below, from left to right; what it carries)."""


def text_of(number: int) -> str:
    """A query with a random tree: 2 to 6 leaves, some of one stream, keys of any leaf below."""
    rng = random.Random(number)
    leaves = [f"s{n}" for n in range(rng.randint(2, 6))]
    streams = leaves[:1] + [name for name in leaves[1:] if rng.random() < 0.8]
    written = {
        name: name if name in streams else f"{rng.choice(streams)} as {name}" for name in leaves
    }
    lines = [
        f"[streams.{name}]\nfields = {{ f0 = 'int', f1 = 'int', f2 = 'int' }}" for name in streams
    ]
    below = {name: [name] for name in leaves}
    ready = leaves[:]
    joins = 0
    while len(ready) > 1:
        several = min(len(ready), rng.choice([2, 2, 2, 3, 4]))
        inputs = rng.sample(ready, several)
        name, joins = f"j{joins}", joins + 1
        below[name] = [leaf for each in inputs for leaf in below[each]]
        ready = [each for each in ready if each not in inputs] + [name]
        keys = []
        for k in range(rng.choice([1, 1, 2])):
            columns = ", ".join(
                f'{each} = "{rng.choice(below[each])}.{rng.choice(FIELDS)}"' for each in inputs
            )
            keys.append(f'{{ name = "k{joins}_{k}", columns = {{ {columns} }} }}')
        read = ", ".join(f'"{written.get(each, each)}"' for each in inputs)
        lines.append(f"[join.{name}]\ninputs = [{read}]\non = [{', '.join(keys)}]")
    if rng.random() < 0.5:
        shown = [f'"{leaf}.{field}"' for leaf in leaves for field in FIELDS if rng.random() < 0.2]
        lines.append(f"[results]\ncolumns = [{', '.join(shown)}]")
    return "\n".join(lines)


def rows_of(query: Query, seed: int) -> dict[str, list[dict[str, int]]]:
    """A few rows of each stream."""
    rng = random.Random(seed)
    return {
        name: [{f: rng.randrange(VALUES) for f in FIELDS} for _ in range(rng.randint(1, 3))]
        for name in query.streams
    }


def shown(query: Query) -> list[KeySource]:
    """What results carry beside coordinates, in the order of their columns."""
    tree = query.tree
    keys = [tree.source(key, join.inputs[0]) for join in tree.joins for key in join.keys]
    fields = [KeySource(leaf, f.name) for leaf in query.inputs for f in query.payload(leaf)]
    return [*keys, *fields]


def brute_force(query: Query, rows: dict[str, list[dict[str, int]]]) -> Counter[Any]:
    """Every combination of rows in which all keys are equal: (rows by leaf, what is shown)."""
    leaves = query.tree.leaves
    found: Counter[Any] = Counter()
    for picked in itertools.product(*(range(len(rows[leaf.stream])) for leaf in leaves)):
        values = {leaf.name: rows[leaf.stream][n] for leaf, n in zip(leaves, picked, strict=True)}
        sets = [
            {value_of(values, query.tree.source(key, each)) for each in join.inputs}
            for join in query.tree.joins
            for key in join.keys
        ]
        if all(len(each) == 1 for each in sets):
            by_leaf = tuple(sorted(zip((leaf.name for leaf in leaves), picked, strict=True)))
            found[by_leaf, tuple(value_of(values, source) for source in shown(query))] += 1
    return found


def value_of(values: dict[str, dict[str, int]], source: KeySource) -> int:
    """The reference's reading of a source: keys are plain columns here."""
    return values[source.leaf][source.expression]


def by_edges(
    query: Query, rows: dict[str, list[dict[str, int]]], edges: list[Edge]
) -> Counter[Any]:
    """The same from the leaves to the root. A column that an edge does not carry is a KeyError."""
    tree = query.tree
    edge_of = {edge.input: edge for edge in edges}

    def rows_on(edge: Edge) -> list[Row]:
        """What comes along an edge: its columns only."""
        if tree.join(edge.input) is None:
            made: list[Row] = [
                ((n,), {KeySource(edge.input, f): v for f, v in row.items()})
                for n, row in enumerate(rows[query.stream_name(edge.input)])
            ]
        else:
            made = joined(edge.input)
        return [(ids, {column: row[column] for column in edge.columns}) for ids, row in made]

    def joined(name: str) -> list[Row]:
        join = tree.join(name)
        assert join is not None
        found: list[Row] = []
        for picked in itertools.product(*(rows_on(edge_of[each]) for each in join.inputs)):
            ids = tuple(n for each, _ in picked for n in each)
            # Each input answers for its own columns: equal keys have one carrier, the first.
            if all(
                len(
                    {
                        row[tree.carrier(tree.source(key, each), each)]
                        for each, (_, row) in zip(join.inputs, picked, strict=True)
                    }
                )
                == 1
                for key in join.keys
            ):
                found.append((ids, {c: v for _, row in picked for c, v in row.items()}))
        return found

    order = tree.below(tree.root.name)
    asked = [tree.carrier(source, tree.root.name) for source in shown(query)]
    return Counter(
        (tuple(sorted(zip(order, ids, strict=True))), tuple(row[source] for source in asked))
        for ids, row in joined(tree.root.name)
    )


@explored(30, 150, st.integers(0, 2**32), st.integers(0, 2**32), soak=1500)
def test_edges_carry_what_is_needed_and_nothing_else(number: int, seed: int) -> None:
    query = query_of(parse_toml(text_of(number), Path("q.toml")))
    rows = rows_of(query, seed)
    edges = list(QueryEdges(query).edges)
    expected = brute_force(query, rows)
    assert by_edges(query, rows, edges) == expected
    event(f"level {query.tree.level(query.tree.root.name)}, results: {bool(expected)}")
    for position, edge in enumerate(edges):
        assert edge.coordinates == query.tree.below(edge.input)
        assert edge.lineage == query.tree.joins_below(edge.input)
        for column in edge.columns:
            kept = {c: why for c, why in edge.columns.items() if c != column}
            less = Edge(edge.join, edge.input, kept, edge.coordinates, edge.lineage, edge.timed)
            if expected:
                try:
                    by_edges(query, rows, [*edges[:position], less, *edges[position + 1 :]])
                except KeyError:
                    continue
                raise AssertionError(f"{edge.input} carries {column} for nobody")
