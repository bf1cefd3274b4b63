"""Protobuf messages of one type, read together: the first field of all messages, then the next.

    field = tag (varint: number << 3 | wire type), then by the wire type
    0 varint    1 8 bytes    2 varint length, bytes    5 4 bytes

Fields come in any order and may be absent, so messages are grouped by their next tag at each step.
Most have the same ones in the same order, and a step is one group. The last of a repeated field
counts. The library is left what a second field means that is a message, which is merged into the
first, or a text, which must be UTF-8 each time; so are groups, numbers that are not written the
shortest way where it matters, and all messages of more than `MOST_FIELDS` fields: each is a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from spillway.decode.formats.columns import (
    Column,
    FieldCells,
    NoProgram,
    fitting,
    of_decimals,
    of_numbers,
    of_symbols,
    of_texts,
    of_times,
)
from spillway.decode.formats.cursor import ALL, Cursor, Ints, Mask, Numbers, singles
from spillway.decode.formats.decoder import Rows, TypedColumns
from spillway_schemas.messages import FieldRule

MOST_FIELDS = 96
"""Fields of a message, repeated ones counted each, that is read together with others."""
FEW_MESSAGES = 128
"""Fewer that have the same tag next are read one by one, once such have cost a batch a step for
every `STEP_MESSAGES` of its messages."""
STEP_MESSAGES = 4
"""So many are read one by one in the time of a step: 10 us each, 20 to 40 us (measured)."""
VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5

DOUBLE, FLOAT, INT64, UINT64, INT32, FIXED64, FIXED32, BOOL, STRING = range(1, 10)
MESSAGE, RAW, UINT32, ENUM, SFIXED32, SFIXED64, SINT32, SINT64 = range(11, 19)
"""`FieldDescriptor.TYPE_*`."""
WIRE = {
    **dict.fromkeys((INT64, UINT64, INT32, BOOL, UINT32, ENUM, SINT32, SINT64), VARINT),
    **dict.fromkeys((DOUBLE, FIXED64, SFIXED64), EIGHT),
    **dict.fromkeys((FLOAT, FIXED32, SFIXED32), FOUR),
    **dict.fromkeys((STRING, RAW, MESSAGE), BYTES),
}
SECOND_US = 1_000_000
SECONDS = (-(2**43), 2**43)
"""So many seconds are microseconds of 64 bits; the years of a time are far fewer."""


@dataclass(frozen=True)
class Slot:
    """A field that is asked for."""

    number: int
    type: int
    below: Mapping[int, Slot] = field(default_factory=dict)
    """By their numbers, the fields of a message."""


@dataclass
class Found:
    """What a field was in n messages."""

    slot: Slot
    seen: Mask
    numbers: Numbers
    """The raw number of each, or ..."""
    begins: Ints
    ends: Ints
    """... the addresses of its bytes."""


@dataclass(frozen=True)
class WantedField:
    """How a field becomes a column of the contract's."""

    number: int
    column: Column
    has_presence: bool
    shape: str
    """`plain`, `time`, `decimal`, `wrapped`."""
    scale: int = 0


@dataclass(frozen=True)
class ProtobufProgram:
    """How the messages of a type become columns."""

    slots: Mapping[int, Slot]
    wanted: tuple[WantedField | None, ...]
    """One for each field of the contract; None: the message has none."""
    absent: tuple[Any, ...]
    """The types of the columns of those."""
    names: tuple[str, ...]

    def read(self, bodies: Any) -> tuple[list[TypedColumns], Rows]:
        """See `ValueDecoder.columns`."""
        n = len(bodies)
        if not n:
            return [], np.arange(0)
        cursor = Cursor(bodies)
        found = _fields(cursor, self.slots)
        made = [
            pa.nulls(n, absent) if each is None else _made(cursor, found[each.number], each)
            for each, absent in zip(self.wanted, self.absent, strict=True)
        ]
        table = pa.table(dict(zip(self.names, made, strict=True)))
        return fitting(table, cursor.fit)


def _fields(cursor: Cursor, slots: Mapping[int, Slot]) -> dict[int, Found]:
    """Read all messages to their ends."""
    n = len(cursor.at)
    zero = np.zeros(n, np.int64)
    found = {
        number: Found(
            slot,
            np.zeros(n, np.bool_),
            np.zeros(n, np.uint64),
            cursor.at.copy() if WIRE[slot.type] == BYTES else zero,
            cursor.at.copy() if WIRE[slot.type] == BYTES else zero,
        )
        for number, slot in slots.items()
    }
    apart = 0
    for _ in range(MOST_FIELDS):
        open_ = np.flatnonzero(cursor.at < cursor.end)
        if not len(open_):
            return found
        tags = _shortest(cursor, open_)
        cursor.leave_out(open_, tags < 2**32)
        if (tags == tags[0]).all():
            _take(cursor, int(tags[0]), open_, found)
            continue
        rows = open_[np.argsort(tags, kind="stable")]
        each, count = np.unique(tags, return_counts=True)
        apart += len(each) - 1
        if apart > n // STEP_MESSAGES:
            many = count >= FEW_MESSAGES
            stays = np.repeat(many, count)
            cursor.leave_out(rows, stays)
            rows, each, count = rows[stays], each[many], count[many]
        for tag, mine in zip(each.tolist(), np.split(rows, np.cumsum(count)), strict=False):
            _take(cursor, tag, mine, found)
    cursor.leave_out(ALL, cursor.at == cursor.end)
    return found


def _shortest(cursor: Cursor, rows: Ints) -> Numbers:
    """The next number of messages, which is out where it is not written the shortest way."""
    before = cursor.at[rows]
    number = cursor.varint(rows)
    after = cursor.at[rows]
    cursor.leave_out(rows, (after - before == 1) | (cursor.data[after - 1] != 0))
    return number


def _take(cursor: Cursor, tag: int, rows: Ints, found: dict[int, Found]) -> None:
    """Read the field of one tag in some messages."""
    rows = rows[cursor.fit[rows]]
    number, wire = tag >> 3, tag & 7
    field_ = found.get(number)
    if not len(rows):
        return
    if number == 0 or (field_ is not None and WIRE[field_.slot.type] != wire):
        cursor.leave_out(rows, np.zeros(len(rows), np.bool_))
        return
    numbers = ends = begins = None
    match wire:
        case 0:
            numbers = cursor.varint(rows)
        case 1:
            numbers = cursor.word(rows)
        case 2:
            sizes = _shortest(cursor, rows)
            begins, ends = cursor.take(np.minimum(sizes, 2**40).astype(np.int64), rows)
        case 5:
            numbers = cursor.half(rows)
        case _:
            cursor.leave_out(rows, np.zeros(len(rows), np.bool_))
            return
    if field_ is None:
        return
    if field_.slot.type in (MESSAGE, STRING):
        cursor.leave_out(rows, ~field_.seen[rows])
    field_.seen[rows] = True
    if numbers is not None:
        field_.numbers[rows] = numbers
    elif begins is not None and ends is not None:
        field_.begins[rows], field_.ends[rows] = begins, ends


# ------------------------------------------------------------------------------------- columns


def _made(cursor: Cursor, found: Found, wanted: WantedField) -> Any:
    """The column of a field."""
    if wanted.shape == "plain":
        null = ~found.seen if wanted.has_presence else None
        return wanted.column(cursor, _cells(cursor, found, null))
    # A message within, of those that have it.
    inner = cursor.within(found.begins, found.ends)
    parts = _fields(inner, found.slot.below)
    null = ~found.seen
    if wanted.shape == "time":
        cells = _time(inner, parts, null)
    elif wanted.shape == "decimal":
        scale = _number(inner, parts[3])
        inner.leave_out(ALL, null | (scale == wanted.scale))
        cells = _cells(inner, parts[1], null)
    else:
        cells = _cells(inner, parts[1], null)
    column = wanted.column(inner, cells)
    cursor.leave_out(ALL, inner.fit)
    return column


def _time(cursor: Cursor, parts: dict[int, Found], null: Mask) -> FieldCells:
    seconds, nanos = _number(cursor, parts[1]), _number(cursor, parts[2])
    fine = (nanos >= 0) & (nanos < 1_000_000_000)
    fine &= (seconds > SECONDS[0]) & (seconds < SECONDS[1])
    cursor.leave_out(ALL, fine)
    micros = np.where(fine, seconds, 0) * SECOND_US + np.where(fine, nanos, 0) // 1_000
    return FieldCells(null, numbers=micros)


def _cells(cursor: Cursor, found: Found, null: Mask | None) -> FieldCells:
    if WIRE[found.slot.type] == BYTES:
        # Fields come in any order, and addresses of a column ascend: those of one field do.
        return FieldCells(null, found.begins, found.ends)
    if found.slot.type == DOUBLE:
        return FieldCells(null, numbers=found.numbers.view(np.float64))
    if found.slot.type == FLOAT:
        return FieldCells(null, numbers=singles(found.numbers.astype(np.uint32)))
    return FieldCells(null, numbers=_number(cursor, found))


def _number(cursor: Cursor, found: Found) -> Ints:
    """The whole number of each message, int64; messages are out where it is none of 64 bits with a
    sign."""
    raw, type_ = found.numbers, found.slot.type
    number: Ints
    if type_ in (INT32, SFIXED32, ENUM):
        number = raw.astype(np.uint32).view(np.int32).astype(np.int64)
    elif type_ in (UINT32, FIXED32):
        number = raw.astype(np.uint32).astype(np.int64)
    elif type_ == SINT32:
        low, bit = raw.astype(np.uint32), np.uint32(1)
        signed = (low >> bit) ^ (np.uint32(0) - (low & bit))
        number = signed.view(np.int32).astype(np.int64)
    elif type_ == SINT64:
        one = np.uint64(1)
        number = ((raw >> one) ^ (np.uint64(0) - (raw & one))).view(np.int64)
    elif type_ == BOOL:
        number = (raw != 0).astype(np.int64)
    elif type_ in (UINT64, FIXED64):
        fine = raw < 2**63
        cursor.leave_out(ALL, fine)
        number = np.where(fine, raw, 0).astype(np.int64)
    else:
        number = raw.view(np.int64)
    return number


# ------------------------------------------------------------------------------------ programs

WHOLE = frozenset(
    {INT64, UINT64, INT32, FIXED64, FIXED32, UINT32, SFIXED32, SFIXED64, SINT32, SINT64}
)
_TIME = {1: Slot(1, INT64), 2: Slot(2, INT32)}
_DECIMAL = {1: Slot(1, RAW), 2: Slot(2, UINT32), 3: Slot(3, INT32)}


def program_of(descriptor: Any, rules: tuple[FieldRule, ...]) -> ProtobufProgram | None:
    """The program of a message type for a contract; None: there is none."""
    try:
        return _program(descriptor, rules)
    except NoProgram:
        return None


def _program(descriptor: Any, rules: tuple[FieldRule, ...]) -> ProtobufProgram:
    names = {rule.name for rule in rules}
    for each in descriptor.oneofs:
        if sum(member.name in names for member in each.fields) > 1:
            raise NoProgram  # the last of them empties the others
    slots: dict[int, Slot] = {}
    wanted: list[WantedField | None] = []
    absent: list[Any] = []
    for rule in rules:
        field_ = descriptor.fields_by_name.get(rule.name)
        absent.append(_absent_type(rule))
        if field_ is None:
            wanted.append(None)
            continue
        if field_.is_repeated or field_.has_default_value:
            raise NoProgram
        slots[field_.number], each = _wanted(field_, rule)
        wanted.append(each)
    return ProtobufProgram(slots, tuple(wanted), tuple(absent), tuple(rule.name for rule in rules))


def _wanted(field_: Any, rule: FieldRule) -> tuple[Slot, WantedField]:
    type_, shape, below = field_.type, "plain", {}
    scale = 0
    if type_ == MESSAGE:
        name = field_.message_type.full_name
        if name == "google.protobuf.Timestamp" and rule.kind == "timestamp":
            slot = Slot(field_.number, MESSAGE, _TIME)
            return slot, WantedField(field_.number, of_times("timestamp-micros"), True, "time")
        if name == "confluent.type.Decimal" and rule.kind == "decimal":
            slot = Slot(field_.number, MESSAGE, _DECIMAL)
            return slot, WantedField(field_.number, of_decimals(rule), True, "decimal", rule.scale)
        if not (name.startswith("google.protobuf.") and name.endswith("Value")):
            raise NoProgram
        value = field_.message_type.fields_by_name.get("value")
        if value is None or len(field_.message_type.fields) != 1:
            raise NoProgram
        type_, shape, below = value.type, "wrapped", {1: Slot(1, value.type)}
    slot = Slot(field_.number, field_.type, below)
    column = _column(field_, type_, rule)
    return slot, WantedField(field_.number, column, field_.has_presence, shape, scale)


def _column(field_: Any, type_: int, rule: FieldRule) -> Column:
    match rule.kind:
        case "string" | "timestamp" if type_ == STRING:
            return of_texts
        case "string" if type_ == ENUM:
            return _of_enum(field_.enum_type)
        case "int" if type_ in WHOLE:
            return of_numbers(np.int64)
        case "double" if type_ in WHOLE or type_ in (DOUBLE, FLOAT):
            return of_numbers(np.float64)
        case "bool" if type_ == BOOL:
            return of_numbers(np.bool_)
        case "decimal" if type_ in WHOLE and rule.scale == 0:
            return of_decimals(rule)
    raise NoProgram


def _of_enum(enum: Any) -> Column:
    """Names of an enum's numbers; messages with one that it does not know are out."""
    numbers = np.array(sorted(enum.values_by_number), np.int64)
    column = of_symbols(tuple(enum.values_by_number[n].name for n in numbers.tolist()))

    def named(cursor: Cursor, cells: FieldCells) -> Any:
        assert cells.numbers is not None
        at = np.minimum(np.searchsorted(numbers, cells.numbers), len(numbers) - 1)
        fine = numbers[at] == cells.numbers
        cursor.leave_out(ALL, fine if cells.null is None else fine | cells.null)
        return column(cursor, FieldCells(cells.null, numbers=at))

    return named


def _absent_type(rule: FieldRule) -> Any:
    """The type of a column that is null in all messages."""
    types = {
        "string": pa.string(),
        "int": pa.int64(),
        "double": pa.float64(),
        "bool": pa.bool_(),
        "timestamp": pa.int64(),
        "decimal": pa.decimal128(rule.precision or 1, rule.scale),
        "json": pa.string(),
    }
    return types[rule.kind]
