"""What a join is: its operator number, its key columns and its inputs.

Column orders that the whole engine relies on (columns are found by position, never by name, so
a payload column may be called `offset` or `key_hash`):

* row schema of an input:  keys..., payload..., `partition` int32, `offset` int64
* state schema:            `key_hash` uint64, then the row schema
* new-row schema:          the state schema, then `kafka_ms` int64
* joined schema:           keys..., `<input>_<payload>`... per input, then `<input>_partition`,
  `<input>_offset` per input
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

KEY_HASH = pa.field("key_hash", pa.uint64(), nullable=False)
PARTITION = pa.field("partition", pa.int32(), nullable=False)
OFFSET = pa.field("offset", pa.int64(), nullable=False)
KAFKA_MS = pa.field("kafka_ms", pa.int64(), nullable=False)


@dataclass(frozen=True)
class InputSpec:
    """One input of a join: its name (the stream's) and its columns beside the keys."""

    name: str
    payload: pa.Schema


@dataclass(frozen=True)
class JoinSpec:
    """An m-way equi-join, m >= 2. Picklable.

    Raises ValueError when there are fewer than two inputs, no key, or when two columns of the
    result would have the same name.
    """

    operator: int
    keys: pa.Schema
    inputs: tuple[InputSpec, ...]

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

    def row_schema(self, input_: int) -> pa.Schema:
        """Keys, payload and coordinate of one input."""
        return pa.schema([*self.keys, *self.inputs[input_].payload, PARTITION, OFFSET])

    def state_schema(self, input_: int) -> pa.Schema:
        """A row in state: its hash, then the row schema."""
        return pa.schema([KEY_HASH, *self.row_schema(input_)])

    def new_schema(self, input_: int) -> pa.Schema:
        """A new row on its way to a slot: the state schema, then its Kafka timestamp."""
        return pa.schema([*self.state_schema(input_), KAFKA_MS])

    @cached_property
    def joined_schema(self) -> pa.Schema:
        """What the join gives: keys once, prefixed payloads, one coordinate per input."""
        payloads = [
            field.with_name(f"{each.name}_{field.name}")
            for each in self.inputs
            for field in each.payload
        ]
        coordinates = [
            field.with_name(f"{each.name}_{field.name}")
            for each in self.inputs
            for field in (PARTITION, OFFSET)
        ]
        return pa.schema([*self.keys, *payloads, *coordinates])
