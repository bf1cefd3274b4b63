"""Row codec: the documented layout, every type, and damage that is noticed."""

import struct
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from spillway.engine.spill.rowcodec import CorruptRows, decode_rows, encode_rows

CASES = [
    (pa.bool_(), [True, False]),
    (pa.int8(), [-128, 127]),
    (pa.int32(), [0, -(2**31)]),
    (pa.int64(), [2**63 - 1, -(2**63)]),
    (pa.uint64(), [2**64 - 1, 0]),
    (pa.float32(), [1.5, -0.0]),
    (pa.float64(), [float("inf"), -0.0]),
    (pa.decimal128(38, 9), [Decimal("12345678901234567890123456789.123456789"), Decimal("-1")]),
    (pa.decimal256(60, 2), [Decimal("1e40"), Decimal("-0.01")]),
    (pa.date32(), [date(2026, 1, 5), date(1, 1, 1)]),
    (pa.timestamp("us", "UTC"), [datetime(2026, 1, 5, 1, 2, 3, 4, UTC), datetime.max]),
    (pa.timestamp("ms"), [datetime(9999, 12, 31), datetime(1, 1, 1)]),
    (pa.time64("us"), [1, 86_399_999_999]),
    (pa.duration("us"), [0, -5]),
    (pa.binary(3), [b"abc", b"\0\0\0"]),
    (pa.string(), ["", "x" * 10_000]),
    (pa.string(), ["Zürich 株式 😀", " spaces "]),
    (pa.large_string(), ["a\0b", "\n"]),
    (pa.binary(), [b"\xff\xfe", b""]),
    (pa.large_binary(), [b"\0", b"x"]),
]


@pytest.mark.parametrize(("kind", "values"), CASES, ids=lambda x: str(x)[:30])
def test_every_type_and_null(kind, values):
    column = pa.array([*values, None, *values], kind)
    table = pa.table({"before": ["a", None, "ccc", "", "é"], "x": column, "after": range(5)})
    assert decode_rows(encode_rows(table), table.schema).equals(table)
    for start in range(5):  # slices begin inside buffers and bitmaps
        part = table.slice(start, 2)
        assert decode_rows(encode_rows(part), table.schema).equals(part)
        assert decode_rows(encode_rows(table).slice(start, 2), table.schema).equals(part)


def test_the_documented_layout():
    table = pa.table(
        {
            "s": pa.array(["é", None]),
            "n": pa.array([5, 6], pa.int32()),
            "b": pa.array([None, True]),
            "t": pa.array(["xyz", ""]),
        }
    )
    rows = encode_rows(table).to_pylist()
    assert rows[0] == bytes([0b0100]) + struct.pack("<iBII", 5, 0, 2, 3) + "é".encode() + b"xyz"
    assert rows[1] == bytes([0b0001]) + struct.pack("<iBII", 6, 1, 0, 0)


def test_more_than_eight_columns():
    table = pa.table({f"c{i}": pa.array([i, None], pa.int16()) for i in range(20)})
    encoded = encode_rows(table)
    assert len(encoded[0].as_py()) == 3 + 40
    assert decode_rows(encoded, table.schema).equals(table)


def test_what_lies_under_a_null_does_not_matter():
    values = pa.array([1, 2], pa.int64())
    hidden = pa.Array.from_buffers(pa.int64(), 2, [pa.py_buffer(b"\x02"), values.buffers()[1]])
    plain = pa.array([None, 2], pa.int64())
    assert encode_rows(pa.table({"x": hidden})).equals(encode_rows(pa.table({"x": plain})))


def test_nan_keeps_its_bits():
    bits = pa.array([0x7FF8000000000001, 0xFFF0000000000001], pa.uint64()).view(pa.float64())
    table = pa.table({"x": bits})
    back = decode_rows(encode_rows(table), table.schema)["x"].chunk(0)
    assert back.view(pa.uint64()).equals(bits.view(pa.uint64()))


def test_no_rows_and_chunks():
    table = pa.table({"x": ["a", "b"], "y": [1, 2]})
    assert decode_rows(encode_rows(table.slice(0, 0)), table.schema).equals(table.slice(0, 0))
    encoded = encode_rows(table)
    chunked = pa.chunked_array([encoded.slice(1), encoded.slice(0, 0), encoded.slice(0, 1)])
    assert decode_rows(chunked, table.schema)["x"].to_pylist() == ["b", "a"]
    doubled = pa.concat_tables([table, table])
    assert decode_rows(encode_rows(doubled), table.schema).equals(doubled)
    empty = pa.schema([("x", pa.string())])
    assert decode_rows(pa.chunked_array([], pa.binary()), empty).num_rows == 0


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int32()), pa.struct([("a", pa.int8())]), pa.null(), pa.string_view()]
)
def test_types_without_an_encoding_are_named(kind):
    schema = pa.schema([pa.field("ok", pa.int8()), pa.field("odd", kind)])
    with pytest.raises(TypeError, match="'odd'"):
        encode_rows(schema.empty_table())


def test_damage_is_noticed():
    schema = pa.schema([("s", pa.string()), ("b", pa.bool_())])
    good = encode_rows(pa.table({"s": ["aé"], "b": [True]}, schema=schema))[0].as_py()
    bad = {
        "shorter": good[:5],
        "add up": good + b"x",
        "adds up short": good[:-1],
        "neither": good[:1] + b"\x07" + good[2:],
        "column 's'": good[:-2] + b"\xff\xff",
    }
    for why, value in bad.items():
        with pytest.raises(CorruptRows, match=why if why != "adds up short" else "add up"):
            decode_rows(pa.array([good, value], pa.binary()), schema)
    with pytest.raises(CorruptRows, match="null"):
        decode_rows(pa.array([good, None], pa.binary()), schema)
