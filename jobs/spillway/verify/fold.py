"""The sums of a whole tree without its results: the fold. Pure; it makes SQL.

Let w be a number for each row of each leaf, and the weight of a result the product of its rows'
numbers. The fold gives, for each key of the root, the sum of the weights of all results that there
should be, from sums of the leaves alone. With w = 1 that is the number of results.

Model: a *relation* has some of the tree's values (`values.TreeValues`) and, for each combination of
them that occurs, the sum of the weights. At first each leaf is one. Two relations become one by a
step, until one is left:

* *absorb*: all that the other has in common with anyone, the `into` has as well. The other is
  summed by what both have, and each row of `into` is multiplied with the one sum that fits. No
  relation grows: this is linear.
* *join*: every pair that fits is multiplied, and summed by the values that are still needed. It is
  taken only when nothing can be absorbed. There are as many sums as combinations of keys.

Both are right because a product of sums is the sum over all combinations. That the first is enough
wherever each input of each join takes the join's keys from one leaf, is proved in `docs/proof.md`.

All numbers are residues modulo the two primes of `arithmetic`, below 2^31: a product of two and a
sum of 2^32 of them fit into 64 bits. Numbers of results are folded modulo both (`c`, `d`), and once
more as a double (`f`), which says whether the residues name the number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spillway.decode.values import LeafValues, TreeValues
from spillway.verify.arithmetic import PRIMES

SUMS = {"c": PRIMES[0], "d": PRIMES[1], "f": None, "a": PRIMES[0], "b": PRIMES[1]}
"""Columns of a relation and their moduli: number of results, and sums of hashes."""


@dataclass(frozen=True)
class FoldStep:
    """`other` goes into `into` (both numbers of leaves); values are numbers of `TreeValues`."""

    into: int
    other: int
    on: tuple[int, ...]
    """What both have."""
    kept: tuple[int, ...]
    """What `into` has from then on."""
    absorbs: bool
    """Nothing grows; otherwise all pairs are made."""


@dataclass(frozen=True)
class TreeFold:
    """The steps of a tree, and how the relation that is left is summed."""

    values: TreeValues
    steps: tuple[FoldStep, ...]
    last: int
    """The relation that is left."""

    @property
    def joined(self) -> tuple[tuple[str, str], ...]:
        """Which leaves' keys are combined; none: the fold is linear."""
        names = [leaf.name for leaf in self.values.leaves]
        return tuple((names[s.into], names[s.other]) for s in self.steps if not s.absorbs)


def fold_of(values: TreeValues) -> TreeFold:
    """The steps that fold a tree."""
    left = {i: frozenset(leaf.values) for i, leaf in enumerate(values.leaves)}
    by = frozenset(values.by)
    steps = []
    while len(left) > 1:
        step = _absorbed(left, by) or _paired(left, by)
        steps.append(step)
        left[step.into] = frozenset(step.kept)
        del left[step.other]
    return TreeFold(values, tuple(steps), next(iter(left)))


def _absorbed(left: dict[int, frozenset[int]], by: frozenset[int]) -> FoldStep | None:
    """A relation of which another has all that anyone asks of it; small ones first."""
    found = []
    for other, has in left.items():
        asked = has & _elsewhere(left, by, other)
        for into, more in left.items():
            if into != other and asked <= more:
                found.append((len(more), len(has), into, other, asked))
    if not found:
        return None
    _, _, into, other, asked = min(found)
    return FoldStep(into, other, _sorted(asked), _sorted(left[into]), absorbs=True)


def _paired(left: dict[int, frozenset[int]], by: frozenset[int]) -> FoldStep:
    """The two relations that leave the fewest values; of these, the two that share the most."""
    found = []
    for into, some in left.items():
        for other, more in left.items():
            if into < other and some & more:
                kept = (some | more) & _elsewhere(left, by, into, other)
                found.append((len(kept), -len(some & more), into, other, kept))
    _, _, into, other, kept = min(found)
    return FoldStep(into, other, _sorted(left[into] & left[other]), _sorted(kept), absorbs=False)


def _elsewhere(left: dict[int, frozenset[int]], by: frozenset[int], *but: int) -> frozenset[int]:
    """The values that anyone else asks for."""
    return by.union(*(has for each, has in left.items() if each not in but))


def _sorted(values: frozenset[int]) -> tuple[int, ...]:
    return tuple(sorted(values))


# --- as SQL ----------------------------------------------------------------------------------


def fold_sql(fold: TreeFold, tables: Sequence[str]) -> str:
    """The fold as one statement. It gives a row for each key of the root that has results: the
    columns `v<value>` of the root's key, and `SUMS`.

    `tables`: one for each leaf, in order, with a row for each combination of its sources: `k0`,
    `k1`, ... (null where the rows were rejected), `n` rows, and the sums `a` and `b` of residues.
    """
    parts = [
        f"r{i} AS ({_leaf_sql(leaf, table)})"
        for i, (leaf, table) in enumerate(zip(fold.values.leaves, tables, strict=True))
    ]
    name = {i: f"r{i}" for i in range(len(tables))}
    has = {i: _sorted(frozenset(leaf.values)) for i, leaf in enumerate(fold.values.leaves)}
    for n, step in enumerate(fold.steps):
        other = name[step.other]
        if step.absorbs and step.on != has[step.other]:
            parts.append(f"m{n} AS ({_summed(step.on, other)})")
            other = f"m{n}"
        parts.append(f"s{n} AS ({_product(step, has[step.into], name[step.into], other)})")
        name[step.into], has[step.into] = f"s{n}", step.kept
    by = fold.values.by
    return f"WITH {', '.join(parts)} {_summed(by, name[fold.last])}"


def _leaf_sql(leaf: LeafValues, table: str) -> str:
    """A leaf's rows by its values; rows in which sources of one value differ are in no result."""
    columns = [f"k{leaf.values.index(value)} AS v{value}" for value in sorted(leaf.has)]
    equal = [
        f"k{leaf.values.index(value)} = k{source}"
        for source, value in enumerate(leaf.values)
        if leaf.values.index(value) != source
    ]
    where = " AND ".join(["k0 IS NOT NULL", *equal])
    first, second = PRIMES
    sums = (
        f"n % {first} AS c, n % {second} AS d, CAST(n AS DOUBLE) AS f, "
        f"a % {first} AS a, b % {second} AS b"
    )
    return f"SELECT {', '.join(columns)}, {sums} FROM {table} WHERE {where}"


def _summed(by: Sequence[int], table: str) -> str:
    columns = ", ".join(f"v{value}" for value in by)
    sums = ", ".join(_sum(name, name) for name in SUMS)
    return f"SELECT {columns}, {sums} FROM {table} GROUP BY {columns}"


def _product(step: FoldStep, has: Sequence[int], into: str, other: str) -> str:
    joined = " AND ".join(f"x.v{value} = y.v{value}" for value in step.on)
    columns = [f"{'x' if value in has else 'y'}.v{value}" for value in step.kept]
    named = ", ".join(f"{each} AS {each[2:]}" for each in columns)
    source = f"FROM {into} AS x JOIN {other} AS y ON {joined}"
    if step.absorbs:
        products = ", ".join(f"{_times(name)} AS {name}" for name in SUMS)
        return f"SELECT {named}, {products} {source}"
    sums = ", ".join(_sum(_times(name), name) for name in SUMS)
    return f"SELECT {named}, {sums} {source} GROUP BY {', '.join(columns)}"


def _times(name: str) -> str:
    return _modulo(f"x.{name} * y.{name}", SUMS[name])


def _sum(what: str, name: str) -> str:
    return f"{_modulo(f'SUM({what})', SUMS[name])} AS {name}"


def _modulo(what: str, prime: int | None) -> str:
    return what if prime is None else f"({what}) % {prime}"
