"""`spillway explain`: the tree of a query as text, picture and JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import typer

from spillway.cli import main
from spillway.commands import terminal
from spillway.commands.explain import explain

GOLDEN = Path(__file__).parent / "golden"

TREE = """
[streams.trade]
fields = { symbol = "string", at = "timestamp", company = "int", price = "double", note = "string" }
topic = "trades-v2"
filter = "price > 0"
[streams.quote]
fields = { symbol = "string", at = "timestamp", bid = "double" }
[streams.company]
fields = { id = "int", name = "string" }
[join.quoted]
inputs = ["trade", "quote"]
on = ["symbol", { name = "minute", expression = "date_trunc('minute', at)" }]
[join.named]
inputs = ["quoted", "company"]
on = [{ name = "company_id", columns = { quoted = "company", company = "id" } }]
[results]
columns = ["trade.price", "quote.bid", "company.name"]
"""

DRAWN = """\
named joins quoted, company
├── on company_id: trade.company = company.id
├── quoted joins trade, quote
│   ├── trade.company  (key company_id of named)
│   ├── trade.symbol  (results: symbol)
│   ├── date_trunc('minute', at) of trade  (results: minute)
│   ├── trade.price  (results: trade_price)
│   ├── quote.bid  (results: quote_bid)
│   ├── coordinates of trade, quote  (identity)
│   ├── key hashes of quoted  (lineage)
│   ├── on symbol: trade.symbol = quote.symbol
│   ├── on minute: date_trunc('minute', at) of trade = date_trunc('minute', at)
│   │   of quote
│   ├── trade (topic trades-v2) where price > 0
│   │   ├── trade.symbol  (key symbol of quoted)
│   │   ├── date_trunc('minute', at) of trade  (key minute of quoted)
│   │   ├── trade.company  (key company_id of named)
│   │   ├── trade.price  (results: trade_price)
│   │   └── coordinates of trade  (identity)
│   └── quote
│       ├── quote.symbol  (key symbol of quoted)
│       ├── date_trunc('minute', at) of quote  (key minute of quoted)
│       ├── quote.bid  (results: quote_bid)
│       └── coordinates of quote  (identity)
└── company
    ├── company.id  (key company_id of named)
    ├── company.name  (results: company_name)
    └── coordinates of company  (identity)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "trades.toml"
    path.write_text(TREE)
    return path


def explained(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    """What the command prints and says, on a terminal of 80 columns."""
    with pytest.raises(SystemExit) as ended:
        main(["explain", *arguments])
    assert ended.value.code == 0
    found = capsys.readouterr()
    return found.out, found.err


def test_the_tree_is_drawn(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal.out, "_width", 80)
    drawn, said = explained(capsys, str(file))
    assert [line.rstrip() for line in drawn.splitlines()] == DRAWN.splitlines()
    assert said == ""


def test_a_format_other_than_json_is_shown_with_its_stream(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = TREE.replace('topic = "trades-v2"', 'topic = "trades-v2"\nformat = "avro"')
    text = text.replace("[streams.company]", '[streams.company]\nformat = "avro"')
    file.write_text(text)
    drawn, _ = explained(capsys, str(file))
    assert "── trade (topic trades-v2, avro) where price > 0\n" in drawn
    assert "── company (avro)\n" in drawn
    assert "── quote\n" in drawn


def test_a_single_join_is_drawn_as_well(
    capsys: pytest.CaptureFixture[str],
) -> None:
    drawn, said = explained(capsys, "symbol")
    assert drawn.startswith("join joins stock, volume, review\n")
    assert said == ""
    assert explained(capsys)[0] == drawn, "the settings' query"


@pytest.mark.parametrize("name", ["five_way", "bushy", "quoted_trades"])
def test_shipped_trees_are_drawn_as_they_were(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal.out, "_width", 120)
    drawn, _ = explained(capsys, name)
    kept = GOLDEN / f"explain-{name}.txt"
    assert [line.rstrip() for line in drawn.splitlines()] == kept.read_text().splitlines()


def test_the_five_way_tree_carries_what_the_papers_tree_needs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """SIGMOD 2006, Figure 15: C's second column goes up one join, D's one more, and the first
    columns of A, B and C are one value."""
    found = json.loads(explained(capsys, "five_way", "--json")[0])
    carried = {edge["from"]: list(edge["columns"]) for edge in found["edges"]}
    shown = {"abc": ["a.a2", "b.b2"], "abcd": ["a.a2", "b.b2"]}
    assert carried["c"] == ["c.c1", "c.c2"]
    assert carried["abc"] == ["c.c2", "a.a1", *shown["abc"]]
    assert carried["abcd"] == ["d.d2", "a.a1", "c.c2", *shown["abcd"]]
    assert [join["level"] for join in found["joins"]] == [1, 2, 3]


def test_programs_get_the_same(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(explained(capsys, str(file), "--json")[0])
    assert [join["name"] for join in found["joins"]] == ["quoted", "named"]
    assert [join["level"] for join in found["joins"]] == [1, 2]
    assert found["joins"][1]["keys"] == {
        "company_id": {"quoted": "trade.company", "company": "company.id"}
    }
    assert found["streams"] == {"trade": "trades-v2", "quote": "quote", "company": "company"}
    lines = [
        f"{column}  ({'; '.join(why)})"
        for edge in found["edges"]
        for column, why in edge["columns"].items()
    ]
    drawn = DRAWN.splitlines()
    assert sorted(lines) == sorted(
        line.lstrip("│├└─ ")
        for line in drawn
        if ("(key " in line and "hashes" not in line) or "(results:" in line
    )


def test_the_picture_says_what_the_text_says(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "tree.svg"
    assert explained(capsys, str(file), "--svg", str(picture))[0] == f"written: {picture}\n"
    root = ElementTree.fromstring(picture.read_text())
    texts = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    wanted = re.sub(r"\n│   │   of", " of", DRAWN)
    assert sorted(filter(None, texts)) == sorted(
        line.lstrip("│├└─ ") for line in wanted.splitlines()
    )
    right = float(root.attrib["viewBox"].split()[2])
    for box in root.iter("{http://www.w3.org/2000/svg}rect"):
        assert float(box.attrib["x"]) + float(box.attrib["width"]) <= right


def test_what_is_wrong_with_a_query_is_said_with_its_line(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(TREE.replace('"quoted", "company"]', '"quoted", "firm"]'))
    with pytest.raises(SystemExit) as ended:
        main(["explain", str(file)])
    assert ended.value.code == 2
    assert "trades.toml:14: there is no stream 'firm'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ('company = "name"', "key company_id is not of one type: quoted int, company string"),
        ('company = "id / 2"', "not double"),
    ],
)
def test_keys_of_a_wrong_type_are_not_drawn(
    key: str, says: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(TREE.replace('company = "id"', key))
    with pytest.raises(SystemExit) as ended:
        main(["explain", str(file)])
    assert ended.value.code == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert says in found.err


def test_a_picture_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match="cannot be written: No such file or directory"):
        explain("five_way", tmp_path / "nowhere" / "tree.svg")
