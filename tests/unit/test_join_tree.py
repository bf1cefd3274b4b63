"""Trees of joins: their form in a query, where keys come from, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from spillway.decode import compile_query, compile_streams, decode, tree_spec
from spillway_schemas.expressions import ExpressionError, unqualified
from spillway_schemas.join_tree import KeySource, Leaf
from spillway_schemas.query import Query, QueryError, query_of
from spillway_schemas.tomlfile import parse_toml

STREAMS = """
[streams.a]
fields = { a1 = "int", v = "string" }
[streams.b]
fields = { a1 = "int", y = "int" }
[streams.c]
fields = { a1 = "int", c2 = "int", at = "timestamp" }
[streams.d]
fields = { d1 = "int", d2 = "int", hour = "timestamp" }
[streams.e]
fields = { e1 = "int" }
"""
LEFT_DEEP = (
    STREAMS
    + """
[join.top]
inputs = ["abcd", "e"]
on = [{ name = "k3", columns = { abcd = "d.d2", e = "e1" } }]
[join.abc]
inputs = ["a", "b", "c"]
on = ["a1"]
[join.abcd]
inputs = ["abc", "d"]
on = [
  { name = "k2", columns = { abc = "c2", d = "d1" } },
  { name = "hour", columns = { abc = "date_trunc('hour', c.at)", d = "hour" } },
]
"""
)
BUSHY = (
    STREAMS
    + """
[join.left]
inputs = ["a", "b"]
on = ["a1"]
[join.right]
inputs = ["c", "d", "e"]
on = [{ name = "k", columns = { c = "c2", d = "d1", e = "e1" } }]
[join.both]
inputs = ["right", "left"]
on = [{ name = "a1", columns = { right = "c.a1", left = "a1" } }]
"""
)


def query(text: str) -> Query:
    return query_of(parse_toml(text, Path("q.toml")))


def problems(text: str) -> list[str]:
    with pytest.raises(QueryError) as caught:
        query(text)
    return str(caught.value).splitlines()


def test_joins_stand_children_first_and_leaves_as_they_read_them() -> None:
    tree = query(LEFT_DEEP).tree
    assert [join.name for join in tree.joins] == ["abc", "abcd", "top"]
    assert tree.root.name == "top"
    assert query(LEFT_DEEP).inputs == ("a", "b", "c", "d", "e")
    assert tree.below("abcd") == ("a", "b", "c", "d")
    assert tree.joins_below("abcd") == ("abc", "abcd")
    assert [tree.level(name) for name in ("a", "abc", "abcd", "top")] == [0, 1, 2, 3]
    bushy = query(BUSHY)
    assert [join.name for join in bushy.tree.joins] == ["right", "left", "both"]
    assert bushy.inputs == ("c", "d", "e", "a", "b")
    assert bushy.tree.below("both") == bushy.inputs
    assert bushy.tree.level("both") == 2


def test_a_key_comes_from_one_leaf_below() -> None:
    tree = query(LEFT_DEEP).tree
    abc, abcd, top = tree.joins
    [a1], [k2, hour], [k3] = abc.keys, abcd.keys, top.keys
    assert [tree.source(a1, each) for each in abc.inputs] == [
        KeySource("a", "a1"),
        KeySource("b", "a1"),
        KeySource("c", "a1"),
    ]
    assert tree.source(k2, "abc") == KeySource("c", "c2")  # no other has such a column
    assert tree.source(hour, "abc") == KeySource("c", "date_trunc('hour', at)")
    assert tree.source(hour, "d") == KeySource("d", "hour")
    assert tree.source(k3, "abcd") == KeySource("d", "d2")


def test_an_expression_is_one_source_however_it_is_written() -> None:
    """So a row carries its value once."""
    text = LEFT_DEEP.replace('abcd = "d.d2"', """abcd = "date_trunc( 'hour',c.at )" """)
    tree = query(text).tree
    assert tree.source(tree.root.keys[0], "abcd") == KeySource("c", "date_trunc('hour', at)")


def test_a_quoted_column_is_that_column() -> None:
    text = LEFT_DEEP.replace('abcd = "d.d2"', r'abcd = "d.\"d2\""')
    assert text != LEFT_DEEP
    tree = query(text).tree
    assert tree.source(tree.root.keys[0], "abcd") == KeySource("d", "d2")
    assert query(text).fingerprint == query(LEFT_DEEP).fingerprint
    assert compile_query(query(text)) == compile_query(query(LEFT_DEEP))


KEYWORDS = """
[streams.a]
fields = { NAME = "int", for = "int" }
[streams.b]
fields = { NAME = "int" }
[streams.c]
fields = { k = "int" }
[join.ab]
inputs = ["a", "b"]
on = ["NAME"]
[join.abc]
inputs = ["ab", "c"]
on = [{ name = "k", columns = { ab = "b.\\"NAME\\"", c = "k" } }]
"""


@pytest.mark.parametrize("name", ["end", "case", "true", "from", "date", "timestamp", "x"])
def test_a_column_may_be_called_like_a_keyword(name: str) -> None:
    text = KEYWORDS.replace("NAME", name)
    found = compile_query(query(text))
    by_name = {plan.name: plan for plan in found.streams}
    assert (by_name["a"].sources, by_name["a"].plain) == ((name, "for"), (True, True))
    assert found.spec.result_schema.names[:4] == [name, "k", "a_for", "a_partition"]
    single = text.partition("[streams.c]")[0] + f'[join]\ninputs = ["a", "b"]\non = ["{name}"]\n'
    first, second = compile_query(query(single)).streams
    assert (first.sources, first.plain) == ((name, "for"), (True, True))
    assert (second.sources, second.plain) == ((name,), (True,))


@pytest.mark.parametrize("text", ["case", "b.case"])
def test_a_column_called_like_a_keyword_and_not_quoted_is_told_so(text: str) -> None:
    made = KEYWORDS.replace('b.\\"NAME\\"', text).replace("NAME", "case")
    (problem,) = problems(made)
    assert problem == (
        'q.toml:13: key k of ab: case is a word of SQL: for the column write "case" in quotes'
    )


@pytest.mark.parametrize("name", ["day", "date"])
def test_a_key_may_be_called_like_a_keyword(name: str) -> None:
    """And stands for itself, though a stream has a column of that name."""
    text = KEYWORDS.replace('NAME = "int"', 'ts = "timestamp", NAME = "timestamp"')
    text = text.replace('"NAME"]', '{ name = "NAME", expression = "date_trunc(\'day\', ts)" }]')
    text = text.replace('k = "int"', 'k = "timestamp"').replace('b.\\"NAME\\"', "NAME")
    tree = query(text.replace("NAME", name)).tree
    assert tree.source(tree.root.keys[0], "ab") == KeySource("a", "date_trunc('day', ts)")


def test_the_name_of_a_key_below_is_that_key() -> None:
    """Though several streams have a column of that name: all have the key's value."""
    both = query(BUSHY).tree.root.keys[0]
    assert query(BUSHY).tree.source(both, "left") == KeySource("a", "a1")
    # `hour` is a key of the join below, and a column of `d` and another of `e`.
    text = LEFT_DEEP.replace('e1 = "int" }', 'e1 = "int", hour = "timestamp" }')
    text = text.replace(
        'on = [{ name = "k3", columns = { abcd = "d.d2", e = "e1" } }]', 'on = ["hour"]'
    )
    tree = query(text).tree
    assert tree.source(tree.root.keys[0], "abcd") == KeySource("c", "date_trunc('hour', at)")
    assert query(text).key_names == ("a1", "k2", "hour")


def test_results_carry_the_keys_of_all_joins_and_no_field_that_is_a_key() -> None:
    found = query(LEFT_DEEP)
    assert found.key_names == ("a1", "k2", "hour", "k3")
    carried = {leaf: [rule.name for rule in found.payload(leaf)] for leaf in found.inputs}
    assert carried == {"a": ["v"], "b": ["y"], "c": ["at"], "d": [], "e": []}


def test_a_stream_is_read_twice_under_two_names() -> None:
    text = LEFT_DEEP.replace('"abcd", "e"]', '"abcd", "d as later"]').replace(" e = ", " later = ")
    text = text.replace('later = "e1"', 'later = "d2"').replace(
        '[streams.e]\nfields = { e1 = "int" }', ""
    )
    found = query(text)
    assert found.tree.leaves[-1] == Leaf("later", "d")
    assert found.topic("later") == "d"
    assert found.topics == ("a", "b", "c", "d")
    assert [rule.name for rule in found.payload("later")] == ["d1", "hour"]
    own = """
[streams.trade]
fields = { id = "int", next = "int" }
[join]
inputs = ["trade", "trade as following"]
on = [{ name = "pair", columns = { trade = "next", following = "id" } }]
"""
    assert query(own).inputs == ("trade", "following")
    assert not query(own).is_single


def test_the_fingerprint_is_of_the_shape_of_the_tree() -> None:
    base = query(BUSHY).fingerprint
    other = [
        BUSHY.replace('["right", "left"]', '["left", "right"]'),
        BUSHY.replace("c.a1", "c.c2"),
        BUSHY.replace("join.left", "join.lift")
        .replace('"left"]', '"lift"]')
        .replace("left =", "lift ="),
        BUSHY.replace('columns = { right = "c.a1"', 'columns = { right = "d.d2"'),
    ]
    assert len({base, *(query(text).fingerprint for text in other)}) == len(other) + 1
    assert query("# the same\n" + BUSHY).fingerprint == base
    spaced = LEFT_DEEP.replace("date_trunc('hour', c.at)", "date_trunc( 'hour',c.at )")
    assert query(spaced).fingerprint == query(LEFT_DEEP).fingerprint


def test_leaves_are_decoded_for_the_joins_that_read_them() -> None:
    """Expressions over a leaf's columns are keys of its own join, or go up as keys of one above."""
    found = compile_query(query(LEFT_DEEP))
    assert [(plan.name, plan.index) for plan in found.streams] == [
        ("a", 0),
        ("b", 1),
        ("c", 2),
        ("d", 4),
        ("e", 6),
    ]
    by_name = {plan.name: plan for plan in found.streams}
    assert by_name["c"].keys.names == ["a1"]
    assert by_name["c"].sources == ("a1", "c2", "date_trunc('hour', at)", "at")
    assert by_name["c"].plain == (True, True, False, True)
    assert by_name["c"].reads == ("at",)
    assert by_name["d"].keys.names == ["k2", "hour"]
    assert by_name["d"].sources == ("d1", "hour", "d2")
    # A key of a join above is never null; a column that results show alone may be.
    assert [field.nullable for field in by_name["c"].schema] == [False, False, False, True]
    for plan in found.streams:
        assert plan.schema.names == found.spec.row_schema(plan.index).names[:-2]
        assert plan.schema.types == found.spec.row_schema(plan.index).types[:-2]
    assert found.spec.parents == (1, 2, -1)
    assert [join.keys.names for join in found.spec.joins] == [["a1"], ["k2", "hour"], ["k3"]]
    assert found.spec.joins[1].keys.types == [pa.int64(), pa.timestamp("us", "UTC")]
    assert found.spec.result_schema.names[:7] == ["a1", "k2", "hour", "k3", "a_v", "b_y", "c_at"]
    assert found.spec == tree_spec(query(LEFT_DEEP))
    bushy = compile_query(query(BUSHY))
    assert bushy.spec.parents == (2, 2, -1)
    assert [plan.name for plan in bushy.streams] == ["c", "d", "e", "a", "b"]


def test_one_join_is_a_tree_of_one() -> None:
    alone = STREAMS.partition("[streams.c]")[0] + '[join.ab]\ninputs = ["a", "b"]\non = ["a1"]\n'
    found = compile_query(query(alone))
    assert [plan.sources for plan in found.streams] == [("a1", "v"), ("a1", "y")]
    assert (len(found.spec.joins), found.spec.parents) == (1, (-1,))
    assert found.spec.result_schema == found.spec.root.joined_schema
    named = alone.replace(
        'on = ["a1"]', 'on = [{ name = "k", columns = { a = "a.a1", b = "a1" } }]'
    )
    assert [plan.sources[0] for plan in compile_streams(query(named))] == ["a1", "a1"]


def test_a_row_without_a_key_of_a_join_above_is_rejected() -> None:
    """It can give no result. What is only shown may be null."""
    text = LEFT_DEEP.replace('abc = "c2"', 'abc = "try_cast(a.v as int)"')
    (plan, *_) = compile_streams(query(text))
    assert plan.sources == ("a1", "try_cast(v as int)", "v")
    values = [b'{"a1":1,"v":"7"}', b'{"a1":2,"v":"seven"}']
    found = decode(plan, pa.array(values, pa.binary()))
    assert found.kept.tolist() == [0]
    assert [column.to_pylist() for column in found.rows.columns] == [[1], [7], ["7"]]
    assert found.rejected.tolist() == [1]
    assert found.reasons == ["key: the join key is null"]


ONE_OF = "a join key is string, int, bool, date, timestamp or decimal, not double"


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        (
            'a1 = "int", y',
            'a1 = "string", y',
            18,
            "key a1 is not of one type: a int, b string, c int; give it columns and cast there, "
            'e.g. a = "try_cast(a1 as string)"',
        ),
        (
            'hour = "timestamp"',
            'hour = "int"',
            21,
            "key hour is not of one type: abc timestamp, d int; give the streams' fields one type",
        ),
        (
            'e1 = "int"',
            'e1 = "string"',
            15,
            "key k3 is not of one type: abcd int, e string; give it columns and cast there, "
            'e.g. abcd = "try_cast(d.d2 as string)"',
        ),
        ("date_trunc('hour', c.at)", "c.c2 / 2", 21, f"key hour of abc: {ONE_OF}"),
        ('d1 = "int"', 'd1 = "double"', 21, f"key k2 of d: {ONE_OF}; give the field the type"),
        ('e1 = "int"', 'e1 = "double"', 15, f"key k3 of e: {ONE_OF}"),
        ("'hour', c.at", "'blink', c.at", 21, "key hour of abc: DATE_TRUNC does not support"),
    ],
)
def test_key_types_are_checked_at_every_join(old: str, new: str, line: int, message: str) -> None:
    assert old in LEFT_DEEP
    with pytest.raises(QueryError) as caught:
        compile_query(query(LEFT_DEEP.replace(old, new, 1)))
    assert str(caught.value).startswith(f"q.toml:{line}: {message}")


def test_mistakes_of_all_joins_are_told_at_once() -> None:
    text = LEFT_DEEP.replace('a1 = "int", y', 'a1 = "string", y')
    text = text.replace('e1 = "int"', 'e1 = "bool"')
    with pytest.raises(QueryError) as caught:
        compile_query(query(text))
    assert [line.partition(" is not")[0] for line in str(caught.value).splitlines()] == [
        "q.toml:18: key a1",
        "q.toml:15: key k3",
    ]


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ('"b", "c"]', '"b", "x"]', 17, "no stream 'x'; there are: a, b, c, d, e; and the joins"),
        ('["abc", "d"]', '["abc", "top", "d"]', 14, "in a circle: top <- abcd <- top"),
        ('["abcd", "e"]', '["abcd", "abc"]', 20, "join abc is an input twice: list it only once"),
        ('["abc", "d"]', '["a as z", "d"]', 16, "no join reads top or abc, and only one may be"),
        ('"b", "c"]', '"b", "c", "d"]', 20, "stream d is read twice"),
        ('["abc", "d"]', '["abc as x", "d"]', 20, "abc is a join: only a stream is renamed"),
        ('["abc", "d"]', '["abc", "d as e"]', 20, "there is a stream e: choose another name"),
        ('["abc", "d"]', '["abc", "d as abc"]', 20, "there is a join abc: choose another name"),
        ('["abc", "d"]', '["abc", "d as é"]', 20, "'é' is not a name"),
        ("[join.abc]", "[join.a]", 16, "a is a stream, too: give the join a name of its own"),
        ('abc = "c2"', 'abc = "a1.c2"', 21, "no stream a1 is below; there are: a, b, c"),
        ('abc = "c2"', 'abc = "e.e1"', 21, "key k2 of abc: no stream e is below"),
        ('abc = "c2"', 'abc = "c.c3"', 21, "there is no column c3; there are: a1, at, c2"),
        ('abc = "c2"', 'abc = "c3"', 21, "there is no column c3"),
        ('abc = "c2"', 'abc = "y + c2"', 21, "y + c2 reads columns of several streams"),
        ('abc = "c2"', 'abc = "b.y + c.c2"', 21, "it reads columns of several streams (b, c)"),
        ('abc = "c2", ', "", 21, "key k2: columns says nothing for input abc"),
        ('abc = "c2"', 'abcx = "c2"', 21, "key k2: 'abcx' is not an input; there are abc, d"),
        ('y = "int"', 'c2 = "int"', 21, "c2 is ambiguous: write b.c2 or c.c2"),
        ('"k3"', '"k2"', 15, "another join has a key k2 of other columns"),
        (
            '"int", v',
            '"int", partition',
            2,
            "a_partition: field partition of a, the",
        ),
        ('abc = "c2"', 'abc = ""', 21, "key k2 of abc: an empty expression"),
        ('abc = "c2"', 'abc = "abc.a1"', 21, "abc is a join: write a1 without it"),
        ('["abc", "d"]', '["abc", "d again"]', 20, 'To read d again: "d as again"'),
        ("[join.abc]", "[join.abc]\nwindows = 1", 17, "did you mean window? allowed: inputs, on"),
        ('["a1"]', "[]", 18, "join.abc.on: at least one is needed"),
    ],
)
def test_errors_name_the_line_and_what_is_allowed(
    old: str, new: str, line: int, message: str
) -> None:
    assert old in LEFT_DEEP
    found = problems(LEFT_DEEP.replace(old, new, 1))
    assert any(f.startswith(f"q.toml:{line}: ") and message in f for f in found), found


def test_a_plain_join_beside_named_ones_is_what_is_wrong() -> None:
    (problem,) = problems(BUSHY + '[join]\ninputs = ["a", "b"]\non = ["a1"]\n')
    assert "join.inputs: a plain [join] is the only one; beside joins with a name" in problem


def test_columns_may_name_their_stream() -> None:
    assert unqualified("c.y") == ("c", "y")
    assert unqualified("date_trunc('minute', c.ts)") == ("c", "date_trunc('minute', ts)")
    assert unqualified("y * 1.5 = 'a.b'") == (None, "y * 1.5 = 'a.b'")
    assert unqualified('c."a.b" + c.y') == ("c", '"a.b" + y')
    with pytest.raises(ExpressionError, match=r"\(c, d\)"):
        unqualified("c.y + d.z")
