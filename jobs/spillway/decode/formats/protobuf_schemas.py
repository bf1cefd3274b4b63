"""Protobuf's schemas: files in its language or compiled, what a registry gives, and the message
types in them.

A pool holds the files of one schema and what every registry and compiler knows: two schemas may
have types of one name. Protobuf's language is compiled by `grpc_tools`, in a process of its own;
it is looked for when it is needed, for descriptors need no compiler.
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
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message import DecodeError

from spillway.decode.formats.decoder import FormatError, NoCompiler
from spillway_schemas.formats import SchemaFile, ValueFormat, WriterSchema
from spillway_schemas.messages import FieldRule, Rejected

Descriptor = Any
"""`google.protobuf.descriptor.Descriptor`."""

TIMESTAMP, DECIMAL = "google.protobuf.Timestamp", "confluent.type.Decimal"
ANY = "google.protobuf.Any"
WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
ENUM, MESSAGE = 14, 11
"""`FieldDescriptor.TYPE_*`."""
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
            fields = message_of_file(file, format_.message).fields_by_name
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
                raise NoCompiler(f"Protobuf's compiler fails: {_shortened(said)}")
            raise FormatError(_shortened("\n".join(told)))
        return out.read_bytes()


def message_of_file(file: SchemaFile, message: str | None) -> Descriptor:
    """A message type of a file of descriptors; None: its only one. Raises FormatError."""
    found = descriptor_pb2.FileDescriptorSet()
    try:
        found.ParseFromString(file.data)
        pool = pool_of(found.file)
    except (DecodeError, TypeError, KeyError) as error:
        told = first_line(error)
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


def message_of_schema(schema: WriterSchema, place: tuple[int, ...]) -> Descriptor:
    """The message type at `place` (indexes, the outermost first) of a registry's schema. Raises
    Rejected."""
    label = f"schema {schema.id}"
    if schema.kind != "PROTOBUF":
        raise Rejected(f"{label} cannot be read: it is {schema.kind}, not PROTOBUF")
    try:
        file = _file_of(schema.text, "")
        pool = pool_of([*(_file_of(text, name) for name, text in schema.references), file])
        return _at(pool, file, place)
    except (TypeError, ValueError, KeyError, DecodeError) as error:
        raise Rejected(f"{label} cannot be read: {first_line(error)}") from None
    except IndexError:
        raise Rejected(f"{label} has no message {list(place)}") from None


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


def narrowed(descriptor: Descriptor, names: set[str]) -> Descriptor:
    """A message type of these fields alone: what others hold is passed over, not read.

    The same one where a field holds messages of other kinds than those that are read as one value:
    they might hold this one.
    """
    kept = [each for each in descriptor.fields if each.name in names]
    known = {TIMESTAMP, DECIMAL, *WRAPPERS}
    if any(each.type == MESSAGE and each.message_type.full_name not in known for each in kept):
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


def first_line(error: BaseException) -> str:
    """What a library's error says, in one line of a reason's length."""
    return _shortened(str(error) or type(error).__name__)


def _shortened(told: str) -> str:
    text = told.strip().splitlines()[0]
    return text if len(text) <= 120 else text[:117] + "..."
