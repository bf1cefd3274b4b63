"""Values beside JSON: whose schema they are of, what files say, what goes to quarantine and what
does not."""

from __future__ import annotations

import base64
import json
import pickle
import re
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import any_pb2, descriptor_pb2, message_factory

from spillway.decode import compile_streams, decode, tree_spec
from spillway.decode.chunks import Chunk
from spillway.decode.formats import avro as avro_formats
from spillway.decode.formats import avro_columns, protobuf_columns, protobuf_schemas
from spillway.decode.formats.decoder import decoder_of, own_decoders
from spillway.decode.formats.framing import indexes
from spillway.decode.formats.protobuf_schemas import ANY, pool_of
from spillway.decode.reasons import OTHER, kind_of
from spillway.doctor.schemas import schemas as schema_checks
from spillway.engine.groups import GroupMap
from spillway.engine.wire.blocks import decode_counts, from_batch
from spillway.mended import Mended, contract_problems
from spillway.produce.encode import NotWritten, encodings, protobuf_file, protobuf_text
from spillway.registry import SchemaTrouble, knowing, with_schemas
from spillway.sealed_input.decoding import decoded as verified
from spillway.storage import folder
from spillway.stream.decoding import DecodeTask, decode_chunks
from spillway.stream.failures import cause_of, first_lines
from spillway_schemas.formats import WriterSchema
from spillway_schemas.journal import Prefix
from spillway_schemas.query import QueryError
from spillway_schemas.settings import RegistrySettings, SettingsError, load_settings, values
from tests.formats import (
    Given,
    avro,
    framed,
    installed_decoder,
    plan,
    proto,
    query,
    record,
    serialized,
    written,
)
from tests.registry import StandIn

TRADE = (
    'fields = { symbol = "string", ts = "timestamp", price = "decimal(10,2)?", note = "string?" }'
)
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
CENTS = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
V1 = record(("symbol", "string"), ("ts", MICROS), ("venue", "string"), name="Trade")
V2 = record(("symbol", "string"), ("ts", MICROS), ("price", ["null", CENTS], None), name="Trade")
SYMBOL_ALONE = plan('format = "protobuf"\nfields = { symbol = "string" }')
PROTO_SYMBOL = written(7, serialized(proto(("symbol", 1, "string"))), "PROTOBUF")


@pytest.fixture
def registry() -> Iterator[StandIn]:
    with StandIn() as found:
        yield found


def said(decoded: Any, n: int) -> list[Any]:
    """What became of each value: its row, or the reason."""
    found: dict[int, Any] = dict(zip(decoded.rejected.tolist(), decoded.reasons, strict=True))
    rows = decoded.rows.to_pylist()
    found |= dict(zip(decoded.kept.tolist(), (tuple(row.values()) for row in rows), strict=True))
    return [found[at] for at in range(n)]


def decoded(each: Any, given: Sequence[bytes | None], **more: Any) -> list[Any]:
    return said(decode(each, pa.array(given, pa.binary()), **more), len(given))


# ------------------------------------------------------------------------------ ids of schemas


@pytest.mark.parametrize("few_rows", [0, 99])
def test_a_value_is_read_by_the_schema_that_wrote_it(few_rows: int) -> None:
    each = plan(f'format = "avro"\n{TRADE}')
    each = replace(each, writers=Given(written(1, V1), written(2, V2)))
    old = avro(V1, {"symbol": "A", "ts": NOON, "venue": "X"})
    new = avro(V2, {"symbol": "B", "ts": NOON, "price": Decimal("1.50")})
    values = [framed(2, new), framed(1, old), framed(2, new), framed(1, old)]
    assert (
        decoded(each, values, few_rows=few_rows)
        == [
            ("B", NOON, Decimal("1.50"), None),
            ("A", NOON, None, None),
        ]
        * 2
    )


@pytest.mark.parametrize("few_rows", [0, 99])
def test_what_has_no_readable_schema_is_quarantined_with_the_reason(few_rows: int) -> None:
    each = plan(f'format = "avro"\n{TRADE}')
    text = json.dumps(V1)
    self_ = record(("symbol", "string"), ("next", ["null", "R"]))
    endless = record(("symbol", "string"), ("x", {"type": "array", "items": "null"}))
    each = replace(
        each,
        writers=Given(
            written(1, V1),
            written(3, text, "JSON"),
            written(4, '{"type":"recor"}'),
            written(5, '"string"'),
            written(6, self_),
            written(7, endless),
            written(8, record(("symbol", "string"), ("ts", "long"))),
        ),
    )
    body = avro(V1, {"symbol": "A", "ts": NOON, "venue": "X"})
    values = [
        *(framed(n, body) for n in (1, 2, 3, 4, 5, 6)),
        framed(7, b"\x02A\x02\x00"),  # few, so that it fails where it is read
        *(
            None,
            b"",
            b"\x00\x00\x00\x00",
            b'{"symbol":"A"}',
            framed(1, b""),
            framed(1, body + b"!"),
        ),
        framed(8, avro(record(("s", "string"), ("t", "long")), {"s": "A", "t": 5})),
        framed(1, b"\x04\xff\xfe" + body[2:]),
        framed(1, body[:-1]),
    ]
    found = decoded(each, values, few_rows=few_rows)
    assert found[0] == ("A", NOON, None, None)
    assert found[1:] == [
        "schema 2: the registry has no such schema",
        "schema 3 cannot be read: it is JSON, not AVRO",
        "schema 4 cannot be read: no Avro schema: UnknownType({'type': 'recor'})",
        "schema 5 cannot be read: a record is needed",
        "schema 6 cannot be read: R holds itself",
        "schema 7 cannot be read: it has an array of values without bytes",
        "tombstone: the record has no value",
        "empty value",
        "no schema id: 4 bytes are too few",
        "no schema id: the first byte is 7b, not 00",
        "not Avro by schema 1: it ends too early",
        "not Avro by schema 1: 1 bytes left over",
        "ts: not a time with an offset such as 2026-01-05T14:30:00Z",
        "not Avro by schema 1: a text is not UTF-8",
        "not Avro by schema 1: it ends too early",
    ]
    assert OTHER not in map(kind_of, found[1:])


def test_ids_are_unsigned_and_whole() -> None:
    each = plan('format = "avro"\nfields = { symbol = "string" }')
    schema = record(("symbol", "string"))
    each = replace(each, writers=Given(written(2**32 - 1, schema), written(0x01020304, schema)))
    body = avro(schema, {"symbol": "A"})
    values = [framed(2**32 - 1, body), framed(0x01020304, body), framed(0x04030201, body)]
    assert [str(each)[:7] for each in decoded(each, values)] == ["('A',)", "('A',)", "schema "]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_a_slice_of_values_is_read_as_it_is(kind: Any) -> None:
    each = plan('format = "avro"\nfields = { symbol = "string" }')
    schema = record(("symbol", "string"))
    each = replace(each, writers=Given(written(1, schema)))
    values = pa.array([framed(1, avro(schema, {"symbol": s})) for s in "ABCDEF"], kind)
    for few_rows in (0, 99):
        found = decode(each, values.slice(2, 3), few_rows=few_rows)
        assert said(found, 3) == [("C",), ("D",), ("E",)]


def test_registered_schemas_refer_to_others(registry: StandIn) -> None:
    money = json.dumps(
        {"type": "record", "name": "Money", "fields": [{"name": "c", "type": "long"}]}
    )
    registry.register("money", money)
    refers = [{"name": "Money", "subject": "money", "version": 1}]
    top = {"type": "record", "name": "T", "fields": [{"name": "symbol", "type": "string"}]}
    top["fields"].append({"name": "m", "type": "Money"})  # type: ignore[attr-defined]
    number = registry.register("t-value", json.dumps(top), references=refers)
    each = plan('format = "avro"\nfields = { symbol = "string", m = "json?" }')
    [each] = with_schemas([each], RegistrySettings(url=registry.url, wait_s=0.0), None)
    assert decoded(each, [framed(number, b"\x02A\x0a")]) == [("A", '{"c":5}')]


# ------------------------------------------------------------------- evolution, reader's schema


def test_a_reader_s_schema_gives_defaults_and_promotes(tmp_path: Path) -> None:
    """By the registry's rules: a field added with a default, one removed, a number promoted, a name
    found by an alias."""
    reader = record(
        ("symbol", "string"), ("size", "long"), ("ratio", "double"), ("side", "string", "buy")
    )
    reader["fields"][1]["aliases"] = ["quantity"]
    (tmp_path / "r.avsc").write_text(json.dumps(reader))
    fields = 'fields = { symbol = "string", size = "int", ratio = "double", side = "string" }'
    each = plan(f'format = "avro"\nreader = "r.avsc"\n{fields}', tmp_path)
    first = record(("symbol", "string"), ("quantity", "int"), ("ratio", "float"), ("old", "bytes"))
    second = record(("side", "string"), ("symbol", "string"), ("size", "int"), ("ratio", "int"))
    third = record(("symbol", "string"), ("size", "string"), ("ratio", "int"))
    each = replace(each, writers=Given(written(1, first), written(2, second), written(3, third)))
    values = [
        framed(1, avro(first, {"symbol": "A", "quantity": 5, "ratio": 0.5, "old": b"x"})),
        framed(2, avro(second, {"side": "sell", "symbol": "B", "size": 6, "ratio": 2})),
        framed(3, avro(third, {"symbol": "C", "size": "many", "ratio": 2})),
    ]
    for few_rows in (0, 99):
        assert decoded(each, values, few_rows=few_rows) == [
            ("A", 5, 0.5, "buy"),
            ("B", 6, 2.0, "sell"),
            "schema 3 cannot be resolved to the reader's schema",
        ]


def test_a_file_is_the_schema_of_all_values(tmp_path: Path) -> None:
    (tmp_path / "w.avsc").write_text(json.dumps(V2))
    each = plan(f'format = "avro"\nwriter = "w.avsc"\n{TRADE}', tmp_path)
    body = avro(V2, {"symbol": "B", "ts": NOON, "price": None})
    assert not each.format.has_ids
    found = decoded(each, [body, b"", None, body[1:]], few_rows=0)
    assert found[:3] == [
        ("B", NOON, None, None), "empty value", "tombstone: the record has no value",
    ]  # fmt: skip
    assert found[3].startswith("not Avro by w.avsc: ")


PROTO = """
syntax = "proto3";
package desk;
import "google/protobuf/timestamp.proto";
message Trade {
  string symbol = 1;
  google.protobuf.Timestamp ts = 2;
  optional string price = 3;
  enum Note { NONE = 0; BLOCK = 1; }
  Note note = 4;
}
message Other { message Inner { string symbol = 1; } }
"""


def trade_class(file: Path) -> Any:
    each = plan(
        f'format = "protobuf"\nwriter = "{file.name}"\nmessage = "desk.Trade"\n{TRADE}', file.parent
    )
    assert each.format.writer is not None
    found = descriptor_pb2.FileDescriptorSet.FromString(each.format.writer.data)
    pool = protobuf_schemas.pool_of(found.file)
    return each, message_factory.GetMessageClass(pool.FindMessageTypeByName("desk.Trade")), found


def test_a_proto_file_and_a_descriptor_set_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "t.proto").write_text(PROTO)
    each, made, found = trade_class(tmp_path / "t.proto")
    (tmp_path / "t.desc").write_bytes(found.SerializeToString())
    message = made(symbol="A", price="1.50", note=1)
    message.ts.FromDatetime(NOON.replace(tzinfo=None))
    row = ("A", NOON, Decimal("1.50"), "BLOCK")
    values = [message.SerializeToString(), b"", made(symbol="A", note=7).SerializeToString()]
    again = trade_class(tmp_path / "t.desc")[0]
    for one in (each, again):
        for few_rows in (0, 99):
            assert decoded(one, values, few_rows=few_rows) == [
                row, "ts: missing", "ts: missing (and 1 more)",
            ]  # fmt: skip


def test_protobuf_finds_its_message_by_the_indexes(tmp_path: Path) -> None:
    (tmp_path / "t.proto").write_text(PROTO)
    file = trade_class(tmp_path / "t.proto")[2].file[-1]
    each = plan('format = "protobuf"\nfields = { symbol = "string" }')
    each = replace(each, writers=Given(written(9, serialized(file), "PROTOBUF")))
    values = [
        framed(9, head + b"\x0a\x01A")
        for head in (
            b"\x00",
            b"\x02\x00",
            b"\x04\x02\x00",
            b"\x02\x02",
            b"\x02\x08",
            b"\x02\x01",
            b"\x04\x02\x01",
            b"\x01",
            b"\x02",
        )
    ]
    for few_rows in (0, 99):
        assert decoded(each, values, few_rows=few_rows) == [
            *[("A",)] * 3,
            "symbol: missing",
            "schema 9 has no message [4]",
            "schema 9 has no message [-1]",
            "schema 9 has no message [1, -1]",
            "no schema id: -1 message indexes",
            "schema 9 has no message [5]",
        ]


LISTS = record(
    ("symbol", "string"),
    ("u", {"type": "array", "items": "int"}),
    *((name, "long") for name in ("i", "n", "v", "w")),
)


@pytest.mark.parametrize(
    ("lists", "wanted"),
    [
        pytest.param(b"\x02\x06" * 4 + b"\x00", ("A", 1, 2), id="of more blocks"),
        pytest.param(
            b"\x02\x06" * 3,  # what is written as fields is a fourth block, and its end
            "not Avro by schema 7: IndexError('string index out of range')",
            id="of more blocks than fields are behind",
        ),
        pytest.param(b"\x82\x01" + b"\x06" * 65 + b"\x00", ("A", 1, 2), id="of more items"),
    ],
)
def test_lists_of_more_than_is_gone_over_together_are_left(lists: bytes, wanted: Any) -> None:
    each = replace(
        plan('format = "avro"\nfields = { symbol = "string", i = "int", n = "int" }'),
        writers=Given(written(7, LISTS)),
    )
    bodies = [b"\x02A" + lists + b"\x02\x04\x00\x06"] * avro_columns.FEW_LISTS
    decoder = decoder_of(each.format, each.rules, written(7, LISTS))
    read, left = decoder.columns(pa.array(bodies, pa.large_binary()))
    assert (read, len(left)) == ([], len(bodies))
    assert decoded(each, [framed(7, body) for body in bodies]) == [wanted] * len(bodies)


@pytest.mark.parametrize("n", [1, 65, 200])
def test_a_text_that_comes_twice_is_judged_alike_in_every_batch(n: int) -> None:
    """The last one counts, and each of them must be UTF-8."""
    each = replace(SYMBOL_ALONE, writers=Given(PROTO_SYMBOL))
    odd, twice, once = b"\x0a\x01\xff\x0a\x01A", b"\x0a\x01B\x0a\x01A", b"\x0a\x01C"
    for body, wanted in ((odd, "not Protobuf by schema 7: "), (twice, "('A',)")):
        first, *rest = decoded(each, [framed(7, b"\x00" + body), *[framed(7, b"\x00" + once)] * n])
        assert str(first).startswith(wanted)
        assert rest == [("C",)] * n


def test_lists_in_lists_are_no_steps_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: one value's items are gone over with numpy, a step for each."""
    steps = 0
    real = avro_columns._pass

    def counted(*given: Any) -> Any:
        nonlocal steps
        steps += 1
        return real(*given)

    monkeypatch.setattr(avro_columns, "_pass", counted)
    lists: Any = "int"
    items: Any = 1
    for _ in range(3):
        lists, items = {"type": "array", "items": lists}, [items] * 16
    schema = record(("symbol", "string"), ("z", lists))
    short = [avro(schema, {"symbol": f"A{n}", "z": [[[n]]]}) for n in range(199)]
    deep = avro(schema, {"symbol": "DEEP", "z": items})
    each = replace(
        plan('format = "avro"\nfields = { symbol = "string" }'),
        writers=Given(written(7, schema)),
    )
    values = pa.array([framed(7, body) for body in (*short, deep)], pa.binary())
    found = decode(each, values, np.ones(200, dtype=np.int64))
    assert found.rows["symbol"].to_pylist() == [*(f"A{n}" for n in range(199)), "DEEP"]
    assert 5 < steps < 20, "of 16 x 16 x 16 items"


def nested(depth: int) -> Any:
    """A type of so many types within each other."""
    type_: Any = "int"
    for _ in range(depth - 1):
        type_ = {"type": "array", "items": type_}
    return type_


def chain(n: int, name: str = "R") -> list[tuple[str, Any]]:
    """Fields of records, of which each has the one before in it by its name."""
    types = ["int", *(f"{name}{m}" for m in range(n))]
    return [(f"f{m}", record(("x", types[m]), name=types[m + 1])) for m in range(n)]


def at_depth(calls: int, do: Callable[[], Any]) -> Any:
    """What comes of it so many calls deeper."""
    return do() if not calls else at_depth(calls - 1, do)


FIXED = {"type": "fixed", "name": "F", "size": None}
EMPTY, NULLS = record(name="B"), record(("z", {"type": "array", "items": "null"}), name="B")
UNREAD = {
    "types within types": (record(("u", nested(64))), "it has over 64 types within each other"),
    "text within text": (
        record(("u", nested(900))),
        "its text has over 256 brackets within each other",
    ),
    "names of names": (
        record(*chain(63)),
        "it has over 64 types within each other",
    ),
    "names of a schema that it refers to": (
        record(("u", "Far599")),
        "it has over 64 types within each other",
    ),
    "what fastavro has parsed": (
        {
            **record(("u", EMPTY), ("v", "B")),
            "__fastavro_parsed": True,
            "__named_schemas": {"B": NULLS},
        },
        None,
    ),
    "another type of a name": (
        record(("q", "Q"), ("v", NULLS)),
        "it has an array of values without bytes",
    ),
    "no size": (record(("u", FIXED)), "the size of F is no whole number of 31 bits"),
    "a negative size": (
        record(("u", FIXED | {"size": -5})),
        "the size of F is no whole number of 31 bits",
    ),
    "a size beyond all bytes": (
        record(("u", FIXED | {"size": 2**70})),
        "the size of F is no whole number of 31 bits",
    ),
    "an error": (
        record(("u", {**EMPTY, "type": "error"})),
        "it has an error of a protocol, which is no type of values",
    ),
    "a field without a name": (record((["u"], "int")), "TypeError(\"unhashable type: 'list'\")"),
}


@pytest.mark.parametrize("what", UNREAD)
def test_a_schema_that_is_not_read_is_refused_whatever_the_stack(what: str) -> None:
    given, told = UNREAD[what]
    schema = record(("symbol", "string"))
    schema = {**given, "fields": schema["fields"] + given["fields"]}
    refers = tuple(
        (each["name"], json.dumps(each))
        for each in (record(("b", EMPTY), name="Q"), record(*chain(600, "Far"), name="C"))
    )
    each = replace(
        plan('format = "avro"\nfields = { symbol = "string" }'),
        writers=Given(WriterSchema(7, "AVRO", json.dumps(schema), refers)),
    )

    def became() -> list[Any]:
        decoder_of.cache_clear()
        return decoded(each, [framed(7, b"\x02A")])

    wanted = ("A",) if told is None else f"schema 7 cannot be read: {told}"
    assert [became(), at_depth(300, became)] == [[wanted]] * 2


@pytest.mark.parametrize(
    ("fields", "body"),
    [
        pytest.param([("u", nested(63))], b"\x00", id="inline"),
        pytest.param(chain(62), b"\x04" * 62, id="by name"),
    ],
)
def test_as_many_types_within_each_other_as_are_allowed_are_read(fields: Any, body: bytes) -> None:
    each = replace(
        plan('format = "avro"\nfields = { symbol = "string" }'),
        writers=Given(written(7, record(("symbol", "string"), *fields))),
    )
    for n in (1, 70):
        assert decoded(each, [framed(7, b"\x02A" + body)] * n) == [("A",)] * n


def test_every_type_of_a_schema_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = record(("symbol", "string"), ("m", {"type": "map", "values": ["null", "long"]}))
    each = replace(
        plan('format = "avro"\nfields = { symbol = "string" }'), writers=Given(written(7, schema))
    )
    refused = "schema 7 cannot be read: with every name written out it has over 5 types"
    for most, wanted in ((6, ("A",)), (5, refused)):
        monkeypatch.setattr(avro_formats, "MOST_TYPES", most)
        decoder_of.cache_clear()
        assert decoded(each, [framed(7, b"\x02A\x00")]) == [wanted]


def test_a_list_of_what_may_be_null_has_bytes() -> None:
    """Which of a union's types it is takes one."""
    schema = record(("symbol", "string"), ("u", {"type": "array", "items": ["null", "int"]}))
    each = replace(
        plan('format = "avro"\nfields = { symbol = "string" }'), writers=Given(written(7, schema))
    )
    assert decoded(each, [framed(7, b"\x02A\x06\x00\x02\x08\x00\x00")]) == [("A",)]


def test_a_value_may_be_its_schema_s_id_alone(tmp_path: Path) -> None:
    (tmp_path / "r.avsc").write_text(json.dumps(record(("symbol", "string", "none"))))
    each = plan('format = "avro"\nreader = "r.avsc"\nfields = { symbol = "string" }', tmp_path)
    each = replace(each, writers=Given(written(7, record())))
    found = decode(each, pa.array([framed(7, b"")], pa.binary()))
    assert (found.rows["symbol"].to_pylist(), list(found.reasons)) == (["none"], [])


def test_a_decimal_of_protobuf_has_up_to_a_hundred_digits_behind_the_point() -> None:
    file = proto(
        ("symbol", 1, "string"),
        ("m", 2, "confluent.type.Decimal"),
        imports=["confluent/type/decimal.proto"],
    )
    each = replace(
        plan('format = "protobuf"\nfields = { symbol = "string", m = "decimal(10,2)" }'),
        writers=Given(written(7, serialized(file), "PROTOBUF")),
    )
    values = [framed(7, b"\x00\x0a\x01A\x12\x05\x0a\x01\x00\x18" + varint(n)) for n in (100, 101)]
    assert decoded(each, values) == [
        ("A", Decimal("0.00")), "m: not a number or a string of digits"
    ]  # fmt: skip


def test_the_only_message_of_a_file_needs_no_name_whatever_it_imports(tmp_path: Path) -> None:
    text = 'syntax = "proto3"; import "google/protobuf/timestamp.proto"; message A { %s }'
    fields = "string symbol = 1; google.protobuf.Timestamp ts = 2;"
    (tmp_path / "one.proto").write_text(text % fields)
    each = plan(
        'format = "protobuf"\nwriter = "one.proto"\nfields = { symbol = "string" }', tmp_path
    )
    assert decoded(each, [b"\x0a\x01A"]) == [("A",)]


def varint(number: int) -> bytes:
    """A number as Protobuf writes it."""
    found = b""
    while number >= 0x80:
        found, number = found + bytes([number & 0x7F | 0x80]), number >> 7
    return found + bytes([number])


def with_default() -> Any:
    """Of proto2: `i` is 5 where it is not there."""
    file = proto(("symbol", 1, "string"), ("i", 2, "int64"), syntax="proto2")
    file.message_type[0].field[1].default_value = "5"
    return file


def either_or() -> Any:
    """`i` and `d` are of a oneof."""
    file = proto(("symbol", 1, "string"), ("i", 2, "int64"), ("d", 3, "double"))
    file.message_type[0].oneof_decl.add(name="o")
    for field in file.message_type[0].field[1:]:
        field.oneof_index = 0
    return file


@pytest.mark.parametrize(
    ("file", "body", "wanted"),
    [
        pytest.param(
            proto(("symbol", 1, "string")),
            b"\x98\x06\x01" * 97 + b"\x0a\x01A",
            ("A", None, None),
            id="behind more fields than are read together",
        ),
        pytest.param(with_default(), b"\x0a\x01A", ("A", 5, None), id="a default"),
        pytest.param(
            either_or(),
            b"\x0a\x01A\x10\x07\x19" + struct.pack("<d", 2.5),
            ("A", None, 2.5),
            id="the last of a oneof",
        ),
        pytest.param(
            proto(("symbol", 1, "string")),
            b"\x0a\x01A" + varint(2**36) + b"\x01",
            "not Protobuf by schema 7: Error parsing message with type 'desk.M': Wire format was "
            "corrupt",
            id="a number that no field has",
        ),
    ],
)
def test_many_messages_are_judged_as_one_is(file: Any, body: bytes, wanted: Any) -> None:
    each = replace(
        plan('format = "protobuf"\nfields = { symbol = "string", i = "int?", d = "double?" }'),
        writers=Given(written(7, serialized(file), "PROTOBUF")),
    )
    for n in (1, 70):
        assert decoded(each, [framed(7, b"\x00" + body)] * n) == [wanted] * n


def test_fields_that_nobody_knows_are_no_steps_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: each number of a field is a step; those who have the same ones wait for the others."""
    steps = 0
    real = protobuf_columns._take

    def counted(*given: Any) -> None:
        nonlocal steps
        steps += 1
        real(*given)

    monkeypatch.setattr(protobuf_columns, "_take", counted)
    alike = b"\x0a\x01A" + b"\x10\x01" * 20
    others = [
        b"\x0a\x01B" + b"".join(varint(8 * (100 * message + n)) + b"\x01" for n in range(1, 90))
        for message in range(1, 101)
    ]
    each = replace(SYMBOL_ALONE, writers=Given(PROTO_SYMBOL))
    bodies = pa.array([*[alike] * 500, *others], pa.large_binary())
    decoder = decoder_of(each.format, each.rules, PROTO_SYMBOL, (0,))
    [together], left = decoder.columns(bodies)
    assert together.rows.tolist() == list(range(500))
    assert left.tolist() == list(range(500, 600))
    assert 20 < steps < 150, "of 9000 numbers"
    values = [framed(7, b"\x00" + body.as_py()) for body in bodies]
    assert decoded(each, values) == [("A",)] * 500 + [("B",)] * 100


@pytest.mark.parametrize("depth", [12, 60])
def test_a_schema_that_doubles_is_refused_at_once(depth: int) -> None:
    type_: Any = "null"
    for n in range(depth):
        again = type_ if isinstance(type_, str) else type_["name"]
        type_ = record(("a", type_), ("b", again), name=f"B{n}")
    schema = record(("symbol", "string"), ("z", type_))
    each = replace(
        plan('format = "avro"\nfields = { symbol = "string" }'),
        writers=Given(written(7, schema)),
    )
    found = decode(each, pa.array([framed(7, b"\x02A")], pa.binary()), np.ones(1, dtype=np.int64))
    refused = "schema 7 cannot be read: with every name written out it has over 10,000 types"
    assert list(found.reasons) == ([refused] if depth > 12 else [])


def cut_short(any_: Any) -> None:
    any_.type_url, any_.value = "type.googleapis.com/google.protobuf.Any", b"\xff"


def no_json(name: str, fill: Callable[[Any], object]) -> Any:
    file = name.lower() if name != "FieldMask" else "field_mask"
    file = "struct" if name == "Value" else file
    return pytest.param(name, file, fill, id=name)


@pytest.mark.parametrize(
    ("type_", "file", "fill"),
    [
        no_json("Struct", lambda x: x.fields["a"].__setattr__("number_value", float("nan"))),
        no_json("Value", lambda x: setattr(x, "number_value", float("inf"))),
        no_json("Timestamp", lambda x: setattr(x, "seconds", 2**62)),
        no_json("Duration", lambda x: setattr(x, "seconds", 2**62)),
        no_json("FieldMask", lambda x: x.paths.append("fooBar")),
        no_json("Any", lambda x: setattr(x, "type_url", "type.googleapis.com/desk.Unknown")),
        no_json("Any", cut_short),
    ],
)
def test_a_value_that_has_no_json_is_rejected_alone(
    type_: str, file: str, fill: Callable[[Any], object]
) -> None:
    """One message does not end the batch, whatever it holds."""
    given = proto(
        ("symbol", 1, "string"),
        ("x", 2, f"google.protobuf.{type_}"),
        imports=[f"google/protobuf/{file}.proto"],
    )
    message = message_factory.GetMessageClass(pool_of([given]).FindMessageTypeByName("desk.M"))
    good, bad = message(symbol="A"), message(symbol="B")
    fill(bad.x)
    each = replace(
        plan('format = "protobuf"\nfields = { symbol = "string", x = "json?" }'),
        writers=Given(WriterSchema(7, "PROTOBUF", serialized(given))),
    )
    values = [framed(7, b"\0" + m.SerializeToString()) for m in (good, bad, good)]
    stamps = np.ones(len(values), dtype=np.int64)
    first, told, last = said(decode(each, pa.array(values, pa.binary()), stamps), len(values))
    assert first == last == ("A", None)
    assert told.startswith("x: it has no JSON (")


def any_within_any(levels: int) -> bytes:
    """The bytes of an `Any` that holds one that holds one ..."""
    found = any_pb2.Any()
    for _ in range(levels - 1):
        found = any_pb2.Any(
            type_url="type.googleapis.com/google.protobuf.Any", value=found.SerializeToString()
        )
    return found.SerializeToString()


@pytest.mark.parametrize("holder", [ANY, "map", "repeated"])
@pytest.mark.parametrize("stack", [0, 300])
def test_an_any_within_any_has_an_end_whatever_the_stack(holder: str, stack: int) -> None:
    """Each is bytes of the one around it, so that the parser's own bound does not see them."""
    type_ = ANY if holder == ANY else f"repeated {ANY}"
    file = proto(("symbol", 1, "string"), ("x", 2, type_), imports=["google/protobuf/any.proto"])
    if holder == "map":
        entry = file.message_type[0].nested_type.add(name="XEntry")
        entry.CopyFrom(
            proto(("key", 1, "string"), ("value", 2, ANY), name="XEntry").message_type[0]
        )
        entry.options.map_entry = True
        file.message_type[0].field[1].type_name = ".desk.M.XEntry"
    each = replace(
        plan('format = "protobuf"\nfields = { symbol = "string", x = "json?" }'),
        writers=Given(written(7, serialized(file), "PROTOBUF")),
    )

    def became(levels: int) -> Any:
        inner = any_within_any(levels)
        if holder == "map":
            inner = b"\x0a\x01k\x12" + varint(len(inner)) + inner
        body = b"\x0a\x01A\x12" + varint(len(inner)) + inner
        return at_depth(stack, lambda: decoded(each, [framed(7, b"\x00" + body)])[0])

    assert became(100)[0] == "A"
    for levels in (101, 400, 5_000):
        assert became(levels) == "x: it has no JSON (over 100 messages within each other)"


def test_indexes() -> None:
    assert indexes(b"\x00rest") == ((0,), 1)
    assert indexes(b"\x04\x02\x00rest") == ((1, 0), 3)
    assert indexes(b"\x02\x80\x02rest") == ((128,), 3)
    assert indexes(b"\x20" + b"\x02" * 16 + b"rest") == ((1,) * 16, 17)
    for bad in (b"", b"\x02", b"\x02\x80", b"\x01", b"\x22" + b"\x02" * 40, b"\x80" * 9):
        with pytest.raises(ValueError, match="message indexes"):
            indexes(bad)


def test_a_reader_of_protobuf_renames_by_numbers(tmp_path: Path) -> None:
    writer = proto(("ticker", 1, "string"), ("size", 2, "int32"))
    (tmp_path / "r.proto").write_text(
        'syntax = "proto3"; package desk; message M { string symbol = 1; int64 size = 2; '
        "optional double more = 3; }"
    )
    fields = 'fields = { symbol = "string", size = "int", more = "double?" }'
    each = plan(f'format = "protobuf"\nreader = "r.proto"\n{fields}', tmp_path)
    each = replace(each, writers=Given(written(9, serialized(writer), "PROTOBUF")))
    pool = protobuf_schemas.pool_of([writer])
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("desk.M"))
    body = made(ticker="A", size=-5).SerializeToString()
    for few_rows in (0, 99):
        assert decoded(each, [framed(9, b"\x00" + body)], few_rows=few_rows) == [("A", -5, None)]


# ------------------------------------------------------------------------------- the query file


@pytest.mark.parametrize(
    ("stream", "told"),
    [
        ('format = "arvo"', "there is no format 'arvo'; there are: json, avro, protobuf"),
        ('writer = "w.avsc"', "writer: json has no schemas: leave it out"),
        ('format = "avro"\nmessage = "M"', "message: only protobuf has messages"),
        ('format = "protobuf"\nmessage = "M"', "it is of a file: give writer or reader"),
        ('format = "avro"\noptions = { a = "b" }', "avro has no options"),
        ('format = "avro"\nwriter = "none.avsc"', "none.avsc cannot be read: No such file"),
        ('format = "avro"\nwriter = "broken.avsc"', "broken.avsc: no Avro schema: JSONDecodeError"),
        ('format = "avro"\nreader = "self.avsc"', "self.avsc: R holds itself"),
        (
            'format = "avro"\nwriter = "lacks.avsc"',
            "lacks.avsc: ts is required, and it has no such",
        ),
        ('format = "protobuf"\nwriter = "two.proto"', "two.proto: give message, one of: A, B"),
        (
            'format = "protobuf"\nwriter = "two.proto"\nmessage = "C"',
            "two.proto: there is no message C; there are: A, B",
        ),
        ('format = "protobuf"\nwriter = "broken.proto"', "broken.proto:1:1: "),
        ('format = "protobuf"\nwriter = "broken.avsc"', "broken.avsc: no set of descriptors"),
    ],
)
def test_mistakes_are_named_with_their_place(stream: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "broken.avsc").write_text("{")
    (tmp_path / "self.avsc").write_text(
        json.dumps(record(("symbol", "string"), ("r", ["null", "R"])))
    )
    (tmp_path / "lacks.avsc").write_text(json.dumps(record(("symbol", "string"))))
    (tmp_path / "two.proto").write_text('syntax = "proto3"; message A {} message B {}')
    (tmp_path / "broken.proto").write_text("oops")
    with pytest.raises(QueryError) as caught:
        plan(f"{stream}\n{TRADE}", tmp_path)
    assert told in str(caught.value)
    assert re.match(rf"{re.escape(str(tmp_path))}/q.toml:\d+: ", str(caught.value))


def test_a_query_means_its_formats_and_schemas(tmp_path: Path) -> None:
    file = tmp_path / "w.avsc"
    file.write_text(json.dumps(V2))
    found = {}
    for name, stream in {
        "json": TRADE,
        "said": f'format = "json"\n{TRADE}',
        "avro": f'format = "avro"\n{TRADE}',
        "file": f'format = "avro"\nwriter = "w.avsc"\n{TRADE}',
        "reader": f'format = "avro"\nreader = "w.avsc"\n{TRADE}',
    }.items():
        found[name] = query(stream, tmp_path).fingerprint
    assert found["said"] == found["json"]
    assert len(set(found.values())) == 4
    file.write_text(json.dumps(V2, indent=2))
    again = f'format = "avro"\nwriter = "w.avsc"\n{TRADE}'
    assert query(again, tmp_path).fingerprint == found["file"]
    file.write_text(json.dumps(V1))
    assert query(again, tmp_path).fingerprint != found["file"]


# ------------------------------------------------------------------------------ a user's decoder


@pytest.fixture
def pipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The page's example, installed."""
    module = installed_decoder(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    decoder_of.cache_clear()
    yield
    decoder_of.cache_clear()
    sys.modules.pop(module, None)


@pytest.mark.usefixtures("pipes")
def test_a_decoder_by_entry_point() -> None:
    assert own_decoders() == ["pipes"]
    fields = (
        'fields = { symbol = "string", ts = "timestamp", price = "decimal(18,4)", size = "int?" }'
    )
    each = plan(f'format = "pipes"\noptions = {{ separator = ";" }}\n{fields}')
    values = [
        b"A;2026-01-05T12:00:00Z;1.5;7",
        b"A;2026-01-05T12:00:00Z;1.5;",
        b"A;noon;1.5;7",
        b"A;1.5",
        b"\xff;2026-01-05T12:00:00Z;1.5;7",
        b"",
        None,
    ]
    found = decoded(each, values * 30, few_rows=9)
    assert found[:7] * 30 == found
    assert found[:7] == [
        ("A", NOON, Decimal("1.5000"), 7),
        ("A", NOON, Decimal("1.5000"), None),
        "ts: not a time with an offset such as 2026-01-05T14:30:00Z",
        "not pipes: 4 fields are needed, here are 2",
        "not pipes: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
        "empty value",
        "tombstone: the record has no value",
    ]
    with pytest.raises(QueryError, match="decoder pipes: there is no option seperator"):
        plan(f'format = "pipes"\noptions = {{ seperator = ";" }}\n{fields}')


# ----------------------------------------------------------------- the registry and the verdicts


def rows(given: Sequence[bytes], ms: Sequence[int]) -> list[Chunk]:
    n = len(given)
    return [Chunk("s", 0, pa.array(given, pa.binary()), np.arange(n), np.array(ms))]


def proved(each: Any, batches: list[Chunk]) -> list[Any]:
    """What `verify` makes of messages: symbols, None where rejected."""
    schema = pa.schema([
        *(field.with_nullable(True) for field in [*each.keys, *each.payload]),
        ("partition", pa.int32()), ("offset", pa.int64()), ("kept", pa.bool_()),
    ])  # fmt: skip
    made = pa.Table.from_batches(verified(each, schema, None, batches), schema)
    return sorted(zip(made["offset"].to_pylist(), made["symbol"].to_pylist(), strict=True))


def test_verify_says_what_the_stream_said_whatever_became_of_the_registry(
    registry: StandIn, tmp_path: Path
) -> None:
    """An id that comes to be, one that is deleted, a registry that is away."""
    asked = RegistrySettings(url=registry.url, wait_s=0.0)
    place = folder(str(tmp_path))
    schema = record(("symbol", "string"))
    body = avro(schema, {"symbol": "A"})
    known = registry.register("s-value", json.dumps(schema))
    unknown = known + 1
    values = [framed(known, body), framed(unknown, body)]
    each = plan('format = "avro"\nfields = { symbol = "string" }')
    [stream] = with_schemas([each], asked, place)
    now = 2**41
    first = decode(stream, pa.array(values), np.array([now, now]))
    assert said(first, 2) == [("A",), f"schema {unknown}: the registry has no such schema"]
    # The id is given, and the other one deleted: for the same messages nothing changes.
    registry.schemas = {unknown: registry.schemas[known]}
    batches = rows([*values, framed(unknown, body)], [now, now, now + 10**7])
    [fresh] = with_schemas([each], asked, place)
    assert proved(fresh, batches) == [(0, "A"), (1, None), (2, "A")]
    registry.away = True
    [fresh] = with_schemas([each], asked, place)
    assert proved(fresh, batches) == [(0, "A"), (1, None), (2, "A")]


def test_the_stream_asks_by_the_times_of_messages(registry: StandIn, tmp_path: Path) -> None:
    """An id that was absent when a message had come is not asked for again for that message."""
    schema = record(("symbol", "string"))
    body = avro(schema, {"symbol": "A"})
    asked = query('format = "avro"\nfields = { symbol = "string" }')
    settings = RegistrySettings(url=registry.url, wait_s=0.0)
    plans = with_schemas(compile_streams(asked), settings, folder(str(tmp_path)))
    spec, groups = tree_spec(asked), GroupMap([(Prefix(1, 0), 0), (Prefix(1, 1), 0)])
    task = DecodeTask(spec, plans, groups, (7, 8), "2026-01-05", "2026-01-06", None)

    def rejected(at_ms: int) -> list[int]:
        counts = []
        fresh = pickle.loads(pickle.dumps(task))
        for batch in decode_chunks(fresh, rows([framed(1, body)], [at_ms])):
            counts += [c for b in from_batch(batch) if b.kind == "count" for c in decode_counts(b)]
        return [each.rejected for each in counts]

    assert rejected(2**41) == [1]
    registry.register("s-value", json.dumps(schema), schema_id=1)
    assert rejected(2**41) == [1]
    assert registry.asked.total() == 1
    assert rejected(2**41 + 1) == [0]


def test_a_registry_that_is_away_is_nobody_s_fault(registry: StandIn, tmp_path: Path) -> None:
    each = plan('format = "avro"\nfields = { symbol = "string" }')
    [each] = with_schemas(
        [each], RegistrySettings(url=registry.url, wait_s=0.0), folder(str(tmp_path))
    )
    registry.away = True
    with pytest.raises(SchemaTrouble, match="does not answer"):
        decode(each, pa.array([framed(1, b"\x02A")]))
    assert not list(tmp_path.iterdir())


def test_what_the_driver_says_of_it() -> None:
    text = (
        "Job aborted due to stage failure:\nTraceback (most recent call last):\n"
        "spillway.registry.client.{}: the schema registry at http://x {}\n\tat org.apache"
    )
    away = text.format("RegistryUnavailable", "does not answer (HTTP 503)")
    assert cause_of(away) == "lost"
    assert first_lines(RuntimeError(away), {}) == (
        "the schema registry at http://x does not answer (HTTP 503)"
    )
    assert cause_of(text.format("RegistryRefuses", "refuses")) == "schemas"
    assert cause_of(text.format("DamagedSchema", "is damaged")) == "schemas"


def test_mended_rows_are_judged_by_the_registry(registry: StandIn) -> None:
    schema = record(("symbol", "string"))
    number = registry.register("s-value", json.dumps(schema))
    each = plan('format = "avro"\nfields = { symbol = "string" }')
    plans = with_schemas([each], RegistrySettings(url=registry.url, wait_s=0.0), None)
    good = framed(number, avro(schema, {"symbol": "A"}))
    found = contract_problems(
        [Mended(1, 1, "s", good), Mended(2, 1, "s", framed(99, b"")), Mended(3, 1, "s", b"{}")],
        plans,
    )
    assert [(each.line, each.reason) for each in found] == [
        (2, "still wrong: schema 99: the registry has no such schema"),
        (3, "still wrong: no schema id: 2 bytes are too few"),
    ]


# --------------------------------------------------------------------------------------- doctor


def checks(registry: StandIn, tmp_path: Path, stream: str) -> list[tuple[str, str, str]]:
    settings, _ = load_settings(
        overrides={
            "registry.url": registry.url,
            "warehouse.root": str(tmp_path / "w"),
        },
        environ={},
    )
    return [(e.name, e.status, e.what) for e in schema_checks(settings, query(stream, tmp_path))]


def test_doctor_looks_at_the_registry(registry: StandIn, tmp_path: Path) -> None:
    stream = f'format = "avro"\n{TRADE}'
    assert checks(registry, tmp_path, TRADE) == []
    name = "schema of s"
    answers = ("registry", "ok", f"{registry.url} answers")
    assert checks(registry, tmp_path, stream) == [
        answers, (name, "warn", "the registry has no subject s-value"),
    ]  # fmt: skip
    number = registry.register("s-value", json.dumps(V2))
    assert checks(registry, tmp_path, stream) == [
        answers, (name, "ok", f"its newest is {number}, and has what the query asks for"),
    ]  # fmt: skip
    registry.register("s-value", json.dumps(record(("symbol", "string"))))
    [_, (_, status, what)] = checks(registry, tmp_path, stream)
    assert (status, what) == ("warn", "schema 2 has no field ts: its rows go to quarantine")
    registry.register("s-value", "CgE=", "PROTOBUF")
    [_, (_, status, what)] = checks(registry, tmp_path, stream)
    assert (status, what[:42]) == ("warn", "schema 3 cannot be read: it is PROTOBUF, n")
    registry.away = True
    [(_, status, what)] = checks(registry, tmp_path, stream)
    assert status == "warn"  # the stream may start: what it knows is enough for most days
    assert "does not answer (HTTP 503, a fault)" in what
    registry.away, registry.login = False, "desk:secret"
    [(_, status, what)] = checks(registry, tmp_path, stream)
    assert status == "fail"
    assert "does not know this user" in what


def test_doctor_sees_a_registry_made_anew(registry: StandIn, tmp_path: Path) -> None:
    stream = f'format = "avro"\n{TRADE}'
    number = registry.register("s-value", json.dumps(V2))
    settings = RegistrySettings(url=registry.url, wait_s=0.0)
    knowing(settings, folder(str(tmp_path / "w"))).resolve(number, np.array([5]))
    assert {status for _, status, _ in checks(registry, tmp_path, stream)} == {"ok"}
    registry.schemas.clear()
    registry.subjects.clear()
    registry.register("s-value", json.dumps(V1), schema_id=number)
    found = checks(registry, tmp_path, stream)
    assert ("schemas", "fail") in [(name, status) for name, status, _ in found]


def test_a_schema_that_is_no_descriptor() -> None:
    each = plan('format = "protobuf"\nfields = { symbol = "string" }')
    text = 'syntax = "proto3"; message M {}'
    bad = base64.b64encode(b"\xff").decode()
    each = replace(
        each, writers=Given(WriterSchema(1, "PROTOBUF", text), WriterSchema(2, "PROTOBUF", bad))
    )
    told = (
        "cannot be read: the registry does not give it serialized, and its text cannot be compiled"
    )
    assert decoded(each, [framed(1, b"\x00"), framed(2, b"\x00")]) == [
        f"schema 1 {told}", f"schema 2 {told}",
    ]  # fmt: skip


# What registries give that cannot serialize. Apicurio 3.3 gives text that its bytes were made to.
CANNOT = [False, 400, 500, "\n\x01M\x12\x04desk\ufffd"]
MONEY = 'syntax = "proto3";\npackage desk;\nmessage Money { sint64 cents = 1; }\n'
BID = """syntax = "proto3";
package desk;
import "money.proto";
import "confluent/meta.proto";
import "confluent/type/decimal.proto";
import "google/protobuf/timestamp.proto";
message Bid {
  string symbol = 1;
  google.protobuf.Timestamp ts = 2;
  Money at = 3;
  confluent.type.Decimal price = 4 [(confluent.field_meta) = {
    params: [{ key: "precision", value: "10" }, { key: "scale", value: "2" }]
  }];
}
"""


@pytest.mark.parametrize("serializes", [True, *CANNOT], ids=["yes", "no", "400", "500", "bytes"])
def test_text_of_protobufs_language_is_compiled(registry: StandIn, serializes: Any) -> None:
    registry.register("money", MONEY, "PROTOBUF")
    refers = [{"name": "money.proto", "subject": "money", "version": 1}]
    number = registry.register("s-value", BID, "PROTOBUF", refers)
    registry.serializes = serializes
    [each] = with_schemas(
        [plan(f'format = "protobuf"\n{TRADE[:-2]}, at = "json" }}')],
        RegistrySettings(url=registry.url, wait_s=1.0),
        None,
    )
    symbol, at, price = b"\x0a\x01A", b"\x1a\x02\x08\x0d", b"\x22\x06\x0a\x02\x01\x2c\x18\x02"
    ts = b"\x12\x06\x08" + b"\xc0\xcb\xee\xca\x06"
    [row] = decoded(each, [framed(number, b"\x00" + symbol + ts + at + price)])
    assert row[0] == "A"
    assert Decimal("3.00") in row
    assert '{"cents":"-7"}' in row


@pytest.mark.parametrize("serializes", [False, "\n\x01M"], ids=["no", "bytes"])
def test_text_that_cannot_be_compiled(registry: StandIn, serializes: Any) -> None:
    """The registry has said all that it can: it is a verdict."""
    number = registry.register("s-value", MONEY + "message {", "PROTOBUF")
    registry.serializes = serializes
    settings = RegistrySettings(url=registry.url, wait_s=1.0)
    [each] = with_schemas(
        [plan('format = "protobuf"\nfields = { symbol = "string" }')], settings, None
    )
    [reason] = decoded(each, [framed(number, b"\x00")])
    assert reason == (
        f"schema {number} cannot be read: the registry does not give it serialized, and its text "
        "cannot be compiled"
    )


# -------------------------------------------------------------------------------------- produce

MADE = (
    'fields = { symbol = "string", ts = "timestamp", price = "decimal(10,2)?", note = "string?", '
    'size = "int?", ratio = "double", open = "bool?" }'
)


@pytest.mark.parametrize("format_", ["avro", "protobuf"])
def test_what_is_produced_is_what_json_says(format_: str, registry: StandIn) -> None:
    asked = query(f'format = "{format_}"\n{MADE}')
    settings = RegistrySettings(url=registry.url, wait_s=0.0)
    [(topic, encoding)] = encodings(asked, settings).items()
    assert topic == "s"
    assert encodings(asked, settings)["s"].schema_id == encoding.schema_id
    good = {"symbol": "Aé", "ts": "2026-01-05T12:00:00.123456+01:00", "ratio": -0.5}
    values = [
        json.dumps(good).encode(),
        json.dumps(
            good | {"price": "-12345678.90", "note": "", "size": -5, "open": False}
        ).encode(),
        json.dumps(good | {"price": "0", "size": 2**63 - 1, "open": True}).encode(),
        json.dumps(good | {"ratio": "x"}).encode(),
        None,
        b"",
    ]
    made = pickle.loads(pickle.dumps(encoding)).encoded(pa.array(values, pa.binary()))
    assert made.to_pylist()[3:] == values[3:]  # what is broken is sent as it is
    [each] = with_schemas([plan(f'format = "{format_}"\n{MADE}')], settings, None)
    for few_rows in (0, 99):
        found = decode(each, made, few_rows=few_rows)
        assert found.rows.equals(decode(plan(MADE), pa.array(values, pa.binary())).rows)
        assert found.kept.tolist() == [0, 1, 2]


def test_the_text_that_is_registered_is_the_file_that_is_written() -> None:
    rules = plan(f'format = "protobuf"\n{MADE}').rules
    file = descriptor_pb2.FileDescriptorProto()
    file.ParseFromString(base64.b64decode(protobuf_schemas.serialized(protobuf_text(rules), ())))
    for field in file.message_type[0].field:
        field.ClearField("json_name")
    file.name = "message.proto"
    assert file == protobuf_file(rules)


def test_a_format_that_is_not_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "w.avsc").write_text(json.dumps(V2))
    asked = query(f'format = "avro"\nwriter = "w.avsc"\n{TRADE}', tmp_path)
    with pytest.raises(NotWritten, match="stream s: messages are written as JSON, and as avro"):
        encodings(asked, RegistrySettings())
    assert encodings(query(TRADE), RegistrySettings()) == {}


def test_secrets_of_the_registry_are_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "spillway.toml"
    file.write_text(
        "[registry]\nurl = 'http://r:8081, http://s:8081/'\n[registry.options]\n"
        "basic.auth.user.info = 'desk:hunter22'\n'ssl.truststore.location' = '/ca.pem'\n"
    )
    environ = {"SPILLWAY_REGISTRY__OPTIONS": '{"bearer.auth.token": "hunter22-token"}'}
    settings, _ = load_settings(file, environ=environ)
    assert settings.registry.url == "http://r:8081,http://s:8081/"
    assert set(settings.registry.options) == {
        "basic.auth.user.info", "bearer.auth.token", "ssl.truststore.location",
    }  # fmt: skip
    shown = repr(values(settings)) + repr(settings)
    assert "/ca.pem" in shown
    assert "hunter22" not in shown
    for wrong in ("http://desk:hunter22@r:8081", "r:8081", "http://r:8081/?a=hunter22"):
        with pytest.raises(SettingsError) as caught:
            load_settings(overrides={"registry.url": wrong}, environ={})
        assert "registry.url" in str(caught.value)
    with pytest.raises(SettingsError, match="is no option of the registry's; allowed: basic"):
        load_settings(overrides={"registry.options": {"basic.user": "hunter22"}}, environ={})
