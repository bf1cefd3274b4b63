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

import numpy as np
import numpy.typing as npt

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
    """Of Avro its JSON, of Protobuf the base64 of a serialized `FileDescriptorProto`; text of
    Protobuf's language where that could not be had."""
    references: tuple[tuple[str, str], ...] = ()
    """Names and texts of what it refers to, each behind those that it refers to itself."""


@dataclass(frozen=True)
class Absence:
    """The messages for which an id has no schema, by Kafka's times of them, in milliseconds since
    1970."""

    until_ms: int = -(2**63)
    """All from then or before."""
    ahead_ms: tuple[tuple[int, int], ...] = ()
    """Of later ones those from these times, the first and the last of each run; in order, apart,
    and behind `until_ms`."""

    @classmethod
    def of(cls, until_ms: int, kafka_ms: npt.NDArray[np.int64]) -> Absence:
        """All messages until then, and later ones from just these times, int64 (n,)."""
        times = np.unique(kafka_ms[kafka_ms > until_ms])
        if not len(times):
            return cls(until_ms)
        gaps = np.flatnonzero(np.diff(times) != 1)
        firsts, lasts = times[np.append(0, gaps + 1)], times[np.append(gaps, len(times) - 1)]
        return cls(until_ms, tuple(zip(firsts.tolist(), lasts.tolist(), strict=True)))

    def covers(self, kafka_ms: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which messages are among them: of times, int64 (n,), bool (n,)."""
        found = kafka_ms <= self.until_ms
        if self.ahead_ms:
            firsts, lasts = np.array(self.ahead_ms, np.int64).T
            at = np.searchsorted(firsts, kafka_ms, side="right") - 1
            found |= (at >= 0) & (kafka_ms <= lasts[np.maximum(at, 0)])
        return found

    def within(self, runs: int) -> Absence:
        """With at most so many runs of later times: what lies in the smallest gaps between them is
        absent, too."""
        if len(self.ahead_ms) <= runs:
            return self
        firsts, lasts = np.array(self.ahead_ms, np.int64).T
        gaps = (firsts[1:] - lasts[:-1]).view(np.uint64)  # one may be longer than int64 has
        kept = np.sort(np.argsort(gaps, kind="stable")[len(gaps) - (runs - 1) :])
        firsts, lasts = firsts[np.append(0, kept + 1)], lasts[np.append(kept, len(gaps))]
        return Absence(self.until_ms, tuple(zip(firsts.tolist(), lasts.tolist(), strict=True)))

    def __or__(self, other: Absence) -> Absence:
        """Of all messages that either has. It may have as many runs as both: see `within`."""
        until_ms = max(self.until_ms, other.until_ms)
        runs: list[tuple[int, int]] = []
        for first, last in sorted((*self.ahead_ms, *other.ahead_ms)):
            if last <= until_ms:
                continue
            first = max(first, until_ms + 1)
            if runs and first <= runs[-1][1] + 1:
                runs[-1] = (runs[-1][0], max(runs[-1][1], last))
            else:
                runs.append((first, last))
        return Absence(until_ms, tuple(runs))


@dataclass(frozen=True)
class Resolved:
    """What an id means: for some messages nothing, and for all others `schema`."""

    schema: WriterSchema | None
    absence: Absence = Absence()
    """The messages for which it means nothing."""
    why: str = ""
    """Why it means nothing for them."""


class Writers(Protocol):
    """Where writers' schemas come from. Picklable: it goes to the workers."""

    def resolve(self, schema_id: int, kafka_ms: npt.NDArray[np.int64]) -> Resolved:
        """What an id means. `kafka_ms`: Kafka's times of its messages, in milliseconds since 1970,
        int64 (n,).

        A schema that is None was absent for all of them. What was said once of an id and a time is
        said again whenever it is asked, whatever other times are asked for with it. Raises where
        nobody can tell now: then nothing becomes of the messages.
        """
