"""Filters and derived keys, evaluated by polars' SQL on Arrow batches.

`spillway_schemas.expressions` has refused every token that is not on its list before a text comes
here. polars is imported only when a query has an expression: it costs a worker about half a second
and 60 MB.

An expression may fail on a row (a time beyond the calendar's years). The batch is then halved
until the rows that fail stand alone, and those are rejected; the others count. The library's own
words are no part of the reason: some of them count its calls.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa

from spillway.decode.rules import TIMESTAMP
from spillway_schemas.expressions import cases_of

FAILED = "the expression has no value for this row"

_BEFORE = "SELECT ("
"""What an expression stands behind when it is parsed."""
_PARSER = re.compile(
    r"sql parser error: (?P<what>.*) at Line: (?P<line>\d+), Column: (?P<column>\d+)"
)


class EvaluationError(ValueError):
    """An expression that cannot be evaluated, in one line."""


def type_of(expression: str, schema: Any) -> Any:
    """Arrow type that `expression` has over rows of `schema`. Raises EvaluationError.

    It is tried on no row, on a row of nulls, and on that row twice: what fails there fails on
    every row, or depends on how many there are. Each `case` in it is tried alone, too: where one
    mixes types, the library takes the one or the other for a whole batch, and what stands around
    it may hide that. Types are normalised: every int is int64, every time is UTC microseconds,
    text is string.
    """
    for case in cases_of(expression):
        _one_type(case, schema, f"{case}: ")
    return _one_type(expression, schema)


def _one_type(expression: str, schema: Any, which: str = "") -> Any:
    first, *others = (
        _evaluate(
            expression, pa.table([pa.nulls(n, field.type) for field in schema], schema=schema)
        ).type
        for n in (0, 1, 2)
    )
    for other in others:
        if other != first:
            raise EvaluationError(f"{which}it is {first} over no row and {other} over some")
    return first


def evaluate(expression: str, rows: Any, type_: Any) -> tuple[Any, dict[int, str]]:
    """The value of `expression` for every row of a table, and the rows where it failed.

    Returns an array of `type_` (null where it failed) and a reason for each failed position.
    """
    try:
        return _evaluate(expression, rows).cast(type_), {}
    except (EvaluationError, pa.ArrowException):
        if rows.num_rows <= 1:
            return pa.nulls(rows.num_rows, type_), {0: FAILED} if rows.num_rows else {}
    half = rows.num_rows // 2
    low, low_failed = evaluate(expression, rows.slice(0, half), type_)
    high, high_failed = evaluate(expression, rows.slice(half), type_)
    failed = low_failed | {half + at: reason for at, reason in high_failed.items()}
    return pa.concat_arrays([low, high]), failed


def _evaluate(expression: str, rows: Any) -> Any:
    import polars as pl

    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    try:
        with pl.SQLContext({"rows_": frame}, eager=True) as context:
            result = context.execute(f"{_BEFORE}{expression}) AS value_ FROM rows_")
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise EvaluationError(_said(error, expression)) from None
    if result.height != rows.num_rows:
        if result.height != 1:
            raise EvaluationError("the expression does not give one value per row")
        # A constant: the same for all rows.
        value = result["value_"].new_from_index(0, rows.num_rows)
    else:
        value = result["value_"]
    return _plain(value.to_arrow())


def _said(error: BaseException, expression: str) -> str:
    """An error in one line. What the parser says is told by the places of the expression: it has
    read that in a statement of ours."""
    text = str(error).strip().partition("\n")[0]
    if (found := _PARSER.fullmatch(text)) is None:
        return text
    lines = expression.split("\n")
    line, column = int(found["line"]), int(found["column"])
    column -= len(_BEFORE) if line == 1 else 0
    if (line, column) > (len(lines), len(lines[-1])):
        return "not valid SQL: it ends too early"
    where = f"line {line}, character {column}" if len(lines) > 1 else f"character {column}"
    _, comma, odd = found["what"].rpartition(", found: ")
    return f"not valid SQL at {where}: {f'unexpected {odd}' if comma else odd}"


def _plain(column: Any) -> Any:
    """Normalise what polars returns to the few types that keys and filters have."""
    kind = column.type
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return column.cast(pa.string())
    if pa.types.is_integer(kind):
        return column.cast(pa.int64())
    if pa.types.is_timestamp(kind):
        return column.cast(TIMESTAMP)
    if pa.types.is_float32(kind):
        return column.cast(pa.float64())
    return column


def is_true(column: Any) -> Any:
    """Filter's verdict per row as a numpy mask: null is not true."""
    return np.asarray(column.fill_null(False).to_numpy(zero_copy_only=False), np.bool_)
