"""The papers' experiments on the real engine and policies, on a virtual clock, without Spark.

make lab                                all figures, and docs/laboratory.md with its charts
python -m benchmarks.lab                the same, without touching docs/
python -m benchmarks.lab --figures 11   one of them
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import pyarrow as pa
from rich.console import Console

from benchmarks import ROOT
from benchmarks.lab import page
from benchmarks.lab.catalogue import experiments
from benchmarks.lab.exact import NotExact
from benchmarks.lab.flux_experiments import FluxExperiment
from benchmarks.lab.flux_lines import FluxOutcome
from benchmarks.lab.line_running import carry_out_flux, carry_out_window
from benchmarks.lab.lines import Outcome
from benchmarks.lab.picture import picture
from benchmarks.lab.running import carry_out
from benchmarks.lab.window_experiments import WindowExperiment
from benchmarks.lab.window_lines import WindowOutcome
from benchmarks.side_by_side.report import replace_section

PAGE = ROOT / "docs" / "laboratory.md"
out = Console(soft_wrap=True, highlight=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiments, report. 1: a run was not exact."""
    known = experiments()
    given = _options(known, arguments)
    wanted = set(given.figures or (f for e in known for f in e.figures))
    pa.set_cpu_count(1)  # CPU seconds of a slot are those of one core
    began = time.monotonic()
    done: list[page.AnyDone] = []
    try:
        for experiment in known:
            if wanted & set(experiment.figures):
                out.print(f"[bold]Figure {', '.join(experiment.figures)}: {experiment.title}[/]")
                done.append(_carried_out(experiment))
                out.print(page.outcomes_table(done[-1]), markup=False)
                if given.docs:
                    _renew(known, done[-1])
    except NotExact as error:
        out.print(str(error), style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        out.print("stopped")
        return 130
    out.print(page.claims_table(c for each in done for c in each.claims), markup=False)
    took_s = time.monotonic() - began
    out.print(f"{took_s / 60:.1f} minutes; every run was exact")
    return 0


def _carried_out(experiment: page.AnyExperiment) -> page.AnyDone:
    if isinstance(experiment, WindowExperiment):
        return carry_out_window(experiment, _progress, _finished_window)
    if isinstance(experiment, FluxExperiment):
        return carry_out_flux(experiment, _progress, _finished_flux)
    return carry_out(experiment, _progress, _finished)


def _options(
    known: Iterable[page.AnyExperiment], arguments: Sequence[str] | None
) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make lab", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    figures = [figure for each in known for figure in each.figures]
    parser.add_argument("--figures", help=f"of {', '.join(figures)}; all when not given")
    parser.add_argument("--docs", action="store_true", help="renew docs/laboratory.md")
    given = parser.parse_args(arguments)
    given.figures = [name.strip() for name in given.figures.split(",")] if given.figures else []
    if unknown := set(given.figures) - set(figures):
        parser.error(f"--figures: {', '.join(sorted(unknown))}; there are {', '.join(figures)}")
    return given


def _progress(name: str, part: float) -> None:
    if sys.stdout.isatty():
        out.print(f"  {name}: {part:4.0%}", end="\r", markup=False)


def _finished(outcome: Outcome) -> None:
    out.print(
        f"  {outcome.name}: {outcome.run_time:,} results at run time, {outcome.missing:,} by "
        f"cleanup; exact; {outcome.run_cpu_s + sum(outcome.cleanup_cpu_s):.1f} CPU s",
        markup=False,
    )


def _finished_window(outcome: WindowOutcome) -> None:
    out.print(
        f"  {outcome.name}: {outcome.results:,} results, {outcome.delay_s:.2f} s; exact; "
        f"{outcome.run_cpu_s:.1f} CPU s",
        markup=False,
    )


def _finished_flux(outcome: FluxOutcome) -> None:
    out.print(
        f"  {outcome.name}: {outcome.steady:,.0f} tuples a second, {outcome.moved} moves; "
        f"{outcome.cpu_s:.1f} CPU s",
        markup=False,
    )


def _renew(known: Sequence[page.AnyExperiment], done: page.AnyDone) -> None:
    """An experiment's section and charts, and the claims of all that were ever run."""
    folder = PAGE.parent / page.FOLDER
    folder.mkdir(exist_ok=True)
    kept = folder / "lab.json"
    before = page.restore(kept.read_text(), known) if kept.exists() else []
    by_figures = {each.experiment.figures: each for each in (*before, done)}
    every = [by_figures[e.figures] for e in known if e.figures in by_figures]
    kept.write_text(page.dump(every))
    _renew_section(f"figure {done.experiment.figures[0]}", page.figure_section(done))
    _renew_section("run", _about(sum(each.cpu_s for each in every)))
    _renew_section("ceiling", page.ceiling_table(every))
    paper = done.experiment.paper
    of_paper = [each for each in every if each.experiment.paper == paper]
    _renew_section(f"claims of {paper}", page.judged(of_paper))
    for figure, drawn in _pictures(done):
        (folder / f"figure-{figure}.svg").write_text(drawn)


def _pictures(done: page.AnyDone) -> list[tuple[str, str]]:
    if not isinstance(done, page.Done):
        return done.charts
    return [(each.figure, picture(each, done.outcomes)) for each in done.experiment.pictures]


def _renew_section(name: str, text: str) -> None:
    PAGE.write_text(replace_section(PAGE.read_text(), name, text))


def _about(cpu_s: float) -> str:
    return (
        f"`make lab`, last on {datetime.now(UTC).date()}: {cpu_s / 60:.0f} minutes of CPU time, "
        f"one process, Python {platform.python_version()}, pyarrow {pa.__version__}. Every run was "
        "exact."
    )


if __name__ == "__main__":
    sys.exit(main())
