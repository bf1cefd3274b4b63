"""Avro and Protobuf: whole columns give what the library and the contract give of each value.

Values are right, nearly right and broken: of schemas drawn anew, with bytes changed, cut off or put
in. The judge reads each by itself with the library, then by the pydantic model.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from google.protobuf import message_factory
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spillway.decode import StreamPlan, decode
from spillway.decode.formats import avro_columns, protobuf_columns, protobuf_schemas
from spillway.decode.formats.decoder import decoder_of
from spillway.decode.rules import columns_of
from spillway_schemas.formats import WriterSchema
from spillway_schemas.messages import Rejected, accept
from tests.formats import Given, avro, framed, plan, proto, record, serialized, written
from tests.lanes import lanes
from tests.property.test_decode_agrees import Verdict, verdicts

EVERY = (
    'fields = { symbol = "string", t = "timestamp?", i = "int?", d = "double?", b = "bool?", '
    'm = "decimal(12,2)?", n = "decimal(20,0)?" }'
)
JSON_TOO = EVERY.replace(" }", ', x = "json?" }')
NAMES = ("symbol", "t", "i", "d", "b", "m", "n", "x")


def by_the_library(each: StreamPlan, schema: WriterSchema, body: bytes) -> Verdict:
    """What the library and the contract say of one body."""
    decoder = decoder_of(each.format, each.rules, schema, (0,) if schema.kind == "PROTOBUF" else ())
    try:
        message = accept(each.contract, decoder.fields(body))
    except Rejected as error:
        return ("rejected", str(error))
    row = columns_of(each.rules, [message])
    names = [rule.name for rule in each.rules]
    return ("row", *(repr(row[names.index(name)][0].as_py()) for name in each.sources))


def check(each: StreamPlan, schema: WriterSchema, bodies: list[bytes], seed: int) -> int:
    """Alone, together, in other batches. How many values whole columns have read."""
    rng = random.Random(seed)
    bodies = [*bodies, *(_changed(rng, body) for body in bodies for _ in range(3))]
    head = b"\x00" if schema.kind == "PROTOBUF" else b""
    each = replace(each, writers=Given(schema))
    try:
        decoder = decoder_of(each.format, each.rules, schema, (0,) if head else ())
    except Rejected:
        return 0
    if not bodies:
        return 0
    expected = [by_the_library(each, schema, body) for body in bodies]
    values: list[bytes | None] = [framed(7, head + body) for body in bodies]
    assert verdicts(each, values, few_rows=0) == expected
    for value, verdict in zip(values, expected, strict=True):
        assert verdicts(each, [value], few_rows=0) == [verdict]
    order = rng.sample(range(len(values)), len(values))
    shuffled = verdicts(each, [values[i] for i in order], few_rows=rng.choice([0, 3, 99]))
    assert shuffled == [expected[i] for i in order]
    alike, _ = decoder.columns(pa.array(bodies, pa.large_binary()))
    return sum(len(some.rows) for some in alike)


def _changed(rng: random.Random, body: bytes) -> bytes:
    for _ in range(rng.choice([0, 1, 1, 2])):
        at = rng.randint(0, len(body))
        piece = rng.choice(PIECES)
        body = body[:at] + piece + body[at + rng.choice([0, 1, 1, len(piece), 9]) :]
    return body


PIECES = (
    *(b"", b"\x00", b"\x01", b"\x02", b"\x03", b"\x7f", b"\x80", b"\xff", b"\xc3\xa9", b"\xc3"),
    *(b"\xff" * 9 + b"\x01", b"\xff" * 9 + b"\x7f", b"\x80" * 9 + b"\x02", b"\x80\x00"),
    *(b"\x08", b"\x0a", b"\x0b", b"\x0c", b"\x0d", b"\x10", b"\x12", b"\x1a", b"\xf8\x07\x01"),
)

# --------------------------------------------------------------------------------------- Avro

whole = st.one_of(st.integers(-3, 300), st.sampled_from([2**31 - 1, -(2**31)]))
wide = st.one_of(whole, st.integers(-(2**63), 2**63 - 1))
texts = st.text("abé\U0001f600\x00", max_size=6)
numbers = st.floats(width=32)
spans = st.one_of(
    st.just(1_767_600_000_000_000), st.integers(-(10**15), 10**15), st.integers(-(2**63), 2**63 - 1)
)
PLAIN: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "int": whole,
    "long": wide,
    "float": numbers,
    "double": st.floats(),
    "boolean": st.booleans(),
    "string": texts,
    "bytes": st.binary(max_size=5),
}


def _logical(base: str, logical: str, **more: Any) -> dict[str, Any]:
    return {"type": base, "logicalType": logical, **more}


@st.composite
def avro_types(draw: st.DrawFn, number: int, deep: int = 0) -> tuple[Any, st.SearchStrategy[Any]]:
    """A type, and raw values of it."""
    kinds = ["plain"] * 5 + ["union", "union", "logical", "logical", "enum", "fixed", "text"]
    kind = draw(st.sampled_from(kinds + ([] if deep else ["record", "array", "map", "lists"])))
    if kind == "plain":
        name = draw(st.sampled_from(sorted(PLAIN)))
        return name, PLAIN[name]
    if kind == "text":
        return "string", st.sampled_from(["2026-01-05T14:30:00Z", "2026-01-05", "12", ""])
    if kind == "enum":
        symbols = ["A", "B", "C"]
        return {"type": "enum", "name": f"E{number}", "symbols": symbols}, st.sampled_from(symbols)
    if kind == "fixed":
        size = draw(st.sampled_from([0, 3, 12]))
        fixed = {"type": "fixed", "name": f"F{number}", "size": size}
        return fixed, st.binary(min_size=size, max_size=size)
    if kind == "logical":
        which = draw(
            st.sampled_from(["millis", "micros", "nanos", "local", "date", "decimal", "id"])
        )
        match which:
            case "local":
                return _logical("long", "local-timestamp-micros"), spans
            case "date":
                return _logical("int", "date"), whole
            case "id":
                return _logical("string", "uuid"), st.uuids().map(str)
            case "decimal":
                scale = draw(st.sampled_from([0, 2, 2, 3]))
                digits = draw(st.sampled_from([4, 12, 30]))
                made = _logical("bytes", "decimal", precision=max(digits, scale), scale=scale)
                return made, st.one_of(st.binary(max_size=3), st.binary(max_size=18))
        return _logical("long", f"timestamp-{which}"), spans
    if kind == "union":
        inner, values = draw(avro_types(number, 1).filter(lambda t: not isinstance(t[0], list)))
        if inner == "null":
            return ["null", "string"], st.one_of(st.none(), texts)
        branches = draw(st.sampled_from([["null", inner], [inner, "null"], [inner]]))
        return branches, st.one_of(st.none(), values) if len(branches) > 1 else values
    inner, values = draw(avro_types(number + 100, 1))
    if kind in ("array", "map", "lists"):
        array = {"type": "array", "items": inner}, st.lists(values, max_size=3)
        if kind == "map":
            return {"type": "map", "values": inner}, st.dictionaries(texts, values, max_size=2)
        if kind == "array":
            return array
        listed = record(("a", array[0]), ("s", "string"), name=f"L{number}")
        return listed, st.fixed_dictionaries({"a": array[1], "s": texts})
    made = record(("a", inner), ("b", "long"), name=f"N{number}")
    return made, st.fixed_dictionaries({"a": values, "b": wide})


@st.composite
def avro_batches(draw: st.DrawFn) -> tuple[Any, list[bytes]]:
    """A schema and bodies by it: raw values are written by the schema without logical types."""
    names = draw(st.lists(st.sampled_from([*NAMES, "u", "v"]), unique=True, max_size=6))
    fields = [("symbol", "string"), *((name, None) for name in names if name != "symbol")]
    drawn: list[tuple[str, Any, Any]] = []
    for number, (name, fixed) in enumerate(fields):
        fitting = draw(st.integers(0, 3)) if name in FITTING else 0
        type_, values = (
            (fixed, texts) if fixed else FITTING[name] if fitting else draw(avro_types(number))
        )
        drawn.append((name, type_, values))
    schema = record(*((name, type_) for name, type_, _ in drawn))
    plainly = _bare(schema)
    rows = draw(
        st.lists(st.fixed_dictionaries({name: values for name, _, values in drawn}), max_size=4)
    )
    return schema, [avro(plainly, row) for row in rows]


FITTING: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "t": (["null", _logical("long", "timestamp-micros")], st.one_of(st.none(), spans)),
    "i": (["null", "long"], st.one_of(st.none(), wide)),
    "d": ("double", st.floats()),
    "b": ("boolean", st.booleans()),
    "m": (_logical("bytes", "decimal", precision=12, scale=2), st.binary(max_size=6)),
    "n": (["long", "null"], st.one_of(st.none(), wide)),
}


def _bare(schema: Any) -> Any:
    """The schema without logical types."""
    if isinstance(schema, list):
        return [_bare(each) for each in schema]
    if isinstance(schema, dict):
        return {
            k: _bare(v) for k, v in schema.items() if k not in ("logicalType", "scale", "precision")
        }
    return schema


@lanes(30, 200)
@pytest.mark.parametrize("fields", [EVERY, JSON_TOO], ids=["columns", "json"])
def test_avro_columns_and_fastavro_agree(fields: str, examples: int) -> None:
    each = plan(f'format = "avro"\n{fields}')
    read = 0

    @settings(max_examples=examples, deadline=None)
    @given(avro_batches(), st.integers(0, 99), st.sampled_from([0, 2, avro_columns.FEW_LISTS]))
    @example((record(("symbol", "string"), ("i", ["null", "long"])), [b"\x02A\x00"]), 0, 0)
    def agreement(drawn: tuple[Any, list[bytes]], seed: int, few_lists: int) -> None:
        nonlocal read
        schema, bodies = drawn
        with patch.object(avro_columns, "FEW_LISTS", few_lists):
            read += check(each, written(7, schema), bodies, seed)

    agreement()
    assert read > 0


READERS = [
    record(("symbol", "string")),
    record(("symbol", "string"), ("i", "double"), ("d", "double", 1.5)),
    record(("symbol", "string"), ("i", ["null", "long"], None), ("new", "string", "x")),
    record(("symbol", "string"), ("i", "long", 5), ("b", "boolean", True), ("x", "long", 0)),
    record(("symbol", "string"), ("i", "long"), ("t", _logical("long", "timestamp-micros"), 0)),
    record(("symbol", "string"), ("i", ["null", "double", "string"], None)),
    record(("symbol", "string"), ("other", "long")),
    record(("symbol", "string"), ("i", "long", 0), name="Other"),
    {**record(("symbol", "string")), "aliases": ["S"]},
    {
        **record(("i", "long", 0)),
        "fields": [{"name": "symbol", "type": "string", "aliases": ["gone"], "default": "none"}],
    },
]
WRITERS = [
    (record(("symbol", "string"), ("i", "int")), {"symbol": "A", "i": 5}),
    (record(("i", "long"), ("symbol", "string")), {"symbol": "A", "i": 2**40}),
    (record(("i", ["null", "int"]), ("symbol", "string")), {"symbol": "A", "i": None}),
    (record(("i", ["null", "int"]), ("symbol", "string")), {"symbol": "A", "i": -5}),
    (record(("gone", "double"), ("symbol", "string")), {"symbol": "A", "gone": 2.5}),
    (record(("symbol", "string"), ("i", "float")), {"symbol": "A", "i": 0.1}),
    (record(("symbol", "string"), ("i", "string")), {"symbol": "A", "i": "x"}),
    (record(("symbol", "bytes"), ("i", "int")), {"symbol": b"A", "i": 5}),
]


@pytest.mark.parametrize("reader", range(len(READERS)))
def test_resolution_agrees(reader: int, tmp_path: Any) -> None:
    (tmp_path / "r.avsc").write_text(json.dumps(READERS[reader]))
    each = plan(f'format = "avro"\nreader = "r.avsc"\n{EVERY}', tmp_path)
    for schema, value in WRITERS:
        for seed in range(5):
            check(each, written(7, schema), [avro(schema, value)] * 2, seed)


# ----------------------------------------------------------------------------------- Protobuf

SCALARS = (
    *("double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string"),
    *("bytes", "uint32", "sfixed32", "sfixed64", "sint32", "sint64"),
)
FITS: dict[str, tuple[str, ...]] = {
    "symbol": ("string", "optional string"),
    "t": ("google.protobuf.Timestamp", "string"),
    "i": (*SCALARS, "optional int64", "google.protobuf.Int64Value"),
    "d": ("double", "float", "optional double", "sint32", "google.protobuf.DoubleValue"),
    "b": ("bool", "optional bool", "google.protobuf.BoolValue"),
    "m": ("confluent.type.Decimal", "string", "optional string"),
    "n": ("uint64", "sint64", "confluent.type.Decimal"),
    "x": ("repeated int64", "string", "google.protobuf.Struct"),
    "u": (*SCALARS, "repeated string", "google.protobuf.Timestamp"),
}
IMPORTS = [
    *(f"google/protobuf/{name}.proto" for name in ("timestamp", "wrappers", "struct")),
    "confluent/type/decimal.proto",
]


@st.composite
def messages(draw: st.DrawFn) -> tuple[Any, list[bytes]]:
    names = ["symbol", *draw(st.lists(st.sampled_from(sorted(FITS)[:-2]), unique=True))]
    names = draw(st.permutations([*dict.fromkeys(names), "u"]))
    order = draw(st.permutations(range(1, len(names) + 1)))
    syntax = draw(st.sampled_from(["proto3", "proto3", "proto2"]))
    fields = [
        (name, number, draw(st.sampled_from(FITS[name])))
        for name, number in zip(names, order, strict=True)
    ]
    file = proto(*fields, syntax=syntax, imports=IMPORTS)
    found = protobuf_schemas.pool_of([file]).FindMessageTypeByName("desk.M")
    made = message_factory.GetMessageClass(found)
    bodies = []
    for _ in range(draw(st.integers(0, 4))):
        message = made()
        for name, _, type_ in fields:
            if draw(st.integers(0, 5)):
                _fill(draw, message, name, type_.removeprefix("optional "))
        body = message.SerializePartialToString()
        if draw(st.integers(0, 3)) == 0:  # the symbol comes again, before the rest or behind it
            again = _text_field(order[names.index("symbol")], draw(st.sampled_from(ODD_TEXTS)))
            body = again + body if draw(st.booleans()) else body + again
        bodies.append(body)
    return file, bodies


ODD_TEXTS = (b"B", b"\xff", "é".encode(), b"\xc3")


def _text_field(number: int, text: bytes) -> bytes:
    """A short text as Protobuf writes it, of a field's number below 16."""
    return bytes([number << 3 | 2, len(text)]) + text


def _fill(draw: st.DrawFn, message: Any, name: str, type_: str) -> None:
    inner = getattr(message, name)
    if type_ == "google.protobuf.Timestamp":
        inner.seconds = draw(st.one_of(st.integers(-(10**9), 2 * 10**9), wide))
        inner.nanos = draw(st.sampled_from([0, 999, 1_999_999, 999_999_999, -1, 10**9]))
    elif type_ == "confluent.type.Decimal":
        inner.value = draw(st.one_of(st.binary(max_size=4), st.binary(max_size=18)))
        inner.scale = draw(st.sampled_from([2, 2, 0, 3, -1, 200]))
    elif type_ == "google.protobuf.Struct":
        inner["a"] = draw(texts)
    elif type_.startswith("google.protobuf."):
        inner.value = draw(
            wide if "Int" in type_ else numbers if "Double" in type_ else st.booleans()
        )
    elif type_.startswith("repeated "):
        inner.extend(draw(st.lists(texts if "string" in type_ else wide, max_size=2)))
    elif type_ in ("double", "float"):
        setattr(message, name, draw(numbers))
    elif type_ == "bool":
        setattr(message, name, draw(st.booleans()))
    elif type_ in ("string", "bytes"):
        words = st.sampled_from(["A", "2026-01-05T14:30:00Z", "1.50", "é"])
        text = draw(st.one_of(words, texts))
        setattr(message, name, text if type_ == "string" else text.encode())
    else:
        low, high = (0, 2**32) if type_[0] in "uf" else (-(2**31), 2**31)
        if "64" in type_:
            low, high = (0, 2**64) if type_[0] in "uf" else (-(2**63), 2**63)
        edges = st.sampled_from([low, high - 1, max(low, 0)])
        setattr(
            message, name, draw(st.one_of(st.integers(0, 300), edges, st.integers(low, high - 1)))
        )


@lanes(30, 200)
@pytest.mark.parametrize("fields", [EVERY, JSON_TOO], ids=["columns", "json"])
def test_protobuf_columns_and_the_library_agree(fields: str, examples: int) -> None:
    each = plan(f'format = "protobuf"\n{fields}')
    read = 0

    @settings(max_examples=examples, deadline=None)
    @given(messages(), st.integers(0, 99), st.sampled_from([0, 2, protobuf_columns.FEW_MESSAGES]))
    def agreement(drawn: tuple[Any, list[bytes]], seed: int, few_messages: int) -> None:
        nonlocal read
        file, bodies = drawn
        with patch.object(protobuf_columns, "FEW_MESSAGES", few_messages):
            read += check(each, written(7, serialized(file), "PROTOBUF"), bodies, seed)

    agreement()
    assert read > 0


# ------------------------------------------------------------------------------------- corners


def _read(each: StreamPlan, schema: WriterSchema, *bodies: bytes) -> list[Verdict]:
    """What becomes of bodies, by whole columns; checked against the library."""
    check(each, schema, list(bodies), 0)
    head = b"\x00" if schema.kind == "PROTOBUF" else b""
    each = replace(each, writers=Given(schema))
    return verdicts(each, [framed(7, head + body) for body in bodies], few_rows=0)


def test_corners_of_avro() -> None:
    fields = 'fields = { symbol = "string", t = "timestamp", m = "decimal(12,2)" }'
    each = plan(f'format = "avro"\n{fields}')
    schema = record(
        ("symbol", "string"),
        ("t", _logical("long", "timestamp-nanos")),
        ("m", _logical("bytes", "decimal", precision=4, scale=2)),
    )
    found = _read(
        each,
        written(7, schema),
        # Nanoseconds before 1970 are cut off downwards, and a decimal of more digits than its
        # schema has is not rounded, as fastavro would.
        avro(_bare(schema), {"symbol": "A", "t": -1, "m": (1234567).to_bytes(3, "big")}),
        avro(_bare(schema), {"symbol": "A", "t": 1999, "m": b""}),
        avro(_bare(schema), {"symbol": "A", "t": 0, "m": bytes(20) + b"\x01"}),
        avro(_bare(schema), {"symbol": "A", "t": 0, "m": b"\x7f" * 6}),
        avro(_bare(schema), {"symbol": "A", "t": 0, "m": bytes(10**6)}),
    )
    assert "999999" in found[0][2]
    assert found[0][3] == "Decimal('12345.67')"
    assert "microsecond=1" in found[1][2] or ", 1, tzinfo" in found[1][2]
    assert found[1][3] == "Decimal('0.00')"
    assert found[2][3] == "Decimal('0.01')"
    assert found[3] == ("rejected", "m: does not fit decimal(12,2)")
    assert found[4] == ("rejected", "m: not a number or a string of digits")


SYMBOL = (("symbol", "string"),)


def test_lists_that_nobody_asks_for() -> None:
    each = plan('format = "avro"\nfields = { symbol = "string" }')
    schema = record(
        ("names", {"type": "array", "items": "string"}),
        ("sizes", {"type": "map", "values": "double"}),
        ("symbol", "string"),
    )
    some = {"names": ["a", "é"], "sizes": {"x": 1.0, "y": 2.0}, "symbol": "A"}
    found = _read(
        each,
        written(7, schema),
        avro(schema, some),
        avro(schema, some | {"names": ["n"] * 70}),
        b"\x02\x02\xff\x00\x00\x02A",  # a text in a list is read, too
        b"\x02\x02n\x02\x02n\x02\x02n\x02\x02n\x00\x00\x02A",  # four blocks
        b"\x01\x04\x02n\x00\x00\x02A",  # a block with its size
        b"\x00\x02\x02\xc3" + bytes(8) + b"\x00\x02A",  # a map's name
        b"\x00\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00\x02A",  # items without end
    )
    assert [row[0] for row in found] == ["row", "row", "rejected", "row", "row", *["rejected"] * 2]
    decoder = decoder_of(each.format, each.rules, written(7, schema))
    plain = avro(schema, some | {"names": ["a", "b"]})
    for many, together in ((avro_columns.FEW_LISTS, True), (avro_columns.FEW_LISTS - 1, False)):
        all_ = list(range(many))
        read, left = decoder.columns(pa.array([plain] * many, pa.large_binary()))
        assert [each.rows.tolist() for each in read] == ([all_] if together else [])
        assert left.tolist() == ([] if together else all_)
    times = record(("t", {"type": "array", "items": _logical("long", "timestamp-micros")}), *SYMBOL)
    late = avro(_bare(times), {"t": [0, 2**60], "symbol": "A"})
    assert _read(each, written(7, times), late)[0][0] == "rejected"


def test_corners_of_protobuf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf_columns, "FEW_MESSAGES", 0)  # each has other fields
    fields = 'fields = { symbol = "string", t = "timestamp?", i = "int?" }'
    each = plan(f'format = "protobuf"\n{fields}')
    file = proto(
        ("symbol", 1, "string"),
        ("t", 2, "google.protobuf.Timestamp"),
        ("i", 3, "optional int32"),
        imports=IMPORTS,
    )
    a = b"\x0a\x01A"
    found = _read(
        each,
        written(7, serialized(file), "PROTOBUF"),
        a + b"\x12\x02\x08\x05" + b"\x12\x03\x10\xe8\x07",  # two parts of one time: merged
        a + b"\x0a\x01B",  # the last one counts
        b"\x8a\x00\x01A",  # a tag that is not written the shortest way
        b"\x0a\x81\x00A",  # a length
        b"\x8a\x80\x80\x80\x80\x00\x01A",  # longer than any that is needed
        b"\x0a\x81\x80\x80\x80\x80\x00A",
        a + b"\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # -1
        a + b"\x18\xff\xff\xff\xff\x1f",  # 37 bits of an int32
        a + b"\x1d\x01\x00\x00\x00",  # another wire type
        a + b"\x23\x24",  # an empty group
        a + b"\xf8\xff\xff\xff\x0f\x01",  # the greatest number
        a + b"\x00\x01",  # the number 0
        a + b"\x18\x07" * 200,
        b"\x0a\x01\xff",
    )
    assert "1970, 1, 1, 0, 0, 5, 1, " in found[0][2]
    assert found[1][1] == "'B'"
    assert [found[n][3] for n in (6, 7, 8, 12)] == [
        "-1",
        "-1",
        "None",
        "7",
    ]
    assert [row[0] for row in (found[11], found[13])] == ["rejected", "rejected"]


@pytest.mark.filterwarnings("error")
def test_every_nan_is_read_without_a_warning() -> None:
    fields = 'fields = { symbol = "string", d = "double" }'
    signaling = b"\x01\x00\x80\x7f"
    for kind, schema, body in (
        ("avro", written(7, record(*SYMBOL, ("d", "float"))), b"\x02A" + signaling),
        (
            "protobuf",
            written(7, serialized(proto(("symbol", 1, "string"), ("d", 2, "float"))), "PROTOBUF"),
            b"\x0a\x01A\x15" + signaling,
        ),
    ):
        each = plan(f'format = "{kind}"\n{fields}')
        assert _read(each, schema, body) == [("rejected", "d: a finite number is needed")]


# ----------------------------------------------------------------------- what comes of a value


NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


def test_the_formats_give_one_row() -> None:
    """The same facts, written in each format, are the same row."""
    rows = []
    each = plan(EVERY)
    text = (
        b'{"symbol":"A\xc3\xa9","t":"2026-01-05T12:00:00Z","i":-5,"d":0.25,"b":true,'
        b'"m":"-1.50","n":"12345678901234567890"}'
    )
    rows.append(decode(each, pa.array([text])).rows)
    facts = {"symbol": "Aé", "t": NOON, "i": -5, "d": 0.25, "b": True, "m": Decimal("-1.50")}
    schema = record(
        ("symbol", "string"),
        ("t", _logical("long", "timestamp-micros")),
        ("i", "int"),
        ("d", "float"),
        ("b", "boolean"),
        ("m", _logical("bytes", "decimal", precision=12, scale=2)),
        ("n", _logical("bytes", "decimal", precision=20, scale=0)),
    )
    body = avro(schema, facts | {"n": Decimal(12345678901234567890)})
    each = plan(f'format = "avro"\n{EVERY}')
    each = replace(each, writers=Given(written(7, schema)))
    rows += [decode(each, pa.array([framed(7, body)]), few_rows=few).rows for few in (0, 9)]
    file = proto(
        ("symbol", 1, "string"),
        ("t", 2, "google.protobuf.Timestamp"),
        ("i", 3, "sint32"),
        ("d", 4, "float"),
        ("b", 5, "bool"),
        ("m", 6, "confluent.type.Decimal"),
        ("n", 7, "uint64"),
        imports=IMPORTS,
    )
    found = protobuf_schemas.pool_of([file]).FindMessageTypeByName("desk.M")
    message = message_factory.GetMessageClass(found)(
        symbol="Aé", i=-5, d=0.25, b=True, n=12345678901234567890
    )
    message.t.FromDatetime(NOON.replace(tzinfo=None))
    message.m.value, message.m.scale = (-150).to_bytes(2, "big", signed=True), 2
    each = plan(f'format = "protobuf"\n{EVERY}')
    each = replace(each, writers=Given(written(7, serialized(file), "PROTOBUF")))
    value = framed(7, b"\x00" + message.SerializeToString())
    rows += [decode(each, pa.array([value]), few_rows=few).rows for few in (0, 9)]
    assert len(rows) == 5
    assert all(each.equals(rows[0]) for each in rows)
