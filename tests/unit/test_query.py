"""Queries: the file's form, what is refused with which line, and the fingerprint."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from spillway_schemas.expressions import ExpressionError, columns_of, normalised, plain_column
from spillway_schemas.query import Query, QueryError, load_query, query_of, shipped_queries
from spillway_schemas.tomlfile import parse_toml

TWO = """
[streams.stock]
schema = "stock"
[streams.trade]
topic = "trades-v2"
fields = { ticker = "string", at = "timestamp", price = "decimal(18,4)", note = "string?" }
filter = "price > 0"
[join]
inputs = ["stock", "trade"]
on = [
  { name = "symbol", columns = { stock = "symbol", trade = "ticker" } },
  { name = "minute", columns = { stock = "MINUTE, ts)", trade = "MINUTE, at)" } },
]
""".replace("MINUTE", "date_trunc('minute'")


def query(text: str) -> Query:
    return query_of(parse_toml(text, Path("q.toml")))


def problems(text: str) -> list[str]:
    with pytest.raises(QueryError) as caught:
        query(text)
    return str(caught.value).splitlines()


def test_shipped_queries_load() -> None:
    assert shipped_queries() == [
        "bushy",
        "five_way",
        "quoted_trades",
        "symbol",
        "symbol_minute",
        "symbol_window",
    ]
    symbol = load_query("symbol")
    assert symbol.inputs == ("stock", "volume", "review")
    assert [symbol.topic(name) for name in symbol.inputs] == ["stock", "volume", "review"]
    assert [[rule.name for rule in symbol.payload(name)] for name in symbol.inputs] == [
        ["ts", "price", "currency"],
        ["ts", "shares"],
        ["ts", "reviewer", "rating", "text"],
    ]
    minute = load_query("symbol_minute")
    assert [key.name for key in minute.join.keys] == ["symbol", "minute"]
    assert minute.payload("stock") == symbol.payload("stock")
    assert minute.fingerprint != symbol.fingerprint


def test_shipped_trees_load() -> None:
    five = load_query("five_way")
    assert five.inputs == ("a", "b", "c", "d", "e")
    assert [join.inputs for join in five.tree.joins] == [
        ("a", "b", "c"),
        ("abc", "d"),
        ("abcd", "e"),
    ]
    assert five.key_names == ("k1", "k2", "k3")
    # Two columns a stream, as in the papers: the second of A, B and E joins nothing.
    assert [[rule.name for rule in five.streams[name].rules] for name in "abcde"] == [
        [f"{name}1", f"{name}2"] for name in "abcde"
    ]
    assert [[rule.name for rule in five.payload(name)] for name in "abcde"] == [
        ["a2"],
        ["b2"],
        [],
        [],
        ["e2"],
    ]
    bushy = load_query("bushy")
    assert [join.inputs for join in bushy.tree.joins] == [
        ("orders", "fills"),
        ("accounts", "clients"),
        ("filled", "owned"),
    ]
    assert bushy.key_names == ("number", "client", "account")
    trades = load_query("quoted_trades")
    assert [join.inputs for join in trades.tree.joins] == [
        ("trade", "quote"),
        ("quoted", "company"),
        ("named", "review"),
    ]
    assert trades.key_names == ("symbol", "minute", "company_id")
    assert trades.streams["review"].contract == "review"


def test_own_fields_keys_of_other_names_and_projection() -> None:
    both = query(TWO)
    assert both.topic("trade") == "trades-v2"
    assert [rule.name for rule in both.payload("trade")] == ["at", "price", "note"]
    few = query(TWO + '[results]\ncolumns = ["trade.price", "trade.ticker"]\n')
    assert few.payload("stock") == ()
    assert [rule.name for rule in few.payload("trade")] == ["ticker", "price"]


def test_a_query_pickles_with_the_lines_of_its_file() -> None:
    again = pickle.loads(pickle.dumps(query(TWO)))
    assert again.fingerprint == query(TWO).fingerprint
    assert again.where("streams", "trade", "filter") == "q.toml:7"


def test_the_fingerprint_is_of_the_meaning() -> None:
    base = query(TWO).fingerprint
    spelled_out = TWO.replace(
        'schema = "stock"',
        'fields = { symbol = "string", ts = "timestamp", price = "double", currency = "string?" }',
    )
    same = [
        "# a comment\n" + TWO,
        TWO.replace("price > 0", "price  >  0"),
        TWO.replace("decimal(18,4)", "decimal( 18 , 4 )"),
        TWO.replace('schema = "stock"', 'schema = "stock"\ntopic = "stock"'),
        spelled_out,
    ]
    other = [
        TWO.replace("price > 0", "price > 1"),
        TWO.replace("decimal(18,4)", "decimal(18,5)"),
        TWO.replace("trades-v2", "trades-v3"),
        TWO.replace("'minute', at", "'hour', at"),
        TWO.replace('["stock", "trade"]', '["trade", "stock"]'),
        TWO.replace('"symbol", columns', '"ticker", columns'),
        TWO.replace('"string?"', '"string"'),
        TWO + '[results]\ncolumns = ["trade.price"]\n',
    ]
    assert {query(text).fingerprint for text in same} == {base}
    assert len({query(text).fingerprint for text in other} | {base}) == len(other) + 1


def test_fingerprints_stay_as_they_are() -> None:
    # Warehouses hold these: a change makes every existing one refuse its own query.
    assert load_query("symbol").fingerprint == (
        "sha256:a961e27ac57dc4b8a5292bb67cae75055a212ecaa167514066bc3fa020107742"
    )
    assert load_query("symbol_minute").fingerprint == (
        "sha256:d245da8d2b8e16363d7d6a2685b3e8133edef9450c59a646072a7430d87d50b1"
    )
    assert load_query("five_way").fingerprint == (
        "sha256:55b88eef003b19d96ee56a6ecf623291b665bd0109a61f94878569be3d355b7b"
    )
    assert load_query("quoted_trades").fingerprint == (
        "sha256:579197c509e269b5e429667e2164159ada79e75710cbce7f45e3ab04fe3aebfd"
    )


EMPTY = "key s of stock: an empty expression"
THREE = """
[streams.stock]
schema = "stock"
[streams.volume]
schema = "volume"
[streams.review]
schema = "review"
[join]
inputs = ["stock", "volume", "review"]
on = ["symbol"]
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ('schema = "stock"', 'schema = "stok"', 3, "there is no schema 'stok'; there are: stock"),
        ('schema = "stock"', 'schem = "stock"', 3, "allowed: topic, schema, fields, filter"),
        ('schema = "stock"', "fields = {}", 3, "it is empty"),
        ('schema = "stock"', 'fields = { symbol = "text" }', 3, "allowed: string, int, double"),
        ('schema = "stock"', 'fields = { symbol = "decimal(40,2)" }', 3, "p <= 38"),
        ('schema = "stock"', 'fields = { "a b" = "int" }', 3, "'a b' is no field name"),
        ('schema = "stock"', 'topic = "stock"', 2, "give either schema"),
        ('"stock"\n', '"stock"\ntopic = "a/b"\n', 4, "'a/b' is no name of a topic"),
        ('"stock"\n', '"stock"\ntopic = "volume"\n', 5, "topic volume is stream stock already"),
        ('["stock", "volume", "review"]', '"stock"', 9, 'write a list: inputs = ["...", "..."]'),
        ('"stock"\n', '"stock"\nfilter = "prize > 1"\n', 4, "no column prize; did you mean price?"),
        ('"stock"\n', '"stock"\nfilter = "1 = 1"\n', 4, "reads no column"),
        ('["symbol"]', "[]", 10, "at least one is needed"),
        ('["symbol"]', '["symbl"]', 10, "no column symbl; did you mean symbol?"),
        ('["symbol"]', '["symbol", "ts", "symbol"]', 10, "two keys of the same name: symbol"),
        ('["symbol"]', '["symbol", "price"]', 10, "key price of volume: there is no column price"),
        ('["symbol"]', '[{ nam = "x" }]', 10, "allowed: name, expression, columns"),
        ('["symbol"]', '[{ name = "a b" }]', 10, "is no column name"),
        ('["symbol"]', '[{ name = "s", columns = { stock = "symbol" } }]', 10, "nothing for input"),
        ('["symbol"]', '[{ name = "s", columns = { stock = "" } }]', 10, EMPTY),
        ('["symbol"]', '[{ name = "s", expression = " " }]', 10, EMPTY),
        ('["symbol"]', '[{ name = "symbol", expression = "" }]', 10, "stock: an empty expression"),
        (
            '["symbol"]',
            '[{ name = "epoch", expression = "symbol" }]',
            10,
            "called epoch: a column that all",
        ),
        ('"review"]', '"reviews"]', 9, "there is no stream 'reviews'; there are: stock, volume"),
        ('"review"]', '"stock"]', 9, "stream stock is read twice: give one of them"),
        (', "review"]', "]", 6, "stream review is not an input of the join"),
        ('["stock", "volume", "review"]', '["stock"]', 9, "join.inputs: at least 2 are needed"),
        (
            '["stock", "volume", "review"]',
            '[{ inputs = ["stock", "volume"], on = ["symbol"] }, "review"]',
            9,
            "write that one as [join.NAME]",
        ),
        ('["symbol"]', '["symbol"]\noptional = []', 11, "at least one is needed"),
        ('["symbol"]', '["symbol"]\noptional = "review"', 11, 'write a list: optional = ["...'),
        (
            '["symbol"]',
            '["symbol"]\noptional = ["reviews"]',
            11,
            "'reviews' is no input of the join; there are: stock, volume, review",
        ),
        ('["symbol"]', '["symbol"]\noptional = ["stock", "stock"]', 11, "stock is there twice"),
        (
            '["symbol"]',
            '["symbol"]\nwindow = "1 minute"\noptional = ["stock"]',
            12,
            "a join with a window is an inner join: leave one of the two out",
        ),
        (
            '"review"]\non = ["symbol"]',
            '"review", "stock as later"]\non = ["symbol"]\noptional = ["review"]',
            11,
            "a join that reads a stream twice is an inner join: leave optional out",
        ),
        ("[join]", "[window]\nw = 1\n[join]", 8, "there is no such key; allowed: streams, join"),
        ('on = ["symbol"]', 'on = ["symbol"]\n[results]\ncolumns = ["stock.x"]', 12, "stock.price"),
    ],
)
def test_errors_name_the_line_and_what_is_allowed(
    old: str, new: str, line: int, message: str
) -> None:
    assert old in THREE
    found = problems(THREE.replace(old, new, 1))
    assert any(f.startswith(f"q.toml:{line}: ") and message in f for f in found), found


def test_optional_inputs_come_in_the_order_of_the_inputs() -> None:
    found = query(THREE + 'optional = ["review", "stock"]\n')
    assert found.optional == ("stock", "review")
    assert query(THREE).optional == ()
    again = query(THREE + 'optional = ["stock", "review"]\n')
    assert again.fingerprint == found.fingerprint != query(THREE).fingerprint


def test_a_tree_has_inner_joins_only() -> None:
    text = THREE.replace("[join]", "[join.pair]").replace(', "review"]', "]")
    text += '[join.all]\ninputs = ["pair", "review"]\non = ["symbol"]\noptional = ["review"]\n'
    assert problems(text) == [
        "q.toml:14: a tree of joins has inner joins only. Write it as one join if all keys are "
        "equal, or leave optional out"
    ]


def test_columns_that_differ_in_case_only_are_refused() -> None:
    text = TWO.replace("note =", 'Price = "int", note =')
    assert any("price, Price differ only in case" in line for line in problems(text))
    clash = TWO.replace("note =", '"offset" = "int", note =')
    assert any("called trade_offset" in line for line in problems(clash))


def test_unknown_shipped_queries_and_missing_files() -> None:
    with pytest.raises(QueryError, match="did you mean symbol_minute"):
        load_query("symbol_minut")
    with pytest.raises(QueryError, match="there is no such file"):
        load_query("./nothing.toml")


def test_a_file_that_is_not_toml_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "q.toml"
    path.write_text('[streams.stock]\nschema = "stock\n')
    with pytest.raises(QueryError, match=r"q\.toml:2: not valid TOML"):
        load_query(str(path))


COLUMNS = frozenset({"symbol", "ts", "price", "date", "n"})


@pytest.mark.parametrize(
    ("text", "used"),
    [
        ("date_trunc('minute', ts)", {"ts"}),
        ("extract(hour from ts) between 14 and 20", {"ts"}),
        ("price * 2 > 1.5e3 and symbol in ('A', 'it''s')", {"price", "symbol"}),
        ('"date" is not null', {"date"}),
        ("date > 'x'", {"date"}),
        ("try_cast(symbol as int) = n", {"symbol", "n"}),
        ("case when n > 0 then 'p' else symbol end = 'p'", {"n", "symbol"}),
        ("not (price < 0 or n % 2 = 0)", {"price", "n"}),
        ("n - -1 > 0", {"n"}),
        ("strpos(lower(symbol), 'a-b') > 0", {"symbol"}),
        ("round(price, -2) > substr(coalesce(symbol, date), 1, 3)", {"price", "symbol", "date"}),
        ("concat_ws('-', symbol, date) not like '%a'", {"symbol", "date"}),
    ],
)
def test_expressions_that_are_allowed(text: str, used: set[str]) -> None:
    assert columns_of(text, COLUMNS) == used


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "an empty expression"),
        ("price > (select 1)", "no column select"),
        ("symbol in (select symbol from rows_)", "no column select"),
        ("read_csv('/etc/passwd')", "function read_csv is not allowed"),
        ("exists (select 1)", "function exists is not allowed"),
        ("sum(price)", "function sum is not allowed"),
        ("row_number() over (order by ts)", "function row_number is not allowed"),
        ("price over (partition by symbol)", "function over is not allowed"),
        ("random() < n", "function random is not allowed"),
        ("now() > ts", "function now is not allowed"),
        ("cast(symbol as int) = n", "use try_cast"),
        ("n; drop table x", "';"),
        ("n -- comment", "comments"),
        ("n /* x */", "comments"),
        ("*", "multiplication"),
        ("n = *", "multiplication"),
        ("coalesce(*)", "multiplication"),
        ("n) as a, (n", "there is a ) without a ("),
        ("(n", "a ( is not closed"),
        ("n as secret", "type secret"),
        ("'unfinished", "the quote before unfinished is not closed"),
        ('n > "x', "the quote before x is not closed"),
        ("n ~ 'x'", "is not allowed here"),
        ("n @> 1", "is not allowed here"),
        ("ｎ > 1", "is not allowed here"),
        ("rows_.n", "is not allowed here"),
        ("prise > 1", "did you mean price?"),
        ("try_cast(symbol as date) > ts", "a cast to date is not allowed: how a text is read"),
        ("try_cast(n as Timestamp) > ts", "a cast to timestamp is not allowed"),
        ("strpos(symbol, date) = 1", "the arguments after the first of strpos must be written out"),
        ("strpos(symbol, 'a.b') = 1", "strpos takes no '.': it would be read as a regular"),
        (
            "substr(symbol, 1, n) = 'a'",
            "the arguments after the first of substr must be written out",
        ),
        ("left(symbol, (1)) = 'a'", "the arguments after the first of left must be written out"),
        ("concat_ws(symbol, date) = 'a'", "the first argument of concat_ws must be written out"),
        ("symbol like date", "like needs a pattern in quotes"),
        ("upper(symbol) ilike (date)", "function ilike is not allowed"),
    ],
)
def test_expressions_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        columns_of(text, COLUMNS)
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["case", "CASE", "case > 1", "(case)", "extract(day from case)"])
def test_a_column_called_like_a_keyword_is_to_be_quoted(text: str) -> None:
    quoted = 'Case is a word of SQL: for the column write "Case" in quotes'
    with pytest.raises(ExpressionError, match=f"^{re.escape(quoted)}$"):
        columns_of(text, frozenset({"Case", "n", "true"}))
    assert columns_of('"Case"', frozenset({"Case"})) == {"Case"}


@pytest.mark.parametrize(
    "text", ["1 = 1", "'case'", "null", "not true", "date '2026-01-05' = date '2026-01-05'"]
)
def test_an_expression_without_a_column_is_the_same_for_every_row(text: str) -> None:
    """Though there are columns of other names, and some that are taken for columns alone."""
    with pytest.raises(ExpressionError, match=r"^it reads no column, so it is the same for every"):
        columns_of(text, frozenset({"case", "date", "end", "symbol"}))


def test_a_keyword_is_a_keyword_where_a_column_is_read() -> None:
    text = "case when n > 0 then 1 end = 1"
    assert columns_of(text, frozenset({"case", "end", "n"})) == {"n"}


def test_plain_columns_and_normal_form() -> None:
    assert plain_column(" symbol ") == "symbol"
    assert plain_column('"date"') == "date"
    assert plain_column("upper(symbol)") is None
    assert plain_column("null") is None
    assert normalised("a  >\n 'x  y'") == "a > 'x  y'"


def test_lines_are_found_in_awkward_files() -> None:
    text = '''# top
"quoted key" = """
not = "a key"
[nor.a.table]
"""
[a.b]  # comment
c . d = 1
[[list]]
x = 1
[[list]]
x = 2
[list.inner]
y = 3
'''
    file = parse_toml(text, Path("f.toml"))
    assert file.line(("quoted key",)) == 2
    assert file.line(("not",)) is None
    assert file.line(("a", "b", "c", "d")) == 7
    assert file.line(("list", 0, "x")) == 9
    assert file.line(("list", 1, "x")) == 11
    assert file.line(("list", 1, "inner", "y")) == 13
    assert file.line(("a", "b", "z")) == 6
    assert file.where(("z",)) == "f.toml"
