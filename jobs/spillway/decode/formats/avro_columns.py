"""Avro values of one schema, read together: field by field, the same field of all values at once.

A *program* is the writer's schema with, at each field that the contract asks for, how its values
become a column. It has numbers, texts, bytes, enums, records in records, unions, and lists that it
passes over; a schema with a field whose values become something else than a column of its kind has
no program, and its values are read one by one. So are values that a program does not take: that are
cut off or too long, or have an index of no branch, a text that may be no UTF-8, a number that does
not fit.

What a program gives is what fastavro and the contract would give. Of the resolution to a reader's
schema it knows the plain cases: a field is passed over, takes its default, is promoted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from spillway.decode.formats.columns import (
    Column,
    FieldCells,
    NoProgram,
    fitting,
    never_null,
    of_decimals,
    of_numbers,
    of_symbols,
    of_texts,
    of_times,
)
from spillway.decode.formats.cursor import ALL, Cursor, Mask, Where
from spillway.decode.formats.decoder import Rows, TypedColumns
from spillway_schemas.messages import FieldRule

MOST_BLOCKS, MOST_ITEMS = 3, 64
"""Of a list that is passed over together with others: each item is a step."""
FEW_LISTS = 128
"""Fewer that go on together are read one by one. An item is a step of 27 us for all of them, and
0.2 us for each where fastavro reads them (measured), so that fewer would wait for steps: a value of
64 x 64 x 64 items beside 200 of none took 16.5 s, and takes 0.1 s."""


@dataclass(frozen=True)
class Node:
    """A type of the writer's schema."""

    kind: str
    """`null`, `long` (`int` too), `float`, `double`, `boolean`, `text` (`bytes` too), `fixed`,
    `enum`, `record`, `union`, `list` (a map is one of texts and values)."""
    size: int = 0
    """Of a fixed: bytes; of an enum: symbols."""
    below: tuple[Node, ...] = ()
    """Fields, branches, or what a list repeats."""
    target: int | None = None
    """Which field of the contract it is."""
    is_read: bool = False
    """Of a text that nobody asks for: fastavro reads it all the same, so it must be UTF-8."""


@dataclass(frozen=True)
class AvroProgram:
    """How the values of a schema become columns."""

    top: Node
    columns: tuple[Column | None, ...]
    """One for each field of the contract; None: it is absent from the writer's schema."""
    absent: tuple[Any, ...]
    """For each field what it is where it is absent: a pyarrow scalar."""
    names: tuple[str, ...]

    def read(self, bodies: Any) -> tuple[list[TypedColumns], Rows]:
        """See `ValueDecoder.columns`."""
        n = len(bodies)
        if not n:
            return [], np.arange(0)
        cursor = Cursor(bodies)
        cells: dict[int, FieldCells] = {}
        _pass(cursor, self.top, ALL, cells)
        cursor.leave_out(ALL, cursor.at == cursor.end)
        made = [
            pa.repeat(absent, n) if column is None else column(cursor, cells[position])
            for position, (column, absent) in enumerate(zip(self.columns, self.absent, strict=True))
        ]
        table = pa.table(dict(zip(self.names, made, strict=True)))
        return fitting(table, cursor.fit)


# ------------------------------------------------------------------------------------- reading


def _pass(
    cursor: Cursor, node: Node, where: Where, cells: dict[int, FieldCells]
) -> FieldCells | None:
    """Go over a type in some values; what stood there, of a number or a text."""
    found: FieldCells | None = None
    match node.kind:
        case "record":
            for field in node.below:
                _pass(cursor, field, where, cells)
        case "union":
            found = _pass_union(cursor, node, where, cells)
        case "list":
            _pass_list(cursor, node, where, cells)
        case "long":
            found = FieldCells(None, numbers=cursor.zigzag(where))
        case "enum":
            symbol = cursor.zigzag(where)
            cursor.leave_out(where, (symbol >= 0) & (symbol < node.size))
            found = FieldCells(None, numbers=symbol)
        case "double":
            found = FieldCells(None, numbers=cursor.double(where))
        case "float":
            found = FieldCells(None, numbers=cursor.single(where))
        case "boolean":
            found = FieldCells(None, numbers=cursor.byte(where))  # what is not 0 is true
        case "text":
            found = FieldCells(None, *cursor.take(cursor.zigzag(where), where))
            if node.is_read and found.begins is not None and found.ends is not None:
                cursor.leave_out(where, ~cursor.are_wide(found.begins, found.ends))
        case "fixed":
            found = FieldCells(None, *cursor.take(node.size, where))
    if node.target is not None:
        assert found is not None, "a program asks for numbers and texts alone"
        cells[node.target] = found
    return found


def _pass_list(cursor: Cursor, node: Node, where: Where, cells: dict[int, FieldCells]) -> None:
    """Go over lists: blocks, each with its number of items before them, and 0 at the end."""
    rows = cursor.positions(where)
    for _ in range(MOST_BLOCKS):
        count = cursor.zigzag(rows)
        # A negative one has the block's size behind it, which few write.
        cursor.leave_out(rows, (count >= 0) & (count <= MOST_ITEMS))
        goes_on = (count > 0) & cursor.fit[rows]
        rows, count = rows[goes_on], count[goes_on]
        for item in range(int(count.max(initial=0))):
            mine = rows[(count > item) & cursor.fit[rows]]
            if len(mine) < FEW_LISTS:
                cursor.leave_out(mine, np.zeros(len(mine), np.bool_))
                break
            for each in node.below:
                _pass(cursor, each, mine, cells)
    cursor.leave_out(rows, np.zeros(len(rows), np.bool_))


def _pass_union(
    cursor: Cursor, node: Node, where: Where, cells: dict[int, FieldCells]
) -> FieldCells | None:
    index = cursor.zigzag(where)
    cursor.leave_out(where, (index >= 0) & (index < len(node.below)))
    rows = cursor.positions(where)
    inner: FieldCells | None = None
    chosen: Mask | None = None
    for branch, each in enumerate(node.below):
        mine = index == branch
        if each.kind == "null" or not mine.any():
            continue
        inner, chosen = (
            _pass(cursor, each, ALL if _is_all(mine, cursor) else rows[mine], cells),
            mine,
        )
    if node.target is None:
        return None
    # Of a target it is null and one other: what is not that is null, or out.
    if inner is None or chosen is None:
        return _nothing(cursor, node)
    if chosen.all():
        return inner
    return _scattered(inner, chosen, cursor)


def _is_all(mine: Mask, cursor: Cursor) -> bool:
    return len(mine) == len(cursor.at) and bool(mine.all())


def _nothing(cursor: Cursor, node: Node) -> FieldCells:
    n = len(cursor.at)
    null = np.ones(n, np.bool_)
    if any(each.kind in ("text", "fixed") for each in node.below):
        return FieldCells(null, cursor.at.copy(), cursor.at.copy())
    return FieldCells(null, numbers=np.zeros(n, np.int64))


def _scattered(inner: FieldCells, chosen: Mask, cursor: Cursor) -> FieldCells:
    if inner.numbers is not None:
        numbers = np.zeros(len(chosen), inner.numbers.dtype)
        numbers[chosen] = inner.numbers
        return FieldCells(~chosen, numbers=numbers)
    begins, ends = cursor.at.copy(), cursor.at.copy()
    assert inner.begins is not None
    assert inner.ends is not None
    begins[chosen], ends[chosen] = inner.begins, inner.ends
    return FieldCells(~chosen, begins, ends)


# ------------------------------------------------------------------------------------ programs


def program_of(writer: Any, reader: Any, rules: tuple[FieldRule, ...]) -> AvroProgram | None:
    """The program of a schema for a contract; None: there is none.

    `writer`, `reader` (None: there is none): records as fastavro parses them.
    """
    try:
        return _program(writer, reader, rules)
    except NoProgram:
        return None


def _program(writer: Any, reader: Any, rules: tuple[FieldRule, ...]) -> AvroProgram:
    if reader is not None and (reader["name"] != writer["name"] or reader.get("aliases")):
        raise NoProgram
    known = writer["__named_schemas"]
    written = {field["name"]: field["type"] for field in writer["fields"]}
    asked = None if reader is None else {field["name"]: field for field in reader["fields"]}
    columns: list[Column | None] = []
    absent: list[Any] = []
    for rule in rules:
        wanted = None if asked is None else asked.get(rule.name)
        if wanted is not None and wanted.get("aliases"):
            raise NoProgram
        is_there = rule.name in written and (asked is None or wanted is not None)
        columns.append(
            _column(rule, _inner(written[rule.name], known), wanted) if is_there else None
        )
        default = wanted["default"] if wanted and not is_there and "default" in wanted else None
        if wanted and not is_there and "default" not in wanted:
            raise NoProgram
        absent.append(_constant(rule, default))
    if asked is not None:  # what the contract does not ask for must be resolved, too
        for name, field in asked.items():
            if field.get("aliases") or (name not in written and "default" not in field):
                raise NoProgram
    targets = {rule.name: at for at, rule in enumerate(rules) if columns[at] is not None}
    fields = tuple(
        _node(field["type"], known, targets.get(field["name"]), holds_lists(field["type"], known))
        for field in writer["fields"]
    )
    names = tuple(rule.name for rule in rules)
    return AvroProgram(Node("record", below=fields), tuple(columns), tuple(absent), names)


def _node(schema: Any, known: Any, target: int | None, is_read: bool) -> Node:
    """`is_read`: fastavro reads the values, whoever asks for them (see `avro._only`)."""
    if isinstance(schema, list):
        below = tuple(_node(each, known, None, is_read) for each in schema)
        return Node("union", 0, below, target)
    if isinstance(schema, str):
        schema = known.get(schema, {"type": schema})
    if is_read and schema.get("logicalType") not in (None, "decimal"):
        raise NoProgram  # a time of no year that Python knows, an id that is none
    kind = schema["type"]
    match kind:
        case "null" | "double" | "float" | "boolean":
            return Node(kind, target=target)
        case "int" | "long":
            return Node("long", target=target)
        case "string" | "bytes":
            return Node("text", target=target, is_read=is_read and kind == "string")
        case "fixed":
            return Node("fixed", schema["size"], target=target)
        case "enum":
            return Node("enum", len(schema["symbols"]), target=target)
        case "array":
            return Node("list", below=(_node(schema["items"], known, None, is_read),))
        case "map":
            value = _node(schema["values"], known, None, is_read)
            return Node("list", below=(Node("text", is_read=is_read), value))
        case "record":
            below = tuple(_node(f["type"], known, None, is_read) for f in schema["fields"])
            return Node("record", below=below)
    raise NoProgram


def holds_lists(schema: Any, known: Any) -> bool:
    """Whether a type of a parsed schema that does not hold itself has an array or a map."""
    if isinstance(schema, list):
        return any(holds_lists(each, known) for each in schema)
    if isinstance(schema, str):
        return schema in known and holds_lists(known[schema], known)
    if schema["type"] == "record":
        return any(holds_lists(field["type"], known) for field in schema["fields"])
    return schema["type"] in ("array", "map")


def _inner(schema: Any, known: Any) -> Any:
    """A type, or the one that is not null of a union of two."""
    if isinstance(schema, list):
        others = [each for each in schema if each != "null"]
        if len(others) != 1:
            raise NoProgram
        schema = others[0]
    if isinstance(schema, str):
        schema = known.get(schema, schema)
    return {"type": schema} if isinstance(schema, str) else schema


def _column(rule: FieldRule, written: Any, wanted: Any) -> Column:
    """How values of a type become a column of the contract's field."""
    kind, logical = written["type"], written.get("logicalType")
    if wanted is not None:
        kind = _promoted(written, _inner(wanted["type"], {}), wanted)
    column = _of_kind(rule, written, kind, logical)
    if wanted is not None and "null" not in wanted["type"]:  # of a union's branches
        return never_null(column)
    return column


def _of_kind(rule: FieldRule, written: Any, kind: str, logical: str | None) -> Column:
    match rule.kind, kind, logical:
        case "string", "string", None:
            return of_texts
        case "string", "enum", None:
            return of_symbols(tuple(written["symbols"]))
        case "int", "int" | "long", None:
            return of_numbers(np.int64)
        case "double", "int" | "long" | "float" | "double", None:
            return of_numbers(np.float64)
        case "bool", "boolean", None:
            return of_numbers(np.bool_)
        case "timestamp", "string", None:
            return of_texts
        case "timestamp", "long", "timestamp-millis" | "timestamp-micros" | "timestamp-nanos":
            return of_times(logical)
        case "decimal", "bytes" | "fixed", "decimal" if written.get("scale", 0) == rule.scale:
            return of_decimals(rule)
        case "decimal", "int" | "long", None if rule.scale == 0:
            return of_decimals(rule)
    raise NoProgram


_PROMOTIONS = {
    ("int", "long"),
    ("int", "float"),
    ("int", "double"),
    ("long", "float"),
    ("long", "double"),
    ("float", "double"),
}


def _promoted(written: Any, asked: Any, field: Any) -> str:
    """What a type is once it is resolved to the reader's."""
    kind, other = written["type"], asked["type"]
    if isinstance(field["type"], list) and len(field["type"]) != 2:
        raise NoProgram
    plain = not written.get("logicalType") and not asked.get("logicalType")
    if plain and (kind, other) in _PROMOTIONS:
        return str(other)
    keys = ("type", "logicalType", "scale", "precision", "size", "name", "symbols")
    if any(written.get(key) != asked.get(key) for key in keys):
        raise NoProgram
    return str(kind)


def _constant(rule: FieldRule, default: Any) -> Any:
    """What an absent field is, in the type of its raw column."""
    types = {
        "string": (pa.string(), (str,)),
        "int": (pa.int64(), (int,)),
        "double": (pa.float64(), (int, float)),
        "bool": (pa.bool_(), (bool,)),
        "timestamp": (pa.int64(), ()),
        "decimal": (pa.decimal128(rule.precision or 1, rule.scale), ()),
        "json": (pa.string(), ()),
    }
    type_, allowed = types[rule.kind]
    if default is not None and type(default) not in allowed:
        raise NoProgram
    return pa.scalar(default, type_)
