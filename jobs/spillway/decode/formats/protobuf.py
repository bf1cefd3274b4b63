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

import base64
import binascii
import contextlib
import importlib
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import DecodeError

from spillway.decode.formats.decoder import (
    FormatError,
    NoCompiler,
    Rows,
    TypedColumns,
    exact_decimal,
)
from spillway.decode.formats.protobuf_columns import ProtobufProgram, program_of
from spillway_schemas.formats import SchemaFile, ValueFormat, WriterSchema
from spillway_schemas.messages import EPOCH, OUTSIDE_YEARS, FieldRule, Rejected

Descriptor = Any
"""`google.protobuf.descriptor.Descriptor`."""

_META = "confluent/meta.proto"
_META_TEXT = """syntax = "proto3";
package confluent;
import "google/protobuf/descriptor.proto";
message Meta {
  string doc = 1;
  map<string, string> params = 2;
  repeated string tags = 3;
}
extend google.protobuf.FileOptions { Meta file_meta = 1088; }
extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
"""
"""Options that Confluent's tools write into schemas; they say nothing of how values are written."""
WELL_KNOWN = ("any", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers")
TIMESTAMP, DECIMAL = "google.protobuf.Timestamp", "confluent.type.Decimal"
WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_ENUM, _MESSAGE = 14, 11
"""`FieldDescriptor.TYPE_*`."""
NANOS = 1_000_000_000
MOST_SCALE = 100
"""Of a decimal: more digits than any column has."""


class ProtobufDecoder:
    """Reads the messages of one type."""

    def __init__(self, label: str, descriptor: Descriptor, rules: tuple[FieldRule, ...]) -> None:
        """`label`: what reasons call the schema."""
        self._label = label
        descriptor = _only(descriptor, {rule.name for rule in rules})
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
        reader = None if format_.reader is None else _of_file(format_.reader, format_.message)
        if schema is None:
            assert format_.writer is not None
            wrote = reader or _of_file(format_.writer, format_.message)
            return cls((format_.reader or format_.writer).path.name, wrote, rules)
        label = f"schema {schema.id}"
        if schema.kind != "PROTOBUF":
            raise Rejected(f"{label} cannot be read: it is {schema.kind}, not PROTOBUF")
        try:
            files = [_file_of(text, name) for name, text in schema.references]
            written = _at(
                pool_of([*files, _file_of(schema.text, "")]), _file_of(schema.text, ""), place
            )
        except (TypeError, ValueError, KeyError, DecodeError) as error:
            raise Rejected(f"{label} cannot be read: {_first_line(error)}") from None
        except IndexError:
            raise Rejected(f"{label} has no message {list(place)}") from None
        return cls(label, reader or written, rules)

    def has(self, name: str) -> bool:
        """Whether messages may have a field."""
        return name in self._fields

    def fields(self, body: bytes) -> Mapping[str, Any]:
        """The contract's fields of one message. Raises Rejected."""
        message = self._class()
        try:
            message.ParseFromString(body)
        except DecodeError as error:
            told = _first_line(error)
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
    if field.type == _ENUM:
        names = field.enum_type.values_by_number
        return lambda number: names[number].name if number in names else number
    if field.type == _MESSAGE:
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
    `Struct`, a time outside the years that JSON has, an `Any` of a type that nobody knows.
    """
    name, pool = field.name, field.containing_type.file.pool

    def read(value: Any) -> Any:
        owner = message_factory.GetMessageClass(field.containing_type)()
        if field.is_repeated:
            getattr(owner, name).MergeFrom(value)
        elif field.type == _MESSAGE:
            getattr(owner, name).CopyFrom(value)
        else:
            setattr(owner, name, value)
        try:
            found = json_format.MessageToDict(
                owner,
                preserving_proto_field_name=True,
                always_print_fields_with_no_presence=True,
                descriptor_pool=pool,
            )
        except (json_format.Error, DecodeError, TypeError, ValueError) as error:
            raise Rejected(f"{name}: it has no JSON ({_first_line(error)})") from None
        return found.get(name)

    return read


# ------------------------------------------------------------------------------------- schemas


def compiled(format_: ValueFormat, rules: tuple[FieldRule, ...]) -> ValueFormat:
    """The same with descriptor sets for files of Protobuf's language. Raises FormatError for files
    that are no schemas, or that lack a field."""
    found = replace(
        format_,
        writer=None if format_.writer is None else _compiled(format_.writer),
        reader=None if format_.reader is None else _compiled(format_.reader),
    )
    for file in (found.writer, found.reader):
        if file is not None:
            fields = _of_file(file, format_.message).fields_by_name
            for rule in rules:
                if not rule.optional and rule.name not in fields:
                    raise FormatError(
                        f"{file.path}: {rule.name} is required, and it has no such field"
                    )
    return found


@lru_cache(maxsize=64)
def _compiled(file: SchemaFile) -> SchemaFile:
    """A descriptor set of a file that may be Protobuf's language."""
    if file.path.suffix != ".proto":
        return file
    try:
        return SchemaFile(file.path, _protoc(file.path, "--include_imports"))
    except NoCompiler as error:
        raise FormatError(
            f"{file.path}: {error}. Or give a descriptor set: protoc --include_imports "
            "--descriptor_set_out=FILE.desc"
        ) from None


def serialized(text: str, references: Sequence[tuple[str, str]]) -> str:
    """A schema in Protobuf's language, with what it refers to, as a registry gives it serialized.

    Raises NoCompiler, and FormatError for text that is no schema.
    """
    imported = descriptor_pb2.FileDescriptorSet(file=_common())
    for name, other in references:
        # One that cannot be read is not there: the compiler names the import.
        with contextlib.suppress(ValueError):
            imported.file.append(_file_of(other, name))
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "confluent").mkdir()
        (folder / _META).write_text(_META_TEXT)
        main = folder / f"{uuid.uuid4().hex}.proto"  # no import has this name
        main.write_bytes(text.encode(errors="replace"))
        given = folder / "imported.desc"
        given.write_bytes(imported.SerializeToString())
        data = _protoc(main, f"--descriptor_set_in={given}")
    [file] = descriptor_pb2.FileDescriptorSet.FromString(data).file
    file.name = "default"
    return base64.b64encode(file.SerializeToString(deterministic=True)).decode()


def _protoc(file: Path, *options: str) -> bytes:
    """The descriptor set of a file of Protobuf's language; imports may lie beside it."""
    try:
        protoc = importlib.import_module("grpc_tools.protoc")
    except ImportError:
        raise NoCompiler(
            "a .proto file needs its compiler: pip install '/path/to/the/checkout[protobuf]'"
        ) from None
    known = Path(str(protoc.__file__)).parent / "_proto"
    with tempfile.TemporaryDirectory() as made:
        out = Path(made) / "out.desc"
        folders = [f"-I{file.parent}", f"-I{known}"]
        words = [*folders, *options, f"--descriptor_set_out={out}"]
        # A process of its own: the compiler writes to the terminal, and keeps what it has read.
        done = subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", *words, str(file)],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode:
            # The library's own log may come first.
            told = [line for line in done.stderr.splitlines() if f"{file.name}:" in line]
            if not told:
                said = done.stderr.strip() or f"it ended with {done.returncode}"
                raise NoCompiler(f"Protobuf's compiler fails: {_first_line_of(said)}")
            raise FormatError(_first_line_of("\n".join(told)))
        return out.read_bytes()


def _of_file(file: SchemaFile, message: str | None) -> Descriptor:
    found = descriptor_pb2.FileDescriptorSet()
    try:
        found.ParseFromString(file.data)
        pool = pool_of(found.file)
    except (DecodeError, TypeError, KeyError) as error:
        told = _first_line(error)
        raise FormatError(
            f"{file.path}: no set of descriptors, as protoc --include_imports "
            f"--descriptor_set_out makes one: {told}"
        ) from None
    names = [_full(each, m.name) for each in found.file[-1:] for m in each.message_type]
    if message is None and len(names) != 1:
        raise FormatError(f"{file.path}: give message, one of: {', '.join(names)}")
    try:
        return pool.FindMessageTypeByName(message or names[0])
    except KeyError:
        raise FormatError(
            f"{file.path}: there is no message {message}; there are: {', '.join(names)}"
        ) from None


def pool_of(files: Iterable[Any]) -> Any:
    """A pool of these files, each behind those that it imports, and of what all know.

    Raises TypeError or KeyError where one of them does not fit.
    """
    pool = descriptor_pool.DescriptorPool()
    given = list(files)
    names = {each.name for each in given}
    for common in _common():
        if common.name not in names:
            pool.Add(common)
    for each in given:
        pool.Add(each)
    for each in given:
        pool.FindFileByName(each.name)  # what it imports is looked up now
    return pool


def _common() -> Sequence[Any]:
    """Files that every registry and compiler knows."""
    found = []
    for name in WELL_KNOWN:
        module = importlib.import_module(f"google.protobuf.{name}_pb2")
        proto = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(proto)
        found.append(proto)
    types = descriptor_pb2.FieldDescriptorProto
    decimal = descriptor_pb2.FileDescriptorProto(
        name="confluent/type/decimal.proto", package="confluent.type", syntax="proto3"
    )
    message = decimal.message_type.add(name="Decimal")
    for number, (name, kind) in enumerate(
        (
            ("value", types.TYPE_BYTES),
            ("precision", types.TYPE_UINT32),
            ("scale", types.TYPE_INT32),
        ),
        1,
    ):
        message.field.add(name=name, number=number, type=kind, label=types.LABEL_OPTIONAL)
    # Without its options: a pool keeps those that it does not know.
    meta = descriptor_pb2.FileDescriptorProto(name=_META, package="confluent", syntax="proto3")
    return [*found, decimal, meta]


def _file_of(text: str, name: str) -> Any:
    """A file as a registry gives it, serialized. Raises ValueError or DecodeError."""
    file = descriptor_pb2.FileDescriptorProto()
    try:
        file.ParseFromString(base64.b64decode(text, validate=True))
    except (binascii.Error, DecodeError):
        raise ValueError(
            "the registry does not give it serialized, and its text cannot be compiled"
        ) from None
    # It is imported by the name of the reference.
    file.name = name or file.name or "default"
    return file


def _only(descriptor: Descriptor, names: set[str]) -> Descriptor:
    """A message type of these fields alone: what others hold is passed over, not read.

    The same one where a field holds messages of other kinds than those that are read as one value:
    they might hold this one.
    """
    kept = [each for each in descriptor.fields if each.name in names]
    known = {TIMESTAMP, DECIMAL, *WRAPPERS}
    if any(each.type == _MESSAGE and each.message_type.full_name not in known for each in kept):
        return descriptor
    file = descriptor_pb2.FileDescriptorProto()
    descriptor.file.CopyToProto(file)
    package = f"{file.package}." if file.package else ""
    first, *inner = descriptor.full_name.removeprefix(package).split(".")
    message = next(each for each in file.message_type if each.name == first)
    for name in inner:
        message = next(each for each in message.nested_type if each.name == name)
    fields = [each for each in message.field if each.name in names]
    used = sorted({each.oneof_index for each in fields if each.HasField("oneof_index")})
    oneofs = [message.oneof_decl[number] for number in used]
    for each in fields:
        if each.HasField("oneof_index"):
            each.oneof_index = used.index(each.oneof_index)
    del message.field[:], message.oneof_decl[:]
    message.field.extend(fields)
    message.oneof_decl.extend(oneofs)
    pool = pool_of([*_imports(descriptor.file, set()), file])
    return pool.FindMessageTypeByName(descriptor.full_name)


def _imports(file: Any, seen: set[str]) -> list[Any]:
    """Files that a file imports, each behind those that it imports itself."""
    found = []
    for each in file.dependencies:
        if each.name not in seen:
            seen.add(each.name)
            proto = descriptor_pb2.FileDescriptorProto()
            each.CopyToProto(proto)
            found += [*_imports(each, seen), proto]
    return found


def _at(pool: Any, file: Any, place: tuple[int, ...]) -> Descriptor:
    """A message by its indexes. Raises IndexError."""
    if min(place) < 0:
        raise IndexError(place)
    found = pool.FindMessageTypeByName(_full(file, file.message_type[place[0]].name))
    for index in place[1:]:
        found = found.nested_types[index]
    return found


def _full(file: Any, name: str) -> str:
    return f"{file.package}.{name}" if file.package else name


def _first_line(error: BaseException) -> str:
    return _first_line_of(str(error) or type(error).__name__)


def _first_line_of(told: str) -> str:
    text = told.strip().splitlines()[0]
    return text if len(text) <= 120 else text[:117] + "..."
