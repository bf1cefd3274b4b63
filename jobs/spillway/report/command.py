"""`spillway status`: one look, or one every second until Ctrl-C."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from spillway.readmodel import cache
from spillway.readmodel.cache import ReadCache
from spillway.readmodel.model import ReadModel
from spillway.report.decisions import decisions_table
from spillway.report.ends import kafka_ends
from spillway.report.html import write_report
from spillway.report.model import Status
from spillway.report.status import status, topics_of
from spillway.report.terminal import render, updated_text
from spillway.tables import NothingYet, NoWarehouse, Warehouse
from spillway_schemas.settings import Settings

WATCH_EVERY_S = 1.0
ENDS_EVERY_S = 5.0
"""How often a broker that did not answer is asked again."""


class Looker:
    """Looks at one warehouse again and again; opens it once it is there."""

    warehouse: Warehouse | None
    """The one that was looked at; None before the first look."""
    memory: ReadCache | None

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.warehouse = None
        self.memory = None
        self._silent_until = 0.0

    def look(self, detail_session: str | None = None) -> Status:
        """The status now. Raises `NoWarehouse` and `NothingYet` while there is nothing."""
        if self.warehouse is None or self.memory is None:
            # A reader writes nothing, so there is nothing to sync.
            self.warehouse = Warehouse(self._settings.warehouse.root, fsync=False)
            self.memory = cache.load(self.warehouse.place.path())
        now = datetime.now(UTC)
        found = status(
            self.warehouse,
            self._settings,
            now,
            None,
            memory=self.memory,
            detail_session=detail_session,
        )
        ends = None
        if time.monotonic() >= self._silent_until:
            ends = kafka_ends(self._settings, [topic.topic for topic in found.topics])
            if ends is None:
                self._silent_until = time.monotonic() + ENDS_EVERY_S
        model = self.memory.model
        return found if ends is None or model is None else with_lag(found, model, ends)


def with_lag(found: Status, model: ReadModel, ends: dict[str, list[int]]) -> Status:
    """The same status with the lag behind these ends."""
    topics, lag_rows = topics_of(model, ends)
    return found.model_copy(update={"topics": topics, "lag_rows": lag_rows})


def status_command(
    settings: Settings,
    out: Console,
    *,
    as_json: bool = False,
    watch: bool = False,
    report: Path | None = None,
    adaptations: bool = False,
) -> None:
    """Show where the stream stands: once, or with `watch` until Ctrl-C.

    `adaptations` shows the history of decisions instead. `as_json` prints one JSON object a look
    (one a line with `watch`); `report` also writes the HTML report of the newest session that has
    results. Raises `NoWarehouse`, `NothingYet`.
    """
    looker = Looker(settings)
    if adaptations:
        _print_adaptations(looker.look(), out, as_json)
    elif not watch:
        _print(looker.look(), out, as_json)
    elif as_json or not out.is_terminal:
        _repeat(looker, out, as_json)
    else:
        _live(looker, out)
    if report is not None:
        found = looker.look()
        session = next((s.session for s in found.sessions if s.results_run_time), found.session)
        write_report(looker.look(session), report)
        out.print(Text(f"report: {report}"), soft_wrap=True)


def _print(found: Status, out: Console, as_json: bool) -> None:
    if as_json:
        out.file.write(found.model_dump_json(exclude={"detail"}) + "\n")
        out.file.flush()
    else:
        out.print(render(found, out), highlight=False)


def _print_adaptations(found: Status, out: Console, as_json: bool) -> None:
    if as_json:
        listed = [each.model_dump() for each in found.adaptations]
        out.file.write(json.dumps(listed) + "\n")
    elif found.adaptations:
        out.print(decisions_table(found, out), highlight=False)
    else:
        out.print("Nothing was asked for yet: see `spillway rebalance`.", highlight=False)


def _repeat(looker: Looker, out: Console, as_json: bool) -> None:
    """`--watch` without a terminal: one look after another."""
    try:
        while True:
            _print(looker.look(), out, as_json)
            time.sleep(WATCH_EVERY_S)
    except KeyboardInterrupt:
        return


def _live(looker: Looker, out: Console) -> None:
    try:
        with Live(console=out, screen=True, auto_refresh=False) as live:
            while True:
                live.update(_frame(looker, out), refresh=True)
                time.sleep(WATCH_EVERY_S)
    except KeyboardInterrupt:
        return


def _frame(looker: Looker, out: Console) -> RenderableType:
    try:
        found = looker.look()
    except (NoWarehouse, NothingYet) as nothing:
        # Whoever watches may have started it before the stream.
        return Text(f"{nothing}\n\nwaiting ...", style="dim")
    return Group(render(found, out), Text(), updated_text(found))
