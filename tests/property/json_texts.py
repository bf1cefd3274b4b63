"""Messages for property tests: right, nearly right, and wrong in every way that JSON can be."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import strategies as st

from spillway.decode import compile_streams
from spillway_schemas.messages import Message
from spillway_schemas.query import load_query, query_of
from spillway_schemas.tomlfile import parse_toml

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


def contract_named(name: str) -> type[Message]:
    """The contract of one of `PLANS`."""
    return PLANS[name].contract


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
    st.sampled_from(["NaN", "-NaN", "nan", "Inf", "-Inf", "Infinity", "-Infinity", "1e400"]),
    st.sampled_from(["-0", "-0.0", "0e0", "1E+2", "1E5", "01", "-", "1.", ".5", "1e", "0x1", "+1"]),
    st.sampled_from(["1" * 18, "-" + "9" * 18, "1" * 19, "1e99", "1e100", "5e-324", "1e-400"]),
    st.sampled_from(["1" * 4_300, "1" * 4_301, "1" * 5_000, "0." + "3" * 5_000]),
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
    st.sampled_from(
        ['"\\u00"', '"\\u00zz"', '"\\uD7FF"', '"\\ue000\\""', '"\\\\"', '"\\\\\\""', '"\\"']
    ),
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
odd_space = st.sampled_from([" ", "  ", "\n", "\t", "\r\n", "\x0b", "\xa0", "\ufeff"])
space = st.integers(0, 24).flatmap(lambda n: st.just("") if n else odd_space)
deep = st.builds(
    lambda n, pair: pair[0] * n + "1" + pair[1] * n,
    st.sampled_from([1, 60, 198, 199, 200, 201, 300]),
    st.sampled_from([("[", "]"), ('{"a":', "}"), ('[{"i":', "}]")]),
)
wide = st.builds(
    lambda n, item, pair: pair[0] + ",".join([item] * n) + pair[1],
    st.sampled_from([0, 1, 70, 300]),
    st.sampled_from(["{}", "[]", "1", '"a"', '"a":1', "-Inf", ""]),
    st.sampled_from([("[", "]"), ("{", "}")]),
)


words = st.text("abé\U0001f600 ,:{}[]/", max_size=6).map(
    lambda s: json.dumps(s, ensure_ascii=False)
)
CALM = {
    "string": st.one_of(words, st.sampled_from(['"\\u00e9"', '"a\\nb"', '"\\\\"', '"\\""'])),
    "int": st.integers(-9, 10**6).map(str),
    "double": st.one_of(st.integers(-9, 9).map(str), st.floats(-1e6, 1e6).map("{:.3f}".format)),
    "bool": st.sampled_from(["true", "false"]),
    "timestamp": st.sampled_from(['"2026-01-05T14:30:00Z"', '"2026-01-05T14:30:00.25-05:00"']),
}


@st.composite
def calm(draw: st.DrawFn, name: str) -> str:
    """A message that is right, but for what it holds in a field that the contract ignores."""
    parts = [f'"{rule.name}":{draw(CALM[rule.kind])}' for rule in PLANS[name].rules]
    parts.append(f'"x":{draw(st.one_of(numbers, strings, CALM["double"], words))}')
    return "{" + ",".join(parts) + "}"


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
        known = st.sampled_from(NAMES)
        escaped = known.map(lambda n: f'"{n[:-1]}\\u{ord(n[-1]):04x}"')
        key = draw(st.one_of(known.map(json.dumps), escaped, strings))
        parts.append(f"{key}{draw(space)}:{draw(st.one_of(anything, numbers, deep, wide))}")
    between = draw(st.sampled_from([",", ",", ", ", " ,"]))
    behind = draw(st.sampled_from([*[""] * 20, ",", "}", "{}", "x", "\x00"]))
    text = "{" + between.join(draw(st.permutations(parts))) + "}"
    return draw(space) + text + draw(space) + behind


tokens = st.lists(
    st.sampled_from(
        [*"{}[]:,", '"', '"symbol"', '"A"', '"t"', "1", "1.5", "1e400", "NaN", "null", "true", " ",
         "\n", "\t", "\x00", "\\", "\\u0000", "/*", "*/", "//", "\ufeff", "\u2028", "é", "-", "{}",
         '{"symbol":"A"}', '{"symbol":"}', '{","i":1}']
    ),
    max_size=14,
).map("".join)  # fmt: skip


@st.composite
def value_texts(draw: st.DrawFn, name: str) -> bytes:
    kind = draw(st.integers(0, 12))
    if kind == 0:
        return draw(st.binary(max_size=20))
    if kind <= 2:
        return ("{" + draw(tokens) + "}").encode()
    if kind == 3:
        return draw(tokens).encode()
    raw = draw(calm(name) if kind > 8 else near(name)).encode("utf-8", "surrogatepass")
    if kind == 4 and raw:  # one byte is damaged
        at = draw(st.integers(0, len(raw) - 1))
        return raw[:at] + draw(st.binary(max_size=2)) + raw[at + 1 :]
    return raw
