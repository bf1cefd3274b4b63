"""A query's joins as the engine keeps them, and the way of rows from one join to the next.

Model: each join is a `JoinSpec`, children first, the root last; a query of one join is a tree of
one. All that a slot keeps is of one *tree*: the inputs of all joins are numbered through, join
after join, and run files, blocks and spilled rows name an input by that number. The joins share the
hashes (`spillway_schemas.hash_space`), so what is known of a hash range is known of one join.

What a join gives goes on as new rows of the one input that it is of its parent: `Upward` picks the
columns that the edge carries (`spillway_schemas.edges`) by their positions, adds the hash of the
join's own key (its lineage) and hashes the parent's key. Rows are not decoded or looked at on the
way. Of the root's rows the results show some columns only: `TreeSpec.shown`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from spillway.engine.groups import I64, U64
from spillway.engine.join.batches import Joined
from spillway.engine.join.hashing import xxhash64
from spillway.engine.join.kernel import Rows
from spillway.engine.join.spec import KAFKA_MS, InputSpec, JoinSpec
from spillway_schemas.hash_space import ROOT, levels, spaces
from spillway_schemas.journal import HASH_BITS, Prefix

Hash = Callable[[Sequence[pa.Array]], U64]


@dataclass(frozen=True)
class Upward:
    """How a join's results become rows of an input of its parent.

    `columns`: positions in the join's joined schema, in the order of the parent's row schema (all
    but the hash of the join's own key, and times, which come after it). `keys`: how many of them,
    from the first on, are the parent's keys.
    """

    input: int
    """The tree's number of the input."""
    columns: tuple[int, ...]
    keys: int


@dataclass(frozen=True)
class TreeSpec:
    """All joins of a query. Picklable. `upward` by join; the root's is None."""

    joins: tuple[JoinSpec, ...]
    upward: tuple[Upward | None, ...]
    shown: tuple[tuple[str, int], ...]
    """Columns of the results: names, and positions in the root's joined schema."""

    @property
    def root(self) -> JoinSpec:
        """The join whose rows are the results."""
        return self.joins[-1]

    @cached_property
    def inputs(self) -> tuple[InputSpec, ...]:
        """The inputs of all joins."""
        return tuple(each for join in self.joins for each in join.inputs)

    @cached_property
    def operators(self) -> tuple[int, ...]:
        """The join of each input."""
        return tuple(n for n, join in enumerate(self.joins) for _ in join.inputs)

    def inputs_of(self, operator: int) -> range:
        """The numbers of a join's inputs."""
        first = self.operators.index(operator)
        return range(first, first + len(self.joins[operator].inputs))

    @cached_property
    def parents(self) -> tuple[int, ...]:
        """The join that reads each join; the root: `ROOT`."""
        return tuple(ROOT if up is None else self.operators[up.input] for up in self.upward)

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """How many joins lie on the longest way below each join, itself included."""
        return levels(self.parents)

    @cached_property
    def distances(self) -> tuple[int, ...]:
        """How many joins lie between each join and the root, itself included; the root: 0."""
        found = [0] * len(self.joins)
        for number in reversed(range(len(self.joins) - 1)):  # parents come last
            found[number] = found[self.parents[number]] + 1
        return tuple(found)

    @property
    def height(self) -> int:
        """The root's level."""
        return self.levels[-1]

    def at_level(self, level: int) -> tuple[int, ...]:
        """The joins of a level."""
        return tuple(n for n, each in enumerate(self.levels) if each == level)

    @cached_property
    def spaces(self) -> tuple[Prefix, ...]:
        """The hashes of each join."""
        return spaces(len(self.joins))

    def join_of_input(self, input_: int) -> JoinSpec:
        """The join that has an input."""
        return self.joins[self.operators[input_]]

    def _local(self, input_: int) -> tuple[JoinSpec, int]:
        operator = self.operators[input_]
        return self.joins[operator], input_ - self.inputs_of(operator).start

    def row_schema(self, input_: int) -> pa.Schema:
        """Keys, payload, identity and times of one input."""
        return self._schemas[input_][0]

    def state_schema(self, input_: int) -> pa.Schema:
        """A row in state: its hash, then the row schema."""
        return self._schemas[input_][1]

    @cached_property
    def _schemas(self) -> tuple[tuple[pa.Schema, pa.Schema], ...]:
        """Row and state schema of each input: every file of a slot is read by them."""
        places = map(self._local, range(len(self.operators)))
        return tuple((join.row_schema(at), join.state_schema(at)) for join, at in places)

    def new_schema(self, input_: int) -> pa.Schema:
        """A new row on its way to a slot: the state schema, then its Kafka timestamp."""
        return pa.schema([*self.state_schema(input_), KAFKA_MS])

    @cached_property
    def result_schema(self) -> pa.Schema:
        """The columns of the results that come from the joins."""
        found = self.root.joined_schema
        return pa.schema([found.field(at).with_name(name) for name, at in self.shown])

    def results(self, joined: pa.Table) -> pa.Table:
        """The root's rows with the columns that results show."""
        picked = [joined.column(at) for _, at in self.shown]
        return pa.Table.from_arrays(picked, schema=self.result_schema)

    def hashes(self, operator: int, keys: Sequence[pa.Array], hash_: Hash = xxhash64) -> U64:
        """The hashes of rows in a join, uint64 (n,), by the columns of its keys."""
        return in_space(self.spaces[operator], hash_(keys))

    def rows_up(self, operator: int, batch: Joined, hash_: Hash = xxhash64) -> Rows:
        """What a batch of a join's results is to its parent: new rows, sorted by hash.

        A new row has the Kafka time of its newest part, where `batch` has one for every result
        (`sample_every` 1).
        """
        up = self.upward[operator]
        assert up is not None, "the root's rows are the results"
        own = pa.array(np.repeat(batch.hashes, batch.results).view(np.int64))
        picked = [batch.table.column(at) for at in up.columns]
        times = batch.table.columns[-2:] if self.joins[operator].timed else []
        table = pa.Table.from_arrays([*picked, own, *times], schema=self.row_schema(up.input))
        hashes = self.hashes(self.operators[up.input], table.columns[: up.keys], hash_)
        order: I64 = np.argsort(hashes, kind="stable")
        stamps = batch.newest_ms[order] if len(batch.newest_ms) else None
        return Rows(hashes[order], table.take(pa.array(order)), stamps)


def in_space(space: Prefix, hashes: U64) -> U64:
    """Hashes of a join's key moved into the join's space."""
    if not space.depth:
        return hashes
    found: U64 = hashes >> np.uint64(space.depth)
    return found | np.uint64(space.value << (HASH_BITS - space.depth))


def one_join(join: JoinSpec) -> TreeSpec:
    """A tree of one join, whose results show all that it gives."""
    shown = tuple((name, at) for at, name in enumerate(join.joined_schema.names))
    return TreeSpec((join,), (None,), shown)
