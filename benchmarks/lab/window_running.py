"""An experiment of windowed joins from its description to its outcomes."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.lab.digest import digest
from benchmarks.lab.running import Report
from benchmarks.lab.window_experiments import WindowExperiment
from benchmarks.lab.window_lines import WindowOutcome, run_window
from benchmarks.lab.window_page import WindowDone


def carry_out_window(
    experiment: WindowExperiment,
    progress: Report,
    finished: Callable[[WindowOutcome], None] = lambda _: None,
) -> WindowDone:
    """Run every line. Raises `NotExact`."""
    began = time.process_time()
    outcomes = {}
    for line in experiment.lines:

        def say(part: float, name: str = line.name) -> None:
            progress(name, part)

        outcomes[line.name] = run_window(line, say)
        finished(outcomes[line.name])
    took_s = round(time.process_time() - began, 1)
    return WindowDone(experiment, outcomes, took_s, digest(experiment))
