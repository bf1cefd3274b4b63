"""What the demo shows: phases and memory while it runs, a table at the end."""

from __future__ import annotations

import shlex
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from spillway.demo.phases import DemoDay, Phase, PhaseOutcome
from spillway.demo.place import Place
from spillway.report.decisions import decisions_table
from spillway.report.html import write_report
from spillway.report.model import Status
from spillway.report.terminal import memory_bar, unicode_works
from spillway.report.words import bytes_text, count_text, ms_text, part_text, span_text

SHOWN = 4
"""The newest decisions."""
PLAIN_EVERY_S = 5.0
"""Without a terminal: a line at most so often, and at every change."""


class LiveView(AbstractContextManager["LiveView"]):
    """Phases while they pass: one live picture in a terminal, lines elsewhere."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._live = Live(console=out, auto_refresh=False, transient=True)
        self._states: dict[str, str] = {}
        self._told = 0.0
        self._noted = 0

    def __enter__(self) -> LiveView:
        if self._out.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._out.is_terminal:
            self._live.stop()

    def show(self, day: DemoDay) -> None:
        """Show the day as it is now."""
        for note in day.notes[self._noted :]:
            self._out.print(Text(note), soft_wrap=True)
        self._noted = len(day.notes)
        if self._out.is_terminal:
            self._live.update(_picture(day, self._out), refresh=True)
        else:
            self._lines(day)

    def _lines(self, day: DemoDay) -> None:
        due = time.monotonic() - self._told >= PLAIN_EVERY_S
        for phase in day.phases.values():
            changed = self._states.get(phase.name, "waiting") != phase.state
            if changed or (due and phase.state == "running"):
                self._out.print(_line(phase), highlight=False, soft_wrap=True)
                self._states[phase.name] = phase.state
                self._told = time.monotonic()


def _line(phase: Phase) -> Text:
    detail = phase.detail or phase.says
    if phase.state == "running":
        lasted = phase.lasted()
        return Text(f"{phase.name}: {detail}" + (f" ({span_text(lasted)})" if lasted >= 1 else ""))
    within = "after" if phase.state == "stopped" else "in"
    return Text(f"{phase.name}: {phase.state} {within} {span_text(phase.seconds)}. {detail}")


def _picture(day: DemoDay, out: Console) -> RenderableType:
    fancy = unicode_works(out)
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="ellipsis", no_wrap=True)
    for phase in day.phases.values():
        sign, style = _sign(phase, fancy)
        seconds = span_text(phase.lasted()) if phase.state != "waiting" else ""
        table.add_row(
            Text(sign, style=style),
            Text(phase.name, style="bold" if phase.state == "running" else style),
            seconds,
            Text(phase.detail or phase.says, style="" if phase.detail else "dim"),
        )
    return Group(table, Text(), _memory(day.status, out, fancy))


def _sign(phase: Phase, fancy: bool) -> tuple[str, str]:
    if phase.state == "done":
        return ("✓" if fancy else "+"), "green"
    if phase.state == "failed":
        return ("✗" if fancy else "x"), "red"
    if phase.state == "stopped":
        return ("■" if fancy else "="), "yellow"
    if phase.state == "running":
        return ("▶" if fancy else ">"), "cyan"
    return ("·" if fancy else "."), "dim"


def _memory(status: Status | None, out: Console, fancy: bool) -> RenderableType:
    if status is None:
        return Text()
    grid = Table.grid(padding=(0, 2))
    cells = max(10, min(40, out.width - 50))
    for slot in status.slots:
        bar = memory_bar(
            slot.state_bytes,
            slot.peak_state_bytes,
            slot.budget_bytes,
            status.threshold,
            cells,
            fancy,
        )
        words = f"{bytes_text(slot.state_bytes)} of {bytes_text(slot.budget_bytes)}"
        grid.add_row(Text(f"slot {slot.slot}", style="dim"), bar, words, f"{slot.spills} spills")
    if not status.adaptations:
        return grid
    return Group(grid, Text(), decisions_table(status, out, SHOWN))


def outcome_table(outcome: PhaseOutcome) -> Table:
    """The table of the whole day."""
    session = outcome.status.session_of(outcome.session)
    assert session is not None  # the status was read for this session
    verdict = outcome.verdict
    table = Table(title=f"Session {outcome.session}", show_header=False, title_justify="left")
    table.add_column(no_wrap=True)
    table.add_column(justify="right")

    def row(name: str, value: str, style: str = "") -> None:
        table.add_row(Text(name), Text(value, style=style))

    row("rows in", count_text(sum(session.rows_in.values())))
    row("quarantined", count_text(session.rejected))
    row("results at run time", count_text(verdict["run_time"]))
    row("results by cleanup", count_text(verdict["cleanup"]))
    row("expected", count_text(verdict["expected"]))
    for name in ("missing", "doubled"):
        row(name, count_text(verdict[name]), "bold green" if verdict[name] == 0 else "bold red")
    table.add_section()
    row("spills", count_text(session.spills))
    row("groups moved", count_text(session.moved))
    row("decisions", count_text(len(outcome.status.adaptations)))
    row("generations", f"{session.generations:,} (at most {session.most_generations} of one group)")
    peak = f"{bytes_text(session.peak_state_bytes)} of {bytes_text(session.budget_bytes)}"
    if session.budget_bytes:
        peak += f" ({part_text(session.peak_state_bytes / session.budget_bytes)})"
    row("peak state of a slot", peak)
    without = session.spilled_bytes + session.flushed_bytes
    row("state spilled in all", bytes_text(without))
    delay = f"p50 {ms_text(session.delay_p50_ms)}, p99 {ms_text(session.delay_p99_ms)}"
    row("production delay", delay)
    table.add_section()
    for phase in outcome.phases:
        row(f"seconds: {phase.name}", f"{phase.seconds:.1f}")
    return table


def write_outcome(outcome: PhaseOutcome, place: Place) -> None:
    """The HTML report of the demo's day."""
    rows = [(f"demo: {p.name}", span_text(p.seconds)) for p in outcome.phases]
    write_report(outcome.status, place.report, rows)


def verdict_line(outcome: PhaseOutcome) -> Text:
    """The one sentence that counts."""
    if outcome.complete:
        return Text("The day is complete: every result is there, each once.", style="bold green")
    return Text("The day is NOT complete.", style="bold red")


def what_next(outcome: PhaseOutcome, place: Place) -> list[str]:
    """Lines that name what was made and three commands to try."""
    spillway = f"{_spillway()} --config {shlex.quote(_short(place.config))}"
    results = f"{outcome.status.warehouse_root}/results"
    query = (
        f"import polars as pl; print(pl.scan_delta({results!r}).group_by('phase').len().collect())"
    )
    # Double quotes keep it readable, where nothing in it means something to the shell.
    quoted = shlex.quote(query) if set('"$`\\!') & set(query) else f'"{query}"'
    return [
        f"report   {place.report}",
        f"results  {results}",
        f"tables   {outcome.status.warehouse_root}/" + "{spill,quarantine,journal,sessions,...}",
        *(f"logs     {each}" for each in place.all_logs),
        "",
        "Try next:",
        f"  {spillway} status",
        f"  {spillway} status --adaptations",
        f"  {spillway} quarantine list",
        f"  {shlex.quote(_short(Path(sys.executable)))} -c {quoted}",
    ]


def _spillway() -> str:
    """How this installation's `spillway` is called from here."""
    beside = Path(sys.executable).with_name("spillway")
    return shlex.quote(_short(beside)) if beside.exists() else "spillway"


def _short(path: Path) -> str:
    """A path as one would type it: relative when it lies below the working directory."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
