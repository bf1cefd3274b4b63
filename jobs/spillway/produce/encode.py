"""A scenario's messages in the formats that a query reads: Avro and Protobuf with ids of schemas.

Messages are made as JSON. One that keeps its contract is read by it and written anew, by a schema
that says what the contract says; one that breaks it is sent as it is, and is broken in the other
format, too. It is done row by row, by the libraries: for demos and tests, not for speed.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from spillway.registry.client import RegistryClient
from spillway_schemas.exits import USAGE
from spillway_schemas.formats import AVRO
from spillway_schemas.messages import FieldRule, Message, Rejected, contract, read
from spillway_schemas.query import Query
from spillway_schemas.settings import RegistrySettings


class NotWritten(ValueError):
    """A stream whose format is not written here."""

    exit_code = USAGE


@dataclass(frozen=True)
class Encoding:
    """How the messages of one topic are written. Picklable."""

    format: str
    rules: tuple[FieldRule, ...]
    schema_id: int

    def encoded(self, values: Any) -> Any:
        """The messages, pyarrow binary (n,), in this format; broken ones as they are."""
        head = struct.pack(">bI", 0, self.schema_id)
        found = []
        for value in values.to_pylist():
            try:
                message = read(self._contract, value)
            except Rejected:
                found.append(value)
                continue
            names = (rule.name for rule in self.rules)
            fields = dict(zip(names, message.__dict__.values(), strict=True))
            found.append(head + self._write(fields))
        return pa.array(found, pa.binary())

    @cached_property
    def _contract(self) -> type[Message]:
        return contract(self.rules)

    @cached_property
    def _write(self) -> Callable[[dict[str, Any]], bytes]:
        if self.format == AVRO:
            return _avro_writer(self.rules)
        return _protobuf_writer(self.rules)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without what is made at run time."""
        return {n: v for n, v in self.__dict__.items() if n not in ("_contract", "_write")}


def encodings(query: Query, settings: RegistrySettings) -> dict[str, Encoding]:
    """By topic, how messages of the query's streams are written where that is not JSON.

    Their schemas are registered. Raises NotWritten, and what the registry's client raises.
    """
    found: dict[str, Encoding] = {}
    for leaf in query.inputs:
        stream, topic = query.stream(leaf), query.topic(leaf)
        name = stream.value_format.name
        if name == "json" or topic in found:
            continue
        if not stream.value_format.has_ids or any(rule.kind == "json" for rule in stream.rules):
            raise NotWritten(
                f"stream {query.stream_name(leaf)}: messages are written as JSON, and as avro or "
                "protobuf with ids of a registry's schemas, without json fields"
            )
        made = (
            ("AVRO", json.dumps(avro_schema(stream.rules)))
            if name == AVRO
            else ("PROTOBUF", protobuf_text(stream.rules))
        )
        client = RegistryClient(settings.url, settings.options, wait_s=settings.wait_s)
        found[topic] = Encoding(name, stream.rules, client.register(f"{topic}-value", *made))
    return found


# --------------------------------------------------------------------------------------- Avro

_AVRO: dict[str, Any] = {
    "string": "string",
    "int": "long",
    "double": "double",
    "bool": "boolean",
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
}


def avro_schema(rules: tuple[FieldRule, ...]) -> dict[str, Any]:
    """A record that says what a contract says."""
    fields: list[dict[str, Any]] = []
    for rule in rules:
        type_ = _AVRO.get(rule.kind) or {
            "type": "bytes",
            "logicalType": "decimal",
            "precision": rule.precision,
            "scale": rule.scale,
        }
        fields.append(
            {"name": rule.name, "type": ["null", type_], "default": None}
            if rule.optional
            else {"name": rule.name, "type": type_}
        )
    return {"type": "record", "name": "Message", "namespace": "spillway", "fields": fields}


def _avro_writer(rules: tuple[FieldRule, ...]) -> Callable[[dict[str, Any]], bytes]:
    import fastavro

    schema = fastavro.parse_schema(avro_schema(rules))

    def write(fields: dict[str, Any]) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, fields)
        return out.getvalue()

    return write


# ----------------------------------------------------------------------------------- Protobuf

_TIMESTAMP, _DECIMAL = ".google.protobuf.Timestamp", ".confluent.type.Decimal"
_FILES = {
    _TIMESTAMP: "google/protobuf/timestamp.proto",
    _DECIMAL: "confluent/type/decimal.proto",
}


def protobuf_file(rules: tuple[FieldRule, ...]) -> Any:
    """A file with one message that says what a contract says (`FileDescriptorProto`)."""
    from google.protobuf import descriptor_pb2

    types = descriptor_pb2.FieldDescriptorProto
    plain = {
        "string": types.TYPE_STRING,
        "int": types.TYPE_INT64,
        "double": types.TYPE_DOUBLE,
        "bool": types.TYPE_BOOL,
    }
    inner = {"timestamp": _TIMESTAMP, "decimal": _DECIMAL}
    file = descriptor_pb2.FileDescriptorProto(
        name="message.proto", package="spillway", syntax="proto3"
    )
    file.dependency.extend(sorted({_FILES[inner[r.kind]] for r in rules if r.kind in inner}))
    message = file.message_type.add(name="Message")
    for number, rule in enumerate(rules, 1):
        field = message.field.add(name=rule.name, number=number, label=types.LABEL_OPTIONAL)
        if rule.kind in inner:
            field.type, field.type_name = types.TYPE_MESSAGE, inner[rule.kind]
            continue
        field.type = plain[rule.kind]
        if rule.optional:
            field.proto3_optional, field.oneof_index = True, len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{rule.name}")
    return file


def protobuf_text(rules: tuple[FieldRule, ...]) -> str:
    """The same file in Protobuf's language, which every registry reads and compares; of a
    serialized one some do not."""
    plain = {"string": "string", "int": "int64", "double": "double", "bool": "bool"}
    inner = {"timestamp": _TIMESTAMP, "decimal": _DECIMAL}
    imports = sorted({_FILES[inner[rule.kind]] for rule in rules if rule.kind in inner})
    lines = ['syntax = "proto3";', "package spillway;", *(f'import "{n}";' for n in imports)]
    lines.append("message Message {")
    for number, rule in enumerate(rules, 1):
        if rule.kind in inner:
            type_ = inner[rule.kind].removeprefix(".")
        else:
            type_ = ("optional " if rule.optional else "") + plain[rule.kind]
        lines.append(f"  {type_} {rule.name} = {number};")
    return "\n".join([*lines, "}", ""])


def _protobuf_writer(rules: tuple[FieldRule, ...]) -> Callable[[dict[str, Any]], bytes]:
    from google.protobuf import message_factory

    from spillway.decode.formats.protobuf_schemas import pool_of

    pool = pool_of([protobuf_file(rules)])
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("spillway.Message"))

    def write(fields: dict[str, Any]) -> bytes:
        message = made()
        for rule in rules:
            value = fields[rule.name]
            if value is None:
                continue
            if rule.kind == "timestamp":
                getattr(message, rule.name).FromDatetime(value)
            elif rule.kind == "decimal":
                unscaled = int(value.scaleb(rule.scale))
                size = unscaled.bit_length() // 8 + 1
                into = getattr(message, rule.name)
                into.value = unscaled.to_bytes(size, "big", signed=True)
                into.precision, into.scale = rule.precision, rule.scale
            else:
                setattr(message, rule.name, value)
        found: bytes = b"\x00" + message.SerializeToString()
        return found

    return write
