"""The table of `make bench`: 80 columns, every figure, and the same ones as in the docs."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from rich.console import Console

from benchmarks.side_by_side import programs
from benchmarks.side_by_side.epochs import EpochRate
from benchmarks.side_by_side.outcome import Outcome
from benchmarks.side_by_side.programs import NAMES, PLANNED, TITLES, Bench, Phase, Run
from benchmarks.side_by_side.report import HEAD, SHORT, details, markdown, table
from benchmarks.side_by_side.summary import lines
from benchmarks.side_by_side.watch import Watched

RESULTS = 113_180_080


def run(program: str, repetition: int) -> Run:
    phases = [
        Phase("seal", 1.04, 1.2, 70 << 20),
        Phase("stream to the seal", 12.81, 14.0, 1 << 30),
        Phase("cleanup", 1_015.8, 2_026.0, 1 << 30, {"seconds": 1_014.1, "cleanup": 109_840_908}),
        Phase("verify", 40.9, 69.0, 1 << 30, {"missing": 0, "doubled": 0, "complete": True}),
    ]
    return Run(
        program=program,
        repetition=repetition,
        total_s=1_276.94 + repetition,
        start_s=14.04,
        run_s=1_270.74 + repetition,
        cpu_s=5_501.0,
        broker_cpu_s=1.0,
        peak_bytes=14 << 30,
        peak_process_bytes=0,
        peak_tmpfs_bytes=0,
        outcome=Outcome(RESULTS, "d", 1, 1),
        epochs=[EpochRate(100_000_000, 0.0, 100.0)] * 12,
        phases=phases if program == "quarter" else [],
        found={},
    )


def test_the_table_fits_80_columns_and_has_every_figure() -> None:
    found = lines([run(name, repetition) for name in NAMES for repetition in range(3)])
    out = Console(file=io.StringIO(), width=80, soft_wrap=True)
    out.print(table(found))
    told: str = out.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, told.splitlines())) <= 80
    assert "…" not in told
    head, *rows = told.splitlines()
    assert head.split() == " ".join(SHORT).split()
    assert len(SHORT) == len(HEAD) - 1
    assert [row for row in rows if not row.startswith(" ")] == [
        f"{TITLES[name]} (median of 3 runs: 1270.7–1272.7 s)" for name in NAMES
    ]
    figures = ["1271.7", "14.0", "1277.9", "5501", "14.00", "943,589", "1.00", f"{RESULTS:,}"]
    assert [row.split() for row in rows if row.endswith(figures[-1])] == [figures] * (
        len(NAMES) - 1
    )
    phases = [row for row in rows if "  then " in row]
    assert [row.partition("  then ")[2] for row in phases] == [
        "seal",
        "stream to the seal",
        "cleanup: +109,840,908",
        "verify: missing 0, doubled 0",
    ]
    assert phases[2].split()[:4] == ["1014.1", "1015.8", "2026", "1.00"]


def test_the_docs_have_the_same_figures_in_one_row_each() -> None:
    found = lines([run(name, 0) for name in NAMES])
    about = {
        "command": "make bench",
        "date": "2026-01-05",
        "machine": {"cores": 2, "cpu": "x", "memory_bytes": 1, "python": "3", "packages": {}},
        "sizes": {
            "rows": 1,
            "value_bytes": 1,
            "partitions": 1,
            "topics": 3,
            "max_rows": 1,
            "repetitions": 1,
        },
    }
    rows = [row for row in markdown(about, found, []).splitlines() if row.startswith("| ")]
    assert {row.count("|") for row in rows} == {len(HEAD) + 1}
    [quarter] = [row for row in rows if TITLES["quarter"] in row]
    assert quarter.endswith(f"| 14.00 | 944,332 | 1.00 | {RESULTS:,} |")
    assert "| … then cleanup | 1014.1 |  | 1015.8 | 2026 | 1.00 |  |  | +109,840,908 |" in rows


def test_what_was_expected_of_cleanup_is_told_beside_what_it_took() -> None:
    made = run("quarter", 0)
    names = ("budget_bytes", "state_bytes", "state_rows", "peak_folder_bytes", "epochs", "cuts")

    def told(planned_s: float | None) -> list[str]:
        phases = [
            replace(each, found=each.found | {PLANNED: planned_s})
            if each.name == "cleanup"
            else each
            for each in made.phases
        ]
        return details(lines([replace(made, phases=phases, found=dict.fromkeys(names, 0))]))[1:]

    title = TITLES["quarter"]
    assert told(1_094.4) == [f"{title}: cleanup took 1,015.8 s; cleanup --plan had said 1,094.4 s."]
    assert told(None) == []  # of a tree


def test_cleanup_is_planned_before_it_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: a plan of what is done already, which says 0 s; one that counts as a phase."""
    done: list[str] = []

    def command(bench: Bench, settings: Path, log: str, *arguments: str) -> Watched:
        done.append(arguments[0])
        seconds = 0.0 if done.count("cleanup") > 1 and "--plan" in arguments else 9.5
        (bench.folder / log).write_text(json.dumps({"seconds": seconds}))
        return Watched(0.0, 1.0, 1.0, 0.0, ())

    monkeypatch.setattr(programs, "_command", command)
    bench = cast(Bench, SimpleNamespace(folder=tmp_path))
    phases = programs._finish(bench, tmp_path)
    assert [each.name for each in phases] == ["seal", "stream to the seal", "cleanup", "verify"]
    assert done == ["seal", "stream", "cleanup", "cleanup", "verify"]
    assert [each.found.get(PLANNED) for each in phases] == [None, None, 9.5, None]
