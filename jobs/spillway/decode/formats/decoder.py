"""What a decoder is, and which one reads the values of a schema."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from spillway_schemas.formats import AVRO, PROTOBUF, ValueFormat, WriterSchema
from spillway_schemas.messages import FieldRule, Rejected

Rows = npt.NDArray[np.int64]

ENTRY_POINTS = "spillway.decoders"


class FormatError(ValueError):
    """A format that cannot be used: its library is missing, a file is none of its schemas."""


class NoCompiler(RuntimeError):
    """The compiler of Protobuf's language is not there, or it failed for its own reasons."""


@dataclass(frozen=True)
class TypedColumns:
    """Columns of the values at `rows` (int64, ascending), typed as `rules.row_schema` says or raw
    as `templates.RAW_TYPES` says; not yet checked against the rules."""

    rows: Rows
    columns: Any
    """pa.Table, one column for each field of the contract."""


class ValueDecoder(Protocol):
    """Reads the values of one schema."""

    def has(self, name: str) -> bool:
        """Whether values may have a field."""

    def fields(self, body: bytes) -> Mapping[str, Any]:
        """The contract's fields of one value, as `messages.accept` takes them: the slow and
        decisive way. Raises Rejected."""

    def columns(self, bodies: Any) -> tuple[list[TypedColumns], Rows]:
        """What can be read on whole columns, and the positions (ascending) of the rest.

        `bodies`: pyarrow large_binary array without nulls. What is read is what `fields` and the
        contract would give.
        """


MOST_DECIMAL_BYTES = 64
"""Of a decimal's whole number; 16 hold all digits that a column has."""


def exact_decimal(unscaled: bytes, scale: int) -> Decimal | bytes:
    """A whole number in two's complement, the greatest byte first, as a decimal of so many digits
    behind the point. One of more bytes than any column needs stays bytes: no contract takes them
    for a decimal, and arithmetic on a million digits takes its time."""
    if len(unscaled) > MOST_DECIMAL_BYTES:
        return unscaled
    whole = Decimal(int.from_bytes(unscaled, "big", signed=True)).as_tuple()
    return Decimal((whole.sign, whole.digits, -scale))


@lru_cache(maxsize=256)
def decoder_of(
    format_: ValueFormat,
    rules: tuple[FieldRule, ...],
    schema: WriterSchema | None,
    place: tuple[int, ...] = (),
) -> ValueDecoder:
    """The decoder of values that a schema wrote; None: that of the query's file.

    `place`: of Protobuf, which message of its file (numbers of messages within messages). Raises
    Rejected for a schema that cannot be read, FormatError for a format or file that cannot.
    """
    if format_.name == AVRO:
        return _module("avro", "fastavro", AVRO).AvroDecoder.of(format_, rules, schema)  # type: ignore[no-any-return]
    if format_.name == PROTOBUF:
        module = _module("protobuf", "google.protobuf", PROTOBUF)
        return module.ProtobufDecoder.of(format_, rules, schema, place)  # type: ignore[no-any-return]
    return _OwnDecoder(format_, rules)


def usable(format_: ValueFormat, rules: tuple[FieldRule, ...]) -> ValueFormat:
    """The format with its files compiled, once it was tried. Raises FormatError."""
    if format_.name == AVRO:
        _module("avro", "fastavro", AVRO).check_files(format_, rules)
        return format_
    if format_.name == PROTOBUF:
        found: ValueFormat = _module("protobuf_schemas", "google.protobuf", PROTOBUF).compiled(
            format_, rules
        )
        return found
    decoder_of(format_, rules, None)
    return format_


def _module(name: str, library: str, extra: str) -> Any:
    try:
        importlib.import_module(library)
    except ImportError:
        raise FormatError(
            f"{extra} needs a library that is not installed here: pip install "
            f"'/path/to/the/checkout[{extra}]'"
        ) from None
    return importlib.import_module(f"spillway.decode.formats.{name}")


class UserDecoder(Protocol):
    """What an entry point of `spillway.decoders` names: a class, or a function that makes one."""

    def __init__(self, fields: Sequence[FieldRule], options: Mapping[str, str]) -> None:
        """`fields`: the contract's; `options`: the stream's. Raises ValueError for wrong ones."""

    def read(self, value: bytes) -> Mapping[str, Any]:
        """The fields of one value. Raises ValueError with the reason for one that cannot be read.

        They follow from the value's bytes alone.
        """


def own_decoders() -> list[str]:
    """Names of the decoders that installed packages bring."""
    return sorted(each.name for each in importlib.metadata.entry_points(group=ENTRY_POINTS))


class _OwnDecoder:
    """A user's decoder."""

    def __init__(self, format_: ValueFormat, rules: tuple[FieldRule, ...]) -> None:
        found = importlib.metadata.entry_points(group=ENTRY_POINTS, name=format_.name)
        if not found:
            others = ", ".join(["json", AVRO, PROTOBUF, *own_decoders()])
            raise FormatError(
                f"there is no format {format_.name!r}; there are: {others}. A decoder of your own "
                f"is a package's entry point in the group {ENTRY_POINTS}"
            )
        self._name = format_.name
        try:
            self._decoder: UserDecoder = next(iter(found)).load()(rules, dict(format_.options))
        except Exception as error:
            raise FormatError(f"decoder {format_.name}: {error}") from error

    def has(self, name: str) -> bool:  # noqa: ARG002
        """What a user's decoder gives is not known before."""
        return True

    def fields(self, body: bytes) -> Mapping[str, Any]:
        """What the user's decoder gives. Raises Rejected."""
        try:
            return self._decoder.read(body)
        except Rejected:
            raise
        except ValueError as error:
            raise Rejected(f"not {self._name}: {error}") from None

    def columns(self, bodies: Any) -> tuple[list[TypedColumns], Rows]:
        """Nothing is read on whole columns."""
        return [], np.arange(len(bodies))
