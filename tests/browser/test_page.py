"""The page in a real Chromium, in the navigation of a real `airflow standalone`.

One story with one server, for starting it takes most of the time: an empty warehouse comes alive,
every view is looked at, an admin acts, a viewer cannot, a stranger sees nothing. No Spark and no
Kafka: the warehouse is a prepared one, and what the page does goes through the command line.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from playwright.sync_api import Browser, FrameLocator, Page, expect

from spillway.demo.airflow import Airflow
from spillway.tables import Warehouse
from spillway_schemas.commands import Command
from tests.browser.chromium import PATIENCE_MS, chromium, open_airflow, open_view, program
from tests.browser.strangers import STRANGERS
from tests.integration.airflow_server import airflow
from tests.integration.day import ROOT
from tests.missing import without
from tests.page_warehouse import HOSTILE, fill_page_warehouse, page_day
from tests.report_journal import Made, fill_journal, open_warehouse, withdraw_a_seal

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

USERS = ("admin", "viewer")


@dataclass
class Scene:
    """What the story plays in."""

    server: Airflow
    browser: Browser
    root: Path
    pictures: Path
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    """Of the browser: what its console says is wrong."""

    def enter(self, user: str, theme: str = "light", width: int = 1440) -> Page:
        page = open_airflow(
            self.browser, self.server.url, user, user, theme=theme, width=width, height=900
        )
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda said: said.type == "error" and self.complaints.append(said.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        return page

    def view(self, page: Page, view: str = "") -> FrameLocator:
        return open_view(page, self.server.url, view)

    def picture(self, page: Page, name: str) -> None:
        page.wait_for_timeout(600)  # charts take a moment to be drawn
        page.screenshot(path=self.pictures / f"{name}.png")


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    if program() is None:
        without("Chromium", "install it, or name it with SPILLWAY_CHROMIUM")
    expect.set_options(timeout=PATIENCE_MS)
    home, root = tmp_path / "home", tmp_path / "warehouse"
    home.mkdir()
    passwords = home / "simple_auth_manager_passwords.json.generated"
    passwords.write_text(json.dumps({name: name for name in USERS}))
    monkeypatch.setenv("SPILLWAY_WAREHOUSE__ROOT", str(root))
    monkeypatch.setenv("SPILLWAY_KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("SPILLWAY_VAR", str(tmp_path / "var"))
    pictures = Path(os.environ.get("SPILLWAY_SCREENSHOTS", tmp_path / "pictures"))
    pictures.mkdir(parents=True, exist_ok=True)
    users = ",".join(f"{name}:{name}" for name in USERS)
    more = {"CORE__SIMPLE_AUTH_MANAGER_USERS": users}
    with airflow(home, more) as server, chromium() as browser:
        yield Scene(server, browser, root, pictures)


def test_the_page_in_a_browser(scene: Scene) -> None:
    admin = scene.enter("admin")
    made = withdraw_a_seal(page_day(60, slots=3))
    last = made.entries.pop()
    comes_alive(scene, admin, made)
    is_live(scene, admin, lambda: fill_journal(open_again(scene.root), [last]))
    follows_the_theme(scene, admin)
    shows_the_groups(scene, admin)
    shows_hostile_text_as_text(scene, admin)
    shows_decisions(scene, admin)
    shows_a_session(scene, admin)
    runs_dry(scene, admin)
    forces_a_spill(scene, admin)
    says_why_a_seal_fails(scene, admin)
    backfills_a_day(scene, admin)
    fits_narrow_windows(scene, admin)
    a_viewer_sees_and_cannot_act(scene)
    a_stranger_sees_nothing(scene)
    strangers_do_not_hold_it_up(scene)
    hosts = {
        urlsplit(url).netloc for url in scene.requests if not url.startswith(("data:", "blob:"))
    }
    assert hosts == {urlsplit(scene.server.url).netloc}, "a request left the machine"
    assert [c for c in scene.complaints if "Content Security Policy" in c] == []
    assert [c for c in scene.complaints if "401" not in c and "403" not in c] == []


def open_again(root: Path) -> Warehouse:
    return Warehouse(str(root), fsync=False)


def comes_alive(scene: Scene, page: Page, made: Made) -> None:
    """Empty tables: an invitation; a day without an epoch; the first figures, without a reload."""
    frame = scene.view(page)
    nothing = frame.locator(".nothing")
    expect(nothing).to_contain_text("No stream has run yet")
    expect(nothing).to_contain_text("spillway_market_open")
    scene.picture(page, "empty")
    warehouse = open_warehouse(str(scene.root))
    fill_journal(warehouse, made.entries[:2])
    expect(frame.locator("[data-stage]")).to_have_text("open")
    expect(nothing).to_have_count(0)
    expect(frame.locator("[data-chart=results]")).to_contain_text("No epoch of this session yet")
    expect(frame.locator("[data-chart=results] .chart")).to_be_hidden()
    fill_page_warehouse(warehouse, made)
    expect(page.get_by_role("link", name="Spillway")).to_be_visible()


def is_live(scene: Scene, page: Page, append: object) -> None:
    frame = page.frame_locator("iframe")
    page.frames[-1].evaluate("document.body.dataset.same = 'yes'")
    expect(frame.locator(".live")).to_contain_text("last epoch")
    before = frame.locator("[data-tile='rows in'] b").inner_text()
    append()  # type: ignore[operator]
    expect(frame.locator("[data-tile='rows in'] b")).not_to_have_text(before)
    expect(frame.locator("body")).to_have_attribute("data-same", "yes")
    expect(frame.locator("[data-chart=results] canvas")).to_be_visible()
    expect(frame.locator(".slot canvas")).to_have_count(3)
    expect(frame.locator("[data-slot='2']")).to_contain_text("12 came")
    scene.picture(page, "overview-light")


def follows_the_theme(scene: Scene, page: Page) -> None:
    """Airflow's own choice, while the page is open."""
    frame = page.frame_locator("iframe")
    expect(frame.locator("html")).to_have_attribute("data-theme", "light")
    page.evaluate("localStorage.setItem('theme', 'dark')")
    expect(frame.locator("html")).to_have_attribute("data-theme", "dark")
    page.reload()
    expect(page.frame_locator("iframe").locator("html")).to_have_attribute("data-theme", "dark")
    expect(page.frame_locator("iframe").locator("[data-stage]")).to_be_visible()
    scene.picture(page, "overview-dark")
    page.evaluate("localStorage.setItem('theme', 'light')")


def shows_the_groups(scene: Scene, page: Page) -> None:
    frame = scene.view(page, "#groups")
    cells = frame.locator(".map .cell")
    expect(cells).to_have_count(512)
    cells.nth(70).hover()
    tip = frame.locator(".tip")
    expect(tip).to_be_visible()
    expect(tip).to_contain_text(re.compile(r"group 9/\d+"))
    expect(tip).to_contain_text("expected loss")
    scene.picture(page, "groups-light")
    frame.locator(".map").focus()
    page.keyboard.press("ArrowRight")
    expect(tip).to_contain_text(re.compile("slot 0"))
    colours = "els => els.map(e => e.getAttribute('fill')).join()"
    some = frame.locator(".map .cell rect:first-child")
    before = some.evaluate_all(colours)
    frame.locator("label:has(input[value=rate])").click()
    assert some.evaluate_all(colours) != before
    first = frame.locator("tbody tr").first
    expect(frame.locator("tbody tr")).to_have_count(50)
    before = first.inner_text()
    frame.get_by_role("button", name="generations").click()
    expect(frame.locator("th[aria-sort=descending]")).to_contain_text("generations")
    expect(first).not_to_have_text(before)
    frame.get_by_label("Search the groups").fill("moving slot:2")
    expect(frame.locator("tbody tr")).to_have_count(3)
    expect(first).to_contain_text("to slot 0")
    expect(first.locator(".key")).to_have_text("–")


def shows_hostile_text_as_text(scene: Scene, page: Page) -> None:
    frame = page.frame_locator("iframe")
    frame.get_by_label("Search the groups").fill("onerror")
    expect(frame.locator("tbody tr")).to_have_count(1)
    expect(frame.locator("tbody tr .key")).to_contain_text(HOSTILE)
    for view in ("overview", "decisions"):
        frame.locator(f"a[data-view={view}]").click()
        expect(frame.locator("main")).to_contain_text(HOSTILE)
    assert page.frames[-1].evaluate("document.querySelectorAll('img, [onerror]').length") == 0
    assert "hacked" not in page.frames[-1].evaluate("document.title") + page.title()


def shows_decisions(scene: Scene, page: Page) -> None:
    frame = scene.view(page, "#decisions")
    rows = frame.locator("tbody tr")
    expect(rows).to_have_count(6)
    expect(rows.nth(4)).to_contain_text(re.compile("bob.*withdrawal of a seal.*refused"))
    expect(rows.nth(5)).to_contain_text(re.compile("bob.*withdrawal of a seal.*obeyed.*too early"))
    expect(rows.nth(0)).to_contain_text("3 under way")
    expect(rows.nth(1)).to_contain_text("alice")
    expect(rows.nth(2)).to_contain_text("refused: decided on assignment 0")
    expect(rows.nth(3)).to_contain_text("12 moves")
    expect(rows.nth(3).locator(".effect rect")).to_have_count(6)
    expect(rows.nth(3).locator(".effect")).to_contain_text(re.compile("0 to .* [KM]iB"))
    expect(rows.nth(3).locator("time")).to_contain_text("EST")
    expect(frame.locator("th .swatch")).to_have_count(2)
    expect(rows.nth(2).locator(".effect")).to_have_count(0)
    scene.picture(page, "decisions-light")


def shows_a_session(scene: Scene, page: Page) -> None:
    frame = scene.view(page, "#sessions/2026-01-05")
    expect(frame.locator(".detail h1")).to_contain_text("5 Jan 2026")
    expect(frame.locator(".detail canvas")).to_have_count(4)
    assert page.url.endswith("#sessions/2026-01-05"), "the address can be kept and sent"
    scene.picture(page, "sessions-light")
    frame.get_by_role("link", name="Close").click()
    expect(frame.locator(".detail canvas")).to_have_count(0)


def act(page: Page, kind: str, reason: str) -> FrameLocator:
    frame = page.frame_locator("iframe")
    if not frame.locator("dialog[open]").is_visible():
        frame.get_by_role("button", name="Actions").click()
    if (back := frame.get_by_role("button", name="Back")).is_visible():
        back.click()
    frame.locator(f"label:has(input[value={kind}])").click()
    frame.get_by_label("Reason").fill(reason)
    return frame


def runs_dry(scene: Scene, page: Page) -> None:
    before = commands(scene)
    frame = act(page, "rebalance", "")
    frame.get_by_role("button", name="Dry run").click()
    expect(frame.locator(".drawer")).to_contain_text("Say why")
    frame = act(page, "rebalance", "looking around")
    frame.get_by_role("button", name="Dry run").click()
    expect(frame.locator("[data-plan=dry] tbody tr")).to_have_count(1)
    expect(frame.locator("[data-plan=dry]")).to_contain_text("to carry out")
    scene.picture(page, "dry-run-light")
    assert commands(scene) == before
    frame.get_by_role("button", name="Rebalance now…").click()
    expect(frame.get_by_role("group", name="Confirm")).to_contain_text("looking around")
    frame.get_by_role("button", name="Back").click()
    expect(frame.get_by_label("Reason")).to_have_value("looking around")
    frame.locator("label:has(input[value=spill])").click()
    expect(frame.get_by_label("Reason")).to_have_value("")


def forces_a_spill(scene: Scene, page: Page) -> None:
    frame = act(page, "spill", "a slot that is busy")
    frame.get_by_role("button", name="Spill…").click()
    frame.get_by_role("button", name="Do it").click()
    expect(frame.locator("[data-plan=real] .chip")).to_have_text("refused")
    frame = act(page, "spill", f"make room {HOSTILE}")
    frame.locator("#slot").select_option("1")
    frame.get_by_label("At least, in MiB").fill("0.5")
    frame.get_by_role("button", name="Spill…").click()
    confirm = frame.get_by_role("group", name="Confirm")
    expect(confirm).to_contain_text("512 KiB")
    expect(confirm).to_contain_text(HOSTILE)
    scene.picture(page, "confirm-light")
    assert commands(scene) == []
    confirm.get_by_role("button", name="Do it").click()
    expect(frame.locator("[data-plan=real]")).to_contain_text("spill 512 KiB at slot 1")
    [command] = commands(scene)
    assert (command.kind, command.slot, command.bytes) == ("spill", 1, 1 << 19)
    assert (command.by, command.reason) == ("admin", f"make room {HOSTILE}")
    frame.get_by_role("button", name="Close").click()
    frame.locator("a[data-view=decisions]").click()
    expect(frame.locator(".waiting")).to_contain_text("asked for by admin")


def says_why_a_seal_fails(scene: Scene, page: Page) -> None:
    """There is no broker to ask for the ends of the topics."""
    frame = act(page, "seal", "an early end")
    frame.get_by_role("button", name="Seal now…").click()
    expect(frame.locator(".confirm")).to_contain_text("can be withdrawn")
    frame.get_by_role("button", name="Do it").click()
    expect(frame.locator(".outcome")).to_contain_text("127.0.0.1:1", timeout=90_000)
    expect(frame.locator(".outcome .chip")).to_have_text("refused")
    frame.get_by_role("button", name="Close").click()
    assert [command.kind for command in commands(scene)] == ["spill"]


def backfills_a_day(scene: Scene, page: Page) -> None:
    frame = act(page, "cleanup", "again, please")
    frame.get_by_label("Session").fill("2026-01-05")
    frame.get_by_role("button", name="Backfill…").click()
    frame.get_by_role("button", name="Do it").click()
    link = frame.locator(".drawer-body a")
    expect(link).to_be_visible()
    [run] = scene.server.runs("market_close")
    assert (run["partition_key"], run["note"]) == ("2026-01-05", "again, please")
    assert run["triggering_user_name"] == "admin"
    frame.get_by_role("button", name="Close").click()
    frame.locator("a[data-view=sessions]").click()
    row = frame.locator("[data-session='2026-01-05']")
    expect(row).to_contain_text("DAG is paused")
    row.get_by_role("link", name="paused").click()
    page.wait_for_url(re.compile(r"/dags/spillway_market_close/runs/"))


def fits_narrow_windows(scene: Scene, page: Page) -> None:
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        for view in ("overview", "groups", "decisions", "sessions"):
            scene.view(page, f"#{view}")
            page.wait_for_timeout(200)
            wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert page.frames[-1].evaluate(wide) <= 0, f"{view} at {width}"
        scene.picture(page, f"sessions-{width}")


def a_viewer_sees_and_cannot_act(scene: Scene) -> None:
    page = scene.enter("viewer", theme="dark")
    frame = scene.view(page, "#overview")
    expect(frame.locator("[data-stage]")).to_have_text("open")
    expect(frame.get_by_role("button", name="Actions")).to_be_disabled()
    frame.locator("a[data-view=sessions]").click()
    expect(frame.locator("[data-session]")).to_have_count(1)
    expect(frame.get_by_role("button", name="Backfill")).to_have_count(0)
    # Whatever the page offers: the server refuses, for the same request that an admin may send.
    sent = """body => fetch('act/spill', {method: 'POST', body: JSON.stringify(body),
              headers: {'Content-Type': 'application/json'}}).then(r => r.status)"""
    body = {"slot": 0, "bytes": 1024, "reason": "let me"}
    assert page.frames[-1].evaluate(sent, body) == 403
    run = """() => fetch('../api/v2/dags/spillway_market_close/dagRuns', {method: 'POST',
              body: JSON.stringify({logical_date: null, partition_key: '2026-01-05'}),
              headers: {'Content-Type': 'application/json'}}).then(r => r.status)"""
    assert page.frames[-1].evaluate(run) == 403
    assert len(commands(scene)) == 1
    # Logged out while it is open: it says so, and keeps what it has.
    page.context.clear_cookies()
    expect(frame.locator("#notice")).to_contain_text("logged out")
    scene.picture(page, "logged-out-dark")
    page.context.close()


def a_stranger_sees_nothing(scene: Scene) -> None:
    context = scene.browser.new_context()
    for path in ("", "static/main.js", "static/vendor/echarts.esm.min.js", "data/overview", "x"):
        assert context.request.get(f"{scene.server.url}/spillway/{path}").status == 401, path
    page = context.new_page()
    page.goto(f"{scene.server.url}/plugin/spillway")
    page.wait_for_url(re.compile("/auth/login"))
    context.close()


def strangers_do_not_hold_it_up(scene: Scene) -> None:
    """50 at once send 16 MiB each, whole or in chunks, of whatever type: nobody else waits."""
    scene.server.login()
    assert scene.server.call("GET", "/spillway/data/overview")["day"]  # the first look takes longer
    before = memory_of(scene.server)
    longest = []
    for _ in range(3):  # other tests use the machine, too
        longest.append(wait_beside_strangers(scene.server))
        if longest[-1] < 1.0:
            break
    assert min(longest) < 1.0, f"others waited {longest} s"
    took = memory_of(scene.server) - before
    assert took < 64 << 20, f"bodies took {took >> 20} MiB"


def wait_beside_strangers(server: Airflow) -> float:
    """How long the page and Airflow's API took to answer at most, in seconds."""
    command = [sys.executable, "-m", "tests.browser.strangers", server.url]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as strangers:
        waited = []
        while strangers.poll() is None:
            for path in ("/spillway/data/overview", "/api/v2/version"):
                began = time.monotonic()
                server.call("GET", path)
                waited.append(time.monotonic() - began)
        assert strangers.stdout is not None
        assert json.loads(strangers.stdout.read()) == [401] * STRANGERS
    return max(waited)


def memory_of(server: Airflow) -> int:
    """Of the process that listens where the page is, in bytes."""
    port = urlsplit(server.url).port
    for process in psutil.Process(server.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            listens = process.net_connections("tcp")
            if any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in listens):
                return int(process.memory_info().rss)
    raise AssertionError(f"nobody listens at {port}")


def commands(scene: Scene) -> list[Command]:
    return [command for _, command in open_again(scene.root).commands.read()]
