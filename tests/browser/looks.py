"""The page over warehouses that are made up, without an Airflow: served as it is, to one user.

What Airflow adds is left out: its login, its frame, its API. `test_page.py` has those.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.api_fastapi.core_api import security
from playwright.sync_api import Page as BrowserPage
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Mount, Route

from spillway.kafka.broker import free_port
from spillway.live.watch import Watch
from spillway.tables import SessionEvent
from spillway_airflow.page import Page, door
from spillway_airflow.page.app import build
from spillway_schemas.journal import Epoch
from spillway_schemas.settings import load_settings
from tests.browser.chromium import SHOWN
from tests.commands import command_of
from tests.page_warehouse import HOSTILE, page_day, write_page_warehouse
from tests.report_journal import DAY, Made, fill_journal, open_warehouse, withdraw_a_seal

EPOCHS, SEALED_AT = 60, 50
STARTS_S = 60.0

LOOKED_AT = ((328, "light"), (800, "dark"), (1440, "light"))
"""Widths and themes. Airflow takes 62 of a phone's 390; what is cut off has no colour."""
SLOTS = {328: (2, 64), 800: (64,), 1440: (2,)}
"""Slots of the days that are looked at in each width: most is cut off in the narrowest one."""
CUT_OFF = """() => {
  const wide = document.documentElement.clientWidth;
  const found = [];
  const name = (e) => `${e.tagName}.${e.getAttribute('class')}`;
  if (document.documentElement.scrollWidth > wide) found.push('the document');
  for (const e of document.querySelectorAll('body *')) {
    if (e.closest('.skip, .visually-hidden, dialog:not([open])')) continue;
    const box = e.getBoundingClientRect();
    const beyond = box.width && (box.right > wide + 1 || box.left < -1);
    if (beyond && !e.closest('.scroll')) found.push(name(e));
    const hides = getComputedStyle(e).overflowX !== 'visible' && e.scrollWidth > e.clientWidth + 1;
    const shown = !e.clientWidth || e.closest('.scroller.more-right');
    if (hides && !shown) found.push(`${name(e)} hides`);
  }
  return found;
}"""
"""Elements beyond the window, and those that hide a part of themselves without a sign."""


def cut(made: Made, last: int) -> Made:
    """The day up to an epoch, that one included."""
    made.entries = [e for e in made.entries if not isinstance(e, Epoch) or e.epoch <= last]
    return made


def silent(made: Made) -> Made:
    """The same day, of which no row lies beyond its end: the next one has none."""
    assert made.last.sealed is not None
    end = made.last.sealed.end
    at = {topic: [10] * len(ends) for topic, ends in end.items()}
    for number, entry in enumerate(made.entries):
        if not isinstance(entry, Epoch):
            continue
        read = []
        for part in entry.read:
            stop = end[part.topic][part.partition]
            rows = min(part.rows, stop - at[part.topic][part.partition])
            at[part.topic][part.partition] += rows
            read.append(part.model_copy(update={"rows": rows, "rejected": 0}))
        ends = {topic: list(each) for topic, each in at.items()}
        made.entries[number] = entry.model_copy(update={"read": read, "end": ends})
    return made


def straying(made: Made) -> Made:
    """The same day, of which some rows of `stock` happened on another; of `review` none did."""
    strays = {"stock": [1_000, 234], "review": [0, 0]}
    for number, entry in enumerate(made.entries):
        if isinstance(entry, Epoch) and entry.epoch < 2:
            outside = {topic: rows[entry.epoch] for topic, rows in strays.items()}
            read = [
                part.model_copy(update={"outside": outside.get(part.topic)})
                if part.partition == 0
                else part
                for part in entry.read
            ]
            made.entries[number] = entry.model_copy(update={"read": read})
    return made


def days(slots: int) -> dict[str, Made]:
    """A day in each of its states, by name."""

    def sealed() -> Made:
        made = page_day(EPOCHS, slots=slots, seal_after=SEALED_AT)
        return cut(made, made.sealed_epoch)

    pending = withdraw_a_seal(page_day(24, slots=slots))
    return {
        f"open-{slots}": straying(page_day(EPOCHS, slots=slots)),
        f"pending-{slots}": cut(pending, 11),
        f"sealing-{slots}": cut(page_day(EPOCHS, slots=slots, seal_after=SEALED_AT), SEALED_AT),
        f"sealed-{slots}": sealed(),
        f"complete-{slots}": silent(sealed()),
    }


def warehouses(folder: Path) -> dict[str, Path]:
    """One of each state of a day, with 2 slots and with 64; an empty one; one without an epoch."""
    found = {"empty": folder / "empty", "begun": folder / "begun"}
    fill_journal(open_warehouse(str(found["begun"])), page_day(EPOCHS).entries[:2])
    for name, made in {**days(2), **days(64)}.items():
        warehouse = write_page_warehouse(folder / name, made)
        if name.startswith("open"):
            asked = {"slot": 0, "bytes": 1 << 19, "by": "eve", "reason": f"room {HOSTILE}"}
            warehouse.commands.append(command_of("spill", "x/0", **asked))
        if name.startswith("complete"):
            verdict = {"expected": made.results[DAY] + 500, "run_time": made.results[DAY]}
            counts = {**verdict, "cleanup": 500, "missing": 0, "doubled": 0}
            warehouse.sessions.append(
                SessionEvent(session=DAY, event="verified", complete=True, seconds=62.0, **counts)
            )
        found[name] = folder / name
    found["corrected"] = folder / "corrected"
    corrected = write_page_warehouse(found["corrected"], days(2)["complete-2"])
    revision = {"revision": 1, "source": "late.jsonl", "reason": "late", "by": "ada"}
    revision |= {"digest": "0" * 64, "rows": 3, "results": 2_415}
    corrected.sessions.append(SessionEvent(session=DAY, event="verified", complete=True))
    corrected.sessions.append(SessionEvent(session=DAY, event="corrected", details=revision))
    found["lost"] = folder / "lost"
    lost = write_page_warehouse(found["lost"], days(2)["complete-2"])
    gone = {"topic": "stock", "partition": 0, "begin": 0, "end": 5}
    loss = {"ranges": [gone], "reason": f"retention {HOSTILE}", "by": "ada"}
    for event in ("accepted", "verified"):
        details = {"loss": loss}
        lost.sessions.append(
            SessionEvent(session=DAY, event=event, complete=False, details=details)
        )
    return found


def app(roots: Mapping[str, Path], role: str = "admin", **settings: str) -> Starlette:
    """The page of each warehouse at `/NAME/spillway/`, for one user.

    `settings`: more of them, of every warehouse.
    """
    user = SimpleAuthManagerUser(username="alice", role=role)

    async def nothing(request: Any) -> JSONResponse:
        return JSONResponse({"is_paused": False, "dag_runs": []})

    routes: list[BaseRoute] = []
    for name, root in roots.items():
        place = {"warehouse.root": str(root), "kafka.bootstrap_servers": "127.0.0.1:1"}
        given = {**settings, **place}
        gate = build(Watch(lambda given=given: load_settings(None, given)[0]))
        for each in (gate.login, gate.app):
            each.dependency_overrides[door.user] = lambda: user
        page = Page(build=lambda _, gate=gate: gate)
        routes += [Route(f"/{name}/api/{{path:path}}", nothing), Mount(f"/{name}/spillway", page)]
    return Starlette(routes=routes)


@contextlib.contextmanager
def served(roots: Mapping[str, Path], **settings: str) -> Iterator[str]:
    """The address of a server of them, in this process; `settings` as `app` takes them."""
    port = free_port()
    config = uvicorn.Config(app(roots, **settings), host="127.0.0.1", port=port, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="looks", daemon=True)
    manager = SimpleAuthManager()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(security, "get_auth_manager", lambda: manager)
        patch.setattr(security.DagModel, "get_team_name", lambda _: None)
        thread.start()
        until = time.monotonic() + STARTS_S
        while not server.started:
            assert time.monotonic() < until, "the server has not started"
            time.sleep(0.02)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join(STARTS_S)


def look(page: BrowserPage, url: str, name: str, view: str = "overview") -> None:
    """Open a view of a warehouse anew."""
    page.goto("about:blank")
    page.goto(f"{url}/{name}/spillway/#{view}")
    page.locator(SHOWN).first.wait_for()
