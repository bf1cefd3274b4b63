"""Avro: fastavro reads one value, and is the judge; `avro_columns` reads many of a simple schema.

A value is read by its writer's schema, resolved to the reader's: a field that the reader alone has
takes its default, one that the writer alone has is passed over, a number is promoted, a name is
found by an alias. Without a reader's schema that is the writer's, cut down to the contract's
fields: nothing is resolved then, and a field that it lacks is missing, which an optional field
allows.

Logical types become what the contract knows: timestamps are times, decimals decimals; dates, times
of day and UUIDs are text, as ISO 8601 writes them. A local timestamp has no offset, so it is no
time. In a field of kind `json`, bytes are text of the characters 0 to 255, as in Avro's own JSON.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple, Self
from uuid import UUID

import fastavro
import fastavro.read
import numpy as np
from fastavro.schema import SchemaParseException, UnknownType

from spillway.decode.formats.avro_columns import AvroProgram, holds_lists, program_of
from spillway.decode.formats.decoder import FormatError, Rows, TypedColumns, exact_decimal
from spillway_schemas.formats import SchemaFile, ValueFormat, WriterSchema
from spillway_schemas.messages import EPOCH, OUTSIDE_YEARS, FieldRule, Rejected

Schema = Any
"""As fastavro parses it: a name, a list (a union) or a dictionary."""

NOT_A_SCHEMA = (
    SchemaParseException,
    UnknownType,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    RecursionError,
)
"""What fastavro raises for what is no schema."""

MOST_TYPES = 10_000
"""Of a schema, with every name written out. A type that is used twice by another, which is used
twice, doubles at each step: 2 KB of schema make a million, each looked at for a value of 2 bytes.
At this bound a value takes some milliseconds."""


def _nanoseconds(number: int, *_: object) -> datetime:
    return EPOCH + timedelta(microseconds=number // 1000)


def _exact(unscaled: bytes, schema: Mapping[str, Any], *_: object) -> Decimal | bytes:
    return exact_decimal(unscaled, int(schema.get("scale", 0)))


# The library lets others give readers. It has none for nanoseconds, and its own for decimals rounds
# one of more digits than its schema has, which should be refused.
fastavro.read.LOGICAL_READERS.setdefault("long-timestamp-nanos", _nanoseconds)
fastavro.read.LOGICAL_READERS.update({"bytes-decimal": _exact, "fixed-decimal": _exact})


class AvroDecoder:
    """Reads the values of one writer's schema."""

    def __init__(
        self, label: str, writer: Schema, reader: Schema | None, rules: tuple[FieldRule, ...]
    ) -> None:
        """`label`: what reasons call the writer's schema."""
        self._label = label
        self._writer = writer
        self._rules = rules
        names = [each.name for each in rules]
        self._wanted = _only(writer if reader is None else reader, names, writer)
        self._program: AvroProgram | None = program_of(writer, reader, rules)

    @classmethod
    def of(
        cls, format_: ValueFormat, rules: tuple[FieldRule, ...], schema: WriterSchema | None
    ) -> Self:
        """See `decoder_of`."""
        reader = None if format_.reader is None else _of_file(format_.reader)
        if schema is None:
            assert format_.writer is not None
            return cls(format_.writer.path.name, _of_file(format_.writer), reader, rules)
        label = f"schema {schema.id}"
        if schema.kind != "AVRO":
            raise Rejected(f"{label} cannot be read: it is {schema.kind}, not AVRO")
        try:
            writer = parsed(schema.text, [text for _, text in schema.references])
        except NOT_A_SCHEMA as error:
            raise Rejected(f"{label} cannot be read: no Avro schema: {first_line(error)}") from None
        if problem := _unreadable(writer):
            raise Rejected(f"{label} cannot be read: {problem}")
        return cls(label, writer, reader, rules)

    def has(self, name: str) -> bool:
        """Whether values may have a field."""
        return any(field["name"] == name for field in self._wanted["fields"])

    def fields(self, body: bytes) -> Mapping[str, Any]:
        """The contract's fields of one value. Raises Rejected."""
        try:
            found = self._read(body, self._wanted)
        except OverflowError as error:
            raise self._outside(body, error) from None
        return {
            rule.name: plain(found[rule.name], rule.kind)
            for rule in self._rules
            if rule.name in found
        }

    def columns(self, bodies: Any) -> tuple[list[TypedColumns], Rows]:
        """What can be read on whole columns, and the positions of the rest."""
        if self._program is None:
            return [], np.arange(len(bodies))
        return self._program.read(bodies)

    def _read(self, body: bytes, reader: Schema) -> dict[str, Any]:
        # fastavro does not see that what it skips is cut off. The byte behind shows it.
        stream = io.BytesIO(body + b"\x00")
        try:
            found: dict[str, Any] = fastavro.schemaless_reader(stream, self._writer, reader)
        except (OverflowError, MemoryError):
            raise
        except EOFError:
            raise Rejected(f"not Avro by {self._label}: it ends too early") from None
        except UnicodeDecodeError:
            raise Rejected(f"not Avro by {self._label}: a text is not UTF-8") from None
        except fastavro.read.SchemaResolutionError:
            raise Rejected(f"{self._label} cannot be resolved to the reader's schema") from None
        except Exception as error:  # noqa: BLE001 - whatever it is, these bytes are the cause
            raise Rejected(f"not Avro by {self._label}: {first_line(error)}") from None
        left = len(body) - stream.tell()
        if left < 0:
            raise Rejected(f"not Avro by {self._label}: it ends too early")
        if left:
            raise Rejected(f"not Avro by {self._label}: {left} bytes left over")
        return found

    def _outside(self, body: bytes, error: OverflowError) -> Rejected:
        """Why a value cannot be had in Python's types: a time of no year that it knows, mostly."""
        for rule in self._rules:
            try:
                self._read(body, _only(self._wanted, [rule.name], self._writer))
            except OverflowError:
                return Rejected(f"{rule.name}: {OUTSIDE_YEARS}")
            except Rejected as rejected:
                return rejected
        return Rejected(f"not Avro by {self._label}: {first_line(error)}")


def check_files(format_: ValueFormat, rules: tuple[FieldRule, ...]) -> None:
    """Raise FormatError for files of the query that are no schemas, or that lack a field."""
    for file in (format_.writer, format_.reader):
        if file is not None:
            _of_file(file)
    last = format_.reader or format_.writer
    if last is not None:
        names = {field["name"] for field in _of_file(last)["fields"]}
        for rule in rules:
            if not rule.optional and rule.name not in names:
                raise FormatError(f"{last.path}: {rule.name} is required, and it has no such field")


def parsed(text: str, references: list[str]) -> Schema:
    """A schema's text, with those that it refers to by name. Raises one of `NOT_A_SCHEMA`."""
    names: dict[str, Any] = {}
    for each in references:
        fastavro.parse_schema(json.loads(each), named_schemas=names)
    return fastavro.parse_schema(json.loads(text), named_schemas=names)


def _of_file(file: SchemaFile) -> Schema:
    try:
        found = parsed(file.data.decode(), [])
    except NOT_A_SCHEMA as error:
        raise FormatError(f"{file.path}: no Avro schema: {first_line(error)}") from None
    if problem := _unreadable(found):
        raise FormatError(f"{file.path}: {problem}")
    return found


def _unreadable(schema: Schema) -> str:
    """Why values of a parsed schema are not read; empty: they are.

    fastavro follows a schema that holds itself as deep as a value says, until the process crashes,
    and goes over values without bytes as often as one says, or as a schema that doubles does.
    Nobody who sends a message, or registers its schema, may do that.
    """
    if not (isinstance(schema, dict) and schema.get("type") == "record"):
        return "a record is needed"
    try:
        extent = _extent(schema, schema["__named_schemas"], (), {})
    except _EndlessError as endless:
        return str(endless)
    if extent.types > MOST_TYPES:
        return f"with every name written out it has over {MOST_TYPES:,} types"
    return ""


class _EndlessError(Exception):
    """Reading a value could have no end."""


class _Extent(NamedTuple):
    """How large a type, and a value of it, is."""

    least: int
    """The fewest bytes of a value."""
    types: int
    """How many types it has in it, itself included, with every name written out."""


def _extent(schema: Any, known: Any, above: tuple[str, ...], found: dict[str, _Extent]) -> _Extent:
    """How large a type is. `found`: those of named types, each looked at once. Raises
    _EndlessError."""
    if isinstance(schema, list):
        each = [_extent(branch, known, above, found) for branch in schema]
        return _Extent(1 + min((e.least for e in each), default=0), 1 + sum(e.types for e in each))
    if isinstance(schema, str):
        if schema not in known:
            return _Extent({"null": 0, "float": 4, "double": 8}.get(schema, 1), 1)
        schema = known[schema]
    match schema["type"]:
        case "record":
            name = schema["name"]
            if name in above:
                raise _EndlessError(f"{name} holds itself")
            if name not in found:
                inside = (*above, name)
                each = [_extent(f["type"], known, inside, found) for f in schema["fields"]]
                found[name] = _Extent(sum(e.least for e in each), 1 + sum(e.types for e in each))
            return found[name]
        case "array":
            items = _extent(schema["items"], known, above, found)
            if not items.least:
                raise _EndlessError("it has an array of values without bytes")
            return _Extent(1, 1 + items.types)
        case "map":
            return _Extent(1, 1 + _extent(schema["values"], known, above, found).types)
        case "fixed":
            return _Extent(int(schema["size"]), 1)
        case "enum":
            return _Extent(1, 1)
    return _extent(schema["type"], known, above, found)


def _only(schema: Schema, names: list[str], writer: Schema) -> Schema:
    """A record of these fields alone: what others hold is skipped, not read.

    But for lists of the writer's: of those that it skips fastavro does not see the end.
    """
    kept = [field for field in schema["fields"] if field["name"] in names]
    have = {field["name"] for field in kept}
    kept += [
        {"name": field["name"], "type": field["type"]}
        for field in writer["fields"]
        if field["name"] not in have and holds_lists(field["type"], writer["__named_schemas"])
    ]
    if len(kept) == len(schema["fields"]) and schema is writer:
        return schema
    some = {name: value for name, value in schema.items() if not name.startswith("__")}
    # What a field that goes has defined is known all the same.
    given = {schema["name"], *_defined(kept)}
    both = {**writer["__named_schemas"], **schema["__named_schemas"]}
    known = {name: each for name, each in both.items() if name not in given}
    return fastavro.parse_schema({**some, "fields": kept}, named_schemas=known, _force=True)


def _defined(schema: Any) -> set[str]:
    """Names of the types that are defined in a parsed schema."""
    if isinstance(schema, list):
        return set().union(*map(_defined, schema)) if schema else set()
    if not isinstance(schema, dict):
        return set()
    own = {schema["name"]} if schema.get("type") in ("record", "enum", "fixed") else set()
    below = [schema.get(part) for part in ("type", "fields", "items", "values")]
    return own.union(*map(_defined, [each for each in below if isinstance(each, dict | list)]))


def plain(value: Any, kind: str) -> Any:
    """A value as fastavro gives it, as the contract takes one of this kind."""
    if kind == "json":
        return jsonable(value)
    if kind == "decimal" and type(value) is int:
        return Decimal(value)  # a number of Avro is exact, however many digits it has
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, date | time) and not isinstance(value, datetime):
        return value.isoformat()
    return value


def jsonable(value: Any) -> Any:
    """A value as `json.dumps` takes it."""
    if isinstance(value, Mapping):
        return {str(name): jsonable(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(each) for each in value]
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    return value


def first_line(error: BaseException) -> str:
    """A library's words, short: they may quote a whole schema."""
    told = str(error) if isinstance(error, SchemaParseException) else repr(error)
    text = told.splitlines()[0]
    return text if len(text) <= 120 else text[:117] + "..."
