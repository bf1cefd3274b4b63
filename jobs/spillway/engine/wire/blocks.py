"""Blocks: everything that crosses the shuffle, as Arrow IPC inside one binary column.

Rows never travel as rows. A block row is `slot, kind, operator, input, block`:

| kind | block |
|---|---|
| `anchor` | null; one a slot, pins the slot's task to its host |
| `new` | IPC stream of the input's new-row schema (`spec`), sorted by unsigned `key_hash` |
| `state` | IPC stream of the input's state schema, sorted: rows of groups that moved here |
| `restore` | the same: rows made again for groups that were lost; no output |
| `replay` | IPC stream of the new-row schema, its last column the row's interval (see
  `spillway.engine.replay`): for the probe alone |
| `carry` | IPC stream of the new-row schema: rows of the session before, which join with those of
  the block's session but not with each other |
| `deferred` | IPC stream of the new-row schema, its last column the first of the session's epochs
  with a cut in which, or before which, the row came: for cleanup alone |
| `figures` | IPC stream of `FIGURES_SCHEMA`: what no row tells of the groups that moved here |
| `moved` | JSON of a `Moved`, for each join from each slot that groups come from (its number is
  `input`) |
| `given` | IPC stream of `GIVEN_SCHEMA`: what a join below the root gave in this epoch; for the
  steps of the slots that have the groups |
| `missing` | JSON: the slots whose state probes below did not find (`input`: 0), each with
  the reason, or an empty text if the sender only heard of it |
| `rejected` | IPC stream of `REJECTED_SCHEMA` |
| `count` | JSON of a list of `PartitionCount` (`input`: `READ`, `RESTORED` or `CARRIED`) |

`operator` is the join that a block is for, `input` the tree's number of an input unless the table
says otherwise. The IPC schema's metadata carries `session` (date) and `stream` (name). Encoding and
decoding stand side by side; the layout of every kind is checked when it is read (ValueError).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spillway.engine.groups import U64, Bool, GroupMap
from spillway.engine.join.hashing import xxhash64
from spillway.engine.join.kernel import Rows
from spillway.engine.join.spec import KAFKA_MS, OFFSET, PARTITION, TIME_US
from spillway.engine.join.tree import Hash, TreeSpec
from spillway.engine.state.runs import RunFile
from spillway_schemas.journal import PartitionCount

BLOCK_SCHEMA = pa.schema(
    [
        pa.field("slot", pa.int32()),
        pa.field("kind", pa.string()),
        pa.field("operator", pa.int32()),
        pa.field("input", pa.int32()),
        pa.field("block", pa.binary()),
    ]
)
ROW_KINDS = ("new", "state", "restore", "replay", "carry", "deferred")
STAMPED = ("new", "replay", "carry", "deferred")
"""Kinds of blocks whose rows have one column more, the last."""
PROBED = (*ROW_KINDS, "moved", "missing")
"""Kinds of blocks that the probe of a join needs."""
UNSTEPPED = ("replay",)
"""Kinds of blocks that no step needs."""

READ, RESTORED, CARRIED = 0, 1, 2
"""The `input` of a `count` block: what its rows were read for (of a cleanup's: `RESTORED`)."""

GIVEN_SCHEMA = pa.schema(
    [
        pa.field("session", pa.string(), nullable=False),
        pa.field("group", pa.int64(), nullable=False),
        pa.field("results", pa.int64(), nullable=False),
        pa.field("downstream_bytes", pa.float64(), nullable=False),
    ]
)
"""By session and group (its index in the assignment): what the join of the block gave, and the
bytes of it that came through the group; the latter of groups of joins below it, too."""

REJECTED_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("value", pa.binary()),
        pa.field("kafka_ms", pa.int64(), nullable=False),
    ]
)


@dataclass(frozen=True)
class Block:
    """One block row. `data` is bytes or a pyarrow buffer; None for an anchor."""

    slot: int
    kind: str
    operator: int = 0
    input: int = 0
    data: Any = None


@dataclass(frozen=True)
class Moved:
    """What one slot gave to another, or that it could not: its state was not found."""

    found: bool
    rows: int = 0
    files: tuple[RunFile, ...] = ()
    """Of these rows, what lies in the new owner's folder already."""


@dataclass(frozen=True)
class Coordinates:
    """Where rows came from, and when: `partition` int32 (n,), `offset` int64 (n,), `kafka_ms` int64
    (n,), and where a window asks for their own times `time_us` int64 (n,)."""

    partition: npt.NDArray[np.int32]
    offset: npt.NDArray[np.int64]
    kafka_ms: npt.NDArray[np.int64]
    time_us: npt.NDArray[np.int64] | None = None

    def only(self, mask: Bool) -> Coordinates:
        """Some of them, by flags (n,)."""
        times = None if self.time_us is None else self.time_us[mask]
        return Coordinates(self.partition[mask], self.offset[mask], self.kafka_ms[mask], times)


def to_batch(blocks: Iterable[Block]) -> pa.RecordBatch:
    """Block rows as one Arrow batch of `BLOCK_SCHEMA`."""
    rows = list(blocks)
    columns = [
        pa.array([b.slot for b in rows], pa.int32()),
        pa.array([b.kind for b in rows], pa.string()),
        pa.array([b.operator for b in rows], pa.int32()),
        pa.array([b.input for b in rows], pa.int32()),
        _binary([b.data for b in rows]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=BLOCK_SCHEMA)


def _binary(values: Sequence[Any]) -> pa.Array:
    """Bytes and buffers as one binary column, each copied once."""
    ends = np.cumsum([0 if v is None else len(memoryview(v)) for v in values], dtype=np.int32)
    offsets = np.concatenate([np.zeros(1, dtype=np.int32), ends])
    present = pa.array([v is not None for v in values], pa.bool_())
    data = pa.py_buffer(b"".join(v for v in values if v is not None))
    buffers = [present.buffers()[1], pa.py_buffer(offsets), data]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def from_batch(batch: pa.RecordBatch) -> Iterator[Block]:
    """The inverse of `to_batch`; the data are views of the batch's buffers."""
    slots, kinds, operators, inputs = (batch.column(i).to_pylist() for i in range(4))
    data = batch.column(4)
    for row, (slot, kind, operator, input_) in enumerate(
        zip(slots, kinds, operators, inputs, strict=True)
    ):
        yield Block(slot, kind, operator or 0, input_ or 0, data[row].as_buffer())


def encode_rows(
    batch: pa.RecordBatch, *, session: str, stream: str, compressed: bool = False
) -> pa.Buffer:
    """One batch of rows as an IPC stream whose metadata names session and stream."""
    metadata = {b"session": session.encode(), b"stream": stream.encode()}
    return encode_table(batch.replace_schema_metadata(metadata), compressed=compressed)


def decode_rows(spec: TreeSpec, block: Block) -> tuple[str, pa.Table]:
    """(session, rows) of a `new`, `state` or `restore` block, zero-copy.

    Raises ValueError when the block's columns are not those of its kind and input.
    """
    reader = pa.ipc.open_stream(pa.py_buffer(block.data))
    stamped = block.kind in STAMPED
    expected = spec.new_schema(block.input) if stamped else spec.state_schema(block.input)
    if reader.schema.names != expected.names or reader.schema.types != expected.types:
        raise ValueError(
            f"a {block.kind!r} block of input {block.input} has the columns "
            f"{reader.schema.names}, not {expected.names}"
        )
    metadata = reader.schema.metadata or {}
    if b"session" not in metadata:
        raise ValueError(f"a {block.kind!r} block names no session")
    return metadata[b"session"].decode(), reader.read_all()


def encode_rejected(rows: pa.RecordBatch, *, session: str, stream: str) -> pa.Buffer:
    """Rejected rows (`REJECTED_SCHEMA`) as a block's data."""
    return encode_rows(rows, session=session, stream=stream)


def decode_rejected(block: Block) -> tuple[str, pa.Table]:
    """The inverse of `encode_rejected`: (session, rows)."""
    reader = pa.ipc.open_stream(pa.py_buffer(block.data))
    if reader.schema.names != REJECTED_SCHEMA.names:
        raise ValueError(f"a 'rejected' block has the columns {reader.schema.names}")
    return reader.schema.metadata[b"session"].decode(), reader.read_all()


def encode_table(table: pa.Table | pa.RecordBatch, *, compressed: bool = False) -> pa.Buffer:
    """A table or one batch as an IPC stream. Readers see for themselves that it is compressed."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4" if compressed else None, use_threads=False)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write(table)
    return sink.getvalue()


def decode_table(block: Block) -> pa.Table:
    """The inverse of `encode_table`."""
    return pa.ipc.open_stream(pa.py_buffer(block.data)).read_all()


def encode_moved(moved: Moved) -> bytes:
    """What was given, as a block's data."""
    return json.dumps(asdict(moved)).encode()


def decode_moved(block: Block) -> Moved:
    """The inverse of `encode_moved`."""
    facts = json.loads(bytes(block.data))
    files = tuple(RunFile(*file) for file in facts["files"])
    return Moved(facts["found"], facts["rows"], files)


def encode_missing(unfound: Mapping[int, str]) -> bytes:
    """Slots whose state was not found, and what was not there, as a block's data."""
    return json.dumps(unfound).encode()


def decode_missing(block: Block) -> dict[int, str]:
    """The inverse of `encode_missing`."""
    return {int(slot): what for slot, what in json.loads(bytes(block.data)).items()}


def encode_counts(counts: Iterable[PartitionCount]) -> bytes:
    """Counts as a block's data."""
    return json.dumps([count.model_dump() for count in counts]).encode()


def decode_counts(block: Block) -> list[PartitionCount]:
    """The inverse of `encode_counts`."""
    return [PartitionCount.model_validate(each) for each in json.loads(bytes(block.data))]


def route(
    spec: TreeSpec,
    input_: int,
    groups: GroupMap,
    rows: pa.RecordBatch,
    coordinates: Coordinates,
    *,
    session: str,
    kind: str = "new",
    keep: Callable[[U64], Bool] | None = None,
    hash_: Hash = xxhash64,
) -> list[Block]:
    """Hash, sort by hash and cut by slot: at most one block a slot.

    `rows` has the key columns and then the payload columns of the input, all of one session.
    `keep` sees the hashes in the order of `rows` and says which rows travel (restore: only rows
    after their range's last cut, only lost groups). Raises ValueError for a null key.
    """
    if kind not in ROW_KINDS:
        raise ValueError(f"kind must be one of {ROW_KINDS}, got {kind!r}")
    join = spec.join_of_input(input_)
    keys = [rows.column(i) for i in range(len(join.keys))]
    for field, column in zip(join.keys, keys, strict=True):
        if column.null_count:
            raise ValueError(f"null in key column {field.name!r} of {spec.inputs[input_].name}")
    hashes = spec.hashes(join.operator, keys, hash_)
    if keep is None:
        order = np.argsort(hashes, kind="stable")
    else:
        kept = np.flatnonzero(keep(hashes))
        order = kept[np.argsort(hashes[kept], kind="stable")]
    if not len(order):
        return []
    hashes = hashes[order]
    sorted_ = rows.take(pa.array(order))
    arrays = [
        pa.array(hashes),
        *sorted_.columns,
        pa.array(coordinates.partition[order], PARTITION.type),
        pa.array(coordinates.offset[order], OFFSET.type),
    ]
    if spec.inputs[input_].timed:
        if coordinates.time_us is None:
            raise ValueError(f"rows of {spec.inputs[input_].name} come without their times")
        arrays.append(pa.array(coordinates.time_us[order], TIME_US.type))
    schema = spec.state_schema(input_)
    if kind in STAMPED:
        arrays.append(pa.array(coordinates.kafka_ms[order], KAFKA_MS.type))
        schema = spec.new_schema(input_)
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return list(cut_by_slot(spec, input_, groups, hashes, batch, session=session, kind=kind))


def cut_by_slot(
    spec: TreeSpec,
    input_: int,
    groups: GroupMap,
    hashes: U64,
    batch: pa.RecordBatch,
    *,
    session: str,
    kind: str,
) -> Iterator[Block]:
    """Sorted rows as one block a slot."""
    for slot, spans in spans_by_slot(groups, hashes).items():
        pieces = [batch.slice(a, b - a) for a, b in spans]
        whole = pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)
        data = encode_rows(whole, session=session, stream=spec.inputs[input_].name)
        yield Block(slot, kind, spec.operators[input_], input_, data)


def rows_by_slot(
    spec: TreeSpec, input_: int, groups: GroupMap, rows: Rows, *, session: str, kind: str
) -> Iterator[Block]:
    """Sorted rows that a join gave as one block a slot."""
    columns = [pa.array(rows.key_hash), *rows.table.combine_chunks().columns]
    schema = spec.state_schema(input_)
    if kind in STAMPED:
        columns.append(pa.array(rows.kafka_ms))
        schema = spec.new_schema(input_)
    table = pa.Table.from_arrays(columns, schema=schema).combine_chunks()
    for batch in table.to_batches():
        yield from cut_by_slot(
            spec, input_, groups, rows.key_hash, batch, session=session, kind=kind
        )


def spans_by_slot(groups: GroupMap, hashes: U64) -> dict[int, list[tuple[int, int]]]:
    """Per slot its rows [a, b) of sorted hashes, in order; neighbouring rows are one span."""
    bounds = groups.bounds(hashes)
    filled = np.flatnonzero(np.diff(bounds))
    first = filled[np.flatnonzero(np.diff(groups.slots[filled], prepend=-1) != 0)]
    starts = bounds[first]
    spans: dict[int, list[tuple[int, int]]] = {}
    ends = np.append(starts[1:], len(hashes))
    for group, a, b in zip(first.tolist(), starts.tolist(), ends.tolist(), strict=True):
        spans.setdefault(int(groups.slots[group]), []).append((a, b))
    return spans
