"""All experiments of the laboratory, in the order of the page."""

from __future__ import annotations

from benchmarks.lab import experiments as single
from benchmarks.lab.experiments import Experiment
from benchmarks.lab.tree_experiments import tree_experiments


def experiments() -> tuple[Experiment, ...]:
    """Those of single joins, then those of trees."""
    return (*single.experiments(), *tree_experiments())
