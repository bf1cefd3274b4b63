"""`spillway demo`: a trading day on this machine, end to end, with its proof.

It starts a real broker on a free port, sends 3 x 210,000 messages (skewed, some malformed), joins
them with about a quarter of the memory that their state needs, seals, cleans up, verifies, and
shows what came of it. Everything that it started is ended when it returns: also after Ctrl-C,
SIGTERM, a lost terminal or an error.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.text import Text

from spillway.demo.airflow import AirflowEnded
from spillway.demo.airflow_day import AirflowDay
from spillway.demo.day import LocalDay
from spillway.demo.phases import PhaseFailed, PhaseOutcome, Stopped
from spillway.demo.place import demo_place
from spillway.demo.view import LiveView, outcome_table, verdict_line, what_next, write_outcome
from spillway.places import var_folder
from spillway_schemas.exits import FAILED, INTERRUPTED, NOT_COMPLETE
from spillway_schemas.scenario import Scenario, load_scenario
from spillway_schemas.settings import Settings

QUERIES = {"symbol": "demo", "symbol_window": "demo-window"}
"""What a demo can show: queries, and their scenarios."""
MEMORY_SHARE = 0.25
"""Of what the whole day's state would need."""
ROW_STATE_BYTES = 60
"""What a row of the shipped streams takes in state (measured: 56 to 62)."""
LEAST_BUDGET_BYTES = 1 << 20

__all__ = ["QUERIES", "PhaseOutcome", "budget_bytes", "demo"]


def demo(
    settings: Settings,
    out: Console,
    *,
    airflow: bool = False,
    wait: bool = False,
    keep: bool = False,
    query: str = "symbol",
    scenario: Scenario | None = None,
    folder: Path | None = None,
) -> int:
    """Run the demo; 0 when the day is proved complete, 1 when not, 3 on failure, 130 if stopped.

    Args:
        settings: slots, groups, spill rules and Spark's master are taken from them.
        out: where progress and the outcome go.
        airflow: let a real Airflow run the day.
        wait: stay up at the end until somebody stops it.
        keep: move what an earlier demo left aside instead of removing it.
        query: one of `QUERIES`.
        scenario: what to produce; the query's own of `QUERIES` when not given.
        folder: where everything is made; `demo` of the variable folder when not given.

    Raises `spillway.demo.place.DemoRuns` when another demo uses the folder.
    """
    scenario = load_scenario(QUERIES[query]) if scenario is None else scenario
    folder = var_folder() / "demo" if folder is None else folder
    stop = threading.Event()
    budget = budget_bytes(scenario, settings.state.slots)
    with _signals(stop), demo_place(settings, folder, budget, query=query, keep=keep) as place:
        day = (AirflowDay if airflow else LocalDay)(place, scenario, stop, lambda _: None)
        with ExitStack() as running:
            try:
                with LiveView(out) as view:
                    day.view = view.show
                    outcome = running.enter_context(day.run())
            except Stopped:
                out.print(Text("stopped; nothing runs any more"))
                return INTERRUPTED
            except (PhaseFailed, AirflowEnded) as failure:
                out.print(Text(str(failure), style="red"), soft_wrap=True)
                return FAILED
            write_outcome(outcome, place)
            out.print(outcome_table(outcome))
            out.print(verdict_line(outcome))
            for line in what_next(outcome, place):
                out.print(Text(line), soft_wrap=True)
            if wait:
                for line in (*day.notes, "", "It stays up until you press Ctrl-C."):
                    out.print(Text(line), soft_wrap=True)
                stop.wait()
        return 0 if outcome.complete else NOT_COMPLETE


def budget_bytes(scenario: Scenario, slots: int) -> int:
    """Memory of one slot: its part of `MEMORY_SHARE` of the state that the whole day needs."""
    rows = sum(scenario.volume(stream).rows or 0 for stream in scenario.streams)
    return max(LEAST_BUDGET_BYTES, int(rows * ROW_STATE_BYTES * MEMORY_SHARE / slots))


@contextmanager
def _signals(stop: threading.Event) -> Iterator[None]:
    """Ctrl-C, SIGTERM and a lost terminal only raise a flag while the demo runs."""

    def ask(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        stop.set()

    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, ask) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
