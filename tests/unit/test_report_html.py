"""The report: nothing leaves the page, nothing from outside is markup, and it draws what is."""

from __future__ import annotations

import math
import random
import re
from datetime import timedelta
from xml.etree import ElementTree

import pyarrow as pa
import pytest

from spillway.engine.statistics import STATISTICS_SCHEMA
from spillway.report.charts import charts
from spillway.report.html import report_html, write_report
from spillway.report.model import Status, Verdict
from spillway.report.status import status
from spillway.report.svg import Plot, Safe, tag, ticks
from spillway.tables import SessionEvent
from spillway_schemas.settings import load_settings
from tests.report_journal import (
    BEGAN,
    DAY,
    TOPICS,
    add_file,
    add_quarantine,
    fill_journal,
    make_day,
    open_warehouse,
    verdict,
)

NASTY = '<script>alert("1")</script><img src=//x/y onerror=z>&amp;]]>'


@pytest.fixture(autouse=True)
def own_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("SPILLWAY_VAR", str(tmp_path / "var"))


def statistics(made, groups=16):
    """Groups that were kept are about a hundred times as productive as those spilled."""
    rng = random.Random(2)
    rows = [
        {
            "epoch": epoch,
            "session_date": DAY,
            "slot": slot,
            "depth": 4,
            "value": value,
            "bytes": 10_240,
            "rows": [1, 1, 1],
            "results": rng.randrange(900, 1100) if value > 5 else rng.randrange(9, 11),
            "last_used_ms": 1,
            "resident": value > 5,
            "written_at": BEGAN,
        }
        for epoch, slot in made.spill_epochs
        for value in range(groups)
    ]
    return pa.Table.from_pylist(rows, schema=STATISTICS_SCHEMA)


@pytest.fixture
def day(tmp_path):
    settings, _ = load_settings(overrides={"warehouse.root": str(tmp_path / "w")}, environ={})
    warehouse = open_warehouse(settings.warehouse.root)
    made = make_day(60, seal_after=50)
    fill_journal(warehouse, made.entries)
    add_file(warehouse, "statistics", "1-a-0-0.parquet", 1, statistics(made))
    return settings, warehouse, made


def look(day, session=DAY) -> Status:
    settings, warehouse, made = day
    return status(warehouse, settings, made.now(), None, detail_session=session)


UNKNOWN = {"expected": None, "missing": None, "doubled": None}
"""Of a verdict on a day whose input is lost."""


def parsed(page: str) -> ElementTree.Element:
    assert page.startswith("<!doctype html>\n")
    return ElementTree.fromstring(page.removeprefix("<!doctype html>\n"))


def test_the_page_asks_for_nothing(day):
    page = report_html(look(day))
    root = parsed(page)
    names = {element.tag for element in root.iter()}
    assert not names & {
        "script",
        "link",
        "img",
        "iframe",
        "object",
        "embed",
        "base",
        "use",
        "image",
    }
    for element in root.iter():
        for name in element.attrib:
            assert not name.startswith("on"), name
            assert name not in ("src", "href", "srcset", "action", "style"), name
    style = root.find("head/style").text
    assert "url(" not in style
    assert "@import" not in style
    policy = [e for e in root.iter("meta") if e.get("http-equiv") == "Content-Security-Policy"]
    assert policy[0].get("content").startswith("default-src 'none'")
    assert "prefers-color-scheme: dark" in style
    assert len(page) < 400_000


def test_text_from_outside_is_no_markup(day):
    _, warehouse, _ = day
    add_quarantine(warehouse, 0, [NASTY, "tab\tand \x00 null"])
    found = look(day)
    hostile = found.model_copy(
        update={
            "warehouse_root": NASTY,
            "query": NASTY,
            "slots": [s.model_copy(update={"host": NASTY}) for s in found.slots],
            "sessions": [s.model_copy(update={"rows_in": {NASTY: 5}}) for s in found.sessions],
        }
    )
    page = report_html(hostile, [(NASTY, NASTY)])
    root = parsed(page)
    assert not list(root.iter("script"))
    assert not list(root.iter("img"))
    text = "".join(root.itertext())
    assert text.count("<script>") == 1 + 1 + 2 + 1 + 2 + 1
    assert "\x00" not in page


def test_every_spill_is_marked(day):
    _, _, made = day
    found = look(day)
    memory = [c for c in charts(found) if c.title.startswith("Memory of slot")]
    assert [c.title for c in memory] == ["Memory of slot 0", "Memory of slot 1"]
    for slot, chart in enumerate(memory):
        spills = sum(s == slot for _, s in made.spill_epochs)
        assert chart.svg.count('class="mark spill"') == spills > 0
        assert chart.svg.count('class="mark flush"') == 1
        assert "budget 1.00 MiB" in chart.svg
        assert "spills above 80 %" in chart.svg


def test_a_budget_that_was_changed_is_drawn_as_it_was(day):
    found = look(day)
    points = found.detail.points
    at = next(p.epoch for p in points) + 20
    changed = [
        p.model_copy(update={"budget_bytes": {**p.budget_bytes, 0: 2 << 20}})
        if p.epoch >= at
        else p
        for p in points
    ]
    detail = found.detail.model_copy(update={"points": changed})
    first, second = [
        ElementTree.fromstring(c.svg)
        for c in charts(found.model_copy(update={"detail": detail}))
        if c.title.startswith("Memory of slot")
    ]
    corners = [
        [e.get("d").count(",") for e in root.iter("path") if "level" in e.get("class", "")]
        for root in (first, second)
    ]
    assert corners == [[4, 4], [2, 2]], "one step of the budget and of the threshold at slot 0"
    assert "budget 2.00 MiB" in "".join(first.itertext())
    assert "budget 1.00 MiB" in "".join(second.itertext())


def test_every_chart_has_a_name_units_and_a_legend(day):
    for chart in charts(look(day)):
        root = ElementTree.fromstring(chart.svg)
        assert root.get("role") == "img"
        assert root.get("aria-label")
        titles = [e.text for e in root.iter("text") if "axis" in e.get("class", "")]
        assert len(titles) == 2, chart.title
        assert chart.legend
        classes = {c for e in root.iter() for c in e.get("class", "").split()}
        for class_, _ in chart.legend:
            assert class_ in classes, (chart.title, class_)
        for element in root.iter():
            for name in ("x", "y", "x1", "y1", "width", "height"):
                if element.get(name) and element.tag in ("rect", "line", "text"):
                    assert math.isfinite(float(element.get(name)))
            assert "nan" not in element.get("d", "")


def test_results_by_phase(day):
    _, warehouse, made = day
    ended = made.now() + timedelta(seconds=30)
    run_time = made.results[DAY]
    before = next(c for c in charts(look(day)) if c.title == "Results over time")
    assert 'class="area clean"' not in before.svg
    warehouse.sessions.append(
        SessionEvent(
            session=DAY, event="cleaned", cleanup=500, seconds=6.0, written_at=ended.isoformat()
        )
    )
    warehouse.sessions.append(
        SessionEvent(session=DAY, event="verified", expected=run_time + 500, complete=True)
    )
    chart = next(c for c in charts(look(day)) if c.title == "Results over time")
    assert f"{run_time:,} at run time, 500 by cleanup" in chart.says
    assert 'class="area clean"' in chart.svg
    assert f"expected {run_time + 500:,}" in chart.svg
    hints = re.findall(r"epochs? [^:]+: ([\d,]+) results", chart.svg)
    assert sum(int(h.replace(",", "")) for h in hints) == run_time


def test_productivity_of_kept_and_spilled(day):
    _, _, made = day
    found = look(day)
    assert len(found.detail.choices) == len(made.spill_epochs)
    for choice in found.detail.choices:
        assert (choice.kept.groups, choice.spilled.groups) == (10, 6)
        assert 90 <= choice.kept.p50 <= 110
        assert 0.9 <= choice.spilled.p50 <= 1.1
    chart = next(c for c in charts(found) if c.title.startswith("Productivity"))
    spills = len(made.spill_epochs)
    assert f"in {spills} of {spills} spills" in chart.says
    assert "results per KiB of state" in chart.svg


def test_the_seals_flush_is_no_choice(day):
    _, warehouse, made = day
    rows = statistics(made).slice(0, 16).to_pylist()
    for row in rows:
        row |= {"epoch": made.sealed_epoch, "resident": False}
    flushed = pa.Table.from_pylist(rows, schema=STATISTICS_SCHEMA)
    add_file(warehouse, "statistics", "2-a-0-0.parquet", 2, flushed)
    assert len(look(day).detail.choices) == len(made.spill_epochs)


@pytest.mark.parametrize(
    ("event", "kind", "words"),
    [
        (None, "open", "Not verified yet"),
        (verdict(True), "good", "Complete"),
        (verdict(False, missing=4, doubled=2), "bad", "4 missing, 2 doubled"),
        (verdict(False).model_copy(update=UNKNOWN), "bad", "its input is lost"),
    ],
)
def test_the_verdict_is_what_is_seen_first(day, event, kind, words):
    if event is not None:
        day[1].sessions.append(event)
    root = parsed(report_html(look(day)))
    [banner] = [e for e in root.iter("section") if "verdict" in e.get("class", "")]
    assert banner.get("class") == f"verdict {kind}"
    assert words in "".join(banner.itertext())


@pytest.mark.parametrize(
    ("by", "reason", "words"),
    [
        ("ada", "a week of <b>retention", "accepted by ada: a week of <b>retention"),
        ("", "retention", "accepted: retention"),
        ("ada", "", "accepted by ada"),
    ],
)
def test_why_a_loss_was_accepted_is_told(day, by, reason, words):
    lost = {"topic": "stock", "partition": 0, "begin": 0, "end": 5}
    loss = {"ranges": [lost], "reason": reason, "by": by}
    day[1].sessions.append(SessionEvent(session=DAY, event="accepted", details={"loss": loss}))
    day[1].sessions.append(verdict(False).model_copy(update=UNKNOWN))
    root = parsed(report_html(look(day)))
    [banner] = [e for e in root.iter("section") if "verdict" in e.get("class", "")]
    told = f"its input is lost; {words}; looked at"
    assert told in "".join(banner.itertext())


def test_a_corrected_day_says_so_and_its_results_add_up(day):
    state = look(day)
    first = state.session_of(DAY)
    changed = {"results_cleanup": 500, "results_corrections": 2_415}

    def page(**more) -> str:
        mine = first.model_copy(update=changed | more)
        others = [each for each in state.sessions if each.session != DAY]
        return report_html(state.model_copy(update={"sessions": [mine, *others]}))

    unproved = page(unproved="corrected, not proved again", verdict=None)
    assert "<h2>Corrected, not proved again</h2>" in unproved
    assert f"spillway verify --session {DAY} proves it with its corrections" in unproved
    assert "500 by cleanup, 2,415 by corrections, which are not drawn" in unproved
    assert unproved.count("results by corrections") == 2  # a tile, and a line of the figures
    counts = {"expected": 3_815, "run_time": 900, "cleanup": 500, "missing": 0, "doubled": 0}
    known = Verdict(complete=True, seconds=1.5, verified_at="2026-01-05T22:00:00Z", **counts)
    proved = page(verdict=known)
    assert "3,815 expected, 900 at run time, 500 by cleanup and 2,415 by corrections" in proved
    assert "corrections" not in report_html(state)


def test_figures_are_in_the_table(day):
    _, _, made = day
    root = parsed(report_html(look(day), [("demo: produce", "12.5 s")]))
    table = next(e for e in root.iter("table") if e.get("class") == "pairs")
    cells = {row.find("th").text: row.find("td").text for row in table.iter("tr")}
    assert cells["rows in"] == f"{sum(made.rows[DAY, t] for t in TOPICS):,}"
    assert cells["results at run time"] == f"{made.results[DAY]:,}"
    assert cells["spills"] == str(made.spills)
    assert cells["demo: produce"] == "12.5 s"


def test_a_session_without_epochs_still_has_a_page(tmp_path):
    settings, _ = load_settings(overrides={"warehouse.root": str(tmp_path / "w")}, environ={})
    warehouse = open_warehouse(settings.warehouse.root)
    made = make_day(1)
    fill_journal(warehouse, made.entries[:2])
    found = status(warehouse, settings, made.now(), None, detail_session=DAY)
    assert "Not verified yet" in report_html(found)


def test_one_epoch_is_enough_to_draw(tmp_path):
    settings, _ = load_settings(overrides={"warehouse.root": str(tmp_path / "w")}, environ={})
    warehouse = open_warehouse(settings.warehouse.root)
    made = make_day(1)
    fill_journal(warehouse, made.entries)
    parsed(report_html(status(warehouse, settings, made.now(), None, detail_session=DAY)))


def test_a_long_day_is_thinned(tmp_path):
    settings, _ = load_settings(overrides={"warehouse.root": str(tmp_path / "w")}, environ={})
    warehouse = open_warehouse(settings.warehouse.root)
    made = make_day(900, rows=4)
    fill_journal(warehouse, made.entries)
    page = report_html(status(warehouse, settings, made.now(), None, detail_session=DAY))
    assert len(page) < 600_000
    assert 'class="mark spill"' in page


def test_many_slots_are_not_all_drawn(tmp_path):
    settings, _ = load_settings(overrides={"warehouse.root": str(tmp_path / "w")}, environ={})
    warehouse = open_warehouse(settings.warehouse.root)
    made = make_day(5, slots=16, groups_depth=5)
    fill_journal(warehouse, made.entries)
    found = status(warehouse, settings, made.now(), None, detail_session=DAY)
    assert sum(c.title.startswith("Memory") for c in charts(found)) == 8


def test_a_report_replaces_the_one_before(day, tmp_path):
    path = tmp_path / "report.html"
    path.write_text("old")
    write_report(look(day), path)
    assert path.read_text().startswith("<!doctype html>")


def test_a_status_without_detail_is_refused(day):
    with pytest.raises(ValueError, match="detail"):
        report_html(look(day).model_copy(update={"detail": None}))


@pytest.mark.parametrize(
    ("low", "high", "about", "base", "expected"),
    [
        (0, 10, 5, 10, [0, 2, 4, 6, 8, 10]),
        (0, 1, 5, 10, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0, 7, 7, 10, list(range(8))),
        (3, 17, 5, 10, [5, 10, 15]),
        (0, 3 << 20, 4, 2, [0, 1 << 20, 2 << 20, 3 << 20]),
        (5, 5, 5, 10, [5]),
    ],
)
def test_ticks_are_round(low, high, about, base, expected):
    assert ticks(low, high, about, base) == pytest.approx(expected)


def test_only_markup_is_markup():
    assert tag("p", "<b>", tag("i", "&")) == "<p>&lt;b&gt;<i>&amp;</i></p>"
    assert tag("p", Safe("<b></b>")) == "<p><b></b></p>"
    assert tag("p", class_='"><x', data_a=1.5, none=None) == (
        '<p class="&quot;&gt;&lt;x" data-a="1.5"></p>'
    )


def test_what_lies_beyond_the_axes_stays_within_the_frame():
    plot = Plot((0, 10), (0, 10), label="x")
    plot.line([(-5, -5), (5, 50), (20, 5)], "a")
    numbers = [float(n) for n in re.findall(r"[-\d.]+", re.search(r'd="([^"]+)"', plot.svg())[1])]
    assert all(0 <= n <= plot.width for n in numbers)
