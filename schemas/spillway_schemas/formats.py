"""Formats: how the values of a stream are written, and by which schemas.

Of Avro and Protobuf the *writer's* schema says what the bytes are, and the *reader's* what they are
resolved to. The writer's comes from the query, in a file, or by the id that each value begins with,
from a Schema Registry (its wire format: a zero, 4 bytes of id, for Protobuf the message's place in
its file, then the body). Without a reader's schema a value is read as it was written. Whatever is
read, the stream's contract judges it by its fields (`spillway_schemas.messages`).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

JSON, AVRO, PROTOBUF = "json", "avro", "protobuf"
SHIPPED_FORMATS = (JSON, AVRO, PROTOBUF)
"""Others are decoders by entry point."""


@dataclass(frozen=True)
class SchemaFile:
    """A schema that the query names."""

    path: Path
    data: bytes

    @property
    def digest(self) -> str:
        """SHA-256 of what it says; of Avro, whose files are JSON, not of spaces and order."""
        data = self.data
        try:
            data = json.dumps(json.loads(data), sort_keys=True).encode()
        except ValueError:  # a descriptor set, or text that is no JSON
            pass
        return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class ValueFormat:
    """How a stream's values are written."""

    name: str = JSON
    """One of `SHIPPED_FORMATS`, or of a decoder's entry point."""
    writer: SchemaFile | None = None
    """The schema of all values; None, of Avro and Protobuf: each value has its schema's id."""
    reader: SchemaFile | None = None
    """What values are resolved to; None: what was written."""
    message: str | None = None
    """Of Protobuf: the message's full name in `reader`, or else in `writer`."""
    options: tuple[tuple[str, str], ...] = ()
    """Of a decoder by entry point."""

    @property
    def has_ids(self) -> bool:
        """Whether values begin with the id of their schema in a registry."""
        return self.name in (AVRO, PROTOBUF) and self.writer is None

    @property
    def meaning(self) -> list[object] | None:
        """What a query's fingerprint has of it; None for JSON."""
        if self.name == JSON:
            return None
        files = [None if each is None else each.digest for each in (self.writer, self.reader)]
        return [self.name, *files, self.message, [list(each) for each in self.options]]


@dataclass(frozen=True)
class WriterSchema:
    """A schema as a registry gives it, with all that it refers to."""

    id: int
    kind: str
    """`AVRO`, `PROTOBUF`, `JSON`, ..."""
    text: str
    """Of Avro its JSON, of Protobuf the base64 of a serialized `FileDescriptorProto`."""
    references: tuple[tuple[str, str], ...] = ()
    """Names and texts of what it refers to, each behind those that it refers to itself."""


@dataclass(frozen=True)
class Resolved:
    """What an id means: for messages that Kafka has from `absent_until_ms` or before nothing, and
    for later ones `schema`."""

    schema: WriterSchema | None
    absent_until_ms: int
    why: str = ""
    """Why it meant nothing until then."""


class Writers(Protocol):
    """Where writers' schemas come from. Picklable: it goes to the workers."""

    def resolve(self, schema_id: int, newest_ms: int) -> Resolved:
        """What an id means. `newest_ms`: Kafka's time of its newest message, since 1970.

        A schema that is None was absent when that message had come. What was said once of an id
        and a time is said again whenever it is asked. Raises where nobody can tell now: then
        nothing becomes of the messages.
        """
