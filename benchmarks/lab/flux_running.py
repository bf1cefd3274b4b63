"""An experiment of Flux's from its description to its outcomes."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.lab.digest import digest
from benchmarks.lab.flux_experiments import FluxExperiment
from benchmarks.lab.flux_lines import FluxOutcome, run_flux
from benchmarks.lab.flux_page import FluxDone
from benchmarks.lab.running import Report


def carry_out_flux(
    experiment: FluxExperiment,
    progress: Report,
    finished: Callable[[FluxOutcome], None] = lambda _: None,
) -> FluxDone:
    """Run every line."""
    began = time.process_time()
    outcomes = {}
    for line in experiment.lines:

        def say(part: float, name: str = line.name) -> None:
            progress(name, part)

        outcomes[line.name] = run_flux(line, say)
        finished(outcomes[line.name])
    took_s = round(time.process_time() - began, 1)
    return FluxDone(experiment, outcomes, took_s, digest(experiment))
