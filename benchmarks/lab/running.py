"""An experiment from its description to its outcomes: the day, the lines, the limits."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from benchmarks.lab.clairvoyant import best_static, ceiling
from benchmarks.lab.cluster import ROW_BYTES
from benchmarks.lab.digest import digest
from benchmarks.lab.experiments import AMPLE, Experiment
from benchmarks.lab.lines import Outcome, run
from benchmarks.lab.page import Done, Limit
from benchmarks.lab.workload import Day, generate

Report = Callable[[str, float], None]
"""Told a line's name and how much of it is done, 0 to 1."""


def carry_out(
    experiment: Experiment,
    progress: Report,
    finished: Callable[[Outcome], None] = lambda _: None,
) -> Done:
    """Run every line. Raises `NotExact`."""
    began = time.process_time()
    day = generate(experiment.workload, experiment.epoch_s)
    outcomes = {}
    for line in experiment.lines:

        def say(part: float, name: str = line.name) -> None:
            progress(name, part)

        outcomes[line.name] = run(line, day, say)
        finished(outcomes[line.name])
    limits = _limits(experiment, day, outcomes)
    took_s = round(time.process_time() - began, 1)
    return Done(experiment, outcomes, limits, took_s, digest(experiment))


def _limits(experiment: Experiment, day: Day, outcomes: Mapping[str, Outcome]) -> dict[str, Limit]:
    """Of every line that had to spill, with the memory of all its slots."""
    if not experiment.limits:
        return {}
    rows = {
        line.name: line.spilling.memory_bytes * len(line.shares) // ROW_BYTES
        for line in experiment.lines
        if line.spilling.memory_bytes < AMPLE
    }
    found = {}
    for memory in sorted(set(rows.values())):
        most = max(outcomes[name].run_time for name, held in rows.items() if held == memory)
        static = best_static(day, memory).results
        top = ceiling(day, memory, max(most, static)) if experiment.ceiling else None
        found[memory] = Limit(static, top)
    return {name: found[memory] for name, memory in rows.items()}
