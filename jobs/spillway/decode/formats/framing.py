"""The registry's wire format: which schema wrote a value, and where its body begins.

    00 | id (4 bytes, the greatest first) | body                                      Avro
    00 | id | number of indexes | indexes | body                                      Protobuf

The numbers of Protobuf are zigzag varints; a single 00 stands for the indexes [0], the first
message of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spillway.decode.formats.decoder import Rows, ValueDecoder, decoder_of
from spillway.decode.layout import Layout
from spillway_schemas.formats import PROTOBUF, ValueFormat, Writers
from spillway_schemas.messages import FieldRule, Rejected

HEADER = 5
MOST_INDEXES = 16
"""Messages within messages: more are not read."""


@dataclass(frozen=True)
class SchemaValues:
    """Values of one schema."""

    rows: Rows
    """Positions in the batch, ascending."""
    bodies: Any
    """pyarrow large_binary array, of the same length."""
    decoder: ValueDecoder


def values_by_schema(
    format_: ValueFormat,
    rules: tuple[FieldRule, ...],
    values: Any,
    kafka_ms: npt.NDArray[np.int64],
    writers: Writers | None,
    reasons: dict[int, str],
) -> Iterator[SchemaValues]:
    """Values by their schemas; why a value has none is added to `reasons`.

    `values`: pyarrow binary or large_binary array, nulls included; `kafka_ms`: int64, (n,).
    """
    layout = Layout.of(values)
    lengths = layout.ends - layout.starts
    fit = layout.valid.copy()
    if not (format_.name == PROTOBUF and format_.writer is not None):
        fit &= lengths > 0  # of Protobuf no bytes are a message, every field at its default
    for at in np.flatnonzero(~fit).tolist():
        absent = not layout.valid[at]
        reasons[at] = "tombstone: the record has no value" if absent else "empty value"
    if not format_.has_ids:
        rows = np.flatnonzero(fit)
        if len(rows):
            decoder = decoder_of(format_, rules, None)
            yield SchemaValues(rows, cut(layout, rows, layout.starts[rows]), decoder)
        return
    assert writers is not None, "a plan of values with ids has gone without writers' schemas"
    for at in np.flatnonzero(fit & (lengths < HEADER)).tolist():
        reasons[at] = f"no schema id: {lengths[at]} bytes are too few"
    fit &= lengths >= HEADER
    first = layout.data[np.where(fit, layout.starts, 0)] if fit.any() else np.zeros(len(fit))
    for at in np.flatnonzero(fit & (first != 0)).tolist():
        reasons[at] = f"no schema id: the first byte is {int(first[at]):02x}, not 00"
    rows = np.flatnonzero(fit & (first == 0))
    at_id = layout.starts[rows, None] + np.arange(1, HEADER)
    ids = layout.data[at_id].astype(np.int64) @ (256 ** np.arange(HEADER - 2, -1, -1))
    for schema_id in np.unique(ids).tolist():
        mine = rows[ids == schema_id]
        known = writers.resolve(schema_id, kafka_ms[mine])
        unknown = known.absence.covers(kafka_ms[mine])
        for at in mine[unknown].tolist():
            reasons[at] = f"schema {schema_id}: {known.why}"
        mine = mine[~unknown]
        if not len(mine):
            continue
        assert known.schema is not None, "who resolves an id says so of each of its messages"
        begins = layout.starts[mine] + HEADER
        parts: list[tuple[tuple[int, ...], Rows, Rows]] = [((), mine, begins)]
        if format_.name == PROTOBUF:
            parts = list(_by_message(layout, mine, begins, reasons))
        for place, some, bodies in parts:
            try:
                decoder = decoder_of(format_, rules, known.schema, place)
            except Rejected as error:
                reasons.update(dict.fromkeys(some.tolist(), str(error)))
                continue
            yield SchemaValues(some, cut(layout, some, bodies), decoder)


def _by_message(
    layout: Layout, rows: Rows, begins: Rows, reasons: dict[int, str]
) -> Iterator[tuple[tuple[int, ...], Rows, Rows]]:
    """Rows by the indexes of their message, with where their bodies begin."""
    left = layout.ends[rows] - begins
    data = np.append(layout.data, np.zeros(1, np.uint8))
    first = (data[begins] == 0) & (left > 0)
    if first.any():
        yield (0,), rows[first], begins[first] + 1
    others: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    # The indexes of another message than the first are read one by one: they are a few bytes.
    for row, begin in zip(rows[~first].tolist(), begins[~first].tolist(), strict=True):
        end = int(layout.ends[row])
        head = layout.data[begin : min(end, begin + 10 * (MOST_INDEXES + 1))].tobytes()
        try:
            place, size = indexes(head)
        except ValueError as error:
            reasons[row] = f"no schema id: {error}"
            continue
        others.setdefault(place, []).append((row, begin + size))
    for place, found in others.items():
        where = np.array(found, np.int64)
        yield place, where[:, 0], where[:, 1]


def indexes(head: bytes) -> tuple[tuple[int, ...], int]:
    """The message indexes that bytes begin with, and their size in bytes. Raises ValueError."""
    count, at = _varint(head, 0)
    if not count:
        return (0,), at
    if not 0 < count <= MOST_INDEXES:
        raise ValueError(f"{count} message indexes")
    found = []
    for _ in range(count):
        index, at = _varint(head, at)
        found.append(index)
    return tuple(found), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A zigzag varint, and the place behind it."""
    number = shift = 0
    while at < len(data) and shift < 35:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
    raise ValueError("the message indexes are cut off")


def cut(layout: Layout, rows: Rows, begins: Rows) -> Any:
    """The values at `rows` (ascending) from `begins` on: pyarrow large_binary array."""
    offsets = np.zeros(2 * len(rows) + 1, np.int64)
    offsets[1::2], offsets[2::2] = begins, layout.ends[rows]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(layout.data)]
    parts = pa.Array.from_buffers(pa.large_binary(), 2 * len(rows), buffers)
    return parts.take(pa.array(np.arange(1, 2 * len(rows), 2)))
