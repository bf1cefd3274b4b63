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
import re
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
    OverflowError,
)
"""What fastavro raises for what is no schema."""

MOST_DEPTH, MOST_BRACKETS = 64, 256
"""Types within types, with every name written out, and brackets within brackets of a schema's text,
of which a type has up to three. Who reads either calls itself for each: without a bound it would be
the process' stack that says which schema can be read."""
BELIEVED = ("__fastavro_parsed", "__named_schemas")
"""Keys by which fastavro knows what it has parsed. In a text they would say so of what it has not,
and that names mean something else than what is looked at here."""
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)
"""Also one that is not closed: else each of its quotes would be tried as the first."""
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
            return cls(label, writer, reader, rules)
        except UnreadableError as error:
            raise Rejected(f"{label} cannot be read: {error}") from None
        except NOT_A_SCHEMA as error:  # what its fields are called, mostly
            raise Rejected(f"{label} cannot be read: {first_line(error)}") from None

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


class UnreadableError(Exception):
    """Why values of a schema are not read."""


def parsed(text: str, references: list[str]) -> Schema:
    """A schema's text, with those that it refers to by name. Raises UnreadableError.

    fastavro follows a schema that holds itself as deep as a value says, until the process crashes,
    and goes over values without bytes as often as one says, or as a schema that doubles does.
    Nobody who sends a message, or registers its schema, may do that.
    """
    names: dict[str, Any] = {}
    try:
        for each in references:
            fastavro.parse_schema(_loaded(each), named_schemas=names)
        schema = fastavro.parse_schema(_loaded(text), named_schemas=names)
        if not (isinstance(schema, dict) and schema.get("type") == "record"):
            raise UnreadableError("a record is needed")
        extent = _extent(schema, schema["__named_schemas"], (), {})
    except NOT_A_SCHEMA as error:
        raise UnreadableError(f"no Avro schema: {first_line(error)}") from None
    if extent.types > MOST_TYPES:
        raise UnreadableError(f"with every name written out it has over {MOST_TYPES:,} types")
    return schema


def _loaded(text: str) -> Any:
    """A schema's text as JSON, without the keys that fastavro would believe. Raises ValueError, and
    UnreadableError where it is too deep."""
    bare = np.frombuffer(_STRING.sub("", text).encode(errors="replace"), np.uint8)
    opens = (bare == ord("[")) | (bare == ord("{"))
    closes = (bare == ord("]")) | (bare == ord("}"))
    if np.cumsum(opens.astype(np.int64) - closes).max(initial=0) > MOST_BRACKETS:
        raise UnreadableError(f"its text has over {MOST_BRACKETS} brackets within each other")
    return json.loads(text, object_hook=_doubted)


def _doubted(found: dict[str, Any]) -> dict[str, Any]:
    for key in BELIEVED:
        found.pop(key, None)
    return found


def _of_file(file: SchemaFile) -> Schema:
    try:
        return parsed(file.data.decode(), [])
    except (UnreadableError, UnicodeDecodeError) as error:
        raise FormatError(f"{file.path}: {error}") from None


class _Extent(NamedTuple):
    """How large a type, and a value of it, is."""

    least: int
    """The fewest bytes of a value."""
    types: int
    """How many types it has in it, itself included, with every name written out, ..."""
    deep: int
    """... and how many of them within each other."""


def _extent(schema: Any, known: Any, above: tuple[int, ...], found: dict[int, _Extent]) -> _Extent:
    """How large a type is. Raises UnreadableError.

    `above`: the types that it is in; `found`: those looked at, each once. Both by their `id`, for a
    schema may give a type of one that it refers to another meaning.
    """
    if isinstance(schema, str):
        if schema not in known:
            return _Extent(_LEAST.get(schema, 1), 1, 1)
        if id(known[schema]) in above:
            raise UnreadableError(f"{schema} holds itself")
        schema = known[schema]
    own = id(schema)
    if own not in found and len(above) < MOST_DEPTH:
        each = [_extent(one, known, (*above, own), found) for one in _below(schema)]
        types, deep = sum(e.types for e in each), max((e.deep for e in each), default=0)
        found[own] = _Extent(_least(schema, each), 1 + types, 1 + deep)
    if own not in found or len(above) + found[own].deep > MOST_DEPTH:
        raise UnreadableError(f"it has over {MOST_DEPTH} types within each other")
    return found[own]


def _below(schema: Any) -> list[Any]:
    """The types in a type."""
    if isinstance(schema, list):
        return schema
    match schema["type"]:
        case "record":
            return [field["type"] for field in schema["fields"]]
        case "array":
            return [schema["items"]]
        case "map":
            return [schema["values"]]
    return []


_LEAST = {"null": 0, "float": 4, "double": 8}


def _least(schema: Any, below: list[_Extent]) -> int:
    """The fewest bytes of a value. Raises UnreadableError."""
    if isinstance(schema, list):
        return 1 + min((each.least for each in below), default=0)
    match schema["type"]:
        case "record":
            return sum(each.least for each in below)
        case "array" if not below[0].least:
            raise UnreadableError("it has an array of values without bytes")
        case "fixed":
            size = schema["size"]
            if type(size) is not int or not 0 <= size < 2**31:
                raise UnreadableError(f"the size of {schema['name']} is no whole number of 31 bits")
            return size
        case "error":
            raise UnreadableError("it has an error of a protocol, which is no type of values")
    return _LEAST.get(schema["type"], 1)


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
