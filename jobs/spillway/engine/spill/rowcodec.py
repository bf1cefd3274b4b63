"""Row codec: the columns of a row <-> one binary value. Vectorised, an inverse pair.

Layout of a row (little endian, nothing is aligned, no padding):

```
nulls     ceil(columns / 8) bytes   bit i (lowest first) is set when column i is null
fixed     per fixed-width column, in order: its bytes as Arrow stores them
          (boolean: one byte, 0 or 1); zeros when null
lengths   per variable-width column, in order: u32, the number of its bytes; 0 when null
variable  per variable-width column, in order: its bytes (strings as UTF-8)
```

Fixed-width: booleans, integers, floats, decimals, dates, times, timestamps, durations,
fixed-size binary. Variable-width: strings and binaries, also large ones. Columns go by
position; their names and types are the reader's schema, which is not stored. Nested types and
null types have no encoding: nested fields travel as text.

Invariants: `decode_rows(encode_rows(t), t.schema) == t`, bit for bit (NaN payloads, -0.0 and
whitespace included); equal rows of one schema have equal encodings; a value that no row of the
schema can have (wrong length, invalid UTF-8) is a `CorruptRows`, never a wrong row.

Limits: a value takes at most 2^31 - 1 bytes, and so does one call (slice before).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]

MAX_BYTES = 2**31 - 1


class CorruptRows(ValueError):
    """Bytes that are no row of the schema: damaged, or written with another schema."""


@dataclass(frozen=True)
class _Layout:
    """Where the parts of a schema's rows are. Everything before `variable` has fixed places."""

    schema: pa.Schema
    fixed: tuple[tuple[int, int, int], ...]
    """Column, place in the row, bytes."""
    variable: tuple[tuple[int, int], ...]
    """Column, place of its length in the row."""
    header_bytes: int


def _layout(schema: pa.Schema) -> _Layout:
    fixed: list[tuple[int, int, int]] = []
    lengths: list[int] = []
    at = (len(schema) + 7) // 8
    for i, field in enumerate(schema):
        if _is_variable(field.type):
            lengths.append(i)
        else:
            width = _width(field)
            fixed.append((i, at, width))
            at += width
    variable = tuple((i, at + 4 * k) for k, i in enumerate(lengths))
    return _Layout(schema, tuple(fixed), variable, at + 4 * len(variable))


def _is_variable(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_large_binary(kind)
    )


def _width(field: pa.Field) -> int:
    kind = field.type
    if pa.types.is_boolean(kind):
        return 1
    if (
        pa.types.is_primitive(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_fixed_size_binary(kind)
    ) and kind.bit_width % 8 == 0:
        return int(kind.bit_width) // 8
    raise TypeError(
        f"column {field.name!r} is {kind}, which has no row encoding: carry it as a string"
    )


# --- encode ---------------------------------------------------------------------------------


def encode_rows(table: pa.Table | pa.RecordBatch) -> pa.BinaryArray:
    """Encode n rows as `binary` (n,), without nulls. See the module for the layout.

    Raises TypeError for a type without encoding, ValueError when the rows take 2 GiB or more.
    """
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    layout = _layout(table.schema)
    rows = table.num_rows
    if not rows:
        return pa.array([], pa.binary())
    header = np.zeros((rows, layout.header_bytes), np.uint8)
    columns = [_one_array(column) for column in table.columns]
    for i, column in enumerate(columns):
        if column.null_count:
            header[:, i // 8] |= _nulls(column).astype(np.uint8) << np.uint8(i % 8)
    for i, at, width in layout.fixed:
        header[:, at : at + width] = _fixed_bytes(columns[i], width)
    parts = []
    for i, at in layout.variable:
        part = columns[i].cast(pa.large_binary())
        if part.null_count:
            part = pc.fill_null(part, b"")
        lengths = pc.binary_length(part).to_numpy()
        if lengths.max() > MAX_BYTES:
            raise ValueError(f"a value of {table.schema[i].name!r} takes more than 2 GiB")
        header[:, at : at + 4] = lengths.astype("<u4").view(np.uint8).reshape(rows, 4)
        parts.append(part)
    heads = _fixed_size_binary(header)
    if not parts:
        return heads.cast(pa.binary())
    separator = pa.scalar(b"", pa.large_binary())
    joined = pc.binary_join_element_wise(heads.cast(pa.large_binary()), *parts, separator)
    if joined.nbytes - 8 * (rows + 1) > MAX_BYTES:
        raise ValueError(f"{rows} rows take more than 2 GiB encoded: encode fewer at a time")
    return joined.cast(pa.binary())


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        raise TypeError("dictionary columns have no row encoding: decode them first")
    if column.num_chunks == 1:
        return column.chunk(0)
    return column.combine_chunks()


def _nulls(array: pa.Array) -> npt.NDArray[np.bool_]:
    nulls: npt.NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    return nulls


def _fixed_bytes(array: pa.Array, width: int) -> U8:
    """The values' bytes (n, width), zeros for nulls."""
    nulls = _nulls(array) if array.null_count else None
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    if width == 0:
        return np.zeros((len(array), 0), np.uint8)
    flat = np.frombuffer(array.buffers()[1], np.uint8)
    start = array.offset * width
    values = flat[start : start + len(array) * width].reshape(len(array), width)
    if nulls is not None:
        # What lies under a null is undefined.
        values = np.where(nulls[:, None], np.uint8(0), values)
    return values


def _fixed_size_binary(matrix: U8) -> pa.FixedSizeBinaryArray:
    rows, width = matrix.shape
    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(width), rows, [None, pa.py_buffer(matrix)]
    )


# --- decode ---------------------------------------------------------------------------------


def decode_rows(rows: pa.BinaryArray | pa.ChunkedArray, schema: pa.Schema) -> pa.Table:
    """Decode what `encode_rows` made of rows of `schema`; a table with n rows.

    Raises `CorruptRows` when a value cannot be a row of `schema`, TypeError for a schema with
    a type that has no encoding.
    """
    layout = _layout(schema)
    if isinstance(rows, pa.ChunkedArray):
        parts = [decode_rows(chunk, schema) for chunk in rows.chunks if len(chunk)]
        return pa.concat_tables(parts) if parts else schema.empty_table()
    n = len(rows)
    if not n:
        return schema.empty_table()
    if rows.null_count:
        raise CorruptRows("a row is null")
    data, ends = _data_and_offsets(rows)
    header = _headers(data, ends, layout)
    nulls = [(header[:, i // 8] >> np.uint8(i % 8)) & np.uint8(1) != 0 for i in range(len(schema))]
    columns: list[Any] = [None] * len(schema)
    for i, at, width in layout.fixed:
        part = np.ascontiguousarray(header[:, at : at + width])
        columns[i] = _fixed_array(schema[i].type, part, nulls[i])
    for i, values in _variable_parts(data, ends, header, layout):
        columns[i] = _variable_array(schema[i], values, nulls[i])
    return pa.Table.from_arrays(columns, schema=schema)


def _data_and_offsets(rows: pa.BinaryArray) -> tuple[U8, I64]:
    """All bytes, and (n + 1) places in them between which the rows lie."""
    _, offsets, data = rows.buffers()
    wide = np.int64 if pa.types.is_large_binary(rows.type) else np.int32
    ends = np.frombuffer(offsets, wide)[rows.offset : rows.offset + len(rows) + 1]
    flat = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return flat, ends.astype(np.int64)


def _headers(data: U8, ends: I64, layout: _Layout) -> U8:
    """The fixed part of every row (n, header bytes)."""
    width = layout.header_bytes
    if (np.diff(ends) < width).any():
        raise CorruptRows(f"a row is shorter than the {width} bytes that its columns need")
    # A view in which element k is the `width` bytes that begin at byte k: one copy a row.
    view = np.ndarray((len(data) - width + 1,), np.dtype((np.void, width)), data, strides=(1,))
    return view[ends[:-1]].view(np.uint8).reshape(len(ends) - 1, width)


def _fixed_array(kind: pa.DataType, values: U8, nulls: npt.NDArray[np.bool_]) -> pa.Array:
    if pa.types.is_boolean(kind):
        if (values > 1).any():
            raise CorruptRows("a boolean is neither 0 nor 1")
        return pa.array(values[:, 0] != 0, mask=nulls)
    return pa.Array.from_buffers(
        kind, len(values), [_validity(nulls), pa.py_buffer(values)], int(nulls.sum())
    )


def _validity(nulls: npt.NDArray[np.bool_]) -> pa.Buffer | None:
    if not nulls.any():
        return None
    return pa.py_buffer(np.packbits(~nulls, bitorder="little"))


def _variable_parts(
    data: U8, ends: I64, header: U8, layout: _Layout
) -> list[tuple[int, pa.LargeBinaryArray]]:
    """Each variable-width column's bytes, nulls as empty values."""
    n, k = len(ends) - 1, len(layout.variable)
    # Consecutive segments of the data: head, first value, second value, ... of each row.
    places = np.empty((n, k + 1), np.int64)
    places[:, 0] = ends[:-1]
    at_end = ends[:-1] + layout.header_bytes
    for j, (_, at) in enumerate(layout.variable):
        places[:, j + 1] = at_end
        at_end = at_end + np.ascontiguousarray(header[:, at : at + 4]).view("<u4")[:, 0]
    if not np.array_equal(at_end, ends[1:]):
        raise CorruptRows("a row's length is not what its columns' lengths add up to")
    segments = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(),
        n * (k + 1),
        [None, pa.py_buffer(np.append(places.ravel(), ends[-1])), pa.py_buffer(data)],
    )
    rows = np.arange(n, dtype=np.int64) * (k + 1)
    return [(i, segments.take(pa.array(rows + j + 1))) for j, (i, _) in enumerate(layout.variable)]


def _variable_array(
    field: pa.Field, values: pa.LargeBinaryArray, nulls: npt.NDArray[np.bool_]
) -> pa.Array:
    if nulls.any():
        values = pc.if_else(pa.array(~nulls), values, pa.scalar(None, pa.large_binary()))
    try:
        return values.cast(field.type)
    except pa.ArrowInvalid as error:
        raise CorruptRows(f"column {field.name!r}: {error}") from error
