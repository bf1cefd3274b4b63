"""What people see of a tree of joins: in the terminal, as JSON and in the report."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from spillway.cli import main
from spillway.readmodel import joins as looking
from spillway.readmodel.cache import ReadCache
from spillway.report.html import report_html
from spillway.report.model import JoinStatus, Status
from spillway.report.query_tree import figures, joins_svg, root_first, where_text
from spillway.report.status import status
from spillway.report.terminal import render
from spillway.report.words import bytes_text
from spillway.tables import Warehouse
from spillway_schemas.settings import Settings, load_settings
from tests.page_warehouse import page_day, write_page_warehouse
from tests.report_journal import DAY, Made
from tests.tree_journal import JOINS, query_file, tree_page_day

ROOT_FIRST = [(0, "whole"), (1, "paired"), (2, "traded"), (2, "judged")]


@pytest.fixture(autouse=True)
def own_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPILLWAY_VAR", str(tmp_path / "var"))


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return tree_page_day(tmp_path, 24)


@pytest.fixture
def warehouse(tmp_path: Path, made: Made) -> Warehouse:
    return write_page_warehouse(tmp_path / "w", made)


def settings(folder: Path, query: str = "") -> Settings:
    given = {"warehouse.root": str(folder / "w"), "kafka.bootstrap_servers": "127.0.0.1:1"}
    return load_settings(None, {**given, "query": query or str(query_file(folder))})[0]


@pytest.fixture
def found(warehouse: Warehouse, made: Made, tmp_path: Path) -> Status:
    return status(warehouse, settings(tmp_path), made.now(), None, detail_session=DAY)


def shown(found: Status, width: int) -> str:
    out = Console(file=io.StringIO(), width=width)
    out.print(render(found, out), highlight=False)
    return out.file.getvalue()  # type: ignore[attr-defined]


def test_the_status_has_every_join_with_what_it_reads(found: Status) -> None:
    assert [each.join for each in found.joins] == list(JOINS)
    assert {each.join: each.inputs for each in found.joins} == {
        "traded": ["stock", "volume"],
        "judged": ["review", "before"],
        "paired": ["traded", "judged"],
        "whole": ["paired", "after"],
    }
    assert found.detail is not None
    assert found.detail.joins == found.joins
    assert Status.model_validate_json(found.model_dump_json()) == found


def test_without_its_query_a_tree_has_its_joins_alone(
    warehouse: Warehouse, made: Made, tmp_path: Path
) -> None:
    other = status(warehouse, settings(tmp_path, "symbol"), made.now(), None)
    assert other.query_problem
    assert [each.inputs for each in other.joins] == [[], [], ["traded", "judged"], ["paired"]]


def test_one_join_is_no_tree(tmp_path: Path) -> None:
    made = page_day(24, depth=4)
    warehouse = write_page_warehouse(tmp_path / "w", made)
    found = status(warehouse, settings(tmp_path, "symbol"), made.now(), None, detail_session=DAY)
    assert found.joins == []
    assert "join " not in shown(found, 100)
    page = report_html(found)
    assert "Joins" not in page
    assert 'class="tree"' not in page


def test_joins_are_looked_at_again_when_the_journal_goes_on(
    warehouse: Warehouse, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spillway.report import status as module

    asked: list[object] = []

    def look(*given: object) -> object:
        asked.append(given)
        return looking.look_at_joins(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "look_at_joins", look)
    memory = ReadCache()
    first, second = (
        status(warehouse, settings(tmp_path), made.now(), None, memory=memory) for _ in range(2)
    )
    assert first.joins == second.joins != []
    assert len(asked) == 1
    assert memory.joins is not None
    memory.joins = ("another entry", [])
    assert status(warehouse, settings(tmp_path), made.now(), None, memory=memory).joins
    assert len(asked) == 2


def test_the_root_comes_first_and_inputs_below_what_reads_them(found: Status) -> None:
    assert [(depth, each.join) for depth, each in root_first(found.joins)] == ROOT_FIRST
    assert root_first([]) == []


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_the_terminal_has_a_line_for_each_join(found: Status, width: int) -> None:
    text = shown(found, width)
    assert max(map(len, text.splitlines())) <= width
    lines = [line for line in text.splitlines() if line.strip().split(" ")[0] in JOINS]
    assert [(len(line) - len(line.lstrip())) // 2 for line in lines] == [d for d, _ in ROOT_FIRST]
    for line, (_, each) in zip(lines, root_first(found.joins), strict=True):
        cells = re.split(r" {2,}", line.strip())
        whole = [bytes_text(each.bytes), f"{each.results:,}", f"{each.productivity:,.2f}"]
        wide = [f"{each.rows:,}", "64", f"{each.cuts:,}", bytes_text(each.spilled_bytes)]
        told = whole[:2] if width < 56 else whole if width < 76 else whole + wide
        assert cells == [each.join, *told]


def test_a_join_without_state_has_no_productivity(found: Status) -> None:
    """`0.00` would say that its rows give nothing."""
    joins = [each.model_copy(update={"bytes": 0, "productivity": 0.0}) for each in found.joins]
    lines = shown(found.model_copy(update={"joins": joins}), 100).splitlines()
    [head] = [line for line in lines if "per KiB" in line]
    named = [line for line in lines if line.strip().split(" ")[0] in JOINS]
    ends = head.index("per KiB") + len("per KiB")
    assert [line[:ends].split()[-1] for line in named] == ["–"] * len(JOINS)


def test_the_command_prints_joins_and_their_groups(
    warehouse: Warehouse, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> tuple[int, str, str]:
        place = ("--set", f"warehouse.root={tmp_path / 'w'}")
        query = ("--set", f"query={query_file(tmp_path)}")
        kafka = ("--set", "kafka.bootstrap_servers=127.0.0.1:1")
        with pytest.raises(SystemExit) as ended:
            main([*place, *query, *kafka, "status", *words])
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    _, out, _ = run("--json")
    assert [each["join"] for each in json.loads(out)["joins"]] == list(JOINS)
    _, out, _ = run("--groups", "3", "--join", "paired", "--json")
    names = [each["group"] for each in json.loads(out)]
    assert len(names) == 3
    assert all(name.startswith("paired:6/") for name in names)
    code, _, said = run("--groups", "3", "--join", "x")
    assert code == 2
    assert "there is no join 'x'; the joins are traded, judged" in " ".join(said.split())
    code, _, said = run("--join", "paired")
    assert code == 2
    assert "it needs --groups" in " ".join(said.split())


def test_the_report_draws_the_tree_with_its_figures(found: Status) -> None:
    page = report_html(found)
    picture = re.search(r'<div class="tree">(<svg.*?</svg>)</div>', page)
    assert picture is not None
    svg = ElementTree.fromstring(picture[1])
    titles = [text.text for text in svg.iter("text") if text.get("class") == "name"]
    assert titles == [
        *("whole joins paired, after", "paired joins traded, judged"),
        *("traded joins stock, volume", "stock", "volume"),
        *("judged joins review, before", "review", "before", "after"),
    ]
    lines = [text.text for text in svg.iter("text") if text.get("class") == "why"]
    assert lines == [line for _, each in root_first(found.joins) for line in figures(each)]
    boxes = [(float(b.get("x", 0)), float(b.get("y", 0))) for b in svg.iter("rect")]
    assert [round((x - boxes[0][0]) / 28) for x, _ in boxes] == [0, 1, 2, 3, 3, 2, 3, 3, 1]
    assert [y for _, y in boxes] == sorted(y for _, y in boxes)
    assert len(list(svg.iter("path"))) == 8
    text = ElementTree.fromstring(page.removeprefix("<!doctype html>\n"))
    card = next(a for a in text.iter("article") if (a.findtext("h3") or "") == "Joins")
    rows = [[cell.text for cell in row.iter("td")] for row in card.iter("tr")][1:]
    assert [row[0] for row in rows] == [name for _, name in ROOT_FIRST]
    assert rows[2][-1] == where_text(found.joins[0])


def join(**changes: object) -> JoinStatus:
    one = {"join": "a", "reader": None, "rows": 1_234, "bytes": 2048, "results": 5_000}
    more = {"rate": 0.0, "productivity": 2.5, "cuts": 1, "spilled_bytes": 1024}
    where = {"groups": {0: 3, 1: 1}, "slot_bytes": {0: 2048, 1: 0}, "inputs": ["s"]}
    return JoinStatus.model_validate({**one, **more, **where, **changes})


def test_figures_in_words() -> None:
    assert figures(join()) == [
        "1,234 rows, 2.00 KiB",
        "5,000 results, 2.50 a KiB",
        "1 generation, 1.00 KiB spilled",
    ]
    assert where_text(join()) == "0: 2.00 KiB in 3 groups, 1: 0 B in 1 group"
    many = join(groups=dict.fromkeys(range(9), 1), slot_bytes={n: n for n in range(9)})
    assert where_text(many) == (
        "3: 3 B in 1 group, 4: 4 B in 1 group, 5: 5 B in 1 group, 6: 6 B in 1 group, "
        "7: 7 B in 1 group, 8: 8 B in 1 group and 3 more"
    )


def test_names_in_the_picture_are_text() -> None:
    assert "<b>" not in joins_svg([join(inputs=["<b>x"])])
