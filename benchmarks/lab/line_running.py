"""An experiment of windowed joins, or of Flux's, from its description to its outcomes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from benchmarks.lab.digest import digest
from benchmarks.lab.flux_experiments import FluxExperiment
from benchmarks.lab.flux_lines import FluxLine, FluxOutcome, run_flux
from benchmarks.lab.flux_page import FluxDone
from benchmarks.lab.running import Report
from benchmarks.lab.window_experiments import WindowExperiment
from benchmarks.lab.window_lines import WindowLine, WindowOutcome, run_window
from benchmarks.lab.window_page import WindowDone

Line = TypeVar("Line", WindowLine, FluxLine)
Outcome = TypeVar("Outcome", WindowOutcome, FluxOutcome)


def carry_out_window(
    experiment: WindowExperiment,
    progress: Report,
    finished: Callable[[WindowOutcome], None] = lambda _: None,
) -> WindowDone:
    """Run every line. Raises `NotExact`."""
    outcomes, took_s = _each(experiment.lines, run_window, progress, finished)
    return WindowDone(experiment, outcomes, took_s, digest(experiment))


def carry_out_flux(
    experiment: FluxExperiment,
    progress: Report,
    finished: Callable[[FluxOutcome], None] = lambda _: None,
) -> FluxDone:
    """Run every line."""
    outcomes, took_s = _each(experiment.lines, run_flux, progress, finished)
    return FluxDone(experiment, outcomes, took_s, digest(experiment))


def _each(
    lines: Iterable[Line],
    run: Callable[[Line, Callable[[float], None]], Outcome],
    progress: Report,
    finished: Callable[[Outcome], None],
) -> tuple[dict[str, Outcome], float]:
    """The outcomes by their lines' names, and the CPU seconds that all of them took."""
    began = time.process_time()
    outcomes = {}
    for line in lines:
        outcomes[line.name] = run(line, partial(progress, line.name))
        finished(outcomes[line.name])
    return outcomes, round(time.process_time() - began, 1)
