"""Where an epoch's time goes.

make profile                              3 x 2,000,000 rows
make profile ARGS="--rows 200000"         a minute
make profile ARGS="--docs"                also renews docs/measured.md
"""

from __future__ import annotations

import argparse
import json
import os
import pstats
import shutil
import signal
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import ROOT
from benchmarks.profiling import breakdown
from benchmarks.profiling.inside import FOLDER, FUNCTIONS
from benchmarks.side_by_side import report
from benchmarks.side_by_side.contests import SYMBOL
from benchmarks.side_by_side.programs import SESSION, environment, settings_text
from benchmarks.side_by_side.topics import Filled, filled
from benchmarks.side_by_side.watch import ProgramFailed, Watched, watched
from spillway.places import var_folder
from spillway_schemas.journal import Epoch

GIB = 1 << 30
MOST_FUNCTIONS = 12
Rows = Sequence[tuple[str, float]]
out = Console(soft_wrap=True)


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="make profile", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--rows", type=int, default=2_000_000, help="rows of each of the three topics")
    add("--keys", type=int, help="keys; half of --rows when not given")
    add("--max-rows", type=int, default=600_000, help="rows an epoch, of all topics")
    add("--master", default="local[*]", help="spark.master")
    add("--slots", type=int, default=len(os.sched_getaffinity(0)), help="slots")
    add("--budget", type=int, default=GIB, help="bytes a slot")
    add("--folder", type=Path, help="where everything is kept; var/bench when not given")
    add("--keep", action="store_true", help="keep the filled topics for the next time")
    add("--docs", action="store_true", help="renew the tables in docs/measured.md")
    given = parser.parse_args(arguments)
    given.keys = given.keys or max(given.rows // 2, 1)
    return given


@dataclass(frozen=True)
class Profiled:
    """What one run wrote down."""

    seen: Watched
    spans: list[breakdown.Span]
    progress: list[dict[str, Any]]
    cpu_s: dict[str, float]
    tasks: list[dict[str, Any]]
    entries: list[Epoch]
    functions: dict[str, dict[tuple[str, int, str], tuple[Any, ...]]]
    """Per kind of task, cProfile's statistics; empty for a run without them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill the topics, run twice (times; functions), print the tables. 3: a run failed."""
    given = options(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C does
    folder = (given.folder or var_folder() / "bench").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    wanted = SYMBOL.resized(given.rows, given.keys)
    try:
        with filled(folder / "kafka", wanted, keep=given.keep, report=lambda _: None) as topics:
            times = _profiled(given, folder, topics, functions=False)
            functions = _profiled(given, folder, topics, functions=True)
    except ProgramFailed as error:
        out.print(str(error), style="red", markup=False, highlight=False)
        return 3
    except KeyboardInterrupt:
        out.print("stopped")
        return 130
    sections = _sections(times, functions)
    for title, unit, rows in sections:
        out.print(_table(title, unit, rows))
    if given.docs:
        page = ROOT / "docs" / "measured.md"
        text = _markdown(given, topics, sections)
        page.write_text(report.replace_section(page.read_text(), "profile", text))
    return 0


def _profiled(
    given: argparse.Namespace, folder: Path, topics: Filled, *, functions: bool
) -> Profiled:
    from spillway.tables import Warehouse

    disk, records = folder / "profile", folder / "profile" / "records"
    memory = Path(f"/dev/shm/spillway-profile-{os.getpid()}")
    shutil.rmtree(disk, ignore_errors=True)
    records.mkdir(parents=True)
    log = folder / "profile.log"
    try:
        settings = disk / "spillway.toml"
        settings.write_text(
            settings_text(
                topics.bootstrap,
                disk / "warehouse",
                memory,
                master=given.master,
                slots=given.slots,
                budget=given.budget,
                max_rows=given.max_rows,
            )
        )
        env = {**environment(), FOLDER: str(records), **({FUNCTIONS: "1"} if functions else {})}
        target = disk / "driver.json"
        module = "benchmarks.profiling.driver"
        command = [sys.executable, "-m", module, str(settings), SESSION, str(target)]
        seen = watched(
            command, env=env, cwd=folder, log=log, tmpfs=[memory], others=[topics.broker_pid]
        )
        said = json.loads(target.read_text())
        entries = Warehouse(str(disk / "warehouse")).journal.read()
        return Profiled(
            seen=seen,
            spans=[(name, begin, end) for name, begin, end in said["spans"]],
            progress=said["progress"],
            cpu_s=said["cpu_s"],
            tasks=_records(records),
            entries=[entry for entry in entries if isinstance(entry, Epoch)],
            functions={k: _functions(records.glob(f"{k}-*.prof")) for k in ("decode", "step")},
        )
    finally:
        shutil.rmtree(disk, ignore_errors=True)
        shutil.rmtree(memory, ignore_errors=True)


def _records(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for file in sorted(folder.glob("*.jsonl"))
        for line in file.read_text().splitlines()
    ]


def _functions(files: Iterable[Path]) -> dict[tuple[str, int, str], tuple[Any, ...]]:
    names = [str(file) for file in files]
    if not names:
        return {}
    found: dict[tuple[str, int, str], tuple[Any, ...]] = pstats.Stats(*names).stats  # type: ignore[attr-defined]
    return found


def _sections(times: Profiled, functions: Profiled) -> list[tuple[str, str, Rows]]:
    epochs = breakdown.warm(breakdown.timeline(times.spans, times.tasks))
    if not epochs:
        raise ProgramFailed("No epoch ran after the first: take more rows, or --max-rows smaller")
    between = breakdown.spark_rows(times.progress)
    work = sum(task["work_cpu_s"] for task in times.tasks)
    cpu = {**times.cpu_s, "broker": times.seen.other_cpu_s}
    cpu["Python workers: Arrow batches in and out, start"] = cpu.pop("Python workers", 0.0) - work
    for kind in ("decode", "step"):
        mine = (task["work_cpu_s"] for task in times.tasks if task["kind"] == kind)
        cpu[f"Python workers: {kind}"] = sum(mine)
    by_size = sorted(cpu.items(), key=lambda item: -item[1])
    root = str(ROOT)
    tables: list[tuple[str, str, Rows]] = [
        ("A warm epoch on the wall clock", "s", breakdown.wall_rows(epochs)),
        ("What Spark does between two batches", "s", between),
        ("Tasks of a warm epoch, added up", "task s", breakdown.task_rows(epochs, times.entries)),
        ("CPU of the whole run, start included", "CPU s", by_size),
    ]
    for kind, stats in functions.functions.items():
        rows = breakdown.function_rows(stats, root, MOST_FUNCTIONS)
        count = max(len(functions.entries), 1)
        each = [(name, seconds / count) for name, seconds in rows]
        tables.append((f"Functions of {kind}, time of their own", "s an epoch", each))
    return tables


def _table(title: str, unit: str, rows: Rows) -> Table:
    made = Table(title, unit, box=None, header_style="bold", title_justify="left")
    made.columns[1].justify = "right"
    for name, value in rows:
        made.add_row(name, f"{value:.3f}" if value < 10 else f"{value:.1f}")
    made.add_row("", "")
    return made


def _markdown(
    given: argparse.Namespace, topics: Filled, sections: Sequence[tuple[str, str, Rows]]
) -> str:
    said = " ".join(sys.argv[1:])
    lines = [
        f"`make profile{f' ARGS={chr(34)}{said}{chr(34)}' if said else ''}`: {topics.rows:,} rows, "
        f"at most {given.max_rows:,} an epoch, {given.slots} slots.",
    ]
    for title, unit, rows in sections:
        lines += ["", f"| {title} | {unit} |", "|---|--:|"]
        lines += [
            f"| {name.replace('|', chr(92) + '|')} | "
            f"{f'{value:.3f}' if value < 10 else f'{value:.1f}'} |"
            for name, value in rows
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
