"""Tracing against the paper's algorithms as they are written: operator by operator, row by row."""

from __future__ import annotations

import random
from bisect import bisect_right
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from spillway.engine.groups import GroupMap
from spillway.policy.lineage import Grouping, sampled, traced
from spillway_schemas.hash_space import ROOT, spaces
from spillway_schemas.journal import Prefix
from tests.lanes import explored


class Tree(NamedTuple):
    """A tree of joins and the groups of each: where they begin, in its own hashes."""

    parents: tuple[int, ...]
    starts: tuple[tuple[int, ...], ...]

    def upstream(self, join: int) -> list[int]:
        """The joins whose rows a join reads."""
        return [n for n, parent in enumerate(self.parents) if parent == join]

    def below(self, join: int) -> list[int]:
        """A join and all below it."""
        return [join, *(each for child in self.upstream(join) for each in self.below(child))]

    def partition(self, join: int, key_hash: int) -> int:
        """The split function of a join."""
        return bisect_right(self.starts[join], key_hash) - 1

    def groupings(self) -> dict[int, Grouping]:
        def grouping(starts: tuple[int, ...]) -> Grouping:
            edges = np.array(starts, dtype=np.uint64)
            return Grouping(
                lambda hashes: np.searchsorted(edges, hashes, side="right") - 1, len(starts)
            )

        return {join: grouping(each) for join, each in enumerate(self.starts)}


Row = dict[int, int]
"""A row: the hash of its key in each join that it came through."""
Figures = dict[int, list[float]]


def zeros(tree: Tree) -> Figures:
    return {join: [0.0] * len(each) for join, each in enumerate(tree.starts)}


def update_statistics(
    tree: Tree, begin: int, rows: list[Row], weights: list[float], figures: Figures
) -> None:
    """Algorithm 1 over a tree, depth first: `begin` directly, then the operators upstream."""
    for row, weight in zip(rows, weights, strict=True):
        figures[begin][tree.partition(begin, row[begin])] += weight
    for above in tree.upstream(begin):
        update_statistics(tree, above, rows, weights, figures)


def drawn(seed: int) -> tuple[Tree, random.Random]:
    rng = random.Random(seed)
    joins = rng.randint(1, 5)
    parents = tuple(ROOT if n == joins - 1 else rng.randrange(n + 1, joins) for n in range(joins))
    starts = tuple(
        tuple(sorted({0, *(rng.randrange(2**64) for _ in range(rng.randrange(5)))}))
        for _ in range(joins)
    )
    return Tree(parents, starts), rng


def rows_of(tree: Tree, join: int, count: int, rng: random.Random) -> list[Row]:
    """Rows that a join gives; few different hashes, some at the edges of groups."""
    edges = [edge for each in tree.starts for edge in each]
    some = [*edges, *((edge - 1) % 2**64 for edge in edges), *(rng.randrange(2**64) for _ in "ab")]
    return [{each: rng.choice(some) for each in tree.below(join)} for _ in range(count)]


def columns(rows: list[Row], joins: list[int]) -> dict[int, np.ndarray]:
    return {join: np.array([row[join] for row in rows], dtype=np.uint64) for join in joins}


def lists(counts: dict[int, np.ndarray]) -> Figures:
    return {join: each.tolist() for join, each in counts.items()}


@explored(30, 400, st.integers(0, 2**32))
def test_tracing_is_algorithm_1(seed: int) -> None:
    tree, rng = drawn(seed)
    root = len(tree.parents) - 1
    rows = rows_of(tree, root, rng.randrange(30), rng)
    expected = zeros(tree)
    update_statistics(tree, root, rows, [1.0] * len(rows), expected)
    found = traced(columns(rows, tree.below(root)), tree.groupings())
    assert lists(found) == expected
    assert all(sum(each) == len(rows) for each in expected.values())


@explored(30, 400, st.integers(0, 2**32))
def test_intermediate_rows_are_traced_from_where_they_came(seed: int) -> None:
    tree, rng = drawn(seed)
    expected, found = zeros(tree), {n: np.zeros(len(s)) for n, s in enumerate(tree.starts)}
    for join, parent in enumerate(tree.parents):
        if parent == ROOT:
            continue
        rows = rows_of(tree, join, rng.randrange(12), rng)
        sizes = [float(rng.randrange(200)) for _ in rows]
        update_statistics(tree, join, rows, sizes, expected)
        lineage = columns(rows, tree.below(join))
        for each, kept in traced(lineage, tree.groupings(), np.array(sizes)).items():
            found[each] += kept
    assert lists(found) == expected


@explored(20, 200, st.integers(0, 2**32), st.integers(2, 40))
def test_a_sample_counts_rows_that_are_there(seed: int, most: int) -> None:
    tree, rng = drawn(seed)
    root = len(tree.parents) - 1
    rows = rows_of(tree, root, rng.randrange(60), rng)
    lineage = columns(rows, tree.below(root))
    true = traced(lineage, tree.groupings())
    found = sampled(lineage, tree.groupings(), most, seed)
    for join, counts in found.items():
        assert (counts[true[join] == 0] == 0).all()
        assert np.isclose(counts.sum(), len(rows))
        whole = counts * min(most, len(rows)) / max(len(rows), 1)
        assert np.allclose(whole, whole.round())
        if len(rows) <= most:
            assert counts.tolist() == true[join].tolist()


@explored(10, 100, st.integers(0, 2**32), st.integers(1, 5))
def test_groups_of_all_joins_may_be_numbered_through(seed: int, joins: int) -> None:
    """As the engine has them: one map for all joins, each in its own part of the hashes."""
    rng = random.Random(seed)
    prefixes = []
    for space in spaces(joins):
        depth = rng.randrange(4)
        prefixes += [
            Prefix(space.depth + depth, (space.value << depth) + value)
            for value in range(1 << depth)
        ]
    groups = GroupMap((each, 0) for each in prefixes)
    grouping = Grouping(groups.group_of, len(groups))
    lineage = {
        join: np.array([rng.randrange(space.lo, space.hi) for _ in range(20)], dtype=np.uint64)
        for join, space in enumerate(spaces(joins))
    }
    counts = traced(lineage, dict.fromkeys(range(joins), grouping))
    together = np.sum(list(counts.values()), axis=0)
    expected = [0] * len(groups)
    for join in range(joins):
        for each in lineage[join].tolist():
            (at,) = (n for n, p in enumerate(prefixes) if p.lo <= each < p.hi)
            expected[at] += 1
    assert together.tolist() == expected
