"""Decode: values of a topic to rows of the join, the contract's verdict on every value.

Three stages, each handing on what it does not accept:

1. many values in one call of a columnar JSON parser (`parse.parse_many`), rules checked on
   whole columns (`rules`, `timestamps`): about 1.5 million rows/s on one core;
2. values of pieces that did not line up, one by one through pydantic's JSON parser, the same
   rules on whole columns (`parse.parse_each`);
3. what is left, and every row that breaks a rule, through the pydantic model
   (`schemas.messages.read`). It is the contract: it gives the row or the reason.

A row that stage 1 or 2 accepts is the row that stage 3 would give; a property test holds them
together. No value is dropped: each is kept, rejected with a reason, or filtered by the query.

Then, where the query asks for it, the filter and derived keys are evaluated on the rows
(`expressions`); a null join key is a reason to reject.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jobs.decode.digest import partition_digest, value_digest
from jobs.decode.expressions import evaluate, is_true
from jobs.decode.parse import Parsed, parse_each, parse_many, raw_schema
from jobs.decode.plan import StreamPlan, compile_streams, join_spec
from jobs.decode.rules import check, columns_of, row_schema
from schemas.messages import Rejected, read

__all__ = [
    "Decoded",
    "StreamPlan",
    "compile_streams",
    "decode",
    "join_spec",
    "partition_digest",
    "value_digest",
]

FEW_ROWS = 32
"""Batches up to this size go straight to the contract: a call of pyarrow.json alone costs
0.13 ms, as much as the contract takes for about 30 values."""

CHUNK_ROWS = 4_096
"""Values that are objects of Python at the same time."""

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Decoded:
    """What became of a batch of n values; kept, rejected and filtered add up to n."""

    rows: Any
    """pa.RecordBatch: keys' columns, then payload's."""
    kept: Rows
    """Positions (int64, ascending) in the given values of the rows."""
    rejected: Rows
    """Positions (int64, ascending) of values that broke the contract."""
    reasons: list[str]
    """One short line for each of `rejected`."""
    filtered: int
    """Rows that hold but that the query's filter leaves out."""


def decode(plan: StreamPlan, values: Any, *, few_rows: int = FEW_ROWS) -> Decoded:
    """Decode one stream's values, a pyarrow binary or large_binary array; nulls are rejected.

    `few_rows` is for tests: batches up to this size take the contract for every value.
    """
    reasons: dict[int, str] = {}
    rows, table = _read(plan, values, few_rows, reasons)
    filtered = 0
    if plan.filter is not None:
        verdict, failed = evaluate(plan.filter, table.select(plan.reads), pa.bool_())
        _note(reasons, rows, failed, "filter")
        keep = is_true(verdict)
        filtered = len(rows) - int(np.count_nonzero(keep)) - len(failed)
        rows, table = rows[keep], table.filter(pa.array(keep))
    keys, keep = [], np.ones(len(rows), np.bool_)
    for field, source, plain in zip(plan.keys, plan.sources, plan.plain, strict=True):
        if plain:
            key, failed = _whole(table.column(source)), {}
        else:
            key, failed = evaluate(source, table.select(plan.reads), field.type)
        _note(reasons, rows, failed, field.name)
        if key.null_count:
            null = key.is_null().to_numpy(zero_copy_only=False)
            for at in np.flatnonzero(null):
                reasons.setdefault(int(rows[at]), f"{field.name}: the join key is null")
            keep &= ~null
        keys.append(key)
    arrays = [*keys, *(_whole(table.column(name)) for name in plan.payload.names)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=plan.schema)
    if not keep.all():
        rows, batch = rows[keep], batch.filter(pa.array(keep))
    rejected = np.array(sorted(reasons), np.int64)
    return Decoded(batch, rows, rejected, [reasons[at] for at in rejected.tolist()], filtered)


def _read(
    plan: StreamPlan, values: Any, few_rows: int, reasons: dict[int, str]
) -> tuple[Rows, Any]:
    """Every value through the three stages: positions and table of what holds."""
    left = np.arange(len(values), dtype=np.int64)
    found: list[tuple[Rows, list[Any]]] = []
    schema = raw_schema(plan.rules)
    if schema is not None and len(values) > few_rows:
        pieces, left = parse_many(schema, values)
        broken: list[Rows] = []
        if pieces:
            rows = np.concatenate([piece.rows for piece in pieces])
            whole = Parsed(rows, pa.concat_tables([piece.columns for piece in pieces]))
            broken.append(_accept(plan, whole, found))
        for some in _chunks(left):
            each, rest = parse_each(plan.rules, values, some)
            broken.append(rest)
            if each is not None:
                broken.append(_accept(plan, each, found))
        left = np.sort(np.concatenate(broken)) if broken else left
    for some in _chunks(left):
        found.append(_by_contract(plan, values, some, reasons))
    return _together(plan, found)


def _chunks(rows: Rows) -> Iterator[Rows]:
    """Rows that are read one by one, a few at a time: the garbage collector looks at every
    object that is alive, and took half of the time when all of a batch was."""
    for begin in range(0, len(rows), CHUNK_ROWS):
        yield rows[begin : begin + CHUNK_ROWS]


def _accept(plan: StreamPlan, parsed: Parsed, found: list[tuple[Rows, list[Any]]]) -> Rows:
    """Add the rows that keep every rule to `found`; the positions of the others."""
    columns, good = check(plan.rules, parsed.columns)
    if good.all():
        found.append((parsed.rows, columns))
        return np.zeros(0, np.int64)
    mask = pa.array(good)
    found.append((parsed.rows[good], [column.filter(mask) for column in columns]))
    return parsed.rows[~good]


def _by_contract(
    plan: StreamPlan, values: Any, rows: Rows, reasons: dict[int, str]
) -> tuple[Rows, list[Any]]:
    model, held, messages = plan.contract, [], []
    given = values if len(rows) == len(values) else values.take(pa.array(rows))
    for at, value in zip(rows.tolist(), given.to_pylist(), strict=True):
        try:
            messages.append(read(model, value))
            held.append(at)
        except Rejected as error:
            reasons[at] = str(error)
    return np.array(held, np.int64), columns_of(plan.rules, messages)


def _together(plan: StreamPlan, found: list[tuple[Rows, list[Any]]]) -> tuple[Rows, Any]:
    """The parts as one table in the order of the values."""
    schema = row_schema(plan.rules)
    parts = [part for part in found if len(part[0])] or found[:1]
    if not parts:
        return np.zeros(0, np.int64), schema.empty_table()
    table = pa.concat_tables(pa.Table.from_arrays(columns, schema=schema) for _, columns in parts)
    rows = np.concatenate([rows for rows, _ in parts])
    if len(parts) > 1:
        order = np.argsort(rows, kind="stable")
        rows, table = rows[order], table.take(pa.array(order))
    return rows, table


def _whole(column: Any) -> Any:
    """A column of a table as one array."""
    if column.num_chunks == 1:
        return column.chunk(0)
    joined = column.combine_chunks()
    return pa.array([], column.type) if isinstance(joined, pa.ChunkedArray) else joined


def _note(reasons: dict[int, str], rows: Rows, failed: dict[int, str], what: str) -> None:
    for at, reason in failed.items():
        reasons.setdefault(int(rows[at]), f"{what}: {reason}")
