"""From runs to what is reported: agreement, medians, factors, targets. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import median

from benchmarks.side_by_side.epochs import spike, steadiness
from benchmarks.side_by_side.programs import NAMES, Run

COPY_FACTOR, STEADY, SPIKE = 0.42, 0.95, 1.5
"""Targets at full size: part of the copy's time, the last quarter's rate over the second's, and an
epoch's time over that of its neighbours."""
PROOF, CLEANED, AFTER = 0.5, 1_000_000, 0.5
"""Part of the ample run's CPU time that `verify` may take, results that cleanup should find in a
CPU second, and part of the CPU time of a batch join of the whole day that cleanup may take."""
LARGE_ROWS, MORE, MORE_SMALL = 20_000_000, 1.1, 1.4
"""CPU time of a run with a quarter of the memory over that of the ample one: from so many rows of
all topics on, and below."""


class Disagreement(RuntimeError):
    """The programs do not have the same results, so their times mean nothing."""


def agree(runs: Sequence[Run], rows: int) -> None:
    """Raise `Disagreement` unless every program read all rows and all joins are the same."""
    problems = []
    for run in runs:
        read = sum(epoch.rows for epoch in run.epochs)
        if read != rows:
            problems.append(f"{_name(run)} read {read:,} of {rows:,} rows")
    copies = [run for run in runs if run.program == "copy"]
    problems += [
        f"{_name(run)} wrote {run.outcome.rows:,} of {rows:,} rows"
        for run in copies
        if run.outcome.rows != rows
    ]
    joins = [run for run in runs if run.program != "copy"]
    contents = {(run.outcome.rows, run.outcome.digest) for run in joins}
    if len(contents) > 1:
        problems += [
            f"{_name(run)} has {run.outcome.rows:,} results with digest {run.outcome.digest}"
            for run in joins
        ]
    for run in joins:
        for phase in run.phases:
            if phase.name == "verify" and not phase.found.get("complete"):
                problems.append(f"{_name(run)}: verify says {phase.found}")
    if problems:
        raise Disagreement("The programs disagree:\n  " + "\n  ".join(problems))


def _name(run: Run) -> str:
    return f"{run.program} ({run.repetition + 1})"


@dataclass(frozen=True)
class Line:
    """One program over its repetitions: medians, and the run that stands for it."""

    program: str
    shown: Run
    """The run whose time is the median (of an even number the faster of the two)."""
    runs: int
    run_s: float
    spread_s: tuple[float, float]
    start_s: float
    total_s: float
    cpu_s: float
    peak_bytes: int
    rows_per_s: float
    steady: float | None
    """`steadiness` in input rows."""
    steady_handled: float | None
    """The same in rows that joins took in, and results."""
    spike: float | None = None
    """`spike`."""


def lines(runs: Sequence[Run]) -> list[Line]:
    """A line for each program that ran, in the order of `NAMES`."""
    made = []
    for program in NAMES:
        mine = sorted((r for r in runs if r.program == program), key=lambda r: r.run_s)
        if not mine:
            continue
        steady, steady_handled = (
            [s for r in mine if (s := steadiness(r.epochs, amount)) is not None]
            for amount in (attrgetter("rows"), attrgetter("handled"))
        )
        spikes = [found for r in mine if (found := spike(r.epochs)) is not None]
        made.append(
            Line(
                program=program,
                shown=mine[(len(mine) - 1) // 2],
                runs=len(mine),
                run_s=median(r.run_s for r in mine),
                spread_s=(mine[0].run_s, mine[-1].run_s),
                start_s=median(r.start_s for r in mine),
                total_s=median(r.total_s for r in mine),
                cpu_s=median(r.cpu_s for r in mine),
                peak_bytes=round(median(r.peak_bytes for r in mine)),
                rows_per_s=median(r.rows_per_s for r in mine),
                steady=median(steady) if steady else None,
                steady_handled=median(steady_handled) if steady_handled else None,
                spike=median(spikes) if spikes else None,
            )
        )
    return made


@dataclass(frozen=True)
class Target:
    """One target and what came out; `met` is None when it could not be measured."""

    text: str
    value: float | None
    met: bool | None


def targets(found: Sequence[Line], join_factor: float) -> list[Target]:
    """The targets, of spillway with ample memory. `join_factor`: times as fast as Spark's joins."""
    by_name = {line.program: line for line in found}
    ours, join, copy = (by_name.get(name) for name in ("ample", "join", "copy"))
    faster = join.run_s / ours.run_s if ours and join else None
    part = ours.run_s / copy.run_s if ours and copy else None
    steady = [
        ("in input rows", ours.steady if ours else None),
        ("in rows that all joins take in, and results", ours.steady_handled if ours else None),
    ]
    less = join.cpu_s / ours.cpu_s if ours and join else None
    return [
        Target(
            f"at least {join_factor:g} times as fast as Spark's joins",
            faster,
            None if faster is None else faster >= join_factor,
        ),
        Target(
            f"at most 1/{join_factor:g} of the CPU of Spark's joins: how many times less",
            less,
            None if less is None else less >= join_factor,
        ),
        Target(
            f"at most {COPY_FACTOR:g} of the time of the copy",
            part,
            None if part is None else part <= COPY_FACTOR,
        ),
        *(
            Target(
                f"last quarter of the epochs at {STEADY:g} of the second's rate, or more, {what}",
                value,
                None if value is None else value >= STEADY,
            )
            for what, value in steady
        ),
        *_short_of_memory(ours, by_name.get("quarter"), by_name.get("batch")),
    ]


def _short_of_memory(ours: Line | None, quarter: Line | None, batch: Line | None) -> list[Target]:
    """The targets of spikes, of a quarter of the memory, and of the phases after the close."""

    def target(text: str, value: float | None, most: float | None, least: float = 0.0) -> Target:
        met = None if value is None else least <= value and (most is None or value <= most)
        return Target(text, value, met)

    large = ours is not None and sum(e.rows for e in ours.shown.epochs) >= LARGE_ROWS
    most = MORE if large else MORE_SMALL
    phases = {} if quarter is None else {each.name: each for each in quarter.shown.phases}
    cleanup, proof = phases.get("cleanup"), phases.get("verify")
    more = quarter.cpu_s / ours.cpu_s if ours and quarter else None
    rate = cleanup.found["cleanup"] / cleanup.cpu_s if cleanup else None
    after = cleanup.cpu_s / batch.cpu_s if cleanup and batch else None
    part = proof.cpu_s / ours.cpu_s if ours and proof else None
    found = [
        target(
            f"no epoch after the third over {SPIKE:g} times its ten neighbours, {name}",
            line.spike if line else None,
            SPIKE,
        )
        for name, line in (("ample", ours), ("a quarter of the memory", quarter))
    ]
    return [
        *found,
        target(f"a quarter of the memory at most {most:g} times the CPU", more, most),
        target(f"cleanup: at least {CLEANED:,} results a CPU second", rate, None, CLEANED),
        target(f"cleanup: at most {AFTER:g} of the CPU of Spark's batch join", after, AFTER),
        target(f"verify: at most {PROOF:g} of the CPU of the ample run", part, PROOF),
    ]
