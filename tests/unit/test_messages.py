"""Messages: what the contract takes, what it refuses and with which reason."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated

import pytest
from pydantic import Field

from spillway_schemas.messages import (
    SHIPPED,
    FieldRule,
    Message,
    Rejected,
    Stock,
    contract,
    fields_of,
    micros_of,
    read,
    rule,
)

GOOD = b'{"symbol":"A","ts":"2026-01-05T14:30:00Z","price":1.5}'
TS = b'"ts":"2026-01-05T14:30:00Z"'


def stock(**fields: bytes) -> bytes:
    """A stock message with some raw JSON values exchanged."""
    raw = {"symbol": b'"A"', "ts": b'"2026-01-05T14:30:00Z"', "price": b"1.5"} | fields
    return b"{" + b",".join(b'"%s":%s' % (k.encode(), v) for k, v in raw.items()) + b"}"


def reason(model: type[Message], value: bytes | None) -> str:
    with pytest.raises(Rejected) as caught:
        read(model, value)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 200
    return text


def test_shipped_contracts_are_what_the_documents_say() -> None:
    shown = {name: {r.name: r.type for r in fields_of(model)} for name, model in SHIPPED.items()}
    assert shown == {
        "stock": {"symbol": "string", "ts": "timestamp", "price": "double", "currency": "string?"},
        "volume": {"symbol": "string", "ts": "timestamp", "shares": "int"},
        "review": {
            "symbol": "string",
            "ts": "timestamp",
            "reviewer": "string",
            "rating": "int",
            "text": "string?",
        },
    }
    rating = fields_of(SHIPPED["review"])[3]
    assert (rating.ge, rating.le) == (1, 5)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (stock(), ("A", 1.5, None)),
        (stock(price=b"2"), ("A", 2.0, None)),
        (stock(price=b"-0.0"), ("A", 0.0, None)),
        (stock(price=b"1e-400"), ("A", 0.0, None)),
        (stock(price=b"123456789012345678901234567890"), ("A", 1.2345678901234568e29, None)),
        (stock(currency=b"null"), ("A", 1.5, None)),
        (stock(currency=b'"EUR"', unknown=b'{"a":[1,NaN]}'), ("A", 1.5, "EUR")),
        (stock(symbol=b'""'), ("", 1.5, None)),
        (stock(symbol=b'"\\u0000\\u0001\\ud83d\\ude00"'), ("\x00\x01😀", 1.5, None)),
        (b' \t\r\n{"symbol":"x",%s,"price":1,"symbol":"A"} \n' % TS, ("A", 1.0, None)),
        (b'{"symbol":1,%s,"price":1,"symbol":"A"}' % TS, ("A", 1.0, None)),
        (stock(symbol=b'"%s"' % (b"x" * 10_000)), ("x" * 10_000, 1.5, None)),
    ],
)
def test_accepted(value: bytes, expected: tuple[object, ...]) -> None:
    message = read(Stock, value)
    assert isinstance(message, Stock)
    assert (message.symbol, message.price, message.currency) == expected
    assert str(message.price)[0] != "-"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "tombstone: the record has no value"),
        (b"", "empty value"),
        (b"hello", "not JSON: expected value at line 1 column 1"),
        (b"[]", "a JSON object is needed"),
        (b"null", "a JSON object is needed"),
        (b'"text"', "a JSON object is needed"),
        (GOOD + GOOD, "not JSON: trailing characters at line 1 column 55"),
        (GOOD[:-1], "not JSON: EOF while parsing an object at line 1 column 53"),
        (b"\xef\xbb\xbf" + GOOD, "not JSON: expected value at line 1 column 1"),
        (stock(symbol=b'"\xff"'), "not UTF-8 (byte 11)"),
        (stock(unknown=b'"\xed\xa0\x80"'), "not UTF-8 (byte 65)"),
        (stock(symbol=b'"\\ud800"'), "not JSON: unexpected end of hex escape at line 1 column 18"),
        (b"{}", "symbol: missing (and 2 more)"),
        (stock(symbol=b"null"), "symbol: a string is needed"),
        (stock(symbol=b"1"), "symbol: a string is needed"),
        (stock(price=b'"1.5"'), "price: a number is needed"),
        (stock(price=b"true"), "price: a number is needed"),
        (stock(price=b"NaN"), "price: a finite number is needed"),
        (stock(price=b"-Infinity"), "price: a finite number is needed"),
        (stock(price=b"1e400"), "price: a finite number is needed"),
        (stock(price=b"1" + b"0" * 400), "price: a finite number is needed"),
        (stock(ts=b"1767623400"), "ts: not a time with an offset such as 2026-01-05T14:30:00Z"),
        (
            stock(ts=b'"2026-01-05T14:30:00"'),
            "ts: not a time with an offset such as 2026-01-05T14:30:00Z",
        ),
        (b'{"x":' * 1000, "nested too deeply"),
        (b'{"x":' + b"[" * 1000 + b"]" * 1000 + b"}", "nested too deeply"),
    ],
)
def test_refused_with_a_reason(value: bytes | None, expected: str) -> None:
    assert reason(Stock, value) == expected


def test_nesting_ends_at_200_levels() -> None:
    def nested(levels: int) -> bytes:
        return stock(x=b"[" * (levels - 1) + b"]" * (levels - 1))

    assert read(Stock, nested(200))
    assert reason(Stock, nested(202)) == "nested too deeply"


@pytest.mark.parametrize("shares", [b"9223372036854775807", b"-9223372036854775808", b"0", b"-0"])
def test_ints_up_to_64_bits(shares: bytes) -> None:
    value = b'{"symbol":"A",%s,"shares":%s}' % (TS, shares)
    assert read(SHIPPED["volume"], value).shares == int(shares)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "shares",
    [
        b"9223372036854775808",
        b"-9223372036854775809",
        b"1e3",
        b"1.0",
        b"1.5",
        b"true",
        b'"1"',
        b"1" + b"0" * 30,
        b"null",
        b"NaN",
    ],
)
def test_ints_beyond_64_bits_or_of_another_form(shares: bytes) -> None:
    value = b'{"symbol":"A",%s,"shares":%s}' % (TS, shares)
    assert reason(SHIPPED["volume"], value).startswith("shares: ")


@pytest.mark.parametrize(("rating", "good"), [(0, False), (1, True), (5, True), (6, False)])
def test_ratings_are_one_to_five(rating: int, good: bool) -> None:
    value = b'{"symbol":"A",%s,"reviewer":"r","rating":%d}' % (TS, rating)
    if good:
        read(SHIPPED["review"], value)
    else:
        assert reason(SHIPPED["review"], value).startswith("rating: ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-05T14:30:00Z", datetime(2026, 1, 5, 14, 30, tzinfo=UTC)),
        ("2026-01-05t14:30:00z", datetime(2026, 1, 5, 14, 30, tzinfo=UTC)),
        ("2026-01-05 14:30:00.5+05:30", datetime(2026, 1, 5, 9, 0, 0, 500_000, tzinfo=UTC)),
        ("2026-01-05T14:30:00-00:00", datetime(2026, 1, 5, 14, 30, tzinfo=UTC)),
        ("1969-12-31T23:59:59.9999999Z", datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
        ("0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=UTC)),
        ("0001-01-01T23:59:00+23:59", datetime(1, 1, 1, tzinfo=UTC)),
        ("9999-12-31T23:59:59.999999Z", datetime.max.replace(tzinfo=UTC)),
        ("2024-02-29T00:00:00Z", datetime(2024, 2, 29, tzinfo=UTC)),
    ],
)
def test_times_become_utc_microseconds(text: str, expected: datetime) -> None:
    message = read(Stock, stock(ts=b'"%s"' % text.encode()))
    assert isinstance(message, Stock)
    assert message.ts == expected
    assert micros_of(message.ts) == round((expected - datetime(1970, 1, 1, tzinfo=UTC)).days) * (
        86_400_000_000
    ) + (expected.hour * 3600 + expected.minute * 60 + expected.second) * 1_000_000 + (
        expected.microsecond
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0000-01-01T00:00:00Z", "no such day or time"),
        ("2026-02-30T00:00:00Z", "no such day or time"),
        ("2025-02-29T00:00:00Z", "no such day or time"),
        ("2026-13-01T00:00:00Z", "no such day or time"),
        ("2026-01-05T24:00:00Z", "no such day or time"),
        ("2026-01-05T14:30:60Z", "no such day or time"),
        ("2026-01-05T14:30:00+24:00", "no such offset from UTC"),
        ("2026-01-05T14:30:00+05:60", "no such offset from UTC"),
        ("0001-01-01T00:00:00+00:01", "not in the years 1 to 9999 (UTC)"),
        ("9999-12-31T23:59:59-00:01", "not in the years 1 to 9999 (UTC)"),
        ("2026-01-05T14:30Z", "not a time with an offset such as 2026-01-05T14:30:00Z"),
        ("2026-01-05T14:30:00.Z", "not a time with an offset such as 2026-01-05T14:30:00Z"),
        ("2026-01-05T14:30:00+0530", "not a time with an offset such as 2026-01-05T14:30:00Z"),
        ("12026-01-05T14:30:00Z", "not a time with an offset such as 2026-01-05T14:30:00Z"),
        ("２０２６-01-05T14:30:00Z", "not a time with an offset such as 2026-01-05T14:30:00Z"),
        (" 2026-01-05T14:30:00Z", "not a time with an offset such as 2026-01-05T14:30:00Z"),
    ],
)
def test_times_that_are_none(text: str, expected: str) -> None:
    assert reason(Stock, stock(ts=b'"%s"' % text.encode())) == f"ts: {expected}"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"1", "1.00"),
        (b"1.5", "1.50"),
        (b'"1.50"', "1.50"),
        (b'"-99999999.99"', "-99999999.99"),
        (b'"0000000000001.500000"', "1.50"),
        (b"-0.0", "0.00"),
        (b"1e2", "100.00"),
        (b"1.005", None),
        (b'"1.005"', None),
        (b"100000000", None),
        (b'"100000000"', None),
        (b'"1e2"', None),
        (b'" 1"', None),
        (b'"+1"', None),
        (b'"NaN"', None),
        (b"NaN", None),
        (b"1e400", None),
        (b"true", None),
        (b"0.1234567890123456", None),
        (b"1" + b"0" * 40, None),
    ],
)
def test_decimals_are_exact_or_refused(raw: bytes, expected: str | None) -> None:
    model = contract([rule("d", "decimal(10,2)")])
    value = b'{"d":%s}' % raw
    if expected is None:
        assert reason(model, value).startswith("d: ")
    else:
        number = read(model, value).f0  # type: ignore[attr-defined]
        assert str(number) == expected
        assert isinstance(number, Decimal)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'{"b": [1, 2.0], "a": "\xc3\xa4", "b": 1}', '{"b":1,"a":"ä"}'),
        (b"[ ]", "[]"),
        (b'"x"', '"x"'),
        (b"null", None),
    ],
)
def test_json_is_kept_as_text(raw: bytes, expected: str | None) -> None:
    model = contract([rule("j", "json?")])
    assert read(model, b'{"j":%s}' % raw).f0 == expected  # type: ignore[attr-defined]


def test_json_that_is_not_finite_or_missing_is_refused() -> None:
    model = contract([rule("j", "json")])
    assert reason(model, b'{"j":[NaN]}') == "j: holds a number that is not finite"
    assert reason(model, b'{"j":null}').startswith("j: ")
    assert reason(model, b"{}") == "j: missing"


def test_rules_and_contracts_are_inverse() -> None:
    types = ["string", "int?", "double", "bool?", "timestamp", "json?", "decimal(38,10)"]
    names = ["copy", "json", "_x", "model_fields", "f0", "class", "f1"]
    rules = tuple(rule(name, text) for name, text in zip(names, types, strict=True))
    assert fields_of(contract(rules)) == rules
    assert [each.type for each in rules] == types


class LimitedText(Message):
    x: Annotated[str, Field(max_length=3)]


class Defaulted(Message):
    x: int = 3


class HalfBounded(Message):
    x: Annotated[int, Field(ge=1)]


class PlainFloat(Message):
    x: float


class Either(Message):
    x: int | str


@pytest.mark.parametrize("model", [LimitedText, Defaulted, HalfBounded, PlainFloat, Either])
def test_models_that_columns_cannot_check_are_refused(model: type[Message]) -> None:
    with pytest.raises(TypeError, match=r"^x: "):
        fields_of(model)


def test_unknown_types_say_what_is_allowed() -> None:
    with pytest.raises(ValueError, match="allowed: string, int, double, bool, timestamp, json"):
        rule("x", "float")
    assert rule("x", "decimal(5, 2)?") == FieldRule("x", "decimal", True, precision=5, scale=2)
