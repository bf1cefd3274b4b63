"""An experiment from its description to its outcomes: the day, the lines, the limits."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from benchmarks.lab.clairvoyant import best_static, ceiling, foresight
from benchmarks.lab.cluster import ROW_BYTES
from benchmarks.lab.digest import digest
from benchmarks.lab.exact import NotExact
from benchmarks.lab.experiments import AMPLE, Experiment
from benchmarks.lab.lines import Line, Outcome, profile, run
from benchmarks.lab.page import Done, Limit
from benchmarks.lab.tree_lines import run_tree, tree_ceiling
from benchmarks.lab.tree_workload import TreeDay, TreeWorkload, generate_tree
from benchmarks.lab.workload import Day, generate
from spillway.policy.forecast import Profile

Report = Callable[[str, float], None]
"""Told a line's name and how much of it is done, 0 to 1."""


def carry_out(
    experiment: Experiment,
    progress: Report,
    finished: Callable[[Outcome], None] = lambda _: None,
) -> Done:
    """Run every line. Raises `NotExact`."""
    began = time.process_time()
    day: Day | TreeDay
    if isinstance(experiment.workload, TreeWorkload):
        day = generate_tree(experiment.workload, experiment.epoch_s)
    else:
        day = generate(experiment.workload, experiment.epoch_s)
    outcomes = {}
    for line in experiment.lines:

        def say(part: float, name: str = line.name) -> None:
            progress(name, part)

        if isinstance(day, TreeDay):
            outcomes[line.name] = run_tree(line, day, say)
        else:
            outcomes[line.name] = run(line, day, say, _before(experiment, line))
        finished(outcomes[line.name])
    limits = _limits(experiment, day, outcomes)
    took_s = round(time.process_time() - began, 1)
    return Done(experiment, outcomes, limits, took_s, digest(experiment))


def _before(experiment: Experiment, line: Line) -> Profile | None:
    """How the rows of the day before a line's came."""
    if line.before is None or isinstance(experiment.workload, TreeWorkload):
        return None
    return profile(generate(experiment.workload.before(line.before), experiment.epoch_s))


def _limits(
    experiment: Experiment, day: Day | TreeDay, outcomes: Mapping[str, Outcome]
) -> dict[str, Limit]:
    """Of every line that had to spill, with the memory of all its slots. Raises `NotExact` where a
    line that brings nothing back passes its ceiling."""
    if not experiment.limits:
        return {}
    of_all = {
        line.name: line.spilling.memory_bytes * len(line.shares)
        for line in experiment.lines
        if line.spilling.memory_bytes < AMPLE
    }
    nothing_back = {each.name for each in experiment.lines if each.spilling.reactivation == "off"}
    found = {}
    for memory in sorted(set(of_all.values())):
        bounded = [name for name in nothing_back & of_all.keys() if of_all[name] == memory]
        most = max((outcomes[name].run_time for name in bounded), default=0)
        if isinstance(day, TreeDay):
            limit = Limit(memory, tree_ceiling(day, memory, most))
        else:
            rows = memory // ROW_BYTES
            seen = foresight(day, rows)
            above = ceiling(day, rows, max(most, seen))
            limit = Limit(memory, above, best_static(day, rows).results, seen)
        if limit.ceiling < most:
            raise NotExact(f"a ceiling of {limit.ceiling} is no bound: a line gave {most}")
        found[memory] = limit
    return {name: found[memory] for name, memory in of_all.items()}
