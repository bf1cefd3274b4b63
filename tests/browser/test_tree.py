"""The page of a tree of joins: its picture, which join runs where, groups chosen by join.

A real Chromium over the page's own app, as in `test_looks.py`.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.looks import CUT_OFF, LOOKED_AT, SLOTS, look, served
from tests.page_warehouse import write_page_warehouse
from tests.report_journal import DAY
from tests.tree_journal import JOINS, query_file, tree_page_day

pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("no_watch_is_left"),
]

PICTURES = os.environ.get("SPILLWAY_SCREENSHOTS")
VIEWS = ("overview", "groups", "groups/judged", "decisions", f"sessions/{DAY}")
ROOT_FIRST = ("whole", "paired", "traded", "judged")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`few`: 2 slots; `many`: 64."""
    folder = tmp_path_factory.mktemp("tree")
    roots = {name: folder / name for name in ("few", "many")}
    for root, slots in zip(roots.values(), (2, 64), strict=True):
        write_page_warehouse(root, tree_page_day(folder, slots=slots))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPILLWAY_VAR", str(folder / "var"))
        with served(roots, query=str(query_file(folder))) as found:
            yield found


@pytest.mark.parametrize(("width", "theme"), LOOKED_AT)
def test_nothing_of_a_tree_is_cut_off(browser: Browser, url: str, width: int, theme: str) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)  # type: ignore[arg-type]
    complaints: list[str] = []
    page.on("console", lambda said: said.type == "error" and complaints.append(said.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    names = [{2: "few", 64: "many"}[slots] for slots in SLOTS[width]]
    for name, view in itertools.product(names, VIEWS):
        look(page, url, name, view)
        if view == "overview":
            page.locator("[data-panel=joins] .tree .node").first.wait_for()
        page.wait_for_timeout(150)  # observers of sizes have been told
        where = f"{name} {view} at {width}, {theme}"
        if PICTURES:
            picture = Path(PICTURES) / f"tree {where.replace('/', '-')}.png"
            page.screenshot(path=picture, full_page=True)
        assert page.evaluate(CUT_OFF) == [], where
        text = page.locator("body").inner_text()
        for word in ("NaN", "undefined", "[object"):
            assert word not in text, where
    assert complaints == []
    page.close()


def test_the_picture_is_the_tree_with_its_figures(window: Page, url: str) -> None:
    look(window, url, "few")
    joins = window.evaluate("async () => (await (await fetch('data/overview')).json()).joins")
    assert [each["join"] for each in joins] == list(JOINS)
    tree = window.locator("[data-panel=joins] .tree")
    nodes = tree.locator(".node")
    expect(nodes).to_have_count(9)
    names = [text.splitlines()[0] for text in nodes.all_inner_texts()]
    assert names == [
        *("whole", "paired", "traded", "stock", "volume", "judged", "review", "before", "after"),
    ]
    # What a join reads lies below it and further to the right.
    boxes = [node.bounding_box() for node in nodes.all()]
    lefts = [round(box["x"] - boxes[0]["x"]) for box in boxes if box and boxes[0]]
    assert lefts == [22 * depth for depth in (0, 1, 2, 3, 3, 2, 3, 3, 1)]
    for each in joins:
        node = tree.locator(f"[data-join={each['join']}]")
        said = node.locator("dl > div").all_inner_texts()
        figures = [text.split("\n") for text in said]
        assert [f"{each['rows']:,}", f"{each['results']:,}"] == [
            next(p for p in pair if p not in ("rows", "results"))
            for pair in figures
            if "rows" in pair or "results" in pair
        ]
    assert len({each["bytes"] for each in joins}) == 4


def test_it_says_which_join_runs_where(window: Page, url: str) -> None:
    look(window, url, "few")
    panel = window.locator("[data-panel=joins]")
    rows = panel.locator("tbody tr")
    assert [row.get_attribute("data-join") for row in rows.all()] == list(ROOT_FIRST)
    # Twelve groups of the first join have moved to slot 1.
    expect(panel.locator("tbody tr[data-join=traded] td").nth(0)).to_contain_text("20 groups")
    expect(panel.locator("tbody tr[data-join=traded] td").nth(1)).to_contain_text("44 groups")
    expect(panel.locator("tbody tr[data-join=whole] td").nth(0)).to_contain_text("32 groups")
    look(window, url, "many")
    expect(panel.locator("thead th")).to_have_count(65)
    expect(panel.locator("tbody tr[data-join=whole] td").nth(63)).to_contain_text("1 group")


def test_groups_are_chosen_by_join(window: Page, url: str) -> None:
    look(window, url, "few", "groups")
    says = window.locator("main p[role=status]")
    chooser = window.get_by_label("Join")
    expect(says).to_have_text("50 of 256 groups")
    expect(chooser.locator("option")).to_have_text(["all joins", *reversed(JOINS)])
    cells = window.locator(".map .cell")
    expect(cells).to_have_count(256)
    chooser.select_option("judged")
    expect(says).to_have_text("50 of 64 groups")
    expect(cells).to_have_count(64)
    assert window.url.endswith("#groups/judged")
    names = window.locator("tbody th").all_inner_texts()
    assert len(names) == 50
    assert all(name.startswith("judged:6/") for name in names)
    window.get_by_label("Search the groups").fill("judged:6/17")
    expect(says).to_have_text("1 of 1 found, among 64")
    window.get_by_label("Search the groups").fill("")
    chooser.select_option("")
    expect(says).to_have_text("50 of 256 groups")
    # From the picture to the groups.
    look(window, url, "few")
    window.locator("[data-panel=joins]").get_by_role("link", name="paired").click()
    expect(says).to_have_text("50 of 64 groups")
    expect(chooser).to_have_value("paired")
    window.locator(".map").press("ArrowRight")
    expect(window.locator(".tip b")).to_contain_text("group paired:6/")


def test_a_join_that_is_not_there_is_told(window: Page, url: str) -> None:
    look(window, url, "few", "groups")
    window.evaluate("location.hash = 'groups/nobody'")
    expect(window.locator("#notice")).to_contain_text("there is no join 'nobody'; the joins are")
