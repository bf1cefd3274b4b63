"""What people see: a table for the terminal, Markdown for the documentation, JSON for programs."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from rich.text import Text

from benchmarks.side_by_side import epochs
from benchmarks.side_by_side.programs import PLANNED, TITLES, Phase, Run
from benchmarks.side_by_side.summary import Line, Target

PACKAGES = ("pyspark", "delta-spark", "deltalake", "pyarrow", "numpy", "kafka-python")
GIB, MIB = 1 << 30, 1 << 20


def machine() -> dict[str, Any]:
    """Where it was measured."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
    }


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def as_json(about: Mapping[str, Any], runs: Sequence[Run], found: Sequence[Target]) -> str:
    """Everything that was measured."""
    shown = []
    for run in runs:
        each = asdict(run)
        each["epochs"] = epochs.dumped(run.epochs)
        shown.append(each)
    return json.dumps({**about, "targets": [asdict(t) for t in found], "runs": shown}, indent=1)


HEAD = (
    "program",
    "run, s",
    "start, s",
    "total, s",
    "CPU, s",
    "peak memory, GiB",
    "input rows/s",
    "last / second quarter",
    "results",
)


def _cells(line: Line) -> list[str]:
    low, high = line.spread_s
    spread = f" ({low:.1f}–{high:.1f})" if line.runs > 1 else ""
    return [
        TITLES[line.program],
        f"{line.run_s:.1f}{spread}",
        f"{line.start_s:.1f}",
        f"{line.total_s:.1f}",
        f"{line.cpu_s:.0f}",
        f"{line.peak_bytes / GIB:.2f}",
        f"{line.rows_per_s:,.0f}",
        "" if line.steady is None else f"{line.steady:.2f}",
        f"{line.shown.outcome.rows:,}" if line.program != "copy" else "–",
    ]


def _phase_rows(line: Line) -> list[list[str]]:
    made = []
    for phase in line.shown.phases:
        cells = _phase_figures(phase)
        made.append([f"… then {phase.name}", *cells, "", "", _phase_found(phase.found)])
    return made


def _phase_found(found: Mapping[str, Any]) -> str:
    if "missing" in found:
        return f"missing {found['missing']}, doubled {found['doubled']}"
    if "cleanup" in found:
        return f"+{found['cleanup']:,}"
    return ""


SHORT = ("run, s", "start", "total", "CPU, s", "GiB", "rows/s", "last/2nd", "results")
"""The same as `HEAD` without the program, for 80 columns: its name is on a line above."""


def table(found: Sequence[Line]) -> Text:
    """For a terminal of 80 columns: a program's name, its figures below, then its phases."""
    figures = {line.program: _figures(line) for line in found}
    columns = zip(SHORT, *figures.values(), strict=True)
    widths = [max(5, *map(len, column)) for column in columns]

    def row(cells: Sequence[str]) -> str:
        padded = (cell.rjust(width) for cell, width in zip(cells, widths, strict=False))
        return "  " + "  ".join(padded)

    made = Text(row(SHORT), style="bold", no_wrap=True)
    for line in found:
        low, high = line.spread_s
        runs = f" (median of {line.runs} runs: {low:.1f}–{high:.1f} s)" if line.runs > 1 else ""
        made.append(f"\n{TITLES[line.program]}{runs}\n", style="not bold")
        made.append(row(figures[line.program]), style="not bold")
        for phase in line.shown.phases:
            made.append(f"\n{row(_phase_figures(phase))}", style="not bold dim")
            said = _phase_found(phase.found)
            made.append(f"  then {phase.name}{f': {said}' if said else ''}", style="not bold dim")
    return made


def _figures(line: Line) -> list[str]:
    """One program's cells, by `SHORT`."""
    return [f"{line.run_s:.1f}", *_cells(line)[2:]]


def _phase_figures(phase: Phase) -> list[str]:
    """A phase's cells, by the first five of `SHORT`; its name follows where the rest would be."""
    inner = phase.found.get("seconds")
    return [
        f"{inner:.1f}" if isinstance(inner, int | float) else "",
        "",
        f"{phase.wall_s:.1f}",
        f"{phase.cpu_s:.0f}",
        f"{phase.peak_bytes / GIB:.2f}",
    ]


def target_lines(found: Sequence[Target]) -> list[str]:
    """One sentence a target."""
    words = {True: "met", False: "missed", None: "not measured"}
    return [
        f"{t.text}: {'–' if t.value is None else f'{t.value:.2f}'} ({words[t.met]})" for t in found
    ]


def details(found: Sequence[Line]) -> list[str]:
    """Sentences on memory and spills, and on what was expected of cleanup."""
    said = []
    for line in found:
        about = line.shown.found
        if "budget_bytes" not in about:
            continue
        text = (
            f"{TITLES[line.program]}: a budget of {about['budget_bytes'] / MIB:,.1f} MiB a slot; "
            f"state at the end {about['state_bytes'] / MIB:,.1f} MiB for {about['state_rows']:,} "
            f"rows, its files at most {about['peak_folder_bytes'] / MIB:,.1f} MiB; "
            f"{about['epochs']} epochs"
        )
        if about["cuts"]:
            text += (
                f"; spilled {about['spilled_bytes'] / MIB:,.1f} MiB in {about['cuts']:,} cuts; "
                f"{about['results_at_run_time']:,} results at run time"
            )
        said.append(text + ".")
        for phase in line.shown.phases:
            if (planned := phase.found.get(PLANNED)) is not None:
                said.append(
                    f"{TITLES[line.program]}: cleanup took {phase.wall_s:,.1f} s; "
                    f"cleanup --plan had said {planned:,.1f} s."
                )
    return said


def markdown(about: Mapping[str, Any], found: Sequence[Line], goals: Sequence[Target]) -> str:
    """The generated part of `docs/measured.md`."""
    where, sizes = about["machine"], about["sizes"]
    lines = [
        f"`{about['command']}` on {about['date']}: {where['cores']} cores "
        f"({where['cpu']}), {where['memory_bytes'] / GIB:.0f} GiB, Python {where['python']}, "
        + ", ".join(f"{name} {number}" for name, number in where["packages"].items())
        + ".",
        "",
        f"Input: {sizes['rows']:,} JSON messages ({sizes['value_bytes'] / MIB:,.0f} MiB) in "
        f"{sizes['topics']} topics of {sizes['partitions']} partitions; at most "
        f"{sizes['max_rows']:,} rows an epoch; {sizes['repetitions']} "
        + ("repetition" if sizes["repetitions"] == 1 else "repetitions (median, and the range)")
        + ".",
        "",
        "| " + " | ".join(HEAD) + " |",
        "|---" + "|--:" * (len(HEAD) - 1) + "|",
    ]
    for line in found:
        lines += ["| " + " | ".join(row) + " |" for row in [_cells(line), *_phase_rows(line)]]
    lines += ["", *(f"* {text}" for text in target_lines(goals)), ""]
    lines += [*(f"* {text}" for text in details(found)), ""]
    return "\n".join(lines)


def replace_section(page: str, name: str, text: str) -> str:
    """The page with what lies between `<!-- name -->` and `<!-- /name -->` replaced.

    Raises ValueError when the page has no such section.
    """
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    head, found, rest = page.partition(begin)
    _, ended, tail = rest.partition(end)
    if not (found and ended):
        raise ValueError(f"the page has no section between {begin.strip()} and {end}")
    return f"{head}{begin}{text.strip()}\n{end}{tail}"
