"""What a join is: its operator number, its key columns and its inputs.

Column orders that the whole engine relies on (columns are found by position, never by name, so
a payload column may be called `offset` or `key_hash`):

* row schema of an input:  keys..., payload..., identity..., times...
* identity of a stream's row: `partition` int32, `offset` int64; of a join's row: the same for each
  leaf below, `<leaf>_partition`, `<leaf>_offset`, then `<join>_hash` int64 for each join below
  (its lineage: the hash of that join's key)
* times, where a window asks for them: of a stream's row `time_us` int64; of a join's row `least_us`
  and `greatest_us` of its parts
* state schema:            `key_hash` uint64, then the row schema
* new-row schema:          the state schema, then `kafka_ms` int64
* joined schema:           keys..., `<input>_<payload>`... per input, then the identity per input,
  `<input>_partition`, `<input>_offset` for a stream; what comes from a join keeps its name; then
  `least_us` and `greatest_us`, where a window above asks for them
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from spillway_schemas.windows import Span

KEY_HASH = pa.field("key_hash", pa.uint64(), nullable=False)
PARTITION = pa.field("partition", pa.int32(), nullable=False)
OFFSET = pa.field("offset", pa.int64(), nullable=False)
KAFKA_MS = pa.field("kafka_ms", pa.int64(), nullable=False)
TIME_US = pa.field("time_us", pa.int64(), nullable=False)
LEAST_US = pa.field("least_us", pa.int64(), nullable=False)
GREATEST_US = pa.field("greatest_us", pa.int64(), nullable=False)


@dataclass(frozen=True)
class InputSpec:
    """One input of a join: its name (the leaf's or the join's) and its columns beside the keys."""

    name: str
    payload: pa.Schema
    leaves: tuple[str, ...] = ()
    """Of an input that is a join: the leaves below it. Without any it is a stream."""
    lineage: tuple[str, ...] = ()
    """The joins below it, itself the last."""
    timed: bool = False
    """Whether its rows have times."""
    optional: bool = False
    """Whether a result may lack its row, where it has none of the key."""

    @property
    def times(self) -> tuple[pa.Field, ...]:
        """The columns of its rows' times: the first is the least, the last the greatest."""
        if not self.timed:
            return ()
        return (LEAST_US, GREATEST_US) if self.leaves else (TIME_US,)

    @property
    def identity(self) -> pa.Schema:
        """What tells its rows apart, and the hashes by which they came."""
        if not self.leaves:
            return pa.schema([PARTITION, OFFSET])
        coordinates = [_of(leaf, field) for leaf in self.leaves for field in (PARTITION, OFFSET)]
        return pa.schema([*coordinates, *(lineage_field(join) for join in self.lineage)])

    @property
    def joined_payload(self) -> list[pa.Field]:
        """The payload's columns in the join's rows."""
        return list(self.payload) if self.leaves else [self._shown(f) for f in self.payload]

    @property
    def joined_identity(self) -> list[pa.Field]:
        """The identity's columns in the join's rows."""
        return list(self.identity) if self.leaves else [self._shown(f) for f in self.identity]

    def _shown(self, field: pa.Field) -> pa.Field:
        named = _of(self.name, field)
        return named.with_nullable(True) if self.optional else named


def _of(name: str, field: pa.Field) -> pa.Field:
    return field.with_name(f"{name}_{field.name}")


def lineage_field(join: str) -> pa.Field:
    """The column of the hash of a join's key, in rows above it: signed, as Delta has no other."""
    return pa.field(f"{join}_hash", pa.int64(), nullable=False)


@dataclass(frozen=True)
class JoinSpec:
    """An m-way equi-join, m >= 2. Picklable.

    Raises ValueError when there are fewer than two inputs, no key, when two columns of the
    result would have the same name, or when a time is asked of rows that have none.
    """

    operator: int
    keys: pa.Schema
    inputs: tuple[InputSpec, ...]
    span: Span | None = None
    """Which times join; None: all."""
    timed: bool = False
    """Whether the rows that it gives have times: a join above asks for them."""

    def __post_init__(self) -> None:
        if len(self.inputs) < 2:
            raise ValueError(f"a join needs two inputs or more, got {len(self.inputs)}")
        if not len(self.keys):
            raise ValueError("a join needs at least one key column")
        twice = [name for name, n in Counter(self.joined_schema.names).items() if n > 1]
        if twice:
            raise ValueError(
                f"two columns of the result would be called {twice[0]!r}: "
                "rename the stream or the field in the query"
            )
        if (self.timed or self.span is not None) and not all(each.timed for each in self.inputs):
            raise ValueError("a join goes by time, and rows of one of its inputs have none")

    @property
    def is_outer(self) -> bool:
        """Whether some results may lack a row of an input."""
        return any(each.optional for each in self.inputs)

    def row_schema(self, input_: int) -> pa.Schema:
        """Keys, payload, identity and times of one input."""
        each = self.inputs[input_]
        return pa.schema([*self.keys, *each.payload, *each.identity, *each.times])

    def state_schema(self, input_: int) -> pa.Schema:
        """A row in state: its hash, then the row schema."""
        return pa.schema([KEY_HASH, *self.row_schema(input_)])

    def new_schema(self, input_: int) -> pa.Schema:
        """A new row on its way to a slot: the state schema, then its Kafka timestamp."""
        return pa.schema([*self.state_schema(input_), KAFKA_MS])

    @cached_property
    def joined_schema(self) -> pa.Schema:
        """What the join gives: keys once, then the payload and then the identity of each input,
        then the times of all."""
        payloads = [field for each in self.inputs for field in each.joined_payload]
        identities = [field for each in self.inputs for field in each.joined_identity]
        times = [LEAST_US, GREATEST_US] if self.timed else []
        return pa.schema([*self.keys, *payloads, *identities, *times])
