"""Messages: the contract that one JSON value of a topic must satisfy to become a row.

A contract is a pydantic model. It is strict (a string is no number) except that an int may
stand for a double, it ignores fields that it does not know, takes the last of a field that is
repeated, and knows only the kinds of `Kind`, so that `spillway.decode` can check the same rules on
whole columns. `fields_of` derives those rules from the model and refuses a model that says
more than they can express: the two cannot drift apart silently.

What holds for every kind:

* the value is one JSON object in UTF-8, nested at most 200 levels (pydantic's own limit); with a
  `json` field it has at most 1 MiB;
* a missing field and `null` are the same: fine for an optional field, else a reason to reject;
* `int` fits 64 bits signed and is written without fraction or exponent (`1.0` is no int);
* `double` is finite (`NaN`, `Infinity` and `1e400` are refused); zero has no sign (`-0.0` is
  read as `0.0`), so that equal values are equal bytes;
* `timestamp` is RFC 3339 with an offset, e.g. `2026-01-05T09:30:00.123456-05:00`; it becomes
  microseconds in UTC, finer fractions are cut off; in UTC it lies in the years 1 to 9999;
  a leap second (`:60`) is refused, since it has no place in that count;
* `decimal(p,s)` is a number of at most 15 significant digits (more do not survive as a JSON
  number) or a string of digits; it must fit p digits, s of them behind the point, unrounded;
* `json` is any value, kept as compact JSON text.
"""

from __future__ import annotations

import codecs
import json
import re
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError, SchemaValidator, core_schema

from spillway_schemas import large

Kind = Literal["string", "int", "double", "bool", "timestamp", "decimal", "json"]

INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1
MOST_MS = INT64_MAX // 1000
"""The most milliseconds whose microseconds fit in 64 bits."""
MAX_DECIMAL_PRECISION = 38
EXACT_DIGITS = 15
"""Decimal digits that every double keeps."""

YEARS_US = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""The first and the last microsecond of the years 1 to 9999 (UTC), since 1970."""
OUTSIDE_YEARS = "not in the years 1 to 9999 (UTC)"
"""The reason for a day or time that no reader of a table can be trusted with."""

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""What a field, key or stream may be called: a plain column name everywhere downstream."""


class Rejected(ValueError):
    """A value that breaks its contract. The message is the reason, in one short line."""


# ------------------------------------------------------------------------------------- kinds

TIMESTAMP = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:[Zz]|([+-])(\d\d):(\d\d))",
    re.ASCII,
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def parse_timestamp(value: object) -> datetime:
    """RFC 3339 text with an offset -> UTC, microseconds. Raises PydanticCustomError."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    match = TIMESTAMP.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise PydanticCustomError(
            "timestamp", "not a time with an offset such as 2026-01-05T14:30:00Z"
        )
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    fraction, sign, off_hour, off_minute = match.groups()[6:]
    micros = int((fraction or "")[:6].ljust(6, "0"))
    offset = timedelta(0)
    if sign:
        if int(off_hour) > 23 or int(off_minute) > 59:
            raise PydanticCustomError("timestamp", "no such offset from UTC")
        offset = timedelta(hours=int(off_hour), minutes=int(off_minute))
    try:
        local = datetime(year, month, day, hour, minute, second, micros, tzinfo=UTC)
    except ValueError:
        raise PydanticCustomError("timestamp", "no such day or time") from None
    try:
        return local + offset if sign == "-" else local - offset
    except OverflowError:
        raise PydanticCustomError("timestamp", OUTSIDE_YEARS) from None


def micros_of(time: datetime) -> int:
    """Microseconds since 1970 in UTC, exactly."""
    return (time - EPOCH) // MICROSECOND


@dataclass(frozen=True)
class DecimalOf:
    """Marks a decimal field: `precision` digits, `scale` of them behind the point."""

    precision: int
    scale: int

    _TEXT = re.compile(r"-?\d{1,100}(\.\d{1,100})?", re.ASCII)

    def __call__(self, value: object) -> Decimal:
        """Number or digits -> Decimal that fits. Raises PydanticCustomError."""
        if isinstance(value, Decimal):
            number = value
        elif isinstance(value, str) and self._TEXT.fullmatch(value):
            number = Decimal(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            if isinstance(value, int) and abs(value) >= 10**EXACT_DIGITS:
                raise self._inexact()
            number = Decimal(repr(value))
            if number.is_finite() and len(number.normalize().as_tuple().digits) > EXACT_DIGITS:
                raise self._inexact()
        else:
            raise PydanticCustomError("decimal", "not a number or a string of digits")
        return self._fit(number)

    def _fit(self, number: Decimal) -> Decimal:
        if number.is_finite():
            sign, digits, exponent = number.as_tuple()
            assert isinstance(exponent, int)
            while len(digits) > 1 and digits[-1] == 0:
                digits, exponent = digits[:-1], exponent + 1
            if not any(digits):
                return Decimal((0, (0,), -self.scale))
            if -exponent <= self.scale and len(digits) + exponent <= self.precision - self.scale:
                padded = digits + (0,) * (exponent + self.scale)
                return Decimal((sign, padded, -self.scale))
        raise PydanticCustomError(
            "decimal",
            "does not fit decimal({precision},{scale})",
            {"precision": self.precision, "scale": self.scale},
        )

    @staticmethod
    def _inexact() -> PydanticCustomError:
        return PydanticCustomError(
            "decimal",
            "a JSON number keeps {digits} digits only; send it as a string",
            {"digits": EXACT_DIGITS},
        )


@dataclass(frozen=True)
class JsonText:
    """Marks a `json` field."""

    def __call__(self, value: object) -> str | None:
        """Any JSON value -> compact text; null is the absence of a value."""
        if value is None:
            return None
        try:
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        except ValueError:
            raise PydanticCustomError("json", "holds a number that is not finite") from None


@dataclass(frozen=True)
class TimestampOf:
    """Marks a `timestamp` field."""

    def __call__(self, value: object) -> datetime:
        """RFC 3339 text with an offset -> UTC. Raises PydanticCustomError."""
        return parse_timestamp(value)


def _unsigned_zero(value: float) -> float:
    return value + 0.0


Int = Annotated[int, Field(ge=INT64_MIN, le=INT64_MAX)]
Double = Annotated[float, AfterValidator(_unsigned_zero)]
Timestamp = Annotated[datetime, TimestampOf(), BeforeValidator(parse_timestamp)]


class Message(BaseModel):
    """Base of all contracts."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True)


# ------------------------------------------------------------------------- shipped contracts


class Stock(Message):
    """A trade or quote of a stock: topic `stock`."""

    symbol: str
    ts: Timestamp
    price: Double
    currency: str | None = None


class Volume(Message):
    """Shares traded: topic `volume`."""

    symbol: str
    ts: Timestamp
    shares: Int


class Review(Message):
    """What somebody thinks of a stock: topic `review`."""

    symbol: str
    ts: Timestamp
    reviewer: str
    rating: Annotated[int, Field(ge=1, le=5)]
    text: str | None = None


SHIPPED: dict[str, type[Message]] = {"stock": Stock, "volume": Volume, "review": Review}
"""Contracts that a query can name with `schema = "stock"`."""


# ------------------------------------------------------------------------------------- rules


@dataclass(frozen=True)
class FieldRule:
    """What the contract asks of one field, in the form that whole columns are checked by."""

    name: str
    kind: Kind
    optional: bool = False
    ge: int | None = None
    le: int | None = None
    precision: int = 0
    scale: int = 0

    @property
    def type(self) -> str:
        """As it is written in a query: `int`, `decimal(18,4)?`."""
        bounds = f"({self.precision},{self.scale})" if self.kind == "decimal" else ""
        return self.kind + bounds + ("?" if self.optional else "")


TYPE = re.compile(
    r"(string|int|double|bool|timestamp|json|decimal\(\s*(\d+)\s*,\s*(\d+)\s*\))\s*(\?)?"
)
TYPES_ALLOWED = "string, int, double, bool, timestamp, json, decimal(p,s), each with ? if optional"


def rule(name: str, type_text: str) -> FieldRule:
    """Rule of a field that a query declares. Raises ValueError that says what is allowed."""
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no field name: letters, digits and _ are allowed")
    match = TYPE.fullmatch(type_text.strip())
    if match is None:
        raise ValueError(f"{type_text!r} is no type; allowed: {TYPES_ALLOWED}")
    optional = match.group(4) is not None
    kind = match.group(1).partition("(")[0]
    if kind == "decimal":
        precision, scale = int(match.group(2)), int(match.group(3))
        if not 1 <= precision <= MAX_DECIMAL_PRECISION or scale > precision:
            raise ValueError(
                f"{type_text!r}: decimal(p,s) needs 1 <= p <= {MAX_DECIMAL_PRECISION} and s <= p"
            )
        return FieldRule(name, "decimal", optional, precision=precision, scale=scale)
    if kind == "int":
        return FieldRule(name, "int", optional, ge=INT64_MIN, le=INT64_MAX)
    return FieldRule(name, typing.cast("Kind", kind), optional)


def contract(rules: Iterable[FieldRule]) -> type[Message]:
    """The model that says the same as `rules`: `fields_of(contract(r)) == tuple(r)`."""
    fields: dict[str, Any] = {}
    names: dict[str, str] = {}
    for position, each in enumerate(rules):
        # Attribute names of our own: a field may be called `json`, `copy` or `_x`.
        names[each.name] = attribute = f"f{position}"
        annotation = _annotation(each)
        default: Any = ...
        if each.optional:
            annotation, default = annotation | None, None
        fields[attribute] = (annotation, Field(default, alias=each.name))
    return create_model("Declared", __base__=Message, **fields)


def _annotation(each: FieldRule) -> Any:
    if each.kind == "int":
        return Annotated[int, Field(ge=each.ge, le=each.le)]
    if each.kind == "decimal":
        mark = DecimalOf(each.precision, each.scale)
        return Annotated[Decimal, mark, BeforeValidator(mark)]
    if each.kind == "json":
        return Annotated[str, JsonText(), BeforeValidator(JsonText())]
    plain = {"string": str, "double": Double, "bool": bool, "timestamp": Timestamp}
    return plain[each.kind]


def fields_of(model: type[Message]) -> tuple[FieldRule, ...]:
    """Rules of a contract, in its order. Raises TypeError for what columns cannot check."""
    return tuple(_rule_of(info.alias or name, info) for name, info in model.model_fields.items())


def _rule_of(name: str, info: FieldInfo) -> FieldRule:
    annotation, metadata, optional = info.annotation, list(info.metadata), False
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        inner = [a for a in typing.get_args(annotation) if a is not types.NoneType]
        if len(inner) != 1 or metadata:
            raise TypeError(f"{name}: {annotation} is not one kind or None")
        annotation, optional = inner[0], True
        if info.is_required() or info.default is not None:
            raise TypeError(f"{name}: an optional field defaults to None")
    elif not info.is_required():
        raise TypeError(f"{name}: only an optional field has a default")
    if typing.get_origin(annotation) is Annotated:
        annotation, *more = typing.get_args(annotation)
        for extra in more:
            metadata += extra.metadata if isinstance(extra, FieldInfo) else [extra]
    return _known(name, annotation, metadata, optional)


def _known(name: str, annotation: object, metadata: list[Any], optional: bool) -> FieldRule:
    bounds: dict[str, int] = {}
    marks: list[Any] = []
    for item in metadata:
        if isinstance(item, Ge) and isinstance(item.ge, int):
            bounds["ge"] = item.ge
        elif isinstance(item, Le) and isinstance(item.le, int):
            bounds["le"] = item.le
        else:
            marks.append(item)
    if annotation is int and not marks and bounds.keys() == {"ge", "le"}:
        return FieldRule(name, "int", optional, bounds["ge"], bounds["le"])
    if not bounds:
        match annotation, marks:
            case (t, []) if t in (str, bool):
                return FieldRule(name, "string" if t is str else "bool", optional)
            case (t, [AfterValidator(func=f)]) if t is float and f is _unsigned_zero:
                return FieldRule(name, "double", optional)
            case (t, [TimestampOf(), BeforeValidator(func=f)]) if t is datetime:
                if f is parse_timestamp:
                    return FieldRule(name, "timestamp", optional)
            case (t, [mark, BeforeValidator(func=f)]) if t is Decimal and f is mark:
                if isinstance(mark, DecimalOf):
                    bounds = {"precision": mark.precision, "scale": mark.scale}
                    return FieldRule(name, "decimal", optional, **bounds)
            case (t, [JsonText(), BeforeValidator(func=JsonText())]) if t is str:
                return FieldRule(name, "json", optional)
    raise TypeError(
        f"{name}: {annotation} with {metadata} is no kind that columns can check; use Int, "
        "Double, Timestamp, str, bool, a bounded int, or | None of these"
    )


# ----------------------------------------------------------------------------------- reading


def read(model: type[Message], value: bytes | None) -> Message:
    """One value through its contract, the slow and decisive way. Raises Rejected."""
    if value is None:
        raise Rejected("tombstone: the record has no value")
    if not value:
        raise Rejected("empty value")
    try:
        value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Rejected(f"not UTF-8 (byte {error.start})") from None
    if value.startswith(codecs.BOM_UTF8):  # the parser's words do not show what nobody sees
        raise Rejected("not JSON: it begins with a byte order mark")
    try:
        if len(value) > large.LARGE:
            return model.model_validate(_fields_of_large(model, value))
        return model.model_validate_json(value)
    except ValidationError as error:
        raise Rejected(_reason(error)) from None


def accept(model: type[Message], fields: Mapping[str, Any]) -> Message:
    """Fields that a decoder has read through their contract. Raises Rejected.

    They are of Python's types: `str`, `int`, `float`, `bool`, `Decimal`, `datetime` with a zone,
    None; for a `json` field whatever `json.dumps` takes.
    """
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise Rejected(_reason(error)) from None


def _fields_of_large(model: type[Message], value: bytes) -> dict[str, Any]:
    """The contract's fields of a message that is too large to be parsed whole. Raises Rejected.

    The rest of it is checked to be JSON, and costs no memory. An object or array of a field is
    one here, too, but what it holds may be missing: only a `json` field would accept it.
    """
    fields = _fields(model)
    if fields is None:
        raise Rejected(f"larger than {large.LARGE} bytes, the most for a stream with a json field")
    found: dict[str, Any] = {}
    is_object = True
    for begin, part in large.parts(value):
        try:
            found |= fields.validate_json(part)
        except ValidationError as error:
            if error.errors(include_url=False, include_input=False)[0]["type"] != "json_invalid":
                is_object = False  # a later part may not even be JSON
                continue
            # The parser names a place of the part.
            raise Rejected(_PLACE.sub(f" behind byte {begin}", _reason(error))) from None
    if not is_object:
        raise Rejected(_WORDS["model_type"])
    doubles = (rule.name for rule in fields_of(model) if rule.kind == "double")
    return found | {name: _double(found[name]) for name in doubles if name in found}


def _double(value: Any) -> Any:
    """The value as a parser gives it that knows that a double is wanted."""
    if type(value) is int:
        try:
            return float(value)
        except OverflowError:
            return float("inf")
    return value


_PLACE = re.compile(r" at line \d+ column \d+$")


@lru_cache(maxsize=64)
def _fields(model: type[Message]) -> SchemaValidator | None:
    """Picks the contract's fields out of a JSON object; None when one of them is of kind json."""
    rules = fields_of(model)
    if any(rule.kind == "json" for rule in rules):
        return None
    anything = core_schema.typed_dict_field(core_schema.any_schema(), required=False)
    return SchemaValidator(
        core_schema.typed_dict_schema({rule.name: anything for rule in rules}, strict=True)
    )


def _reason(error: ValidationError) -> str:
    """`price: a number is needed (and 1 more)`; values are not repeated, they may be huge."""
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    first, more = problems[0], len(problems) - 1
    text = _WORDS.get(first["type"]) or first["msg"]
    if first["type"] == "json_invalid":
        text = text.removeprefix("Invalid JSON: ")
        return "nested too deeply" if "recursion limit" in text else f"not JSON: {text}"
    name = ".".join(str(part) for part in first["loc"])
    tail = f" (and {more} more)" if more else ""
    return (f"{name}: {text}" if name else text) + tail


_WORDS = {
    "missing": "missing",
    "string_type": "a string is needed",
    "int_type": "a whole number is needed",
    "float_type": "a number is needed",
    "bool_type": "true or false is needed",
    "finite_number": "a finite number is needed",
    "model_type": "a JSON object is needed",
}
