"""Results of an outer join that lack rows of optional inputs: found after the close, each once.

Model: a key of a session gives *unmatched* results where every required input has a row of it and
some optional input has none. They are the product of the rows of the inputs that have any; what
the others would give is null. Of such a key nothing was given at run time, so neither when its rows
were cut nor how often makes a difference: all its rows of the day count, of whatever generation.

Which inputs have no row of a key is known when nothing more can come. So at the seal all that is in
memory is spilled as a last generation (`spillway.protocol.seal.flushed`), and the rows of a hash
range that cleanup reads are those of the whole day. Where rows of an input are lost, nobody knows
of which keys they were. Such an input is *doubtful*: no result is given that lacks a row of it, for
the row may have been there, and have given results at run time.

Keys are numbered, in the order of their hashes; two keys with one hash have two numbers. Keys that
lack the same inputs are joined together, by their numbers: each row is in one such join, so the
cost is linear in rows and results, whatever the number of inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spillway.engine.groups import I64, U64, Bool
from spillway.engine.join.batches import Joined
from spillway.engine.join.kernel import Rows, join_batches, picked
from spillway.engine.join.spec import JoinSpec


@dataclass(frozen=True)
class KeyRows:
    """Rows of one input, (n,) in the order of their keys' numbers."""

    number: I64
    table: pa.Table
    """Of the input's row schema."""


@dataclass(frozen=True)
class UnmatchedKeys:
    """The keys that have rows of the inputs `present` and of no other."""

    present: tuple[int, ...]
    """Positions in the join, ascending."""
    rows: tuple[KeyRows, ...]
    """Of each present input."""


@dataclass(frozen=True)
class UnmatchedRows:
    """The rows of a piece that give unmatched results."""

    join: JoinSpec
    hashes: U64
    """Of each key of the piece, by its number: ascending (k,)."""
    sets: tuple[UnmatchedKeys, ...]

    def between(self, lo: int, hi: int, batch_bytes: int) -> Iterator[Joined]:
        """The results of keys with a hash in [lo, hi), in batches of about so many bytes."""
        first = int(np.searchsorted(self.hashes, np.uint64(lo)))
        last = int(np.searchsorted(self.hashes, np.uint64(hi - 1), side="right"))
        for each in self.sets:
            own = [_numbered(rows, first, last) for rows in each.rows]
            for batch in _joined(self.join, each.present, own, batch_bytes):
                at = batch.hashes.astype(np.int64)
                table = _widened(self.join, batch.table)
                yield replace(batch, table=table, hashes=self.hashes[at])


def unmatched_rows(
    join: JoinSpec,
    inputs: Sequence[tuple[U64, pa.Table]],
    doubtful: Collection[int] = (),
) -> UnmatchedRows | None:
    """The rows that give unmatched results; None: none does.

    `inputs`: of each input of the join the hashes (n,) and the rows of all keys of some hashes, in
    any order. Of inputs that are not `doubtful` all rows of the day must be there, or some results
    are wrong.
    """
    lengths: I64 = np.array([len(hashes) for hashes, _ in inputs], dtype=np.int64)
    hashes = np.concatenate([hashes for hashes, _ in inputs])
    input_ = np.repeat(np.arange(len(inputs)), lengths)
    keys = pa.concat_tables([table.select(join.keys.names) for _, table in inputs])
    order, starts = keys_apart(hashes, keys)
    if not len(starts):
        return None
    has = np.bitwise_or.reduceat(np.int64(1) << input_[order], starts)
    wanted = unmatched(join, has, doubtful)
    if not wanted.any():
        return None
    number = np.cumsum(_marked(starts, len(order))) - 1
    within = order - np.repeat(np.cumsum(lengths) - lengths, lengths)[order]
    sets = []
    for present in np.unique(has[wanted]).tolist():
        rows = []
        mine = (has == present)[number]
        positions = tuple(i for i in range(len(inputs)) if present >> i & 1)
        for i in positions:
            at = np.flatnonzero(mine & (input_[order] == i))
            rows.append(KeyRows(number[at], picked(inputs[i][1], within[at])))
        sets.append(UnmatchedKeys(positions, tuple(rows)))
    return UnmatchedRows(join, hashes[order][starts], tuple(sets))


def unmatched(join: JoinSpec, has: I64, doubtful: Collection[int]) -> Bool:
    """Which keys give unmatched results, bool (k,). `has` (k,): the inputs that have rows of each,
    bit i for input i."""
    bits = [1 << i for i in range(len(join.inputs))]
    required = sum(bit for bit, each in zip(bits, join.inputs, strict=True) if not each.optional)
    needed = required | sum(bits[i] for i in doubtful)
    found: Bool = ((has & needed) == needed) & (has != sum(bits))
    return found


def keys_apart(hashes: U64, keys: pa.Table) -> tuple[I64, I64]:
    """The order of rows by hash, then key, and where each key begins in it: positions (n,), (k,).

    Rows come in any order; those of one key stay in it.
    """
    order: I64 = np.argsort(hashes, kind="stable")
    hashes, keys = hashes[order], picked(keys, order)
    begins: Bool = np.ones(len(hashes), dtype=np.bool_)
    begins[1:] = hashes[1:] != hashes[:-1]
    other = _differs(keys) & ~begins
    if other.any():  # another key with the hash of the row before: hardly ever
        rank = np.cumsum(begins) - 1
        mixed = np.zeros(int(rank[-1]) + 1, dtype=np.bool_)
        mixed[rank[other]] = True
        at = np.flatnonzero(mixed[rank])
        code = np.zeros(len(hashes), dtype=np.int64)
        code[at] = _codes(keys.take(pa.array(at)))
        again = np.lexsort((code, rank))
        order, rank, code = order[again], rank[again], code[again]
        begins[1:] = (rank[1:] != rank[:-1]) | (code[1:] != code[:-1])
    return order, np.flatnonzero(begins)


def _differs(keys: pa.Table) -> Bool:
    """Which rows have another key than the row before, bool (n,); the first one has not."""
    found: Bool = np.zeros(keys.num_rows, dtype=np.bool_)
    for column in keys.columns:
        same = pc.equal(column.slice(1), column.slice(0, max(len(column) - 1, 0)))
        found[1:] |= ~same.to_numpy()
    return found


def _codes(keys: pa.Table) -> I64:
    """A number for each row, equal where keys are, int64 (n,)."""
    columns = [
        column.combine_chunks().dictionary_encode().indices.to_numpy() for column in keys.columns
    ]
    _, code = np.unique(np.stack(columns), axis=1, return_inverse=True)
    return code.reshape(-1).astype(np.int64)


def _marked(starts: I64, length: int) -> Bool:
    found: Bool = np.zeros(length, dtype=np.bool_)
    found[starts] = True
    return found


def _numbered(rows: KeyRows, first: int, last: int) -> Rows:
    """The rows of the keys from `first` up to `last`, which are found by their numbers."""
    start, end = np.searchsorted(rows.number, [first, last]).tolist()
    number = rows.number[start:end].astype(np.uint64)
    return Rows(number, rows.table.slice(start, end - start))


def _joined(
    join: JoinSpec, present: Sequence[int], rows: Sequence[Rows], batch_bytes: int
) -> Iterator[Joined]:
    """The combinations of rows of these inputs that have one number."""
    inputs = tuple(join.inputs[i] for i in present)
    if len(inputs) > 1:
        some = JoinSpec(join.operator, join.keys, inputs)
        nothing: list[list[Rows]] = [[] for _ in inputs]
        yield from join_batches(some, nothing, [[each] for each in rows], batch_bytes=batch_bytes)
        return
    (alone,) = rows
    fields = [*join.keys, *inputs[0].joined_payload, *inputs[0].joined_identity]
    step = max(1, batch_bytes * len(alone.key_hash) // max(alone.table.nbytes, 1))
    for start in range(0, len(alone.key_hash), step):
        part = alone.table.slice(start, step)
        table = pa.Table.from_arrays(part.columns, schema=pa.schema(fields))
        numbers, counts = np.unique(alone.key_hash[start : start + step], return_counts=True)
        yield Joined(table, numbers, counts, np.zeros(0, dtype=np.int64))


def _widened(join: JoinSpec, table: pa.Table) -> pa.Table:
    """With nulls for the inputs that these results lack."""
    columns = [
        table[field.name] if field.name in table.column_names else _nulls(field, table.num_rows)
        for field in join.joined_schema
    ]
    return pa.Table.from_arrays(columns, schema=join.joined_schema)


def _nulls(field: pa.Field, rows: int) -> pa.Array:
    return pa.nulls(rows, field.type)


# --- how many ------------------------------------------------------------------------------


def unmatched_counts(join: JoinSpec, counts: I64, doubtful: Collection[int] = ()) -> I64:
    """Of keys with so many rows of each input, (m, k), those that give unmatched results, with 1 in
    the place of 0: the product of each key's is the number of its results."""
    has = np.bitwise_or.reduce([(each > 0) * (1 << i) for i, each in enumerate(counts)])
    found: I64 = np.maximum(counts[:, unmatched(join, has, doubtful)], 1)
    return found
