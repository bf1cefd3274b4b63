"""Protobuf: the library reads one message, and is the judge; `protobuf_columns` reads many.

A message is read by its writer's schema, or by the reader's: fields meet by their numbers, what the
reader does not know is passed over. A field that has presence (`optional`, a message, a member of a
`oneof`, all of proto2) and is not there is missing, or its declared default; one without presence
is then 0, false or an empty text, as Protobuf has it.

What the contract gets: numbers, truths and texts as they are; an enum's value is the name of it;
`google.protobuf.Timestamp` is a time, finer parts than microseconds cut off; a wrapper
(`google.protobuf.Int64Value`, ...) what it holds; `confluent.type.Decimal` a decimal. In a field of
kind `json`, what Protobuf's own JSON says, with the names as the schema writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any, Self

import numpy as np
from google.protobuf import json_format, message_factory
from google.protobuf.message import DecodeError

from spillway.decode.formats.decoder import Rows, TypedColumns, exact_decimal
from spillway.decode.formats.protobuf_columns import ProtobufProgram, program_of
from spillway.decode.formats.protobuf_schemas import (
    ANY,
    DECIMAL,
    ENUM,
    MESSAGE,
    TIMESTAMP,
    WRAPPERS,
    Descriptor,
    first_line,
    message_of_file,
    message_of_schema,
    narrowed,
)
from spillway_schemas.formats import ValueFormat, WriterSchema
from spillway_schemas.messages import EPOCH, OUTSIDE_YEARS, FieldRule, Rejected

NANOS = 1_000_000_000
MOST_SCALE = 100
"""Of a decimal: more digits than any column has."""
MOST_LEVELS = 100
"""Messages within a message of which JSON is made: the library calls itself for each. Its parser
has the same bound, but begins anew with the bytes that an `Any` holds."""


class ProtobufDecoder:
    """Reads the messages of one type."""

    def __init__(self, label: str, descriptor: Descriptor, rules: tuple[FieldRule, ...]) -> None:
        """`label`: what reasons call the schema."""
        self._label = label
        descriptor = narrowed(descriptor, {rule.name for rule in rules})
        self._class = message_factory.GetMessageClass(descriptor)
        self._fields = {
            rule.name: (field, _reader(field, rule.kind))
            for rule in rules
            if (field := descriptor.fields_by_name.get(rule.name)) is not None
        }
        self._program: ProtobufProgram | None = program_of(descriptor, rules)

    @classmethod
    def of(
        cls,
        format_: ValueFormat,
        rules: tuple[FieldRule, ...],
        schema: WriterSchema | None,
        place: tuple[int, ...],
    ) -> Self:
        """See `decoder_of`."""
        reader = (
            None if format_.reader is None else message_of_file(format_.reader, format_.message)
        )
        if schema is None:
            assert format_.writer is not None
            wrote = reader or message_of_file(format_.writer, format_.message)
            return cls((format_.reader or format_.writer).path.name, wrote, rules)
        written = message_of_schema(schema, place)
        return cls(f"schema {schema.id}", reader or written, rules)

    def has(self, name: str) -> bool:
        """Whether messages may have a field."""
        return name in self._fields

    def fields(self, body: bytes) -> Mapping[str, Any]:
        """The contract's fields of one message. Raises Rejected."""
        message = self._class()
        try:
            message.ParseFromString(body)
        except DecodeError as error:
            told = first_line(error)
            raise Rejected(f"not Protobuf by {self._label}: {told}") from None
        found: dict[str, Any] = {}
        for name, (field, read) in self._fields.items():
            if field.has_presence and not message.HasField(name) and not field.has_default_value:
                continue
            try:
                found[name] = read(getattr(message, name))
            except OverflowError:
                raise Rejected(f"{name}: {OUTSIDE_YEARS}") from None
            except UnicodeDecodeError:  # proto2 does not look at texts before
                raise Rejected(f"not Protobuf by {self._label}: a text is not UTF-8") from None
        return found

    def columns(self, bodies: Any) -> tuple[list[TypedColumns], Rows]:
        """What can be read on whole columns, and the positions of the rest."""
        if self._program is None:
            return [], np.arange(len(bodies))
        return self._program.read(bodies)


def _reader(field: Any, kind: str) -> Callable[[Any], Any]:
    """What the contract gets of a field's value."""
    if kind == "json":
        return _json_of(field)
    if field.is_repeated:
        return list
    if field.type == ENUM:
        names = field.enum_type.values_by_number
        return lambda number: names[number].name if number in names else number
    if field.type == MESSAGE:
        name = field.message_type.full_name
        if name == TIMESTAMP:
            return _time
        if name == DECIMAL:
            return _decimal
        if name in WRAPPERS:
            return lambda message: _exact(message.value, kind)
        return lambda _: {}  # an object, which no kind but `json` takes
    return lambda value: _exact(value, kind)


def _exact(value: Any, kind: str) -> Any:
    # A whole number of Protobuf is exact, however many digits it has.
    return Decimal(value) if kind == "decimal" and type(value) is int else value


def _time(message: Any) -> Any:
    if not 0 <= message.nanos < NANOS:
        raise OverflowError
    return EPOCH + timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)


def _decimal(message: Any) -> Any:
    if not 0 <= message.scale <= MOST_SCALE:
        return message.value  # bytes, which no contract takes for a decimal
    return exact_decimal(message.value, message.scale)


def _json_of(field: Any) -> Callable[[Any], Any]:
    """Protobuf's JSON of a field's value: of a message that has nothing else. Types in an `Any` are
    those of the writer's schema, whatever else this process has loaded.

    What it returns raises Rejected for a value that has no JSON: a number that is not finite in a
    `Struct`, a time outside the years that JSON has, an `Any` of a type that nobody knows, or of
    messages too deep within each other.
    """
    name, pool = field.name, field.containing_type.file.pool
    may_be_deep = _may_hold_any(field)

    def read(value: Any) -> Any:
        owner = message_factory.GetMessageClass(field.containing_type)()
        if field.is_repeated:
            getattr(owner, name).MergeFrom(value)
        elif field.type == MESSAGE:
            getattr(owner, name).CopyFrom(value)
        else:
            setattr(owner, name, value)
        if may_be_deep and _is_deep(owner, pool):
            raise Rejected(
                f"{name}: it has no JSON (over {MOST_LEVELS} messages within each other)"
            )
        try:
            found = json_format.MessageToDict(
                owner,
                preserving_proto_field_name=True,
                always_print_fields_with_no_presence=True,
                descriptor_pool=pool,
            )
        except (json_format.Error, DecodeError, TypeError, ValueError) as error:
            raise Rejected(f"{name}: it has no JSON ({first_line(error)})") from None
        return found.get(name)

    return read


def _may_hold_any(field: Any) -> bool:
    """Whether an `Any` may be somewhere in a field's value."""
    left, seen = [field.message_type], set()
    while left:
        each = left.pop()
        if each is None or each.full_name in seen:
            continue
        if each.full_name == ANY or each.is_extendable:
            return True
        seen.add(each.full_name)
        left += [below.message_type for below in each.fields]
    return False


def _is_deep(message: Any, pool: Any) -> bool:
    """Whether a message has over `MOST_LEVELS` within each other in it."""
    left = [(message, 0)]
    while left:
        each, level = left.pop()
        if level > MOST_LEVELS:
            return True
        left += [(inner, level + 1) for inner in _within(each, pool)]
    return False


def _within(message: Any, pool: Any) -> list[Any]:
    """The messages right in a message. Of an `Any` the one that it holds, or none where it is of no
    known type or broken: who makes JSON of it will say so."""
    if message.DESCRIPTOR.full_name == ANY:
        try:
            type_ = pool.FindMessageTypeByName(message.type_url.rpartition("/")[2])
            return [message_factory.GetMessageClass(type_).FromString(message.value)]
        except (KeyError, DecodeError):
            return []
    found = []
    for field, value in message.ListFields():
        type_ = field.message_type
        if type_ is None:
            continue
        if not field.is_repeated:
            found.append(value)
        elif not (type_.has_options and type_.GetOptions().map_entry):
            found += value
        elif type_.fields_by_name["value"].type == MESSAGE:
            found += value.values()
    return found
