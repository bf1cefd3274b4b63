"""The tree of a query's joins: which join reads which, and where a key's values come from.

Model: an input of a join is a stream or another join. The *root* is the one join that no other
reads. A *leaf* is one reading of a stream: `"stock"` alone, or `"stock as later"` where the tree
reads the stream once more; a result has one coordinate for each leaf. Joins are kept children
first, so that one pass in this order goes from the leaves to the root.

A key's value in an input that is a join comes from one leaf below it:

| written | taken from |
|---|---|
| `c.y`, or an expression over columns of one leaf: `date_trunc('minute', c.ts)` | that leaf |
| `y`, the name of a key of a join below | that key |
| `y`, a column that one leaf alone has | that leaf |

Nothing here knows a file or its lines: what is wrong is a `TreeProblem` with its place in the
query, and `spillway_schemas.query` says which line that is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from spillway_schemas.expressions import (
    ExpressionError,
    column_text,
    columns_of,
    normalised,
    plain_column,
    unqualified,
)
from spillway_schemas.messages import NAME


class TreeProblem(NamedTuple):
    """What is wrong, and where: a join (`None`: all of them) and a place below it."""

    join: str | None
    place: tuple[str | int, ...]
    message: str


class Leaf(NamedTuple):
    """One reading of a stream."""

    name: str
    stream: str


class KeySource(NamedTuple):
    """Where the values of a key come from: an expression over the columns of one leaf."""

    leaf: str
    expression: str

    @classmethod
    def column(cls, leaf: str, name: str) -> KeySource:
        """A column of the leaf as it is."""
        return cls(leaf, column_text(name))


class NamedKey(NamedTuple):
    """A key of a join: its name, and what it is in each input (an input that is not there has no
    source)."""

    name: str
    sources: Mapping[str, str]


def leaf_of(text: str) -> Leaf:
    """`"stock"` or `"stock as later"` as a leaf."""
    words = text.split()
    if len(words) == 3 and words[1].lower() == "as":
        return Leaf(words[2], words[0])
    return Leaf(text, text)


@dataclass(frozen=True)
class TreeJoin:
    """One join: `inputs` are names of leaves and of joins, in the query's order."""

    name: str
    inputs: tuple[str, ...]
    keys: tuple[NamedKey, ...]


@dataclass(frozen=True)
class JoinTree:
    """A tree of joins. Made by `tree_of`, which says what is wrong with it.

    `joins`: children first, the root last. `leaves`: in the order in which the joins, children
    first, read them. `columns`: the names of each leaf's columns.
    """

    joins: tuple[TreeJoin, ...]
    leaves: tuple[Leaf, ...]
    columns: Mapping[str, frozenset[str]] = field(hash=False)

    @property
    def root(self) -> TreeJoin:
        """The join that no other reads."""
        return self.joins[-1]

    @cached_property
    def _by_name(self) -> dict[str, TreeJoin]:
        return {each.name: each for each in self.joins}

    def join(self, name: str) -> TreeJoin | None:
        """The join of a name; None: it is a leaf's."""
        return self._by_name.get(name)

    @property
    def parents(self) -> dict[str, int]:
        """Per join, children first, the number of the join that reads it; the root: -1."""
        reader = {each: n for n, join in enumerate(self.joins) for each in join.inputs}
        return {join.name: reader.get(join.name, -1) for join in self.joins}

    @property
    def own_leaves(self) -> tuple[int, ...]:
        """How many leaves each join, children first, reads itself."""
        return tuple(sum(self.join(each) is None for each in j.inputs) for j in self.joins)

    def below(self, name: str) -> tuple[str, ...]:
        """Names of the leaves below an input (a leaf: itself), from left to right."""
        found = self.join(name)
        if found is None:
            return (name,)
        return tuple(leaf for each in found.inputs for leaf in self.below(each))

    def joins_below(self, name: str) -> tuple[str, ...]:
        """Names of an input and of all joins below it, children first; none for a leaf."""
        found = self.join(name)
        if found is None:
            return ()
        return (*(each for i in found.inputs for each in self.joins_below(i)), name)

    def level(self, name: str) -> int:
        """0 for a leaf, otherwise one more than the highest input's."""
        found = self.join(name)
        return 0 if found is None else 1 + max(map(self.level, found.inputs))

    def source(self, key: NamedKey, input_: str) -> KeySource:
        """Where a key of a join comes from in one of its inputs, as it is written first in the
        tree: `ts+1` and `ts + 1` are one source. Raises ExpressionError."""
        found = self._as_written(key, input_)
        return self._first_written.get(_meaning(found), found)

    @cached_property
    def _first_written(self) -> dict[KeySource, KeySource]:
        """By what a source means, how the tree writes it first."""
        found: dict[KeySource, KeySource] = {}
        for join in self.joins:
            for key in join.keys:
                for each in join.inputs:
                    with suppress(ExpressionError):  # `source` says it of this key
                        written = self._as_written(key, each)
                        meant = _meaning(written)
                        plain = plain_column(written.expression) is not None
                        found.setdefault(meant, meant if plain else written)
        return found

    def _as_written(self, key: NamedKey, input_: str) -> KeySource:
        if (text := key.sources.get(input_)) is None:
            raise ExpressionError(f"columns says nothing for input {input_}")
        leaf, expression = unqualified(text)
        below = self.below(input_)
        if leaf is not None:
            if self.join(leaf) is not None:
                raise ExpressionError(f"{leaf} is a join: write {expression} without it")
            if leaf not in below:
                raise ExpressionError(f"no stream {leaf} is below; there are: {', '.join(below)}")
            columns_of(expression, self.columns[leaf])
            return KeySource(leaf, expression)
        if self.join(input_) is None:
            columns_of(text, self.columns[input_])
            return KeySource(input_, text)
        return self._above_a_join(text, input_)

    def carrier(self, source: KeySource, input_: str) -> KeySource:
        """Which of the sources that are equal in every row of an input stands for one of them.

        The first of them stands for all, so that a row carries such a value once.
        """
        equal = self.equal(self.joins_below(input_))
        return next((each[0] for each in equal if source in each), source)

    def equal(self, joins: Iterable[str]) -> list[list[KeySource]]:
        """The sources that the keys of some joins, children first, make equal, through any chain
        of keys."""
        found: list[list[KeySource]] = []
        for join in map(self._by_name.__getitem__, joins):
            for key in join.keys:
                merged = list(dict.fromkeys(self.source(key, each) for each in join.inputs))
                for known in [each for each in found if not set(each).isdisjoint(merged)]:
                    found.remove(known)
                    merged = known + [each for each in merged if each not in known]
                found.append(merged)
        return found

    def _above_a_join(self, text: str, input_: str) -> KeySource:
        """What an expression means that names no stream, in an input that is a join."""
        below = self.below(input_)
        for name in self.joins_below(input_):
            found = self._by_name[name]
            for key in found.keys:
                if key.name == plain_column(text):
                    return self._as_written(key, found.inputs[0])
        used = columns_of(text, frozenset().union(*(self.columns[leaf] for leaf in below)))
        having = [leaf for leaf in below if used <= self.columns[leaf]]
        if not having:
            raise ExpressionError(
                f"{text} reads columns of several streams: a key comes from one of them"
            )
        if len(having) > 1:
            column = min(used)
            choices = " or ".join(f"{leaf}.{column}" for leaf in having)
            raise ExpressionError(f"{column} is ambiguous: write {choices}")
        return KeySource(having[0], text)


def _meaning(source: KeySource) -> KeySource:
    """The same for every way to write it."""
    if (column := plain_column(source.expression)) is not None:
        return KeySource.column(source.leaf, column)
    return KeySource(source.leaf, normalised(source.expression))


def tree_of(
    joins: Mapping[str, tuple[Sequence[str], Sequence[NamedKey]]],
    columns: Mapping[str, frozenset[str]],
) -> tuple[JoinTree | None, list[TreeProblem]]:
    """The tree of named joins (inputs as written, keys) over streams (names of their columns).

    No tree when its shape is wrong; keys are then not looked at.
    """
    leaves: list[Leaf] = []
    named: dict[str, TreeJoin] = {}
    problems: list[TreeProblem] = []
    for name, (inputs, keys) in joins.items():
        read = [leaf_of(each) for each in inputs]
        leaves += [each for each in read if each.stream not in joins]
        named[name] = TreeJoin(name, tuple(each.name for each in read), tuple(keys))
        problems += _names(name, read, joins, columns)
    # Of inputs that are nothing no shape can be told.
    if problems := problems or list(_shape(named, leaves)):
        return None, problems
    ordered = tuple(_children_first(named, _roots(named)[0]))
    by_name = {leaf.name: leaf for leaf in leaves}
    order = [each for join in ordered for each in join.inputs if each in by_name]
    tree = JoinTree(
        ordered,
        tuple(by_name[name] for name in order),
        {leaf.name: columns[leaf.stream] for leaf in leaves},
    )
    return tree, list(_keys(tree))


def _names(
    join: str,
    read: Sequence[Leaf],
    joins: Mapping[str, object],
    columns: Mapping[str, object],
) -> Iterator[TreeProblem]:
    """Inputs that are nothing, and names that cannot be used."""
    if not NAME.fullmatch(join):
        yield TreeProblem(join, (), f"{join!r} is not a name: use letters, digits, _")
    if join in columns:
        yield TreeProblem(join, (), f"{join} is a stream, too: give the join a name of its own")
    for name, stream in read:
        renamed = name != stream
        if stream not in columns and stream not in joins:
            listed = ", ".join(columns)
            others = ", ".join(each for each in joins if each != join)
            message = f"there is no stream {stream!r}; there are: {listed}"
            message += f"; and the joins {others}" if others else ""
            first, _, second = stream.partition(" ")
            if first in columns and second:
                message += f'. To read {first} again: "{first} as {second.split()[-1]}"'
            yield TreeProblem(join, ("inputs",), message)
        elif renamed and stream in joins:
            yield TreeProblem(join, ("inputs",), f"{stream} is a join: only a stream is renamed")
        elif renamed and not NAME.fullmatch(name):
            yield TreeProblem(join, ("inputs",), f"{name!r} is not a name: use letters, digits, _")
        elif renamed and (name in columns or name in joins):
            kind = "stream" if name in columns else "join"
            yield TreeProblem(join, ("inputs",), f"there is a {kind} {name}: choose another name")


def _shape(named: Mapping[str, TreeJoin], leaves: Sequence[Leaf]) -> Iterator[TreeProblem]:
    """A circle; or joins beside the root; or inputs that are read twice."""
    if circle := next(filter(None, (_circle(named, name) for name in named)), None):
        yield TreeProblem(
            circle[0],
            ("inputs",),
            f"these joins read each other in a circle: {' <- '.join([*circle, circle[0]])}; "
            "take one of them out of the other's inputs",
        )
        return
    if len(roots := _roots(named)) > 1:
        yield TreeProblem(
            roots[-1],
            (),
            f"no join reads {' or '.join(roots)}, and only one may be the root: make "
            f"the others its inputs, or inputs of what it reads",
        )
        return
    names = [leaf.name for leaf in leaves]
    for twice in dict.fromkeys(name for name in names if names.count(name) > 1):
        join = [j.name for j in named.values() if twice in j.inputs][-1]
        yield TreeProblem(
            join,
            ("inputs",),
            f"stream {twice} is read twice: give one of them a name of its own, "
            f'e.g. "{twice} as {twice}_2"',
        )
    readers = [each for join in named.values() for each in join.inputs if each in named]
    for twice in dict.fromkeys(name for name in readers if readers.count(name) > 1):
        join = [j.name for j in named.values() if twice in j.inputs][-1]
        yield TreeProblem(join, ("inputs",), f"join {twice} is an input twice: list it only once")


def _roots(named: Mapping[str, TreeJoin]) -> list[str]:
    read = {each for join in named.values() for each in join.inputs}
    return [name for name in named if name not in read]


def _circle(named: Mapping[str, TreeJoin], name: str) -> list[str]:
    """From a join down to itself, each the input of the one before; nothing: it is in no circle."""
    way: dict[str, str] = {}
    ahead = [name]
    while ahead:
        above = ahead.pop()
        for each in named[above].inputs:
            if each == name:
                found = [above]
                while found[-1] != name:
                    found.append(way[found[-1]])
                return found[::-1]
            if each in named and each not in way:
                way[each] = above
                ahead.append(each)
    return []


def _children_first(named: Mapping[str, TreeJoin], name: str) -> Iterator[TreeJoin]:
    """A join and those below it, children first."""
    for each in named[name].inputs:
        if each in named:
            yield from _children_first(named, each)
    yield named[name]


def _keys(tree: JoinTree) -> Iterator[TreeProblem]:
    """What is wrong with each join's keys."""
    for join in tree.joins:
        for position, key in enumerate(join.keys):
            for extra in sorted(set(key.sources) - set(join.inputs)):
                yield TreeProblem(
                    join.name,
                    ("on", position),
                    f"key {key.name}: {extra!r} is not an input; there are "
                    + ", ".join(join.inputs),
                )
            for input_ in join.inputs:
                try:
                    tree.source(key, input_)
                except ExpressionError as error:
                    said = f"key {key.name} of {input_}: {error}"
                    if input_ not in key.sources:
                        said = f"key {key.name}: {error}"
                    yield TreeProblem(join.name, ("on", position), said)
