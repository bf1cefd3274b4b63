"""Values of Avro and Protobuf for tests: schemas, writers, plans; and an installed decoder."""

from __future__ import annotations

import base64
import io
import json
import struct
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import numpy.typing as npt
from google.protobuf import descriptor_pb2

from spillway.decode import StreamPlan, compile_streams
from spillway_schemas.formats import Absence, Resolved, WriterSchema
from spillway_schemas.query import Query, query_of
from spillway_schemas.tomlfile import parse_toml
from tests.doc_blocks import blocks


def framed(schema_id: int, body: bytes) -> bytes:
    """A value with the id of its schema."""
    return struct.pack(">bI", 0, schema_id) + body


def avro(schema: Any, value: Mapping[str, Any]) -> bytes:
    """The body of an Avro value."""
    return avro_writer(schema)(value)


def avro_writer(schema: Any) -> Callable[[Mapping[str, Any]], bytes]:
    """Writes bodies of Avro values by one schema."""
    parsed = fastavro.parse_schema(schema)

    def write(value: Mapping[str, Any]) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, dict(value))
        return out.getvalue()

    return write


def record(*fields: Any, name: str = "R") -> dict[str, Any]:
    """An Avro record: each field is (name, type) or (name, type, default)."""
    made = [dict(zip(("name", "type", "default"), each, strict=False)) for each in fields]
    return {"type": "record", "name": name, "fields": made}


def written(schema_id: int, schema: Any, kind: str = "AVRO") -> WriterSchema:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return WriterSchema(schema_id, kind, text)


class Given:
    """Writers' schemas that a test gives."""

    def __init__(self, *schemas: WriterSchema) -> None:
        self.schemas = {each.id: each for each in schemas}

    def resolve(self, schema_id: int, kafka_ms: npt.NDArray[np.int64]) -> Resolved:
        if schema_id in self.schemas:
            return Resolved(self.schemas[schema_id])
        return Resolved(None, Absence(int(kafka_ms.max())), "the registry has no such schema")


def serialized(file: descriptor_pb2.FileDescriptorProto) -> str:
    """A file of Protobuf as a registry gives it."""
    return base64.b64encode(file.SerializeToString()).decode()


def query(stream: str, folder: Path = Path()) -> Query:
    """A query of a stream `s` (what stands below its header) that joins itself on `symbol`."""
    text = f"""
[streams.s]
{stream}
[join]
inputs = ["s", "s as other"]
on = ["symbol"]
"""
    return query_of(parse_toml(text, folder / "q.toml"))


def plan(stream: str, folder: Path = Path()) -> StreamPlan:
    """The plan of such a stream."""
    return compile_streams(query(stream, folder))[0]


def proto(
    *fields: tuple[str, int, str] | tuple[str, int, str, str],
    name: str = "M",
    package: str = "desk",
    syntax: str = "proto3",
    imports: Sequence[str] = (),
) -> descriptor_pb2.FileDescriptorProto:
    """A file with one message: each field is name, number, type (`int64`, `optional string`,
    `repeated double`, or a message's full name)."""
    types = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="m.proto", package=package, syntax=syntax)
    file.dependency.extend(imports)
    message = file.message_type.add(name=name)
    for field_name, number, text, *_ in fields:
        label, _, type_ = text.rpartition(" ")
        made = message.field.add(name=field_name, number=number)
        made.label = types.LABEL_REPEATED if label == "repeated" else types.LABEL_OPTIONAL
        if label == "optional" and syntax == "proto3":
            made.proto3_optional = True
            made.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field_name}")
        if (kind := getattr(types, f"TYPE_{type_.upper()}", None)) is not None:
            made.type = kind
        else:
            made.type, made.type_name = types.TYPE_MESSAGE, f".{type_}"
    return file


def installed_decoder(site: Path, more: str = "") -> str:
    """Put the example of `docs/formats.md` into a folder of Python's path, as pip would; the name
    of its module. `more`: code behind it."""
    page = [each for each in blocks() if each.page.name == "formats.md"]
    [code] = ["\n".join(each.lines) for each in page if each.language == "python"]
    texts = ["\n".join(each.lines) for each in page if each.language == "toml"]
    [points] = [tomllib.loads(each)["project"] for each in texts if "entry-points" in each]
    [(group, decoders)] = points["entry-points"].items()
    [(name, made)] = decoders.items()
    module: str = made.partition(":")[0]
    info = site / f"{module}-1.0.dist-info"
    info.mkdir(parents=True)
    (site / f"{module}.py").write_text(f"{code}\n{more}")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {made}\n")
    return module
