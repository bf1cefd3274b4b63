"""What a binary format has found in one field of many values, as a column."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spillway.decode.formats.cursor import ALL, Cursor, Ints, Mask, sixteen
from spillway.decode.formats.decoder import Rows, TypedColumns
from spillway_schemas.messages import MOST_MS, FieldRule

Numbers = npt.NDArray[Any]


@dataclass
class FieldCells:
    """What stands at one field of all values, (n,)."""

    null: Mask | None
    begins: Ints | None = None
    ends: Ints | None = None
    """Of texts: addresses."""
    numbers: Numbers | None = None


def fitting(table: pa.Table, fit: Mask) -> tuple[list[TypedColumns], Rows]:
    """Columns of n values as `ValueDecoder.columns` gives them: those that fit, and who is left."""
    n = len(fit)
    if fit.all():
        return [TypedColumns(np.arange(n), table)], np.arange(0)
    left = np.flatnonzero(~fit)
    if len(left) == n:
        return [], left
    return [TypedColumns(np.flatnonzero(fit), table.filter(pa.array(fit)))], left


class NoProgram(Exception):
    """A schema has no program for a contract: its values are read one by one."""


Column = Callable[[Cursor, FieldCells], Any]
"""Makes the typed or raw column of cells; values that it cannot have there are out."""


def of_texts(cursor: Cursor, cells: FieldCells) -> Any:
    """Texts, for fields of kind `string` or, raw, `timestamp`."""
    assert cells.begins is not None
    assert cells.ends is not None
    return cursor.texts(cells.begins, cells.ends, cells.null)


def of_numbers(type_: Any) -> Column:
    """Numbers or truths as they are, of a numpy type."""

    def column(_: Cursor, cells: FieldCells) -> Any:
        assert cells.numbers is not None
        return pa.array(cells.numbers.astype(type_), mask=cells.null)

    return column


def of_times(unit: str) -> Column:
    """Times as microseconds since 1970, int64. `unit`: the logical type's name."""

    def column(cursor: Cursor, cells: FieldCells) -> Any:
        assert cells.numbers is not None
        numbers = cells.numbers
        if unit == "timestamp-nanos":
            numbers = numbers // 1_000
        elif unit == "timestamp-millis":
            fine = (numbers >= -MOST_MS) & (numbers <= MOST_MS)
            cursor.leave_out(ALL, fine)
            numbers = np.where(fine, numbers, 0) * 1_000
        return pa.array(numbers, pa.int64(), mask=cells.null)

    return column


def of_symbols(symbols: tuple[str, ...]) -> Column:
    """Numbers of symbols, from 0, as their names."""
    names = pa.array(symbols, pa.string())

    def column(cursor: Cursor, cells: FieldCells) -> Any:
        assert cells.numbers is not None
        numbers = np.where(cursor.fit, cells.numbers, 0)
        return names.take(pa.array(numbers, mask=cells.null))

    return column


def of_decimals(rule: FieldRule) -> Column:
    """Whole numbers, or bytes of such, as decimals of the field's own scale."""

    def column(cursor: Cursor, cells: FieldCells) -> Any:
        if cells.numbers is not None:
            little = sixteen(cells.numbers)
            return cursor.fitting(little, cells.null, rule.precision, rule.scale)
        assert cells.begins is not None
        assert cells.ends is not None
        return cursor.decimals(cells.begins, cells.ends, cells.null, rule.precision, rule.scale)

    return column


def never_null(column: Column) -> Column:
    """A column of which values that have a null are out."""

    def whole(cursor: Cursor, cells: FieldCells) -> Any:
        if cells.null is not None:
            cursor.leave_out(ALL, ~cells.null)
        return column(cursor, cells)

    return whole
