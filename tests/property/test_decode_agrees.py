"""The fast path is the contract: columns and pydantic agree on every value, alone and mixed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic_core import PydanticCustomError

from jobs.decode import Decoded, compile_streams, decode
from jobs.decode.timestamps import parse_timestamps
from schemas.messages import SHIPPED, micros_of, parse_timestamp
from schemas.query import load_query, query_of
from schemas.tomlfile import parse_toml

EVERY_KIND = """
[streams.every]
fields = { symbol = "string", t = "timestamp?", i = "int?", d = "double?", b = "bool?" }
[streams.volume]
schema = "volume"
[join]
inputs = ["every", "volume"]
on = ["symbol"]
"""

PLANS = {plan.name: plan for plan in compile_streams(load_query("symbol"))}
PLANS["every"] = compile_streams(query_of(parse_toml(EVERY_KIND, Path("q.toml"))))[0]
NAMES = sorted({rule.name for plan in PLANS.values() for rule in plan.rules})


def same(fast: Decoded, slow: Decoded) -> None:
    assert fast.kept.tolist() == slow.kept.tolist()
    assert fast.rejected.tolist() == slow.rejected.tolist()
    assert fast.reasons == slow.reasons
    assert fast.rows.to_pylist() == slow.rows.to_pylist()
    for name in fast.rows.schema.names:  # -0.0 == 0.0, but its bytes differ
        column = fast.rows.column(name)
        if pa.types.is_floating(column.type):
            assert str(column.to_pylist()) == str(slow.rows.column(name).to_pylist())


def agree(plan: Any, values: list[bytes | None]) -> None:
    slow = decode(plan, pa.array(values, pa.binary()), few_rows=10**9)
    same(decode(plan, pa.array(values, pa.binary()), few_rows=0), slow)
    # Alone, a value is judged by the columns only; with others of its kind it must line up.
    held = []
    for value in values:
        array = pa.array([value], pa.binary())
        same(decode(plan, array, few_rows=0), decode(plan, array, few_rows=1))
        if decode(plan, array, few_rows=1).rows.num_rows:
            held.append(value)
    array = pa.array(held, pa.binary())
    same(decode(plan, array, few_rows=0), decode(plan, array, few_rows=10**9))


digits = st.text("0123456789", min_size=0, max_size=25)
numbers = st.one_of(
    st.integers().map(str),
    st.integers(-(2**64), 2**64).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.builds(
        lambda s, a, p, b, e: s + a + p + b + e,
        st.sampled_from(["", "-", "+"]),
        digits,
        st.sampled_from(["", "."]),
        digits,
        st.one_of(st.just(""), st.builds("e{}".format, st.integers(-400, 400))),
    ),
    st.sampled_from(["NaN", "Infinity", "-Infinity", "1e400", "-0", "-0.0", "0e0", "1E+2", "01"]),
    st.sampled_from(["9223372036854775807", "9223372036854775808", "-9223372036854775809"]),
)
two = st.integers(0, 99).map("{:02}".format)
times = st.one_of(
    st.datetimes().map(lambda t: t.isoformat() + "Z"),
    st.builds(
        lambda y, mo, d, t, h, mi, s, f, z: f"{y:04}-{mo}-{d}{t}{h}:{mi}:{s}{f}{z}",
        st.one_of(st.integers(0, 9999), st.sampled_from([0, 1, 1969, 1970, 2000, 2024, 9999])),
        st.one_of(st.sampled_from(["01", "02", "12", "13", "00"]), two),
        st.one_of(st.sampled_from(["01", "28", "29", "30", "31", "00"]), two),
        st.sampled_from("TTTt _"),
        st.one_of(st.sampled_from(["00", "23"]), two),
        st.one_of(st.sampled_from(["00", "59"]), two),
        st.one_of(st.sampled_from(["00", "59", "60"]), two),
        st.one_of(st.just(""), st.text("0123456789", max_size=12).map(".{}".format)),
        st.one_of(
            st.sampled_from(["Z", "z", "", "+00:00", "-00:00", "+23:59", "-23:59", "+24:00"]),
            st.builds("{}{}:{}".format, st.sampled_from("+-"), two, two),
        ),
    ),
    st.text(max_size=30),
)
strings = st.one_of(
    st.text(max_size=20).map(json.dumps),
    st.text(max_size=20).map(lambda s: json.dumps(s, ensure_ascii=False)),
    times.map(json.dumps),
    st.sampled_from(['"\\ud800"', '"\\udc00"', '"\\ud83d\\ude00"', '"\\u0000"', '"\\/"', '"\\x"']),
    st.sampled_from(['"\x00"', '"\t"', '"\x7f"', '"a', 'a"', '"}\n{"', "'a'"]),
)
scalars = st.one_of(strings, numbers, st.sampled_from(["null", "true", "false", "nul", "True"]))
anything = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: "[" + ",".join(items) + "]"),
        st.lists(st.tuples(strings, inner), max_size=3).map(
            lambda items: "{" + ",".join(f"{k}:{v}" for k, v in items) + "}"
        ),
    ),
    max_leaves=8,
)
FITTING = {"string": strings, "int": numbers, "double": numbers, "timestamp": times.map(json.dumps)}
space = st.sampled_from(["", "", "", "", " ", "\n", "\t", "\r\n"])


@st.composite
def near(draw: st.DrawFn, name: str) -> str:
    """A message of the stream that is nearly right: few things in it are odd."""
    parts = []
    for rule in PLANS[name].rules:
        if draw(st.integers(0, 15)) == 0:
            continue
        if draw(st.integers(0, 15)) == 0:
            value = draw(anything)
        elif rule.kind == "int" and draw(st.booleans()):
            value = str(draw(st.integers(0, 6)))
        elif rule.kind == "timestamp" and draw(st.booleans()):
            value = '"2026-01-05T14:30:00.25-05:00"'
        elif rule.kind == "double" and draw(st.booleans()):
            value = repr(draw(st.floats(allow_nan=False)))
        elif rule.kind == "string" and draw(st.booleans()):
            value = json.dumps(draw(st.text(max_size=5)))
        else:
            value = draw(FITTING.get(rule.kind, scalars))
        parts.append(f'"{rule.name}"{draw(space)}:{draw(space)}{value}')
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        key = draw(st.one_of(st.sampled_from([f'"{n}"' for n in NAMES]), strings))
        parts.append(f"{key}:{draw(anything)}")
    return draw(space) + "{" + ",".join(draw(st.permutations(parts))) + "}" + draw(space)


tokens = st.lists(
    st.sampled_from(
        [*"{}[]:,", '"', '"symbol"', '"A"', '"t"', "1", "1.5", "1e400", "NaN", "null", "true", " ",
         "\n", "\t", "\x00", "\\", "\\u0000", "/*", "*/", "//", "\ufeff", "\u2028", "é", "-", "{}",
         '{"symbol":"A"}', '{"symbol":"}', '{","i":1}']
    ),
    max_size=14,
).map("".join)  # fmt: skip


@st.composite
def values(draw: st.DrawFn, name: str) -> bytes | None:
    kind = draw(st.integers(0, 12))
    if kind == 0:
        return draw(st.one_of(st.none(), st.binary(max_size=20)))
    if kind <= 2:
        return ("{" + draw(tokens) + "}").encode()
    if kind == 3:
        return draw(tokens).encode()
    raw = draw(near(name)).encode("utf-8", "surrogatepass")
    if kind == 4 and raw:  # one byte is damaged
        at = draw(st.integers(0, len(raw) - 1))
        return raw[:at] + draw(st.binary(max_size=2)) + raw[at + 1 :]
    return raw


def check_agreement(name: str, examples: int) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(st.lists(values(name), max_size=8))
    @example([b'{"symbol":"A"}{"symbol":"B"}', b""])
    @example([b'{"symbol":"}', b'{","symbol":"x"}'])
    @example([b'{"symbol":"A"}{"symbol":"B"}{"symbol":"C"}\x00}', b'{"symbol":"D"}'])
    def agreement(batch: list[bytes | None]) -> None:
        agree(PLANS[name], batch)

    agreement()


@pytest.mark.parametrize("name", sorted(PLANS))
def test_columns_and_contract_agree(name: str) -> None:
    check_agreement(name, 100)


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(PLANS))
def test_columns_and_contract_agree_for_long(name: str) -> None:
    check_agreement(name, 3_000)


@settings(max_examples=500, deadline=None)
@given(st.lists(st.one_of(times, st.none()), max_size=6))
def test_times_agree(texts: list[str | None]) -> None:
    micros, valid = parse_timestamps(pa.array(texts, pa.string()))
    for text, number, held in zip(texts, micros.tolist(), valid.tolist(), strict=True):
        if held:
            assert number == micros_of(parse_timestamp(text))
        elif text is not None and len(text) <= 25:
            with pytest.raises(PydanticCustomError):
                parse_timestamp(text)


@settings(max_examples=200, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 40))
def test_doubles_are_read_to_the_last_bit(number: float, more: int) -> None:
    text = f"{number:.{more}e}"
    value = b'{"symbol":"A","ts":"2026-01-05T14:30:00Z","price":%s}' % text.encode()
    stock = PLANS["stock"]
    fast = decode(stock, pa.array([value], pa.binary()), few_rows=0)
    expected = float(text) + 0.0
    if expected in (float("inf"), float("-inf")):
        assert fast.rows.num_rows == 0
    else:
        assert str(fast.rows.column("price")[0].as_py()) == str(expected)
    same(fast, decode(stock, pa.array([value], pa.binary()), few_rows=1))


def test_shipped_contracts_are_all_covered() -> None:
    assert SHIPPED.keys() <= PLANS.keys()
