"""A status on the terminal: one look, or one every second until Ctrl-C."""

from __future__ import annotations

import json
import time
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from spillway.report.decisions import decisions_table
from spillway.report.html import write_report
from spillway.report.looking import Looker
from spillway.report.model import Status
from spillway.report.terminal import render, updated_text
from spillway.tables import NothingYet, NoWarehouse
from spillway_schemas.exits import USAGE
from spillway_schemas.settings import Settings

WATCH_EVERY_S = 1.0
SESSIONS = 10
"""Sessions that are shown, unless all are asked for or an older one needs somebody."""


class ReportRefused(Exception):
    """The file of `--report` cannot be written."""

    exit_code = USAGE


def show_status(
    settings: Settings,
    out: Console,
    *,
    as_json: bool = False,
    watch: bool = False,
    report: Path | None = None,
    adaptations: bool = False,
    every_session: bool = False,
) -> None:
    """Show where the stream stands: once, or with `watch` until Ctrl-C.

    `adaptations` shows the history of decisions instead. `as_json` prints one JSON object a look
    (one a line with `watch`); `report` also writes the HTML report of the newest session that has
    results. JSON and report have every session; the terminal has with `every_session`. Raises
    `NoWarehouse`, `NothingYet`, `ReportRefused`.
    """
    if report is not None and report.is_dir():
        raise ReportRefused(f"--report: {report} cannot be written: it is a folder")
    looker = Looker(settings)
    newest = None if as_json or every_session else SESSIONS
    if adaptations:
        _print_adaptations(looker.look(newest=newest), out, as_json)
    elif not watch:
        _print(looker.look(newest=newest), out, as_json)
    elif as_json or not out.is_terminal:
        _repeat(looker, out, as_json, newest)
    else:
        _live(looker, out, newest)
    if report is not None:
        found = looker.look()
        session = next((s.session for s in found.sessions if s.results_run_time), found.session)
        try:
            write_report(looker.look(session), report)
        except OSError as error:
            raise ReportRefused(f"--report: {report} cannot be written: {error.strerror}") from None
        out.print(Text(f"report: {report}"), soft_wrap=True)


def _print(found: Status, out: Console, as_json: bool) -> None:
    if as_json:
        _write(found.model_dump_json(exclude={"detail"}), out)
    else:
        out.print(render(found, out), highlight=False)


def _write(line: str, out: Console) -> None:
    """A line for programs, which may wait for it."""
    out.file.write(line + "\n")
    out.file.flush()


def _print_adaptations(found: Status, out: Console, as_json: bool) -> None:
    if as_json:
        listed = [each.model_dump() for each in found.adaptations]
        _write(json.dumps(listed), out)
    elif found.adaptations:
        out.print(decisions_table(found, out), highlight=False)
    else:
        out.print("Nothing was asked for yet: see `spillway rebalance`.", highlight=False)


def _repeat(looker: Looker, out: Console, as_json: bool, newest: int | None) -> None:
    """`--watch` without a terminal: one look after another."""
    try:
        while True:
            _print(looker.look(newest=newest), out, as_json)
            time.sleep(WATCH_EVERY_S)
    except KeyboardInterrupt:
        return


def _live(looker: Looker, out: Console, newest: int | None) -> None:
    try:
        with Live(console=out, screen=True, auto_refresh=False) as live:
            while True:
                live.update(_frame(looker, out, newest), refresh=True)
                time.sleep(WATCH_EVERY_S)
    except KeyboardInterrupt:
        return


def _frame(looker: Looker, out: Console, newest: int | None) -> RenderableType:
    try:
        found = looker.look(newest=newest)
    except (NoWarehouse, NothingYet) as nothing:
        # Whoever watches may have started it before the stream.
        return Text(f"{nothing}\n\nwaiting ...", style="dim")
    return Group(render(found, out), Text(), updated_text(found))
