"""How the page looks: each state of a day, 2 slots and 64, narrow and wide, light and dark.

A real Chromium over the page's own app; no Airflow, no Spark, no Kafka.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from spillway.report import looking
from spillway.report.ends import HeldOffsets
from spillway_airflow import command
from spillway_schemas.settings import Settings
from tests.browser.looks import CUT_OFF, LOOKED_AT, SLOTS, look, served, warehouses
from tests.report_journal import DAY

pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("no_watch_is_left"),
]

PICTURES = os.environ.get("SPILLWAY_SCREENSHOTS")
VIEWS = ("overview", "groups", "decisions", "sessions", f"sessions/{DAY}")
STATES = ("open", "pending", "sealing", "sealed", "complete")

UNTITLED = """() => [...document.querySelectorAll('time')]
  .filter((e) => !/ UTC$/.test(e.title)).map((e) => e.textContent)"""

CLOCK = re.compile(r"\b\d{1,2}:\d\d(?::\d\d)?(?![:\d]| (?:E[SD]T|UTC)\b)")
"""A time of day that does not name its zone."""


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Path]]:
    folder = tmp_path_factory.mktemp("looks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPILLWAY_VAR", str(folder / "var"))
        yield warehouses(folder)


@pytest.fixture(scope="module")
def url(roots: Mapping[str, Path]) -> Iterator[str]:
    with served(roots) as found:
        yield found


@pytest.mark.parametrize(("width", "theme"), LOOKED_AT)
def test_nothing_is_cut_off_and_every_time_names_its_zone(
    browser: Browser, url: str, width: int, theme: str
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)  # type: ignore[arg-type]
    complaints: list[str] = []
    page.on("console", lambda said: said.type == "error" and complaints.append(said.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    names = ["empty", "begun", *(f"{s}-{n}" for s, n in itertools.product(STATES, SLOTS[width]))]
    for name, view in itertools.product(names, VIEWS):
        if name == "empty" and view != "overview":
            continue
        if view == "overview":
            look(page, url, name)
        else:
            page.evaluate("view => { location.hash = view; }", view)
            page.locator("main .view:visible").first.wait_for()
        if "/" in view:
            page.locator(".detail h1").wait_for()
        page.wait_for_timeout(150)  # observers of sizes have been told
        where = f"{name} {view} at {width}, {theme}"
        if PICTURES:
            picture = Path(PICTURES) / f"{where.replace('/', '-')}.png"
            page.screenshot(path=picture, full_page=True)
        assert page.evaluate(CUT_OFF) == [], where
        text = page.locator("body").inner_text()
        assert CLOCK.findall(text) == [], where
        assert page.evaluate(UNTITLED) == [], where
        for word in ("1970", "NaN", "undefined", "Invalid"):
            assert word not in text, where
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    assert complaints == []
    page.close()


def test_charts_name_the_zone_and_say_utc(window: Page, url: str) -> None:
    look(window, url, "open-2")
    names, tips = window.evaluate(
        """async () => {
          const { memoryOption, resultsOption } = await import('./static/charts.js');
          const { day } = await (await fetch('data/overview')).json();
          const [slot] = day.history.slots;
          const options = [resultsOption(day), memoryOption({ ...day, slot })];
          const at = day.history.ended_ms[0];
          const found = [{ axisValue: at, seriesName: 'memory', value: [at, 1], dataIndex: 0 }];
          return [options.map((o) => o.xAxis.name), options.map((o) => o.tooltip.formatter(found))];
        }"""
    )
    assert names == ["EST", "EST"]
    for tip in tips:
        assert tip.splitlines()[0] == "09:30:00 EST, 14:30:00 UTC"


def test_the_map_says_what_a_spill_would_take_next(window: Page, url: str) -> None:
    look(window, url, "open-2", "groups")
    told = window.locator(".map .cell")
    expect(window.locator(".scale")).to_contain_text(
        re.compile(r"eviction line: a spill now takes groups up to [\d.,]+.* a KiB")
    )
    next_ = window.evaluate(
        "async () => (await (await fetch('data/groups')).json()).cells.spills_next"
    )
    assert {0, 1} == set(next_)
    for taken in (0, 1):
        told.nth(next_.index(taken)).hover()
        tip = window.locator(".tip p")
        expect(tip).to_contain_text("slot")
        assert ("next to be spilled" in tip.inner_text()) == bool(taken)
    window.locator("label:has(input[value=bytes])").click()
    expect(window.locator(".scale")).not_to_contain_text("eviction line")


def test_many_slots_are_a_page_that_can_be_read(window: Page, url: str) -> None:
    """The results' chart was as high as twelve others, and the map a row of the page for each."""
    look(window, url, "open-64")
    chart = window.locator("[data-chart=results] canvas").first.bounding_box()
    assert chart is not None
    assert chart["height"] < 400
    expect(window.locator(".slot canvas")).to_have_count(12)
    expect(window.locator("[data-bar]")).to_have_count(64)
    look(window, url, "open-64", "groups")
    blocks = window.locator(".map .block")
    expect(blocks).to_have_count(64)
    first, second, last = (blocks.nth(n).bounding_box() for n in (0, 1, 63))
    assert first is not None
    assert second is not None
    assert last is not None
    assert first["y"] == second["y"]
    assert last["y"] < 900
    look(window, url, "open-64", "decisions")
    moved = window.locator("tbody tr", has_text="4 moves").locator(".effect")
    expect(moved).to_contain_text("12 of 64 slots")


def test_an_arrow_shows_where_a_table_goes_on(window: Page, url: str) -> None:
    window.set_viewport_size({"width": 800, "height": 900})
    look(window, url, "complete-2", "sessions")
    table = window.locator(".scroller")
    expect(table).to_have_class("scroller more-right")
    table.locator(".scroll").evaluate("e => e.scrollTo(60, 0)")
    expect(table).to_have_class(re.compile("more-left"))
    table.locator(".scroll").evaluate("e => e.scrollTo(e.scrollWidth, 0)")
    expect(table).to_have_class("scroller more-left")


def test_a_complete_day_has_its_own_figures(window: Page, url: str) -> None:
    look(window, url, "complete-2")
    expect(window.locator("[data-stage]")).to_have_text("complete")
    expect(window.locator("[data-tile=results] p")).to_contain_text("500 by cleanup")
    expect(window.locator("[data-tile='results so far']")).to_have_count(0)
    expect(window.locator("[data-tile='production delay'] b")).not_to_have_text("–")
    topics = window.locator("[data-topics]")
    expect(topics).to_have_attribute("data-topics", DAY)
    counts = topics.locator("tbody td:nth-child(2)").all_inner_texts()
    rows = [int(each.replace(",", "")) for each in counts]
    total = int(window.locator("[data-tile='rows in'] b").inner_text().replace(",", ""))
    assert sum(rows) == total > 0
    # Slot 0 was fullest while its budget was half of what it is now.
    expect(window.locator("[data-slot='0'] p")).to_contain_text("of 1.00 MiB")
    look(window, url, "complete-2", "sessions")
    expect(window.locator(f"[data-session='{DAY}']")).to_be_visible()
    expect(window.get_by_role("columnheader", name="by corrections")).to_have_count(0)
    # One that was corrected: what it has adds up, and why its proof does not count is told.
    for view in ("overview", f"sessions/{DAY}"):
        window.set_viewport_size({"width": 390, "height": 900})
        look(window, url, "corrected", view)
        expect(window.locator("main")).to_contain_text("corrected, not proved again")
        expect(window.locator("main")).to_contain_text("500 by cleanup, 2,415 by corrections")
        assert window.evaluate(CUT_OFF) == []
        window.set_viewport_size({"width": 1440, "height": 900})
        assert window.evaluate(CUT_OFF) == []
    expect(window.get_by_role("columnheader", name="by corrections")).to_have_count(1)
    line = window.locator(f"[data-session='{DAY}'] td").all_inner_texts()
    heads = window.locator(".list th[scope=col]").all_inner_texts()
    assert line[heads.index("by corrections") - 1] == "2,415"
    assert line[heads.index("verdict") - 1] == "corrected, not proved again"
    # One whose input is lost: who has accepted that, and why.
    for view in ("overview", f"sessions/{DAY}"):
        look(window, url, "lost", view)
        expect(window.locator("main")).to_contain_text("its input is lost")
        expect(window.locator("main")).to_contain_text("ada: retention <img src=x")
        assert window.evaluate(CUT_OFF) == []


def test_a_day_that_has_begun_says_so_and_names_its_exchange(window: Page, url: str) -> None:
    look(window, url, "begun")
    expect(window.locator(".today")).to_contain_text("XNYS closed at 16:00 EST")
    expect(window.locator("[data-chart=results] .legend")).to_be_hidden()
    memory = window.locator("[data-chart=memory]")
    expect(memory).to_contain_text("No epoch of this session has ended yet.")
    expect(memory.locator(".legend")).to_be_hidden()


def test_the_first_look_is_announced(window: Page, url: str) -> None:
    """A warehouse's first look takes seconds: until then the page was blank."""
    window.route("**/data/overview", lambda route: None)
    window.goto(f"{url}/open-2/spillway/")
    expect(window.locator(".nothing")).to_contain_text("Reading the tables")
    window.unroute_all()
    look(window, url, "open-2")
    expect(window.locator(".nothing")).to_have_count(0)


def test_rows_outside_the_day_are_told_by_topic(window: Page, url: str) -> None:
    """Kills: a note without a count, of a topic that has none, or of a day without such rows."""
    look(window, url, "open-2")
    expect(window.locator("[data-note=outside]")).to_have_text(
        "1,234 rows of stock happened outside the day of Mon 5 Jan 2026. "
        "They are joined all the same."
    )
    look(window, url, "complete-2")
    expect(window.locator("[data-note=outside]")).to_have_count(0)


def test_the_bar_is_live_in_every_view(window: Page, url: str) -> None:
    """It once grew older on every view but the overview, whatever the stream did."""
    asked: list[str] = []
    window.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    look(window, url, "open-2", "sessions")
    expect(window.locator(".live")).to_contain_text("last epoch")
    asked.clear()
    window.wait_for_timeout(5_000)
    assert asked.count("overview") >= 2


def test_one_of_several_queries_can_be_chosen(
    window: Page, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look(window, url, "open-2")
    expect(window.get_by_role("combobox", name="Query")).to_have_count(0)
    several = ["spillway", "spillway_trades"]
    monkeypatch.setattr("spillway_airflow.page.app.sections", lambda: several)
    window.reload()
    choice = window.get_by_role("combobox", name="Query")
    expect(choice).to_have_value("spillway")
    assert choice.locator("option").all_inner_texts() == ["Spillway", "Spillway trades"]
    assert window.evaluate(CUT_OFF) == []
    choice.select_option("spillway_trades")
    window.wait_for_url("**/plugin/spillway_trades/spillway_trades/")


def test_a_loss_is_shown_and_can_be_accepted(
    window: Page, roots: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = {"stock": [40, 0], "volume": [0, 0], "review": [0, 0]}

    def held(settings: Settings, topics: Sequence[str], _: str) -> HeldOffsets:
        gone = {topic: first.get(topic, [0]) for topic in topics}
        return HeldOffsets(gone, {topic: [10**6, 10**6] for topic in topics})

    monkeypatch.setattr(looking, "held_offsets", held)
    log = fake_command(tmp_path, monkeypatch, "5 offsets are accepted as lost")
    # A page of its own: what is looked at already knows a Kafka that does not answer, and rests.
    with served({"open-2": roots["open-2"]}) as url:
        look(window, url, "open-2")
        note = window.locator("[data-note=loss]")
        expect(note).to_contain_text("Kafka does not hold stock/0 from offset")
        expect(note).to_contain_text(f"spillway accept-loss --session {DAY} --reason ...")
        confirm(window, "Accept…", "a week of retention", "cannot be taken back", log)
        expect(window.locator(".outcome")).to_contain_text("accepted as lost")
        asked = f"accept-loss --session={DAY} --reason=a week of retention --by=alice"
        assert log.read_text() == asked


def confirm(window: Page, action: str, reason: str, warning: str, log: Path) -> None:
    """Ask for an action with a reason, read its warning, and confirm it; nothing runs before."""
    window.get_by_role("button", name=action).click()
    window.get_by_label("Reason").fill(reason)
    window.locator("dialog").get_by_role("button", name=action).click()
    expect(window.get_by_role("group", name="Confirm")).to_contain_text(warning)
    assert not log.exists(), "nothing is done before it is confirmed"
    window.get_by_role("button", name="Do it").click()


def fake_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str) -> Path:
    """A command line that says this, and notes what it is called with."""
    log, fake = tmp_path / "calls", tmp_path / "fake"
    fake.write_text(
        f"#!{sys.executable}\nimport sys\nopen({str(log)!r}, 'a').write(' '.join(sys.argv[1:]))\n"
        f"print({says!r})\n"
    )
    fake.chmod(0o755)
    monkeypatch.setattr(command, "setting", lambda name, _: {"command": str(fake)}.get(name))
    return log


def test_a_pending_seal_can_be_withdrawn(
    window: Page, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = fake_command(tmp_path, monkeypatch, "the seal will be withdrawn")
    for view in ("decisions", "overview"):
        look(window, url, "pending-2", view)
        expect(window.locator("[data-note=seal]")).to_contain_text("can still be withdrawn")
    confirm(window, "Withdraw…", "too early", "stays open", log)
    expect(window.locator(".outcome")).to_contain_text("the seal will be withdrawn")
    assert log.read_text() == f"seal --session={DAY} --withdraw --reason=too early --by=alice"
    look(window, url, "sealing-2")
    expect(window.locator("[data-note=seal]")).to_contain_text("cannot be withdrawn any more")
    expect(window.get_by_role("button", name="Withdraw…")).to_have_count(0)
    window.get_by_role("button", name="Actions").click()
    window.locator("label:has(input[value=withdraw])").click()
    expect(window.locator(".drawer-body")).to_contain_text("rows beyond its end are read")
    window.locator("label:has(input[value=seal])").click()
    expect(window.locator(".drawer-body")).to_contain_text("pending already")
