"""JSON values to raw columns: many at a time where that is safe, else one by one.

Columns are *raw* here: of the JSON kinds that the contract's fields ask for, nulls where a
field is missing or null, not yet checked against the rules (`jobs.decode.rules`).

Many at a time (`_parse_piece`): a few thousand values are joined by newlines and given to
`pyarrow.json` in one call. Its parser (RapidJSON) takes any sequence of objects, skips what the
schema does not name, and does not know where a value ended. The result counts only when

* every value begins with `{` and ends with `}`, holds no byte below 0x20 and is UTF-8,
* no value opens more brackets than any nesting limit, and
* as many rows come out as values went in.

Then row i is value i. For between two values stands `}`, a newline, `{`. Inside a string the
parser refuses the newline; inside an object or array the grammar allows no `{` after a `}`
without a comma. So every boundary of values is a boundary of rows; each value holds at least
one row (it is not blank), and equal numbers mean exactly one. A NUL byte, which ends RapidJSON's
input early, is below 0x20. Repeated fields, wrong kinds, ints with fractions or beyond 64 bits
make the call fail; NaN and Infinity are left to the rules.

One by one (`parse_each`): values of a part that failed, and values that may not be joined
(white space around or control characters between tokens, deep nesting), go through the JSON
parser that pydantic itself uses; kinds are then checked on whole columns. It costs about three
times as much. What fails here too is left to the contract. So a few bad values make their
neighbours slower, never the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from pydantic_core import from_json

from jobs.decode.layout import Layout
from schemas.messages import INT64_MAX, INT64_MIN, FieldRule, Kind

Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

PIECE_ROWS = 8_192
PIECE_BYTES = 4 << 20
FINE_ROWS = 1_024
"""A piece that does not line up is tried again in parts of this size."""
MOST_BRACKETS = 64
"""Values that open more `{` and `[` may be too deep and are parsed one by one. Any number
below pydantic's nesting limit (200) is right."""

RAW_TYPES: dict[Kind, Any] = {
    "string": pa.string(),
    "int": pa.int64(),
    "double": pa.float64(),
    "bool": pa.bool_(),
    "timestamp": pa.string(),
}
"""Kinds that can be parsed many at a time, with the type that JSON is read as. A contract with
another kind (decimal, json) is parsed by the contract."""

_PYTHON_KINDS: dict[Kind, frozenset[type]] = {
    "string": frozenset({str}),
    "int": frozenset({int}),
    "double": frozenset({int, float}),
    "bool": frozenset({bool}),
    "timestamp": frozenset({str}),
}


@dataclass(frozen=True)
class Parsed:
    """Raw columns of the values at `rows` (positions in the batch, ascending)."""

    rows: Rows
    columns: Any  # pa.Table, one column per field of the contract

    def take(self, keep: Mask) -> Parsed:
        """Only the rows where `keep` is true."""
        return Parsed(self.rows[keep], self.columns.filter(pa.array(keep)))


def raw_schema(rules: Sequence[FieldRule]) -> Any | None:
    """Arrow schema of the raw columns; None when a kind needs the contract for every row."""
    if any(rule.kind not in RAW_TYPES for rule in rules):
        return None
    return pa.schema([(rule.name, RAW_TYPES[rule.kind]) for rule in rules])


def parse_many(schema: Any, values: Any) -> tuple[list[Parsed], Rows]:
    """Parse a batch in pieces. Returns the pieces that hold, and the positions left over.

    `values`: pyarrow binary or large_binary array, nulls included; `schema`: of `raw_schema`.
    """
    done: list[Parsed] = []
    left: list[Rows] = []
    for begin, end in _pieces(values):
        piece = values.slice(begin, end - begin)
        fit = _may_be_joined(Layout.of(piece))
        rows = np.arange(begin, end)
        if not fit.all():
            left.append(rows[~fit])
            rows, piece = rows[fit], piece.filter(pa.array(fit))
        piece = piece.cast(pa.binary())
        if len(rows) and (columns := _parse_piece(schema, piece)) is not None:
            done.append(Parsed(rows, columns))
            continue
        for fine in range(0, len(rows), FINE_ROWS):  # keep most of it in columns
            some, part = rows[fine : fine + FINE_ROWS], piece.slice(fine, FINE_ROWS)
            if (columns := _parse_piece(schema, part)) is not None:
                done.append(Parsed(some, columns))
            else:
                left.append(some)
    return done, np.sort(np.concatenate(left)) if left else np.zeros(0, np.int64)


def parse_each(rules: Sequence[FieldRule], values: Any, rows: Rows) -> tuple[Parsed | None, Rows]:
    """Parse the values at `rows` one by one. Returns what holds, and the positions left over."""
    objects: list[dict[str, Any]] = []
    held = np.ones(len(rows), np.bool_)
    for at, value in enumerate(values.take(pa.array(rows)).to_pylist()):
        try:
            item = from_json(value) if value else None
        except ValueError:
            item = None  # the contract says why
        if type(item) is dict:
            objects.append(item)
        else:
            held[at] = False
    bad = np.zeros(len(objects), np.bool_)
    columns = [_column(rule, [item.get(rule.name) for item in objects], bad) for rule in rules]
    table = pa.table(columns, schema=pa.schema([(r.name, RAW_TYPES[r.kind]) for r in rules]))
    parsed = Parsed(rows[held], table)
    left = np.sort(np.concatenate([rows[~held], parsed.rows[bad]]))
    if bad.any():
        parsed = parsed.take(~bad)
    return (parsed if len(parsed.rows) else None), left


def _column(rule: FieldRule, items: list[Any], bad: Mask) -> Any:
    """One raw column; values of a wrong kind become null and mark their row in `bad`."""
    allowed = _PYTHON_KINDS[rule.kind]
    if not set(map(type, items)) <= allowed | {type(None)}:
        wrong = [item is not None and type(item) not in allowed for item in items]
        bad |= np.array(wrong, np.bool_)
        items = [None if no else item for item, no in zip(items, wrong, strict=True)]
    if rule.kind in ("int", "double") and int in set(map(type, items)):
        wide = [type(item) is int and not INT64_MIN <= item <= INT64_MAX for item in items]
        if any(wide):
            bad |= np.array(wide, np.bool_)
            items = [None if no else item for item, no in zip(items, wide, strict=True)]
        if rule.kind == "double":
            items = [None if item is None else float(item) for item in items]
    return pa.array(items, RAW_TYPES[rule.kind])


def _pieces(values: Any) -> list[tuple[int, int]]:
    """Cut a batch so that a piece has at most PIECE_ROWS values and about PIECE_BYTES."""
    layout = Layout.of(values)
    cuts, begin = [], 0
    while begin < layout.rows:
        start = int(layout.starts[begin])
        fit = int(np.searchsorted(layout.ends, start + PIECE_BYTES, side="right"))
        end = min(layout.rows, begin + PIECE_ROWS, max(begin + 1, fit))
        cuts.append((begin, end))
        begin = end
    return cuts


def _may_be_joined(layout: Layout) -> Mask:
    """Values that begin with `{`, end with `}`, and hold few brackets and no byte below 0x20."""
    data = layout.data
    fit = layout.valid & (layout.ends > layout.starts)
    if not data.size:
        return fit
    fit &= data[np.minimum(layout.starts, data.size - 1)] == ord("{")
    fit &= data[np.maximum(layout.ends, 1) - 1] == ord("}")
    control = data < 0x20
    if control.any():
        fit[_owners(layout, np.flatnonzero(control))] = False
    opening = (data | 0x20) == ord("{")  # `[` and `{` differ in this bit only
    if int(np.count_nonzero(opening)) > MOST_BRACKETS:
        owners = _owners(layout, np.flatnonzero(opening))
        fit &= np.bincount(owners, minlength=layout.rows) <= MOST_BRACKETS
    return fit


def _owners(layout: Layout, at: Rows) -> Rows:
    """For each byte address the value that it lies in."""
    owners: Rows = np.searchsorted(layout.starts, at, side="right") - 1
    return owners


def _parse_piece(schema: Any, values: Any) -> Any | None:
    """Raw columns of values (pa.binary) that may be joined; None when they do not line up."""
    try:
        # Checks UTF-8 and copies nothing; pyarrow.json does not look at what it skips.
        values.cast(pa.string())
        joined = _join(values)
        table = pj.read_json(
            pa.BufferReader(joined),
            read_options=pj.ReadOptions(use_threads=False, block_size=joined.size + 1),
            parse_options=pj.ParseOptions(
                explicit_schema=schema,
                unexpected_field_behavior="ignore",
                newlines_in_values=False,
            ),
        )
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None
    if table.num_rows != len(values):
        return None
    # Every name of an explicit schema is a column, in its order, and nothing else is.
    return table if table.schema.equals(schema) else table.select(schema.names).cast(schema)


def _join(values: Any) -> Any:
    """The values' bytes with a newline between them, as a buffer."""
    lists = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    return pc.binary_join(lists, b"\n")[0].as_buffer()
