"""The contract's rules on whole columns: raw columns to typed ones, and which rows break one.

Rows that break a rule are not judged here: the contract reads them again and gives the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spillway.decode.timestamps import parse_timestamps
from spillway_schemas.messages import (
    INT64_MAX,
    INT64_MIN,
    YEARS_US,
    FieldRule,
    Message,
    micros_of,
)

Mask = npt.NDArray[np.bool_]

TIMESTAMP = pa.timestamp("us", "UTC")


def arrow_type(rule: FieldRule) -> Any:
    """The type of a field's column in rows, state and tables."""
    if rule.kind == "decimal":
        return pa.decimal128(rule.precision, rule.scale)
    plain = {
        "string": pa.string(),
        "int": pa.int64(),
        "double": pa.float64(),
        "bool": pa.bool_(),
        "timestamp": TIMESTAMP,
        "json": pa.string(),
    }
    return plain[rule.kind]


def row_schema(rules: Sequence[FieldRule]) -> Any:
    """Schema of checked rows: every field of the contract in order."""
    return pa.schema([pa.field(r.name, arrow_type(r), nullable=r.optional) for r in rules])


def check(rules: Sequence[FieldRule], raw: Any) -> tuple[list[Any], Mask]:
    """Typed columns of a table of raw ones, and for each row whether every rule holds.

    Rows where the mask is false hold anything.
    """
    good = np.ones(raw.num_rows, np.bool_)
    columns = []
    for rule, chunked in zip(rules, raw.columns, strict=True):
        column = chunked.combine_chunks() if chunked.num_chunks != 1 else chunked.chunk(0)
        columns.append(_check(rule, column, good))
    return columns, good


def _check(rule: FieldRule, column: Any, good: Mask) -> Any:
    null = None
    if column.null_count:
        null = column.is_null().to_numpy(zero_copy_only=False)
        if not rule.optional:
            good &= ~null
    if rule.kind == "timestamp":
        micros, held = _micros(column)
        good &= held if null is None else held | null
        return _with_nulls(pa.array(micros, pa.int64()), null).cast(TIMESTAMP)
    if rule.kind == "double":
        with np.errstate(invalid="ignore"):  # of bytes that are any number
            numbers = column.to_numpy(zero_copy_only=False) + 0.0  # -0.0 + 0.0 = 0.0
        finite = np.isfinite(numbers)
        good &= finite if null is None else finite | null
        return _with_nulls(pa.array(numbers, pa.float64()), null)
    if rule.kind == "int" and (rule.ge, rule.le) != (INT64_MIN, INT64_MAX):
        numbers = column.fill_null(rule.ge).to_numpy(zero_copy_only=False)
        good &= (numbers >= rule.ge) & (numbers <= rule.le)
    return column


def _micros(column: Any) -> tuple[npt.NDArray[np.int64], Mask]:
    """Microseconds since 1970 of texts, or of numbers that are just that, and which hold."""
    if not pa.types.is_int64(column.type):
        return parse_timestamps(column)
    micros = column.fill_null(0).to_numpy()
    return micros, (micros >= YEARS_US[0]) & (micros <= YEARS_US[1])


def _with_nulls(column: Any, null: Mask | None) -> Any:
    if null is None:
        return column
    valid = pa.array(~null).buffers()[1]
    return pa.Array.from_buffers(column.type, len(column), [valid, column.buffers()[1]])


def columns_of(rules: Sequence[FieldRule], messages: Iterable[Message]) -> list[Any]:
    """Typed columns of messages that the contract has read."""
    rows = [list(message.__dict__.values()) for message in messages]
    columns = []
    for at, rule in enumerate(rules):
        items = [row[at] for row in rows]
        if rule.kind == "timestamp":
            items = [micros_of(i) if isinstance(i, datetime) else None for i in items]
            columns.append(pa.array(items, pa.int64()).cast(TIMESTAMP))
        else:
            columns.append(pa.array(items, arrow_type(rule)))
    return columns
