"""All experiments of the laboratory, in the order of the page."""

from __future__ import annotations

from benchmarks.lab.changing_days import changing
from benchmarks.lab.experiments import Experiment
from benchmarks.lab.flux_experiments import FluxExperiment, flux_experiments
from benchmarks.lab.memory_experiments import memory_experiments
from benchmarks.lab.relocation_experiments import relocation_experiments
from benchmarks.lab.tree_experiments import tree_experiments
from benchmarks.lab.window_experiments import WindowExperiment, window_experiments


def experiments() -> tuple[Experiment | WindowExperiment | FluxExperiment, ...]:
    """Those of single joins, then those of trees, of windows, and Flux's."""
    return (*spilling_experiments(), *window_experiments(), *flux_experiments())


def spilling_experiments() -> tuple[Experiment, ...]:
    """Those whose lines have too little memory, or might."""
    return (
        *memory_experiments(),
        *relocation_experiments(),
        *changing(),
        *tree_experiments(),
    )
