"""Each stage of decoding by itself: what it reads, and exactly what it leaves to the next.

The whole of them gives the same rows whichever stage reads a value, so a stage that leaves too much
is only slow. Here the stage's own answer is compared, with a definition that goes byte by byte.
"""

from __future__ import annotations

import json
import random
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spillway import decode
from spillway.decode import chunks, parse, templates
from spillway.decode.layout import Layout
from spillway.decode.parse import parse_alike, parse_each, pieces
from spillway.decode.rules import check, row_schema
from spillway.decode.scalars import (
    FALSE,
    FLOAT,
    INT,
    LONGEST_SCALAR,
    NULL,
    OTHER,
    TRUE,
    read_scalars,
)
from spillway.decode.templates import (
    MOST_TEMPLATES,
    RAW_TYPES,
    _escapes,
    _is_utf8,
    read_alike,
    template_of,
)
from spillway.decode.timestamps import parse_timestamps
from spillway_schemas.messages import FieldRule, Kind


def rule(name: str, kind: Kind) -> FieldRule:
    return FieldRule(name=name, kind=kind)


RULES = (
    rule("s", "string"),
    rule("n", "int"),
    rule("x", "double"),
    rule("b", "bool"),
    rule("t", "timestamp"),
)

# --- scalars


SCALARS = re.compile(
    rb"(?P<int>-?(?:0|[1-9][0-9]*))(?=[,\]} ])"
    rb"|(?P<float>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?)(?=[,\]} ])"
    rb"|(?P<true>true)(?=[,\]} ])|(?P<false>false)(?=[,\]} ])|(?P<null>null)(?=[,\]} ])"
)
KINDS = {"int": INT, "float": FLOAT, "true": TRUE, "false": FALSE, "null": NULL}


def scalar(text: bytes) -> tuple[int, int]:
    """What stands at the beginning of a text, and where it ends, by the definition."""
    match = SCALARS.match(text)
    if match is None or match.lastgroup is None or match.end() > LONGEST_SCALAR:
        return OTHER, -1
    digits = len(match.group().lstrip(b"-"))
    if match.lastgroup == "int" and digits > 18:
        return OTHER, -1
    return KINDS[match.lastgroup], match.end()


def read(texts: list[bytes]) -> list[tuple[int, int]]:
    """What the automaton says of each."""
    data = np.frombuffer(b"".join(texts) + bytes(64), np.uint8)
    sizes = np.array([0, *map(len, texts)], dtype=np.int64)
    begins = np.cumsum(sizes)[:-1]
    kinds, ends = read_scalars(data, begins)
    assert (kinds.dtype, ends.dtype) == (np.uint8, np.int64)
    found = zip(kinds.tolist(), (ends - begins).tolist(), strict=True)
    return [(kind, -1 if kind == OTHER else end) for kind, end in found]


def test_scalars_are_those_of_the_grammar() -> None:
    draw = random.Random(7)
    words = ["0", "7", "-", "12", "90", ".", "5", "e", "E", "+", "true", "false", "null", "t", "n"]
    texts = ["".join(draw.choices(words, k=draw.randrange(1, 6))) for _ in range(4000)]
    texts += ["9" * 18, "9" * 19, "-" + "9" * 18, "-" + "9" * 19, "1." + "1" * 22, "1." + "1" * 23]
    texts += ["1e5", "1e55", "1e555", "1.5E-07", "-0", "-0.0e+0", "00", "01", "+1", "1.", ".5", "-"]
    ends = [*",]} ", ":", '"', "\n", "\t", ""]
    given = [(text + draw.choice(ends)).encode() + b"#" for text in texts]
    given += [text.encode() + end.encode() for text in ("1", "1.5", "null") for end in ",]} "]
    assert read(given) == [scalar(text) for text in given]
    assert {kind for kind, _ in read(given)} == {OTHER, INT, FLOAT, TRUE, FALSE, NULL}


def test_no_scalar_is_read_beyond_the_longest() -> None:
    texts = [b"1." + b"1" * n + b"," for n in range(15, 30)]
    assert [kind == FLOAT for kind, _ in read(texts)] == [2 + n <= 24 for n in range(15, 30)]


def test_no_scalars_are_none() -> None:
    assert read([]) == []


# --- strings


def test_escapes_are_found_and_wrong_ones_named() -> None:
    draw = random.Random(3)
    parts = ["\\", "\\", '"', "n", "u", "0041", "d7ff", "D800", "dFfF", "e000", "00g1", "x", "/"]
    for _ in range(500):
        text = ("".join(draw.choices(parts, k=12)) + "#" * 8).encode()
        expected, wrong, at = [], [], 0
        while at < len(text):
            if text[at : at + 1] != b"\\":
                at += 1
                continue
            expected.append(at)
            after = text[at + 1 : at + 6]
            hexadecimal = re.fullmatch(rb"u[0-9a-fA-F]{4}", after)
            surrogate = re.match(rb"u[dD][89a-fA-F]", after)
            if not (hexadecimal and not surrogate) and after[:1] not in list(
                map(bytes, zip(b'"\\/bfnrt'))
            ):
                wrong.append(at)
            at += 2
        data = np.frombuffer(text, np.uint8)
        found, bad = _escapes(data, np.flatnonzero(data == ord("\\")))
        assert (found.tolist(), bad.tolist()) == (expected, wrong), text


def test_utf8_is_told() -> None:
    assert _is_utf8(np.frombuffer("aé€🙂".encode(), np.uint8))
    assert not _is_utf8(np.frombuffer(b"a\xc3", np.uint8))
    assert not _is_utf8(np.frombuffer(b"\xa9a", np.uint8))


# --- what looks alike


def value(i: int) -> dict[str, Any]:
    times = f"2026-01-05T14:30:{i % 60:02}Z"
    return {"s": f"S{i}", "n": i, "x": i / 4, "b": i % 3 == 0, "t": times}


def columns(found: list[tuple[Any, Any]]) -> dict[int, dict[str, Any]]:
    """Rows by their position."""
    rows: dict[int, dict[str, Any]] = {}
    for at, table in found:
        assert at.dtype == np.int64
        assert table.column_names == [each.name for each in RULES]
        rows |= dict(zip(at.tolist(), table.to_pylist(), strict=True))
    return rows


def alike(values: list[bytes | None]) -> tuple[dict[int, dict[str, Any]], list[int]]:
    found, rest = read_alike(RULES, pa.array(values, pa.binary()), 1 << 20)
    return columns(found), rest.tolist()


def test_values_of_one_form_are_all_read() -> None:
    values = [json.dumps(value(i)).encode() for i in range(50)]
    assert alike(list(values)) == ({i: value(i) for i in range(50)}, [])


def test_each_kind_may_be_null_or_missing() -> None:
    for name in "snxbt":
        each = [value(i) | {name: None} for i in range(20)]
        rows, rest = alike([json.dumps(one).encode() for one in each])
        assert rest == []
        assert rows == dict(enumerate(each))
        without = [{k: v for k, v in one.items() if k != name} for one in each]
        rows, rest = alike([json.dumps(one).encode() for one in without])
        assert rest == []
        assert rows == dict(enumerate(each))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("s", 1),
        ("s", True),
        ("n", 1.5),
        ("n", True),
        ("n", "1"),
        ("x", True),
        ("x", "1"),
        ("b", 1),
        ("b", "true"),
        ("t", 1),
        ("s", [1]),
        ("n", {"a": 1}),
    ],
)
def test_a_wrong_kind_is_left(name: str, wrong: Any) -> None:
    """Among values of its own form, and among right ones."""
    bad = json.dumps(value(1) | {name: wrong}).encode()
    assert alike([bad] * 20) == ({}, list(range(20)))
    good = [json.dumps(value(i)).encode() for i in range(20)]
    rows, rest = alike([*good, bad, *good])
    assert rest == [20]
    assert rows == {i: value(i % 21) for i in [*range(20), *range(21, 41)]}


def test_scalars_in_lists_and_names_within_are_no_fields() -> None:
    made = [value(i) | {"l": [i, 2.5, "q", None, [i]], "o": {"s": "no", "n": 7}} for i in range(20)]
    rows, rest = alike([json.dumps(each).encode() for each in made])
    assert rest == []
    assert rows == {i: value(i) for i in range(20)}


def test_the_last_of_a_repeated_name_counts() -> None:
    texts = [json.dumps(value(i))[:-1] + f', "n": {i + 7}}}' for i in range(20)]
    rows, rest = alike([text.encode() for text in texts])
    assert rest == []
    assert rows == {i: value(i) | {"n": i + 7} for i in range(20)}


def test_escapes_and_letters_beyond_ascii_are_read() -> None:
    strings = ["é", "🙂", 'q"q', "b\\", "\n\t/", "a\\u0041", "", '\\"', "€" * 30]
    made = [value(i) | {"s": strings[i % len(strings)]} for i in range(90)]
    for ascii_ in (True, False):
        texts = [json.dumps(each, ensure_ascii=ascii_).encode() for each in made]
        rows, rest = alike(list(texts))
        pairs = [i for i, each in enumerate(made) if ascii_ and each["s"] == "🙂"]
        assert rest == pairs, "surrogates are left to the contract"
        assert rows == {i: each for i, each in enumerate(made) if i not in pairs}


@pytest.mark.parametrize(
    "bad",
    [
        *(
            b"",
            None,
            b"[]",
            b"{",
            b'{"s":"\x01"}',
            b'{"s":"\xff"}',
            b'{"s":"\\x"}',
            b'{"s":"',
            b"{}x",
        ),
        *(b'{"s":"\x80"}', b"\x01{}", b"\x80{}", b"\\{}"),
    ],
)
def test_what_is_not_fit_leaves_its_neighbours_alone(bad: bytes | None) -> None:
    good = [json.dumps(value(i)).encode() for i in range(9)]
    rows, rest = alike([bad, *good, bad, *good, bad])
    assert rest == [0, 10, 20]
    assert len(rows) == 18


@pytest.mark.parametrize("size", range(1, 30))
def test_every_byte_between_two_holes_counts(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "MOST_TEMPLATES", 1)
    name = b"abcdefghijklmnopqrstuvwxyzabcdefgh"[:size]
    right = b'{"n":1,"%s":2}' % name
    begin = right.index(name)
    others = [right[:6] + b" " + right[7:], right[:2] + b"m" + right[3:]]
    others += [right[:at] + b"0" + right[at + 1 :] for at in range(begin, begin + size)]
    values = [right, *others, right]
    found, rest = read_alike(RULES[1:2], pa.array(values, pa.binary()), 1 << 20)
    assert [rows.tolist() for rows, _ in found] == [[0, len(values) - 1]]
    assert rest.tolist() == list(range(1, len(values) - 1))


def test_an_empty_value_does_not_end_the_trying() -> None:
    one = [json.dumps(value(i)).encode() for i in range(5)]
    other = [json.dumps(value(i) | {"more": 1}).encode() for i in range(6, 11)]
    rows, rest = alike([*one, b"", *other])
    assert rest == [5]
    assert rows == {i: value(i) for i in range(11) if i != 5}


def test_a_name_behind_something_nested_is_no_field_yet() -> None:
    made = [value(i) | {"o": {"l": [i], "s": "no", "p": {"q": {}, "n": 1}}} for i in range(20)]
    rows, rest = alike([json.dumps(each).encode() for each in made])
    assert rest == []
    assert rows == {i: value(i) for i in range(20)}


def test_forms_are_tried_in_turn_as_long_as_it_is_worth_it() -> None:
    def forms(*sizes: int) -> list[bytes | None]:
        return [
            json.dumps({f"f{form}": 1, **value(i)}).encode()
            for form, size in enumerate(sizes)
            for i in range(size)
        ]

    sizes = [20, 18, 16, 14, 12, 10, 9, 8, 7, 6, 5, 5]
    assert len(sizes) == MOST_TEMPLATES
    rows, rest = alike(forms(*sizes))
    assert (len(rows), rest) == (130, [])
    # One form too many.
    rows, rest = alike(forms(*sizes, 1))
    assert (len(rows), rest) == (130, [130])
    # The first form is of one in nine: what it matches is read, and no other is tried.
    rows, rest = alike([*forms(1), *[json.dumps(value(i)).encode() for i in range(8)]])
    assert (sorted(rows), rest) == ([0], list(range(1, 9)))
    # Of one in eight it is worth it.
    rows, rest = alike([*forms(1), *[json.dumps(value(i)).encode() for i in range(7)]])
    assert (sorted(rows), rest) == (list(range(8)), [])


def test_a_value_that_breaks_a_rule_s_kind_takes_no_other_with_it() -> None:
    """Its form matches the others of its form, but not itself: only it is passed over."""
    one = [json.dumps(value(i)).encode() for i in range(1, 9)]
    other = [json.dumps(value(i) | {"more": i}).encode() for i in range(9, 20)]
    wrong = json.dumps(value(0) | {"n": 0.5}).encode()
    rows, rest = alike([wrong, other[0], *one, *other[1:]])
    assert rest == [0]
    assert sorted(rows) == list(range(1, 20))


def test_behind_a_value_without_a_template_no_further_one_is_tried() -> None:
    values = [b'{"s":}', *(json.dumps(value(i)).encode() for i in range(4))]
    assert alike(list(values)) == ({}, [0, 1, 2, 3, 4])


def test_a_piece_that_is_too_large_is_left() -> None:
    values = pa.array([json.dumps(value(1)).encode()] * 3, pa.binary())
    size = len(values.buffers()[2])
    exact = int(Layout.of(values).data.size)
    assert exact <= size
    assert len(read_alike(RULES, values, exact)[1]) == 0
    found, rest = read_alike(RULES, values, exact - 1)
    assert (found, rest.tolist()) == ([], [0, 1, 2])


@pytest.mark.parametrize(
    "text",
    [b"[1]", b"1", b"{", b'"a"', b'{"a":' + b"[" * 9, b'{"a":"' + b"x" * 16_400 + b'"}'],
)
def test_no_template_of_what_is_no_object_or_too_long(text: bytes) -> None:
    assert template_of(text) is None


def test_a_template_has_bounds() -> None:
    def holes(n: int) -> bytes:
        return json.dumps({f"a{i}": i for i in range(n)}).encode()

    assert len(template_of(holes(64)).holes) == 64  # type: ignore[union-attr]
    assert template_of(holes(65)) is None
    assert template_of(json.dumps({"a": list(range(9))}).encode()) is not None
    assert template_of(json.dumps({"a": list(range(10))}).encode()) is None

    def literal(n: int) -> bytes:
        return b'{"' + b"n" * n + b'":1}'

    assert template_of(literal(4_096 - 5)) is not None
    assert template_of(literal(4_096 - 4)) is None
    assert template_of(b'{"a":"' + b"x" * (16_384 - 8) + b'"}') is not None
    assert template_of(b'{"a":"' + b"x" * (16_384 - 7) + b'"}') is None


@pytest.mark.parametrize(
    "type_", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()], ids=str
)
def test_where_values_lie(type_: Any) -> None:
    every = pa.array(["ab", "cde", None, "", "f"], type_)
    for values, starts, ends, valid in (
        (every, [0, 2, 5, 5, 5], [2, 5, 5, 5, 6], [True, True, False, True, True]),
        (every.slice(1, 2), [0, 3], [3, 3], [True, False]),
        (every.slice(1, 1), [0], [3], [True]),
        (every.slice(3, 1), [0], [0], [True]),
        (every.slice(2, 0), [], [], []),
        (pa.array([], type_), [], [], []),
        (pa.nulls(2, type_), [0, 0], [0, 0], [False, False]),
    ):
        layout = Layout.of(values)
        assert (layout.starts.tolist(), layout.ends.tolist()) == (starts, ends)
        assert layout.valid.tolist() == valid
        assert layout.rows == len(valid)
        assert (layout.starts.dtype, layout.ends.dtype) == (np.int64, np.int64)
        assert (layout.data.dtype, layout.valid.dtype) == (np.uint8, np.bool_)
        texts = [bytes(layout.data[a:b]) for a, b in zip(starts, ends, strict=True)]
        assert texts == [
            (text.as_py() or "").encode()
            if type_ in (pa.string(), pa.large_string())
            else text.as_py() or b""
            for text in values
        ]


def test_no_values_may_have_no_offsets() -> None:
    none = pa.py_buffer(b"")
    layout = Layout.of(pa.Array.from_buffers(pa.binary(), 0, [None, none, none]))
    assert (layout.rows, layout.data.size) == (0, 0)


def test_values_are_bytes() -> None:
    said = "values are bytes in an Arrow binary array, got int64"
    with pytest.raises(TypeError, match=f"^{said}$"):
        Layout.of(pa.array([1]))


def test_pieces_are_counted_from_their_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse, "PIECE_ROWS", 4)
    texts: list[bytes | None] = [json.dumps(value(i)).encode() for i in range(10)]
    texts[5] = b"no"
    found, rest = parse_alike(RULES, pa.array(texts, pa.binary()))
    assert rest.tolist() == [5]
    assert [each.rows.tolist() for each in found] == [[0, 1, 2, 3], [4, 6, 7], [8, 9]]
    rows = columns([(each.rows, each.columns) for each in found])
    assert rows == {i: value(i) for i in range(10) if i != 5}
    found, rest = parse_alike(RULES, pa.array([], pa.binary()))
    assert (found, rest.tolist(), rest.dtype) == ([], [], np.int64)


def test_pieces_have_so_many_values_and_bytes() -> None:
    values = pa.array([b"x" * size for size in (3, 3, 3, 9, 1, 1, 1, 0)], pa.binary())
    assert list(pieces(values, 100, 6)) == [(0, 2), (2, 3), (3, 4), (4, 8)]
    assert list(pieces(values, 2, 100)) == [(0, 2), (2, 4), (4, 6), (6, 8)]
    assert list(pieces(values.slice(3), 100, 10)) == [(0, 2), (2, 5)]
    assert list(pieces(values[:0], 2, 6)) == []


# --- one by one


def each(values: list[bytes | None], rows: list[int]) -> tuple[dict[int, Any], list[int]]:
    parsed, left = parse_each(RULES, pa.array(values, pa.binary()), np.array(rows, np.int64))
    assert left.dtype == np.int64
    assert parsed is None or len(parsed.rows)
    return ({} if parsed is None else columns([(parsed.rows, parsed.columns)])), left.tolist()


def test_values_are_read_one_by_one_and_the_rest_is_left() -> None:
    texts: list[bytes | None] = [
        json.dumps(value(0)).encode(),
        None,
        b"",
        b"[1]",
        b"{",
        json.dumps(value(5) | {"more": [1, {"s": 2}]}).encode(),
        b'{"s":"only"}',
    ]
    nothing = dict.fromkeys("snxbt")
    rows, left = each(texts, [0, 1, 2, 3, 4, 5, 6])
    assert left == [1, 2, 3, 4]
    assert rows == {0: value(0), 5: value(5), 6: nothing | {"s": "only"}}
    assert each(texts, [0, 6]) == ({0: value(0), 6: nothing | {"s": "only"}}, [])
    assert each(texts, [4]) == ({}, [4])
    assert each(texts, []) == ({}, [])


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("s", 1),
        ("n", 1.5),
        ("n", True),
        ("n", 2**63),
        ("n", -(2**63) - 1),
        ("x", 2**63),
        ("x", -(2**63) - 1),
        ("x", True),
        ("b", 1),
        ("t", 7),
        ("s", ["a"]),
    ],
)
def test_one_by_one_a_wrong_value_is_left_and_no_other(name: str, wrong: Any) -> None:
    made = [value(i) for i in range(5)]
    texts: list[bytes | None] = [json.dumps(one).encode() for one in made]
    texts[3] = json.dumps(made[3] | {name: wrong}).encode()
    texts[1] = json.dumps(made[1] | {name: None}).encode()
    rows, left = each(texts, [0, 1, 2, 3, 4])
    assert left == [3]
    assert rows == {0: made[0], 1: made[1] | {name: None}, 2: made[2], 4: made[4]}


@pytest.mark.parametrize("edge", [2**63 - 1, -(2**63)])
def test_numbers_at_the_edge_are_read(edge: int) -> None:
    rows, left = each([json.dumps(value(0) | {"n": edge, "x": edge}).encode()], [0])
    assert left == []
    assert rows == {0: value(0) | {"n": edge, "x": float(edge)}}


# --- times


def stamp(text: str | None) -> int | None:
    """Microseconds by the definition, for the forms that the column reader takes."""
    form = r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)"
    if text is None or len(text) > 35 or not re.fullmatch(form, text, re.ASCII):
        return None
    whole = re.match(r".{19}", text)
    assert whole is not None
    fraction, offset = re.fullmatch(r".{19}(?:\.(\d+))?(.+)", text).groups()  # type: ignore[union-attr]
    try:
        at = datetime.fromisoformat(whole[0].upper()).replace(tzinfo=UTC)
    except ValueError:
        return None
    if offset not in "Zz":
        hours, minutes = int(offset[1:3]), int(offset[4:])
        if hours > 23 or minutes > 59:
            return None
        shift = timedelta(hours=hours, minutes=minutes)
        try:
            at = at + shift if offset[0] == "-" else at - shift
        except OverflowError:
            return None
    micros = int(((fraction or "") + "000000")[:6])
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) + micros


def times(texts: list[str | None]) -> list[int | None]:
    micros, valid = parse_timestamps(pa.array(texts, pa.string()))
    assert (micros.dtype, valid.dtype) == (np.int64, np.bool_)
    found = zip(micros.tolist(), valid.tolist(), strict=True)
    return [number if good else None for number, good in found]


def forms() -> list[str | None]:
    dates = ["2026-01-05", "2024-02-29", "2023-02-29", "1900-02-29", "2000-02-29", "0001-01-01"]
    dates += ["9999-12-31", "0000-06-01", "2026-13-01", "2026-00-10", "2026-04-31", "2026-12-00"]
    dates += ["1969-12-31", "2026-10-32", "202x-01-05", "2026/01-05", "2026-01/05"]
    clocks = ["14:30:00", "00:00:00", "23:59:59", "24:00:00", "23:60:00", "23:59:60", "1a:30:00"]
    clocks += ["14.30:00", "14:30.00", "1::30:00", "14:30:0:"]
    between = ["T", "t", " ", "_", "S", "U"]
    ends = [
        "Z",
        "z",
        "+00:00",
        "-00:00",
        "+05:30",
        "-23:59",
        "+23:59",
        "+24:00",
        "+10:60",
        "*05:30",
    ]
    ends += ["+0::30", "+05:3:", "+05.30", "+0x:30", "+05:3x", "", "Y", "[", "+05:30Z"]
    fractions = ["", ".", ".1", ".12", ".123", ".1234", ".12345", ".123456", ".1234567"]
    fractions += [
        ".999999999",
        ".1234567890",
        ".12345678901234",
        ".123456789012345",
        ",123",
        ".12x",
    ]
    made: list[str | None] = [f"{date}T14:30:00Z" for date in dates]
    made += [
        f"{date}{t}{c}{e}" for date in dates[:1] for t in between for c in clocks for e in ends
    ]
    made += [f"2026-01-05T14:30:00{f}{e}" for f in fractions for e in ends]
    made += [f"{date}T{c}{e}" for date in dates for c in clocks[:3] for e in ends[:7]]
    made += ["9999-12-31T23:59:59.999999+00:00", "0001-01-01T00:00:00.000000+00:00"]
    return [
        *made,
        None,
        "",
        "soon",
        "2026-01-05",
        "2026-01-05T14:30",
        "2026-01-05T14:30:00",
        "2026-01-05T14:30:0Z",
    ]


def test_times_of_all_forms_beside_each_other() -> None:
    given = forms()
    assert times(given) == [stamp(text) for text in given]


def test_times_of_one_length_beside_each_other() -> None:
    given = forms()
    for length in sorted({len(text) for text in given if text is not None}):
        alike_ = [text for text in given if text is not None and len(text) == length]
        assert times(alike_) == [stamp(text) for text in alike_]
        for one in alike_[:40]:
            assert times([one]) == [stamp(one)]
        assert times([*alike_, None]) == [*[stamp(text) for text in alike_], None]


def test_times_of_a_slice() -> None:
    given: list[str | None] = ["soon", "2026-01-05T14:30:00Z", "2026-01-05T14:30:01Z", "2026"]
    micros, valid = parse_timestamps(pa.array(given, pa.string()).slice(1, 2))
    assert micros.tolist() == [stamp(given[1]), stamp(given[2])]
    assert valid.all()
    for behind in ("2026-01-05T14:30:02Z", "2026-01-05T14:30:02.123Z"):
        given[3] = behind
        micros, valid = parse_timestamps(pa.array(given, pa.string()).slice(1, 2))
        assert (micros.tolist(), valid.tolist()) == ([stamp(given[1]), stamp(given[2])], [True] * 2)
    assert times([]) == []
    assert times([None, None]) == [None, None]
    assert times(["", ""]) == [None, None]


# --- rules


def checked(rule: FieldRule, column: Any) -> tuple[list[Any], list[bool]]:
    """A column by its rule: what it becomes, and where the rule holds."""
    (found,), good = check([rule], pa.table({rule.name: column}))
    assert found.type == row_schema([rule]).field(0).type
    assert good.dtype == np.bool_
    found.validate(full=True)
    return found.to_pylist(), good.tolist()


@pytest.mark.parametrize("chunks_", [1, 2])
@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({"ge": -1, "le": 5}, [False, True, True, True, False]),
        ({"ge": -1, "le": 2**63 - 1}, [False, True, True, True, True]),
        ({"ge": -(2**63), "le": 5}, [True, True, True, True, False]),
        ({"ge": -(2**63), "le": 2**63 - 1}, [True, True, True, True, True]),
    ],
)
def test_bounds_of_a_number_are_inside(
    bounds: dict[str, int], expected: list[bool], chunks_: int
) -> None:
    numbers = [-2, -1, 0, 5, 6]
    column = (
        pa.chunked_array([pa.array(numbers)])
        if chunks_ == 1
        else pa.chunked_array([numbers[:2], numbers[2:]])
    )
    assert checked(FieldRule("n", "int", **bounds), column) == (numbers, expected)


@pytest.mark.parametrize("optional", [False, True])
@pytest.mark.parametrize(
    ("kind", "raw", "typed", "held"),
    [
        ("string", ["a", None], ["a", None], [True, None]),
        ("int", [7, None, 99], [7, None, 99], [True, None, False]),
        ("bool", [False, None, True], [False, None, True], [True, None, True]),
        (
            "double",
            [-0.0, None, 1.5, float("inf"), float("-inf")],
            [0.0, None, 1.5, float("inf"), float("-inf")],
            [True, None, True, False, False],
        ),
        (
            "timestamp",
            ["1970-01-01T00:00:01Z", None, "1970-01-01T00:00:00+00:30"],
            [
                datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
                None,
                datetime(1969, 12, 31, 23, 30, tzinfo=UTC),
            ],
            [True, None, True],
        ),
    ],
)
def test_a_null_keeps_the_rule_of_an_optional_field_only(
    kind: Kind, raw: list[Any], typed: list[Any], held: list[bool | None], optional: bool
) -> None:
    bounds = {"ge": 0, "le": 9} if kind == "int" else {}
    found, good = checked(FieldRule("f", kind, optional, **bounds), pa.array(raw, RAW_TYPES[kind]))
    assert found == typed
    assert "-0.0" not in str(found)
    assert good == [optional if each is None else each for each in held]


def test_a_time_that_is_none_and_a_number_that_is_none_break_the_rule() -> None:
    assert checked(rule("t", "timestamp"), pa.array(["soon", "1970-01-01T00:00:00Z"]))[1] == [
        False,
        True,
    ]
    assert checked(rule("x", "double"), pa.array([float("nan"), 0.5]))[1] == [False, True]


def test_every_rule_must_hold() -> None:
    rules = [FieldRule("n", "int", ge=0, le=9), rule("s", "string"), rule("x", "double")]
    raw = pa.table(
        {
            "n": pa.array([1, 10, 1, 1, None], pa.int64()),
            "s": ["a", "a", None, "a", None],
            "x": [0.5, 0.5, 0.5, float("inf"), None],
        }
    )
    assert check(rules, raw)[1].tolist() == [True, False, False, False, False]
    empty, good = check(rules, raw.schema.empty_table())
    assert [(column.type, len(column)) for column in empty] == [
        (pa.int64(), 0),
        (pa.string(), 0),
        (pa.float64(), 0),
    ]
    assert len(good) == 0


def test_every_kind_has_a_column_type() -> None:
    rules = [rule(kind, kind) for kind in ("string", "int", "double", "bool", "timestamp", "json")]
    rules.append(FieldRule("decimal", "decimal", optional=True, precision=12, scale=3))
    assert row_schema(rules) == pa.schema(
        [
            pa.field("string", pa.string(), nullable=False),
            pa.field("int", pa.int64(), nullable=False),
            pa.field("double", pa.float64(), nullable=False),
            pa.field("bool", pa.bool_(), nullable=False),
            pa.field("timestamp", pa.timestamp("us", "UTC"), nullable=False),
            pa.field("json", pa.string(), nullable=False),
            pa.field("decimal", pa.decimal128(12, 3)),
        ]
    )


# --- how much at once


def test_rows_are_read_in_chunks_of_so_many_and_so_many_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decode, "CHUNK_ROWS", 3)
    monkeypatch.setattr(decode, "CHUNK_BYTES", 10)
    values = pa.array([b"x" * n for n in (1, 1, 1, 1, 9, 5, 5, 30, 1, 2)], pa.binary())

    def cut(rows: list[int]) -> list[list[int]]:
        return [some.tolist() for some in decode._chunks(values, np.array(rows, np.int64))]

    assert cut(list(range(10))) == [[0, 1, 2], [3, 4], [5, 6], [7], [8, 9]]
    assert cut([0, 4, 7, 9]) == [[0, 4], [7], [9]]
    assert cut([4, 0, 1]) == [[4, 0], [1]]
    assert cut([]) == []


def test_a_chunk_is_cut_into_parts_of_so_many_messages() -> None:
    values = pa.array([b"%d" % n for n in range(5)], pa.large_binary())
    whole = chunks.Chunk("t", 3, values, np.arange(10, 15), np.arange(5))
    parts = list(whole.parts(2))
    assert [part.offsets.tolist() for part in parts] == [[10, 11], [12, 13], [14]]
    assert [part.values.to_pylist() for part in parts] == [[b"0", b"1"], [b"2", b"3"], [b"4"]]
    assert [part.kafka_ms.tolist() for part in parts] == [[0, 1], [2, 3], [4]]
    assert {(part.topic, part.partition) for part in parts} == {("t", 3)}
