"""Whether what is shown of an experiment came from the code that there is.

A digest takes in an experiment's parameters, and the code that decides what its lines come to: the
laboratory's, the engine's choice of what spills and when, and where lines have policies, these,
what makes them, and the values of the settings that they are given. Comments and texts do not
count, nor where a name is imported from. Nor does the rest of the engine, which decides nothing:
every run is checked to be exact.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache, partial

import numpy as np

from benchmarks import ROOT
from benchmarks.lab.control import SETTINGS
from benchmarks.lab.experiments import Experiment
from benchmarks.lab.flux_experiments import FluxExperiment
from benchmarks.lab.tree_workload import TreeWorkload
from benchmarks.lab.window_experiments import WindowExperiment

LABORATORY = ("cluster", "job", "lines", "running")
SINGLE = ("clairvoyant", "exact", "workload")
TREES = ("tree_ceiling", "tree_cluster", "tree_exact", "tree_lines", "tree_workload")
FLUX = ("cluster", "lines")
WINDOWS = ("cluster", "control", "cost", "exact", "lines", "workload")
POLICIES = ("disk", "pooled", "registry", "view")
SPILLS = ("arrivals", "expected", "reactivation", "victims")
ENGINE = ("growth", "state/kept", "spill/returning", "spill/spilling", "statistics")
CLUSTERS = ("clusters", "flux", "registry", "slots", "view")
"""Policies of windowed joins, and what they use."""


def digest(experiment: Experiment | WindowExperiment | FluxExperiment) -> str:
    """Of what an experiment's figures come from."""
    if isinstance(experiment, WindowExperiment):
        return _digest_of_windows(experiment)
    if isinstance(experiment, FluxExperiment):
        found = [f"benchmarks/lab/flux_{name}.py" for name in FLUX]
        found += [f"jobs/spillway/policy/{name}.py" for name in ("flux", "view")]
        return _digest(found, [experiment.lines, *map(str, sorted(SETTINGS.items()))])
    own = TREES if isinstance(experiment.workload, TreeWorkload) else SINGLE
    found = [*(f"benchmarks/lab/{name}.py" for name in (*LABORATORY, *own))]
    found += [f"jobs/spillway/policy/{name}.py" for name in SPILLS]
    found += [f"jobs/spillway/engine/{name}.py" for name in ENGINE]
    given: list[object] = [
        experiment.workload,
        experiment.epoch_s,
        experiment.lines,
    ]
    if isinstance(experiment.workload, TreeWorkload):
        found += ["jobs/spillway/policy/lineage.py", "jobs/spillway/engine/tracing.py"]
        given.append(experiment.workload.described().model_dump_json())
    if any(getattr(line, "before", None) is not None for line in experiment.lines):
        found += ["jobs/spillway/policy/forecast.py"]
    if any(line.policy for line in experiment.lines):
        found += [
            *(f"jobs/spillway/policy/{name}.py" for name in POLICIES),
            "benchmarks/lab/control.py",
        ]
        given += [*map(str, sorted(SETTINGS.items()))]
    return _digest(found, given)


def _digest_of_windows(experiment: WindowExperiment) -> str:
    found = [*(f"benchmarks/lab/{name}.py" for name in ("cluster", "job"))]
    found += [f"benchmarks/lab/window_{name}.py" for name in WINDOWS]
    found += [f"jobs/spillway/policy/{name}.py" for name in CLUSTERS]
    return _digest(found, [experiment.lines, *map(str, sorted(SETTINGS.items()))])


def _digest(found: Iterable[str], given: Iterable[object]) -> str:
    parts = [*map(_code, found), *_parameters(tuple(given))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


@cache
def _code(path: str) -> str:
    return " ".join(_shape(ast.parse((ROOT / path).read_text())))


def _shape(node: object) -> Iterator[str]:
    """What a program does, without its texts; the same for every version of Python."""
    match node:
        case ast.Expr(value=ast.Constant(value=str())) | ast.Import() | ast.ImportFrom():
            pass
        case ast.JoinedStr() | ast.Constant(value=str()):
            yield "text"
        case ast.AST():
            yield f"({type(node).__name__}"
            for name, value in ast.iter_fields(node):
                if value not in (None, []) and name != "ctx":
                    yield name
                    yield from _shape(value)
            yield ")"
        case list():
            for each in node:
                yield from _shape(each)
        case _:
            yield repr(node)


def _parameters(given: object) -> Iterator[str]:
    match given:
        case np.ndarray():
            # The last bits of what was drawn differ between processors.
            yield str([float(f"{each:.9g}") for each in given.ravel().tolist()])
        case partial():
            yield f"{given.func.__name__} {sorted(given.keywords.items())}"
        case tuple():
            for each in given:
                yield from _parameters(each)
        case _ if is_dataclass(given):
            for each in fields(given):
                yield each.name
                yield from _parameters(getattr(given, each.name))
        case _ if callable(given):
            yield getattr(given, "__name__", "")
        case _:
            yield repr(given)
