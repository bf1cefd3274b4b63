"""Decode: every kind of bad input, batches of all sizes, filters and keys, plans, digests."""

from __future__ import annotations

import hashlib
import itertools
import json
import pickle
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic_core import PydanticCustomError

import spillway.decode
import spillway.decode.parse as parse
from spillway.decode import (
    Decoded,
    StreamPlan,
    _by_columns,
    _outside_years,
    compile_streams,
    decode,
    partition_digest,
    templates,
    tree_spec,
    value_digest,
)
from spillway.decode.expressions import EvaluationError, _evaluate, evaluate, type_of
from spillway.decode.plan import _may_be_key, type_name
from spillway.decode.rules import TIMESTAMP
from spillway.decode.timestamps import parse_timestamps
from spillway_schemas.expressions import FUNCTIONS, cases_of, columns_of
from spillway_schemas.messages import micros_of, parse_timestamp
from spillway_schemas.query import QueryError, load_query, query_of
from spillway_schemas.tomlfile import parse_toml

STOCK, VOLUME, REVIEW = compile_streams(load_query("symbol"))


def plans(text: str) -> tuple[StreamPlan, ...]:
    return compile_streams(query_of(parse_toml(text, Path("q.toml"))))


def stock(i: int, more: str = "") -> bytes:
    ts = f"2026-01-05T14:30:{i % 60:02}.{i % 1000:03}Z"
    return f'{{"symbol":"S{i}","ts":"{ts}","price":{i}.25{more}}}'.encode()


def check(plan: StreamPlan, values: list[bytes | None], **kwargs: Any) -> Decoded:
    """Decode and check what holds for every result."""
    result = decode(plan, pa.array(values, pa.binary()), **kwargs)
    assert result.rows.schema.equals(plan.schema)
    assert result.rows.num_rows == len(result.kept)
    assert len(result.rejected) == len(result.reasons)
    assert result.kept.dtype == result.rejected.dtype == np.int64
    assert (np.diff(result.kept) > 0).all()
    assert (np.diff(result.rejected) > 0).all()
    assert not set(result.kept.tolist()) & set(result.rejected.tolist())
    assert len(result.kept) + len(result.rejected) + result.filtered == len(values)
    result.rows.validate(full=True)
    return result


# ------------------------------------------------------------------------------------ bad input

TS = b'"ts":"2026-01-05T14:30:00Z"'
BAD: dict[str, bytes | None] = {
    "not JSON": b"hello",
    "half of it": b'{"symbol":"A",%s,"price":1' % TS,
    "empty": b"",
    "white space": b"  \n",
    "tombstone": None,
    "string for a number": b'{"symbol":"A",%s,"price":"1"}' % TS,
    "number for a string": b'{"symbol":7,%s,"price":1}' % TS,
    "list for a string": b'{"symbol":["A"],%s,"price":1}' % TS,
    "missing field": b'{"symbol":"A",%s}' % TS,
    "null field": b'{"symbol":"A",%s,"price":null}' % TS,
    "null key": b'{"symbol":null,%s,"price":1}' % TS,
    "NaN": b'{"symbol":"A",%s,"price":NaN}' % TS,
    "infinity": b'{"symbol":"A",%s,"price":-Infinity}' % TS,
    "1e400": b'{"symbol":"A",%s,"price":1e400}' % TS,
    "very large integer": b'{"symbol":"A",%s,"price":1%s}' % (TS, b"0" * 400),
    "invalid UTF-8": b'{"symbol":"\xff",%s,"price":1}' % TS,
    "invalid UTF-8 that is ignored": b'{"symbol":"A",%s,"price":1,"x":"\xc3"}' % TS,
    "lone surrogate": b'{"symbol":"\\ud800",%s,"price":1}' % TS,
    "raw control character": b'{"symbol":"A\x01",%s,"price":1}' % TS,
    "NUL": b'{"symbol":"A",%s,"price":1}\x00{"a":1}' % TS,
    "1,000 levels": b'{"symbol":"A",%s,"price":1,"x":%s%s}' % (TS, b"[" * 999, b"]" * 999),
    "1,000 open levels": b'{"x":' * 1000,
    "year 0": b'{"symbol":"A","ts":"0000-12-31T23:59:59Z","price":1}',
    "no offset": b'{"symbol":"A","ts":"2026-01-05T14:30:00","price":1}',
    "no time": b'{"symbol":"A","ts":"soon","price":1}',
    "two objects": stock(1) * 2,
    "two objects and a comma": stock(1) + b"," + stock(2),
    "two lines": stock(1) + b"\n" + stock(2),
    "a list": b"[" + stock(1) + b"]",
    "a comment": b'{"symbol":"A",%s,"price":1/* one */}' % TS,
    "byte order mark": b"\xef\xbb\xbf" + stock(1),
    "single quotes": b"{'symbol':'A'}",
    "5 MB of no JSON": b"x" * 5_000_000,
    "5 MB cut off": b'{"symbol":"' + b"x" * 5_000_000,
    "end of a string and of an object": b'{"symbol":"}',
    "begin of a string": b'{","price":1}',
}
GOOD: dict[str, tuple[bytes, dict[str, object]]] = {
    "unknown fields": (stock(1, ',"x":{"y":[1,null]},"z":"q"'), {"symbol": "S1"}),
    "white space": (b" \r\n\t" + stock(1) + b"\n", {"symbol": "S1"}),
    "white space inside": (stock(1).replace(b",", b" ,\n\t"), {"symbol": "S1"}),
    "repeated field": (stock(1, ',"symbol":"last"'), {"symbol": "last"}),
    "repeated field of wrong type": (stock(1).replace(b"{", b'{"price":"x",'), {"price": 1.25}),
    "escaped name": (stock(1).replace(b"symbol", b"symbo\\u006c"), {"symbol": "S1"}),
    "int for a double": (b'{"symbol":"A",%s,"price":3}' % TS, {"price": 3.0}),
    "long int for a double": (
        b'{"symbol":"A",%s,"price":9007199254740993}' % TS,
        {"price": 9007199254740992.0},
    ),
    "minus zero": (b'{"symbol":"A",%s,"price":-0}' % TS, {"price": 0.0}),
    "year 9999": (
        b'{"symbol":"A","ts":"9999-12-31T23:59:59.999999Z","price":3}',
        {"ts": datetime.max.replace(tzinfo=UTC)},
    ),
    "year 1": (
        b'{"symbol":"A","ts":"0001-01-01T00:00:00Z","price":3}',
        {"ts": datetime(1, 1, 1, tzinfo=UTC)},
    ),
    "symbol of 10,000": (
        b'{"symbol":"%s",%s,"price":3}' % (b"s" * 10_000, TS),
        {"symbol": "s" * 10_000},
    ),
    "5 MB": (stock(1, ',"x":"' + "x" * 5_000_000 + '"'), {"symbol": "S1"}),
    "escaped control": (b'{"symbol":"\\u0000\\n",%s,"price":3}' % TS, {"symbol": "\0\n"}),
    "empty key": (b'{"symbol":"",%s,"price":3}' % TS, {"symbol": ""}),
    "190 levels": (stock(1, ',"x":' + "[" * 189 + "]" * 189), {"symbol": "S1"}),
    "NaN in an unknown field": (stock(1, ',"x":NaN'), {"symbol": "S1"}),
}


@pytest.mark.parametrize("few_rows", [0, 10**9], ids=["columns", "contract"])
@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_rejected_and_nothing_else_is_lost(name: str, few_rows: int) -> None:
    values: list[bytes | None] = [stock(i) for i in range(50)]
    values.insert(17, BAD[name])
    result = check(STOCK, values, few_rows=few_rows)
    assert result.rejected.tolist() == [17]
    assert len(result.reasons[0]) < 200
    symbols = result.rows.column("symbol").to_pylist()
    assert symbols == [f"S{i}" for i in range(50)]
    assert result.rows.column("price").to_pylist() == [i + 0.25 for i in range(50)]
    assert check(STOCK, [BAD[name]], few_rows=few_rows).reasons == result.reasons


@pytest.mark.parametrize("few_rows", [0, 10**9], ids=["columns", "contract"])
@pytest.mark.parametrize("name", GOOD)
def test_unusual_input_is_accepted(name: str, few_rows: int) -> None:
    value, expected = GOOD[name]
    values: list[bytes | None] = [stock(i) for i in range(5)]
    values.insert(3, value)
    result = check(STOCK, values, few_rows=few_rows)
    assert not result.reasons
    row = result.rows.slice(3, 1).to_pylist()[0]
    assert {column: row[column] for column in expected} == expected
    assert not str(row["price"]).startswith("-")


def test_all_bad_input_in_one_batch() -> None:
    values = [value for _ in range(3) for value in [*BAD.values(), stock(1)]]
    result = check(STOCK, values, few_rows=0)
    assert len(result.kept) == 3
    assert result.reasons == check(STOCK, values, few_rows=10**9).reasons


@pytest.mark.parametrize(
    ("odd", "bad"),
    [
        ([stock(1) + stock(2), b""], [1, 2]),
        ([stock(1) + stock(2), None], [1, 2]),
        ([stock(1) + stock(2), b'{"symbol":"}'], [1, 2]),
        ([b'{"symbol":"}', b'{",%s,"price":1}' % TS], [1, 2]),
        # Joined by anything that may stand in a string, the last two would be one object.
        ([stock(1) + stock(2), b'{"symbol":"}', b'{",%s,"price":1}' % TS], [1, 2, 3]),
        ([stock(1) + stock(2) + stock(3) + b"\x00}", stock(4)], [1]),
        ([stock(1) + b" " + stock(2), b"{"], [1, 2]),
        ([stock(1)[:-1] + b',"x":{}', stock(2)[1:] + stock(3)], [1, 2]),
    ],
)
def test_values_that_would_line_up_by_accident(odd: list[bytes | None], bad: list[int]) -> None:
    # Two rows from one value and none from another: the counts agree, the rows do not.
    values = [stock(0), *odd, stock(9)]
    for few_rows in (0, 99):
        result = check(STOCK, values, few_rows=few_rows)
        assert result.rejected.tolist() == bad
        good = [json.loads(v)["symbol"] for i, v in enumerate(values) if i not in bad and v]
        assert result.rows.column("symbol").to_pylist() == good


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b'{"symbol":"B","n":7}', True),
        (b'{"symbol":"","n":-0.5e+10}', True),
        ('{"symbol":"é\u2028","n":0}'.encode(), True),
        (b'{"symbol":"\\u00e9\\"\\\\","n":1}', True),
        (b'{"symbol":"B","n":true}', True),
        (None, False),
        (b"", False),
        (b"}", False),
        (b"{", False),
        (b"{}", False),
        (b' {"symbol":"B","n":7}', False),
        (b'{"symbol":"B","n":7} ', False),
        (b'{"symbol":"B","n":7}}', False),
        (b'{"symbol":"B","n":7,}', False),
        (b'{"symbol":"B","n": 7}', False),
        (b'{"symbol":"B","n":"7"}', False),
        (b'{"symbol":"B","m":7}', False),
        (b'{"simbol":"B","n":7}', False),
        (b'{"symbol":"B","n":07}', False),
        (b'{"symbol":"B","n":7.}', False),
        (b'{"symbol":"B","n":-}', False),
        (b'{"symbol":"B","n":1e100}', False),
        (b'{"symbol":"B","n":truex}', False),
        (b'{"symbol":"B","n":NaN}', False),
        (b'{"symbol":"B","n":"}', False),
        (b'{"symbol":"B","n":[7]}', False),
        (b'{"symbol":null,"n":7}', False),
        (b'{"symbol":"B\n","n":7}', False),
        (b'{"symbol":"B\x00","n":7}', False),
        (b'{"symbol":"B\x1f","n":7}', False),
        (b'{"symbol":"B\x20\x7f","n":7}', True),
        (b'{"symbol":"B\\","n":7}', False),
        (b'{"symbol":"\\x","n":7}', False),
        (b'{"symbol":"\\u00g0","n":7}', False),
        (b'{"symbol":"\\ud83d\\ude00","n":7}', False),
        (b'{"symbol":"\xff","n":7}', False),
        (b'{"symbol":"\xc3","n":7}', False),
    ],
)
def test_what_a_template_takes(
    monkeypatch: pytest.MonkeyPatch, value: bytes | None, expected: bool
) -> None:
    monkeypatch.setattr(templates, "MOST_TEMPLATES", 1)
    first, last = b'{"symbol":"A","n":1}', b'{"symbol":"\\n","n":-12.25}'
    values = pa.array([first, value, last], pa.binary())
    done, left = templates.read_alike(STOCK.rules[:1], values, 1_000)
    assert left.tolist() == [1] * (not expected)
    assert done[0][0].tolist() == [0, *([1] * expected), 2]
    texts = done[0][1].column("symbol").to_pylist()
    assert (texts[0], texts[-1]) == ("A", "\n")
    if expected:
        assert value is not None
        assert texts[1] == json.loads(value)["symbol"]


def test_values_larger_than_a_piece_take_no_template() -> None:
    values = pa.array([stock(1)])
    assert templates.read_alike(STOCK.rules, values, len(stock(1)))[1].tolist() == []
    assert templates.read_alike(STOCK.rules, values, len(stock(1)) - 1)[1].tolist() == [0]


def test_no_template_is_made_of_a_long_value() -> None:
    bare = len(b'{"symbol":""}')
    long = [b'{"symbol":"%s"}' % (b"x" * (templates.LONGEST - bare + more)) for more in (0, 1)]
    assert [len(value) - templates.LONGEST for value in long] == [0, 1]
    assert templates.template_of(long[0]) is not None
    assert templates.template_of(long[1]) is None


def test_a_template_of_a_wrong_kind_takes_nothing() -> None:
    values = pa.array([b'{"symbol":["A"],"n":1}'] * 3)
    assert templates.read_alike(STOCK.rules[:1], values, 1_000)[1].tolist() == [0, 1, 2]


def test_templates_say_where_fields_are() -> None:
    value = b'{"a":{"b":"c","a":[1,"x"]},"d":1.5,"a":"e","\\u0066":null,"g":[]}'
    template = templates.template_of(value)
    assert template is not None
    assert template.literals == (
        *(b'{"a":{"b":"', b'","a":[', b',"', b'"]},"d":', b',"a":"', b'","\\u0066":', b',"g":[]}'),
    )
    assert template.fields == {"a": 4, "d": 3, "f": 5, "g": None}
    assert template.quotes == 20
    for none in (b"[]", b"{", b'"a"', b'{"a":%s}' % (b"[1" + b",1" * templates.MOST_HOLES + b"]")):
        assert templates.template_of(none) is None


def test_batches_that_look_alike_never_leave_the_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: object) -> object:
        raise AssertionError("a good batch took the slow path")

    monkeypatch.setattr(spillway.decode, "parse_each", never)
    monkeypatch.setattr(spillway.decode, "read", never)
    # Nested fields, blanks, escapes, and an optional field that half of them have.
    values = [
        stock(i, ', "venue": {"a": [1, "\\u00e9\\n"]}' + ',"currency":"USD"' * (i % 2))
        for i in range(20_000)
    ]
    result = check(STOCK, [*values])
    assert len(result.kept) == 20_000
    assert result.rows.column("currency").to_pylist()[:4] == [None, "USD", None, "USD"]


def test_a_bad_value_slows_no_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    one_by_one: list[int] = []
    real = parse.parse_each

    def spy(rules: Any, values: Any, rows: Any) -> Any:
        one_by_one.extend(rows.tolist())
        return real(rules, values, rows)

    monkeypatch.setattr(spillway.decode, "parse_each", spy)
    values: list[bytes | None] = [stock(i) for i in range(2 * parse.PIECE_ROWS)]
    values[parse.PIECE_ROWS + 5] = BAD["string for a number"]
    values[7] = None
    result = check(STOCK, values)
    assert result.rejected.tolist() == [7, parse.PIECE_ROWS + 5]
    assert one_by_one == [7, parse.PIECE_ROWS + 5]


def test_small_batches_go_straight_to_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    real = parse.parse_alike

    def spy(rules: Any, values: Any) -> Any:
        sizes.append(len(values))
        return real(rules, values)

    monkeypatch.setattr(spillway.decode, "parse_alike", spy)
    for size in (spillway.decode.FEW_ROWS, spillway.decode.FEW_ROWS + 1):
        assert len(check(STOCK, [stock(i) for i in range(size)]).kept) == size
    assert sizes == [spillway.decode.FEW_ROWS + 1]


def test_only_values_that_are_too_large_skip_the_second_stage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = [stock(0), b" " + stock(1), b"  " + stock(1), b" " + stock(1)]
    monkeypatch.setattr(spillway.decode, "EACH_BYTES", len(values[1]))
    parts, left = _by_columns(STOCK.rules, pa.array(values, pa.binary()))
    assert [rows.tolist() for rows, _ in parts] == [[0], [1, 3]]
    assert left.tolist() == [2]


@pytest.mark.parametrize("few_rows", [0, 99])
def test_blocks_are_counted_from_their_begin(
    monkeypatch: pytest.MonkeyPatch, few_rows: int
) -> None:
    monkeypatch.setattr(spillway.decode, "BLOCK_ROWS", 3)
    values: list[bytes | None] = [stock(i) for i in range(10)]
    values[4], values[8] = b"bad", None
    result = check(STOCK, values, few_rows=few_rows)
    assert result.kept.tolist() == [0, 1, 2, 3, 5, 6, 7, 9]
    assert result.rejected.tolist() == [4, 8]
    assert result.reasons[1] == "tombstone: the record has no value"
    assert result.rows.column("symbol").to_pylist() == [f"S{i}" for i in result.kept.tolist()]


def test_no_values_give_no_rows() -> None:
    for plan in (STOCK, *plans(OWN)):
        assert check(plan, []).rows.num_rows == 0


@pytest.mark.parametrize("size", [0, 1, 2, 31, 32, 33, 8191, 8192, 8193, 20_000])
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_sizes_slices_and_offset_types(size: int, kind: Any) -> None:
    values = [stock(i) for i in range(size + 7)]
    values[3] = b"bad, but sliced off"
    result = decode(STOCK, pa.array(values, kind).slice(5, size))
    assert result.kept.tolist() == list(range(size))
    assert result.rows.column("symbol").to_pylist() == [f"S{i + 5}" for i in range(size)]


def test_nulls_whose_slots_hold_bytes() -> None:
    values = pa.array([stock(1), stock(2), stock(3)], pa.binary())
    hollow = pa.Array.from_buffers(
        pa.binary(), 3, [pa.py_buffer(b"\x05"), values.buffers()[1], values.buffers()[2]]
    )
    result = decode(STOCK, hollow, few_rows=0)
    assert result.kept.tolist() == [0, 2]
    assert result.reasons == ["tombstone: the record has no value"]


def test_values_of_another_type_are_a_mistake_of_the_caller() -> None:
    with pytest.raises(TypeError, match="binary"):
        decode(STOCK, pa.array([1] * 50))


def test_the_other_shipped_streams() -> None:
    review = b'{"symbol":"A",%s,"reviewer":"r","rating":%d,"text":null}'
    values: list[bytes | None] = [review % (TS, i) for i in range(7)]
    for few_rows in (0, 99):
        result = check(REVIEW, values, few_rows=few_rows)
        assert result.rows.column("rating").to_pylist() == [1, 2, 3, 4, 5]
        assert result.rejected.tolist() == [0, 6]
    volume = b'{"symbol":"A",%s,"shares":%s}'
    shares = [b"1", b"9223372036854775807", b"9223372036854775808", b"1.0", b"-9223372036854775808"]
    for few_rows in (0, 99):
        result = check(VOLUME, [volume % (TS, each) for each in shares], few_rows=few_rows)
        assert result.rows.column("shares").to_pylist() == [1, 2**63 - 1, -(2**63)]


# ------------------------------------------------------------------------- own fields and keys

OWN = """
[streams.stock]
schema = "stock"
filter = "price > 1 and currency = 'USD'"
[streams.trade]
fields = { ticker = "string?", at = "timestamp", size = "int", price = "double?", ok = "bool?" }
[join]
inputs = ["stock", "trade"]
on = [
  { name = "symbol", columns = { stock = "symbol", trade = "ticker" } },
  { name = "minute", columns = { stock = "MINUTE, ts)", trade = "MINUTE, at)" } },
]
[results]
columns = ["trade.size", "stock.price", "trade.ok"]
""".replace("MINUTE", "date_trunc('minute'")


def test_filter_keys_and_projection() -> None:
    first, second = plans(OWN)
    assert first.keys == pa.schema(
        [
            pa.field("symbol", pa.string(), nullable=False),
            pa.field("minute", pa.timestamp("us", "UTC"), nullable=False),
        ]
    )
    assert first.payload == pa.schema([("price", pa.float64())])
    assert second.payload == pa.schema([("size", pa.int64()), ("ok", pa.bool_())])
    values: list[bytes | None] = [
        stock(0, ',"currency":"USD"'),
        stock(61, ',"currency":"USD"'),
        stock(2, ',"currency":"EUR"'),
        stock(3),
        b"bad",
        stock(5, ',"currency":"USD"'),
    ]
    for few_rows in (0, 99):
        result = check(first, values, few_rows=few_rows)
        assert result.filtered == 3
        assert result.kept.tolist() == [1, 5]
        assert result.rejected.tolist() == [4]
        minute = datetime(2026, 1, 5, 14, 30, tzinfo=UTC)
        assert result.rows.to_pylist() == [
            {"symbol": "S61", "minute": minute, "price": 61.25},
            {"symbol": "S5", "minute": minute, "price": 5.25},
        ]


def test_a_null_join_key_is_rejected() -> None:
    trade = plans(OWN)[1]
    at = b'"at":"2026-01-05T14:30:00Z"'
    values: list[bytes | None] = [
        b'{"ticker":"A",%s,"size":1}' % at,
        b'{"ticker":null,%s,"size":2}' % at,
        b'{%s,"size":3,"ok":true}' % at,
        b'{"ticker":"B",%s,"size":4,"ok":false,"price":null}' % at,
    ]
    for few_rows in (0, 99):
        result = check(trade, values, few_rows=few_rows)
        assert result.reasons == ["symbol: the join key is null"] * 2
        assert result.rows.column("size").to_pylist() == [1, 4]
        assert result.rows.column("ok").to_pylist() == [None, False]


def test_a_null_derived_key_is_rejected() -> None:
    text = OWN.replace('trade = "ticker"', "trade = \"nullif(ticker, '')\"")
    trade = plans(text)[1]
    at = b'"at":"2026-01-05T14:30:00Z"'
    result = check(trade, [b'{"ticker":"%s",%s,"size":1}' % (t, at) for t in (b"A", b"", b"B")])
    assert result.reasons == ["symbol: the join key is null"]
    assert result.kept.tolist() == [0, 2]


@pytest.mark.parametrize(
    "key", ["at + interval '1 day'", "date_trunc('day', at + interval '1 day')"]
)
@pytest.mark.parametrize("few_rows", [0, 99])
def test_a_derived_key_stays_in_the_years_of_a_field(key: str, few_rows: int) -> None:
    text = """[streams.left]
fields = { at = "timestamp" }
[streams.right]
fields = { at = "timestamp" }
[join]
inputs = ["left", "right"]
on = [{ name = "key", expression = "KEY" }]
"""
    left = plans(text.replace("KEY", key))[0]
    days = ("9999-12-30T23:59:59.999999Z", "9999-12-31T00:00:00Z", "2026-01-05T00:00:00Z")
    result = check(left, [b'{"at":"%s"}' % day.encode() for day in days], few_rows=few_rows)
    assert result.kept.tolist() == [0, 2]
    assert result.reasons == ["key: not in the years 1 to 9999 (UTC)"]
    early = plans(text.replace("KEY", key.replace("+", "-")))[0]
    result = check(early, [b'{"at":"0001-01-0%dT00:00:00Z"}' % day for day in (1, 2)])
    assert result.kept.tolist() == [1]
    assert result.reasons == ["key: not in the years 1 to 9999 (UTC)"]


@pytest.mark.parametrize("few_rows", [0, 99])
def test_a_row_counts_only_if_every_key_does(few_rows: int) -> None:
    text = """[streams.left]
fields = { a = "string?", b = "string?", at = "timestamp" }
[streams.right]
fields = { a = "string?", b = "string?", at = "timestamp" }
[join]
inputs = ["left", "right"]
on = ["a", { name = "day", expression = "at + interval '1 day'" }, "b"]
"""
    late, day = b'"at":"9999-12-31T00:00:00Z"', b'"at":"2026-01-05T00:00:00Z"'
    values: list[bytes | None] = [
        b'{"b":"y",%s}' % day,
        b'{"a":"x",%s}' % day,
        b'{"a":"x","b":"y",%s}' % late,
        b'{"a":"x","b":"y",%s}' % day,
        b"{%s}" % late,
    ]
    result = check(plans(text)[0], values, few_rows=few_rows)
    assert result.kept.tolist() == [3]
    assert result.reasons == [
        "a: the join key is null",
        "b: the join key is null",
        "day: not in the years 1 to 9999 (UTC)",
        "a: the join key is null",
    ]


FAILS = """
[streams.left]
fields = { at = "timestamp", by = "timestamp" }
filter = "strftime(by + interval '93000000 days', '%Y') <> '+256651'"
[streams.right]
fields = { at = "timestamp" }
[join]
inputs = ["left", "right"]
on = [
  { name = "year", expression = "strftime(at + interval '93000000 days', '%Y')" },
  { name = "again", expression = "strftime(at + interval '93000001 days', '%Y')" },
]
"""


@pytest.mark.parametrize("few_rows", [0, 99])
def test_rows_on_which_filter_or_key_fails_are_rejected_with_the_first_reason(
    few_rows: int,
) -> None:
    """Years from about 7500 on are then beyond the library's calendar."""
    plan = plans(FAILS)[0]
    fits, left_out, fails = b"1999-01-05", b"2026-01-05", b"9999-01-05"
    days = [(fits, fits), (fits, left_out), (fits, fails), (fails, fits), (fails, left_out)]
    days += [(fails, fails), (left_out, fits), (fits, left_out)]
    values: list[bytes | None] = [
        b'{"at":"%sT00:00:00Z","by":"%sT00:00:00Z"}' % (at, by) for at, by in days
    ]
    result = check(plan, [None, *values], few_rows=few_rows)
    assert result.kept.tolist() == [1, 7]
    assert result.filtered == 3
    no_value = "the expression has no value for this row"
    assert dict(zip(result.rejected.tolist(), result.reasons, strict=True)) == {
        0: "tombstone: the record has no value",
        3: f"filter: {no_value}",
        4: f"year: {no_value}",
        6: f"filter: {no_value}",
    }
    assert result.rows.column("year").to_pylist() == ["+256624", "+256651"]


@pytest.mark.parametrize(
    ("type_", "unit"),
    [(pa.date32(), "D"), (pa.timestamp("us", "UTC"), "us"), (pa.timestamp("s"), "s")],
)
def test_days_and_times_outside_the_years_are_found(type_: Any, unit: Any) -> None:
    first, after = (int(np.datetime64(d, unit).astype(int)) for d in ("0001-01-01", "10000-01-01"))
    whole = pa.int32() if unit == "D" else pa.int64()
    numbers = [first - 1, first, None, 0, after - 1, after, 2**31 - 1 if unit == "D" else 2**63 - 1]
    found = _outside_years(pa.array(numbers, whole).cast(type_))
    assert found is not None
    assert found.tolist() == [True, False, False, False, False, True, True]
    assert _outside_years(pa.array([first, None, after - 1], whole).cast(type_)) is None
    assert _outside_years(pa.array([2**63 - 1])) is None


def test_decimal_and_json_streams_are_read_by_the_contract() -> None:
    text = OWN.replace('price = "double?"', 'price = "decimal(10,2)?", raw = "json?"').replace(
        '"trade.size"', '"trade.price", "trade.raw"'
    )
    trade = plans(text)[1]
    at = b'"ticker":"A","at":"2026-01-05T14:30:00Z","size":1'
    values: list[bytes | None] = [
        b'{%s,"price":"1.50","raw":{"a": [1]}}' % at,
        b'{%s,"price":1.005}' % at,
        b"{%s}" % at,
    ] * 20
    result = check(trade, values, few_rows=0)
    assert len(result.reasons) == 20
    assert set(result.reasons) == {"price: does not fit decimal(10,2)"}
    rows = result.rows.to_pylist()
    assert (str(rows[0]["price"]), rows[0]["raw"]) == ("1.50", '{"a":[1]}')
    assert (rows[1]["price"], rows[1]["raw"]) == (None, None)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("price > 1 and", "price + 1 and", "q.toml:4: filter of stock: "),
        ("price > 1 and currency = 'USD'", "price + 1", "filter is true or false, this is double"),
        ("price > 1 and currency = 'USD'", "price > 'x'", "q.toml:4: filter of stock: "),
        ("date_trunc('minute', ts)", "date_trunc('blink', ts)", "does not support 'blink'"),
        ("date_trunc('minute', ts)", "price", "join key is string, int, bool, date"),
        ("date_trunc('minute', ts)", "extract(minute from ts)", "is not of one type: stock int"),
        ("date_trunc('minute', ts)", "ts - ts", "join key is string"),
    ],
)
def test_types_are_checked_before_the_first_row(old: str, new: str, message: str) -> None:
    assert old in OWN
    with pytest.raises(QueryError) as caught:
        plans(OWN.replace(old, new))
    assert message in str(caught.value)
    assert str(caught.value).startswith("q.toml:")


MISTAKES = """
[streams.left]
fields = { a = "double", at = "timestamp", s = "string", n = "int" }
filter = "n"
[streams.right]
fields = { a = "int", at = "timestamp", s = "string", n = "int" }
[join]
inputs = ["left", "right"]
[[join.on]]
name = "a"
[[join.on]]
name = "at"
columns = { left = "at", right = "n" }
[[join.on]]
name = "key"
columns = { left = "n + s", right = "a / 2" }
"""
KINDS = "string, int, bool, date, timestamp or decimal"
CAST = "give it columns and cast there, e.g."


def test_every_mistake_is_told_at_once_with_its_line() -> None:
    with pytest.raises(QueryError) as caught:
        plans(MISTAKES)
    told = str(caught.value).splitlines()
    # The library's own words are behind the place.
    assert told[2].startswith("q.toml:14: key key of left: arithmetic on dtypes")
    assert [told[0], told[1], *told[3:]] == [
        "q.toml:4: filter of left: a filter is true or false, this is int",
        f"q.toml:9: key a of left: a join key is {KINDS}, not double; give the field the type "
        "decimal(p,s)",
        f"q.toml:14: key key of right: a join key is {KINDS}, not double",
    ]
    # One type for each key comes after that.
    better = {'"n"': '"n > 1"', '"double"': '"int"', "n + s": "s", "a / 2": "at"}
    text = MISTAKES
    for old, new in better.items():
        text = text.replace(old, new, 1)
    with pytest.raises(QueryError) as caught:
        plans(text)
    assert str(caught.value).splitlines() == [
        "q.toml:11: key at is not of one type: left timestamp, right int; "
        "give the streams' fields one type",
        "q.toml:14: key key is not of one type: left string, right timestamp; "
        f'{CAST} right = "try_cast(at as string)"',
    ]


@pytest.mark.parametrize(
    ("type_", "name", "may_be_key"),
    [
        (pa.string(), "string", True),
        (pa.int64(), "int", True),
        (pa.bool_(), "bool", True),
        (pa.date32(), "date", True),
        (pa.timestamp("us", "UTC"), "timestamp", True),
        (pa.decimal128(12, 3), "decimal(12,3)", True),
        (pa.float64(), "double", False),
        (pa.duration("us"), "duration[us]", False),
    ],
)
def test_types_are_named_as_in_a_query(type_: Any, name: str, may_be_key: bool) -> None:
    assert type_name(type_) == name
    assert _may_be_key(type_) == may_be_key


def test_a_plan_says_where_everything_comes_from() -> None:
    first, second = plans(OWN)
    assert (first.name, first.topic, first.index) == ("stock", "stock", 0)
    assert (second.name, second.topic, second.index) == ("trade", "trade", 1)
    assert first.sources == ("symbol", "date_trunc('minute', ts)", "price")
    assert second.sources[:2] == ("ticker", "date_trunc('minute', at)")
    # What is no key comes from the field of its name.
    assert second.sources[2:] == tuple(second.payload.names)
    assert first.plain == (True, False, True)
    assert second.plain == (True, False, *(True for _ in second.payload))
    assert (first.filter, second.filter) == ("price > 1 and currency = 'USD'", None)
    assert (first.reads, second.reads) == (("currency", "price", "ts"), ("at",))
    assert first.schema.names == ["symbol", "minute", "price"]
    assert [rule.name for rule in second.rules] == ["ticker", "at", "size", "price", "ok"]
    spec = tree_spec(query_of(parse_toml(OWN, Path("q.toml"))))
    assert [join.operator for join in spec.joins] == [0]
    assert spec.root.keys == first.keys


def test_every_allowed_function_is_known_to_the_library() -> None:
    uses = {
        "substring": "substring(s, 1, 1)",
        "substr": "substr(s, 1, 1)",
        "extract": "extract(hour from ts)",
        "try_cast": "try_cast(s as int)",
    }
    alike = {
        "{}(p)": "abs ceil ceiling floor round sign sqrt",
        "{}(s)": "lower upper length char_length octet_length trim ltrim rtrim reverse initcap",
        "{}(s, 1)": "left right",
        "{}(s, 'a')": "starts_with ends_with strpos",
        "{}(s, s)": "concat coalesce nullif greatest least",
    }
    uses |= {name: form.format(name) for form, names in alike.items() for name in names.split()}
    uses |= {"mod": "mod(n, 2)", "div": "div(n, 2)", "concat_ws": "concat_ws('-', s, s)"}
    uses |= {"replace": "replace(s, 'a', 'b')", "strftime": "strftime(ts, '%Y')"}
    uses |= {"date_trunc": "date_trunc('hour', ts)", "date_part": "date_part('hour', ts)"}
    assert uses.keys() == FUNCTIONS
    rows = pa.table(
        {
            "s": ["b", None, "a"],
            "n": pa.array([1, None, 2], pa.int64()),
            "p": [1.5, None, 2.5],
            "ts": pa.array([0, None, 1], pa.timestamp("us", "UTC")),
        }
    )
    for text in uses.values():
        columns_of(text, frozenset(rows.column_names))
        type_ = type_of(text, rows.schema)
        whole, failed = evaluate(text, rows, type_)
        assert not failed, text
        # One row at a time gives the same: no function looks at other rows.
        single = [evaluate(text, rows.slice(i, 1), type_)[0][0] for i in range(3)]
        assert whole.to_pylist() == [each.as_py() for each in single], text


def test_rows_on_which_an_expression_fails_stand_alone() -> None:
    rows = pa.table({"s": ["1", "x", "3", "4", "y"]})
    result, failed = evaluate("cast(s as int)", rows, pa.int64())
    assert result.to_pylist() == [1, None, 3, 4, None]
    assert sorted(failed) == [1, 4]
    assert set(failed.values()) == {"the expression has no value for this row"}


def test_a_constant_is_the_same_for_every_row() -> None:
    rows = pa.table({"s": ["1", "x", "3"]})
    assert evaluate("'a' || 'b'", rows, pa.string())[0].to_pylist() == ["ab"] * 3
    assert evaluate("'a'", rows.slice(0, 1), pa.string())[0].to_pylist() == ["a"]
    assert evaluate("'a'", rows.slice(0, 0), pa.string())[0].to_pylist() == []
    assert _evaluate("max(s)", rows).to_pylist() == ["x"] * 3, "one value for all of them"


def test_no_rows_have_no_value_and_fail_nowhere() -> None:
    rows = pa.table({"s": pa.array([], pa.string())})
    for expression in ("s", "no_such_function(s)"):
        result, failed = evaluate(expression, rows, pa.string())
        assert (result.type, result.to_pylist(), failed) == (pa.string(), [], {})
    # Nor has a single row another type where it fails.
    result, failed = evaluate("cast(s as int)", pa.table({"s": ["x"]}), pa.int64())
    assert (result.type, result.to_pylist(), list(failed)) == (pa.int64(), [None], [0])


def test_an_expression_has_one_type_over_none_one_and_two_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    types = [pa.string(), pa.string(), pa.string()]
    monkeypatch.setattr(
        "spillway.decode.expressions._evaluate",
        lambda _, rows: pa.nulls(rows.num_rows, types[rows.num_rows]),
    )
    schema = pa.schema([("s", pa.string())])
    assert type_of("s", schema) == pa.string()
    for rows, said in ((0, "bool over no row and string"), (1, "string over no row and bool")):
        types[:] = [pa.string()] * 3
        types[rows] = pa.bool_()
        with pytest.raises(EvaluationError, match=f"^it is {said} over some$"):
            type_of("s", schema)


def test_a_case_that_mixes_types_is_refused_wherever_it_stands() -> None:
    """The library takes the time for a number in some batches: the cast to text would show it."""
    schema = pa.schema([("b", pa.bool_()), ("t", TIMESTAMP)])
    case = "case when b then 1 else t end"
    for expression in (f"try_cast({case} as string)", f"concat('x', CASE when b then {case} end)"):
        with pytest.raises(EvaluationError, match=f"^{case}: it is timestamp.* over no row and"):
            type_of(expression, schema)
    assert type_of("try_cast(case when b then t end as string)", schema) == pa.string()


def test_cases_of_an_expression() -> None:
    inner = "case when b then 'end' end"
    outer = f"case when a then {inner} else 1 end"
    assert cases_of(f"upper({outer}) || case when a then 2 end") == [
        inner,
        outer,
        "case when a then 2 end",
    ]
    assert cases_of("end") == []


def test_what_is_wrong_with_an_expression_is_said_in_one_line() -> None:
    rows = pa.table({"s": ["1", "x"]})
    with pytest.raises(EvaluationError) as one:
        _evaluate("cast(s as int)", rows)
    assert "\n" not in str(one.value)
    assert str(one.value).startswith("conversion from `str` to `i32` failed")
    with pytest.raises(EvaluationError, match=r"^the expression does not give one value per row$"):
        _evaluate("unnest(string_to_array(s, ','))", pa.table({"s": ["1,2", "3"]}))


def test_a_time_beyond_the_calendar_is_no_end_of_the_stream() -> None:
    """The library panics there, which is no `Exception`."""
    rows = pa.table({"i": pa.array([0, 2**63 - 1, 1], pa.int64())})
    text = "strftime(cast(i as timestamp), '%Y')"
    result, failed = evaluate(text, rows, pa.string())
    assert result.to_pylist() == ["1970", None, "1970"]
    assert sorted(failed) == [1]


def test_what_fails_on_every_row_is_refused_before_the_first() -> None:
    schema = pa.schema([("s", pa.string()), ("ts", pa.timestamp("us", "UTC"))])
    with pytest.raises(EvaluationError):
        type_of("cast(s as timestamp) > ts", schema)


def test_plans_and_specs_travel() -> None:
    for plan in plans(OWN):
        assert plan.contract
        again = pickle.loads(pickle.dumps(plan))
        assert again == plan
        assert len(pickle.dumps(plan)) < 4000
        decode(again, pa.array([b"x"], pa.binary()))
    spec = tree_spec(load_query("symbol_minute"))
    assert spec.root.keys.names == ["symbol", "minute"]
    assert [each.name for each in spec.inputs] == ["stock", "volume", "review"]
    assert spec.inputs[1].payload.names == ["ts", "shares"]


# ------------------------------------------------------------------------------------- digests


GOLDEN = [
    "25b1b7f2678efa81",
    "bc3b948fe3c84801",
    "f81c2ad4bd00ee6a",
    "8ab40398f0eee0b5",
    "e4928e81ac861401",
    "761a7f8774eec950",
    "58c8a560541f25e4",
    "5ca1ab1e0ddba11d",
]
GOLDEN_SUM = "63041ea324c0d6b8"


def plain_digest(value: bytes | None) -> int:
    """The digest by its description, one value at a time."""
    bits = 2**64 - 1
    if value is None:
        return 0x5CA1AB1E0DDBA11D
    if len(value) > 1024:
        return int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "little")
    state = (len(value) * 0x9E3779B97F4A7C15 + 0x94D049BB133111EB) & bits
    full = range(0, max(0, len(value) - 8), 8)
    for word in [*(value[at : at + 8] for at in full), value[-8:]] if value else []:
        state = ((state ^ int.from_bytes(word, "little")) * 0x9E3779B97F4A7C15) & bits
        state ^= state >> 32
    if not value:  # a value under 8 bytes is one word, filled up with zeros
        state = (state * 0x9E3779B97F4A7C15) & bits
        state ^= state >> 32
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & bits
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & bits
    return state ^ (state >> 31)


def test_digests_stay_as_they_are() -> None:
    # Journals hold sums of these: another function would call every topic changed.
    values = [b"", b"a", b"1234567", b"12345678", b"123456789", stock(1), b"x" * 1025, None]
    digests = value_digest(pa.array(values, pa.binary()))
    assert [f"{d:016x}" for d in digests.tolist()] == GOLDEN
    offsets = np.arange(len(values), dtype=np.int64)
    assert f"{partition_digest(digests, offsets):016x}" == GOLDEN_SUM


def test_a_digest_is_of_the_value_alone() -> None:
    rng = np.random.default_rng(5)
    sizes = [0, 1, 7, 8, 9, 15, 16, 17, 100, 110, 1023, 1024, 1025, 5000] * 3
    values = [rng.bytes(size) for size in sizes] + [None]
    alone = [int(value_digest(pa.array([v], pa.binary()))[0]) for v in values]
    for kind in (pa.binary(), pa.large_binary()):
        together = value_digest(pa.array(values, kind))
        assert together.dtype == np.uint64
        assert together.tolist() == alone
        assert value_digest(pa.array(values, kind).slice(3, 20)).tolist() == alone[3:23]
    assert len(set(alone)) == len(set(values))
    assert alone == [plain_digest(value) for value in values]


def test_every_changed_byte_and_length_is_noticed() -> None:
    for size in (1, 5, 8, 13, 110, 1100):
        value = hashlib.shake_128(b"x").digest(size)
        changed = {value}
        for at in range(size):
            for flip in (1, 128, 255):
                other = bytearray(value)
                other[at] ^= flip
                changed.add(bytes(other))
        changed |= {value + b"\0", value[:-1], value[::-1] + b"\1"}
        digests = value_digest(pa.array(sorted(changed), pa.binary()))
        assert len(set(digests.tolist())) == len(changed)


def test_partition_digests_add_up_and_know_places() -> None:
    digests = value_digest(pa.array([stock(i) for i in range(100)], pa.binary()))
    offsets = np.arange(1000, 1100)
    whole = partition_digest(digests, offsets)
    parts = partition_digest(digests[:30], offsets[:30]) + partition_digest(
        digests[30:], offsets[30:]
    )
    assert parts % 2**64 == whole
    order = np.random.default_rng(1).permutation(100)
    assert partition_digest(digests[order], offsets[order]) == whole
    assert partition_digest(digests[order], offsets) != whole
    assert partition_digest(digests, offsets + 1) != whole
    assert partition_digest(digests[:0], offsets[:0]) == 0


def test_an_empty_value_is_no_tombstone() -> None:
    empty, null = value_digest(pa.array([b"", None], pa.binary())).tolist()
    assert empty != null


# ---------------------------------------------------------------------------------- timestamps


def test_columns_of_times_of_many_forms() -> None:
    texts = ["2026-01-05T14:30:00Z", None, "2026-01-05T14:30:00.123+01:00", "", "x", "é" * 10]
    micros, valid = parse_timestamps(pa.array(texts))
    assert valid.tolist() == [True, False, True, False, False, False]
    assert micros[[0, 2]].tolist() == [1_767_623_400_000_000, 1_767_619_800_123_000]
    sliced = parse_timestamps(pa.array(texts).slice(2, 2))
    assert sliced[1].tolist() == [True, False]
    assert parse_timestamps(pa.array([], pa.string()))[0].tolist() == []
    assert parse_timestamps(pa.array([None, None], pa.string()))[1].tolist() == [False, False]


def test_times_at_every_edge_agree_with_the_contract() -> None:
    years = [0, 1, 2, 1900, 1969, 1970, 2000, 2023, 2024, 2100, 9998, 9999]
    days = [0, 1, 28, 29, 30, 31, 32]
    clocks = ["00:00:00", "23:59:59.999999", "23:59:60", "24:00:00", "12:60:00", "12:34:56.7"]
    offsets = ["Z", "z", "+00:01", "-00:01", "+23:59", "-23:59", "+24:00", "+01:60", "*01:00"]
    texts = [
        f"{year:04}-{month:02}-{day:02}T{clock}{offset}"
        for year, month, day, clock, offset in itertools.product(
            years, [0, 1, 2, 4, 12, 13], days, clocks, offsets
        )
    ]
    micros, valid = parse_timestamps(pa.array(texts))
    for text, number, held in zip(texts, micros.tolist(), valid.tolist(), strict=True):
        try:
            expected = micros_of(parse_timestamp(text))
        except PydanticCustomError:
            assert not held, text
        else:
            assert (held, number) == (True, expected), text


TWICE = """
[streams.trade]
fields = { symbol = "string", previous = "string?", n = "int" }
[join]
inputs = ["trade", "trade as later"]
on = [{ name = "symbol", columns = { trade = "symbol", later = "previous" } }]
"""


def test_a_message_has_one_verdict_however_many_leaves_read_its_stream() -> None:
    """One reading needs `previous` for its key: without it no reading takes the message."""
    plans = compile_streams(query_of(parse_toml(TWICE, Path("q.toml"))))
    values = pa.array(
        [
            b'{"symbol":"A","n":1}',
            b'{"symbol":"A","previous":"B","n":2}',
            b'{"symbol":"A","previous":null,"n":3}',
            b"oops",
        ],
        pa.binary(),
    )
    found = [decode(plan, values) for plan in plans]
    for each in found:
        assert each.kept.tolist() == [1]
        assert each.rejected.tolist() == [0, 2, 3]
    told = [each.reasons[0] for each in found]
    assert told == ["previous: the join key is null", "symbol: the join key is null"]
